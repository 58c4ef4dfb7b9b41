"""The tasks of a run that the words of a command mean: names and globs."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from ...engine.core.projection import RunProjection, TaskRow
from ...engine.domain.text import did_you_mean
from ...engine.errors import RedriveError
from .options import NoSuchTaskError


def rows_like(projection: RunProjection, patterns: Sequence[str]) -> list[TaskRow]:
    """The tasks of the given names and globs, in the order of the flow; without one, all.

    Raises RedriveError if one fits no task.
    """
    tasks, names = projection.tasks, set(() if patterns else projection.tasks)
    for pattern in patterns:
        found = {pattern} & tasks.keys() or {name for name in tasks if fnmatchcase(name, pattern)}
        if not found:
            raise unknown_task(projection, pattern)
        names |= found
    return sorted((tasks[name] for name in names), key=lambda row: row.position)


def unknown_task(projection: RunProjection, name: str) -> RedriveError:
    """A task is named that the run has not."""
    run, meant = projection.run, did_you_mean(name, projection.tasks)
    return NoSuchTaskError(name, f"{run.dag_name}: run {run.run_id} has no task {name!r}", meant)
