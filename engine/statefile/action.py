"""The context of one operator act: the tasks before it, the result of each target, and the answer.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, cast

from ..domain import acts
from ..domain.elements import GONE
from ..domain.event_codec import decode
from ..domain.event_payloads import RunChange, RunChanged, RunColumns, TaskChanged, TaskColumns, TaskMoved
from ..domain.events import EventKind
from ..domain.states import APPROVAL, RunState, TaskState, effect_key
from ..domain.task_options import child_bounds
from ..domain.text import format_duration, printable
from .sql import run_columns, task_columns
from .transitions import Transaction

_EXPLAINED_REFUSALS = 50  # each explanation costs a query


class RecordingTransaction(Transaction):
    """A transaction that records the values before its changes, so that the act can be undone.

    Adds its events to those of the given transaction, and marks every move with ``act``.

    ``tasks``: name -> state, generation and changed columns before the act. ``runs``: [what, columns before the act],
    and the run if it is not that of the command.
    ``rows``: quarantined rows before the act: [task, state, generation, [[first id, last id], ...]].
    ``pages``: number -> itself, its state, whether it was re-armed, and the tasks of the act that it is about.
    """

    def __init__(self, transaction: Transaction, command: acts.Command) -> None:
        Transaction.__init__(self, transaction.connection, transaction.at, command.author)
        self.events = transaction.events
        self.act = command.act
        self.run_id = command.run_id
        self.tasks: Dict[str, TaskColumns] = {}
        self.runs: List[List[Any]] = []
        self.rows: List[List[Any]] = []
        self.pages: Dict[int, List[Any]] = {}

    def _before_run_change(self, run_id: str, change: RunChanged) -> None:
        before = dict(zip(change.set, run_columns(self.connection, run_id, ", ".join(change.set))))
        self.runs.append([change.what, before] + [run_id] * (run_id != self.run_id))

    def before_page_change(self, page_id: int, task: Optional[str]) -> None:
        if page_id not in self.pages:
            row = self.connection.execute("SELECT state, rearmed FROM page WHERE id = ?", (page_id,)).fetchone()
            self.pages[page_id] = [page_id, *row, []]
        self.pages[page_id][3] += [] if task is None else [task]

    def _before_change(self, run_id: str, name: str, columns: Mapping[str, object]) -> None:
        """Record the first value of each column whose value changes."""
        if "cancel_requested_at" in columns:
            return  # the executor acts on it at once, so that an undo cannot restore it
        names = ["state", "generation"] + list(columns)
        row = task_columns(self.connection, run_id, name, ", ".join(names))
        if row is None:
            return
        before = cast(Dict[str, object], self.tasks.setdefault(name, {"state": row[0], "generation": row[1]}))
        for column, value in zip(names[2:], row[2:]):
            if value != columns[column]:
                before.setdefault(column, value)


class TaskSnapshot(NamedTuple):
    """The current columns of a task that acts and maps read."""

    name: str
    state: str
    generation: int
    attempt: int
    next_retry_at: Optional[int]
    blocked_by: Optional[str]
    cancel_requested_at: Optional[int]
    overrides: Optional[str]
    key_generation: int
    dead_letter_kind: Optional[str]
    skip_cause: Optional[str]
    stale: int
    notice: Optional[str]
    element: Optional[str]  # this and the next: of a child of a map task
    aside: Optional[str]
    spec: str

    def read_spec(self) -> Dict[str, Any]:
        """Its options, as its flow gave them."""
        return dict(json.loads(self.spec))

    @property
    def is_gone(self) -> bool:
        """Whether it is the child of a map task for an element that the list has no more."""
        item = self.read_spec().get("item")
        return item is not None and bool(item["index"] == GONE)


class ActionContext(object):
    """The state of one act while it is applied. ``is_abandoned``: no executor lives, so no task of the file runs."""

    def __init__(self, transaction: RecordingTransaction, command: acts.Command, is_abandoned: bool = False) -> None:
        self.transaction = transaction
        self.connection = transaction.connection
        self.is_abandoned = is_abandoned
        self.orphan_pids: Dict[str, Optional[int]] = {}  # dead executor id -> a process of it that still lives
        self.breaker_obstacles: Dict[str, Optional[str]] = {}  # downstream -> why its breaker is shut
        self.probes: List[str] = []  # downstreams to probe with one call
        self.held_by_breaker: Dict[str, Tuple[List[str], str]] = {}  # downstream -> tasks that it still holds, and why
        self.act = command.act
        self.run_id = command.run_id or ""
        self.options: Dict[str, Any] = dict(command.options)
        self.targets = command.targets
        self.results: Dict[str, acts.TargetResult] = {}
        self.consequences: List[str] = []  # "5 unblocked"
        self.notes: List[str] = []  # sentences that an operator should read before the act

    def read_task(self, name: str) -> Optional[TaskSnapshot]:
        """The columns of a task of the run as they are now; None if there is no such task."""
        return read_task(self.connection, self.run_id, name)

    def set_result(self, name: str, result: str, sentence: str = "") -> None:
        self.results[name] = acts.TargetResult(name, result, sentence)

    def done_names(self) -> List[str]:
        return [result.task for result in self.results.values() if result.outcome == acts.DONE]

    def add_consequence(self, names: List[str], words: str) -> None:
        if names:
            self.consequences.append(f"{len(names)} {words}")


_TASKS = "SELECT " + ", ".join(TaskSnapshot._fields) + " FROM task WHERE run_id = ? AND name "


def read_task(connection: sqlite3.Connection, run_id: str, name: str) -> Optional[TaskSnapshot]:
    row = connection.execute(_TASKS + "= ?", (run_id, name)).fetchone()
    return None if row is None else TaskSnapshot(*row)


def read_known_task(connection: sqlite3.Connection, run_id: str, name: str) -> TaskSnapshot:
    """The columns of a task that the run certainly has."""
    row = read_task(connection, run_id, name)
    assert row is not None
    return row


def read_children(connection: sqlite3.Connection, run_id: str, task: str) -> Dict[str, TaskSnapshot]:
    """All children that the run has ever had for a map task."""
    rows = connection.execute(_TASKS + ">= ? AND name < ?", (run_id, *child_bounds(task)))
    return {row[0]: TaskSnapshot(*row) for row in rows}


def check_target(context: ActionContext, target: acts.Target) -> Optional[TaskSnapshot]:
    """Return the target if its state and generation are those that the operator saw; else record a refusal."""
    name, state, generation = target
    row = context.read_task(name)
    if row is None:
        context.set_result(name, acts.REFUSED, "there is no such task in this run")
    elif (row.state, row.generation) != (state, generation):
        context.set_result(name, acts.REFUSED, _change_reason(context, row, state, generation))
    else:
        return row
    return None


def who_cancelled(connection: sqlite3.Connection, run_id: str, name: str) -> Optional[acts.Author]:
    """The operator who asked for the end of a running task; None: nobody has."""
    row = connection.execute(
        "SELECT event.actor, event.reason, event.command_id FROM task"
        " CROSS JOIN event INDEXED BY idx_event_command ON event.command_id IS NOT NULL"
        " AND event.run_id = task.run_id AND event.task = task.name AND event.at = task.cancel_requested_at"
        " WHERE task.run_id = ? AND task.name = ? ORDER BY event.seq DESC LIMIT 1",
        (run_id, name),
    ).fetchone()
    return None if row is None else acts.Author(*row)


#: The index holds operators' events only; that of the run holds every event.
_LATEST_ACT = (
    "SELECT at, actor, old, data FROM event INDEXED BY idx_event_command"
    " WHERE command_id IS NOT NULL AND run_id = ? AND task = ? AND kind = ? ORDER BY seq DESC LIMIT 1"
)


def _change_reason(context: ActionContext, row: TaskSnapshot, state: str, generation: int) -> str:
    now = f"now {row.state}" + (f" attempt {row.attempt}" if row.attempt else "")
    if len(context.results) < _EXPLAINED_REFUSALS:
        last = context.connection.execute(_LATEST_ACT, (context.run_id, row.name, EventKind.TASK)).fetchone()
        if last is not None and (row.generation != generation or last[2] == state):
            verb = verb_of(EventKind.TASK, last[3])
            return f"already {verb} by {last[1]} {ago(context.transaction.at - last[0])}, {now}"
    return f"no longer {state}: {now}"


_LIMITS = (
    "SELECT expires_at, timeout_us FROM task LEFT JOIN attempt USING (run_id, name, attempt)"
    " WHERE task.run_id = ? AND task.name = ?"
)


def refusal_of(context: ActionContext, row: TaskSnapshot) -> Optional[str]:
    """Why the act cannot change a task; None if it can."""
    expires_at, timeout_us = context.connection.execute(_LIMITS, (context.run_id, row.name)).fetchone()
    is_approval = row.read_spec().get("kind") == APPROVAL
    is_expired = is_approval and expires_at is not None and expires_at <= context.transaction.at
    facts = acts.TaskFacts(
        state=row.state,
        has_run=bool(row.attempt),
        has_instant=row.next_retry_at is not None,
        is_approval=is_approval,
        is_gone=row.is_gone,
        is_ending=row.cancel_requested_at is not None,
        is_lost=context.is_abandoned,
        is_paused=bool(_paused_by(context)),
        expired_at=expires_at if is_expired else None,
        timeout_us=timeout_us,
        repeated_key=repeated_key(context, row),
        requeued=_requeued_by(context, row),
    )
    return acts.task_refusal(context.act, facts)


def repeated_key(context: ActionContext, row: TaskSnapshot) -> Optional[str]:
    """The key of an effect that has happened and that the act does not say how to repeat: no payment is made twice."""
    says_how = context.options.get("same_key") or context.options.get("new_key")
    is_repeated = row.state == TaskState.SUCCESS and row.read_spec().get("effect") and not says_how
    return effect_key(context.run_id, row.name, row.key_generation) if is_repeated else None


def _requeued_by(context: ActionContext, row: TaskSnapshot) -> str:
    if row.state == TaskState.PENDING and row.generation and len(context.results) < _EXPLAINED_REFUSALS:
        last = context.connection.execute(_LATEST_ACT, (context.run_id, row.name, EventKind.TASK)).fetchone()
        if last is not None and verb_of(EventKind.TASK, last[3]) == acts.past_of("requeue"):
            return f" by {last[1]} {ago(context.transaction.at - last[0])}"
    return " before" if row.generation else ""


def text_of_note(text: object) -> str:
    """The printable characters of a note, without control and direction marks; line breaks become spaces."""
    if not isinstance(text, str):
        return ""
    return " ".join(printable(text).split())


def verb_of(kind: str, data: str) -> str:
    """The participle of the act that an event of a task belongs to. ``data``: the payload as JSON."""
    payload = decode(kind, json.loads(data))
    act = payload.act if isinstance(payload, (TaskMoved, TaskChanged)) else None
    return acts.past_of(act or "")


def ago(microseconds: int) -> str:
    """An age in words."""
    return f"{format_duration(microseconds)} ago"


def summarize(context: ActionContext) -> acts.Answer:
    """Reopen the run if a target was changed, and make the answer from the results."""
    act = acts.BY_NAME[context.act]
    results = tuple(context.results.values())
    done = len(context.done_names())
    if done:
        reopen_run(context.transaction, context.run_id)
        _warn_if_paused(context)
    held = [result for result in results if result.outcome == acts.HELD]
    if held:
        context.add_consequence([result.task for result in held], held[0].sentence)
    refused = sum(1 for result in results if result.outcome == acts.REFUSED)
    running = sum(1 for result in results if result.outcome == acts.RUNNING)
    parts = [f"{done} {act.past}"] if done or not running else []
    parts += [f"{running} {act.awaited}"] if running else []
    parts += [f"{refused} refused"] if refused else []
    message = ", ".join(parts)
    if len(results) == 1 and refused:
        message = f"{results[0].task}: {results[0].sentence}"
    elif context.consequences or context.notes:
        message = "; ".join([message] + [", ".join(context.consequences)] * bool(context.consequences) + context.notes)
    return acts.Answer(done + running > 0, message, results)


def _warn_if_paused(context: ActionContext) -> None:
    if not acts.BY_NAME[context.act].starts_work:
        return
    by = _paused_by(context)
    if by:
        context.consequences.append(f"nothing starts before it is unpaused: the run is paused by {by}")


def _paused_by(context: ActionContext) -> str:
    """The operator who has paused the run; empty if none has."""
    sql = "SELECT coalesce(paused_by, 'an operator') FROM run WHERE run_id = ? AND paused_since IS NOT NULL"
    row = context.connection.execute(sql, (context.run_id,)).fetchone()
    return row[0] if row is not None else ""


def reopen_run(transaction: Transaction, run_id: str) -> None:
    """Make a run RUNNING and not blocked, because one of its tasks may move again."""
    row = run_columns(transaction.connection, run_id, "state, blocked_since")
    if row is None:
        return
    state, blocked_since = row
    if state != RunState.RUNNING:
        columns: RunColumns = {"state": str(RunState.RUNNING), "ended_at": None, "blocked_since": None}
        columns.update({"acknowledged_at": None, "acknowledged_by": None, "abandoned_at": None})
        reopened = RunChanged(RunChange.REOPENED, columns)
        transaction.change_run(run_id, reopened, old=state, new=str(RunState.RUNNING))
    elif blocked_since is not None:
        transaction.change_run(run_id, RunChanged(RunChange.UNBLOCKED, {"blocked_since": None}))
