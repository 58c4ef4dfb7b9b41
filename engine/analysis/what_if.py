"""Replays a recorded run under another policy, with the engine's own rules (SPEC part 4, 8).

``decide`` judges every outcome, the ready queue orders the starts, and breakers, retry budgets and pools hold tasks
back, as in a real run. Random numbers are an argument, and ``RecordedRun`` predicts how each attempt ends. The
replay leaves out operators, crashes of the executor, other runs, and what was known from earlier runs. A replay under
the unchanged policies, compared with the run itself, shows how much that matters.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from enum import StrEnum
from functools import cache
from heapq import heappop, heappush
from operator import attrgetter
from statistics import median, median_low

import msgspec
from msgspec.structs import astuple, replace

from ..core.breaker import BreakerRecord, DownstreamHealth
from ..core.causes import page_cause
from ..core.dag import Dag
from ..core.decide import (
    NO_SIBLINGS,
    DeadLetter,
    Decision,
    Defer,
    Fail,
    Retry,
    Siblings,
    Skip,
    Succeed,
    TaskHistory,
    counter_of,
    decide,
    ending_deadline,
)
from ..core.downstreams import END_WHEN_OPEN, Capacity, DownstreamStates, LongOutages
from ..core.failures.tables import nature_of
from ..core.outcome import OUTAGE_CLASSES, Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from ..core.policy import RetryPolicy, bounds
from ..core.projection import AttemptRow, RunCounts, RunProjection, TaskRow
from ..core.ready_queue import ReadyQueue, declared_flow, spec_of
from ..core.spec import DownstreamSpec, FlowSpec, TaskSpec, rule_of_edge, with_overrides
from ..core.waiting import BreakerView
from ..domain.states import (
    FAILED_OUTCOMES,
    NOT_STARTED,
    WITH_INSTANT,
    DeadLetterKind,
    RunState,
    SkipCause,
    TaskState,
    deadline_cause,
)
from ..domain.trigger_rules import DerivedState, PropagationGraph, TaskNode, propagate
from .trials import NO_CHANGE, PolicyChange

# --- How an attempt ends that was never made -------------------------------------------------------------------------
#
# Predicts from a recorded run how an attempt ends that was never made: for a replay under another policy.
#
# A run records how each attempt ended, not why. A failure may belong to the attempt or to the time, which matters for
# the question "what if the task had run later, or once more?". So there are two attributions; the truth is between
# them:
#
# - by number: attempt n of a task ends as its attempt n did. Right for chance and for bugs, blind to outages.
# - by time: a failure that an outage explains belongs to its time. An attempt ends as the attempt nearest in time
#   against the same downstream did; without a downstream, the nearest of the same task. All other failures by number.
#
# An attempt beyond the recorded ones ends as the last one did, and is marked as unrecorded. Lost and cancelled
# attempts say nothing about a policy and are left out.


_COUNTED_OUTCOMES = FAILED_OUTCOMES | {"success", "deferred", "skipped"}
_SUCCESS = Outcome(OutcomeKind.SUCCESS)
_SAME_START_US = 1_000_000  # a replayed start this near to the recorded start of the same attempt is the same
_OVERHEAD_MAX_US = 10_000_000  # the most that starting a process and writing its end take
_FLOOR_SECONDS_MIN = 0.001  # a smaller excess over the policy's ceiling is rounding


class FailureAttribution(StrEnum):
    """Whether a failure belongs to the number of the attempt or to its time."""

    BY_NUMBER = "by number"
    BY_TIME = "by time"


class RecordedAttempt(msgspec.Struct, frozen=True):
    """One attempt, recorded or predicted. ``started_at`` in microseconds UTC.

    ``delay_seconds``: the backoff after it; None if there was none. ``is_recorded``: the prediction has a counterpart.
    """

    started_at: int
    seconds: float
    outcome: Outcome
    delay_seconds: float | None = None
    is_recorded: bool = True

    @property
    def shows_downstream_state(self) -> bool:
        """Whether the outcome shows if the downstream was up: a success, or a failure as in an outage."""
        failure = self.outcome.failure
        return self.outcome.kind is OutcomeKind.SUCCESS or (
            failure is not None and failure.failure_class in OUTAGE_CLASSES
        )

    @property
    def depends_on_time(self) -> bool:
        """Whether the outcome could differ at another time; a deferral of a sensor could."""
        return self.shows_downstream_state or self.outcome.kind is OutcomeKind.DEFERRED


class RecordedRun:
    """The attempts of a run. ``generations``: task -> the generation whose attempts count (default 0)."""

    def __init__(self, projection: RunProjection, generations: Mapping[str, int] | None = None) -> None:
        rows = projection.tasks.values()
        counted = generations or {}
        self._attempts = {row.name: [*_attempts_of(row, counted.get(row.name, 0))] for row in rows}
        self._downstreams = {row.name: spec_of(row).downstream for row in rows}
        self._downstream_attempts = _by_downstream(rows)
        self._median_success_seconds = _median_success_seconds(
            one for attempts in self._attempts.values() for one in attempts
        )

    @property
    def attempt_count(self) -> int:
        return sum(map(len, self._attempts.values()))

    def seconds(self, name: str) -> float:
        """Duration of a success of this task; without one, the median success of the run."""
        own = [one.seconds for one in self._attempts[name] if one.outcome.kind is OutcomeKind.SUCCESS]
        return own[-1] if own else self._median_success_seconds

    def delay_seconds(self, name: str, number: int) -> float | None:
        """Backoff after attempt ``number`` (0: the first) of a task; None if there was none."""
        attempts = self._attempts[name]
        return attempts[number].delay_seconds if number < len(attempts) else None

    def predict(self, name: str, number: int, at: int, attribution: FailureAttribution) -> RecordedAttempt:
        """Predict attempt ``number`` (0: the first) of a task if it starts ``at`` (microseconds UTC)."""
        by_number = self._by_number(name, number)
        if attribution is FailureAttribution.BY_NUMBER or not by_number.depends_on_time:
            return by_number
        if by_number.is_recorded and abs(by_number.started_at - at) <= _SAME_START_US:
            return by_number
        attempts = self._candidates(name, by_number)
        return self._nearest(name, attempts, at) if attempts else by_number

    def _candidates(self, name: str, by_number: RecordedAttempt) -> list[RecordedAttempt]:
        downstream = self._downstreams[name]
        if downstream is not None and by_number.shows_downstream_state:
            return self._downstream_attempts.get(downstream, [])
        return [one for one in self._attempts[name] if one.depends_on_time]

    def _by_number(self, name: str, number: int) -> RecordedAttempt:
        attempts = self._attempts[name]
        if number < len(attempts):
            return attempts[number]
        if attempts and attempts[-1].outcome.kind is not OutcomeKind.SUCCESS:
            return replace(attempts[-1], is_recorded=False)
        return RecordedAttempt(0, self.seconds(name), _SUCCESS, is_recorded=False)

    def _nearest(self, name: str, attempts: list[RecordedAttempt], at: int) -> RecordedAttempt:
        place = bisect(attempts, at, key=attrgetter("started_at"))
        nearest = min(attempts[max(place - 1, 0) : place + 1], key=lambda one: abs(one.started_at - at))
        is_within = attempts[0].started_at <= at <= attempts[-1].started_at
        if nearest.outcome.kind is OutcomeKind.SUCCESS:
            return RecordedAttempt(nearest.started_at, self.seconds(name), _SUCCESS, is_recorded=is_within)
        return replace(nearest, is_recorded=is_within)


def _by_downstream(rows: Iterable[TaskRow]) -> dict[str, list[RecordedAttempt]]:
    """Downstream -> the attempts of all generations that show its state, in order of time."""
    found: dict[str, list[RecordedAttempt]] = {}
    for row in rows:
        if (downstream := spec_of(row).downstream) is not None:
            generations = {attempt.generation for attempt in row.attempts.values()}
            attempts = (one for generation in generations for one in _attempts_of(row, generation))
            found.setdefault(downstream, []).extend(one for one in attempts if one.shows_downstream_state)
    return {downstream: sorted(attempts, key=attrgetter("started_at")) for downstream, attempts in found.items()}


def counted_attempts(row: TaskRow, generation: int) -> Iterator[AttemptRow]:
    """The attempts of a generation that say something about a policy, in order."""
    for number in sorted(row.attempts):
        attempt = row.attempts[number]
        counts = attempt.ended_at is not None and attempt.outcome in _COUNTED_OUTCOMES and not attempt.late
        if counts and attempt.generation == generation:
            yield attempt


def _attempts_of(row: TaskRow, generation: int) -> Iterator[RecordedAttempt]:
    policy, failures = spec_of(row).retry, 0
    for attempt in counted_attempts(row, generation):
        floor = _floor_seconds(attempt, policy, failures)
        failures += attempt.outcome in FAILED_OUTCOMES
        delay = None if attempt.delay_us is None else attempt.delay_us / 1e6
        yield RecordedAttempt(attempt.started_at, _slot_seconds(attempt), outcome_of(attempt, floor), delay)


def _slot_seconds(attempt: AttemptRow) -> float:
    """Time for which an attempt held its slot: from its claim until its end was written.

    If the wall clock was moved in between, the run time of the process counts instead.
    """
    held_us = max(0, (attempt.ended_at or attempt.started_at) - attempt.started_at)
    ran_us = held_us if attempt.duration_us is None else attempt.duration_us
    return (held_us if 0 <= held_us - ran_us <= _OVERHEAD_MAX_US else ran_us) / 1e6


def _floor_seconds(attempt: AttemptRow, policy: RetryPolicy, failures: int) -> float | None:
    """The Retry-After of a failure: the excess of the recorded ceiling over the ceiling of the policy.

    The row has no column for it. With decorrelated jitter it cannot be computed; the result is None. An error that
    repeats by its type has none: ``decide`` lets it wait longer for evidence.
    """
    failure = outcome_of(attempt).failure
    if attempt.ceiling_us is None or policy.jitter == "decorrelated" or failure is None or nature_of(failure):
        return None
    floor = attempt.ceiling_us / 1e6 - bounds(policy, failures)[1]
    return floor if floor > _FLOOR_SECONDS_MIN else None


def outcome_of(attempt: AttemptRow, retry_after_seconds: float | None = None) -> Outcome:
    """The outcome recorded in an attempt row."""
    kind = OutcomeKind(attempt.outcome)
    if attempt.outcome not in FAILED_OUTCOMES:
        return Outcome(kind)
    default_class = FailureClass.TIMEOUT if kind is OutcomeKind.TIMED_OUT else FailureClass.UNCLASSIFIED
    failure = Failure(
        error_type=attempt.error_type or "",
        message=attempt.error or "",
        failure_class=FailureClass(attempt.failure_class) if attempt.failure_class else default_class,
        fingerprint=Fingerprint(strict=attempt.fingerprint or "", loose=attempt.fingerprint_loose or ""),
        retry_after_seconds=retry_after_seconds,
    )
    return Outcome(kind, failure)


def _median_success_seconds(attempts: Iterable[RecordedAttempt]) -> float:
    found = [one.seconds for one in attempts if one.outcome.kind is OutcomeKind.SUCCESS]
    return median(found) if found else 0.0


# --- The replay ------------------------------------------------------------------------------------------------------


PROBES_MAX = 1_000  # calls beyond all attempts that the policies allow: a downstream that stays down is probed for ever

Uniform = Callable[[float, float], float]
Move = Callable[[TaskRow, TaskState], None]

_NOT_RUN = NOT_STARTED | {TaskState.CANCELLED}
_SECOND = 1_000_000


class RunFigures(msgspec.Struct, frozen=True):
    """The result of a run, recorded or replayed.

    Attributes:
        not_run: tasks that never started.
        pages: different causes that a page was sent for.
        seconds: from the start of the run to the end of its last attempt.
        unrecorded: attempts without a counterpart in the recorded run.
        is_over: False if the replay was stopped because it would not end.
    """

    calls: int
    failed: int
    dead_letters: int
    not_run: int
    pages: int
    seconds: float
    unrecorded: int = 0
    is_over: bool = True


class ReplayStart(msgspec.Struct, frozen=True):
    """The state of the recorded run at the instant ``at`` (microseconds UTC), from which a replay continues."""

    run: RunProjection
    at: int
    counts: RunCounts = msgspec.field(default_factory=RunCounts)
    breakers: Mapping[str, BreakerView] = {}


def start_of_run(projection: RunProjection) -> ReplayStart:
    """The state of a run before its first task started."""
    tasks = {
        name: TaskRow(name, max_attempts=row.max_attempts, position=row.position, spec=row.spec)
        for name, row in projection.tasks.items()
    }
    run = replace(projection.run, state=RunState.RUNNING, ended_at=None, blocked_since=None, paused_since=None)
    return ReplayStart(RunProjection(run, tasks, projection.parents, projection.children), projection.run.started_at)


def recorded_figures(projection: RunProjection, counts: RunCounts) -> RunFigures:
    """The figures of the recorded run. ``counts``: of all its events."""
    ends = [attempt.ended_at or 0 for row in projection.tasks.values() for attempt in row.attempts.values()]
    return RunFigures(
        calls=counts.calls,
        failed=counts.failed,
        dead_letters=counts.dead_letters,
        not_run=_count_not_run(projection),
        pages=counts.pages,
        seconds=_seconds_of_run(projection, max(ends, default=0)),
    )


class ReplayInput:
    """What all replays of one run from one instant share.

    ``projection``: the recorded run at its end. ``path_seconds``: the longest path from each task to the end of the
    run, as earlier runs had it when the deadline was checked.
    """

    def __init__(
        self, projection: RunProjection, start: ReplayStart, path_seconds: Mapping[str, float] | None = None
    ) -> None:
        self.recorded = projection
        self.start = start
        self.path_seconds = path_seconds or {}
        self.record = RecordedRun(projection, {name: row.generation for name, row in start.run.tasks.items()})
        dag = Dag((name, projection.parents.get(name, ())) for name in projection.tasks)
        self.remaining_seconds = dag.remaining_path({name: self.record.seconds(name) for name in projection.tasks})


def replay(
    replay_input: ReplayInput, change: PolicyChange, attribution: FailureAttribution, uniform: Uniform | None = None
) -> RunFigures:
    """Continue the run from its start state with ``change`` applied.

    A delay is the recorded one if there is one and ``change`` does not affect delays. Otherwise ``uniform`` draws it;
    None means the average.
    """
    return _Replay(replay_input, change, attribution, uniform or _mean).run()


def _mean(low: float, high: float) -> float:
    return (low + high) / 2


def _count_not_run(projection: RunProjection) -> int:
    return sum(1 for row in projection.tasks.values() if row.state in _NOT_RUN)


def _seconds_of_run(projection: RunProjection, ended_at: int) -> float:
    return max(0, ended_at - projection.run.started_at) / _SECOND


class _GenerationHistory(msgspec.Struct):
    """The history of a task's generation that ``decide`` needs and the task row does not hold."""

    attempts: int = 0
    previous_delay: float | None = None
    fingerprints: list[str] = []
    failed_at: list[int] = []  # microseconds UTC
    classes: list[FailureClass] = []


