"""The wait of a task: its reason, who ends it, and whether anybody does.

``wait_of`` returns the reason of one task: a ``WaitReason``. ``run_outcome.py`` decides by the waits of all tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from heapq import nsmallest
from typing import NamedTuple

import msgspec

from ..domain import states
from ..domain.rows import NO_EXECUTOR, ExecutorState, RunFacts, RunRow
from ..domain.states import TaskState
from ..domain.text import format_clock, format_duration
from ..domain.trigger_rules import Verdict, satisfied_rules, verdict
from .breaker import HOLDING, Breaker, BreakerStatus
from .outcome import NOT_STARTED
from .projection import RunProjection, TaskRow
from .ready_queue import is_approval, is_retry, spec_of, worker_pool
from .spec import TaskSpec, json_object, rule_of_edge

# --- What a run can wait for, and who ends each wait -----------------------------------------------------------------
#
# ``waiting.py`` finds the reason of each task, ``run_outcome.py`` makes a run BLOCKED when all that is left
# waits for a human, ``console/model/inbox.py`` lists what only a human can end. All three read ``HUMAN_WAITS``; every
# other wait ends by itself, as its comment says.


class WaitReason(StrEnum):
    """The reasons why a task that is not finished does not run, or runs."""

    PARENTS = "parents"  # the tasks above, which have waits of their own
    NOT_BEFORE = "not before"  # its instant
    RETRY = "retry"  # the backoff, which is bounded by cap and max_elapsed
    SENSOR = "sensor"  # the next check; max_elapsed bounds the checks
    ATTEMPT = "attempt"  # the end of the attempt, or its timeout
    DISPATCH = "dispatch"  # the next step of the executor
    SLOT = "slot"  # the end of a running attempt
    POOL = "pool"  # the end of an attempt that holds slots; a flow with too few is refused
    MACHINE_POOL = "machine pool"  # the end of an attempt of another flow that holds slots
    WORKER = "worker"  # a worker of the Dask cluster that asks for it
    RETRY_BUDGET = "retry budget"  # a success, or bucket_per_second
    RELEASE = "release"  # its turn: a rate that doubles each second
    OUTAGE = "outage"  # the probes after open_seconds
    PROBE = "probe"  # the answer to the probes
    CREDENTIAL = "credential"
    FORCED_OPEN = "forced open"
    PAUSE = "pause"
    APPROVAL = "approval"
    DECISION = "decision"
    CANARY = "canary"  # the canary, which has a wait of its own
    DEADLINE = "deadline"
    NOTHING = "nothing"


class HumanWait(NamedTuple):
    """A wait that only a human ends.

    ``how``: the command that ends it; ``inbox``: the title of its entry in the inbox; ``page``: the title of its page.
    """

    how: str
    inbox: str
    page: str


_SHUT = "held by a breaker that only an operator can close"
_FAULT = "waits for nothing: a fault of redrive"

HUMAN_WAITS: Mapping[WaitReason, HumanWait] = {
    WaitReason.CREDENTIAL: HumanWait("probe it: systems breakers --probe", _SHUT, "is held open"),
    WaitReason.FORCED_OPEN: HumanWait("close it: systems breakers --close", _SHUT, "is held open"),
    WaitReason.PAUSE: HumanWait("unpause the run", "held by a pause", "paused"),
    WaitReason.APPROVAL: HumanWait("approve or reject", "waits for an approval", "approval"),
    WaitReason.DECISION: HumanWait("requeue or skip; dead_letter_ttl", "DEAD_LETTER", "the cause"),
    WaitReason.DEADLINE: HumanWait("postpone, or requeue", "ended by the deadline", "deadline missed"),
    WaitReason.NOTHING: HumanWait("requeue or skip the tasks above it", _FAULT, _FAULT),
}


def needs_human(reason: WaitReason | None) -> bool:
    """Whether only a human can end a wait."""
    return reason in HUMAN_WAITS


# --- What happens next -----------------------------------------------------------------------------------------------
#
# What happens next to a task or a run, who does it, and when: the rule behind every text about the future.
#
# A countdown, an ETA or "starts next" is a promise, and only a living executor can fulfil it. ``TaskCase.is_promised``
# decides; headers, rows, sentences, bars and answers promise nothing else.


class RunnerKind(StrEnum):
    """The state of the process that should run the tasks of a run."""

    ALIVE = "alive"
    SILENT = "silent"  # it lives, and gives no sign of life
    BUSY = "busy"  # the executor of the state file runs another run
    COPY = "copy"  # the file is a copy of one where the run goes on, or has ended
    SERVED = "served"  # no executor, but ``redrive serve`` starts one as soon as a task can run
    UNSEEN = "unseen"  # nobody knows here whether the executor lives
    LEFT = "left"  # the executor ended in order: it cut nothing off
    DEAD = "dead"  # the process of the executor ended without cleaning up
    GONE = "gone"  # the latest executor has ended, and it had nothing to do with this run, as far as anybody knows
    NONE = "none"  # there was no executor, as far as anybody knows


_LIVING = frozenset([RunnerKind.ALIVE, RunnerKind.SILENT])
_ENDED = frozenset([RunnerKind.LEFT, RunnerKind.DEAD, RunnerKind.GONE, RunnerKind.NONE])


class RunnerStatus(msgspec.Struct, frozen=True):
    """The process that runs the tasks of a run, or should.

    Attributes:
        executor: the latest one of the state file, without its age.
        service_pid: of the ``redrive serve`` that starts an executor for the run.
        remedy: how to start an executor, as the end of a sentence.
        answers: how an approval is answered, by keys; empty: by commands of the shell.
        unsaved: when the attempts of RUNNING tasks ended, microseconds UTC, while the state file cannot be written.
    """

    kind: RunnerKind = RunnerKind.ALIVE
    executor: ExecutorState = NO_EXECUTOR
    service_pid: int | None = None
    remedy: str = "resume starts an executor"
    answers: str = ""
    unsaved: Mapping[str, int] = {}

    @property
    def is_alive(self) -> bool:
        """Whether an executor lives and runs this run: only then may a text promise anything."""
        return self.kind in _LIVING

    @property
    def has_ended(self) -> bool:
        """Whether no executor lives, for certain, so that another one can be started."""
        return self.kind in _ENDED

    @property
    def gone_at(self) -> int | None:
        """The end of the latest executor, microseconds UTC; None while it lives, or if there was none."""
        return self.executor.gone_at

    def keeps_end_of(self, row: TaskRow) -> bool:
        """Whether the attempt of a RUNNING task has ended, and its end waits in the memory of the executor."""
        return row.name in self.unsaved and row.state is TaskState.RUNNING

    @property
    def absence(self) -> str:
        """The reason why nothing happens by itself, and what changes that; empty while an executor runs the run."""
        match self.kind:
            case RunnerKind.ALIVE | RunnerKind.SILENT:
                return ""
            case RunnerKind.BUSY:
                return f"no executor runs it: executor {self.executor.pid} runs another run"
            case RunnerKind.COPY:
                return f"no executor runs it: the file is {self.executor.copy_sentence}"
            case _ if self.service_pid is not None:
                return f"redrive serve (pid {self.service_pid}) starts an executor for it"
            case RunnerKind.UNSEEN:
                return f"no sign of its executor; if it is gone: {self.remedy}"
            case _:
                return f"no executor runs it: {self.remedy}"


ALIVE = RunnerStatus()


# --- What a task waits for -------------------------------------------------------------------------------------------


class ExplainContext(msgspec.Struct, frozen=True):
    """Facts outside the projection of a run. A field that is left out does not appear in the sentences."""

    breakers: Mapping[str, BreakerStatus] = {}  # by downstream
    runner: RunnerStatus = ALIVE
    page_notes: Mapping[str, str] = {}  # by cause: "page acked by ana"
    active: Collection[str] | None = None  # tasks among which are all that run; None: look at every task
    undecided: Collection[str] | None = None  # tasks among which are all that hold others; None: look at every task
    holders: dict[str, tuple[str, ...]] | None = None  # what ``TaskCase.holders`` has found in this projection


NO_CONTEXT = ExplainContext()

HOLDERS_MAX = 4  # one more than is named


class TaskCase(msgspec.Struct, frozen=True, dict=True):
    """A task at an instant, with everything that explains its state. ``TaskView`` adds words to it."""

    projection: RunProjection
    row: TaskRow
    now: int
    context: ExplainContext

    @property
    def spec(self) -> TaskSpec:
        return spec_of(self.row)

    @cached_property
    def pool_waits(self) -> PoolWaits:
        return pool_waits(self.projection.run.pool_waits)

    def for_task(self, name: str) -> TaskCase:
        return TaskCase(self.projection, self.projection.tasks[name], self.now, self.context)

    def since(self, at: int | None) -> str:
        return format_duration(self.now - at) if at is not None else "an unknown time"

    @cached_property
    def reason(self) -> WaitReason | None:
        """The wait of the task; None if it has ended and waits for nothing."""
        row = self.row
        if row.canary is not None and row.state in states.NEEDS_HUMAN:
            return WaitReason.CANARY
        if row.is_ended_by_deadline:
            return WaitReason.DEADLINE
        if row.state not in states.WITH_INSTANT | {TaskState.READY}:
            return _STATE_REASONS.get(row.state)
        if _waits_for_nothing(self):
            return WaitReason.NOTHING
        if row.state is TaskState.PENDING and _has_unmet_parent(self):
            return WaitReason.PARENTS
        if row.state in states.WITH_INSTANT and row.next_retry_at is not None and row.next_retry_at > self.now:
            return _longer_wait(self) or _INSTANT_REASONS[row.state]
        found = next((reason for reason, holds in _CAPACITY_REASONS if holds(self)), WaitReason.DISPATCH)
        is_retry_due = found is WaitReason.DISPATCH and row.state in states.TIMED
        return _INSTANT_REASONS[row.state] if is_retry_due else found

    @property
    def is_promised(self) -> bool:
        """Whether a text may speak of the next step of the task as of something that will happen."""
        return self.reason is not None and not needs_human(self.reason) and self.context.runner.is_alive

    def blocker(self) -> str | None:
        """Return the task that blocks this one; None if no other task does."""
        if self.row.state is TaskState.UPSTREAM_FAILED:
            cause = self.row.blocked_by
            return cause if cause in self.projection.tasks else None
        return self.root_blocker() if self.row.state is TaskState.PENDING else None

    def holders(self) -> tuple[str, ...]:
        """Return the tasks above that hold this one until a human decides: the first ``HOLDERS_MAX`` of the flow."""
        undecided = self.context.undecided
        if self.row.state is not TaskState.PENDING or (undecided is not None and not undecided):
            return ()
        found = self.context.holders if self.context.holders is not None else {}
        for name in _pending_upwards(self.projection, self.row.name, found):
            above = [self.projection.tasks[parent] for parent in unmet_parents(self.projection, name)]
            holding = [(row.name,) if is_undecided(row) else found.get(row.name, ()) for row in above]
            names = {holder for holders in holding for holder in holders}
            found[name] = tuple(nsmallest(HOLDERS_MAX, names, key=lambda one: self.projection.tasks[one].position))
        return found[self.row.name]

    def root_blocker(self) -> str | None:
        """Return the first task that holds this one until a human decides; else the ancestor that blocks most, by
        ``_BLOCKER_PRIORITY``, and among equals the nearest."""
        if holders := self.holders():
            return holders[0]
        tasks = self.projection.tasks
        best: str | None = None
        queue = deque(unmet_parents(self.projection, self.row.name))
        seen = set(queue)
        while queue:
            name = queue.popleft()
            state = tasks[name].state
            above = unmet_parents(self.projection, name) if state is TaskState.PENDING else ()
            if above:
                queue.extend(parent for parent in above if parent not in seen)
                seen.update(above)
            elif best is None or _RANK[state] < _RANK[tasks[best].state]:
                best = name
        return best

    def breaker_status(self) -> BreakerStatus | None:
        """Return the breaker of the task's downstream with its budget; None if it has no downstream."""
        return self.context.breakers.get(self.spec.downstream or "")

    def breaker_against(self) -> Breaker | None:
        """Return the breaker that lets no call of the task through; None if there is none."""
        status = self.breaker_status()
        return status.breaker if status is not None and status.state in HOLDING else None

    def reserve_at(self) -> int | None:
        """Return when an exhausted budget lets the next retry start; None: at once."""
        status = self.breaker_status()
        instant = status.reserve_at if status is not None and is_retry(self.row) else None
        return instant if instant is not None and instant > self.now else None

    def release_against(self) -> Breaker | None:
        """Return the breaker that starts its tasks at a rate; None if there is none."""
        status = self.breaker_status()
        return status.breaker if status is not None and status.breaker.is_releasing(self.now) else None

    def pool_use(self) -> tuple[int, int, list[TaskRow]] | None:
        """Return the slots of the pool, those in use, and their holders; None while the task has room."""
        pool = self.spec.pool
        slots = (json_object(self.projection.run.options).get("pools") or {}).get(pool)
        if slots is None:
            return None
        holders = sorted((row for row in self.running_rows() if spec_of(row).pool == pool), key=by_start)
        used = sum(spec_of(row).pool_slots for row in holders)
        return None if used + self.spec.pool_slots <= slots else (slots, used, holders)

    @property
    def is_unsaved(self) -> bool:
        """Whether the attempt has ended, and its end waits in the memory of the executor."""
        return self.context.runner.keeps_end_of(self.row)

    def has_no_slot(self) -> bool:
        """Return whether as many attempts run as may."""
        most = self.projection.run.max_parallel
        return most <= 0 or any(number == most for number, _ in enumerate(self.running_rows(), 1))

    def running_rows(self) -> Iterator[TaskRow]:
        tasks, active = self.projection.tasks, self.context.active
        rows = tasks.values() if active is None else map(tasks.__getitem__, active)
        return (row for row in rows if row.state is TaskState.RUNNING)


