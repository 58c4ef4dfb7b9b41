"""Decide the state of a run: running, blocked, or ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..domain.states import RunState, SkipCause, TaskState
from ..domain.trigger_rules import STATES_OF, ParentStatus
from .projection import TaskRow


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """``is_blocked``: no task can move and a dead letter waits for a human; ``state`` is RUNNING then."""

    state: RunState
    is_blocked: bool = False


def evaluate_run(tasks: Iterable[TaskRow], active: int) -> RunOutcome:
    """Return the outcome of a run. ``active``: ``ReadyQueue.active_count``.

    A run with an unresolved dead letter is never SUCCESS.
    """
    if active:
        return RunOutcome(RunState.RUNNING)
    rows = list(tasks)
    counts = Counter(row.state for row in rows)
    if counts[TaskState.DEAD_LETTER]:
        return RunOutcome(RunState.RUNNING, is_blocked=True)
    if any(_fails_the_run(row) for row in rows):
        return RunOutcome(RunState.FAILED)
    if any(_makes_run_partial(row) for row in rows):
        return RunOutcome(RunState.PARTIAL)
    return RunOutcome(RunState.SUCCESS)


#: A PENDING task counts as failed here: no event can satisfy its rule any more.
_UNFINISHED = STATES_OF[ParentStatus.FAILED] | {TaskState.PENDING}


def _is_optional(row: TaskRow) -> bool:
    return row.spec is not None and row.spec.optional


def _fails_the_run(row: TaskRow) -> bool:
    return row.state in _UNFINISHED and not _is_optional(row)


def _makes_run_partial(row: TaskRow) -> bool:
    by_operator = row.state is TaskState.SKIPPED and row.skip_cause == SkipCause.OPERATOR
    bad_rows = row.bad_rows > 0 and row.spec is not None and row.spec.strict_rows
    return by_operator or bad_rows or row.state in _UNFINISHED
