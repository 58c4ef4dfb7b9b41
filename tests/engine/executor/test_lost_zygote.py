"""A zygote that dies or stops answering, at each moment of a run: the run goes on, and the journal says why."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor
from redrive.engine.executor import opening
from redrive.engine.runner import reaper
from redrive.engine.runner.process import is_stopped
from redrive.engine.runner.zygote import connection
from support.commands import start_redrive
from support.marks import parametrize_mostly_long
from support.processes import zygotes_of
from support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.spawns  # zygotes are found by their words

ISOLATIONS = ("process", "worker", "thread")

#: In every isolation, the zygote is the parent of the process in which a task runs.
HEAD = """
import os, signal, sqlite3, time
from redrive.engine import Flow, RetryPolicy

flow = Flow("f", retry=RetryPolicy(max_attempts=1))

def freeze():
    with sqlite3.connect("file:s.db?mode=ro", uri=True) as state:
        while not state.execute("SELECT 1 FROM attempt WHERE pid = ?", [os.getpid()]).fetchone():
            time.sleep(0.01)  # a zygote that stops before it has announced the process loses the attempt
    os.kill(os.getppid(), signal.SIGSTOP)
"""


def write_flow(folder: Path, source: str) -> Path:
    path = folder / "flow.py"
    path.write_text(HEAD + source)
    return path


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(folder / "s.db") as connection:
        return connection.execute(sql).fetchall()


def deaths(folder: Path) -> list[str]:
    """How zygotes ended, in the words of the journal."""
    rows = query(folder, "SELECT data FROM event WHERE kind = 'executor' ORDER BY seq")
    return [data["how"] for data in (json.loads(text) for (text,) in rows) if data["what"] == "zygote-died"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zygote that does not answer is given up after at most three seconds, and after six if its attempts live."""
    monkeypatch.setattr(connection, "PING_SECONDS", 0.3)
    monkeypatch.setattr(connection, "UNANSWERED_MAX", 20)
    of_a_stopped_one = connection.ZygoteConnection._unanswered_max

    def unanswered_max(self: connection.ZygoteConnection) -> int:
        """Of a zygote that only waits for a processor no less than outside of the tests."""
        return of_a_stopped_one(self) if is_stopped(self.pid) else 100

    monkeypatch.setattr(connection.ZygoteConnection, "_unanswered_max", unanswered_max)


def test_a_zygote_that_dies_while_the_run_is_written_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_first = opening._write_first

    async def kill_first(lease: Any, *arguments: Any) -> Any:
        if lease.runner.is_open:
            os.kill(lease.runner.zygote_pid, signal.SIGKILL)
            await wait_until_async(lambda: not (lease.runner.is_open or lease.runner._cleanups))
        return await write_first(lease, *arguments)

    monkeypatch.setattr(opening, "_write_first", kill_first)
    flow = write_flow(tmp_path, "flow.task(lambda: 1, name='task')")
    assert Executor(run_id="r", flow=str(flow), state=tmp_path / "s.db").run() == "SUCCESS"
    assert deaths(tmp_path) == ["signal 9"]


IMPORTS_ONCE = """
if os.path.exists({mark!r}):
    open({mark!r}, "w").write("imported again")
    time.sleep(600)

@flow.task
def ends_its_zygote():
    os.mkfifo({mark!r})
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
"""


async def test_a_stop_ends_a_zygote_that_is_opened_again(tmp_path: Path) -> None:
    """Also where the caller's event loop goes on, as in a notebook."""
    mark = tmp_path / "mark"
    flow = write_flow(tmp_path, IMPORTS_ONCE.format(mark=str(mark)))
    before = zygotes_of(os.getpid())
    executor = Executor(run_id="r", flow=str(flow), state=tmp_path / "s.db")
    running = asyncio.create_task(executor.run_here())
    await wait_until_async(mark.exists)
    assert await asyncio.to_thread(mark.read_text) == "imported again"
    executor.stop()
    assert (await asyncio.wait_for(running, END_SECONDS)).interrupted
    assert zygotes_of(os.getpid()) == before