def wait_of(
    projection: RunProjection, name: str, now_us: int, context: ExplainContext = NO_CONTEXT
) -> WaitReason | None:
    """Return what a task waits for; None if it has ended and waits for nothing. Raises KeyError for an unknown task."""
    return TaskCase(projection, projection.tasks[name], now_us, context).reason


def describe_holders(names: Sequence[str]) -> str:
    """``held by a and b``, from what ``TaskCase.holders`` returns; empty if nothing holds the task."""
    if not names:
        return ""
    if len(names) == HOLDERS_MAX:
        return f"held by {', '.join(map(quoted, names[: HOLDERS_MAX - 2]))} and more"
    return f"held by {join_names(names)}"


def join_names(names: Sequence[str]) -> str:
    """``a, b and c``; there is at least one name."""
    *others, last = map(quoted, names)
    return f"{', '.join(others)} and {last}" if others else last


def quoted(name: str) -> str:
    """Quote the name of a task if it is empty or contains white space."""
    return f"'{name}'" if not name or any(character.isspace() for character in name) else name


def is_undecided(row: TaskRow) -> bool:
    """Whether a task holds those below it until a human decides."""
    return row.state is TaskState.DEAD_LETTER or waits_for_approval(row)


def _pending_upwards(projection: RunProjection, name: str, known: Collection[str]) -> Iterator[str]:
    """Yield a PENDING task and those above it that keep it waiting, parents first, without the ``known`` ones."""
    path = [name]
    seen: set[str] = set()
    while path:
        here = path[-1]
        if here in known or here in seen:
            if path.pop() not in known:
                yield here
            continue
        seen.add(here)
        above = unmet_parents(projection, here)
        path += [
            parent
            for parent in above
            if parent not in seen and parent not in known and projection.tasks[parent].state is TaskState.PENDING
        ]


