"""What a run would have been under another policy: its record, replayed by the engine's own rules (SPEC part 4, 8).

``decide`` judges every end, ``Ledger`` says who starts, and breakers, retry budgets and pools hold back whom they would
have held: all as in the night itself. The dice are an argument, and how a try ends is the record's to say
(``recorded_run.py``). Not replayed are operators, executors that died, other runs, and what was known from runs before; a
replay with the policies as they were shows beside the run itself how much that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heappop, heappush
from typing import Any

from ..core.dag import Dag
from ..core.decide import DeadLetter, Decision, Fail, History, Retry, Sense, Skip, Succeed, counter_of, decide
from ..core.declared_flow import declared_flow
from ..core.dispatch_rules import END_WHEN_OPEN, LongOutages, Room
from ..core.downstreams import Downstreams
from ..core.explain import BreakerView
from ..core.outcome import Failure, FailureClass, Outcome
from ..core.paging import cause_of, deadline_cause
from ..core.projection import RunFold, TaskRow
from ..core.ready_queue import Ledger, spec_of
from ..core.spec import DownstreamSpec, FlowSpec, TaskSpec, with_overrides
from ..domain.states import NOT_STARTED, WITH_INSTANT, DeadLetterKind, RunState, SkipCause, TaskState
from ..domain.trigger_rules import Fate, Graph, Task, propagate
from .counters import Counts
from .policy_change import Change
from .recorded_run import Reading, Record, Try, outcome_of, tried

PROBES_MAX = 1_000  # beyond what all budgets grant: a system that never comes back is asked for ever

Uniform = Callable[[float, float], float]
Move = Callable[[TaskRow, TaskState], None]

_NOT_RUN = NOT_STARTED | {TaskState.CANCELLED}
_SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to. ``pages``: causes that a human was told of; ``not_run``: tasks that never started.

    ``seconds``: from its start to the end of its last try. ``unrecorded``: tries of which the record says nothing.
    ``is_over``: False where it would go on for ever, and was left.
    """

    calls: int
    failed: int
    dead_letters: int
    not_run: int
    pages: int
    seconds: float
    unrecorded: int = 0
    is_over: bool = True


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a replay leaves the run: how it was ``at`` that instant (microseconds UTC), and what it had come to."""

    start: RunFold
    at: int
    counts: Counts = field(default_factory=Counts)
    breakers: Mapping[str, BreakerView] = field(default_factory=dict)


def beginning_of(fold: RunFold) -> Fork:
    """The run before its first task started."""
    tasks = {
        name: TaskRow(name, max_attempts=row.max_attempts, position=row.position, spec=row.spec)
        for name, row in fold.tasks.items()
    }
    run = replace(fold.run, state=RunState.RUNNING, ended_at=None, blocked_since=None, paused_since=None)
    return Fork(RunFold(run, tasks, fold.parents, fold.children), fold.run.started_at)


def as_it_was(fold: RunFold, counts: Counts) -> Figures:
    """The figures of the run itself. ``counts``: of all its events."""
    ends = [attempt.ended_at or 0 for row in fold.tasks.values() for attempt in row.attempts.values()]
    return Figures(
        calls=counts.calls,
        failed=counts.failed,
        dead_letters=counts.dead_letters,
        not_run=_count_not_run(fold),
        pages=counts.pages,
        seconds=_seconds_of_run(fold, max(ends, default=0)),
    )


class Stage:
    """What all replays of one run from one fork have in common.

    ``fold``: the run as it ended. ``path_seconds``: the longest way from each task to the end, as it was known from
    runs before when the deadline was looked at.
    """

    def __init__(self, fold: RunFold, fork: Fork, path_seconds: Mapping[str, float] | None = None) -> None:
        self.end = fold
        self.fork = fork
        self.path_seconds = path_seconds or {}
        self.record = Record(fold, {name: row.generation for name, row in fork.start.tasks.items()})
        dag = Dag((name, fold.parents.get(name, ())) for name in fold.tasks)
        self.remaining = dag.remaining_path({name: self.record.seconds(name) for name in fold.tasks})


def replay(stage: Stage, change: Change, reading: Reading, uniform: Uniform | None = None) -> Figures:
    """Let the run go on from the fork, by its record and with ``change``.

    Waits are as long as they were where the record has one and ``change`` leaves them alone; else ``uniform`` draws
    them, or they are as long as on average (None).
    """
    return _Replay(stage, change, reading, uniform or _middle).run()


def _middle(low: float, high: float) -> float:
    return (low + high) / 2


def _count_not_run(fold: RunFold) -> int:
    return sum(1 for row in fold.tasks.values() if row.state in _NOT_RUN)


def _seconds_of_run(fold: RunFold, ended_at: int) -> float:
    return max(0, ended_at - fold.run.started_at) / _SECOND


@dataclass(slots=True)
class _Past:
    """What ``decide`` asks of a task's generation, and cannot be read from its row."""

    tries: int = 0
    previous_delay: float | None = None
    fingerprints: list[str] = field(default_factory=list)
    classes: list[FailureClass] = field(default_factory=list)


