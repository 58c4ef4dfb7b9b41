"""A signal while a run is being opened: one line, exit 130, and nothing is left of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REDRIVE = Path(sys.executable).with_name("redrive")
SLOW = """
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "600"])
pathlib.Path("child").write_text(str(child.pid))
pathlib.Path("importing").touch()
time.sleep(600)
"""


def wait_for(path: Path) -> None:
    limit = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < limit
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


RUN = ("run", "flow.py", "--plain", "--state", "s.db")


@pytest.mark.parametrize(
    ("command", "number"), [(RUN, signal.SIGTERM), (RUN, signal.SIGINT), (("check", "flow.py"), signal.SIGINT)]
)
def test_a_signal_during_the_import_ends_it_in_one_line(
    tmp_path: Path, command: tuple[str, ...], number: signal.Signals
) -> None:
    (tmp_path / "flow.py").write_text(SLOW)
    started = subprocess.Popen(
        [REDRIVE, *command], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(tmp_path / "importing")
    started.send_signal(number)
    output, errors = started.communicate(timeout=60)
    assert (started.returncode, output) == (130, b"")
    (line,) = errors.decode().split("\n")[-2:-1]
    assert line.startswith("redrive: interrupted")
    assert errors.decode().strip() == line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["child", "flow.py", "importing"]
    child = int((tmp_path / "child").read_text())
    limit = time.monotonic() + 20
    while not is_gone(child):
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_signal_while_waiting_for_another_executor_leaves_that_one_alone(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from redrive.engine import Flow\nflow = Flow('f')\nflow.command('a', 'touch running; sleep 600')\n"
    )
    words = [REDRIVE, "run", "flow.py", "--plain", "--state", "s.db"]
    owner = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        wait_for(tmp_path / "running")
        waiting = subprocess.Popen(
            [*words, "--wait"], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(3)
        waiting.send_signal(signal.SIGTERM)
        output, errors = waiting.communicate(timeout=60)
        assert (waiting.returncode, output) == (130, b"")
        assert errors == b"redrive: interrupted before the run was opened: nothing was started\n"
        assert (tmp_path / "s.db.lock").exists()
        assert owner.poll() is None
    finally:
        owner.send_signal(signal.SIGTERM)
        assert owner.wait(60) == 130