class _FailuresAlike:
    """Counts of the tasks of a run by the fingerprint of their latest failure, as ``store/settle.py`` reads them."""

    def __init__(self) -> None:
        self._latest: dict[str, str] = {}
        self._counts: dict[str, Counter[TaskState | None]] = defaultdict(Counter)

    def add_failure(self, name: str, fingerprint: str) -> None:
        """Count a failure, in place of the latest one of this task."""
        if name in self._latest:
            self._counts[self._latest[name]][None] -= 1
        self._latest[name] = fingerprint
        self._counts[fingerprint][None] += 1

    def add_end(self, name: str, state: TaskState) -> None:
        """Count the end of a task: SUCCESS, or DEAD_LETTER as poison."""
        if name in self._latest:
            self._counts[self._latest[name]][state] += 1

    def siblings_of(self, name: str, fingerprint: str) -> Siblings:
        """Return the counts without the task itself."""
        counts = self._counts[fingerprint]
        failed = counts[None] - (self._latest.get(name) == fingerprint)
        return Siblings(failed, counts[TaskState.DEAD_LETTER], counts[TaskState.SUCCESS])

    def names(self, fingerprint: str) -> list[str]:
        """Return the tasks whose latest failure is this one."""
        return [name for name, latest in self._latest.items() if latest == fingerprint]


