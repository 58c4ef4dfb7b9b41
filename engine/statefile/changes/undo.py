"""The act ``undo``: reverts an operator's act, as long as its tasks have not changed since.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Any, Iterator, NamedTuple, Optional, Tuple

from ...domain.command import DONE, Answer, parse_answer
from ...domain.event_codec import decode
from ...domain.event_payloads import Before, OperatorActed, RunChange, RunChanged, RunColumns, TaskColumns, TaskMoved
from ...domain.events import EventKind
from ...domain.states import LEGAL_MOVES, WAITING, RunState, TaskState
from . import quarantine_actions
from .action import ActionContext, ago, read_task, verb_of
from .propagation import children_of, propagate, reevaluate, unpropagate
from .transitions import Transaction

#: Change of a run -> the change that reverts it.
_RUN_WORDS = {
    RunChange.REOPENED: RunChange.ENDED,
    RunChange.ENDED: RunChange.REOPENED,
    RunChange.UNBLOCKED: RunChange.BLOCKED,
    RunChange.PAUSED: RunChange.UNPAUSED,
    RunChange.UNPAUSED: RunChange.PAUSED,
}


class RecordedAct(NamedTuple):
    """An act as recorded in its event."""

    seq: int
    at: int  # microseconds UTC
    run_id: Optional[str]
    actor: Optional[str]
    reason: Optional[str]
    answer: Answer
    payload: OperatorActed


def find_act(connection: sqlite3.Connection, command_id: str) -> Optional[RecordedAct]:
    """The recorded act with this command id; None if there is none."""
    row = connection.execute(
        "SELECT seq, at, run_id, actor, reason, data FROM event WHERE command_id = ? AND kind = ? ORDER BY seq LIMIT 1",
        (command_id, EventKind.OPERATOR),
    ).fetchone()
    if row is None:
        return None
    payload = decode(EventKind.OPERATOR, json.loads(row[5]))
    assert isinstance(payload, OperatorActed)
    return RecordedAct(row[0], row[1], row[2], row[3], row[4], parse_answer(payload.answer), payload)


def undo(context: ActionContext) -> Answer:
    """Restore every task that the act ``options["command"]`` changed, or none of them.

    Refused when one of them has moved since, or a child has started. A move to READY is allowed: the task has not run.
    """
    act = find_act(context.transaction.connection, str(context.options.get("command") or ""))
    if act is None:
        return Answer(False, "there is no such act in this state file")
    tasks, runs = act.payload.was, act.payload.was_run
    if not tasks and not runs:
        return Answer(False, "there is nothing to undo: {}".format(act.answer.message))
    context.run_id = act.run_id or ""
    obstacle = _obstacle(context, act.seq, tasks)
    if obstacle:
        return Answer(False, "too late: {}".format(obstacle))
    restore_tasks(context.transaction, context.run_id, tasks)
    quarantine_actions.restore_rows(context.transaction, context.run_id, act.payload.was_rows)
    for what, before in reversed(runs):
        context.transaction.change_run(context.run_id, RunChanged(_RUN_WORDS[what], before), *_run_move(before))
    for name in tasks:
        context.set_result(name, DONE, "as before")
    message = "{} changed back".format(len(tasks)) if tasks else "changed back"
    return Answer(True, message, tuple(context.results.values()))


def _obstacle(context: ActionContext, seq: int, tasks: Before) -> Optional[str]:
    connection = context.transaction.connection
    children = {child.name for name in tasks for child in children_of(connection, context.run_id, name)}
    for name, kind, old, new, at, actor, data in _moves_since(connection, context.run_id, seq):
        if name in tasks and not (old == TaskState.PENDING and new == TaskState.READY):
            if actor is None:
                return "{} is {} now".format(name, new or "changed")
            return "{} was {} by {} {}".format(name, verb_of(kind, data), actor, ago(context.transaction.at - at))
        if name in children and new == TaskState.RUNNING:
            return "{}, which depends on it, has started".format(name)
    return None


def _moves_since(connection: sqlite3.Connection, run_id: str, seq: int) -> Iterator[Tuple[Any, ...]]:
    return connection.execute(
        "SELECT task, kind, old, new, at, actor, data FROM event WHERE run_id = ? AND seq > ? AND kind IN (?, ?)"
        " ORDER BY seq",
        (run_id, seq, EventKind.TASK, EventKind.TASK_CHANGED),
    )


def restore_tasks(transaction: Transaction, run_id: str, tasks: Before, why: Optional[str] = None) -> None:
    """Restore every task, then recompute the states that follow from the tasks above, which may have changed.

    ``tasks``: name -> columns before the act. ``why`` goes into the events.
    """
    for name, before in tasks.items():
        _put_back(transaction, run_id, name, before.copy(), why)
    for name, before in tasks.items():
        if before["state"] in WAITING:
            reevaluate(transaction, run_id, name)
        else:
            propagate(transaction, run_id, name)
    unpropagate(transaction, run_id, tasks)


def _put_back(transaction: Transaction, run_id: str, name: str, before: TaskColumns, why: Optional[str]) -> None:
    row = read_task(transaction.connection, run_id, name)
    assert row is not None
    state = before.pop("state")
    if before["generation"] == row.generation:
        del before["generation"]
    if state == row.state:
        transaction.change(run_id, name, before, why=why)
        return
    now = row.state
    if TaskState(state) not in LEGAL_MOVES[TaskState(now)]:
        transaction.move(run_id, name, now, TaskState.PENDING, row.generation)
        now = str(TaskState.PENDING)
    transaction.move(run_id, name, now, state, row.generation, set=before, payload=TaskMoved(why=why))


def _run_move(before: RunColumns) -> Tuple[Optional[str], Optional[str]]:
    if "state" not in before:
        return None, None
    is_reopened = before["state"] == RunState.RUNNING
    return str(RunState.ABANDONED if is_reopened else RunState.RUNNING), before["state"]
