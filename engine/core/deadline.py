"""How much slack a run has: what is left until its deadline, minus what the longest way to its end still needs.

A wait for the next attempt that is longer than the slack is shortened, where the policy allows a shorter one at all.

Everything is expected from history, so that the miss is known when it becomes certain and not when it happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..domain.states import OPEN, TIMED, TaskState
from .projection import RunProjection, TaskRow


def shorten_delay(
    delay: float, ceiling: float, floor: float, first_ceiling: float, slack: float
) -> tuple[float, float] | None:
    """Return a wait that leaves time for the work, and its ceiling; None where the policy has none so short.

    ``delay`` was drawn under ``ceiling``, on top of ``floor`` (Retry-After), which stays; ``first_ceiling``: that of
    the first retry; ``slack``: what is left for waiting, floor and all. Seconds. The new ceiling is half of what is
    left, since work takes longer than usual half of the time, but never below the first: those who failed together are
    thrown together no closer than the policy itself does it. The dice stay as they fell, under another ceiling: whoever
    drew early comes early, and nobody waits at the edge with all others.
    """
    room = slack - floor
    if room < first_ceiling or ceiling <= 0:
        return None
    lower = min(ceiling, max(first_ceiling, room / 2))
    return floor + delay * lower / ceiling, floor + lower


@dataclass(frozen=True, slots=True)
class Slack:
    """``seconds``: negative when the run can no longer make it; ``task`` is where the longest way begins."""

    seconds: float
    task: str
    needs_seconds: float


def compute_slack(fold: RunProjection, path_seconds: Mapping[str, float], now: int) -> Slack | None:
    """Return the slack of a run, None without a deadline or when nothing is left to do.

    ``path_seconds``: each task with the longest way behind it, by history; empty where there is none. ``now``:
    microseconds UTC.
    """
    deadline = fold.run.deadline_at
    if deadline is None:
        return None
    longest: tuple[float, str] | None = None
    for row in fold.tasks.values():
        needs = _needs(fold, row, path_seconds, now)
        if needs is not None and (longest is None or needs > longest[0]):
            longest = needs, row.name
    if longest is None:
        return None
    return Slack((deadline - now) / 1e6 - longest[0], longest[1], longest[0])


def _needs(fold: RunProjection, row: TaskRow, path_seconds: Mapping[str, float], now: int) -> float | None:
    """Seconds until the end of everything on the longest way from this task; None for one that is over."""
    path = path_seconds.get(row.name, 0.0)
    if row.state is TaskState.RUNNING:
        behind = max((path_seconds.get(child, 0.0) for child in fold.children.get(row.name, ())), default=0.0)
        elapsed = (now - (row.started_at or now)) / 1e6
        return behind + max(path - behind - elapsed, 0.0)
    if row.state in TIMED:
        return max((row.next_retry_at or now) - now, 0) / 1e6 + path
    return path if row.state in OPEN else None
