"""The agent, as ssh carries it: under every Python that is found here, old ones included."""

from __future__ import annotations

import ast
import asyncio
import fcntl
import glob
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redrive import engine
from redrive.console.sessions.address import SshAddress, SshOptions
from redrive.console.sessions.agent_process import AgentProcess
from redrive.console.sessions.answers import decode_projection, merge_history
from redrive.console.sessions.bundle import (
    AGENT,
    LISTING,
    SENDING,
    boot_command,
    first_bundle,
    module_of,
    module_sources,
    with_imports,
)
from redrive.console.sessions.ssh import unpacked_events
from redrive.engine.agent.agent import BATCH_EVENTS, UNACKNOWLEDGED_EVENTS
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.event_payloads import StorageChanged
from redrive.engine.errors import LinkError, RefusedError, StateFileError
from redrive.engine.statefile.reader import READS
from redrive.engine.store import runs
from support.commands import quoted
from support.marks import for_each, parametrize_mostly_long
from support.waiting import LIMIT_SECONDS


def interpreters() -> dict[str, str]:
    """One Python of each version from 3.6 on: the one that runs this, those of pyenv, and those on the path."""
    versions = {sys.version_info.minor: sys.executable}
    homes = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    of_pyenv = {path: int(path.split("/versions/3.")[1].split(".")[0]) for path in glob.glob(f"{homes}/versions/3.*.*")}
    found = [(minor, f"{home}/bin/python3") for home, minor in of_pyenv.items()]
    found += [(minor, path) for minor in range(6, 16) if (path := shutil.which(f"python3.{minor}"))]
    for minor, path in found:
        if minor not in versions and _runs(path):
            versions[minor] = path
    return {f"3.{minor}": versions[minor] for minor in sorted(versions)}


def _runs(path: str) -> bool:
    return subprocess.run([path, "-ISc", "import sqlite3"], capture_output=True).returncode == 0


INTERPRETERS = interpreters()
each_python = parametrize_mostly_long("python", INTERPRETERS.values(), ids=list(INTERPRETERS))
Connect = Callable[..., Awaitable[Any]]


class Listener:
    """What the agent says unasked."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()

    async def next(self, kind: str) -> Any:
        """The next message of a kind; others are dropped."""
        async with asyncio.timeout(30):
            while kind not in (message := await self.messages.get()):
                pass
        return message[kind]

    async def next_events(self) -> list[Any]:
        return [*unpacked_events(await self.next("packed"))]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Starts agents without a network: the same bytes through the same shell."""
    pipes: list[AgentProcess] = []

    async def start(path: Any, python: str = sys.executable, **settings: Any) -> tuple[AgentProcess, Listener, Any]:
        listener = Listener()
        pipe = AgentProcess(SshAddress("nearby"), SshOptions(python), listener.messages.put_nowait)
        pipes.append(pipe)
        argv = ["sh", "-c", boot_command(python)]
        hello = await pipe.open(argv, {"path": str(path), "actor": "ana@desk", **settings})
        return pipe, listener, hello

    yield start
    for pipe in pipes:
        if not pipe.ended.done():
            await pipe.close()


async def read(pipe: AgentProcess, what: str, **options: Any) -> Any:
    pipe.send_modules([module_of((what, options))])
    return await pipe.request("read", what=what, options=options)


@each_python
async def test_an_old_python_reads_and_acts(connect: Connect, run_file: Any, python: str) -> None:
    pipe, listener, hello = await connect(run_file.path, python)
    assert hello["path"] == str(run_file.path)
    projection = decode_projection(await read(pipe, "board", run_id=None))
    assert merge_history(projection, await read(pipe, "history", run_id="night-1", start=0, count=100))
    whole = runs.load_run(run_file.connection, "night-1")
    assert projection == whole
    past = await read(pipe, "past", run_id="night-1", after=2, limit=3)
    assert [row[0] for row in past] == [3, 4, 5]
    again = FlowSpec("nightly", (TaskSpec("task_00000"),))
    run_file.write(
        lambda transaction: runs.create_run(
            transaction,
            run_id="night-2",
            flow=again,
            max_parallel=4,
            params={},
            at=transaction.at + 1,
            deadline_at=None,
        )
    )
    assert (await read(pipe, "duration_stats", run_id="night-2"))["task_00000"][-1] == 1
    pipe.notify("follow", since=projection.seq + 1)
    pipe.send_modules([SENDING])
    command = {"id": "c1", "act": "requeue", "run_id": "night-1", "targets": [["task_00002", "DEAD_LETTER", 0]]}
    answer = await pipe.request("send", command={**command, "actor": "ana@desk", "reason": "fixed", "options": {}})
    assert answer["ok"], answer
    batch = await listener.next_events()
    assert [row[0] for row in batch] == list(range(projection.seq + 2, run_file.head() + 1))
    assert len(await read(pipe, "log", run_id="night-1", name="task_00000", attempt=1)) == 1


