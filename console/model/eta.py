"""When the run will be done: from how long its tasks took before, and from what is left on the longest way.

An estimate, and shown as one. Tasks that a dead letter holds are left out: nobody can say when a human decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from ...engine.core.projection import TaskRow
from ...engine.domain.states import TIMED, WAITING, TaskState
from ...engine.statefile.duration_stats import Usual
from .board import Board
from .graph.name_families import stem

_SECOND = 1_000_000
_TASKS_PER_SECOND = 2_000  # how much of a large graph may be looked through each second
_FAR_OVER = 1.5  # times what 95 of 100 attempts took, and
_FAR_OVER_US = 10 * _SECOND  # so much more at least
_ATTEMPTS_MIN = 3  # before which nobody knows what is usual
_STILL_US = 60 * _SECOND  # without progress, before it is worth a word,
_STILL_PACES = 3  # and so many times as long as one part took so far


@dataclass(frozen=True, slots=True)
class Forecast:
    """``left_us``: until the last task that can move is done. ``path``: the tasks that decide it, in order."""

    left_us: int
    path: tuple[str, ...]
    held: int  # tasks that wait for a human's decision and are not counted
    slack_us: int | None  # until the deadline, once all is done; negative: it will be missed


class Forecaster:
    """Keeps what is known of durations, and does not look again before that makes sense."""

    def __init__(self, board: Board, history: Mapping[str, float] | None = None) -> None:
        """``history``: median seconds of each task in earlier runs, where there are any."""
        self._board = board
        self._history = dict(history or {})
        self._seen: tuple[int, int] = (-1, 0)  # seq, instant
        self._latest: Forecast | None = None

    def forecast(self, now_us: int) -> Forecast | None:
        """The estimate, at most a moment old; None as long as nothing is known of any duration, or all is done."""
        seq, at = self._seen
        interval = _SECOND * max(1, self._board.total // _TASKS_PER_SECOND)
        went_back = self._board.fold.seq < seq  # what was known later is not known there
        went_on = self._board.fold.seq > seq and self._board.total < _TASKS_PER_SECOND
        if went_back or went_on or abs(now_us - at) >= interval:
            self._latest = estimate(self._board, now_us, self._history)
            self._seen = self._board.fold.seq, now_us
        return self._latest


def estimate(board: Board, now_us: int, history: Mapping[str, float]) -> Forecast | None:
    """One look through the whole graph."""
    expected = _Expected(board, history)
    if not expected.known:
        return None
    stuck = _held_by_dead_letters(board)
    weights = {name: _left_seconds(board, name, expected, now_us) for name in board.fold.tasks if name not in stuck}
    weights = {name: weight for name, weight in weights.items() if weight > 0}
    if not weights:
        return None
    remaining = board.dag.remaining_path(weights)
    width = max(board.fold.run.max_parallel, 1)
    seconds = max(max(remaining.values()), sum(weights.values()) / width)
    deadline = board.fold.run.deadline_at
    left = round(seconds * _SECOND)
    path = tuple(name for name in board.dag.critical_path(weights) if name in weights)
    return Forecast(left, path, len(stuck), None if deadline is None else deadline - now_us - left)


class _Expected:
    """How long a task takes: its own history, else that of its family in this run, else what is usual in this run."""

    def __init__(self, board: Board, history: Mapping[str, float]) -> None:
        self._history = history
        seen: dict[str, list[float]] = {}
        for name, row in board.fold.tasks.items():
            latest = row.attempts.get(row.attempt)
            if row.state is TaskState.SUCCESS and latest is not None and latest.duration_us is not None:
                seen.setdefault(stem(name), []).append(latest.duration_us / _SECOND)
        self._families = {family: median(durations) for family, durations in seen.items()}
        everything = [*self._families.values(), *history.values()]
        self.known = bool(everything)
        self._usual = median(everything) if everything else 0.0

    def seconds(self, name: str) -> float:
        own = self._history.get(name)
        return own if own is not None else self._families.get(stem(name), self._usual)


def _left_seconds(board: Board, name: str, expected: _Expected, now_us: int) -> float:
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


def _held_by_dead_letters(board: Board) -> frozenset[str]:
    dead = [name for name in board.problems if board.row(name).state is TaskState.DEAD_LETTER]
    return frozenset(board.held_names(*dead)) if dead else frozenset()


def is_overdue(elapsed_us: int, usual: Usual) -> bool:
    """Whether an attempt runs far longer than nearly all did in earlier runs."""
    over_us = elapsed_us - usual.p95_us
    return usual.attempts >= _ATTEMPTS_MIN and elapsed_us > _FAR_OVER * usual.p95_us and over_us > _FAR_OVER_US


def still_for_us(row: TaskRow, now_us: int) -> int | None:
    """How long a running task that tells how far it is has told nothing, where that is long for it."""
    if not row.progress_total or row.started_at is None:
        return None
    pace_us = (row.changed_at - row.started_at) // max(row.progress_done or 0, 1)
    silent_us = now_us - row.changed_at
    return silent_us if silent_us > max(_STILL_US, _STILL_PACES * pace_us) else None
