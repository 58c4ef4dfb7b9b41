"""The run in the memory of its executor: its tasks, the ready queue, and timers for due times.

Only committed events change it. Timers run on the monotonic clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..clock import Clock
from ..core.dag import Dag, remaining_path
from ..core.deadline import ending_deadline
from ..core.projection import RunProjection, TaskRow
from ..core.ready_queue import ReadyQueue, is_approval, spec_of
from ..core.spec import TaskSpec, with_overrides
from ..core.waiting import is_undecided
from ..domain.events import Event, EventKind
from ..domain.states import MOVING, TIMED, WITH_INSTANT, TaskState
from ..runner.protocol import ignore
from ..statefile.durations import of_child
from ..statefile.transitions import Transaction
from ..store.claims import Claim
from .opening import OpenRun

_DEADLINE = "\0"  # key of the timer of the deadline: task names cannot contain this character (``flow.py``)
_BOUND = "\0bound:"  # begins the key of the timer that ends a clean-up, beside that of its next attempt


class ActiveRun:
    """Projection, ready queue and timers, updated together. ``wake()`` triggers the next step of the loop.

    ``path_seconds``: by task, the longest path to the end of the run by earlier durations; empty without history.
    ``median_seconds``: by task, how long an attempt took in earlier runs.
    """

    def __init__(self, opened: OpenRun, clock: Clock, wake: Callable[[], None]) -> None:
        self.projection: RunProjection = opened.projection
        self.run_id = opened.projection.run.run_id
        self.flow = opened.flow
        self.median_seconds = {name: one.p50_us / 1e6 for name, one in opened.durations.items()}
        self._longest = _path_seconds(self.projection, self.median_seconds)
        self.path_seconds: Mapping[str, float] = self._longest if self.median_seconds else {}
        self.ready_queue = ReadyQueue(self.projection, self._longest)
        self.wake = wake
        self.now_us = clock.now_us
        self._expired: set[str] = set()  # dead letters past their TTL, approvals and clean-ups past their timeout
        self.use_specs(opened.flow.tasks, opened.stored_tasks)
        self._timers = Timers(asyncio.get_running_loop(), clock.now_us, self._on_timer)

    def start(self) -> None:
        for row in self.projection.tasks.values():
            if row.state is not TaskState.PENDING or row.next_retry_at is not None:  # else there is none: a new run
                self._arm(row)
        self._arm_deadline()

    def _arm_deadline(self) -> None:
        run = self.projection.run
        deadline_at = ending_deadline(run) if run.deadline_passed_at is None else None
        if deadline_at is None:
            self._timers.disarm(_DEADLINE)
        else:
            self._timers.arm(_DEADLINE, deadline_at)

    def close(self) -> None:
        self._timers.clear()

    def use_specs(self, specs: Sequence[TaskSpec], stored: Sequence[TaskSpec]) -> None:
        """Set the specs of the flow; ``stored``: those in the state file, in which secrets are masked."""
        self._unmasked = {
            spec.name: (spec, masked) for spec, masked in zip(specs, stored, strict=True) if spec is not masked
        }

    def spec(self, name: str) -> TaskSpec:
        """Return the spec of a task with the operator's overrides for its generation."""
        row = self.projection.tasks[name]
        spec = spec_of(row)
        unmasked, masked = self._unmasked.get(name, (spec, spec))
        return with_overrides(unmasked if spec == masked else spec, row.overrides)

    def apply(self, events: Sequence[Event]) -> None:
        """Update the run by committed events."""
        for event in events:
            before = self.projection.tasks.get(event.task or "")
            old = None if before is None else before.state
            row = self.projection.apply(event)
            if event.kind == EventKind.RUN:
                self._arm_deadline()
                self.ready_queue.apply_over()
            if row is None or old is None:
                continue
            if event.kind == EventKind.MAPPED:
                self._longest.update(_path_seconds(self.projection, self.median_seconds))
            self.ready_queue.apply_event(event.kind, row, old)
            if event.kind in (EventKind.TASK, EventKind.TASK_CHANGED):
                self._arm(row)

    def wake_at(self, downstream: str, instant: int) -> None:
        """Call ``wake`` at ``instant`` (microseconds UTC), when tasks that call ``downstream`` may start again."""
        self._timers.arm(f"\0{downstream}", instant)  # task names cannot contain this character (``flow.py``)

    def expired_tasks(self) -> dict[str, int]:
        """Return the dead letters past their TTL, the approvals and the clean-ups past their time, with generations."""
        if not self._expired:
            return {}
        rows = [self.projection.tasks[name] for name in self._expired]
        return {row.name: row.generation for row in rows if _expires(row) or _is_bounded(row)}

    def _arm(self, row: TaskRow) -> None:
        if _expires(row):
            self._arm_expiry(row, row.name)
            return
        self._expired.discard(row.name)
        if _is_bounded(row):
            self._arm_expiry(row, _BOUND + row.name)
        else:
            self._timers.disarm(_BOUND + row.name)
        if row.next_retry_at is None or row.state not in WITH_INSTANT:
            if self._timers.disarm(row.name) or row.state in TIMED:
                self.ready_queue.mark_due(row.name)
            return
        if row.next_retry_at <= self.now_us():  # at once: the run would count as blocked before its timer fires
            self._timers.disarm(row.name)
            self.ready_queue.mark_due(row.name)
            return
        if row.state is TaskState.PENDING:
            self.ready_queue.defer(row.name)
        self._timers.arm(row.name, row.next_retry_at)

    def _arm_expiry(self, row: TaskRow, key: str) -> None:
        assert row.expires_at is not None
        if row.expires_at <= self.now_us():  # at once: a blocked run would end before its timer fires
            self._expired.add(row.name)
        else:
            self._timers.arm(key, row.expires_at)

    def _on_timer(self, key: str) -> None:
        row = self.projection.tasks.get(key.removeprefix(_BOUND))
        if row is not None and (_expires(row) or key.startswith(_BOUND)):
            self._expired.add(row.name)
        elif row is not None:
            self.ready_queue.mark_due(key)
        self.wake()