async def test_the_oldest_python_that_is_promised_is_refused_below(connect: Connect, run_file: Any) -> None:
    """A Python that says it is 3.5 gets a sentence, not a traceback."""
    pretender = run_file.path.with_name("python3.5")
    program = "import sys;sys.version_info=(3,5,0);$1"
    pretender.write_text(f'#!/bin/sh\nshift\nexec {quoted(sys.executable)} -ISuc "{program}"\n')
    pretender.chmod(0o700)
    with pytest.raises(LinkError, match=r"not Python 3\.6 or later"):
        await connect(run_file.path, str(pretender))


async def test_the_sources_go_over_in_few_bytes() -> None:
    """At 56 kbit/s a kilobyte is a seventh of a second before the first picture."""
    assert len(first_bundle({"path": "/var/lib/redrive/night.db", "actor": "ana@desk"})) < 19 * 1024


@for_each("name", with_imports(AGENT, LISTING, SENDING, *(module_of((one, {})) for one in READS)))
def test_what_goes_over_is_the_same_program(name: str) -> None:
    """But for what only people read, and line by line in its place."""
    ((full_name, lean),) = module_sources([name]).items()
    text = (Path(str(engine.__file__)).parent / f"{name}.py").read_text()
    assert full_name == "redrive.engine." + name.replace("/", ".")

    def code(source: str) -> str:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if documented and ast.get_docstring(node) is not None:  # type: ignore[arg-type]
                lean_body: list[ast.stmt] = node.body[1:]  # type: ignore[attr-defined]
                node.body = lean_body or [ast.Expr(ast.Constant(""))]  # type: ignore[attr-defined]
        return ast.dump(tree)

    assert code(lean) == code(text)
    assert len(lean.splitlines()) == len(text.splitlines())
    assert len(lean) < len(text)


