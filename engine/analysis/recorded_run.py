"""What a run's record says of tries that were never made: for a replay under another policy (``what_if.py``).

A record tells how each try ended, not why. A failure may have belonged to the try or to the moment, and the two answer
"what if it had been tried later, or once more?" differently. So there are two readings, and the truth is between them:

- by number: the n-th try of a task ends as its n-th did. Right for chance and for bugs, blind to outages.
- by time: a failure that an outage explains belongs to its moment. A try ends as the one did that was nearest in time
  against the same downstream; without a downstream, the nearest of the same task. All other failures by number.

A try beyond the record ends as the last one did, and is told as such. What was lost or stopped says nothing of a policy
and is left out.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from statistics import median

from ..core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from ..core.policy import RetryPolicy, bounds
from ..core.projection import AttemptRow, RunFold, TaskRow
from ..core.ready_queue import spec_of

#: What counts as one of the failures that ``max_attempts`` is held against.
FAILED_OUTCOMES = frozenset(["error", "timed_out"])
_TOLD = FAILED_OUTCOMES | {"success", "deferred", "skipped"}
_OUTAGE = frozenset([FailureClass.TRANSIENT, FailureClass.TIMEOUT, FailureClass.AMBIGUOUS])
_SUCCESS = Outcome(OutcomeKind.SUCCESS)
_SAME_MOMENT_US = 1_000_000  # a task that starts again as near to its own try as this is at that try
_AROUND_US = 10_000_000  # a process is started and its end written within this
_FLOOR_SECONDS_MIN = 0.001  # less than this over what the policy allows is rounding


class Reading(StrEnum):
    """What a failure is taken to belong to."""

    BY_NUMBER = "by number"
    BY_TIME = "by time"


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt as it was, or as it is taken to be. ``started_at`` in microseconds UTC.

    ``delay_seconds``: the wait that followed it; None where none did. ``is_recorded``: not beyond what the record says.
    """

    started_at: int
    seconds: float
    outcome: Outcome
    delay_seconds: float | None = None
    is_recorded: bool = True

    @property
    def is_of_the_system(self) -> bool:
        """Whether it says how the called system was at that moment: it answered, or failed as in an outage."""
        failure = self.outcome.failure
        return self.outcome.kind is OutcomeKind.SUCCESS or (failure is not None and failure.failure_class in _OUTAGE)

    @property
    def is_of_the_moment(self) -> bool:
        """Whether another moment might have given another answer; "not yet" of a sensor is one."""
        return self.is_of_the_system or self.outcome.kind is OutcomeKind.DEFERRED


class Record:
    """Every try of a run. ``generations``: of each task, the generation whose tries count; left out: the first."""

    def __init__(self, fold: RunFold, generations: Mapping[str, int] | None = None) -> None:
        rows = fold.tasks.values()
        found = generations or {}
        self._tries = {row.name: [*_tries_of(row, found.get(row.name, 0))] for row in rows}
        self._systems = {row.name: spec_of(row).downstream for row in rows}
        self._moments = _by_system(rows)
        self._usual_seconds = _usual_seconds(one for tries in self._tries.values() for one in tries)

    @property
    def count(self) -> int:
        """How many tries it has."""
        return sum(map(len, self._tries.values()))

    def seconds(self, name: str) -> float:
        """How long a success of this task takes: as it did, else as those of the run usually did."""
        own = [one.seconds for one in self._tries[name] if one.outcome.kind is OutcomeKind.SUCCESS]
        return own[-1] if own else self._usual_seconds

    def delay_seconds(self, name: str, number: int) -> float | None:
        """The wait that followed the try ``number`` (0: the first) of a task; None where none did."""
        tries = self._tries[name]
        return tries[number].delay_seconds if number < len(tries) else None

    def answer(self, name: str, number: int, at: int, reading: Reading) -> Try:
        """How the try ``number`` (0: the first) of a task ends if it starts ``at`` (microseconds UTC)."""
        by_number = self._by_number(name, number)
        if reading is Reading.BY_NUMBER or not by_number.is_of_the_moment:
            return by_number
        if by_number.is_recorded and abs(by_number.started_at - at) <= _SAME_MOMENT_US:
            return by_number
        moments = self._moments_for(name, by_number)
        return self._nearest(name, moments, at) if moments else by_number

    def _moments_for(self, name: str, by_number: Try) -> list[Try]:
        downstream = self._systems[name]
        if downstream is not None and by_number.is_of_the_system:
            return self._moments.get(downstream, [])
        return [one for one in self._tries[name] if one.is_of_the_moment]

    def _by_number(self, name: str, number: int) -> Try:
        tries = self._tries[name]
        if number < len(tries):
            return tries[number]
        if tries and tries[-1].outcome.kind is not OutcomeKind.SUCCESS:
            return replace(tries[-1], is_recorded=False)
        return Try(0, self.seconds(name), _SUCCESS, is_recorded=False)

    def _nearest(self, name: str, moments: list[Try], at: int) -> Try:
        place = bisect(moments, at, key=attrgetter("started_at"))
        near = min(moments[max(place - 1, 0) : place + 1], key=lambda one: abs(one.started_at - at))
        within = moments[0].started_at <= at <= moments[-1].started_at
        if near.outcome.kind is OutcomeKind.SUCCESS:
            return Try(near.started_at, self.seconds(name), _SUCCESS, is_recorded=within)
        return replace(near, is_recorded=within)


