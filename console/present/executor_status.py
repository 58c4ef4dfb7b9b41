"""Who runs a run, in one sentence: nothing while somebody does, else since when nobody does and how to go on with it.

A run that says RUNNING while its executor is dead reads as if all were well. So every list, and every JSON value about
a run or a task of it, carries this beside the state (SPEC 4.9).
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from ...engine.core.projection import RunRow
from ..text.durations import DAY, wall, wall_day

SILENT_SECONDS = 5.0  # it shows itself once a second: stopped, starved, or its disk does not answer


@dataclass(frozen=True, slots=True)
class ExecutorStatus:
    """The latest executor of a state file. ``gone_at``: microseconds UTC, None while it is alive, or if unknown.

    ``run_id``: the run that it has or had; None: not known. ``stopped``: it left in order. ``silent_seconds``: since
    its last sign of life, while it is alive.
    """

    is_alive: bool
    pid: int | None = None
    run_id: str | None = None
    gone_at: int | None = None
    left_in_order: bool = False
    service_pid: int | None = None  # of who starts runs by a schedule
    silent_seconds: float = 0.0

    def owns(self, run: RunRow) -> bool:
        """Whether it runs this one."""
        return self.is_alive and self.run_id in (None, run.run_id)


def executor_advice(run: RunRow, keeper: ExecutorStatus, target: str, now_us: int) -> str:
    """Why nothing of an unfinished run moves, and the command that goes on with it; "" where somebody runs it."""
    if run.ended_at is not None:
        return ""
    if keeper.owns(run):
        is_silent = keeper.silent_seconds >= SILENT_SECONDS
        return f"executor {keeper.pid} silent for {keeper.silent_seconds:.0f} s: redrive doctor" if is_silent else ""
    if keeper.service_pid is not None and run.blocked_since is not None:
        return f"redrive serve (pid {keeper.service_pid}) goes on with it when somebody has decided"
    return f"{describe_executor_loss(run, keeper, now_us)}; {resume_command(run, keeper, target)}"


def describe_executor_loss(run: RunRow, keeper: ExecutorStatus, now_us: int) -> str:
    """The first half of ``executor_advice``: what became of who ran it."""
    if keeper.is_alive:
        return f"nobody runs it: executor {keeper.pid} runs {keeper.run_id}"
    if keeper.gone_at is None:
        return "no executor runs it"
    since = (wall if now_us - keeper.gone_at < DAY else wall_day)(keeper.gone_at, None)
    if keeper.run_id not in (None, run.run_id):
        return f"no executor since {since}"
    pid = "its process" if keeper.pid is None else f"pid {keeper.pid}"
    return (
        f"no executor since {since} ({pid} stopped)"
        if keeper.left_in_order
        else f"executor dead since {since} ({pid} gone)"
    )


def resume_command(run: RunRow, keeper: ExecutorStatus, target: str) -> str:
    """The line that goes on with a run, where its state file is."""
    host, path = "", target
    if target.startswith("ssh://"):
        authority, _, rest = target.removeprefix("ssh://").partition("/")
        host, path = f"on {authority}: ", f"/{rest}"
    wait = ["--wait"] if keeper.is_alive else []
    return host + shlex.join(["redrive", "resume", path, "--run", run.run_id, *wait])


def executor_json(run: RunRow, keeper: ExecutorStatus, target: str, now_us: int) -> dict[str, object]:
    """The same for programs: ``alive`` is about this run; ``advice`` is None where there is nothing to do."""
    return {
        "alive": keeper.owns(run),
        "pid": keeper.pid,
        "gone_at": keeper.gone_at,
        "stopped": keeper.left_in_order,
        "advice": executor_advice(run, keeper, target, now_us) or None,
    }