def _history_of(row: TaskRow) -> _GenerationHistory:
    past = _GenerationHistory()
    for attempt in counted_attempts(row, row.generation):
        past.attempts += 1
        past.previous_delay = None if attempt.delay_us is None else attempt.delay_us / _SECOND
        if (failure := outcome_of(attempt).failure) is not None:
            past.fingerprints.append(failure.fingerprint.strict)
            past.failed_at.append(attempt.ended_at or attempt.started_at)
            past.classes.append(failure.failure_class)
    return past


def _failures_alike(projection: RunProjection, histories: Mapping[str, _GenerationHistory]) -> _FailuresAlike:
    found = _FailuresAlike()
    for name, past in histories.items():
        if past.fingerprints:
            row = projection.tasks[name]
            found.add_failure(name, past.fingerprints[-1])
            if row.state is TaskState.SUCCESS or row.dead_letter_kind == DeadLetterKind.POISON:
                found.add_end(name, row.state)
    return found


#: (instant, tie breaker, task, attempt): the attempt ends; without an attempt the task comes due; without a task a
#: breaker is checked.
_ScheduledEvent = tuple[int, int, str, RecordedAttempt | None]


class _Replay:
    def __init__(
        self, replay_input: ReplayInput, change: PolicyChange, attribution: FailureAttribution, uniform: Uniform
    ) -> None:
        start = replay_input.start
        self._recorded_run = replay_input.recorded
        self._change = change
        self._attribution = attribution
        self._uniform = uniform
        self._path_seconds = replay_input.path_seconds
        self._now = self._ended_at = start.at
        self._projection = replace(start.run, tasks={name: copy(row) for name, row in start.run.tasks.items()})
        self._attempts = replay_input.record
        self._histories = {name: _history_of(row) for name, row in self._projection.tasks.items()}
        self._alike = _failures_alike(self._projection, self._histories)
        self._ready_queue = ReadyQueue(self._projection, replay_input.remaining_seconds)
        self._flow = _changed_flow(self._projection, change)
        self._downstreams = DownstreamStates(self._flow, lambda: self._now, lambda _: None)
        self._downstreams.load(_breaker_rows(start))
        self._capacity = Capacity(self._ready_queue, self._downstreams, self._flow.pools, self._schedule_breaker_check)
        self._outages = LongOutages(self._ready_queue, self._downstreams)
        self._graph = _Graph(self._projection, self._move)
        self._policy_of = cache(change.apply_to_policy)
        self._counters = _ReplayCounters(start.counts)
        self._breaker_checks: set[int] = set()  # instants, microseconds UTC
        self._schedule: list[_ScheduledEvent] = []
        self._sequence = 0
        granted = sum(self._policy_of(self._spec(row).retry).max_attempts for row in self._projection.tasks.values())
        self._calls_max = self._counters.calls + granted + self._attempts.attempt_count + PROBES_MAX

    def run(self) -> RunFigures:
        """Replay until the run ends or only a human could go on."""
        for row in self._projection.tasks.values():
            self._schedule_recorded(row)
        self._check_downstreams()
        self._dispatch()
        deadline = ending_deadline(self._projection.run)
        while self._schedule and self._counters.calls <= self._calls_max:
            if deadline is not None and self._schedule[0][0] >= deadline:
                self._ended_at = deadline  # what runs is ended, and nothing starts any more
                self._schedule.clear()
                break
            self._now, _, name, attempt = heappop(self._schedule)
            if attempt is not None:
                self._ended_at = self._now
                self._end_attempt(self._projection.tasks[name], attempt)
            elif name:
                self._ready_queue.mark_due(name)
            else:
                self._breaker_checks.discard(self._now)
            self._check_downstreams()
            self._dispatch()
        return self._figures()

    def _figures(self) -> RunFigures:
        counters, deadline = self._counters, self._projection.run.deadline_at
        if deadline is not None and self._ended_at >= deadline:
            counters.page(deadline_cause(self._projection.run.run_id))
        return RunFigures(
            calls=counters.calls,
            failed=counters.failed,
            dead_letters=counters.dead_letters,
            not_run=_count_not_run(self._projection),
            pages=counters.pages,
            seconds=_seconds_of_run(self._projection, self._ended_at),
            unrecorded=counters.unrecorded,
            is_over=not self._schedule,
        )

    def _schedule_recorded(self, row: TaskRow) -> None:
        """Schedule the end of a running attempt, or the due time of a waiting task, as recorded."""
        if row.state is TaskState.RUNNING:
            attempt = self._predict(row.name, FailureAttribution.BY_NUMBER)
            recorded = self._recorded_run.tasks[row.name].attempts.get(row.attempt)
            ended_at = recorded.ended_at if recorded is not None else None
            self._push(
                self._now + round(attempt.seconds * _SECOND) if ended_at is None else ended_at, row.name, attempt
            )
        elif row.next_retry_at is not None and row.state in WITH_INSTANT:
            if row.state is TaskState.PENDING:
                self._ready_queue.defer(row.name)
            self._push(row.next_retry_at, row.name, None)

    # --- Starting --------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        for name in list(self._ready_queue.promotable):
            self._move(self._projection.tasks[name], TaskState.READY)
        self._reject()
        room = self._projection.run.max_parallel - self._ready_queue.counts[TaskState.RUNNING]
        for name in self._ready_queue.pop_startable(max(0, room), self._capacity.admits):
            self._start_attempt(self._projection.tasks[name])

    def _reject(self) -> None:
        for name, on_open in list(self._capacity.rejected()):
            row = self._projection.tasks[name]
            self._move(row, TaskState.READY)
            self._fail(row, DeadLetterKind.BREAKER, None, END_WHEN_OPEN[on_open] is TaskState.DEAD_LETTER)

    def _start_attempt(self, row: TaskRow) -> None:
        self._counters.calls += 1
        row.first_started_at = row.first_started_at or self._now
        self._move(row, TaskState.READY)
        self._move(row, TaskState.RUNNING)
        self._ready_queue.release_claims([row.name])
        attempt = self._predict(row.name, self._attribution)
        self._push(self._now + round(attempt.seconds * _SECOND), row.name, attempt)

    def _predict(self, name: str, attribution: FailureAttribution) -> RecordedAttempt:
        history = self._histories[name]
        attempt = self._attempts.predict(name, history.attempts, self._now, attribution)
        history.attempts += 1
        self._counters.unrecorded += not attempt.is_recorded
        return attempt

    # --- Ending ----------------------------------------------------------------------------------------------------

    def _end_attempt(self, row: TaskRow, attempt: RecordedAttempt) -> None:
        attempts_max = self._policy_of(self._spec(row).retry).max_attempts
        health = self._downstreams.record(row.name, attempt.outcome, row.failures, attempts_max)
        decision = self._decide(row, attempt.outcome, health)
        failure = attempt.outcome.failure
        self._record_outcome(row, failure, decision)
        match decision:
            case Succeed():
                self._alike.add_end(row.name, TaskState.SUCCESS)
                self._move(row, TaskState.SUCCESS)
                propagate(self._graph, row.name)
            case Retry(delay=delay):
                self._wait_until_due(row, TaskState.RETRYING, delay)
            case Defer(delay=delay):
                self._wait_until_due(row, TaskState.SENSING, delay)
            case Skip():
                row.skip_cause = str(SkipCause.CONDITION)
                self._move(row, TaskState.SKIPPED)
                propagate(self._graph, row.name)
            case Fail():
                self._fail(row, None, failure)
            case DeadLetter(kind=kind):
                self._fail(row, kind, failure, is_dead_letter=True)
                if kind is DeadLetterKind.POISON and failure is not None:
                    self._alike.add_end(row.name, TaskState.DEAD_LETTER)
                    self._end_siblings(failure)

    def _end_siblings(self, failure: Failure) -> None:
        """Make dead letters of those that failed alike and wait for a retry, as ``store/settle.py`` does."""
        fingerprint = failure.fingerprint.strict
        if nature_of(failure) is None or not self._alike.siblings_of("", fingerprint).are_proof:
            return
        for name in self._alike.names(fingerprint):
            row = self._projection.tasks[name]
            by_evidence = self._policy_of(self._spec(row).retry).poison_after == "evidence"
            if row.state in (TaskState.RETRYING, TaskState.READY) and by_evidence:
                self._alike.add_end(name, TaskState.DEAD_LETTER)
                self._fail(row, DeadLetterKind.POISON, failure, is_dead_letter=True)

    def _decide(self, row: TaskRow, outcome: Outcome, health: DownstreamHealth) -> Decision:
        past, spec = self._histories[row.name], self._spec(row)
        history = TaskHistory(
            failures=row.failures,
            deferrals=row.deferrals,
            refusals=row.refusals,
            previous_delay=past.previous_delay,
            fingerprints=tuple(past.fingerprints),
            failed_at=tuple(past.failed_at),
            classes=tuple(past.classes),
            siblings=self._siblings_of(row, outcome),
            first_started_at=row.first_started_at,
            idempotent=spec.idempotent,
            is_command=spec.kind == "command",
            names_downstream=spec.downstream is not None,
            health=health,
            recheck_seconds=spec.recheck_seconds,
            path_seconds=self._path_seconds.get(row.name, 0.0),
            deadline_at=ending_deadline(self._projection.run),
        )
        return decide(history, outcome, self._policy_of(spec.retry), self._now, self._draw(row, outcome))

    def _siblings_of(self, row: TaskRow, outcome: Outcome) -> Siblings:
        strict = outcome.failure.fingerprint.strict if outcome.failure is not None else ""
        return self._alike.siblings_of(row.name, strict) if strict else NO_SIBLINGS

    def _spec(self, row: TaskRow) -> TaskSpec:
        return with_overrides(spec_of(row), row.overrides)

    def _draw(self, row: TaskRow, outcome: Outcome) -> Uniform:
        """Return the recorded delay as the random draw, unless there is none or the change affects delays."""
        recorded = self._attempts.delay_seconds(row.name, self._histories[row.name].attempts - 1)
        if recorded is None or outcome.failure is None or not self._change.has_recorded_delays:
            return self._uniform
        drawn = recorded - (outcome.failure.retry_after_seconds or 0.0)
        return lambda low, high: min(max(drawn, low), high)

    def _record_outcome(self, row: TaskRow, failure: Failure | None, decision: Decision) -> None:
        if failure is not None:
            past = self._histories[row.name]
            past.fingerprints.append(failure.fingerprint.strict)
            past.failed_at.append(self._now)
            past.classes.append(failure.failure_class)
            self._alike.add_failure(row.name, failure.fingerprint.strict)
        if (counter := counter_of(decision)) is not None:
            setattr(row, counter, getattr(row, counter) + 1)

    def _wait_until_due(self, row: TaskRow, state: TaskState, delay: float) -> None:
        if state is TaskState.RETRYING:
            self._histories[row.name].previous_delay = delay
        self._move(row, state)
        self._push(self._now + round(delay * _SECOND), row.name, None)

    def _fail(
        self, row: TaskRow, kind: DeadLetterKind | None, failure: Failure | None, is_dead_letter: bool = False
    ) -> None:
        downstream = spec_of(row).downstream
        breaker = None if downstream is None else self._downstreams.change_event(downstream).state
        self._counters.page(page_cause(self._projection.run.run_id, kind, failure, downstream, breaker))
        if is_dead_letter:
            self._counters.dead_letters += 1
            self._move(row, TaskState.DEAD_LETTER)
            return
        self._counters.failed += 1
        self._move(row, TaskState.FAILED)
        propagate(self._graph, row.name)

    # --- Downstreams -----------------------------------------------------------------------------------------------

    def _check_downstreams(self) -> None:
        """Count a page for each breaker that has held tasks for too long."""
        for outage in self._outages.update(self._now):
            self._counters.page(
                page_cause(self._projection.run.run_id, DeadLetterKind.BREAKER, None, outage.downstream)
            )
        for at in self._outages.due_at:
            if at > self._now:
                self._schedule_breaker_check("", at)

    def _schedule_breaker_check(self, downstream: str, at: int) -> None:
        at = max(at, self._now + 1)
        if at not in self._breaker_checks:
            self._breaker_checks.add(at)
            self._push(at, "", None)

    # --- State changes and the queue -------------------------------------------------------------------------------

    def _move(self, row: TaskRow, new: TaskState) -> None:
        old, row.state = row.state, new
        if old is not new:
            self._ready_queue.apply_move(row, old)

    def _push(self, at: int, name: str, attempt: RecordedAttempt | None) -> None:
        self._sequence += 1
        heappush(self._schedule, (max(at, self._now), self._sequence, name, attempt))


