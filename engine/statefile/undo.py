"""The act ``undo``: reverts an operator's act, task by task, as long as a task has not changed since.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from ..domain.acts import BY_NAME, DONE, REFUSED, Answer, Command, Scope, parse_answer
from ..domain.event_codec import decode
from ..domain.event_payloads import (
    Before,
    OperatorActed,
    RowLists,
    RunChange,
    RunChanged,
    RunColumns,
    TaskColumns,
)
from ..domain.events import EventKind
from ..domain.states import MOVING, WAITING, RunState, TaskState
from ..domain.text import format_clock
from . import clock_steps, quarantine, transitions
from .action import ActionContext, ago, read_known_task, reopen_run, text_of_note, verb_of
from .requeue import lift_passed_deadline
from .sql import run_columns

#: Change of a run -> the change that reverts it.
_REVERSED_CHANGES = {
    RunChange.REOPENED: RunChange.ENDED,
    RunChange.ENDED: RunChange.REOPENED,
    RunChange.BLOCKED: RunChange.UNBLOCKED,
    RunChange.UNBLOCKED: RunChange.BLOCKED,
    RunChange.PAUSED: RunChange.UNPAUSED,
    RunChange.UNPAUSED: RunChange.PAUSED,
    RunChange.POSTPONED: RunChange.POSTPONED,
    RunChange.ACKNOWLEDGED: RunChange.ACKNOWLEDGED,
}


Relatives = Dict[str, List[str]]  # task of an act -> the tasks directly below it, or above it

#: What an act changes of a run that has ended; the run goes on if other tasks have moved since.
_OF_AN_END = frozenset([RunChange.REOPENED, RunChange.POSTPONED])


class RecordedAct(NamedTuple):
    """An act as recorded in its event."""

    seq: int
    run_id: Optional[str]
    actor: Optional[str]
    reason: Optional[str]
    answer: Answer
    payload: OperatorActed


def find_act(connection: sqlite3.Connection, command_id: str) -> Optional[RecordedAct]:
    """The recorded act with this command id; None if there is none."""
    row = connection.execute(
        "SELECT seq, run_id, actor, reason, data FROM event WHERE command_id = ? AND kind = ? ORDER BY seq LIMIT 1",
        (command_id, EventKind.OPERATOR),
    ).fetchone()
    if row is None:
        return None
    seq, run_id, actor, reason, data = row
    payload = decode(EventKind.OPERATOR, json.loads(data))
    assert isinstance(payload, OperatorActed)
    if payload.act == "note":  # the event of the note has its text, which is a part of the act
        of_note = "SELECT data FROM event WHERE command_id = ? AND kind = ? LIMIT 1"
        for (note,) in connection.execute(of_note, (command_id, EventKind.NOTE)):
            payload = payload._replace(options=dict(payload.options, text=json.loads(note).get("text")))
    return RecordedAct(seq, run_id, actor, reason, parse_answer(payload.answer), payload)


def answer_again(earlier: RecordedAct, command: Command) -> Answer:
    """The answer to a command whose id has come before: that of before, or a refusal if it is another act.

    What the operator saw of the targets does not count: the first one has changed it. An act on anything but tasks has
    results of tasks that it does not name.
    """
    given, known = dict(command.options), {result.task for result in earlier.answer.results}
    if "text" not in earlier.payload.options:
        given.pop("text", None)  # of a note that was refused
    named = {target.task for target in command.targets}
    is_same = (
        (earlier.payload.act, earlier.reason or "", _lasting(earlier.payload.options))
        == (command.act, command.reason, _lasting(given))
        and command.run_id in (None, earlier.run_id)
        and (not known or named <= known or BY_NAME[command.act].scope is not Scope.TASKS)
    )
    if is_same:
        return earlier.answer
    first = "{} by {}".format(earlier.payload.act, earlier.actor or "somebody")
    return Answer(False, f"nothing is changed: the id {command.id} is that of another act ({first})")


def _lasting(options: Mapping[str, Any]) -> Any:
    """The options of an act, without what the same words mean at another time: how long it is until 06:00."""
    moving = {"not_before"} | ({"seconds"} if options.get("is_time") else set())
    known = {name: name in moving or value for name, value in options.items()}
    if "text" in known:
        known["text"] = text_of_note(known["text"])
    return json.loads(json.dumps(known))


def undo(context: ActionContext) -> Answer:
    """Restore the tasks that the act ``options["command"]`` changed and that have not moved since.

    A task that has moved stays as it is, with the tasks of the act above and below it; its refusal says what became
    of it. A move to READY is not an obstacle: the task has not run.
    """
    act = find_act(context.connection, str(context.options.get("command") or ""))
    if act is None:
        return Answer(False, "there is no such act in this state file")
    tasks, runs = act.payload.was, act.payload.was_run
    if not tasks and not runs:
        return Answer(False, f"there is nothing to undo: {act.answer.message}")
    context.run_id = act.run_id or ""
    below = {
        name: [child.name for child in transitions.children_of(context.connection, context.run_id, name)]
        for name in tasks
    }
    moved = _moved_since(context, act.seq, below)
    stuck = _with_relatives(below, moved)
    restored = {name: before for name, before in tasks.items() if name not in stuck}
    if moved and not restored:
        return Answer(False, "too late: {} {}".format(*next(iter(moved.values()))))
    jump_us = clock_steps.steps_since(context.connection, context.run_id, act.seq)
    if jump_us:
        restored, runs = _shift(context, restored, runs, jump_us)
    _restore(context, act, restored)
    if not moved:
        _restore_run(context, act, runs)
    targets = {result.task for result in act.answer.results if result.outcome == DONE}
    for name in tasks:
        if name in stuck and name in targets:
            subject, what = moved.get(name) or next(iter(moved.values()))
            context.set_result(name, REFUSED, f"stays: {'it' if subject == name else subject} {what}")
    for name in restored:
        context.set_result(name, DONE, "as before")
    return Answer(True, _undo_message(restored, context), tuple(context.results.values()))


def _restore(context: ActionContext, act: RecordedAct, restored: Before) -> None:
    """Restore tasks with their quarantined rows; reopen the run if the executor moves any of them."""
    restore_tasks(context.transaction, context.run_id, restored)
    rows = [row for row in act.payload.was_rows if row[0] in restored]
    quarantine.restore_rows(context.transaction, context.run_id, rows)
    transitions.reopen_pages(context.transaction, context.run_id, act.payload.was_pages, restored)
    is_moving = any(before["state"] in MOVING for before in restored.values())
    if is_moving:
        lift_passed_deadline(context)
    if is_moving or (restored and _has_run_ended(context)):
        reopen_run(context.transaction, context.run_id)  # it ended, or was blocked, by other states of these tasks


def _restore_run(context: ActionContext, act: RecordedAct, changes: RowLists) -> None:
    """Revert what the act changed of the run, latest change first."""
    for what, before, *other in reversed(changes):
        if what in _OF_AN_END and _have_others_moved(context, act.seq, act.payload.was):
            continue  # its end was that of other states
        if what == RunChange.UNBLOCKED and not _has_dead_letter(context):
            continue  # the page that called for a breaker or a pause is resolved: the executor blocks and pages again
        run_id = other[0] if other else context.run_id
        why = _deadline_again(before) if what == RunChange.POSTPONED else None
        context.transaction.change_run(run_id, RunChanged(_REVERSED_CHANGES[what], before, why=why), *_run_move(before))


def _deadline_again(before: RunColumns) -> str:
    deadline_at = before.get("deadline_at")
    return (
        "the run has no deadline again" if deadline_at is None else f"the deadline is {format_clock(deadline_at)} again"
    )


def _shift(context: ActionContext, tasks: Before, runs: RowLists, jump_us: int) -> Tuple[Before, RowLists]:
    """Shift what an act has recorded by the steps of the clock since then."""
    is_time, deadline_at = run_columns(context.connection, context.run_id, "deadline_is_time, deadline_at") or (0, None)
    deadline_at = deadline_at if is_time else None
    shifted = {name: clock_steps.shift_recorded(before, deadline_at, jump_us) for name, before in tasks.items()}
    return shifted, [
        [what, dict(before, **clock_steps.shift_run(before, jump_us))] + other for what, before, *other in runs
    ]


def _has_run_ended(context: ActionContext) -> bool:
    (ended_at,) = run_columns(context.connection, context.run_id, "ended_at") or (None,)
    return ended_at is not None


def _have_others_moved(context: ActionContext, seq: int, tasks: Before) -> bool:
    moves = _moves_since(context.connection, context.run_id, seq)
    return any(name not in tasks for name, kind, *_ in moves if kind == EventKind.TASK)


def _has_dead_letter(context: ActionContext) -> bool:
    sql = "SELECT 1 FROM task WHERE run_id = ? AND state = ?"
    values = (context.run_id, str(TaskState.DEAD_LETTER))
    return context.connection.execute(sql, values).fetchone() is not None


def _undo_message(restored: Before, context: ActionContext) -> str:
    message = f"{len(restored):,} changed back" if restored else "changed back"
    stay = sum(1 for result in context.results.values() if result.outcome == REFUSED)
    return message + (", {:,} had moved on and stay{}".format(stay, "s" if stay == 1 else "") if stay else "")


def _reversed(below: Relatives) -> Relatives:
    above: Relatives = {}
    for name, children in below.items():
        for child in children:
            above.setdefault(child, []).append(name)
    return above


def _moved_since(context: ActionContext, seq: int, below: Relatives) -> Dict[str, Tuple[str, str]]:
    """The tasks of the act that cannot be restored -> which task did what, in the order of the events."""
    above = _reversed(below)
    moved: Dict[str, Tuple[str, str]] = {}
    for name, kind, old, new, at, actor, data in _moves_since(context.connection, context.run_id, seq):
        if name in below and not (old == TaskState.PENDING and new == TaskState.READY):
            when = ago(context.transaction.at - at)
            by = f"was {verb_of(kind, data)} by {actor} {when}" if actor is not None else ""
            moved[name] = name, by or _state_now(context, name)
        if new == TaskState.RUNNING:
            for parent in above.get(name, ()):
                moved.setdefault(parent, (f"{name}, which depends on it,", "has started"))
    return moved


_STATE_TEXTS = {
    TaskState.SUCCESS: "has succeeded",
    TaskState.RUNNING: "is running now",
    TaskState.RETRYING: "has failed and waits for its retry",
    TaskState.DEAD_LETTER: "has run and is a dead letter again",
    TaskState.FAILED: "has run and failed again",
}


def _state_now(context: ActionContext, name: str) -> str:
    """Describe the state of a task, from its row: its events since the act may name states that it has left."""
    row = read_known_task(context.connection, context.run_id, name)
    return _STATE_TEXTS.get(TaskState(row.state), f"is {row.state} now")


def _with_relatives(below: Relatives, moved: Iterable[str]) -> Set[str]:
    """The moved tasks, those of the act above them, and those below any of these: what stays as the act has made it.

    Restoring them would contradict what has run, or what runs again.
    """
    found: Set[str] = set(moved)
    for edges in (_reversed(below), below):
        queue = list(found)
        while queue:
            for name in edges.get(queue.pop(), ()):
                if name in below and name not in found:
                    found.add(name)
                    queue.append(name)
    return found


def _moves_since(connection: sqlite3.Connection, run_id: str, seq: int) -> Iterator[Tuple[Any, ...]]:
    """Yield the changes of tasks after the event ``seq``, without those of acts that were taken back since."""
    taken_back = _taken_back_since(connection, run_id, seq)
    rows = connection.execute(
        "SELECT task, kind, old, new, at, actor, data, command_id FROM event WHERE run_id = ? AND seq > ?"
        " AND kind IN (?, ?) ORDER BY seq",
        (run_id, seq, EventKind.TASK, EventKind.TASK_CHANGED),
    )
    for task, *columns, command_id in rows:
        if task not in taken_back.get(command_id, ()):
            yield tuple([task] + columns)


def _taken_back_since(connection: sqlite3.Connection, run_id: str, seq: int) -> Dict[str, Set[str]]:
    """By command id, of acts after ``seq`` and of the undo of each: the tasks that are again as before the act."""
    found: Dict[str, Set[str]] = {}
    undos: Dict[str, Tuple[str, Set[str]]] = {}  # command id of an act -> that of its undo, and its tasks
    acts = "SELECT command_id, data FROM event WHERE run_id = ? AND seq > ? AND kind = ? ORDER BY seq DESC"
    for command_id, data in connection.execute(acts, (run_id, seq, EventKind.OPERATOR)).fetchall():
        acted = decode(EventKind.OPERATOR, json.loads(data))
        assert isinstance(acted, OperatorActed)
        if command_id in undos:
            undo_id, tasks = undos[command_id]
            found[command_id] = found[undo_id] = tasks
        elif acted.act == "undo" and acted.answer.get("ok"):
            undos[str(acted.options.get("command"))] = command_id, set(acted.was)
    return found


def restore_tasks(transaction: transitions.Transaction, run_id: str, tasks: Before, why: Optional[str] = None) -> None:
    """Restore every task, then recompute the states that follow from the tasks above, which may have changed.

    ``tasks``: name -> columns before the act. ``why`` goes into the events.
    """
    for name, before in tasks.items():
        _put_back(transaction, run_id, name, before.copy(), why)
    for name, before in tasks.items():
        if before["state"] in WAITING:
            transitions.reevaluate(transaction, run_id, name)
        else:
            transitions.propagate(transaction, run_id, name)
    transitions.unpropagate(transaction, run_id, tasks)
    transitions.hold_children(
        transaction, run_id, tasks
    )  # their rules may have counted the states that the act had made
    for name in tasks:
        transitions.hold_if_blocked(transaction, run_id, name)  # a task above may run again by an act that stays


def _put_back(
    transaction: transitions.Transaction, run_id: str, name: str, before: TaskColumns, why: Optional[str]
) -> None:
    row = read_known_task(transaction.connection, run_id, name)
    state = before.pop("state")
    if before["generation"] == row.generation:
        del before["generation"]
    transaction.restore(run_id, name, row.state, state, row.generation, before, why)


def _run_move(before: RunColumns) -> Tuple[Optional[str], Optional[str]]:
    if "state" not in before:
        return None, None
    is_reopened = before["state"] == RunState.RUNNING
    return str(RunState.ABANDONED if is_reopened else RunState.RUNNING), before["state"]
