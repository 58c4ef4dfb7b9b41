"""Takes an operator's act back, as long as nothing has happened to what it touched.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Any, Iterator, NamedTuple, Optional, Tuple

from ...domain.command import DONE, Answer, answer_of
from ...domain.event_codec import decode
from ...domain.event_payloads import Before, OperatorActed, RunChange, RunChanged, RunColumns, TaskColumns, TaskMoved
from ...domain.events import EventKind
from ...domain.states import LEGAL_MOVES, WAITING, RunState, TaskState
from . import quarantine_actions
from .action import Work, ago, look, verb_of
from .propagation import children_of, propagate, reconsider, unpropagate
from .transitions import Journal

#: What a change of the run is called when it is taken back.
_RUN_WORDS = {
    RunChange.REOPENED: RunChange.ENDED,
    RunChange.UNBLOCKED: RunChange.BLOCKED,
    RunChange.PAUSED: RunChange.UNPAUSED,
    RunChange.UNPAUSED: RunChange.PAUSED,
}


class RecordedAct(NamedTuple):
    """An act as its event records it."""

    seq: int
    at: int  # microseconds UTC
    run_id: Optional[str]
    actor: Optional[str]
    reason: Optional[str]
    answer: Answer
    payload: OperatorActed


def find_act(connection: sqlite3.Connection, command_id: str) -> Optional[RecordedAct]:
    """The act with this id, as it was recorded; None where there is none."""
    row = connection.execute(
        "SELECT seq, at, run_id, actor, reason, data FROM event WHERE command_id = ? AND kind = ? ORDER BY seq LIMIT 1",
        (command_id, EventKind.OPERATOR),
    ).fetchone()
    if row is None:
        return None
    payload = decode(EventKind.OPERATOR, json.loads(row[5]))
    assert isinstance(payload, OperatorActed)
    return RecordedAct(row[0], row[1], row[2], row[3], row[4], answer_of(payload.answer), payload)


def undo(work: Work) -> Answer:
    """Put back every task that the act ``options["command"]`` changed, or none of them.

    Allowed until one of them, or a child of one, has moved on. Promotion to READY is no obstacle: nothing ran yet.
    """
    act = find_act(work.journal.connection, str(work.options.get("command") or ""))
    if act is None:
        return Answer(False, "there is no such act in this state file")
    tasks, runs = act.payload.was, act.payload.was_run
    if not tasks and not runs:
        return Answer(False, "there is nothing to undo: {}".format(act.answer.message))
    work.run_id = act.run_id or ""
    obstacle = _obstacle(work, act.seq, tasks)
    if obstacle:
        return Answer(False, "too late: {}".format(obstacle))
    restore(work.journal, work.run_id, tasks)
    quarantine_actions.put_back(work.journal, work.run_id, act.payload.was_rows)
    for what, before in reversed(runs):
        work.journal.change_run(work.run_id, RunChanged(_RUN_WORDS[what], before), *_run_move(before))
    for name in tasks:
        work.say(name, DONE, "as before")
    message = "{} changed back".format(len(tasks)) if tasks else "changed back"
    return Answer(True, message, tuple(work.results.values()))


def _obstacle(work: Work, seq: int, tasks: Before) -> Optional[str]:
    connection = work.journal.connection
    children = {child.name for name in tasks for child in children_of(connection, work.run_id, name)}
    for name, kind, old, new, at, actor, data in _moves_since(connection, work.run_id, seq):
        if name in tasks and not (old == TaskState.PENDING and new == TaskState.READY):
            if actor is None:
                return "{} is {} now".format(name, new or "changed")
            return "{} was {} by {} {}".format(name, verb_of(kind, data), actor, ago(work.journal.at - at))
        if name in children and new == TaskState.RUNNING:
            return "{}, which depends on it, has started".format(name)
    return None


def _moves_since(connection: sqlite3.Connection, run_id: str, seq: int) -> Iterator[Tuple[Any, ...]]:
    return connection.execute(
        "SELECT task, kind, old, new, at, actor, data FROM event WHERE run_id = ? AND seq > ? AND kind IN (?, ?)"
        " ORDER BY seq",
        (run_id, seq, EventKind.TASK, EventKind.TASK_CHANGED),
    )


def restore(journal: Journal, run_id: str, tasks: Before, why: Optional[str] = None) -> None:
    """First every task by itself; then whatever other acts have meanwhile made of those above them.

    ``tasks``: columns as an act found them, by name; ``why`` goes into the events.
    """
    for name, before in tasks.items():
        _put_back(journal, run_id, name, before.copy(), why)
    for name, before in tasks.items():
        if before["state"] in WAITING:
            reconsider(journal, run_id, name)
        else:
            propagate(journal, run_id, name)
    unpropagate(journal, run_id, tasks)


def _put_back(journal: Journal, run_id: str, name: str, before: TaskColumns, why: Optional[str]) -> None:
    row = look(journal.connection, run_id, name)
    assert row is not None
    state = before.pop("state")
    if before["generation"] == row.generation:
        del before["generation"]
    if state == row.state:
        journal.change(run_id, name, before, why=why)
        return
    now = row.state
    if TaskState(state) not in LEGAL_MOVES[TaskState(now)]:
        journal.move(run_id, name, now, TaskState.PENDING, row.generation)
        now = str(TaskState.PENDING)
    journal.move(run_id, name, now, state, row.generation, set=before, payload=TaskMoved(why=why))


def _run_move(before: RunColumns) -> Tuple[Optional[str], Optional[str]]:
    return (str(RunState.RUNNING), before["state"]) if "state" in before else (None, None)
