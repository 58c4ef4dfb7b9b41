"""A signal while a run is being opened: one line, exit 130, and nothing is left of it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
from support.commands import start_redrive
from support.marks import parametrize_mostly_long
from support.processes import catches, is_gone
from support.waiting import wait_until

SLOW = """
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "600"])
pathlib.Path("child").write_text(str(child.pid))
pathlib.Path("importing").touch()
time.sleep(600)
"""


RUN = ("run", "flow.py", "--plain", "--state", "s.db")


@parametrize_mostly_long(
    ("command", "number"), [(RUN, signal.SIGTERM), (RUN, signal.SIGINT), (("check", "flow.py"), signal.SIGINT)]
)
def test_a_signal_during_the_import_ends_it_in_one_line(
    tmp_path: Path, command: tuple[str, ...], number: signal.Signals
) -> None:
    (tmp_path / "flow.py").write_text(SLOW)
    started = start_redrive(*command, cwd=tmp_path, stderr=subprocess.PIPE)
    wait_until((tmp_path / "importing").exists)
    started.send_signal(number)
    output, errors = started.communicate(timeout=60)
    assert (started.returncode, output) == (130, "")
    (line,) = errors.split("\n")[-2:-1]
    assert line.startswith("redrive: interrupted")
    assert errors.strip() == line
    left = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"child", "flow.py", "importing"}
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: is_gone(child))


@pytest.mark.long
def test_a_signal_while_waiting_for_another_executor_leaves_that_one_alone(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from redrive.engine import Flow\nflow = Flow('f')\nflow.command('a', 'touch running; sleep 600')\n"
    )
    owner = start_redrive(*RUN, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "running").exists)
        waiting = start_redrive(*RUN, "--wait", cwd=tmp_path, stderr=subprocess.PIPE)
        wait_until(lambda: catches(waiting.pid, signal.SIGTERM))
        waiting.send_signal(signal.SIGTERM)
        output, errors = waiting.communicate(timeout=60)
        assert (waiting.returncode, output) == (130, "")
        assert errors == "redrive: interrupted before the run was opened: nothing was started\n"
        assert (tmp_path / "s.db.lock").exists()
        assert owner.poll() is None
    finally:
        owner.send_signal(signal.SIGTERM)
        assert owner.wait(60) == 130
