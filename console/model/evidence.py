"""What is known of a failure: the attempts side by side, and whether anything changed between them.

"What would change between attempt one and two? Nothing" is what tells a retry that may heal from one that cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...engine.core.environment_fields import ENVIRONMENT_FIELDS
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.domain.states import FAILED_OUTCOMES

#: What an attempt may have ended in otherwise.
_RESULTS = {"fingerprint": "place of the failure", "error_type": "error", "exit_code": "exit code", "signal": "signal"}


@dataclass(frozen=True, slots=True)
class AttemptDifference:
    """One thing that was not the same in two attempts. Values are text from the state file."""

    what: str
    before: str
    after: str
    attempt: int  # the later one


@dataclass(frozen=True, slots=True)
class AttemptComparison:
    """Attempts of one generation side by side.

    ``circumstances``: what was different before they ran; ``results``: what they ended in differently. ``unknown``:
    circumstances that were not recorded, so that nobody can say.
    """

    attempts: tuple[int, ...]
    environment: tuple[AttemptDifference, ...]
    results: tuple[AttemptDifference, ...]
    unknown: tuple[str, ...]

    @property
    def is_same_failure(self) -> bool:
        """At least two failures, all at one place and of one kind."""
        return len(self.attempts) > 1 and not self.results

    @property
    def is_deterministic(self) -> bool:
        """The same failure, and nothing that could have made a difference changed."""
        return self.is_same_failure and not self.environment


def failures_of(row: TaskRow) -> list[AttemptRow]:
    """The attempts of the current generation that failed by themselves, oldest first."""
    attempts = [row.attempts[number] for number in sorted(row.attempts)]
    return [
        one for one in attempts if one.generation == row.generation and one.outcome in FAILED_OUTCOMES and not one.late
    ]


def compare(attempts: Sequence[AttemptRow]) -> AttemptComparison:
    """Lay attempts side by side, each with the one before."""
    known = {column for column in ENVIRONMENT_FIELDS if any(getattr(one, column) is not None for one in attempts)}
    return AttemptComparison(
        attempts=tuple(one.attempt for one in attempts),
        environment=_changes(attempts, ENVIRONMENT_FIELDS),
        results=_changes(attempts, _RESULTS),
        unknown=tuple(word for column, word in ENVIRONMENT_FIELDS.items() if column not in known),
    )


def _changes(attempts: Sequence[AttemptRow], columns: Mapping[str, str]) -> tuple[AttemptDifference, ...]:
    found: list[AttemptDifference] = []
    for column, word in columns.items():
        for earlier, later in pairwise(attempts):
            before, after = getattr(earlier, column), getattr(later, column)
            if before != after:
                found.append(AttemptDifference(word, _said(before), _said(after), later.attempt))
    return tuple(found)


def _said(value: object) -> str:
    return "none" if value is None else str(value)


def verdict(comparison: AttemptComparison) -> str:
    """One sentence: what the operator may conclude."""
    times = len(comparison.attempts)
    if times < 2:
        return "one failure so far: nothing to compare it with"
    if comparison.environment:
        words = " and ".join(dict.fromkeys(change.what for change in comparison.environment))
        same = "the same failure" if comparison.is_same_failure else "another failure"
        return f"{same} although the {words} changed between"
    if not comparison.is_same_failure:
        return f"{times} different failures; nothing changed between"
    how_often = "twice" if times == 2 else f"{times} times"
    checked = ", ".join(word for word in ENVIRONMENT_FIELDS.values() if word not in comparison.unknown)
    what = f" ({checked})" if checked else ""
    return f"same failure {how_often}; nothing changed between{what}"
