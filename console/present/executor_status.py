"""Whether an executor runs a run, in one sentence: empty if so, else since when not, and the command to resume.

A run whose executor is dead is still in state RUNNING. So every list, and every JSON value about a run or one of its
tasks, has this sentence beside the state (SPEC 4.9).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ...engine.core.projection import RunRow
from ..sessions.address import parse
from ..sessions.session import SessionStatus
from ..text.durations import DAY, format_seconds, wall, wall_day

SILENT_SECONDS = 5.0  # without a heartbeat, due every second: the process is stopped or starved, or its disk hangs


@dataclass(frozen=True, slots=True)
class ExecutorStatus:
    """The latest executor of a state file.

    Attributes:
        run_id: its current or last run; None if unknown.
        gone_at: when it ended, microseconds UTC; None while it is alive, or if unknown.
        left_in_order: whether it ended by itself.
        silent_seconds: since its last heartbeat, while it is alive.
    """

    is_alive: bool
    pid: int | None = None
    run_id: str | None = None
    gone_at: int | None = None
    left_in_order: bool = False
    service_pid: int | None = None  # of ``redrive serve``
    silent_seconds: float = 0.0

    def owns(self, run: RunRow) -> bool:
        """Whether this executor runs ``run``."""
        return self.is_alive and self.run_id in (None, run.run_id)


def executor_advice(run: RunRow, executor: ExecutorStatus, target: str, now_us: int) -> str:
    """Why an unfinished run makes no progress, and the command to resume it; empty if an executor runs it."""
    if run.ended_at is not None:
        return ""
    if executor.owns(run):
        is_silent = executor.silent_seconds >= SILENT_SECONDS
        lasts = format_seconds(round(executor.silent_seconds))
        return f"executor {executor.pid} silent for {lasts}: redrive doctor" if is_silent else ""
    if executor.service_pid is not None and run.blocked_since is not None:
        return f"redrive serve (pid {executor.service_pid}) resumes it after a decision"
    return f"{describe_executor_loss(run, executor, now_us)}; {resume_command(run, executor, target)}"


def describe_executor_loss(run: RunRow, executor: ExecutorStatus, now_us: int) -> str:
    """Why no executor runs an unfinished run."""
    if executor.is_alive:
        return f"no executor runs it: executor {executor.pid} runs {executor.run_id}"
    if executor.gone_at is None:
        return "no executor runs it"
    since = (wall if now_us - executor.gone_at < DAY else wall_day)(executor.gone_at, None)
    if executor.run_id not in (None, run.run_id):
        return f"no executor since {since}"
    pid = "its process" if executor.pid is None else f"pid {executor.pid}"
    return (
        f"no executor since {since} ({pid} stopped)"
        if executor.left_in_order
        else f"executor dead since {since} ({pid} gone)"
    )


def resume_command(run: RunRow, executor: ExecutorStatus, target: str) -> str:
    """The command that resumes a run, on the host of its state file."""
    host, path = "", target
    if target.startswith("ssh://"):
        authority, _, _ = target.removeprefix("ssh://").partition("/")
        host, path = f"on {authority}: ", parse(target).path  # over there it is a path, without %20
    wait = ["--wait"] if executor.is_alive else []
    return host + shlex.join(["redrive", "resume", path, "--run", run.run_id, *wait])


def executor_json(run: RunRow, executor: ExecutorStatus, target: str, now_us: int) -> dict[str, object]:
    """The same for JSON: ``alive`` is about this run; ``advice`` is None if there is nothing to do."""
    return {
        "alive": executor.owns(run),
        "pid": executor.pid,
        "gone_at": executor.gone_at,
        "stopped": executor.left_in_order,
        "advice": executor_advice(run, executor, target, now_us) or None,
    }


def executor_status_of(status: SessionStatus) -> ExecutorStatus:
    """The status of the executor, as a session reports it."""
    return ExecutorStatus(
        status.executor_alive,
        status.executor_pid,
        status.executor_run_id,
        None if status.executor_alive else status.executor_last_seen_at,
        status.executor_stopped,
        status.service_pid,
        status.heartbeat_age_seconds or 0.0,
    )


def run_words(run: RunRow) -> str:
    """The state of a run; of an unfinished one, what holds it: BLOCKED, PAUSED, or both."""
    holds = {"BLOCKED": run.blocked_since, "PAUSED": run.paused_since} if run.ended_at is None else {}
    return " ".join(word for word, since in holds.items() if since is not None) or str(run.state)
