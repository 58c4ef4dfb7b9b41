"""Through the night on a real terminal: by key into the past, not a byte while one stands there, and back by Esc."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

REDRIVE = str(Path(sys.executable).with_name("redrive"))


def attached(run_file: Any, on_terminal: Any, folder: Path) -> Any:
    """A console on the night, which is at rest, with everything on the screen that comes by itself."""
    run_file.close()
    environ = {"XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "HOME": str(folder), "TZ": "UTC"}
    terminal = on_terminal([REDRIVE, "attach", str(run_file.path)], environ=environ)
    terminal.until("task_00005")
    terminal.read_for(2.0)
    return terminal


@pytest.mark.long
def test_back_by_key_standing_still_and_forward_again(run_file: Any, on_terminal: Any, tmp_path: Path) -> None:
    """The frame says that it is the past, and the first Esc leads out of it."""
    head = run_file.head()
    terminal = attached(run_file, on_terminal, tmp_path)
    assert "DEAD" in terminal.text
    terminal.send("[")
    terminal.until("Esc: now")
    assert f"of {head} " in terminal.lines[0] and "DEAD" not in terminal.text
    assert "═" * 80 in terminal.lines
    terminal.read_for(1.0)
    assert terminal.read_for(2.5) == 0
    terminal.send("\x1b")
    terminal.until("DEAD")
    assert "Esc: now" not in terminal.text


@pytest.mark.long
def test_the_run_is_played_to_its_end(run_file: Any, on_terminal: Any, tmp_path: Path) -> None:
    """A silence is cut short, so a night of no seconds is over at once."""
    terminal = attached(run_file, on_terminal, tmp_path)
    terminal.send("@")
    terminal.until(":at")
    terminal.send("1\r")
    terminal.until("event 1 of")
    terminal.send(">")
    terminal.until("this is the present")
    assert "DEAD" in terminal.text
