"""Where the run stands, in memory: its tasks, who of them may start next, and the instants that it waits for.

Only committed events move it. What they say of instants is armed here, on the monotonic clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ..clock import Clock
from ..core.dag import Dag
from ..core.projection import RunFold, TaskRow
from ..core.ready_queue import Ledger, spec_of
from ..core.spec import TaskSpec, with_overrides
from ..domain.events import Event, EventKind
from ..domain.states import TIMED, WITH_INSTANT, TaskState
from .opening import OpenRun
from .timers import Timers


class Standing:
    """Fold, ledger and timers, which only ever move together. ``on_due()``: an instant has come.

    ``path_seconds``: the longest way from the start of each task to the end, by history; empty where there is none.
    """

    def __init__(self, opened: OpenRun, clock: Clock, on_due: Callable[[], None]) -> None:
        self.fold: RunFold = opened.fold
        self.flow = opened.flow
        longest = _path_seconds(opened)
        self.path_seconds: Mapping[str, float] = longest if opened.median_seconds else {}
        self.ledger = Ledger(self.fold, longest)
        self._on_due = on_due
        self._now_us = clock.now_us
        self._expired: set[str] = set()  # dead letters whose time has come
        self._timers = Timers(asyncio.get_running_loop(), clock.now_us, self._come_due)

    def start(self) -> None:
        """Arm what the file says."""
        for row in self.fold.tasks.values():
            self._arm(row)

    def close(self) -> None:
        """Wait for no instant any more."""
        self._timers.clear()

    def spec(self, name: str) -> TaskSpec:
        """What the flow says of a task, and an operator of this generation of it."""
        row = self.fold.tasks[name]
        return with_overrides(spec_of(row), row.overrides)

    def take(self, events: Sequence[Event]) -> None:
        """Move on by what has been committed."""
        for event in events:
            old = self.fold.tasks[event.task].state if event.task in self.fold.tasks else None
            row = self.fold.apply(event)
            if row is None or old is None or event.kind not in (EventKind.TASK, EventKind.TASK_CHANGED):
                continue
            if row.state is not old or event.kind == EventKind.TASK:
                self.ledger.moved(row, old)
            self._arm(row)

    def ask_again_at(self, downstream: str, instant: int) -> None:
        """Nothing that calls ``downstream`` may start before ``instant`` (microseconds UTC)."""
        self._timers.arm(f"\0{downstream}", instant)  # no task has a name with this character (``flow.py``)

    def expired(self) -> dict[str, int]:
        """The dead letters that nobody has decided about in time, with their generations."""
        rows = [self.fold.tasks[name] for name in self._expired]
        return {row.name: row.generation for row in rows if _expires(row)}

    def _arm(self, row: TaskRow) -> None:
        if _expires(row):
            self._arm_expiry(row)
            return
        self._expired.discard(row.name)
        if row.next_retry_at is None or row.state not in WITH_INSTANT:
            if self._timers.disarm(row.name) or row.state in TIMED:
                self.ledger.come_due(row.name)
            return
        if row.state is TaskState.PENDING:
            self.ledger.not_before(row.name)
        self._timers.arm(row.name, row.next_retry_at)

    def _arm_expiry(self, row: TaskRow) -> None:
        assert row.expires_at is not None
        if row.expires_at <= self._now_us():  # at once, or a run that is blocked would end before its timer rings
            self._expired.add(row.name)
        else:
            self._timers.arm(row.name, row.expires_at)

    def _come_due(self, key: str) -> None:
        row = self.fold.tasks.get(key)
        if row is not None and _expires(row):
            self._expired.add(key)
        elif row is not None:
            self.ledger.come_due(key)
        self._on_due()


def _expires(row: TaskRow) -> bool:
    """True for a dead letter that becomes FAILED in time; not while a canary tries the fix for it."""
    return row.state is TaskState.DEAD_LETTER and row.expires_at is not None and row.canary is None


def _path_seconds(opened: OpenRun) -> dict[str, float]:
    """Longest path from each task to a leaf, by the medians of earlier runs; by count where there are none."""
    fold, medians = opened.fold, opened.median_seconds
    unknown = sorted(medians.values())[len(medians) // 2] if medians else 1.0
    weights = {name: medians.get(name, unknown) for name in fold.tasks}
    dag = Dag((name, fold.parents.get(name, ())) for name in fold.tasks)
    return dict(dag.remaining_path(weights))