class _Graph(PropagationGraph):
    """The replayed run as the graph of the trigger rules; ``move`` changes the state of a task."""

    def __init__(self, projection: RunProjection, move: Move) -> None:
        self._projection = projection
        self._move = move

    def task(self, name: str) -> TaskNode:
        row = self._projection.tasks[name]
        return TaskNode(name, row.state, row.generation, spec_of(row).rule, row.skip_cause, row.blocked_by)

    def parents(self, name: str) -> list[TaskNode]:
        return [self._over_edge(parent, name, parent) for parent in self._projection.parents.get(name, ())]

    def children(self, name: str, states: Collection[str]) -> list[TaskNode]:
        children = self._projection.children.get(name, ())
        tasks = self._projection.tasks
        return [self._over_edge(child, child, name) for child in children if tasks[child].state in states]

    def _over_edge(self, found: str, child: str, parent: str) -> TaskNode:
        rule = rule_of_edge(spec_of(self._projection.tasks[child]), parent)
        return self.task(found)._replace(edge_rule=rule)

    def apply(self, task: TaskNode, derived: DerivedState) -> None:
        row = self._projection.tasks[task.name]
        row.skip_cause, row.blocked_by = derived.skip_cause, derived.blocked_by
        self._move(row, derived.state)


class _ReplayCounters:
    """The counters of a replay, starting from the counts at its first instant."""

    def __init__(self, before: RunCounts) -> None:
        self.calls, self.failed, self.dead_letters = before.calls, before.failed, before.dead_letters
        self.pages, self.unrecorded = before.pages, 0
        self._causes = set(before.causes)

    def page(self, cause: str) -> None:
        """Count a page, once per cause."""
        self.pages += cause not in self._causes
        self._causes.add(cause)


