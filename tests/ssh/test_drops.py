"""Lines that drop: found, shown, opened again, and nothing lost or told twice."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from redrive.console.model.session_status import Link
from redrive.console.sessions import address, agent_process, connection
from redrive.console.sessions import open as open_files
from redrive.console.sessions.address import Endpoint, SshOptions, parse
from redrive.console.sessions.session import LiveSession
from redrive.console.sessions.ssh import SshSession
from redrive.engine.agent.agent import BEAT_SECONDS
from redrive.engine.domain.acts import Command, Target
from redrive.engine.errors import LinkError, SnapshotNeeded
from support.commands import quoted
from support.fake_executor import FakeExecutor
from support.state_file import StateFileBuilder
from support.waiting import wait_until_async

EVENTS = 2000
DROPS = 20
LIMIT_SECONDS = 90.0  # for what never comes


@pytest.fixture
async def session(far: Any, run_file: StateFileBuilder) -> AsyncIterator[SshSession]:
    session = await SshSession.open(f"ssh://far{run_file.path}")
    yield session
    await session.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less patience between tries."""
    monkeypatch.setattr(connection, "BACKOFF_SECONDS", (0.05, 0.1))


def logins(far: Any) -> int:
    return int((far.folder / "sshd.log").read_text().count("Accepted publickey"))


async def until(session: LiveSession, what: Any) -> None:
    """Wait until the status is so."""
    await wait_until_async(lambda: what(session.status), describe=lambda: session.status)


def pause(id: str = "c1") -> Command:
    return Command(id, "pause", "night-1", (), "ana@desk", "because")


