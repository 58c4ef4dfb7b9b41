"""An operator permits that a task is missing: its children go on without it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
from typing import List, Optional, Set

from ...domain.acts import refusal
from ...domain.command import DONE, REFUSED, Answer
from ...domain.event_payloads import TaskColumns
from ...domain.states import NEEDS_NO_RESULT, SkipCause, TaskState
from ...domain.trigger_rules import Standing, rules_with
from ..state_lists import in_list
from . import abandoned
from .action import Work, conclude
from .page_lifecycle import resolve
from .propagation import propagate, unpropagate
from .requeue import end

SUBSTITUTE_CHARACTERS_MAX = 64 * 1024  # as of a task's own result


#: Children that would start without the result of a parent.
NEEDING = (
    "SELECT task.name, task.spec FROM edge CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.child"
    " WHERE edge.run_id = ? AND edge.parent = ? AND task.rule IN " + in_list(rules_with(Standing.PERMITTED)) + ""
    " AND task.state NOT IN " + in_list(NEEDS_NO_RESULT) + " ORDER BY task.position, task.name"
)


def skip(work: Work) -> Answer:
    """Permit the failure: children may start. ``substitute``: any JSON value that they get instead of its result.

    Without one, nothing is skipped whose result a child cannot do without (SPEC 4.6).
    """
    columns: TaskColumns = {"skip_cause": str(SkipCause.OPERATOR), "blocked_by": None}
    if "substitute" in work.options:
        substitute = json.dumps(work.options["substitute"], ensure_ascii=False)
        columns["result"] = substitute
        if len(substitute) > SUBSTITUTE_CHARACTERS_MAX:
            return Answer(False, "a substitute has at most {} characters of JSON".format(SUBSTITUTE_CHARACTERS_MAX))
    together = {target[0] for target in work.targets}
    for target in work.targets:
        row = abandoned.find(work, target)
        if row is None:
            continue
        refused = refusal(work.act, row.state)
        needed_by = None if "result" in columns else _needed_by(work, row.name, together)
        if refused:
            work.say(row.name, REFUSED, refused)
        elif needed_by is not None:
            work.say(row.name, REFUSED, "{} needs its result: give a substitute, or skip both".format(needed_by))
        else:
            end(work, row, TaskState.SKIPPED, columns)
            work.say(row.name, DONE, "skipped")
    skipped = work.done()
    stopped: List[str] = []
    for name in skipped:
        resolve(work.journal, work.run_id, name)
        stopped += propagate(work.journal, work.run_id, name)
    work.note(stopped, "stopped: they accept nothing but its success")
    work.note(unpropagate(work.journal, work.run_id, skipped), "unblocked")
    return conclude(work)


def _needed_by(work: Work, name: str, together: Set[str]) -> Optional[str]:
    """A child that would start without the result of ``name`` and cannot do without it."""
    for child, spec in work.journal.connection.execute(NEEDING, (work.run_id, name)):
        if child not in together and name in (json.loads(spec).get("requires") or ()):
            return str(child)
    return None
