"""What is known of a failure: the attempts side by side, and whether anything changed between them.

"What would change between attempt one and two? Nothing" is what tells a retry that may heal from one that cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...engine.core.environment_fields import CIRCUMSTANCES
from ...engine.core.projection import AttemptRow, TaskRow

#: Outcomes that say something about a failure; a lost attempt says nothing about the task.
_FAILED = frozenset(["error", "timed_out"])

#: What an attempt may have ended in otherwise.
_RESULTS = {"fingerprint": "place of the failure", "error_type": "error", "exit_code": "exit code", "signal": "signal"}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that was not the same in two attempts. Values are text from the state file."""

    what: str
    before: str
    after: str
    attempt: int  # the later one


@dataclass(frozen=True, slots=True)
class Comparison:
    """Attempts of one generation side by side.

    ``circumstances``: what was different before they ran; ``results``: what they ended in differently. ``unknown``:
    circumstances that were not recorded, so that nobody can say.
    """

    attempts: tuple[int, ...]
    circumstances: tuple[Change, ...]
    results: tuple[Change, ...]
    unknown: tuple[str, ...]

    @property
    def same_failure(self) -> bool:
        """At least two failures, all at one place and of one kind."""
        return len(self.attempts) > 1 and not self.results

    @property
    def deterministic(self) -> bool:
        """The same failure, and nothing that could have made a difference changed."""
        return self.same_failure and not self.circumstances


def failures_of(row: TaskRow) -> list[AttemptRow]:
    """The attempts of the current generation that failed by themselves, oldest first."""
    attempts = [row.attempts[number] for number in sorted(row.attempts)]
    return [one for one in attempts if one.generation == row.generation and one.outcome in _FAILED and not one.late]


def compare(attempts: Sequence[AttemptRow]) -> Comparison:
    """Lay attempts side by side, each with the one before."""
    known = {column for column in CIRCUMSTANCES if any(getattr(one, column) is not None for one in attempts)}
    return Comparison(
        attempts=tuple(one.attempt for one in attempts),
        circumstances=_changes(attempts, CIRCUMSTANCES),
        results=_changes(attempts, _RESULTS),
        unknown=tuple(word for column, word in CIRCUMSTANCES.items() if column not in known),
    )


def _changes(attempts: Sequence[AttemptRow], columns: Mapping[str, str]) -> tuple[Change, ...]:
    found: list[Change] = []
    for column, word in columns.items():
        for earlier, later in pairwise(attempts):
            before, after = getattr(earlier, column), getattr(later, column)
            if before != after:
                found.append(Change(word, _said(before), _said(after), later.attempt))
    return tuple(found)


def _said(value: object) -> str:
    return "none" if value is None else str(value)


def verdict(comparison: Comparison) -> str:
    """One sentence: what the operator may conclude."""
    times = len(comparison.attempts)
    if times < 2:
        return "one failure so far: nothing to compare it with"
    if comparison.circumstances:
        words = " and ".join(dict.fromkeys(change.what for change in comparison.circumstances))
        same = "the same failure" if comparison.same_failure else "another failure"
        return f"{same} although the {words} changed between"
    if not comparison.same_failure:
        return f"{times} different failures; nothing changed between"
    how_often = "twice" if times == 2 else f"{times} times"
    checked = ", ".join(word for word in CIRCUMSTANCES.values() if word not in comparison.unknown)
    what = f" ({checked})" if checked else ""
    return f"same failure {how_often}; nothing changed between{what}"
