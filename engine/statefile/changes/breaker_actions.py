"""The act ``breaker``, and the probe that a requeue arms after a refused credential.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A refused credential opens the breaker of its downstream for ever (SPEC 4.12). An operator who requeues a task that
failed with it thereby states that the credential was renewed, so the requeue arms one probe call: if that is refused,
the breaker opens again; if it is accepted, the held tasks are released at the rate. A requeue of another failure, or a
breaker that an operator holds open, arms no probe: the answer names the breaker and the command that probes it.
"""

import json
from typing import Dict, NamedTuple, Optional, Set

from ...domain.command import Answer
from ...domain.event_changes import RunChange
from ...domain.event_payloads import BreakerChanged, RunChanged
from ...domain.states import ABOUT_TO_START, DeadLetterKind
from ..state_lists import in_list
from .action import ActionContext, TaskSnapshot
from .transitions import Transaction

_REFUSED = "open until an operator closes it"
_HELD_OPEN = "which an operator holds open"


def check_breaker(context: ActionContext, row: TaskSnapshot) -> None:
    """Before a task is requeued, record a probe of its downstream, or the breaker that will hold the task."""
    kind, spec = context.connection.execute(
        "SELECT dead_letter_kind, spec FROM task WHERE run_id = ? AND name = ?", (context.run_id, row.name)
    ).fetchone()
    downstream = json.loads(spec).get("downstream")
    why = None if downstream is None else _release_refusal(context, str(downstream))
    if why == _REFUSED and kind == DeadLetterKind.AUTH and downstream not in context.probes:
        context.probes.append(str(downstream))
    elif why is not None:
        context.held_by_breaker.setdefault(str(downstream), ([], why))[0].append(row.name)


def arm_probes(context: ActionContext) -> None:
    """Arm the recorded probes, and report held tasks. A living executor arms its own, by the event of the act."""
    for downstream in context.probes:
        if context.is_abandoned:
            _set(context.transaction, context.run_id, downstream, "probe", "")
        context.consequences.append("{} is asked with one call whether it takes the credential now".format(downstream))
    for downstream, (names, why) in context.held_by_breaker.items():
        if downstream not in context.probes:
            words = "still held by the breaker of {0}, {1}: redrive breakers --probe {0}"
            context.add_consequence(names, words.format(downstream, why))


def set_breaker(context: ActionContext) -> Answer:
    """Set the breaker of the option ``downstream`` to ``how``, for the next executor; used if no executor lives."""
    downstream, how = str(context.options.get("downstream")), str(context.options.get("how"))
    if how not in SETTINGS:
        return Answer(False, "a breaker can be told {}, not {!r}".format(", ".join(SETTINGS), how))
    known = sorted(_downstreams(context))
    if downstream not in known:
        return Answer(
            False, "this run has no downstream {!r}; it has: {}".format(downstream, ", ".join(known) or "none")
        )
    _set(context.transaction, context.run_id, downstream, how, str(context.transaction.author.actor))
    if how != "open":
        release_runs(context.transaction, downstream)
    return Answer(True, "{} is {} when the run is resumed".format(downstream, SETTINGS[how].past))


def _release_refusal(context: ActionContext, downstream: str) -> Optional[str]:
    """Why a breaker stays shut until an operator acts; None if it is not shut, or reopens by itself."""
    if downstream not in context.breaker_obstacles:
        found = context.connection.execute(
            "SELECT state, reopens_at FROM breaker WHERE downstream = ?", (downstream,)
        ).fetchone()
        state, reopens_at = found or ("CLOSED", None)
        refused = state == "OPEN" and reopens_at is None
        context.breaker_obstacles[downstream] = _HELD_OPEN if state == "FORCED_OPEN" else _REFUSED if refused else None
    return context.breaker_obstacles[downstream]


class BreakerSetting(NamedTuple):
    """A setting of a breaker: the resulting state, as in ``core/breaker.py``, and the participle."""

    state: str
    past: str


#: By the names of ``core/downstreams.py: ACTS``. A probe is an open breaker whose time has come.
SETTINGS: Dict[str, BreakerSetting] = {
    "open": BreakerSetting("FORCED_OPEN", "held open"),
    "close": BreakerSetting("CLOSED", "closed"),
    "probe": BreakerSetting("OPEN", "probed"),
    "disable": BreakerSetting("DISABLED", "disabled"),
}


def _set(transaction: Transaction, run_id: str, downstream: str, how: str, by: str) -> None:
    connection = transaction.connection
    connection.execute(
        "INSERT OR IGNORE INTO breaker (downstream, state, changed_at) VALUES (?, 'CLOSED', ?)",
        (downstream, transaction.at),
    )
    (text,) = connection.execute("SELECT detail FROM breaker WHERE downstream = ?", (downstream,)).fetchone()
    why = {"open": "held by {}".format(by), "disable": "disabled by {}".format(by)}.get(how, "")
    detail = dict(json.loads(text), why=why, release_at=transaction.at if how == "close" else None)
    if how in ("close", "disable"):
        detail["refused"] = []
    reopens_at = transaction.at if how == "probe" else None
    state = SETTINGS[how].state
    columns = {"state": state, "changed_at": transaction.at, "detail": json.dumps(detail), "reopens_at": reopens_at}
    if how == "close":
        columns["window"] = "[]"
    sql = "UPDATE breaker SET {} WHERE downstream = ?".format(", ".join("{} = ?".format(name) for name in columns))
    connection.execute(sql, list(columns.values()) + [downstream])
    transaction.emit(BreakerChanged(downstream, state, transaction.at, reopens_at, why), run_id)


def release_runs(transaction: Transaction, downstream: str) -> None:
    """Mark the blocked runs with tasks that this breaker held as not blocked, so that their next executor runs them."""
    sql = (
        "SELECT task.run_id, task.spec FROM run JOIN task USING (run_id)"
        " WHERE run.blocked_since IS NOT NULL AND run.state = 'RUNNING' AND task.state IN " + in_list(ABOUT_TO_START)
    )
    rows = transaction.connection.execute(sql).fetchall()
    for run_id in sorted({run_id for run_id, spec in rows if json.loads(spec).get("downstream") == downstream}):
        transaction.change_run(run_id, RunChanged(RunChange.UNBLOCKED, {"blocked_since": None}))


def _downstreams(context: ActionContext) -> Set[str]:
    connection = context.connection
    known = {name for (name,) in connection.execute("SELECT downstream FROM breaker")}
    for (spec,) in connection.execute("SELECT spec FROM task WHERE run_id = ?", (context.run_id,)):
        known.add(json.loads(spec).get("downstream"))
    known.discard(None)
    return known
