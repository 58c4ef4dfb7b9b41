"""The failed calls of one downstream, by task: repeated failures of one task count as one.

A failure of one task says something about its downstream only while calls of other tasks fail as well. An executor
holds this in memory, and the next executor counts anew. Instants are microseconds UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from .outcome import FailureClass

#: So many tasks that fail are evidence enough to open a breaker, if so many calls fail as chance does not explain.
SEVERAL_TASKS = 3

#: The failures in a row of one task that count for the opening of a breaker. A transient one is hardly ever the fault
#: of the task: three tasks can reach the ten calls of ``minimum_calls``, five that hang, ten that are ambiguous.
COUNTED_IN_A_ROW = {FailureClass.TRANSIENT: 4, FailureClass.TIMEOUT: 2, FailureClass.AMBIGUOUS: 1}


#: How a downstream has been is unknown after so long without a call.
UNASKED_SECONDS = 600.0


class FailuresInARow(NamedTuple):
    """The failures of a task since its latest success. ``last``, ``before``: the numbers of two among all ends."""

    times: int
    last: int
    before: int


class Outage(NamedTuple):
    """Failed calls between which none has succeeded: the first, the latest, and the first since somebody asks."""

    since: int
    latest: int
    asked_since: int


class CallFailures:
    """The failed calls by task, and the latest answers to others. ``window_us``: how long a failure is recent."""

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._ends = 0
        self._answered = 0  # number of the latest success
        self._rows: dict[str, FailuresInARow] = {}
        self._recent: dict[str, tuple[int, FailureClass]] = {}  # task -> its latest failure, the oldest first
        self._unanswered: dict[str, FailureClass] = {}  # tasks that have failed since the latest success of any
        self.outage: Outage | None = None  # of those
        self.probed: set[str] = set()  # tasks that have asked since the latest success
        self.is_holding = False  # it holds a task that nobody else proves to be at fault

    def add_failure(self, task: str, failure_class: FailureClass, now: int) -> None:
        self._ends += 1
        row = self._rows.get(task, FailuresInARow(0, self._ends, 0))
        self._rows[task] = FailuresInARow(row.times + 1, self._ends, row.last)
        self._recent.pop(task, None)
        self._recent[task] = now, failure_class
        self._unanswered[task] = failure_class
        self.outage = Outage(now, now, now) if self.outage is None else _continued(self.outage, now)

    def add_success(self, task: str) -> None:
        self._ends += 1
        self._answered = self._ends
        self._rows.pop(task, None)
        self._unanswered.clear()
        self.probed.clear()
        self.outage, self.is_holding = None, False

    def is_repeat(self, task: str, failure_class: FailureClass) -> bool:
        """Whether another failure of a task is no evidence any more."""
        row = self._rows.get(task)
        return row is not None and row.times > COUNTED_IN_A_ROW[failure_class]

    def has_other_answer(self, task: str) -> bool:
        """Whether a call of another task has succeeded between the latest two failures of this one."""
        row = self._rows.get(task)
        return row is not None and self._answered > row.before

    def count_failing(self, now: int) -> int:
        """Count the tasks that have failed in the window, or since the latest success: at most ``SEVERAL_TASKS``."""
        self._forget(now)
        return len(set(islice(self._unanswered, SEVERAL_TASKS)).union(islice(reversed(self._recent), SEVERAL_TASKS)))

    def count_recent(self, now: int) -> int:
        """Count the tasks that have failed in the window, whatever became of them."""
        self._forget(now)
        return len(self._recent)

    def do_others_fail(self, task: str, failure_class: FailureClass, now: int) -> bool:
        """Whether calls of other tasks fail as well; a hang is explained by hangs alone."""
        self._forget(now)
        recent = ((name, failed[1]) for name, failed in reversed(self._recent.items()))
        return _has_other(self._unanswered.items(), task, failure_class) or _has_other(recent, task, failure_class)

    def shift_clock(self, jump_us: int) -> None:
        self._recent = {name: (at + jump_us, of_class) for name, (at, of_class) in self._recent.items()}
        if self.outage is not None:
            self.outage = Outage(*(instant + jump_us for instant in self.outage))

    def _forget(self, now: int) -> None:
        """Drop what is older than the window."""
        while self._recent:
            task, (at, _) = next(iter(self._recent.items()))
            if at > now - self._window_us:
                return
            del self._recent[task]


def _continued(outage: Outage, now: int) -> Outage:
    has_asked = now - outage.latest <= UNASKED_SECONDS * 1e6
    return Outage(outage.since, now, outage.asked_since if has_asked else now)


def _has_other(failures: Iterable[tuple[str, FailureClass]], task: str, failure_class: FailureClass) -> bool:
    is_hang = failure_class is FailureClass.TIMEOUT
    return any(name != task and (not is_hang or of_class is FailureClass.TIMEOUT) for name, of_class in failures)
