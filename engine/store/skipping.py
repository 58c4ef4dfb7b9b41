"""An operator permits that a task is missing: its children go on without it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
from typing import Any, Dict, List, Optional, Set

from ..core.event_payloads import TaskColumns
from ..core.states import SKIP_FROM, SkipCause, TaskState
from . import canary, lost
from .act import DONE, REFUSED, Work, answer, cannot, conclude
from .paged import resolve
from .propagation import stop_strict_children, unpropagate

SUBSTITUTE_CHARACTERS_MAX = 64 * 1024  # as of a task's own result


#: Children that would start without the result of a parent.
NEEDING = (
    "SELECT task.name, task.spec FROM edge CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.child"
    " WHERE edge.run_id = ? AND edge.parent = ? AND task.rule <> 'all_success_strict'"
    " AND task.state NOT IN ('SUCCESS', 'RUNNING', 'SKIPPED', 'CANCELLED') ORDER BY task.position, task.name"
)


def skip(work: Work) -> Dict[str, Any]:
    """Permit the failure: children may start. ``substitute``: any JSON value that they get instead of its result.

    Without one, nothing is skipped whose result a child cannot do without (SPEC 4.6).
    """
    columns: TaskColumns = {
        "skip_cause": str(SkipCause.OPERATOR),
        "ended_at": work.journal.at,
        "next_retry_at": None,
        "blocked_by": None,
        "expires_at": None,
        "canary": None,
    }
    if "substitute" in work.options:
        substitute = json.dumps(work.options["substitute"], ensure_ascii=False)
        columns["result"] = substitute
        if len(substitute) > SUBSTITUTE_CHARACTERS_MAX:
            return answer(False, "a substitute has at most {} characters of JSON".format(SUBSTITUTE_CHARACTERS_MAX))
    together = {target[0] for target in work.targets}
    for target in work.targets:
        row = lost.find(work, target)
        needed_by = None if row is None or "result" in columns else _needed_by(work, row.name, together)
        if row is not None and row.state not in SKIP_FROM:
            work.say(row.name, REFUSED, cannot("skip", row.state))
        elif row is not None and needed_by is not None:
            work.say(row.name, REFUSED, "{} needs its result: give a substitute, or skip both".format(needed_by))
        elif row is not None:
            canary.abandon(work.journal, work.run_id, row.name, row.overrides)
            work.journal.move(work.run_id, row.name, row.state, TaskState.SKIPPED, row.generation, set=columns.copy())
            work.say(row.name, DONE, "skipped")
    skipped = work.done()
    stopped: List[str] = []
    for name in skipped:
        resolve(work.journal, work.run_id, name)
        stopped += stop_strict_children(work.journal, work.run_id, name)
    work.note(stopped, "stopped: they accept nothing but its success")
    work.note(unpropagate(work.journal, work.run_id, skipped), "unblocked")
    return conclude(work)


def _needed_by(work: Work, name: str, together: Set[str]) -> Optional[str]:
    """A child that would start without the result of ``name`` and cannot do without it."""
    for child, spec in work.journal.connection.execute(NEEDING, (work.run_id, name)):
        if child not in together and name in (json.loads(spec).get("requires") or ()):
            return str(child)
    return None
