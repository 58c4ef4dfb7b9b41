"""Predicts from a recorded run how an attempt ends that was never made: for a replay under another policy.

A run records how each attempt ended, not why. A failure may belong to the attempt or to the time, which matters for the
question "what if the task had run later, or once more?". So there are two attributions; the truth is between them:

- by number: attempt n of a task ends as its attempt n did. Right for chance and for bugs, blind to outages.
- by time: a failure that an outage explains belongs to its time. An attempt ends as the attempt nearest in time against
  the same downstream did; without a downstream, the nearest of the same task. All other failures by number.

An attempt beyond the recorded ones ends as the last one did, and is marked as unrecorded. Lost and cancelled attempts
say nothing about a policy and are left out.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from statistics import median

from ..core.failures.determinism import nature_of
from ..core.outcome import OUTAGE_CLASSES, Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from ..core.policy import RetryPolicy, bounds
from ..core.projection import AttemptRow, RunProjection, TaskRow
from ..core.ready_queue import spec_of
from ..domain.states import FAILED_OUTCOMES

_COUNTED_OUTCOMES = FAILED_OUTCOMES | {"success", "deferred", "skipped"}
_SUCCESS = Outcome(OutcomeKind.SUCCESS)
_SAME_START_US = 1_000_000  # a replayed start this near to the recorded start of the same attempt is the same
_OVERHEAD_MAX_US = 10_000_000  # the most that starting a process and writing its end take
_FLOOR_SECONDS_MIN = 0.001  # a smaller excess over the policy's ceiling is rounding


class FailureAttribution(StrEnum):
    """Whether a failure belongs to the number of the attempt or to its time."""

    BY_NUMBER = "by number"
    BY_TIME = "by time"


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
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