@pytest.mark.long
async def test_twenty_kills_lose_no_event_and_repeat_none(
    quick: None, far: Any, run_file: StateFileBuilder, session: Any
) -> None:
    since, last = run_file.head(), run_file.head() + EVENTS
    dice = random.Random(5)
    drops = 0

    def write_slowly() -> None:
        for _ in range(EVENTS // 10):
            run_file.emit_idle_events(10)
            time.sleep(0.03)  # so that some events come while the line is down

    async def cut() -> None:
        nonlocal drops
        while drops < DROPS:
            await asyncio.sleep(dice.uniform(0.0, 0.5))  # cuts at any moment
            if far.connections():
                far.cut()
                drops += 1

    writing = threading.Thread(target=write_slowly)
    writing.start()
    cutting = asyncio.create_task(cut())
    seen: list[int] = []
    async with asyncio.timeout(2 * LIMIT_SECONDS):
        async for batch in session.events(since):
            seen += [event.seq for event in batch]
            if seen and seen[-1] >= last and cutting.done():
                break
    writing.join()
    assert seen == list(range(since + 1, last + 1))
    assert drops == DROPS


async def test_a_drop_is_shown_at_once_and_locks_the_acts(
    far: Any, run_file: StateFileBuilder, session: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(
        connection, "LATE_HEARTBEAT_SECONDS", 10 * LIMIT_SECONDS
    )  # it is not the silence by which it is found
    assert session.status.link is Link.LIVE
    far.stop()
    try:
        far.cut()
        await until(session, lambda status: status.link is Link.STALE)
        await until(session, lambda status: status.retry_in_seconds is not None)
        assert session.status.problem
        with pytest.raises(LinkError, match="not sent"):
            await session.send(pause())
        await until(session, lambda status: "no ssh server listens" in (status.problem or ""))
        assert session.status.link is Link.STALE
    finally:
        far.start()
    await until(session, lambda status: status.link is Link.LIVE)
    assert session.status.problem is None and session.status.retry_in_seconds is None
    assert (await session.send(pause())).ok


async def test_waits_between_tries_grow_and_differ(
    far: Any, run_file: StateFileBuilder, session: Any, monkeypatch: Any
) -> None:
    await until(session, lambda status: status.clock_offset_seconds)  # the clocks are compared: they wait for long
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds > 0:  # else it is a turn of the loop, after a message that came before the cut
            waits.append(seconds)
        await real_sleep(0)

    far.stop()
    try:
        monkeypatch.setattr(connection.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
        far.cut()
        async with asyncio.timeout(LIMIT_SECONDS):
            while len(waits) < 8:
                await real_sleep(0.01)
        monkeypatch.undo()
    finally:
        far.start()
    for wait, base in zip(waits, (1, 2, 5, 10, 30, 30, 30, 30), strict=False):
        assert base * 0.75 <= wait <= base * 1.25
    assert len(set(waits[4:8])) == 4


@pytest.mark.long
async def test_silence_is_found_within_ten_seconds_and_gone_when_it_ends(
    far: Any, run_file: StateFileBuilder, session: Any
) -> None:
    """A suspended laptop, a black hole: nothing is closed, nothing comes."""
    assert BEAT_SECONDS < connection.LATE_HEARTBEAT_SECONDS < 9
    events = session.events(run_file.head())
    assert not await anext(events)
    (client,) = far.connections()
    os.kill(client, signal.SIGSTOP)
    try:
        await until(session, lambda status: status.link is Link.STALE)
        assert session.status.data_age_seconds > 5
        run_file.emit_idle_events(50)
    finally:
        os.kill(client, signal.SIGCONT)
    seen: list[int] = []
    async with asyncio.timeout(LIMIT_SECONDS):
        while len(seen) < 50:
            seen += [event.seq for event in await anext(events)]
    assert seen == list(range(run_file.head() - 49, run_file.head() + 1))
    assert session.status.link is Link.LIVE


@pytest.mark.long
async def test_an_agent_that_hangs_is_left_for_a_new_one(
    quick: None, far: Any, run_file: StateFileBuilder, session: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(connection, "DEAD_SECONDS", 6.0)
    monkeypatch.setattr(connection, "LATE_HEARTBEAT_SECONDS", 5.5)
    (client,) = far.connections()
    os.kill(client, signal.SIGSTOP)
    await until(session, lambda status: status.link is Link.STALE)
    await until(session, lambda status: status.link is Link.LIVE)
    (other,) = far.connections()
    assert other != client


async def test_an_act_whose_answer_was_lost_is_asked_again_and_done_once(
    quick: None, far: Any, run_file: StateFileBuilder, executor: FakeExecutor, session: Any
) -> None:
    applied = threading.Event()
    go_on = threading.Event()
    real_write = executor.state_file.write

    def slow_to_answer(item: Any, **signed: Any) -> Any:
        answer = real_write(item, **signed)
        applied.set()
        go_on.wait(LIMIT_SECONDS)
        return answer

    executor.state_file.write = slow_to_answer  # type: ignore[method-assign]
    requeue = Command("c7", "requeue", "night-1", (Target("task_00002", "DEAD_LETTER", 0),), "ana@desk", "fixed")
    sending = asyncio.create_task(session.send(requeue))
    assert await asyncio.to_thread(applied.wait, LIMIT_SECONDS)
    far.cut()
    go_on.set()
    answer = await asyncio.wait_for(sending, LIMIT_SECONDS)
    assert answer.ok and answer.results[0][:2] == ("task_00002", "done")
    acts = run_file.connection.execute(
        "SELECT count(*) FROM event WHERE command_id = 'c7' AND kind = 'task'"
    ).fetchone()
    assert acts == (1,)


async def test_what_reads_waits_for_the_line(quick: None, far: Any, run_file: StateFileBuilder, session: Any) -> None:
    far.stop()
    try:
        far.cut()
        await until(session, lambda status: status.link is Link.STALE)
        reading = asyncio.create_task(session.snapshot())
        await asyncio.sleep(0.3)  # time in which no answer may come
        assert not reading.done()
    finally:
        far.start()
    assert (await asyncio.wait_for(reading, LIMIT_SECONDS)).run.run_id == "night-1"


async def test_a_file_replaced_while_the_line_was_down_gives_a_new_picture(
    quick: None,
    far: Any,
    run_file: StateFileBuilder,
    make_run_file: Callable[..., StateFileBuilder],
    session: Any,
) -> None:
    run_file.close()
    events = session.events((await session.snapshot()).seq)
    assert not await anext(events)
    other = make_run_file("other.db", run_id="other-1")
    other.close()
    far.stop()
    try:
        far.cut()
        await until(session, lambda status: status.link is Link.STALE)
        shutil.copyfile(other.path, run_file.path)
        for beside in ("-wal", "-shm"):
            run_file.path.with_name(run_file.path.name + beside).unlink(missing_ok=True)
    finally:
        far.start()
    with pytest.raises(SnapshotNeeded):
        async with asyncio.timeout(LIMIT_SECONDS):
            while True:
                await anext(events)
    assert (await session.snapshot()).run.run_id == "other-1"


async def test_a_host_that_no_longer_lets_us_in_is_not_asked_for_ever(
    quick: None, far: Any, run_file: StateFileBuilder, session: Any
) -> None:
    keys = far.folder / "authorized_keys"
    kept = keys.read_text()
    keys.write_text("")
    try:
        far.cut()
        await until(session, lambda status: status.link is Link.CLOSED)
    finally:
        keys.write_text(kept)
    assert "does not let you in" in session.status.problem
    with pytest.raises(LinkError):
        await session.snapshot()


async def test_a_list_and_the_run_opened_from_it_log_in_once_again(
    quick: None, far: Any, run_file: StateFileBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have lost the connection that they share: who comes first makes it again."""
    monkeypatch.setattr(open_files, "AGAIN_SECONDS", 0.05)
    fleet = await open_files.log_in(["ssh://far"], SshOptions())
    login = fleet.hosts["ssh://far"]
    ssh, *words = (await login.options()).argv(parse("ssh://far"))
    end_connection = [ssh, "-O", "exit", *words]
    run = await open_files.open_session(Endpoint(f"ssh://far{run_file.path}"), may_prompt=False, login=login)
    async with asyncio.timeout(LIMIT_SECONDS), aclosing(open_files.watch_hosts(fleet.hosts)) as lists:

        async def until_row_of_host(is_there: bool) -> None:
            while any(row.path == "ssh://far" for row in await anext(lists)) is not is_there:
                pass

        await until_row_of_host(False)  # it stands for a host that is not connected
        before = logins(far)
        subprocess.run(end_connection, check=True, stderr=subprocess.DEVNULL)
        await until_row_of_host(True)
        await until_row_of_host(False)
        await until(run, lambda status: status.link is Link.LIVE)
    await run.close()
    subprocess.run(end_connection, check=True, stderr=subprocess.DEVNULL)
    assert logins(far) - before == 1


async def test_a_shared_connection_that_hangs_is_left_by_the_list_and_made_again(
    quick: None, far: Any, run_file: StateFileBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_file.close()
    for module, name, seconds in (
        (open_files, "AGAIN_SECONDS", 0.05),
        (open_files, "DEAD_SECONDS", 3.0),
        (address, "ANSWER_SECONDS", 0.5),
    ):
        monkeypatch.setattr(module, name, seconds)
    fleet = await open_files.log_in(["ssh://far"], SshOptions())
    ssh, *words = (await fleet.hosts["ssh://far"].options()).argv(parse("ssh://far"))
    said = subprocess.run([ssh, "-O", "check", *words], capture_output=True, text=True, check=True).stderr
    master = int(re.findall(r"pid=(\d+)", said)[0])
    async with asyncio.timeout(LIMIT_SECONDS), aclosing(open_files.watch_hosts(fleet.hosts)) as lists:
        try:
            for is_silent in (False, True, False):
                problems: list[str | None] = [None]
                while problems != ([f"far has been silent for {3.0:g} s"] if is_silent else []):
                    problems = [row.problem for row in await anext(lists) if row.path == "ssh://far"]
                if not is_silent:
                    os.kill(master, signal.SIGSTOP)
        finally:
            os.kill(master, signal.SIGKILL)


async def test_leaving_while_the_line_is_down_is_quick(
    quick: None, far: Any, run_file: StateFileBuilder, session: Any
) -> None:
    far.stop()
    try:
        far.cut()
        await until(session, lambda status: status.link is Link.STALE)
        async with asyncio.timeout(agent_process.REQUEST_TIMEOUT_SECONDS / 2):
            await session.close()
    finally:
        far.start()
    assert session.status.link is Link.CLOSED


async def test_a_clock_that_is_wrong_over_there_is_measured(
    far: Any, run_file: StateFileBuilder, tmp_path: Path
) -> None:
    late = tmp_path / "python-an-hour-ahead"
    ahead = "import time;now=time.time;time.time=lambda:now()+3600"
    late.write_text(f'#!/bin/sh\nshift\nexec {quoted(sys.executable)} -ISuc "{ahead};$1"\n')
    late.chmod(0o700)
    session = await SshSession.open(f"ssh://far{run_file.path}", options=SshOptions(str(late)))
    assert abs(session.status.clock_offset_seconds - 3600) < 60  # at once: commands have no time to compare
    assert abs(session.now_us() / 1e6 - time.time() - 3600) < 60
    await session.close()
