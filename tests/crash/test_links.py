"""A state file under two names has one executor: whoever comes by a link finds its lock and its socket."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from support.commands import run_redrive, start_redrive

FLOW = """
import time
from pathlib import Path
from redrive.engine import Flow

flow = Flow("linked")

@flow.task(timeout=300)
def gate():
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.02)
"""


def test_a_second_executor_by_a_link_is_refused_and_acts_arrive_at_the_first(tmp_path: Path) -> None:
    """It took a lock of its own, settled the living attempts as lost, and two processes wrote one file."""
    flow, state, link = tmp_path / "flow.py", tmp_path / "state.db", tmp_path / "link.db"
    flow.write_text(FLOW)
    executor = start_redrive("run", flow, "--state", state, "--run-id", "r", "--plain")
    try:
        assert executor.stdout is not None
        assert "gate RUNNING" in executor.stdout.readline()
        link.symlink_to(state.name)
        second = run_redrive("run", flow, "--state", link, "--run-id", "other", "--plain")
        assert (second.returncode, "another executor owns" in second.stderr) == (75, True), second
        assert run_redrive("pause", link).returncode == 0
        assert run_redrive("unpause", link).returncode == 0
        (tmp_path / "go").touch()
        output, _ = executor.communicate(timeout=60)
    finally:
        executor.send_signal(signal.SIGKILL)
        executor.wait()
    assert executor.returncode == 0, output
    with closing(sqlite3.connect(state)) as connection:
        assert connection.execute("SELECT run_id, state, attempt FROM task").fetchall() == [("r", "SUCCESS", 1)]
    assert sorted(path.name for path in tmp_path.glob("*.db*")) == ["link.db", "state.db", "state.db.lock"]