# --- A zygote that is stopped -----------------------------------------------------------------------------------------


@parametrize_mostly_long("isolation", ISOLATIONS, quick=1)
def test_what_ended_beside_a_stopped_zygote_stands_and_the_next_task_starts(
    tmp_path: Path, impatient: None, isolation: str
) -> None:
    source = f"""
flow.task(freeze, name="first", isolation={isolation!r})
flow.task(lambda: 2, name="second", after="first")
"""
    flow = write_flow(tmp_path, source)
    assert Executor(run_id="r", flow=str(flow), state=tmp_path / "s.db").run() == "SUCCESS"
    assert query(tmp_path, "SELECT outcome FROM attempt WHERE name = 'first'") == [("success",)]
    how = deaths(tmp_path)[0]
    assert how.startswith("killed, because it had not answered for ") and "s; it was in state T" in how


@parametrize_mostly_long("isolation", ISOLATIONS, quick=1)
def test_a_timeout_holds_beside_a_stopped_zygote(tmp_path: Path, impatient: None, isolation: str) -> None:
    grace_seconds = 0.5 if isolation == "thread" else 30  # a thread ignores its token, a process ends by SIGTERM
    source = f"""
@flow.task(isolation={isolation!r}, timeout=0.7, grace_seconds={grace_seconds})
def hangs():
    freeze()
    time.sleep(600)
"""
    flow = write_flow(tmp_path, source)
    assert Executor(run_id="r", flow=str(flow), state=tmp_path / "s.db").run() == "FAILED"
    assert query(tmp_path, "SELECT outcome FROM attempt") == [("timed_out",)]
    kinds = [kind for (kind,) in query(tmp_path, "SELECT kind FROM event WHERE kind LIKE 'attempt.%' ORDER BY seq")]
    last = "leaked" if isolation == "thread" else "sigterm"
    assert kinds == [f"attempt.{kind}" for kind in ("started", "deadline", "stack", last)]


@parametrize_mostly_long("isolation", ISOLATIONS, quick=0)
def test_an_attempt_that_is_lost_with_a_stopped_zygote_runs_again_without_blame(
    tmp_path: Path, impatient: None, isolation: str
) -> None:
    source = f"""
@flow.task(isolation={isolation!r})
def runs_on():
    if not os.path.exists({str(tmp_path / "mark")!r}):
        open({str(tmp_path / "mark")!r}, "x")
        freeze()
        time.sleep(600)
"""
    flow = write_flow(tmp_path, source)
    assert Executor(run_id="r", flow=str(flow), state=tmp_path / "s.db").run() == "SUCCESS"
    assert query(tmp_path, "SELECT outcome FROM attempt ORDER BY attempt") == [("lost",), ("success",)]
    assert query(tmp_path, "SELECT failures, losses FROM task") == [(0, 0)]
    how = deaths(tmp_path)[0]
    assert how.startswith("killed, because it had not answered for 6 s")


