"""Whether an executor runs a run, in one sentence: empty if so, else since when not, and the command to resume.

A run whose executor is dead is still in state RUNNING. So every list, and every JSON value about a run or one of its
tasks, has this sentence beside the state (SPEC 4.9).
"""

from __future__ import annotations

import shlex

from ...engine.core.projection import RunRow
from ..sessions.address import parse
from ..sessions.session import SessionStatus
from ..text.durations import DAY, format_seconds, wall, wall_day

SILENT_SECONDS = 5.0  # without a heartbeat, due every second: the process is stopped or starved, or its disk hangs


def executor_advice(run: RunRow, status: SessionStatus, target: str, now_us: int) -> str:
    """Why an unfinished run makes no progress, and the command to resume it; empty if an executor runs it."""
    if run.ended_at is not None:
        return ""
    if status.has_executor_of(run):
        silent_seconds = status.heartbeat_age_seconds or 0.0
        is_silent, lasts = silent_seconds >= SILENT_SECONDS, format_seconds(round(silent_seconds))
        return f"executor {status.executor_pid} silent for {lasts}: redrive doctor" if is_silent else ""
    if status.service_pid is not None and run.blocked_since is not None:
        return f"redrive serve (pid {status.service_pid}) resumes it after a decision"
    return f"{describe_executor_loss(run, status, now_us)}; {resume_command(run, status, target)}"


def describe_executor_loss(run: RunRow, status: SessionStatus, now_us: int) -> str:
    """Why no executor runs an unfinished run."""
    if status.executor_alive:
        return f"no executor runs it: executor {status.executor_pid} runs {status.executor_run_id}"
    if status.executor_gone_at is None:
        return "no executor runs it"
    since = (wall if now_us - status.executor_gone_at < DAY else wall_day)(status.executor_gone_at, None)
    if status.executor_run_id not in (None, run.run_id):
        return f"no executor since {since}"
    pid = "its process" if status.executor_pid is None else f"pid {status.executor_pid}"
    return (
        f"no executor since {since} ({pid} stopped)"
        if status.executor_stopped
        else f"executor dead since {since} ({pid} gone)"
    )


def resume_command(run: RunRow, status: SessionStatus, target: str) -> str:
    """The command that resumes a run, on the host of its state file."""
    host, path = "", target
    if target.startswith("ssh://"):
        authority, _, _ = target.removeprefix("ssh://").partition("/")
        host, path = f"on {authority}: ", parse(target).path  # over there it is a path, without %20
    wait = ["--wait"] if status.executor_alive else []
    return host + shlex.join(["redrive", "resume", path, "--run", run.run_id, *wait])


def executor_json(run: RunRow, status: SessionStatus, target: str, now_us: int) -> dict[str, object]:
    """The same for JSON: ``alive`` is about this run; ``advice`` is None if there is nothing to do."""
    return {
        "alive": status.has_executor_of(run),
        "pid": status.executor_pid,
        "gone_at": status.executor_gone_at,
        "stopped": status.executor_stopped,
        "advice": executor_advice(run, status, target, now_us) or None,
    }


def run_status_text(run: RunRow) -> str:
    """The state of a run; of an unfinished one, what holds it: BLOCKED, PAUSED, or both."""
    holds = {"BLOCKED": run.blocked_since, "PAUSED": run.paused_since} if run.ended_at is None else {}
    return " ".join(word for word, since in holds.items() if since is not None) or str(run.state)