def _past_of(row: TaskRow) -> _Past:
    past = _Past()
    for attempt in tried(row, row.generation):
        past.tries += 1
        past.previous_delay = None if attempt.delay_us is None else attempt.delay_us / _SECOND
        if (failure := outcome_of(attempt).failure) is not None:
            past.fingerprints.append(failure.fingerprint.strict)
            past.classes.append(failure.failure_class)
    return past


#: At an instant, in order: a try of a task ends, or without one the task comes due; no name: a system is to be asked.
_Happening = tuple[int, int, str, Try | None]


class _Replay:
    def __init__(self, stage: Stage, change: Change, reading: Reading, uniform: Uniform) -> None:
        fork, start = stage.fork, stage.fork.start
        self._end = stage.end
        self._change = change
        self._reading = reading
        self._uniform = uniform
        self._path_seconds = stage.path_seconds
        self._now = self._ended_at = fork.at
        self._fold = replace(start, tasks={name: replace(row) for name, row in start.tasks.items()})
        self._record = stage.record
        self._pasts = {name: _past_of(row) for name, row in self._fold.tasks.items()}
        self._ledger = Ledger(self._fold, stage.remaining)
        self._flow = _changed_flow(self._fold, change)
        self._systems = Downstreams(self._flow, lambda: self._now, lambda _: None)
        self._systems.load(_rows_of(fork))
        self._room = Room(self._ledger, self._systems, self._flow.pools, self._ask_again_at)
        self._outages = LongOutages(self._ledger, self._systems)
        self._graph = _Graph(self._fold, self._move)
        self._policy_of = cache(change.of_policy)
        self._count = _Count(fork.counts)
        self._to_ask: set[int] = set()  # instants at which a system is to be asked again
        self._happenings: list[_Happening] = []
        self._pushed = 0
        granted = sum(self._policy_of(self._spec(row).retry).max_attempts for row in self._fold.tasks.values())
        self._calls_max = self._count.calls + granted + self._record.count + PROBES_MAX

    def run(self) -> Figures:
        """To the end, or to where nothing moves without a human."""
        for row in self._fold.tasks.values():
            self._take_up(row)
        self._look_at_systems()
        self._dispatch()
        while self._happenings and self._count.calls <= self._calls_max:
            self._now, _, name, ended = heappop(self._happenings)
            if ended is not None:
                self._ended_at = self._now
                self._settle(self._fold.tasks[name], ended)
            elif name:
                self._ledger.come_due(name)
            else:
                self._to_ask.discard(self._now)
            self._look_at_systems()
            self._dispatch()
        return self._figures()

    def _figures(self) -> Figures:
        count, deadline = self._count, self._fold.run.deadline_at
        if deadline is not None and self._ended_at > deadline:
            count.page(deadline_cause(self._fold.run.run_id))
        return Figures(
            calls=count.calls,
            failed=count.failed,
            dead_letters=count.dead_letters,
            not_run=_count_not_run(self._fold),
            pages=count.pages,
            seconds=_seconds_of_run(self._fold, self._ended_at),
            unrecorded=count.unrecorded,
            is_over=not self._happenings,
        )

    def _take_up(self, row: TaskRow) -> None:
        """What was under way when the replay begins ends, or comes due, as it did."""
        if row.state is TaskState.RUNNING:
            ended = self._answer(row.name, Reading.BY_NUMBER)
            attempt = self._end.tasks[row.name].attempts.get(row.attempt)
            at = attempt.ended_at if attempt is not None else None
            self._push(self._now + round(ended.seconds * _SECOND) if at is None else at, row.name, ended)
        elif row.next_retry_at is not None and row.state in WITH_INSTANT:
            if row.state is TaskState.PENDING:
                self._ledger.not_before(row.name)
            self._push(row.next_retry_at, row.name, None)

    # --- Starting --------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        for name in list(self._ledger.promotable):
            self._move(self._fold.tasks[name], TaskState.READY)
        self._turn_away()
        room = self._fold.run.max_parallel - self._ledger.counts[TaskState.RUNNING]
        for name in self._ledger.pick(max(0, room), self._room.admits):
            self._begin(self._fold.tasks[name])

    def _turn_away(self) -> None:
        for name, on_open in list(self._room.turned_away()):
            row = self._fold.tasks[name]
            self._move(row, TaskState.READY)
            self._end_badly(row, DeadLetterKind.BREAKER, None, END_WHEN_OPEN[on_open] is TaskState.DEAD_LETTER)

    def _begin(self, row: TaskRow) -> None:
        self._count.calls += 1
        row.first_started_at = row.first_started_at or self._now
        self._move(row, TaskState.READY)
        self._move(row, TaskState.RUNNING)
        self._ledger.claimed([row.name])
        ended = self._answer(row.name, self._reading)
        self._push(self._now + round(ended.seconds * _SECOND), row.name, ended)

    def _answer(self, name: str, reading: Reading) -> Try:
        past = self._pasts[name]
        found = self._record.answer(name, past.tries, self._now, reading)
        past.tries += 1
        self._count.unrecorded += not found.is_recorded
        return found

    # --- Ending ----------------------------------------------------------------------------------------------------

    def _settle(self, row: TaskRow, ended: Try) -> None:
        is_probe = self._systems.is_probe(row.name)
        self._systems.record(row.name, ended.outcome, row.failures)
        decision = self._decide(row, ended.outcome, is_probe)
        failure = ended.outcome.failure
        self._remember(row, failure, decision)
        match decision:
            case Succeed():
                self._move(row, TaskState.SUCCESS)
            case Retry(delay=delay):
                self._wait(row, TaskState.RETRYING, delay)
            case Sense(delay=delay):
                self._wait(row, TaskState.SENSING, delay)
            case Skip():
                row.skip_cause = str(SkipCause.CONDITION)
                self._move(row, TaskState.SKIPPED)
                propagate(self._graph, row.name)
            case Fail():
                self._end_badly(row, None, failure)
            case DeadLetter(kind=kind):
                self._end_badly(row, kind, failure, is_dead_letter=True)

    def _decide(self, row: TaskRow, outcome: Outcome, is_probe: bool) -> Decision:
        past, spec = self._pasts[row.name], self._spec(row)
        history = History(
            failures=row.failures,
            deferrals=row.deferrals,
            refusals=row.refusals,
            previous_delay=past.previous_delay,
            fingerprints=tuple(past.fingerprints),
            classes=tuple(past.classes),
            first_started_at=row.first_started_at,
            timeout_seconds=spec.timeout,
            idempotent=spec.idempotent,
            is_probe=is_probe,
            recheck_seconds=spec.recheck_seconds,
            path_seconds=self._path_seconds.get(row.name, 0.0),
            deadline_at=self._fold.run.deadline_at,
        )
        return decide(history, outcome, self._policy_of(spec.retry), self._now, self._dice(row, outcome))

    def _spec(self, row: TaskRow) -> TaskSpec:
        return with_overrides(spec_of(row), row.overrides)

    def _dice(self, row: TaskRow, outcome: Outcome) -> Uniform:
        """They fall as they fell where the record says how, and where they are still the same dice."""
        recorded = self._record.delay_seconds(row.name, self._pasts[row.name].tries - 1)
        if recorded is None or outcome.failure is None or not self._change.keeps_waits:
            return self._uniform
        drawn = recorded - (outcome.failure.retry_after_seconds or 0.0)
        return lambda low, high: min(max(drawn, low), high)

    def _remember(self, row: TaskRow, failure: Failure | None, decision: Decision) -> None:
        if failure is not None:
            past = self._pasts[row.name]
            past.fingerprints.append(failure.fingerprint.strict)
            past.classes.append(failure.failure_class)
        if (counter := counter_of(decision)) is not None:
            setattr(row, counter, getattr(row, counter) + 1)

    def _wait(self, row: TaskRow, state: TaskState, delay: float) -> None:
        if state is TaskState.RETRYING:
            self._pasts[row.name].previous_delay = delay
        self._move(row, state)
        self._push(self._now + round(delay * _SECOND), row.name, None)

    def _end_badly(
        self, row: TaskRow, kind: DeadLetterKind | None, failure: Failure | None, is_dead_letter: bool = False
    ) -> None:
        downstream = spec_of(row).downstream
        breaker = None if downstream is None else self._systems.change_of(downstream).state
        self._count.page(cause_of(self._fold.run.run_id, kind, failure, downstream, breaker))
        if is_dead_letter:
            self._count.dead_letters += 1
            self._move(row, TaskState.DEAD_LETTER)
            return
        self._count.failed += 1
        self._move(row, TaskState.FAILED)
        propagate(self._graph, row.name)

    # --- Systems ---------------------------------------------------------------------------------------------------

    def _look_at_systems(self) -> None:
        """A breaker that has held tasks for long is a page of its own."""
        for outage in self._outages.update(self._now):
            self._count.page(cause_of(self._fold.run.run_id, DeadLetterKind.BREAKER, None, outage.downstream))
        for at in self._outages.due_at:
            if at > self._now:
                self._ask_again_at("", at)

    def _ask_again_at(self, downstream: str, at: int) -> None:
        at = max(at, self._now + 1)
        if at not in self._to_ask:
            self._to_ask.add(at)
            self._push(at, "", None)

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _move(self, row: TaskRow, new: TaskState) -> None:
        old, row.state = row.state, new
        if old is not new:
            self._ledger.moved(row, old)

    def _push(self, at: int, name: str, ended: Try | None) -> None:
        self._pushed += 1
        heappush(self._happenings, (max(at, self._now), self._pushed, name, ended))


