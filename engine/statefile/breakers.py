"""Table ``breaker``, and what operators change in it: the act ``breaker``, and the probe that a requeue arms.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A refused credential opens the breaker of its downstream for ever (SPEC 4.12). An operator who requeues a task that
failed with it thereby states that the credential was renewed, so the requeue arms one probe call: if that is
refused, the breaker opens again; if it is accepted, the held tasks are released at the rate. A requeue of another
failure, or a breaker that an operator holds open, arms no probe: the answer names the breaker and the command that
probes it.
"""

import json
import sqlite3
from typing import Iterable, Optional, Set

from ..domain.acts import Answer
from ..domain.breakers import BREAKER_ACTS, HOLDING_BREAKERS, breaker_after, breaker_refusal
from ..domain.event_payloads import BreakerChanged, RunChange, RunChanged
from ..domain.rows import BreakerRow
from ..domain.states import ABOUT_TO_START, DeadLetterKind
from ..domain.text import shell_command
from .action import ActionContext, TaskSnapshot
from .lists import JSON_FIELDS, Listing, query
from .sql import in_list, marks
from .transitions import Transaction

_REFUSED = "open until an operator closes it"
_HELD_OPEN = "which an operator holds open"


def check_breaker(context: ActionContext, row: TaskSnapshot) -> None:
    """Before a task is requeued, record a probe of its downstream, or the breaker that will hold the task."""
    downstream = row.read_spec().get("downstream")
    why = None if downstream is None else _release_refusal(context, str(downstream))
    if why == _REFUSED and row.dead_letter_kind == DeadLetterKind.AUTH and downstream not in context.probes:
        context.probes.append(str(downstream))
    elif why is not None:
        context.held_by_breaker.setdefault(str(downstream), ([], why))[0].append(row.name)


def arm_probes(context: ActionContext) -> None:
    """Arm the recorded probes, and report held tasks. A living executor arms its own, by the event of the act."""
    for downstream in context.probes:
        if context.is_abandoned:
            _set(context.transaction, context.run_id, downstream, "probe", "")
        context.consequences.append(f"{downstream} is asked with one call whether it takes the credential now")
    for downstream, (names, why) in context.held_by_breaker.items():
        if downstream not in context.probes:
            command = shell_command(["redrive", "systems", "breakers", "--probe", downstream])
            context.add_consequence(names, f"still held by the breaker of {downstream}, {why}: {command}")


def set_breaker(context: ActionContext) -> Answer:
    """Set the breaker of the option ``downstream`` to ``how``, for the next executor; used if no executor lives."""
    downstream, how = str(context.options.get("downstream")), str(context.options.get("how"))
    if how not in BREAKER_ACTS:
        return Answer(False, "the act on a breaker is one of {}, not {!r}".format(", ".join(BREAKER_ACTS), how))
    known = sorted(_downstreams(context))
    if downstream not in known:
        return Answer(
            False, "this run has no downstream {!r}; it has: {}".format(downstream, ", ".join(known) or "none")
        )
    refusal = breaker_refusal(downstream, how, read_breaker(context.connection, downstream).state, is_abandoned=True)
    if refusal is not None:
        return Answer(False, refusal)
    _set(context.transaction, context.run_id, downstream, how, str(context.transaction.author.actor))
    if how != "open":
        release_runs(context.transaction, downstream)
    return Answer(True, f"{downstream} is {BREAKER_ACTS[how].past} when the run is resumed")


def _release_refusal(context: ActionContext, downstream: str) -> Optional[str]:
    """Why a breaker stays shut until an operator acts; None if it is not shut, or reopens by itself."""
    if downstream not in context.breaker_obstacles:
        row = read_breaker(context.connection, downstream)
        refused = row.state == "OPEN" and row.reopens_at is None
        context.breaker_obstacles[downstream] = (
            _HELD_OPEN if row.state == "FORCED_OPEN" else _REFUSED if refused else None
        )
    return context.breaker_obstacles[downstream]


def _set(transaction: Transaction, run_id: str, downstream: str, how: str, by: str) -> None:
    """Write the row that an executor would write after the same act, with its event."""
    row = breaker_after(read_breaker(transaction.connection, downstream), how, by, transaction.at)
    store_breakers(transaction.connection, [row])
    why = str(row.detail.get("why", ""))
    transaction.emit(BreakerChanged(downstream, row.state, transaction.at, row.reopens_at, why), run_id)


_BREAKER = Listing(
    "breaker", BreakerRow, "SELECT {columns} FROM breaker WHERE downstream = :downstream", {"downstream": None}
)


def read_breaker(connection: sqlite3.Connection, downstream: str) -> BreakerRow:
    """The row of a downstream; a closed one if nobody has called it yet."""
    found = query(connection, _BREAKER, {"downstream": downstream})
    return found[0] if found else BreakerRow(downstream, "CLOSED", None, [], None, {}, 0)


def store_breakers(connection: sqlite3.Connection, rows: Iterable[BreakerRow]) -> None:
    """Write breaker rows; emits no event."""
    fields = BreakerRow._fields
    sql = "INSERT OR REPLACE INTO breaker ({}) VALUES ({})".format(", ".join(fields), marks(fields))
    for row in rows:
        values = [json.dumps(one) if field in JSON_FIELDS else one for field, one in zip(fields, row)]
        connection.execute(sql, values)


def write_change(transaction: Transaction, run_id: str, change: BreakerChanged, rows: Iterable[BreakerRow]) -> None:
    """Write breaker rows with the event of a change of state."""
    store_breakers(transaction.connection, rows)
    transaction.emit(change, run_id)
    if change.state not in HOLDING_BREAKERS:
        release_runs(transaction, change.downstream)


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