def _longer_wait(case: TaskCase) -> WaitReason | None:
    """Return what keeps a task beyond its instant: a hold that only a human ends, or a breaker that opens later."""
    hold = next((reason for reason, holds in _HOLDS if holds(case)), None)
    breaker = case.breaker_against() if hold is None else None
    if breaker is None or breaker.reopens_at is None or breaker.state != "OPEN":
        return hold
    return WaitReason.OUTAGE if breaker.reopens_at >= (case.row.next_retry_at or 0) else None


def _waits_for_nothing(case: TaskCase) -> bool:
    """Whether a task waits although a parent stops it, or all have ended: no rule leaves it waiting then.

    Of a PENDING task, the parents are read only once the run has come to rest: a map task has thousands.
    """
    projection = case.projection
    if case.row.state is TaskState.PENDING and projection.run.blocked_since is None and projection.run.ended_at is None:
        return False
    unmet = _unmet_rows(projection, case.row.name)
    stops = any(verdict(rule_of_edge(case.spec, row.name), row.state, row.skip_cause) is Verdict.STOP for row in unmet)
    return stops or (bool(unmet) and not any(row.state in states.OPEN for row in unmet))


def unmet_parents(projection: RunProjection, name: str) -> tuple[str, ...]:
    """Return the parents for which a task waits, in the order of the flow: those that have not ended.

    Without one of them, those that do not let it start.
    """
    unmet = _unmet_rows(projection, name)
    return tuple([row.name for row in unmet if row.state in states.OPEN] or [row.name for row in unmet])


