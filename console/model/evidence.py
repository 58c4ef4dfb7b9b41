"""A comparison of failed attempts, and what changed between them.

If nothing changed between two identical failures, another retry cannot help.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...engine.core.outcome import ENVIRONMENT_FIELDS
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.domain.states import FAILED_OUTCOMES

#: Columns of the result of an attempt, and their words.
_RESULTS = {"fingerprint": "place of the failure", "error_type": "error", "exit_code": "exit code", "signal": "signal"}


@dataclass(frozen=True, slots=True)
class AttemptDifference:
    """One column that differs between two attempts. Values are text from the state file."""

    what: str
    before: str
    after: str
    attempt: int  # the later one


@dataclass(frozen=True, slots=True)
class AttemptComparison:
    """A comparison of the attempts of one generation.

    ``environment``: differences before they ran; ``results``: differences of their results. ``unknown``: words of
    environment columns that were not recorded.
    """

    attempts: tuple[int, ...]
    environment: tuple[AttemptDifference, ...]
    results: tuple[AttemptDifference, ...]
    unknown: tuple[str, ...]

    @property
    def is_same_failure(self) -> bool:
        """Whether at least two attempts failed, all at one place and of one kind."""
        return len(self.attempts) > 1 and not self.results

    @property
    def is_deterministic(self) -> bool:
        """Whether the failure was the same and the environment did not change."""
        return self.is_same_failure and not self.environment


def failures_of(row: TaskRow) -> list[AttemptRow]:
    """Return the attempts of the current generation that failed by themselves, oldest first."""
    attempts = [row.attempts[number] for number in sorted(row.attempts)]
    return [
        one for one in attempts if one.generation == row.generation and one.outcome in FAILED_OUTCOMES and not one.late
    ]


def compare(attempts: Sequence[AttemptRow]) -> AttemptComparison:
    """Compare each attempt with the one before."""
    known = {column for column in ENVIRONMENT_FIELDS if any(getattr(one, column) is not None for one in attempts)}
    return AttemptComparison(
        attempts=tuple(one.attempt for one in attempts),
        environment=_differences(attempts, ENVIRONMENT_FIELDS),
        results=_differences(attempts, _RESULTS),
        unknown=tuple(word for column, word in ENVIRONMENT_FIELDS.items() if column not in known),
    )


def _differences(attempts: Sequence[AttemptRow], columns: Mapping[str, str]) -> tuple[AttemptDifference, ...]:
    differences: list[AttemptDifference] = []
    for column, word in columns.items():
        for earlier, later in pairwise(attempts):
            before, after = getattr(earlier, column), getattr(later, column)
            if before != after:
                differences.append(AttemptDifference(word, _text_of(before), _text_of(after), later.attempt))
    return tuple(differences)


def _text_of(value: object) -> str:
    return "none" if value is None else str(value)


def verdict(comparison: AttemptComparison) -> str:
    """Return the conclusion of a comparison in one sentence."""
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