@pytest.mark.long
def test_a_zygote_that_no_signal_ends_delays_the_run_for_seconds(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits in the kernel for a disk or a server: it stays, and the run goes on beside it."""
    unkillable: list[int] = []
    signal_process = reaper.signal_process

    def spare(pidfd: int, number: int) -> bool:
        text = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
        pid = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pid:"))
        if "zygote.zygote" in Path(f"/proc/{pid}/cmdline").read_text() and number == signal.SIGKILL:
            unkillable.append(pid)
            return True
        return signal_process(pidfd, number)

    monkeypatch.setattr(reaper, "signal_process", spare)
    monkeypatch.setattr(connection, "KILL_SECONDS", 0.5)
    flow = write_flow(tmp_path, "flow.task(freeze, name='first')\nflow.task(lambda: 2, name='second', after='first')")
    try:
        assert Executor(run_id="r", flow=str(flow), state=tmp_path / "s.db").run() == "SUCCESS"
    finally:
        for pid in set(unkillable):
            os.kill(pid, signal.SIGKILL)
    how = deaths(tmp_path)[0]
    assert how.endswith("and is still there")


# --- SIGTERM ----------------------------------------------------------------------------------------------------------

HANGS = """
@flow.task(isolation={isolation!r}, grace_seconds=1)
def hangs():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    freeze()
    open({mark!r}, "w").close()
    time.sleep(600)
"""

WAITS = """
@flow.task(retry=RetryPolicy(max_attempts=2, base=600, cap=600, jitter="none"))
def fails():
    raise ConnectionError("again")
"""

END_SECONDS = 30.0  # a grace of 1 s, 3 s until the zygote is given up, and a busy machine


@parametrize_mostly_long("isolation", ["process", "worker"], quick=0)
def test_sigterm_ends_an_executor_whose_zygote_is_stopped_beside_an_attempt(tmp_path: Path, isolation: str) -> None:
    mark = tmp_path / "mark"
    os.mkfifo(mark)
    flow = write_flow(tmp_path, HANGS.format(isolation=isolation, mark=str(mark)))
    with start_redrive("run", flow, "--state", tmp_path / "s.db", "--run-id", "r", "--plain") as executor:
        mark.read_text()
        executor.send_signal(signal.SIGTERM)
        assert executor.wait(END_SECONDS) == 130
    assert query(tmp_path, "SELECT outcome FROM attempt") == [("cancelled",)]


@pytest.mark.long
def test_sigterm_ends_an_executor_whose_idle_zygote_is_stopped(tmp_path: Path) -> None:
    flow = write_flow(tmp_path, WAITS)
    with start_redrive("run", flow, "--state", tmp_path / "s.db", "--run-id", "r", "--plain") as executor:
        assert executor.stdout is not None
        for line in executor.stdout:
            if "RETRYING" in line:
                break
        (zygote,) = wait_until(lambda: zygotes_of(executor.pid))
        os.kill(zygote, signal.SIGSTOP)
        executor.send_signal(signal.SIGTERM)
        assert executor.wait(END_SECONDS) == 130


# --- A task that ends its zygote, beside others -----------------------------------------------------------------------


BESIDE = """
def running():
    with sqlite3.connect("file:s.db?mode=ro", uri=True) as state:
        return state.execute("SELECT count(DISTINCT name) FROM attempt WHERE pid IS NOT NULL").fetchone()[0]

def ends_it():
    while running() < 5:
        time.sleep(0.01)
    open("mark", "w").close()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)

def outlives_it():
    while not os.path.exists("mark"):
        time.sleep(0.01)
    time.sleep(0.6)

flow.task(ends_it, name="ends_it", isolation={isolation!r}, retry=RetryPolicy(max_attempts=3, base=0.01))
for name in "abcd":
    flow.task(outlives_it, name=name, isolation={isolation!r}, max_losses=2)
"""


@parametrize_mostly_long("isolation", ISOLATIONS, quick=1)
def test_a_task_that_kills_its_zygote_becomes_a_dead_letter_and_its_neighbours_succeed(
    tmp_path: Path, isolation: str
) -> None:
    flow = write_flow(tmp_path, BESIDE.format(isolation=isolation))
    executor = Executor(run_id="r", flow=str(flow), state=tmp_path / "s.db", max_parallel=5)
    assert executor.run() == "BLOCKED"
    states = dict(query(tmp_path, "SELECT name, state FROM task"))
    assert states.pop("ends_it") == "DEAD_LETTER"
    assert set(states.values()) == {"SUCCESS"}
    assert query(tmp_path, "SELECT losses FROM task WHERE name = 'ends_it'") == [(3,)]
    shared, *apart = deaths(tmp_path)
    assert {shared, *apart} == {"signal 9"}
    assert len(apart) == 3, "each later attempt ends a zygote of its own, and its losses count"