def _unmet_rows(projection: RunProjection, name: str) -> list[TaskRow]:
    spec = spec_of(projection.tasks[name])
    rows = [projection.tasks[parent] for parent in projection.parents.get(name, ())]
    return [row for row in rows if _is_unmet(row, spec, projection.run.is_over)]


def _has_unmet_parent(case: TaskCase) -> bool:
    """Whether a parent keeps a task waiting. The last parents come first: children of a map task end in their order."""
    spec, tasks, is_over = case.spec, case.projection.tasks, case.projection.run.is_over
    parents = reversed(case.projection.parents.get(case.row.name, ()))
    return any(_is_unmet(tasks[parent], spec, is_over) for parent in parents)


def _is_unmet(parent: TaskRow, child: TaskSpec, is_over: bool) -> bool:
    """Whether a parent does not let a child start. A PENDING one does not, which is fast: most of a large run."""
    if parent.state is TaskState.PENDING:
        return True
    return rule_of_edge(child, parent.name) not in satisfied_rules(parent.state, parent.skip_cause, is_over)


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


def _is_breaker(state: str) -> Callable[[TaskCase], bool]:
    """Return whether the breaker against a task is in ``state``, as a function of the task's case."""
    return lambda case: (breaker := case.breaker_against()) is not None and breaker.state == state


