"""Breakers and operators: what a requeue says to the breaker of a refused credential, and breakers set by hand.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A refused credential opens the breaker of its downstream without an end (SPEC 4.12), and a second lever that has to be
known of at 3 a.m. would be one too many: whoever requeues a task that died of it says, with a reason, that the
credential was renewed. So that requeue arms one probe: a call goes out; if that is refused, the breaker opens again;
if it is not, everything held is released at the rate. A requeue of anything else says nothing of credentials, and a
breaker that an operator holds open is not opened by another's requeue: then the answer says what still holds the task,
and the way out.
"""

import json
from typing import Dict, NamedTuple, Optional, Set

from ...domain.command import Answer
from ...domain.event_payloads import BreakerChanged
from ...domain.states import DeadLetterKind
from .action import Seen, Work
from .transitions import Journal

_REFUSED = "open until an operator closes it"
_FORCED = "which an operator holds open"


def before_again(work: Work, row: Seen) -> None:
    """Note what stands between a task that is about to be requeued and its downstream."""
    kind, spec = work.journal.connection.execute(
        "SELECT dead_letter_kind, spec FROM task WHERE run_id = ? AND name = ?", (work.run_id, row.name)
    ).fetchone()
    downstream = json.loads(spec).get("downstream")
    why = None if downstream is None else _why_shut(work, str(downstream))
    if why == _REFUSED and kind == DeadLetterKind.AUTH and downstream not in work.probes:
        work.probes.append(str(downstream))
    elif why is not None:
        work.shut.setdefault(str(downstream), ([], why))[0].append(row.name)


def conclude_again(work: Work) -> None:
    """Arm the probes, and say what is held all the same. A living executor arms its own, by the event of the act."""
    for downstream in work.probes:
        if work.is_abandoned:
            _set(work.journal, work.run_id, downstream, "probe", "")
        work.consequences.append("{} is asked with one call whether it takes the credential now".format(downstream))
    for downstream, (names, why) in work.shut.items():
        if downstream not in work.probes:
            words = "still held by the breaker of {0}, {1}: redrive breakers --probe {0}"
            work.note(names, words.format(downstream, why))


def set_by_hand(work: Work) -> Answer:
    """With no executor alive: tell ``downstream`` to open, close, probe or disable, for the next executor to find."""
    downstream, how = str(work.options.get("downstream")), str(work.options.get("how"))
    if how not in SETTINGS:
        return Answer(False, "a breaker can be told {}, not {!r}".format(", ".join(SETTINGS), how))
    known = sorted(_downstreams(work))
    if downstream not in known:
        return Answer(
            False, "this run has no downstream {!r}; it has: {}".format(downstream, ", ".join(known) or "none")
        )
    _set(work.journal, work.run_id, downstream, how, str(work.journal.actor))
    return Answer(True, "{} is {} when the run is resumed".format(downstream, SETTINGS[how].past))


def _why_shut(work: Work, downstream: str) -> Optional[str]:
    """Why a breaker lets nobody through before somebody says so; None where it does, or will by itself."""
    if downstream not in work.guards:
        found = work.journal.connection.execute(
            "SELECT state, reopens_at FROM breaker WHERE downstream = ?", (downstream,)
        ).fetchone()
        state, reopens_at = found or ("CLOSED", None)
        refused = state == "OPEN" and reopens_at is None
        work.guards[downstream] = _FORCED if state == "FORCED_OPEN" else _REFUSED if refused else None
    return work.guards[downstream]


# --- Set by hand ---------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """What a breaker can be told: its state then, as ``core/breaker.py`` reads it, and the participle."""

    state: str
    past: str


#: The same words as ``core/downstreams.py: ACTS``. A probe: open, and its time has come.
SETTINGS: Dict[str, Setting] = {
    "open": Setting("FORCED_OPEN", "held open"),
    "close": Setting("CLOSED", "closed"),
    "probe": Setting("OPEN", "probed"),
    "disable": Setting("DISABLED", "disabled"),
}


def _set(journal: Journal, run_id: str, downstream: str, how: str, by: str) -> None:
    connection = journal.connection
    connection.execute(
        "INSERT OR IGNORE INTO breaker (downstream, state, changed_at) VALUES (?, 'CLOSED', ?)",
        (downstream, journal.at),
    )
    (text,) = connection.execute("SELECT detail FROM breaker WHERE downstream = ?", (downstream,)).fetchone()
    why = {"open": "held by {}".format(by), "disable": "disabled by {}".format(by)}.get(how, "")
    detail = dict(json.loads(text), why=why, release_at=journal.at if how == "close" else None)
    reopens_at = journal.at if how == "probe" else None
    state = SETTINGS[how].state
    columns = {"state": state, "changed_at": journal.at, "detail": json.dumps(detail), "reopens_at": reopens_at}
    if how == "close":
        columns["window"] = "[]"
    sql = "UPDATE breaker SET {} WHERE downstream = ?".format(", ".join("{} = ?".format(name) for name in columns))
    connection.execute(sql, list(columns.values()) + [downstream])
    journal.emit(BreakerChanged(downstream, state, journal.at, reopens_at, why), run_id)


def _downstreams(work: Work) -> Set[str]:
    connection = work.journal.connection
    known = {name for (name,) in connection.execute("SELECT downstream FROM breaker")}
    for (spec,) in connection.execute("SELECT spec FROM task WHERE run_id = ?", (work.run_id,)):
        known.add(json.loads(spec).get("downstream"))
    known.discard(None)
    return known
