"""Find what a task waits for in the projection of its run: ``wait_of`` returns the reason, a row of ``waits.py``."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from ..domain.durations import format_duration
from ..domain.states import DEADLINE_MODE, NEEDS_HUMAN, OPEN, TIMED, WITH_INSTANT, TaskState
from ..domain.trigger_rules import satisfied_rules
from .breaker import PASSING, is_releasing
from .outlook import ALIVE, RunnerStatus
from .projection import RunProjection, TaskRow
from .ready_queue import is_retry, spec_of
from .spec import TaskSpec
from .waits import WaitReason


@dataclass(frozen=True, slots=True)
class BreakerView:
    """The part of a circuit breaker that explains why a task waits for it."""

    state: str  # CLOSED OPEN HALF_OPEN FORCED_OPEN DISABLED METRICS_ONLY
    reopens_at: int | None = None  # microseconds UTC
    reserve_at: int | None = None  # microseconds UTC: the next retry of an exhausted budget; None: retries may start
    why: str = ""
    release_at: int | None = None  # microseconds UTC: the next start of a release; None: nothing is released
    release_rate: float = 0.0  # starts a second


@dataclass(frozen=True, slots=True)
class ExplainContext:
    """Facts outside the projection of a run. A field that is left out does not appear in the sentences."""

    breakers: Mapping[str, BreakerView] = field(default_factory=dict)  # by downstream
    runner: RunnerStatus = ALIVE
    page_notes: Mapping[str, str] = field(default_factory=dict)  # by cause: "page acked by ana"
    active: Collection[str] | None = None  # tasks among which are all that run; None: look at every task


NO_CONTEXT = ExplainContext()


@dataclass(frozen=True, slots=True)
class TaskCase:
    """A task at an instant, with everything that explains its state."""

    projection: RunProjection
    row: TaskRow
    now: int
    context: ExplainContext

    @property
    def spec(self) -> TaskSpec:
        return spec_of(self.row)

    def for_task(self, name: str) -> TaskCase:
        return TaskCase(self.projection, self.projection.tasks[name], self.now, self.context)

    def since(self, at: int | None) -> str:
        return format_duration(self.now - at) if at is not None else "an unknown time"


def wait_of(
    projection: RunProjection, name: str, now_us: int, context: ExplainContext = NO_CONTEXT
) -> WaitReason | None:
    """Return what a task waits for; None if it has ended and waits for nothing. Raises KeyError for an unknown task."""
    return find_wait(TaskCase(projection, projection.tasks[name], now_us, context))


def find_wait(case: TaskCase) -> WaitReason | None:
    """``wait_of`` for a case."""
    row = case.row
    if row.canary is not None and row.state in NEEDS_HUMAN:
        return WaitReason.CANARY
    if row.state is TaskState.CANCELLED and row.failure_mode == DEADLINE_MODE:
        return WaitReason.DEADLINE
    if row.state not in WITH_INSTANT | {TaskState.READY}:
        return _STATE_REASONS.get(row.state)
    if _waits_for_nothing(case):
        return WaitReason.NOTHING
    if row.state is TaskState.PENDING and _has_unmet_parent(case):
        return WaitReason.PARENTS
    if row.state in WITH_INSTANT and row.next_retry_at is not None and row.next_retry_at > case.now:
        return _INSTANT_REASONS[row.state]
    found = next((reason for reason, holds in _CAPACITY_REASONS if holds(case)), WaitReason.DISPATCH)
    is_retry_due = found is WaitReason.DISPATCH and row.state in TIMED
    return _INSTANT_REASONS[row.state] if is_retry_due else found


def _waits_for_nothing(case: TaskCase) -> bool:
    """Whether a parent has ended in a way that stops the task, which no rule leaves waiting.

    Of a PENDING task, the parents are read only once the run has come to rest: a map task has thousands.
    """
    projection = case.projection
    if case.row.state is TaskState.PENDING and projection.run.blocked_since is None and projection.run.ended_at is None:
        return False
    return any(projection.tasks[parent].state not in OPEN for parent in unmet_parents(projection, case.row.name))


def unmet_parents(projection: RunProjection, name: str) -> tuple[str, ...]:
    """Return the parents that do not satisfy the trigger rule of a task yet, in the order of the flow."""
    rule = spec_of(projection.tasks[name]).rule
    rows = [projection.tasks[parent] for parent in projection.parents.get(name, ())]
    return tuple([row.name for row in rows if _is_unmet(row, rule)])


def _has_unmet_parent(case: TaskCase) -> bool:
    """Whether a parent keeps a task waiting. The last parents come first: children of a map task end in their order."""
    rule, tasks = case.spec.rule, case.projection.tasks
    return any(_is_unmet(tasks[parent], rule) for parent in reversed(case.projection.parents.get(case.row.name, ())))


def _is_unmet(parent: TaskRow, rule: str) -> bool:
    """Whether a parent keeps a child with this rule waiting. A PENDING one does, which is fast: most of a large run."""
    return parent.state is TaskState.PENDING or rule not in satisfied_rules(parent.state, parent.skip_cause)


def blocker(case: TaskCase) -> str | None:
    """Return the task that blocks this one; None if no other task does."""
    if case.row.state is TaskState.UPSTREAM_FAILED:
        cause = case.row.blocked_by
        return cause if cause in case.projection.tasks else None
    return root_blocker(case) if case.row.state is TaskState.PENDING else None


#: Of several blocking tasks the sentence names the first in this order: states that need a human come first.
_BLOCKER_PRIORITY = (
    TaskState.DEAD_LETTER,
    TaskState.FAILED,
    TaskState.CANCELLED,
    TaskState.UPSTREAM_FAILED,
    TaskState.SKIPPED,
    TaskState.RETRYING,
    TaskState.SENSING,
    TaskState.READY,
    TaskState.RUNNING,
    TaskState.PENDING,
    TaskState.SUCCESS,
)
_RANK = {state: rank for rank, state in enumerate(_BLOCKER_PRIORITY)}


def root_blocker(case: TaskCase) -> str | None:
    """Return the ancestor that blocks most, by ``_BLOCKER_PRIORITY``; among equals the nearest."""
    tasks = case.projection.tasks
    best: str | None = None
    queue = deque(unmet_parents(case.projection, case.row.name))
    seen = set(queue)
    while queue:
        name = queue.popleft()
        state = tasks[name].state
        above = unmet_parents(case.projection, name) if state is TaskState.PENDING else ()
        if above:
            queue.extend(parent for parent in above if parent not in seen)
            seen.update(above)
        elif best is None or _RANK[state] < _RANK[tasks[best].state]:
            best = name
            if state is _BLOCKER_PRIORITY[0]:
                break
    return best


def breaker_against(case: TaskCase) -> BreakerView | None:
    """Return the breaker that lets no call of the task through; None if there is none."""
    breaker = case.context.breakers.get(case.spec.downstream or "")
    return None if breaker is None or breaker.state in PASSING else breaker


def _is_breaker(state: str) -> Callable[[TaskCase], bool]:
    """Return whether the breaker against a task is in ``state``, as a function of the task's case."""
    return lambda case: (breaker := breaker_against(case)) is not None and breaker.state == state