def _is_refused(case: TaskCase) -> bool:
    """Whether the breaker against a task waits for an operator, who has not opened it."""
    breaker = case.breaker_against()
    return breaker is not None and breaker.needs_operator


class PoolWaits(NamedTuple):
    """What tasks wait for beside the slots of their run, as JSON in ``run.pool_waits``.

    ``pools``: of the machine, and who holds each. ``workers``: by ``worker_pool``, why no Dask worker takes a task.
    """

    pools: Mapping[str, str] = {}
    workers: Mapping[str, str] = {}


def pool_waits(text: str | None) -> PoolWaits:
    """Read ``run.pool_waits``; a damaged one says nothing."""
    found = json_object(text)
    pools, workers = (found.get(name) for name in PoolWaits._fields)
    return PoolWaits(pools if isinstance(pools, dict) else {}, workers if isinstance(workers, dict) else {})


def by_start(row: TaskRow) -> tuple[int, int]:
    """Return the sort key that puts the task which has run longest first."""
    return row.started_at or 0, row.position


#: What holds the calls of a downstream.
BREAKER_WAITS = frozenset(
    [
        WaitReason.PROBE,
        WaitReason.FORCED_OPEN,
        WaitReason.CREDENTIAL,
        WaitReason.OUTAGE,
        WaitReason.RETRY_BUDGET,
        WaitReason.RELEASE,
    ]
)

#: States in which a task waits for one thing only.
_STATE_REASONS = {TaskState.RUNNING: WaitReason.ATTEMPT, TaskState.DEAD_LETTER: WaitReason.DECISION}

