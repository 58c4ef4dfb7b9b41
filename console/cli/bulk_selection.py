"""Which tasks a bulk act means: globs over names, the class of the failure, and the state.

A bulk act shows its preview first, and is sent with ``--yes`` or after a question at the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase

import click

from ...engine.core.projection import RunProjection, TaskRow
from ...engine.domain.acts import BY_NAME, STOPPABLE
from ...engine.domain.counting import counted
from ...engine.domain.states import NEEDS_HUMAN, TaskState
from ...engine.errors import RedriveError
from ..sessions.sign_in import is_interactive
from ..text.printing import echo

#: The states that a bulk act means unless ``--only`` names others; a task that is named in full is meant in any state.
BULK_STATES: Mapping[str, AbstractSet[TaskState]] = {
    "requeue": NEEDS_HUMAN,
    "skip": NEEDS_HUMAN,
    "cancel": STOPPABLE,
    "extend": frozenset([TaskState.RUNNING]),
}
_GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class BulkFilter:
    """The filters of a bulk act. ``failure_class``: of the latest failure; ``states``: instead of ``BULK_STATES``."""

    failure_class: str | None = None
    states: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.failure_class is not None or bool(self.states)


EVERY_TASK = BulkFilter()


def names_in_bulk(
    projection: RunProjection, act: str, patterns: Sequence[str], filters: BulkFilter
) -> list[str] | None:
    """The tasks of a bulk act, in the order of the flow; None: only full names are given, so it is not a bulk act.

    Raises RedriveError if no task is meant.
    """
    globs = [pattern for pattern in patterns if pattern not in projection.tasks and _GLOB_CHARACTERS & set(pattern)]
    if not globs and not filters:
        return None
    states = {TaskState(state) for state in filters.states} or BULK_STATES[act]
    exact = set(patterns) - set(globs)
    missing = sorted(exact - projection.tasks.keys())
    if missing:
        raise RedriveError(f"run {projection.run.run_id} has no task {missing[0]!r}; see: redrive tasks")

    def is_meant(row: TaskRow) -> bool:
        if filters.failure_class not in (None, row.failure_class):
            return False
        if row.name in exact:
            return not filters.states or row.state in states
        is_matched = not patterns or any(fnmatchcase(row.name, glob) for glob in globs)
        return is_matched and row.state in states

    names = [row.name for row in sorted(projection.tasks.values(), key=lambda row: row.position) if is_meant(row)]
    if not names:
        words = [*map(repr, patterns), *([f"class {filters.failure_class}"] if filters.failure_class else [])]
        which = f" that fits {' '.join(words)}" if words else ""
        raise RedriveError(f"no task of run {projection.run.run_id}{which} is {' or '.join(sorted(states))}")
    return names


def names_like(projection: RunProjection, patterns: Sequence[str]) -> list[str]:
    """The tasks of the given names and globs, in the order of the flow. Raises RedriveError if one fits no task."""
    found: set[str] = set()
    for pattern in patterns:
        names = {pattern} & projection.tasks.keys() or {name for name in projection.tasks if fnmatchcase(name, pattern)}
        if not names:
            raise RedriveError(f"run {projection.run.run_id} has no task {pattern!r}; see: redrive tasks")
        found |= names
    return [row.name for row in sorted(projection.tasks.values(), key=lambda row: row.position) if row.name in found]


def require_consent(act: str, count: int) -> None:
    """Ask at the terminal whether to go on. Raises UsageError without a terminal, Abort if the answer is no."""
    words = f"{BY_NAME[act].verb} {counted(count, 'task')}"
    if not is_interactive():
        raise click.UsageError(f"this would {words}: check it with --dry-run, and repeat it with --yes")
    echo(f"{words[0].upper()}{words[1:]}? [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise click.Abort
