"""The command to resume is one that works where it is typed."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from redrive.console.cli.group import ExitCode, code_of_error
from redrive.console.model.session_status import Link, SessionStatus, runner_of
from redrive.console.present.executors import executor_advice, resume_command
from redrive.engine.core.views import run_code, state_style
from redrive.engine.domain.rows import ExecutorState, RunRow
from redrive.engine.domain.states import RunState, TaskState
from redrive.engine.errors import RedriveError
from support.commands import invoke_redrive
from support.fake_executor import FakeExecutor
from support.state_file import StateFileBuilder


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
    become = resume_command(run, SessionStatus(Link.LIVE, become="etl"), target)
    assert become == command.replace("redrive", "sudo -H -u etl redrive")


def test_a_scheduler_is_not_said_to_resume_a_run_that_it_cannot() -> None:
    stuck, other = (RunRow(run_id, "night", 0, None, RunState.RUNNING) for run_id in ("r", "q"))
    status = SessionStatus(Link.LIVE, service_pid=7, stuck_run="r")
    advice = "redrive serve (pid 7) cannot resume it (why: redrive schedule); redrive resume /x.db@r --accept-changes"
    assert executor_advice(stuck, status, "/x.db", 0) == advice
    assert executor_advice(other, status, "/x.db", 0) == "redrive serve (pid 7) resumes it"
    assert not runner_of(stuck, status).absence.startswith("redrive serve")
    assert runner_of(other, status).absence == "redrive serve (pid 7) starts an executor for it"


def test_whether_an_executor_lives_has_three_answers() -> None:
    run = RunRow("r", "night", 0, None, RunState.RUNNING)
    runners = [
        runner_of(run, SessionStatus(Link.LIVE, executor=executor))
        for executor in (ExecutorState(True), ExecutorState(gone_at=1, pid=7), ExecutorState(gone_at=1, is_unseen=True))
    ]
    resume = "resume starts an executor"
    assert [run_code(run, runner) for runner in runners] == ["RUNNING", "CUT OFF", "NOT SEEN"]
    assert [state_style(TaskState.RUNNING, one).word for one in runners] == ["running", "cut off", "not seen"]
    gone = f"no executor runs it: {resume}"
    assert [one.absence for one in runners] == ["", gone, f"no sign of its executor; if it is gone: {resume}"]


def test_doctor_does_not_call_a_lock_that_it_may_not_read_free(
    run_file: StateFileBuilder, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, lock = os.access, f"{run_file.path}.lock"
    monkeypatch.setattr(os, "access", lambda path, mode, **options: path != lock and access(path, mode, **options))
    (line,) = [row for row in invoke_redrive("doctor", run_file.path).stdout.splitlines() if " executor " in row]
    assert line.startswith(f"warning executor    whether one lives cannot be seen: {lock} is not readable; its last")


@pytest.mark.parametrize("words", [["inbox", "--quiet"], ["inbox"], ["tasks"], ["runs"], ["resume"]])
def test_a_file_that_this_user_may_not_read_is_no_bad_usage(
    run_file: StateFileBuilder, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    path, open_file = str(run_file.path), os.open

    def refuse(name: str, *rest: Any, **options: Any) -> int:
        if name == path:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return open_file(name, *rest, **options)

    monkeypatch.setattr(os, "open", refuse)
    error = invoke_redrive(*words, path).exception
    assert isinstance(error, RedriveError) and code_of_error(error) is ExitCode.NOT_REACHED
    assert str(error) == f"cannot read the state file {path}: Permission denied"
    monkeypatch.undo()
    run_file.path.write_bytes(b"no state file at all")
    error = invoke_redrive(*words, path).exception
    assert isinstance(error, RedriveError) and code_of_error(error) is ExitCode.BAD_USAGE
