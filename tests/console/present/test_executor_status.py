"""The command to resume is one that works where it is typed."""

from __future__ import annotations

import pytest
from redrive.console.model.board import Link, SessionStatus
from redrive.console.present.runs import executor_advice, resume_command
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import RunState


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("/home/x/a b.db", "redrive resume '/home/x/a b.db@r'"),
        ("ssh://ana@etl1:22/home/x/a%3Bb.db", "on ana@etl1:22: redrive resume '/home/x/a;b.db@r'"),
        ("ssh://etl1/home/x/100%25.db", "on etl1: redrive resume /home/x/100%.db@r"),
    ],
)
def test_a_path_over_ssh_is_named_as_on_its_host(target: str, command: str) -> None:
    run = RunRow("r", "night", 0, None, RunState.RUNNING)
    assert resume_command(run, SessionStatus(Link.LIVE), target) == command


def test_a_scheduler_is_not_said_to_resume_a_run_that_it_cannot() -> None:
    stuck, other = (RunRow(run_id, "night", 0, None, RunState.RUNNING) for run_id in ("r", "q"))
    status = SessionStatus(Link.LIVE, service_pid=7, stuck_run="r")
    advice = "redrive serve (pid 7) cannot resume it with the code as it is; redrive resume /x.db@r --accept-changes"
    assert executor_advice(stuck, status, "/x.db", 0) == advice
    assert executor_advice(other, status, "/x.db", 0) == "redrive serve (pid 7) resumes it"
