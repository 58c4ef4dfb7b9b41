"""What earlier runs in the same file say of a task: how long it takes, and which of its failures heal by themselves."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from statistics import median

from . import usual


def durations(connection: sqlite3.Connection, dag_name: str) -> dict[str, float]:
    """Return the median seconds of the successful attempts of each task of a flow, over its latest runs."""
    return {name: median(values) / 1e6 for name, values in usual.durations_us(connection, dag_name).items()}


@dataclass(frozen=True, slots=True)
class Observed:
    """How long the successful attempts of one task took so far. Seconds."""

    p50: float
    p95: float
    p99: float
    count: int


def observed(connection: sqlite3.Connection, dag_name: str) -> dict[str, Observed]:
    """Return what the latest runs of a flow say of each of its tasks that ever succeeded."""
    return {name: _observed(values) for name, values in usual.durations_us(connection, dag_name).items()}


def _observed(durations_us: list[int]) -> Observed:
    p50, p95, p99 = (usual.quantile(durations_us, share) / 1e6 for share in (0.5, 0.95, 0.99))
    return Observed(p50, p95, p99, len(durations_us))


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
