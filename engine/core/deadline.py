"""The deadline of a run: when it ends the run, the slack before it, and a shorter wait that leaves time for the work.

The slack is the time until the deadline minus the expected duration of the longest path that is left. Durations are
expected from history, so that a missed deadline is known when it becomes certain, not when it happens.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..domain import states
from ..domain.rows import RunRow
from ..domain.states import OPEN, TIMED, TaskState
from .projection import RunProjection, TaskRow


def is_due(run: RunRow, now: int) -> bool:
    """Whether the deadline is to end the run now. ``now``: microseconds UTC."""
    return run.ended_at is None and states.is_due(run.deadline_at, run.deadline_passed_at, run.options, now)


def ending_deadline(run: RunRow) -> int | None:
    """Return the instant at which the deadline ends the run, in microseconds UTC; None: it ends nothing."""
    return run.deadline_at if run.deadline_at is not None and states.ends_run(run.options) else None


def passed_reason(run: RunRow) -> str | None:
    """Return why the run is over, if its deadline or an operator has ended it."""
    if run.abandoned_at is not None:
        return states.ABANDONED
    passed = run.deadline_passed_at is not None and run.deadline_at is not None
    return states.describe_passed(run.deadline_at or 0) if passed else None


def shorten_delay(delay: float, ceiling: float, floor: float, slack: float) -> tuple[float, float] | None:
    """Return a shorter delay that leaves time for the work, and its ceiling; None if none is so short.

    Parameters (seconds):
        delay: drawn up to ``ceiling``; ``floor`` (Retry-After) comes on top and stays.
        slack: the time left for waiting, ``floor`` included.

    The new ceiling is half of the time left, because work takes longer than expected half of the time. The delay is
    scaled with the ceiling: tasks that failed together stay spread out.
    """
    room = slack - floor
    if room <= 0 or ceiling <= 0:
        return None
    lower = min(ceiling, room / 2)
    return floor + delay * lower / ceiling, floor + lower


class Slack(msgspec.Struct, frozen=True):
    """``seconds``: negative if the run will miss its deadline; ``task``: the first of the longest path."""

    seconds: float
    task: str
    needs_seconds: float


def compute_slack(projection: RunProjection, path_seconds: Mapping[str, float], now: int) -> Slack | None:
    """Return the slack of a run; None without a deadline or without open tasks.

    ``path_seconds``: by task, the duration of the longest path from it, by history. ``now``: microseconds UTC.
    """
    deadline_at = projection.run.deadline_at
    if deadline_at is None:
        return None
    longest: tuple[float, str] | None = None
    for row in projection.tasks.values():
        needs = _needed_seconds(projection, row, path_seconds, now)
        if needs is not None and (longest is None or needs > longest[0]):
            longest = needs, row.name
    if longest is None:
        return None
    return Slack((deadline_at - now) / 1e6 - longest[0], longest[1], longest[0])


def _needed_seconds(
    projection: RunProjection, row: TaskRow, path_seconds: Mapping[str, float], now: int
) -> float | None:
    """Return the seconds until the end of the longest path from a task; None if the task is over."""
    path = path_seconds.get(row.name, 0.0)
    if row.state is TaskState.RUNNING:
        behind = max((path_seconds.get(child, 0.0) for child in projection.children.get(row.name, ())), default=0.0)
        elapsed = (now - (row.started_at or now)) / 1e6
        return behind + max(path - behind - elapsed, 0.0)
    if row.state in TIMED:
        return max((row.next_retry_at or now) - now, 0) / 1e6 + path
    return path if row.state in OPEN else None
