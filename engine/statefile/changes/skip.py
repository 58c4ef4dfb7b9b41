"""The act ``skip``: an operator permits that a task is missing, and its children start without it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
from typing import List, Optional, Set

from ...domain.acts import act_refusal
from ...domain.command import DONE, REFUSED, Answer
from ...domain.event_columns import TaskColumns
from ...domain.states import NEEDS_NO_RESULT, SkipCause, TaskState
from ...domain.trigger_rules import ParentStatus, rules_with
from ..state_lists import in_list
from . import abandoned
from .action import ActionContext, summarize
from .late_run import let_go_on
from .mapping import expand_below
from .page_lifecycle import resolve
from .propagation import propagate, unpropagate
from .requeue import end_generation

SUBSTITUTE_CHARACTERS_MAX = 64 * 1024  # the same limit as for the result of a task


#: SQL: children that would start without the result of a parent.
CHILDREN_NEEDING_RESULT = (
    "SELECT task.name, task.spec FROM edge CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.child"
    " WHERE edge.run_id = ? AND edge.parent = ? AND task.rule IN " + in_list(rules_with(ParentStatus.PERMITTED)) + ""
    " AND task.state NOT IN " + in_list(NEEDS_NO_RESULT) + " ORDER BY task.position, task.name"
)


def skip(context: ActionContext) -> Answer:
    """Skip the targets. ``substitute``: a JSON value that the children receive instead of the result.

    Without a substitute, a task whose result a child requires is not skipped (SPEC 4.6).
    """
    columns: TaskColumns = {"skip_cause": str(SkipCause.OPERATOR), "blocked_by": None}
    if "substitute" in context.options:
        substitute = json.dumps(context.options["substitute"], ensure_ascii=False)
        columns["result"] = substitute
        if len(substitute) > SUBSTITUTE_CHARACTERS_MAX:
            return Answer(False, "a substitute has at most {} characters of JSON".format(SUBSTITUTE_CHARACTERS_MAX))
    together = {target[0] for target in context.targets}
    for row in abandoned.resolve_targets(context):
        refused = act_refusal(context.act, row.state)
        needed_by = None if "result" in columns else _needed_by(context, row.name, together)
        if refused:
            context.set_result(row.name, REFUSED, refused)
        elif needed_by is not None:
            sentence = "{} needs its result: give a substitute, or skip both".format(needed_by)
            context.set_result(row.name, REFUSED, sentence)
        else:
            end_generation(context, row, TaskState.SKIPPED, columns)
            context.set_result(row.name, DONE, "skipped")
    skipped = context.done_names()
    stopped: List[str] = []
    for name in skipped:
        resolve(context.transaction, context.run_id, name)
        stopped += propagate(context.transaction, context.run_id, name)
        expand_below(context.transaction, context.run_id, name)
    context.add_consequence(stopped, "stopped: they accept nothing but its success")
    let_go_on(context)
    context.add_consequence(unpropagate(context.transaction, context.run_id, skipped), "unblocked")
    return summarize(context)


def _needed_by(context: ActionContext, name: str, together: Set[str]) -> Optional[str]:
    """A child that would start without the result of ``name`` but requires it; None if there is none."""
    for child, spec in context.connection.execute(CHILDREN_NEEDING_RESULT, (context.run_id, name)):
        if child not in together and name in (json.loads(spec).get("requires") or ()):
            return str(child)
    return None