def _expires(row: TaskRow) -> bool:
    """True for a dead letter with a TTL, except while its canary runs, and for an approval with a timeout."""
    return is_undecided(row) and row.expires_at is not None and row.canary is None


def _is_bounded(row: TaskRow) -> bool:
    """True for a clean-up of a run that is over, which has to end by then (``statefile/clean_ups.py``)."""
    return row.expires_at is not None and row.state in MOVING and not is_approval(row)


def _path_seconds(projection: RunProjection, medians: Mapping[str, float]) -> dict[str, float]:
    """Return the longest path from each task to a leaf: median seconds of earlier runs, else the number of tasks."""
    unknown = sorted(medians.values())[len(medians) // 2] if medians else 1.0
    weights = {name: of_child(medians, name, unknown) for name in projection.tasks}
    found = remaining_path(projection.children, weights)
    if found is None:
        found = Dag((name, projection.parents.get(name, ())) for name in projection.tasks).remaining_path(weights)
    return found


# --- A step of the loop as a value: the write, and the callback after its commit -------------------------------------


#: Queues a write whose result no caller awaits.
WriteInTransaction = Callable[[Callable[[Transaction], object]], object]


class Commit(msgspec.Struct, frozen=True):
    """``item`` runs in the writer's transaction; ``on_committed(result of item)`` in the loop, after the COMMIT.

    ``durable``: the callback waits until the commit is on the disk.
    """

    item: Callable[[Transaction], object]
    on_committed: Callable[[Any], None] = ignore
    durable: bool = False


class FollowUp(msgspec.Struct, frozen=True):
    """The claims of the slot that an ending attempt frees: they share the transaction of its settlement.

    A commit of their own costs a chain of short tasks a third of the executor's CPU.
    """

    claim: Callable[[Transaction, bool], list[Claim]]  # the second argument: the attempt was settled as a success
    on_committed: Callable[[list[Claim]], None]
    durable: bool = False


# --- Timers by key, armed on the monotonic clock, so that a step of the wall clock neither delays nor fires a timer ---


class Timers:
    """Timers by key; arming a key again replaces its timer. ``fire(key)`` is called in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_us: Callable[[], int], fire: Callable[[str], None]) -> None:
        self._loop = loop
        self._now_us = now_us
        self._fire = fire
        self._handles: dict[str, tuple[int, asyncio.TimerHandle]] = {}

    def arm(self, key: str, due_at: int) -> None:
        """Fire ``key`` at ``due_at`` (microseconds UTC), at once if ``due_at`` is past."""
        armed = self._handles.get(key)
        if armed is not None:
            if armed[0] == due_at:
                return
            armed[1].cancel()
        wait_seconds = max(0.0, (due_at - self._now_us()) / 1e6)
        self._handles[key] = (due_at, self._loop.call_at(self._loop.time() + wait_seconds, self._on_timer, key))

    def disarm(self, key: str) -> bool:
        """Cancel the timer of ``key``. False: it was not armed."""
        armed = self._handles.pop(key, None)
        if armed is not None:
            armed[1].cancel()
        return armed is not None

    def clear(self) -> None:
        for key in list(self._handles):
            self.disarm(key)

    def _on_timer(self, key: str) -> None:
        self._handles.pop(key, None)
        self._fire(key)