def _by_system(rows: Iterable[TaskRow]) -> dict[str, list[Try]]:
    """What every try of every generation says of the systems that were called, in order of time."""
    moments: dict[str, list[Try]] = {}
    for row in rows:
        if (downstream := spec_of(row).downstream) is not None:
            generations = {attempt.generation for attempt in row.attempts.values()}
            tries = (one for generation in generations for one in _tries_of(row, generation))
            moments.setdefault(downstream, []).extend(one for one in tries if one.is_of_the_system)
    for tries_of_system in moments.values():
        tries_of_system.sort(key=attrgetter("started_at"))
    return moments


def tried(row: TaskRow, generation: int) -> Iterator[AttemptRow]:
    """The attempts of a generation that say something of a policy, in order."""
    for number in sorted(row.attempts):
        attempt = row.attempts[number]
        counts = attempt.ended_at is not None and attempt.outcome in _TOLD and not attempt.late
        if counts and attempt.generation == generation:
            yield attempt


def _tries_of(row: TaskRow, generation: int) -> Iterator[Try]:
    policy, failures = spec_of(row).retry, 0
    for attempt in tried(row, generation):
        floor = _floor_seconds(attempt, policy, failures)
        failures += attempt.outcome in FAILED_OUTCOMES
        delay = None if attempt.delay_us is None else attempt.delay_us / 1e6
        yield Try(attempt.started_at, _slot_seconds(attempt), outcome_of(attempt, floor), delay)


def _slot_seconds(attempt: AttemptRow) -> float:
    """How long an attempt that has ended held its slot: from its claim until its end was written.

    The wall clock may have been moved meanwhile; then it is as long as its process ran.
    """
    held_us = max(0, (attempt.ended_at or attempt.started_at) - attempt.started_at)
    ran_us = held_us if attempt.duration_us is None else attempt.duration_us
    return (held_us if 0 <= held_us - ran_us <= _AROUND_US else ran_us) / 1e6


def _floor_seconds(attempt: AttemptRow, policy: RetryPolicy, failures: int) -> float | None:
    """What the other side asked for (Retry-After): what the longest wait was longer than the policy would have it.

    It is not in the row of its own. Where the waits follow one another it cannot be told, and none is assumed.
    """
    if attempt.ceiling_us is None or policy.jitter == "decorrelated":
        return None
    floor = attempt.ceiling_us / 1e6 - bounds(policy, failures)[1]
    return floor if floor > _FLOOR_SECONDS_MIN else None


def outcome_of(attempt: AttemptRow, retry_after_seconds: float | None = None) -> Outcome:
    """The outcome that the row of an attempt tells."""
    kind = OutcomeKind(attempt.outcome)
    if attempt.outcome not in FAILED_OUTCOMES:
        return Outcome(kind)
    unnamed = FailureClass.TIMEOUT if kind is OutcomeKind.TIMED_OUT else FailureClass.UNCLASSIFIED
    failure = Failure(
        error_type=attempt.error_type or "",
        message=attempt.error or "",
        failure_class=FailureClass(attempt.failure_class) if attempt.failure_class else unnamed,
        fingerprint=Fingerprint(strict=attempt.fingerprint or "", loose=attempt.fingerprint_loose or ""),
        retry_after_seconds=retry_after_seconds,
    )
    return Outcome(kind, failure)


def _usual_seconds(tries: Iterable[Try]) -> float:
    found = [one.seconds for one in tries if one.outcome.kind is OutcomeKind.SUCCESS]
    return median(found) if found else 0.0
