"""What a run as a whole is: still moving, blocked, or ended as what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ..domain.states import RunState, SkipCause, TaskState
from ..domain.trigger_rules import STATES_OF, Standing
from .projection import TaskRow


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """``blocked``: nothing can move and a dead letter waits for a human; ``state`` is RUNNING then."""

    state: RunState
    is_blocked: bool = False


def evaluate_run(tasks: Iterable[TaskRow], active: int) -> RunOutcome:
    """Judge a run. ``active``: tasks that will still do something without an operator (``Ledger.active``).

    Never SUCCESS with an unresolved dead letter: document 000's states beside document 003's rule gave just that.
    """
    if active:
        return RunOutcome(RunState.RUNNING)
    rows = list(tasks)
    counts = Counter(row.state for row in rows)
    if counts[TaskState.DEAD_LETTER]:
        return RunOutcome(RunState.RUNNING, is_blocked=True)
    if any(_fails_the_run(row) for row in rows):
        return RunOutcome(RunState.FAILED)
    if any(_makes_it_partial(row) for row in rows):
        return RunOutcome(RunState.PARTIAL)
    return RunOutcome(RunState.SUCCESS)


#: With the failed a PENDING task that nothing will ever start: its rule cannot be met any more.
_UNFINISHED = STATES_OF[Standing.FAILED] | {TaskState.PENDING}


def _optional(row: TaskRow) -> bool:
    return row.spec is not None and row.spec.optional


def _fails_the_run(row: TaskRow) -> bool:
    return row.state in _UNFINISHED and not _optional(row)


def _makes_it_partial(row: TaskRow) -> bool:
    by_operator = row.state is TaskState.SKIPPED and row.skip_cause == SkipCause.OPERATOR
    bad_rows = row.bad_rows > 0 and row.spec is not None and row.spec.strict_rows
    return by_operator or bad_rows or row.state in _UNFINISHED
