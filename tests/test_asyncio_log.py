"""What asyncio logs is one line without secrets and control sequences, in every process that runs an event loop."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, asyncio_log
from redrive.engine.executor import host
from redrive.engine.executor.host import Starter
from support.commands import REDRIVE, run_redrive, start_redrive
from support.pty_terminal import PtyTerminal
from support.waiting import wait_until

#: Each event loop of the process has a task that fails, and whose failure nobody retrieves, before and after its work.
FAILS = r"""
import asyncio, os
run = asyncio.Runner.run

async def fail():
    raise ValueError(f"postgres://etl:pass-word@db\x1b[2J\x07\n{os.environ['TOKEN']}")

async def fail_around(coroutine):
    for awaitable in (asyncio.sleep(0), coroutine):
        asyncio.get_running_loop().create_task(fail())
        await asyncio.sleep(0)
        result = await awaitable
    asyncio.get_running_loop().create_task(fail())
    await asyncio.sleep(0)
    return result

asyncio.Runner.run = lambda runner, coroutine, **options: run(runner, fail_around(coroutine), **options)
"""
FLOW = "from redrive.engine import Flow\nflow = Flow('f', secrets=['TOKEN'])\n@flow.task(timeout=60)\ndef a(): pass\n"
START = "redrive: asyncio: Task exception was never retrieved | future: <Task finished "


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "flow.py").write_text(FLOW)
    path = tmp_path / "path"
    path.mkdir()
    (path / "sitecustomize.py").write_text(FAILS)
    return {**os.environ, "PYTHONPATH": str(path), "TOKEN": "s3cr3t-t0ken", "XDG_STATE_HOME": str(tmp_path)}


def _assert_clean(lines: list[str], start: str = START) -> None:
    """Check that the lines are those of failures, and hold nothing that acts on a terminal."""
    assert lines and all(line.startswith(start) and line.isprintable() for line in lines), lines
    assert all(" | ValueError: postgres://etl:***@db" in line for line in lines), lines


@pytest.mark.long
def test_a_run_in_the_foreground_writes_it_on_stderr(tmp_path: Path, environment: dict[str, str]) -> None:
    ran = run_redrive("run", "flow.py", "--plain", "--state", "s.db", cwd=tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stderr.splitlines()
    _assert_clean(lines)
    assert lines[-1].endswith(" | ***TOKEN***")


@pytest.mark.long
def test_an_executor_of_its_own_writes_it_beside_the_state_file(tmp_path: Path, environment: dict[str, str]) -> None:
    started = run_redrive("run", "flow.py", "--detach", "--state", "s.db", cwd=tmp_path, env=environment)
    assert started.returncode == 0, started.stderr
    _assert_log_of_executor(tmp_path / "s.db.stderr")


def test_an_executor_that_a_starter_forks_writes_it_beside_the_state_file(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    flow, state = str(tmp_path / "flow.py"), str(tmp_path / "s.db")
    with closing(Starter()) as starter:
        host.spawn(flow=flow, state=state, run_id=None, options={"few_tasks": True}, start=starter.start)
        _assert_log_of_executor(tmp_path / "s.db.stderr")


def _assert_log_of_executor(log: Path) -> None:
    wait_until(lambda: log.read_text().endswith("***TOKEN***\n"))
    _assert_clean(log.read_text().splitlines())


@pytest.mark.long
def test_a_supervisor_writes_it_among_its_lines(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "flow.py").write_text(FLOW.replace("'f'", "'f', schedule='0 0 1 1 *'"))
    with start_redrive("serve", "flow.py", "--state", "s.db", cwd=tmp_path, env=environment) as served:
        assert served.stdout is not None
        first = served.stdout.readline()
        served.send_signal(signal.SIGTERM)
        lines = [re.sub(r"^\[\d\d:\d\d:\d\d\] ", "redrive: ", line.rstrip("\n")) for line in (first, *served.stdout)]
    _assert_clean([line for line in lines if "asyncio" in line or not line.startswith("redrive: ")])


@pytest.mark.long
def test_a_command_that_reads_a_file_writes_it_on_stderr(tmp_path: Path, environment: dict[str, str]) -> None:
    state = _state_file(tmp_path)
    ran = run_redrive("report", state, "--short", cwd=tmp_path, env=environment)
    _assert_clean(ran.stderr.splitlines())


def test_a_console_prints_it_when_the_terminal_is_restored(tmp_path: Path, environment: dict[str, str]) -> None:
    argv = [*REDRIVE, "attach", _state_file(tmp_path)]
    with closing(PtyTerminal(argv, columns=120, rows=30, environ=environment)) as terminal:
        terminal.until("only_task")
        terminal.send("q")
        assert terminal.wait() == 0
        on_screen, _, after = bytes(terminal.raw).decode().rpartition("\x1b[?25h")
    assert "never retrieved" not in on_screen
    _assert_clean([line for line in after.split("\r\n") if "asyncio" in line or "ValueError" in line])


def _state_file(folder: Path) -> str:
    flow = Flow("f")
    flow.task(lambda: None, name="only_task", timeout=30)
    path = str(folder / "s.db")
    assert Executor(flow=flow, state=path).run() == "SUCCESS"
    return path


# --- The line itself -------------------------------------------------------------------------------------------------


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines that are written."""
    found: list[str] = []
    asyncio_log.log_asyncio(found.append)
    yield found
    asyncio_log.log_asyncio(asyncio_log.print_line)


def test_a_line_has_a_largest_length_and_shows_the_end(lines: list[str]) -> None:
    logging.getLogger("asyncio").error("%s the end", "x" * 1_000_000)
    (line,) = lines
    assert len(line) < asyncio_log.LINE_CHARACTERS_MAX + 100 and line.endswith("xxx the end")


def test_a_configured_root_logger_does_not_write_it_as_it_is(
    lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    root.addHandler(shown := logging.StreamHandler())
    try:
        logging.getLogger("asyncio").error("postgres://u:hunter2@h/db \x1b[31m")
    finally:
        root.removeHandler(shown)
    assert len(lines) == 1 and "hunter2" not in lines[0] and capsys.readouterr().err == ""


@pytest.mark.long
def test_a_program_of_the_user_logs_as_it_has_arranged(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text("from redrive.engine import Flow\nflow = Flow('n' * 3)\nflow.task(print)\n")
    program = (
        "import logging, os\nfrom redrive.engine import Executor\nlogging.basicConfig()\n"
        "Executor(flow='flow.py', handle_signals=False).run()\nlogger = logging.getLogger('asyncio')\n"
        "print(logger.handlers, logger.propagate)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[-1] == "[] True"


def test_a_line_that_cannot_be_written_ends_nothing(lines: list[str]) -> None:
    asyncio_log.log_asyncio(lambda line: 1 / 0)
    logging.getLogger("asyncio").error("no place left")
