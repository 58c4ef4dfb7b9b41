"""``--follow`` of runs, tasks and inbox: what changes is told once, while it happens."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redrive.console.cli.following import AppendedView, RedrawnView
from support.commands import start_redrive
from support.marks import parametrize_mostly_long
from support.pty_terminal import PtyTerminal

FLOW = """
from redrive.engine import Flow, RetryPolicy
flow = Flow("f")
flow.command("a", "while ! test -e go; do sleep 0.05; done")
flow.command("b", "false", after="a", retry=RetryPolicy(max_attempts=1))
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A folder with a run that goes on when the file ``go`` is there."""
    (tmp_path / "flow.py").write_text(FLOW)
    running = start_redrive("run", "flow.py", "--plain", "--state", "s.db", "--run-id", "one", cwd=tmp_path)
    assert running.stdout is not None
    assert "a RUNNING" in running.stdout.readline()
    yield tmp_path
    (tmp_path / "go").touch()
    running.communicate(timeout=120)


@parametrize_mostly_long(
    ("view", "words", "news"),
    [
        ("tasks", ["--json"], '"state": "FAILED"'),
        ("tasks", [], "b     FAILED"),
        ("runs", ["--json"], '"state": "FAILED"'),
        ("inbox", [], "1 × "),
    ],
)
def test_what_changes_is_reported_while_it_happens(running: Path, view: str, words: list[str], news: str) -> None:
    following = start_redrive(view, "s.db", "--follow", *words, cwd=running, stderr=subprocess.PIPE)
    assert following.stdout is not None
    first = following.stdout.readline()
    assert first
    (running / "go").touch()
    lines = [first]
    for line in following.stdout:
        lines.append(line)
        if news in line:
            break
    assert news in lines[-1]
    assert news not in "".join(lines[:-1])
    assert "\x1b" not in "".join(lines)
    if words:
        assert all(isinstance(json.loads(line), dict) for line in lines)
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=60)
    assert (following.returncode, errors.strip()) == (130, "redrive: interrupted")


def test_a_pipe_gets_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    stream = AppendedView()
    for lines in (["a 1", "b 1"], ["a 1", "b 2"], ["a 1", "b 2"], ["a 1", "b 1"]):
        stream.print(lines)
    assert capsys.readouterr().out.splitlines() == ["a 1", "b 1", "b 2", "b 1"]


def test_a_terminal_gets_the_picture_drawn_over_and_nothing_where_nothing_changed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((10, 4)))
    screen = RedrawnView()
    screen.print(["one", "two"])
    assert capsys.readouterr().out == "\n\n\n\n\x1b[Hone\x1b[K\ntwo\x1b[K\n\x1b[J"
    screen.print(["one", "two"])
    assert capsys.readouterr().out == ""
    screen.print(["one", "three", "four", "five", "six"])
    out = capsys.readouterr().out
    assert out.startswith("\x1b[Hone\x1b[K\nthree\x1b[K\n... 3 mor")
    assert out.count("\n") == 3
    screen.print(["a long line", "two", "three"])
    assert capsys.readouterr().out.startswith("\x1b[Ha long\x1b[K\n  line\x1b[K\n... 2 mor"), "nothing of it is cut"


@pytest.mark.long
def test_on_a_terminal_the_clocks_of_a_quiet_run_go_on(running: Path) -> None:
    """The task writes no events: each second its age is another."""
    program = [sys.executable, "-m", "redrive.console", "tasks", "s.db", "--follow"]
    terminal = PtyTerminal(["/bin/sh", "-c", f'cd "{running}" && exec {shlex.join(program)}'])
    try:
        ages: set[str] = set()

        def seen() -> bool:
            ages.update(re.findall(r"attempt 1 runs for (\S+)", terminal.text))
            return len(ages) > 2

        terminal.until(seen)
    finally:
        terminal.signal(signal.SIGINT)
        terminal.wait()