async def test_it_leaves_when_its_input_ends(connect: Connect, run_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.console.sessions.agent_process.CLOSE_TIMEOUT_SECONDS", 60)
    pipe, _, _ = await connect(run_file.path)
    start = time.monotonic()
    await pipe.close()
    assert pipe.ended.done() and time.monotonic() - start < 60  # before it would have been killed


async def test_it_leaves_when_nobody_reads(connect: Connect, run_file: Any) -> None:
    """Its input stays open and its output is closed: the next beat finds out."""
    command = boot_command(sys.executable)
    process = await asyncio.create_subprocess_shell(
        f"{command} | head -c 1 >/dev/null", stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(first_bundle({"path": str(run_file.path), "actor": "ana@desk", "marker": "m"}))
    assert await asyncio.wait_for(process.wait(), LIMIT_SECONDS) == 0
    process.stdin.close()
    with suppress(ConnectionError):
        await process.stdin.wait_closed()  # else the pipe outlives the loop, and asyncio prints an error


@pytest.mark.long
async def test_it_beats_though_nothing_happens(connect: Connect, run_file: Any) -> None:
    _, listener, _ = await connect(run_file.path)
    await listener.next("beat")
    start = time.monotonic()
    await listener.next("beat")
    assert time.monotonic() - start < 30


async def test_it_sends_no_more_than_is_taken(connect: Connect, run_file: Any) -> None:
    run_file.write(
        lambda transaction: [transaction.emit(StorageChanged("lock")) for _ in range(2 * UNACKNOWLEDGED_EVENTS)]
    )
    pipe, listener, _ = await connect(run_file.path)
    pipe.notify("follow", since=0)
    sent = 0
    while sent < UNACKNOWLEDGED_EVENTS:
        sent = (await listener.next_events())[-1][0]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await listener.next_events()
    assert sent < UNACKNOWLEDGED_EVENTS + BATCH_EVENTS
    pipe.notify("acknowledge", seq=sent)
    assert (await listener.next_events())[0][0] == sent + 1


async def test_questions_are_answered_while_events_wait_to_be_taken(connect: Connect, run_file: Any) -> None:
    run_file.write(
        lambda transaction: [transaction.emit(StorageChanged("lock")) for _ in range(2 * UNACKNOWLEDGED_EVENTS)]
    )
    pipe, _, _ = await connect(run_file.path)
    pipe.notify("follow", since=0)
    assert (await asyncio.wait_for(read(pipe, "runs"), LIMIT_SECONDS))[0][0][0] == "night-1"


async def test_an_error_over_there_is_the_same_error_here(connect: Connect, run_file: Any) -> None:
    pipe, _, _ = await connect(run_file.path)
    with pytest.raises(RefusedError, match="no-such"):
        await read(pipe, "board", run_id="no-such")
    with pytest.raises(StateFileError, match="no-such"):
        await connect(run_file.path.with_name("no-such.db"))


async def test_an_act_under_a_held_lock_does_not_stop_the_events(
    connect: Connect, run_file: Any, executor: Any
) -> None:
    """The lock is held and nobody answers: the act waits its time, what happens is told meanwhile."""
    executor.die()
    held = open(f"{run_file.path}.lock")
    fcntl.flock(held, fcntl.LOCK_EX)
    pipe, listener, _ = await connect(run_file.path)
    pipe.send_modules([SENDING])
    command = {"id": "c1", "act": "pause", "run_id": "night-1", "targets": [], "actor": "ana@desk"}
    answer = asyncio.create_task(pipe.request("send", command={**command, "reason": "", "options": {}}))
    pipe.notify("follow", since=run_file.head())
    run_file.emit_idle_events()
    assert len(await listener.next_events()) == 1
    assert not answer.done()
    fcntl.flock(held, fcntl.LOCK_UN)
    assert (await asyncio.wait_for(answer, LIMIT_SECONDS))["ok"]


@pytest.mark.long
async def test_without_a_path_it_takes_the_latest_file_of_the_default_place(
    connect: Connect, make_run_file: Any, own_state_home: Any
) -> None:
    folder = own_state_home / "redrive"
    folder.mkdir(parents=True)
    for name in ("old.db", "new.db"):
        run_file = make_run_file(name)
        run_file.finish("task_00000")
        run_file.close()
        shutil.move(run_file.path, folder / name)
    os.utime(folder / "new.db", (1, 1))  # the time of a write decides nothing
    with sqlite3.connect(folder / "old.db") as connection:
        connection.execute("UPDATE run SET started_at = started_at - 1")
    _, _, hello = await connect("")
    assert hello["path"] == str(folder / "new.db")
    _, _, listed = await connect("", list=True)
    assert [re.sub(".*/", "", found[0]) for found in listed["files"]] == ["new.db", "old.db"]
    assert listed["files"][0][2][0] == "night-1"


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory(prefix="redrive-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o755)


async def test_a_user_who_may_not_write_is_reported_why(connect: Connect, run_file: Any, shared_folder: Path) -> None:
    """Root may do everything, so the agent runs as somebody else where the tests run as root."""
    run_file.close()
    path = shutil.copy(run_file.path, shared_folder / "night.db")
    python = sys.executable
    if os.geteuid() == 0:
        script = shared_folder / "python-as-nobody"
        everybody = "/usr/bin/env PATH=/usr/local/bin:/usr/bin:/bin python3"  # this one may lie in root's folder
        script.write_text(f'#!/bin/sh\nexec setpriv --reuid=65534 --clear-groups {everybody} "$@"\n')
        script.chmod(0o755)
        python = str(script)
    os.chmod(path, 0o444)
    os.chmod(shared_folder, 0o555)
    pipe, _, hello = await connect(path, python)
    assert "not writable" in hello["beat"]["read_only"]
    assert decode_projection(await read(pipe, "board", run_id=None)).run.run_id == "night-1"