def _changed_flow(projection: RunProjection, change: PolicyChange) -> FlowSpec:
    """The flow with changed breakers and retry budgets, including downstreams that only tasks name."""
    flow = declared_flow(projection)
    undeclared = {
        spec.downstream: DownstreamSpec(spec.downstream) for spec in flow.tasks if spec.downstream is not None
    }
    downstreams = {**undeclared, **{spec.name: spec for spec in flow.downstreams}}
    return replace(flow, downstreams=tuple(change.apply_to_downstream(spec) for spec in downstreams.values()))


def _breaker_rows(start: ReplayStart) -> Iterator[BreakerRecord]:
    """Breaker rows at the start instant. The calls in their windows are not recorded, so the windows are empty."""
    for name, view in start.breakers.items():
        yield {
            "downstream": name,
            "state": view.state,
            "reopens_at": view.reopens_at,
            "window": "[]",
            "tokens": None,
            "detail": "{}",
            "changed_at": start.at,
            "opened_at": None,
        }


# --- Compares a recorded run with replays of it: under its own policies (the control), and with a change -------------
#
# Where the control differs from the recorded run, the replay leaves out something that mattered, and a change with a
# smaller effect than that difference shows nothing.


class FigureRange(msgspec.Struct, frozen=True):
    """The median, least and most of each figure, over replays with different random numbers."""

    median: RunFigures
    least: RunFigures
    most: RunFigures


