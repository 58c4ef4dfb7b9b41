"""The estimated end of a run, from past durations of its tasks and the longest remaining path.

Tasks below a dead letter are not counted: the time of a human's decision is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from ...engine.core.projection import TaskRow
from ...engine.domain.states import TIMED, WAITING, TaskState
from ...engine.statefile.list_rows import DurationStats
from .board import Board
from .graph.name_families import stem

_SECOND = 1_000_000
_TASKS_PER_SECOND = 2_000  # of a large graph that are visited each second
_OVERDUE_FACTOR = 1.5  # times the 95th percentile of past attempts, and
_OVERDUE_US = 10 * _SECOND  # at least this much longer
_ATTEMPTS_MIN = 3  # past attempts that a comparison needs
_STALLED_US = 60 * _SECOND  # without progress,
_STALLED_PACES = 3  # and this many times as long as one part took so far


@dataclass(frozen=True, slots=True)
class Forecast:
    """``left_us``: until the last task that can run is done. ``path``: the tasks on the longest path, in order."""

    left_us: int
    path: tuple[str, ...]
    held: int  # tasks that wait for a human's decision and are not counted
    slack_us: int | None  # between the estimated end and the deadline; negative: the deadline will be missed


class Forecaster:
    """Caches the estimate between calls."""

    def __init__(self, board: Board, history: Mapping[str, float] | None = None) -> None:
        """``history``: median seconds of tasks in earlier runs."""
        self._board = board
        self._history = dict(history or {})
        self._latest_key: tuple[int, int] = (-1, 0)  # seq, instant
        self._latest: Forecast | None = None

    def forecast(self, now_us: int) -> Forecast | None:
        """Return the estimate, at most about a second old; None if no duration is known or all tasks are done."""
        seq, at = self._latest_key
        interval = _SECOND * max(1, self._board.total // _TASKS_PER_SECOND)
        is_rewound = self._board.fold.seq < seq
        is_advanced = self._board.fold.seq > seq and self._board.total < _TASKS_PER_SECOND
        if is_rewound or is_advanced or abs(now_us - at) >= interval:
            self._latest = estimate(self._board, now_us, self._history)
            self._latest_key = self._board.fold.seq, now_us
        return self._latest


def estimate(board: Board, now_us: int, history: Mapping[str, float]) -> Forecast | None:
    """Visit the whole graph and estimate the end; None as in ``forecast``."""
    expected = _Expected(board, history)
    if not expected.known:
        return None
    held = _tasks_below_dead_letters(board)
    weights = {name: _remaining_seconds(board, name, expected, now_us) for name in board.fold.tasks if name not in held}
    weights = {name: weight for name, weight in weights.items() if weight > 0}
    if not weights:
        return None
    remaining = board.dag.remaining_path(weights)
    width = max(board.fold.run.max_parallel, 1)
    seconds = max(max(remaining.values()), sum(weights.values()) / width)
    deadline = board.fold.run.deadline_at
    left_us = round(seconds * _SECOND)
    path = tuple(name for name in board.dag.critical_path(weights) if name in weights)
    return Forecast(left_us, path, len(held), None if deadline is None else deadline - now_us - left_us)


def critical_path(board: Board, forecast: Forecast | None) -> tuple[str, ...]:
    """The tasks that decide when the run ends, in order: of the estimate, else of what has happened."""
    if forecast is not None and forecast.path and board.fold.run.ended_at is None:
        return forecast.path
    return path_taken(board)


def path_taken(board: Board) -> tuple[str, ...]:
    """The tasks that decided when the run came to its end, or to its stop.

    From the task that ended last back to the parent that ended last, up to a root. Empty if no task has run.
    """
    ended = [row for row in board.fold.tasks.values() if row.attempts]
    path: list[str] = []
    latest = max(ended, key=_last_instant, default=None)
    while latest is not None:
        path.append(latest.name)
        parents = [board.row(name) for name in board.fold.parents.get(latest.name, ())]
        latest = max((row for row in parents if row.attempts), key=_last_instant, default=None)
    return tuple(reversed(path))


def _last_instant(row: TaskRow) -> int:
    latest = row.attempts[row.attempt] if row.attempt in row.attempts else next(reversed(row.attempts.values()))
    return latest.ended_at if latest.ended_at is not None else latest.started_at


class _Expected:
    """Expected seconds of a task: of its own history, else of its family in this run, else the median of all."""

    def __init__(self, board: Board, history: Mapping[str, float]) -> None:
        self._history = history
        durations: dict[str, list[float]] = {}
        for name, row in board.fold.tasks.items():
            latest = row.attempts.get(row.attempt)
            if row.state is TaskState.SUCCESS and latest is not None and latest.duration_us is not None:
                durations.setdefault(stem(name), []).append(latest.duration_us / _SECOND)
        self._families = {family: median(durations) for family, durations in durations.items()}
        known = [*self._families.values(), *history.values()]
        self.known = bool(known)
        self._median_seconds = median(known) if known else 0.0

    def seconds(self, name: str) -> float:
        own = self._history.get(name)
        return own if own is not None else self._families.get(stem(name), self._median_seconds)


def _remaining_seconds(board: Board, name: str, expected: _Expected, now_us: int) -> float:
    row = board.row(name)
    if row.state in WAITING:
        return expected.seconds(name)
    if row.state in TIMED:
        wait = max((row.next_retry_at or now_us) - now_us, 0) / _SECOND
        return wait + expected.seconds(name)
    if row.state is TaskState.RUNNING:
        elapsed = (now_us - (row.started_at or now_us)) / _SECOND
        return max(expected.seconds(name) - elapsed, 0.1)
    return 0.0


def _tasks_below_dead_letters(board: Board) -> frozenset[str]:
    dead = [name for name in board.problems if board.row(name).state is TaskState.DEAD_LETTER]
    return frozenset(board.names_waiting_below(*dead)) if dead else frozenset()


def is_overdue(elapsed_us: int, stats: DurationStats) -> bool:
    """Whether an attempt runs far longer than 95 % of past attempts."""
    over_us = elapsed_us - stats.p95_us
    return stats.attempts >= _ATTEMPTS_MIN and elapsed_us > _OVERDUE_FACTOR * stats.p95_us and over_us > _OVERDUE_US


def stalled_for_us(row: TaskRow, now_us: int) -> int | None:
    """Return how long a running task has reported no progress; None if that is not long for it."""
    if not row.progress_total or row.started_at is None:
        return None
    pace_us = (row.changed_at - row.started_at) // max(row.progress_done or 0, 1)
    silent_us = now_us - row.changed_at
    return silent_us if silent_us > max(_STALLED_US, _STALLED_PACES * pace_us) else None
