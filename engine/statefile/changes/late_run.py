"""A run after its deadline: an operator lifts the deadline by running tasks again, or gives the run another one.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``domain/deadline.py`` states the rule; ``store/expiry.py`` ends the run at its deadline.
"""

from typing import Dict, List, Optional

from ...domain.command import Answer
from ...domain.deadline import deadline_cause, describe_passed, ends_run
from ...domain.durations import format_clock
from ...domain.event_changes import RunChange
from ...domain.event_columns import RunColumns
from ...domain.event_payloads import RunChanged
from ...domain.states import DEADLINE_MODE, RunState, TaskState
from .action import ActionContext, reopen_run
from .page_lifecycle import resolve_cause
from .propagation import descendants_of, reevaluate
from .requeue import run_again

_LATE = (
    "SELECT name, generation FROM task WHERE run_id = ? AND state = 'CANCELLED' AND failure_mode = ?"
    " ORDER BY position, name"
)
_ENDING = "SELECT count(*) FROM task WHERE run_id = ? AND state = 'RUNNING' AND failure_mode = ?"
_RUN = "SELECT state, deadline_at, deadline_passed_at, options FROM run WHERE run_id = ?"


def let_go_on(context: ActionContext) -> None:
    """Lift a deadline that has passed, and run the tasks again that it had cancelled below those that the act changed.

    Whoever lets a task run after the deadline wants what follows from it as well.
    """
    changed = context.done_names()
    if not changed:
        return
    late = _late_tasks(context)
    if late:
        below = {name for root in changed for name in descendants_of(context.connection, context.run_id, root)}
        again = _run_again(context, {name: late[name] for name in late if name in below})
        context.add_consequence(again, _LATE_AGAIN)
    lift_passed_deadline(context)


_LATE_AGAIN = "cancelled by the deadline, to run again"


def lift_passed_deadline(context: ActionContext) -> None:
    """Lift a deadline that has passed: a task may start again."""
    row = context.connection.execute(_RUN, (context.run_id,)).fetchone()
    if row is None:
        return
    _, deadline_at, _, options = row
    if deadline_at is not None and context.transaction.at >= deadline_at and ends_run(options):
        why = "{}: it goes on without one".format(describe_passed(deadline_at))
        _set_deadline(context, None, why)
        context.notes.append(why)


def postpone(context: ActionContext) -> Answer:
    """Give the run another deadline, in ``seconds`` from now; without ``seconds`` none.

    What the old one had cancelled runs again. Refused while the old one still ends attempts.
    """
    row = context.connection.execute(_RUN, (context.run_id,)).fetchone()
    if row is None:
        return Answer(False, "there is no such run")
    state, deadline_at, passed_at, _ = row
    if state != RunState.RUNNING and passed_at is None:
        return Answer(False, "the run has ended: {}".format(state))
    seconds = context.options.get("seconds")
    if seconds is None and deadline_at is None:
        return Answer(False, "the run has no deadline")
    if seconds is not None and seconds <= 0:
        return Answer(False, "a deadline is in the future: give seconds above 0")
    (ending,) = context.connection.execute(_ENDING, (context.run_id, DEADLINE_MODE)).fetchone()
    if ending and not context.is_abandoned:
        return Answer(False, "the old deadline still ends {}: postpone it in a moment".format(_attempts(ending)))
    until = None if seconds is None else context.transaction.at + int(seconds * 1000000)
    before = "" if deadline_at is None else ", it was {}".format(format_clock(deadline_at))
    new = "the run has no deadline any more" if until is None else "the deadline is {}".format(format_clock(until))
    why = new + before
    _set_deadline(context, until, why)
    again = _run_again(context, _late_tasks(context))
    if passed_at is not None:
        reopen_run(context.transaction, context.run_id)
    context.add_consequence(again, _LATE_AGAIN)
    return Answer(True, "; ".join([why] + context.consequences))


def _attempts(count: int) -> str:
    return "{} attempt{}".format(count, "" if count == 1 else "s")


def _set_deadline(context: ActionContext, deadline_at: Optional[int], why: str) -> None:
    columns: RunColumns = {"deadline_at": deadline_at, "deadline_passed_at": None}
    context.transaction.change_run(context.run_id, RunChanged(RunChange.POSTPONED, columns, why=why))
    resolve_cause(context.transaction, deadline_cause(context.run_id))


def _late_tasks(context: ActionContext) -> Dict[str, int]:
    """The tasks that the deadline has cancelled, with their generations, in the order of the flow."""
    return dict(context.connection.execute(_LATE, (context.run_id, DEADLINE_MODE)).fetchall())


def _run_again(context: ActionContext, late: Dict[str, int]) -> List[str]:
    for name, generation in late.items():
        run_again(context.transaction, context.run_id, name, str(TaskState.CANCELLED), generation)
    for name in late:
        reevaluate(context.transaction, context.run_id, name)
    return list(late)