class _Graph(Graph):
    """The run that is replayed, as the trigger rules walk over it; ``move`` puts a task into another state."""

    def __init__(self, fold: RunFold, move: Move) -> None:
        self._fold = fold
        self._move = move

    def task(self, name: str) -> Task:
        row = self._fold.tasks[name]
        return Task(name, row.state, row.generation, spec_of(row).rule, row.skip_cause, row.blocked_by)

    def parents(self, name: str) -> list[Task]:
        return [self.task(parent) for parent in self._fold.parents.get(name, ())]

    def children(self, name: str, states: Collection[str]) -> list[Task]:
        children = self._fold.children.get(name, ())
        return [self.task(child) for child in children if self._fold.tasks[child].state in states]

    def apply(self, task: Task, fate: Fate) -> None:
        row = self._fold.tasks[task.name]
        row.skip_cause, row.blocked_by = fate.skip_cause, fate.blocked_by
        self._move(row, fate.state)


class _Count:
    """What adds up; begun with what had been at the fork."""

    def __init__(self, before: Counts) -> None:
        self.calls, self.failed, self.dead_letters = before.calls, before.failed, before.dead_letters
        self.pages, self.unrecorded = before.pages, 0
        self._causes = set(before.causes)

    def page(self, cause: str) -> None:
        """One page for each cause, however often it comes."""
        self.pages += cause not in self._causes
        self._causes.add(cause)


def _changed_flow(fold: RunFold, change: Change) -> FlowSpec:
    """The flow with other breakers and budgets, also of the systems that only its tasks name."""
    flow = declared_flow(fold)
    named = {spec.downstream: DownstreamSpec(spec.downstream) for spec in flow.tasks if spec.downstream is not None}
    systems = {**named, **{spec.name: spec for spec in flow.downstreams}}
    return replace(flow, downstreams=tuple(change.of_system(spec) for spec in systems.values()))


def _rows_of(fork: Fork) -> Iterator[dict[str, Any]]:
    """Breakers as they were at the fork. What they had counted by then is not told of the past."""
    for name, view in fork.breakers.items():
        yield {
            "downstream": name,
            "state": view.state,
            "reopens_at": view.reopens_at,
            "window": "[]",
            "tokens": None,
            "detail": "{}",
            "changed_at": fork.at,
        }
