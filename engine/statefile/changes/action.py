"""One act of an operator under way: what the tasks were, what came of each target, what to answer.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, cast

from ...domain.acts import BY_NAME, past_of
from ...domain.command import DONE, HELD, REFUSED, RUNNING, Answer, Command, Result, Target
from ...domain.event_codec import decode
from ...domain.event_payloads import RunChange, RunChanged, RunColumns, TaskChanged, TaskColumns, TaskMoved
from ...domain.events import EventKind
from ...domain.states import RunState
from .transitions import Journal

_EXPLAINED_REFUSALS = 50  # looking up who came first costs a query each


class RememberingJournal(Journal):
    """A journal that keeps what was there before, so that the act can be undone.

    Writes through to the events of ``journal``, and marks every move as a part of ``act``.

    ``tasks``: name -> state, generation and the changed columns as they were. ``runs``: (what, columns as they were).
    ``rows``: quarantined rows as they were: [task, state, generation, [[first id, last id], ...]].
    """

    def __init__(self, journal: Journal, act: str) -> None:
        Journal.__init__(self, journal.connection, journal.at, journal.actor, journal.reason, journal.command_id)
        self.events = journal.events
        self.act = act
        self.tasks: Dict[str, TaskColumns] = {}
        self.runs: List[List[Any]] = []
        self.rows: List[List[Any]] = []

    def move(
        self,
        run_id: str,
        name: str,
        old: str,
        new: str,
        generation: int,
        set: Optional[TaskColumns] = None,
        attempt: Optional[int] = None,
        token: Optional[str] = None,
        payload: Optional[TaskMoved] = None,
    ) -> bool:
        self._remember(run_id, name, set or {})
        payload = (payload or TaskMoved())._replace(act=self.act)
        return Journal.move(self, run_id, name, old, new, generation, set, attempt, token, payload)

    def change(
        self,
        run_id: str,
        name: str,
        set: TaskColumns,
        attempt: Optional[int] = None,
        why: Optional[str] = None,
        act: Optional[str] = None,
    ) -> None:
        self._remember(run_id, name, set)
        Journal.change(self, run_id, name, set, attempt, why, act or self.act)

    def ask(self, run_id: str, name: str, set: TaskColumns, attempt: Optional[int] = None) -> None:
        """Change what the executor acts on at once: it cannot be taken back."""
        Journal.change(self, run_id, name, set, attempt, act=self.act)

    def change_run(
        self,
        run_id: str,
        change: RunChanged,
        old: Optional[str] = None,
        new: Optional[str] = None,
    ) -> None:
        sql = "SELECT {} FROM run WHERE run_id = ?".format(", ".join(change.set))
        before = dict(zip(change.set, self.connection.execute(sql, (run_id,)).fetchone()))
        self.runs.append([change.what, before])
        Journal.change_run(self, run_id, change, old, new)

    def _remember(self, run_id: str, name: str, columns: Mapping[str, object]) -> None:
        """Keep the first value of each column that really changes."""
        names = ["state", "generation"] + list(columns)
        sql = "SELECT {} FROM task WHERE run_id = ? AND name = ?".format(", ".join(names))
        row = self.connection.execute(sql, (run_id, name)).fetchone()
        if row is None:
            return
        before = cast(Dict[str, object], self.tasks.setdefault(name, {"state": row[0], "generation": row[1]}))
        for column, value in zip(names[2:], row[2:]):
            if value != columns[column]:
                before.setdefault(column, value)


class Seen(NamedTuple):
    """A task as it is now."""

    name: str
    state: str
    generation: int
    attempt: int
    next_retry_at: Optional[int]
    blocked_by: Optional[str]
    failures: int
    cancel_requested_at: Optional[int]
    overrides: Optional[str]


class Asked(NamedTuple):
    """Who wanted something, and when."""

    at: int
    actor: Optional[str]
    reason: Optional[str]
    command_id: Optional[str]


class Work(object):
    """One act under way. ``is_abandoned``: no executor lives, so nothing of the file runs any more."""

    def __init__(self, journal: RememberingJournal, command: Command, is_abandoned: bool = False) -> None:
        self.journal = journal
        self.is_abandoned = is_abandoned
        self.bearers: Dict[str, Optional[int]] = {}  # of a dead executor's token: the pid of one that still lives
        self.guards: Dict[str, Optional[str]] = {}  # why the breaker of a downstream lets nobody through
        self.probes: List[str] = []  # downstreams that are to be asked with one call
        self.shut: Dict[
            str, Tuple[List[str], str]
        ] = {}  # downstream -> who waits for its breaker all the same, and why
        self.act = command.act
        self.run_id = command.run_id or ""
        self.options: Dict[str, Any] = dict(command.options)
        self.targets = command.targets
        self.results: Dict[str, Result] = {}
        self.consequences: List[str] = []  # "5 unblocked"

    def say(self, name: str, result: str, sentence: str = "") -> None:
        self.results[name] = Result(name, result, sentence)

    def done(self) -> List[str]:
        return [result.task for result in self.results.values() if result.word == DONE]

    def note(self, names: List[str], words: str) -> None:
        if names:
            self.consequences.append("{} {}".format(len(names), words))


def look(connection: sqlite3.Connection, run_id: str, name: str) -> Optional[Seen]:
    """The task as it is now."""
    row = connection.execute(
        "SELECT name, state, generation, attempt, next_retry_at, blocked_by, failures, cancel_requested_at, overrides"
        " FROM task"
        " WHERE run_id = ? AND name = ?",
        (run_id, name),
    ).fetchone()
    return None if row is None else Seen(*row)


def still_as_seen(work: Work, target: Target) -> Optional[Seen]:
    """The target if it is still what the operator saw; else its refusal is written down."""
    name, state, generation = target
    row = look(work.journal.connection, work.run_id, name)
    if row is None:
        work.say(name, REFUSED, "there is no such task in this run")
    elif (row.state, row.generation) != (state, generation):
        work.say(name, REFUSED, _who_came_first(work, row, state, generation))
    else:
        return row
    return None


def who_asked(connection: sqlite3.Connection, run_id: str, name: str) -> Optional[Asked]:
    """Who wants the end of a running task; None where nobody does."""
    row = connection.execute(
        "SELECT event.at, event.actor, event.reason, event.command_id FROM task"
        " CROSS JOIN event INDEXED BY idx_event_command ON event.command_id IS NOT NULL"
        " AND event.run_id = task.run_id AND event.task = task.name AND event.at = task.cancel_requested_at"
        " WHERE task.run_id = ? AND task.name = ? ORDER BY event.seq DESC LIMIT 1",
        (run_id, name),
    ).fetchone()
    return None if row is None else Asked(*row)


def _who_came_first(work: Work, row: Seen, state: str, generation: int) -> str:
    now = "now {}".format(row.state) + (" attempt {}".format(row.attempt) if row.attempt else "")
    if len(work.results) < _EXPLAINED_REFUSALS:
        # The index holds operators' events alone; that of the run holds every one of a long night.
        last = work.journal.connection.execute(
            "SELECT at, actor, old, data FROM event INDEXED BY idx_event_command"
            " WHERE command_id IS NOT NULL AND run_id = ? AND task = ? AND kind = ? ORDER BY seq DESC LIMIT 1",
            (work.run_id, row.name, EventKind.TASK),
        ).fetchone()
        if last is not None and (row.generation != generation or last[2] == state):
            verb = verb_of(EventKind.TASK, last[3])
            return "already {} by {} {}, {}".format(verb, last[1], ago(work.journal.at - last[0]), now)
    return "no longer {}: {}".format(state, now)


def verb_of(kind: str, data: str) -> str:
    """What the act that an event of a task is a part of did to it. ``data``: the payload as JSON."""
    payload = decode(kind, json.loads(data))
    act = payload.act if isinstance(payload, (TaskMoved, TaskChanged)) else None
    return past_of(act or "")


def ago(microseconds: int) -> str:
    """An age in words."""
    seconds = max(0, microseconds // 1000000)
    if seconds < 120:
        return "{} s ago".format(seconds)
    if seconds < 7200:
        return "{} min ago".format(seconds // 60)
    return "{} h ago".format(seconds // 3600)


def conclude(work: Work) -> Answer:
    """Open the run again where something will move, and sum up."""
    act = BY_NAME[work.act]
    results = tuple(work.results.values())
    done = len(work.done())
    if done:
        open_run(work.journal, work.run_id)
        _warn_of_a_pause(work)
    held = [result for result in results if result.word == HELD]
    if held:
        work.note([result.task for result in held], held[0].sentence)
    refused = sum(1 for result in results if result.word == REFUSED)
    running = sum(1 for result in results if result.word == RUNNING)
    parts = ["{} {}".format(done, act.past)] if done or not running else []
    parts += ["{} {}".format(running, act.awaited)] if running else []
    parts += ["{} refused".format(refused)] if refused else []
    message = ", ".join(parts)
    if len(results) == 1 and refused:
        message = "{}: {}".format(results[0].task, results[0].sentence)
    elif work.consequences:
        message += "; " + ", ".join(work.consequences)
    return Answer(done + running > 0, message, results)


def _warn_of_a_pause(work: Work) -> None:
    if not BY_NAME[work.act].starts_work:
        return
    sql = "SELECT paused_by FROM run WHERE run_id = ? AND paused_since IS NOT NULL"
    paused = work.journal.connection.execute(sql, (work.run_id,)).fetchone()
    if paused is not None:
        by = paused[0] or "somebody"
        work.consequences.append("the run is paused by {}: nothing starts before redrive unpause".format(by))


def open_run(journal: Journal, run_id: str) -> None:
    """A run in which something may move again is neither ended nor blocked."""
    row = journal.connection.execute("SELECT state, blocked_since FROM run WHERE run_id = ?", (run_id,)).fetchone()
    if row is None:
        return
    state, blocked_since = row
    if state != RunState.RUNNING:
        columns: RunColumns = {"state": str(RunState.RUNNING), "ended_at": None, "blocked_since": None}
        reopened = RunChanged(RunChange.REOPENED, columns)
        journal.change_run(run_id, reopened, old=state, new=str(RunState.RUNNING))
    elif blocked_since is not None:
        journal.change_run(run_id, RunChanged(RunChange.UNBLOCKED, {"blocked_since": None}))
