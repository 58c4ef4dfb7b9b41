"""A page that asks for the bell rings the terminal of whoever is attached, and of nobody who attaches later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FLOW = """
import time
from pathlib import Path
from redrive.engine import Flow, PermanentError

flow = Flow("ringing")
flow.page("bell")

@flow.task
def settle():
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    raise PermanentError("no such customer \\a \\a")
"""
REDRIVE = str(Path(sys.executable).with_name("redrive"))


@pytest.mark.long
def test_a_new_page_rings_on_open_consoles_only(on_terminal: Any, tmp_path: Path) -> None:
    (tmp_path / "ringing.py").write_text(FLOW)
    state = tmp_path / "ringing.db"
    command = [REDRIVE, "run", str(tmp_path / "ringing.py"), "--state", str(state), "--detach", "--stay"]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=90)
    try:
        environ = {"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
        reading = on_terminal([REDRIVE, "attach", str(state)], environ=environ)
        reading.until("running")
        (tmp_path / "go").touch()
        reading.until(lambda: b"\a" in reading.raw)
        reading.until("BLOCKED")
        reading.read_for(1.0)
        assert reading.raw.count(b"\a") == 1, "once, and the text of the task rings nothing"
        later = on_terminal([REDRIVE, "attach", str(state)], environ=environ)
        later.until("BLOCKED")
        later.read_for(1.0)
        assert b"\a" not in later.raw
    finally:
        words = ["skip", "--state", str(state), "settle", "--reason", "the test is over"]
        subprocess.run([REDRIVE, *words], stdout=subprocess.DEVNULL, timeout=90)
