"""Who runs the tasks of a run, from the status of a session."""

from __future__ import annotations

from ...engine.core.outlook import RunnerKind, RunnerStatus
from ...engine.core.projection import RunRow
from ..sessions.session import SessionStatus

SHELL_REMEDY = "redrive resume starts an executor"


def runner_of(run: RunRow, status: SessionStatus, remedy: str = SHELL_REMEDY) -> RunnerStatus:
    """The runner of ``run``. ``remedy``: how to start an executor, as the end of a sentence."""
    if status.executor_alive:
        kind = RunnerKind.ALIVE if status.has_executor_of(run) else RunnerKind.BUSY
        return RunnerStatus(kind, None, status.executor_pid, remedy)
    gone_at = status.executor_gone_at
    if status.service_pid is not None and (status.executor_stopped or status.executor_pid is None):
        return RunnerStatus(RunnerKind.SERVED, gone_at, status.service_pid, remedy)
    if status.executor_stopped:
        return RunnerStatus(RunnerKind.STOPPED, gone_at, status.executor_pid, remedy)
    kind = RunnerKind.UNKNOWN if status.executor_pid is None else RunnerKind.DEAD
    return RunnerStatus(kind, gone_at, status.executor_pid, remedy)