_INSTANT_REASONS = {
    TaskState.PENDING: WaitReason.NOT_BEFORE,
    TaskState.RETRYING: WaitReason.RETRY,
    TaskState.SENSING: WaitReason.SENSOR,
}

#: Why a task that could start does not, in the order in which the executor asks.
_CAPACITY_REASONS: tuple[tuple[WaitReason, Callable[[TaskCase], bool]], ...] = (
    (WaitReason.APPROVAL, lambda case: waits_for_approval(case.row)),
    (WaitReason.PAUSE, lambda case: case.projection.run.paused_since is not None),
    (WaitReason.PROBE, _is_breaker("HALF_OPEN")),
    (WaitReason.FORCED_OPEN, _is_breaker("FORCED_OPEN")),
    (WaitReason.CREDENTIAL, _is_refused),
    (WaitReason.OUTAGE, lambda case: case.breaker_against() is not None),
    (WaitReason.RETRY_BUDGET, lambda case: case.reserve_at() is not None),
    (WaitReason.RELEASE, lambda case: case.release_against() is not None),
    (WaitReason.POOL, lambda case: case.pool_use() is not None),
    (WaitReason.SLOT, TaskCase.has_no_slot),
    (WaitReason.MACHINE_POOL, lambda case: case.spec.pool in case.pool_waits.pools),
    (WaitReason.WORKER, lambda case: worker_pool(case.spec) in case.pool_waits.workers),
)


def waits_for_approval(row: TaskRow) -> bool:
    """Return whether an operator is to answer the task now."""
    return row.state is TaskState.READY and is_approval(row)


#: Those of them that a human ends. They hold a task also before its instant, so that no countdown is wrong.
_HOLDS = tuple((reason, holds) for reason, holds in _CAPACITY_REASONS if needs_human(reason))


def pause_author(run: RunRow | RunFacts) -> str:
    """``by ana@ops: "partner migrates"``: who has paused a run, and why if that was said."""
    return f"by {run.paused_by or 'an operator'}"


# --- Waits that are told once: they end by themselves, and much later than anybody expects ---------------------------


#: Until an instant that somebody else has set (``Retry-After``).
LONG_WAIT_SECONDS = 3600.0
#: For a process that the machine does not start.
UNSTARTED_SECONDS = 600.0
#: Of a sensor without a bound, which may check for ever.
UNBOUNDED_SENSOR_SECONDS = 6 * 3600.0


class LongWait(NamedTuple):
    """A wait that somebody should know of. ``cause``: the same for all tasks that wait for one thing."""

    task: str
    cause: str
    why: str


def long_wait(run: RunRow, row: TaskRow, now: int) -> LongWait | None:
    """Return the wait of a task that is longer than anybody has planned; None: it is not. ``now``: microseconds UTC."""
    if row.state not in states.TIMED or row.first_started_at is None:
        return None
    spec, lasts_us = spec_of(row), now - row.first_started_at
    if row.state is TaskState.SENSING:
        is_bounded = spec.retry.max_elapsed is not None or run.deadline_at is not None
        if is_bounded or lasts_us < UNBOUNDED_SENSOR_SECONDS * 1e6:
            return None
        waited = f"{row.name} has waited for {format_duration(lasts_us)} in {row.deferrals} checks"
        return LongWait(row.name, f"wait:{row.name}", f"{waited}, without a bound: set max_elapsed")
    if (row.failure_fingerprint or "").startswith(f"{NOT_STARTED}:"):
        why = f"no process has started for {format_duration(lasts_us)}: {row.error or 'refused'}"
        return None if lasts_us < UNSTARTED_SECONDS * 1e6 else LongWait(row.name, "unstarted", why)
    left = ((row.next_retry_at or 0) - now) / 1e6
    if left <= max(LONG_WAIT_SECONDS, 1.5 * spec.retry.cap):
        return None
    asks, cause = "what it calls", f"wait:{row.name}"
    if spec.downstream is not None:
        asks, cause = spec.downstream, f"asked:{spec.downstream}"
    why = f"{asks} asks {row.name} to wait until {format_clock(row.next_retry_at or 0)}: {row.error or 'no reason'}"
    return LongWait(row.name, cause, why)