class PolicyComparison(msgspec.Struct, frozen=True):
    """The recorded figures, the control, and the replays with ``change``, by attribution of failures."""

    change: PolicyChange
    recorded: RunFigures
    control: Mapping[FailureAttribution, RunFigures]
    changed: Mapping[FailureAttribution, FigureRange]
    replays: int  # with the change, for each attribution


def compare(
    replay_input: ReplayInput, counts: RunCounts, change: PolicyChange, uniforms: Sequence[Uniform]
) -> PolicyComparison:
    """Replay a run once as it was, and once with the change for each source of random numbers in ``uniforms``.

    ``counts``: of all events of the run.
    """
    control: dict[FailureAttribution, RunFigures] = {}
    changed: dict[FailureAttribution, FigureRange] = {}
    for attribution in FailureAttribution:
        control[attribution] = replay(replay_input, NO_CHANGE, attribution)
        changed[attribution] = range_of([replay(replay_input, change, attribution, uniform) for uniform in uniforms])
    return PolicyComparison(change, recorded_figures(replay_input.recorded, counts), control, changed, len(uniforms))


def range_of(figures: Sequence[RunFigures]) -> FigureRange:
    """Take each figure on its own: no single replay need have all the medians."""
    columns = [*zip(*map(astuple, figures), strict=True)]
    return FigureRange(
        RunFigures(*map(median_low, columns)), RunFigures(*map(min, columns)), RunFigures(*map(max, columns))
    )


def differences(one: RunFigures, other: RunFigures) -> dict[str, float]:
    """Return the figures in which two runs differ, by name, without the count of unrecorded attempts."""
    names = (name for name in RunFigures.__struct_fields__ if name not in ("unrecorded", "is_over"))
    found = {name: getattr(other, name) - getattr(one, name) for name in names}
    return {name: difference for name, difference in found.items() if difference}
