"""Takes an operator's act back, as long as nothing has happened to what it touched.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..core.events import EventKind
from ..core.states import LEGAL_MOVES, WAITING, RunState, TaskState
from . import rows
from .act import Work, ago, look
from .acts import past_of
from .command import DONE, Answer, answer_of
from .journal import Journal
from .propagation import children_of, propagate, reconsider, unpropagate

#: What a change of the run is called when it is taken back.
_RUN_WORDS = {"reopened": "ended", "unblocked": "blocked", "paused": "unpaused", "unpaused": "paused"}


class RecordedAct(NamedTuple):
    """An act as the journal has it. ``at``: microseconds UTC.

    ``was``: task -> the columns that the act changed, as they were before; ``was_run``: [what changed, columns], in
    order; ``was_rows``: quarantined rows, as ``rows.put_back`` reads them.
    """

    seq: int
    at: int
    run_id: Optional[str]
    actor: Optional[str]
    reason: Optional[str]
    options: Dict[str, Any]
    answer: Answer
    was: Dict[str, Dict[str, Any]]
    was_run: List[List[Any]]
    was_rows: Any


def find_act(connection: sqlite3.Connection, command_id: str) -> Optional[RecordedAct]:
    """The act with this id; None where there is none."""
    row = connection.execute(
        "SELECT seq, at, run_id, actor, reason, data FROM event WHERE command_id = ? AND kind = ? ORDER BY seq LIMIT 1",
        (command_id, EventKind.OPERATOR),
    ).fetchone()
    if row is None:
        return None
    data = json.loads(row[5])
    seq, at, run_id, actor, reason, _ = row
    return RecordedAct(
        seq=seq,
        at=at,
        run_id=run_id,
        actor=actor,
        reason=reason,
        options=data.get("options") or {},
        answer=answer_of(data["answer"]),
        was=data.get("was") or {},
        was_run=data.get("was_run") or [],
        was_rows=data.get("was_rows") or [],
    )


def undo(work: Work) -> Answer:
    """Put back every task that the act ``options["command"]`` changed, or none of them.

    Allowed until one of them, or a child of one, has moved on. Promotion to READY is no obstacle: nothing ran yet.
    """
    act = find_act(work.journal.connection, str(work.options.get("command") or ""))
    if act is None:
        return Answer(False, "there is no such act in this state file")
    tasks = act.was
    if not tasks and not act.was_run:
        return Answer(False, "there is nothing to undo: {}".format(act.answer.message))
    work.run_id = act.run_id or ""
    obstacle = _obstacle(work, act.seq, tasks)
    if obstacle:
        return Answer(False, "too late: {}".format(obstacle))
    restore(work.journal, work.run_id, tasks)
    rows.put_back(work.journal, work.run_id, act.was_rows)
    for what, before in reversed(act.was_run):
        work.journal.change_run(work.run_id, _RUN_WORDS[what], before, *_run_move(work, before))
    for name in tasks:
        work.say(name, DONE, "as before")
    message = "{} changed back".format(len(tasks)) if tasks else "changed back"
    return Answer(True, message, tuple(work.results.values()))


def _obstacle(work: Work, seq: int, tasks: Dict[str, Dict[str, Any]]) -> Optional[str]:
    connection = work.journal.connection
    children = {child.name for name in tasks for child in children_of(connection, work.run_id, name)}
    for name, old, new, at, actor, data in _moves_since(connection, work.run_id, seq):
        if name in tasks and not (old == TaskState.PENDING and new == TaskState.READY):
            if actor is None:
                return "{} is {} now".format(name, new or "changed")
            verb = past_of(json.loads(data).get("act", ""))
            return "{} was {} by {} {}".format(name, verb, actor, ago(work.journal.at - at))
        if name in children and new == TaskState.RUNNING:
            return "{}, which depends on it, has started".format(name)
    return None


def _moves_since(connection: sqlite3.Connection, run_id: str, seq: int) -> Iterator[Tuple[Any, ...]]:
    return connection.execute(
        "SELECT task, old, new, at, actor, data FROM event WHERE run_id = ? AND seq > ? AND kind IN (?, ?)"
        " ORDER BY seq",
        (run_id, seq, EventKind.TASK, EventKind.TASK_CHANGED),
    )


def restore(
    journal: Journal, run_id: str, tasks: Dict[str, Dict[str, Any]], data: Optional[Dict[str, Any]] = None
) -> None:
    """First every task by itself; then whatever other acts have meanwhile made of those above them.

    ``tasks``: columns as an act found them, by name; ``data`` goes into the events.
    """
    for name, before in tasks.items():
        _put_back(journal, run_id, name, dict(before), data)
    for name, before in tasks.items():
        if before["state"] in WAITING:
            reconsider(journal, run_id, name)
        else:
            propagate(journal, run_id, name)
    unpropagate(journal, run_id, tasks)


def _put_back(journal: Journal, run_id: str, name: str, before: Dict[str, Any], data: Optional[Dict[str, Any]]) -> None:
    row = look(journal.connection, run_id, name)
    assert row is not None
    state = before.pop("state")
    if before["generation"] == row.generation:
        del before["generation"]
    if state == row.state:
        journal.change(run_id, name, before, data=data)
        return
    now = row.state
    if TaskState(state) not in LEGAL_MOVES[TaskState(now)]:
        journal.move(run_id, name, now, TaskState.PENDING, row.generation)
        now = str(TaskState.PENDING)
    journal.move(run_id, name, now, state, row.generation, set=before, data=data)


def _run_move(work: Work, before: Dict[str, Any]) -> Tuple[Optional[str], Optional[str]]:
    return (str(RunState.RUNNING), before["state"]) if "state" in before else (None, None)
