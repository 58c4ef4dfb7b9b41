"""Statistics of earlier runs in the same file: durations of tasks, and failures that healed without help."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import NamedTuple

from ..core.advice import PastDuration
from ..domain.states import FAILED_OUTCOMES
from ..statefile import duration_stats
from ..statefile.state_lists import in_list

PAST_ATTEMPTS = 200
USUAL_MIN = 3  # from so many successes on, a task has a usual duration


class PastDurations(NamedTuple):
    """The median seconds of the successful attempts by task; ``usual``: of tasks with USUAL_MIN of them or more."""

    median: Mapping[str, float]
    usual: Mapping[str, float]


def durations(connection: sqlite3.Connection, dag_name: str) -> PastDurations:
    """Return the durations of the tasks of a flow over its latest runs."""
    known = duration_stats.durations_us(connection, dag_name)
    medians = {name: median(values) / 1e6 for name, values in known.items()}
    return PastDurations(medians, {name: medians[name] for name, values in known.items() if len(values) >= USUAL_MIN})


@dataclass(frozen=True, slots=True)
class TaskDurations:
    """Durations of the successful attempts of one task in seconds; ``past``: with attempts killed at their timeout."""

    p50: float
    p95: float
    p99: float
    count: int
    past: tuple[PastDuration, ...] = ()


def duration_stats_by_task(connection: sqlite3.Connection, dag_name: str) -> dict[str, TaskDurations]:
    """Return the durations in the latest runs of a flow, by task that succeeded at least once."""
    return {
        name: _observed(values, past_attempts(connection, name, dag_name))
        for name, values in duration_stats.durations_us(connection, dag_name).items()
    }


def _observed(durations_us: list[int], past: Iterable[PastDuration]) -> TaskDurations:
    p50, p95, p99 = (duration_stats.quantile(durations_us, share) / 1e6 for share in (0.5, 0.95, 0.99))
    return TaskDurations(p50, p95, p99, len(durations_us), tuple(past))


_PAST = (
    "SELECT started_at, duration_us, outcome FROM attempt WHERE name = :name AND outcome IN ('success', 'timed_out')"
    " AND duration_us IS NOT NULL"
    " AND (:dag_name IS NULL OR run_id IN (SELECT run_id FROM run WHERE dag_name = :dag_name))"
    " ORDER BY started_at DESC LIMIT :limit"
)


def past_attempts(connection: sqlite3.Connection, name: str, dag_name: str | None = None) -> list[PastDuration]:
    """Return the latest attempts of a task that succeeded or timed out, the oldest first."""
    rows = connection.execute(_PAST, {"name": name, "dag_name": dag_name, "limit": PAST_ATTEMPTS}).fetchall()
    return [
        PastDuration(weekday_of(at), duration_us / 1e6, outcome == "success") for at, duration_us, outcome in rows[::-1]
    ]


def weekday_of(at: int) -> int:
    """Return the local day of the week of a time in microseconds UTC; 0 is Monday."""
    return datetime.fromtimestamp(at / 1e6).astimezone().weekday()


def healed_count(connection: sqlite3.Connection, name: str, strict_fp: str) -> int:
    """Count the generations in which this failure of the task was followed by a success without an operator."""
    (count,) = connection.execute(
        "SELECT count(*) FROM (SELECT DISTINCT run_id, generation FROM attempt AS failed"
        f" WHERE name = ? AND fingerprint = ? AND outcome IN {in_list(FAILED_OUTCOMES)} AND EXISTS ("
        "SELECT 1 FROM attempt AS good WHERE good.run_id = failed.run_id AND good.name = failed.name"
        " AND good.generation = failed.generation AND good.attempt > failed.attempt AND good.outcome = 'success'))",
        (name, strict_fp),
    ).fetchone()
    return int(count)
