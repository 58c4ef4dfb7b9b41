"""Lines on stdout: whatever becomes of stdout, the run goes on and ends as it would have."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from redrive.console.cli.event_lines import EventPrinter
from support.commands import quoted, run_redrive

FLOW = """
from redrive.engine import Flow

flow = Flow("names")

@flow.task(name="müll_☃")
def snow(): ...
"""


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    path = tmp_path / "names.py"
    path.write_text(FLOW, encoding="utf-8")
    return path


#: In it Python 3.11 cannot start from a path that is not ASCII, as that of the checkout may be.
C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.mark.long
def test_a_name_that_the_locale_cannot_write_is_escaped(flow: Path, tmp_path: Path) -> None:
    environment = {**os.environ, **(C_LOCALE if __file__.isascii() else {}), "PYTHONIOENCODING": "ascii"}
    done = run_redrive("run", str(flow), "--state", str(tmp_path / "s.db"), env=environment, stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "m\\xfcll_\\u2603 SUCCESS" in done.stdout
    assert done.stderr == ""


def test_a_full_disk_behind_stdout_is_reported_once_and_the_run_succeeds(flow: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = run_redrive("run", str(flow), "--state", str(tmp_path / "s.db"), stdout=full)
    assert done.returncode == 0
    assert done.stderr.count("cannot print any more (No space left on device)") == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_run_without_stdout_succeeds(flow: Path, tmp_path: Path) -> None:
    line = 'exec "$0" -P -m redrive.console run "$1" --state "$2" >&-'
    command = ["sh", "-c", line, sys.executable, str(flow), str(tmp_path / "s.db")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_gone_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as stream:
        printer = EventPrinter(stream)
        printer.write(["nobody reads this"])
        printer.write(["nor this"])
    assert capfd.readouterr().err == ""


def test_each_batch_is_on_its_way_when_it_was_taken() -> None:
    stream = io.StringIO()
    EventPrinter(stream).write(["at once"])
    assert stream.getvalue() == "at once\n"


def test_a_run_that_had_ended_says_how(flow: Path, tmp_path: Path) -> None:
    words = ("run", str(flow), "--state", str(tmp_path / "s.db"), "--run-id", "night")
    assert run_redrive(*words).stdout.splitlines()[-1].endswith("run night SUCCESS")
    again = run_redrive(*words)
    assert again.returncode == 0
    assert again.stdout == "run night has ended already: SUCCESS; requeue a task to go on with it\n"


@pytest.mark.long
def test_a_run_that_is_blocked_says_so_each_time_and_names_the_command(tmp_path: Path) -> None:
    flow = tmp_path / "poison.py"
    flow.write_text(
        "from redrive.engine import Flow, PermanentError\n"
        'flow = Flow("poison")\n'
        "@flow.task\n"
        'def bad(): raise PermanentError("no")\n'
    )
    state = tmp_path / "s.db"
    words = ("run", str(flow), "--state", str(state), "--run-id", "night")
    assert run_redrive(*words).returncode == 3
    again = run_redrive("resume", str(state))
    assert again.returncode == 3
    why = "1 dead letter waits for a decision"
    assert again.stdout == f"run night BLOCKED: {why} (redrive inbox {quoted(state)}@night)\n"