def _is_refused(case: TaskCase) -> bool:
    breaker = breaker_against(case)
    return breaker is not None and breaker.state == "OPEN" and breaker.reopens_at is None


def reserve_at(case: TaskCase) -> int | None:
    """Return when an exhausted budget lets the next retry start; None: at once."""
    breaker = case.context.breakers.get(case.spec.downstream or "")
    instant = breaker.reserve_at if breaker is not None and is_retry(case.row) else None
    return instant if instant is not None and instant > case.now else None


def release_against(case: TaskCase) -> BreakerView | None:
    """Return the breaker that starts its tasks at a rate; None if there is none."""
    breaker = case.context.breakers.get(case.spec.downstream or "")
    return breaker if breaker is not None and is_releasing(breaker.state, breaker.release_at, case.now) else None


def pool_use(case: TaskCase) -> tuple[int, int, list[TaskRow]] | None:
    """Return the slots of the pool, those in use, and their holders; None while the task has room."""
    pool = case.spec.pool
    slots = pool_sizes(case.projection).get(pool) if pool is not None else None
    if slots is None:
        return None
    holders = sorted((row for row in running_rows(case) if spec_of(row).pool == pool), key=by_start)
    used = sum(spec_of(row).pool_slots for row in holders)
    return None if used + case.spec.pool_slots <= slots else (slots, used, holders)


def pool_waits(projection: RunProjection) -> dict[str, str]:
    """Return the pools of the machine that tasks wait for, and who holds each."""
    try:
        waits = json.loads(projection.run.pool_waits or "{}").items()
    except (ValueError, AttributeError):
        return {}
    return {str(pool): str(holders) for pool, holders in waits}


def _has_no_slot(case: TaskCase) -> bool:
    most = case.projection.run.max_parallel
    return len(list(islice(running_rows(case), most))) >= most


def pool_sizes(projection: RunProjection) -> dict[str, int]:
    """Return the slots of each pool that the flow declares."""
    try:
        pools = json.loads(projection.run.options).get("pools", {})
    except (ValueError, AttributeError):
        return {}
    return {str(name): int(slots) for name, slots in pools.items() if isinstance(slots, int)}


def running_rows(case: TaskCase) -> Iterator[TaskRow]:
    """Yield the running tasks."""
    tasks, active = case.projection.tasks, case.context.active
    rows = tasks.values() if active is None else map(tasks.__getitem__, active)
    return (row for row in rows if row.state is TaskState.RUNNING)


def by_start(row: TaskRow) -> tuple[int, int]:
    """Return the sort key that puts the task which has run longest first."""
    return row.started_at or 0, row.position


#: States in which a task waits for one thing only.
_STATE_REASONS = {TaskState.RUNNING: WaitReason.ATTEMPT, TaskState.DEAD_LETTER: WaitReason.DECISION}

_INSTANT_REASONS = {
    TaskState.PENDING: WaitReason.NOT_BEFORE,
    TaskState.RETRYING: WaitReason.RETRY,
    TaskState.SENSING: WaitReason.SENSOR,
}

#: Why a task that could start does not, in the order in which the executor asks.
_CAPACITY_REASONS: tuple[tuple[WaitReason, Callable[[TaskCase], bool]], ...] = (
    (WaitReason.PAUSE, lambda case: case.projection.run.paused_since is not None),
    (WaitReason.PROBE, _is_breaker("HALF_OPEN")),
    (WaitReason.FORCED_OPEN, _is_breaker("FORCED_OPEN")),
    (WaitReason.CREDENTIAL, _is_refused),
    (WaitReason.OUTAGE, lambda case: breaker_against(case) is not None),
    (WaitReason.RETRY_BUDGET, lambda case: reserve_at(case) is not None),
    (WaitReason.RELEASE, lambda case: release_against(case) is not None),
    (WaitReason.POOL, lambda case: pool_use(case) is not None),
    (WaitReason.SLOT, _has_no_slot),
    (WaitReason.MACHINE_POOL, lambda case: case.spec.pool in pool_waits(case.projection)),
)
