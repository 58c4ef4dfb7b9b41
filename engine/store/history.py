"""What earlier runs in the same file say of a task: how long it takes, and which of its failures heal by themselves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from ..core.advice import Took
from ..statefile import duration_stats

PAST_ATTEMPTS = 200


def durations(connection: sqlite3.Connection, dag_name: str) -> dict[str, float]:
    """Return the median seconds of the successful attempts of each task of a flow, over its latest runs."""
    return {name: median(values) / 1e6 for name, values in duration_stats.durations_us(connection, dag_name).items()}


@dataclass(frozen=True, slots=True)
class Observed:
    """How long the successful attempts of one task took so far, in seconds; ``past``: with those that were killed."""

    p50: float
    p95: float
    p99: float
    count: int
    past: tuple[Took, ...] = ()


def observed(connection: sqlite3.Connection, dag_name: str) -> dict[str, Observed]:
    """Return what the latest runs of a flow say of each of its tasks that ever succeeded."""
    return {
        name: _observed(values, past_of(connection, name, dag_name))
        for name, values in duration_stats.durations_us(connection, dag_name).items()
    }


def _observed(durations_us: list[int], past: Iterable[Took]) -> Observed:
    p50, p95, p99 = (duration_stats.quantile(durations_us, share) / 1e6 for share in (0.5, 0.95, 0.99))
    return Observed(p50, p95, p99, len(durations_us), tuple(past))


_PAST = (
    "SELECT started_at, duration_us, outcome FROM attempt WHERE name = :name AND outcome IN ('success', 'timed_out')"
    " AND duration_us IS NOT NULL"
    " AND (:dag_name IS NULL OR run_id IN (SELECT run_id FROM run WHERE dag_name = :dag_name))"
    " ORDER BY started_at DESC LIMIT :limit"
)


def past_of(connection: sqlite3.Connection, name: str, dag_name: str | None = None) -> list[Took]:
    """Return the latest attempts of a task that ended by themselves or at their timeout, the oldest first."""
    rows = connection.execute(_PAST, {"name": name, "dag_name": dag_name, "limit": PAST_ATTEMPTS}).fetchall()
    return [Took(weekday_of(at), duration_us / 1e6, outcome == "success") for at, duration_us, outcome in rows[::-1]]


def weekday_of(at: int) -> int:
    """The day of the week of an instant (microseconds UTC) by the clock on the wall here; 0 is Monday."""
    return datetime.fromtimestamp(at / 1e6).astimezone().weekday()


def healed_count(connection: sqlite3.Connection, name: str, strict_fp: str) -> int:
    """Return in how many generations this very failure of the task was followed by a success with nobody's help."""
    (count,) = connection.execute(
        "SELECT count(*) FROM (SELECT DISTINCT run_id, generation FROM attempt AS failed"
        " WHERE name = ? AND fingerprint = ? AND outcome IN ('error', 'timed_out') AND EXISTS ("
        "SELECT 1 FROM attempt AS good WHERE good.run_id = failed.run_id AND good.name = failed.name"
        " AND good.generation = failed.generation AND good.attempt > failed.attempt AND good.outcome = 'success'))",
        (name, strict_fp),
    ).fetchone()
    return int(count)
