"""The estimated end of a run, from past durations of its tasks and the longest remaining path.

A task starts neither before its parents are done nor before its own instant, as that of a requeue with a rate. Tasks
below a dead letter are not counted: the time of a human's decision is unknown. Sensors and tasks that an open breaker
holds are not either. There is no estimate while the path that decides begins with a task that runs far longer than
expected, or such tasks hold all slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ...engine.core.breaker import HOLDING
from ...engine.core.projection import TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.views import work_us
from ...engine.core.waiting import RunnerStatus
from ...engine.domain.states import MOVING, TaskState
from ...engine.statefile.durations import DurationStats, quantile
from .board import Board
from .graph.groups import stem
from .overdue import is_far_over

_SECOND = 1_000_000
_TASKS_PER_SECOND = 2_000  # of a large graph that are visited each second
_DURATIONS_MIN = 3  # known durations that an estimate needs
_LEFT_MIN_US = _SECOND // 10  # of a task that runs longer than expected


class DurationRange(NamedTuple):
    """Microseconds: as long as usual, and as long as 95 of 100 attempts take at most."""

    low_us: int
    high_us: int


class Forecast(msgspec.Struct, frozen=True):
    """The instant at which the tasks that can run are done.

    Attributes:
        left: from now on, until the last of them ends.
        path: the tasks on the longest path, in order.
        held: tasks that have not started, wait for a human's decision and are not counted.
        is_blocked_then: whether the run waits for a human afterwards.
        slack_us: between the estimated end and the deadline. Negative: also the early end is too late.
    """

    left: DurationRange
    path: tuple[str, ...]
    held: int
    is_blocked_then: bool
    slack_us: int | None


class Forecaster:
    """Caches the estimate between calls."""

    def __init__(self, board: Board, stats: Mapping[str, DurationStats] | None = None) -> None:
        """``stats``: durations of tasks in earlier runs."""
        self._board = board
        self._stats = dict(stats or {})
        self._latest_key: tuple[int, int] = (-1, 0)  # seq, instant
        self._latest: Forecast | None = None

    def forecast(self, now_us: int) -> Forecast | None:
        """Return the estimate, at most about a second old.

        None if too few durations are known, if no task can run, and while the deciding task runs far too long.
        """
        seq, at = self._latest_key
        interval = _SECOND * max(1, self._board.total // _TASKS_PER_SECOND)
        is_rewound = self._board.projection.seq < seq
        is_advanced = self._board.projection.seq > seq and self._board.total < _TASKS_PER_SECOND
        if is_rewound or is_advanced or abs(now_us - at) >= interval:
            self._latest = estimate(self._board, now_us, self._stats)
            self._latest_key = self._board.projection.seq, now_us
        return self._latest


def estimate(board: Board, now_us: int, stats: Mapping[str, DurationStats]) -> Forecast | None:
    """Visit the whole graph and estimate the end; None as in ``forecast``."""
    expected = _Expected(board, stats)
    if expected.known < _DURATIONS_MIN or board.projection.run.paused_since is not None:
        return None
    dead = {name for name in board.problems if board.row(name).state is TaskState.DEAD_LETTER}
    for_human = {name for name in dead if board.row(name).canary is None} | board.held_tasks().keys()
    held = dead | for_human | set(board.names_waiting_below(*dead, *for_human))
    endless = [*(row.name for row in sensing_tasks(board)), *_tasks_at_outages(board)]
    left_out = held.union(endless, board.names_waiting_below(*endless))
    work = [
        _Work(_remaining_us(row, expected.duration(name), now_us), max((row.next_retry_at or 0) - now_us, 0))
        if row.state in MOVING and name not in left_out
        else None
        for name, row in zip(board.dag.names, map(board.row, board.dag.names), strict=True)
    ]
    if not any(work):
        return None
    left, path = _finish(board, work)
    outlasted = sum(_has_outlasted(board.row(name), expected, now_us) for name in board.active)
    if outlasted >= max(board.projection.run.max_parallel, 1) or _has_outlasted(board.row(path[0]), expected, now_us):
        return None
    unstarted = sum(1 for name in held if board.row(name).state in MOVING)
    return Forecast(left, path, unstarted, bool(for_human), _slack_us(board.projection.run.deadline_at, now_us, left))


def sensing_tasks(board: Board) -> list[TaskRow]:
    """The sensors that have not found anything yet, in the order of the flow: nobody knows how long they wait."""
    rows = (board.row(name) for name in board.active)
    return sorted((row for row in rows if row.state is TaskState.SENSING), key=lambda row: row.position)


def _tasks_at_outages(board: Board) -> list[str]:
    """The tasks that an open breaker holds: nobody knows how long the outage of their downstream lasts."""
    down = {name for name, status in board.snapshot.breakers.items() if status.state in HOLDING}
    if not down:
        return []
    rows = (board.row(name) for name in board.timed)
    return [row.name for row in rows if row.state is not TaskState.RUNNING and spec_of(row).downstream in down]


class _Work(NamedTuple):
    """The work that is left of a task."""

    left: DurationRange
    wait_us: int  # until its instant


def _slack_us(deadline_us: int | None, now_us: int, left: DurationRange) -> int | None:
    """The slack of the late end; "late" is said only if also the early end is."""
    if deadline_us is None:
        return None
    early, late = deadline_us - now_us - left.low_us, deadline_us - now_us - left.high_us
    return late if late >= 0 else min(early, 0)


def _finish(board: Board, work: Sequence[_Work | None]) -> tuple[DurationRange, tuple[str, ...]]:
    """The time that tasks take, each after its parents and its instant, all through the slots; and the longest path.

    ``work``: by the number of the task; None for a task that is not counted.
    """
    parents = board.dag.parent_numbers
    lows, highs, before = [0] * len(work), [0] * len(work), [-1] * len(work)
    for number in board.dag.topological:
        mine = work[number]
        if mine is None:
            continue
        (low, high), low_start = mine.left, mine.wait_us
        high_start = low_start
        latest = 0
        for parent in parents[number]:
            if lows[parent] > latest:
                latest, before[number] = lows[parent], parent
            if highs[parent] > high_start:
                high_start = highs[parent]
        lows[number] = max(low_start, latest) + low
        highs[number] = high_start + high
    slots = max(board.projection.run.max_parallel, 1)
    low_us = max(max(lows), sum(one.left.low_us for one in work if one) // slots)
    high_us = max(max(highs), sum(one.left.high_us for one in work if one) // slots)
    path = []
    last = lows.index(max(lows))
    while last >= 0:
        path.append(board.dag.names[last])
        last = before[last]
    return DurationRange(low_us, max(low_us, high_us)), tuple(reversed(path))


def critical_path(board: Board, forecast: Forecast | None, now_us: int, runner: RunnerStatus) -> tuple[str, ...]:
    """The path from a root on that decides the end: the estimated one with what has led to it, else of what has run.

    An estimated path on which nothing has run yet counts only before anything has. Of what has run it is the path that
    takes longest, with all attempts of its tasks and without what lies between them. The task that ended last need not
    be on it: an operator may have requeued it long after.
    """
    path = forecast.path if forecast is not None and board.projection.run.ended_at is None else ()
    expected = _path_before(board, path[0]) + path if path else ()
    if any(board.row(name).attempts for name in expected):
        return expected
    ran = {name: float(work_us(row, now_us, runner)) for name, row in board.projection.tasks.items() if row.attempts}
    return tuple(name for name in board.dag.critical_path(ran) if name in ran) if ran else expected


def _path_before(board: Board, name: str) -> tuple[str, ...]:
    """The path from a root to a task, without the task: at each step the parent that ended last."""
    path: list[str] = []
    while True:
        parents = [row for row in map(board.row, board.dag.parents(name)) if row.attempts]
        if not parents:
            return tuple(reversed(path))
        name = max(parents, key=_last_instant).name
        path.append(name)


def _last_instant(row: TaskRow) -> int:
    latest = row.latest or next(reversed(row.attempts.values()))
    return latest.ended_at if latest.ended_at is not None else latest.started_at


class _Expected:
    """Expected duration of a task: of its own history, else of its family in this run, else of all known durations.

    ``known``: how many durations the estimate is based on.
    """

    def __init__(self, board: Board, stats: Mapping[str, DurationStats]) -> None:
        self._stats = {name: DurationRange(one.p50_us, max(one.p50_us, one.p95_us)) for name, one in stats.items()}
        families: dict[str, list[int]] = {}
        for name, row in board.projection.tasks.items():
            latest = row.latest
            if row.state is TaskState.SUCCESS and latest is not None and latest.duration_us is not None:
                families.setdefault(stem(name), []).append(latest.duration_us)
        self.known = sum(map(len, families.values())) + sum(one.attempts for one in stats.values())
        self._families = {family: _band(sorted(durations)) for family, durations in families.items()}
        known = [*self._families.values(), *self._stats.values()] or [DurationRange(0, 0)]
        self._any = DurationRange(*(quantile(sorted(ends), 0.5) for ends in zip(*known, strict=True)))

    def duration(self, name: str) -> DurationRange:
        return self._stats.get(name) or self._families.get(stem(name), self._any)


def _band(durations: Sequence[int]) -> DurationRange:
    return DurationRange(quantile(durations, 0.5), quantile(durations, 0.95))


def _remaining_us(row: TaskRow, expected: DurationRange, now_us: int) -> DurationRange:
    """The time that is left of a task once its parents are done and its instant has come."""
    elapsed = max(now_us - (row.started_at or now_us), 0) if row.state is TaskState.RUNNING else 0
    low, high = expected
    if elapsed == 0 and low >= _LEFT_MIN_US:
        return expected
    return DurationRange(max(low - elapsed, _LEFT_MIN_US), max(high - elapsed, _LEFT_MIN_US))


def _has_outlasted(row: TaskRow, expected: _Expected, now_us: int) -> bool:
    """Whether a task runs far longer than is expected of it, so that nobody knows when it ends."""
    if row.state is not TaskState.RUNNING or row.started_at is None:
        return False
    return is_far_over(now_us - row.started_at, expected.duration(row.name).high_us)
