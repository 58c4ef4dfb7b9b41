"""The history of causes: their episodes in all runs of a flow, and the notes of operators on them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A cause is a loose fingerprint and a downstream. An episode is a set of tasks of one run that failed with the cause, up
to one decision: an operator requeued, skipped or cancelled them, or they expired, or no decision was made. Nothing is
stored for it: attempts have the failure and the result of the next generation, tasks their state, events the decision.
Three partial indexes keep the cost proportional to the failures of the cause. ``core/causes.py`` describes a
history in words.
"""

import json
import sqlite3
from collections import Counter
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from ..domain.acts import past_of, sender_command_id
from ..domain.event_codec import decode
from ..domain.event_payloads import NoteWritten
from ..domain.events import EventKind
from ..domain.states import FAILED_OUTCOMES, MOVING, NEEDS_HUMAN, NO_CAUSE, SkipCause, TaskState
from .lists import CAUSE
from .snapshot import read_run
from .sql import in_list

CAUSES_MAX = 100  # per request
EPISODES_MAX = 5  # per cause
RUNS_MAX = 200  # searched per cause, the latest
NOTES_MAX = 5
NOTES_READ_MAX = 1000
TASKS_MAX = 20000  # read per request, over all of its causes

#: Jumps from run to run within the index, so that a cause with a million failures is not slower.
_RUNS = (
    "WITH RECURSIVE seen(run_id) AS ("
    " SELECT min(run_id) FROM attempt INDEXED BY idx_attempt_cause WHERE fingerprint_loose = :loose"
    " UNION ALL SELECT (SELECT min(attempt.run_id) FROM attempt INDEXED BY idx_attempt_cause"
    "  WHERE attempt.fingerprint_loose = :loose AND attempt.run_id > seen.run_id)"
    " FROM seen WHERE seen.run_id IS NOT NULL)"
    " SELECT run.run_id, run.started_at FROM seen CROSS JOIN run ON run.run_id = seen.run_id"
    " WHERE +run.dag_name = :dag ORDER BY run.rowid DESC"
)
_NAMES = (
    "(SELECT DISTINCT name FROM attempt INDEXED BY idx_attempt_cause"
    " WHERE fingerprint_loose = :loose AND run_id = :run LIMIT :room) AS failed"
)
_ATTEMPTS = (
    "SELECT attempt.name, attempt.generation, attempt.outcome, attempt.fingerprint_loose, attempt.ended_at FROM "
    + _NAMES
    + " CROSS JOIN attempt ON attempt.run_id = :run AND attempt.name = failed.name AND attempt.late = 0"
    " ORDER BY attempt.name, attempt.attempt"
)
_TASKS = (
    "SELECT task.name, task.state, task.generation, task.dead_letter_kind, task.skip_cause, task.spec FROM "
    + _NAMES
    + " CROSS JOIN task ON task.run_id = :run AND task.name = failed.name"
)
_OPEN = (
    "SELECT " + CAUSE + " AS cause, task.spec FROM task LEFT JOIN attempt"
    " ON attempt.run_id = task.run_id AND attempt.name = task.name AND attempt.attempt = task.attempt"
    " WHERE task.run_id = ? AND task.state IN " + in_list(NEEDS_HUMAN) + " AND cause IS NOT NULL"
)
_DECISIONS = (
    "SELECT task, new, generation, at, actor, reason, command_id FROM event INDEXED BY idx_event_decision"
    " WHERE run_id = ? AND kind = 'task' AND old IN "
    + in_list(NEEDS_HUMAN)
    + " AND command_id IS NOT NULL ORDER BY seq"
)
_NOTES = (
    "SELECT at, actor, run_id, data FROM event INDEXED BY idx_event_note WHERE kind = 'note' ORDER BY seq DESC LIMIT ?"
)

CauseRow = Dict[str, Any]
CauseKey = Tuple[str, Optional[str]]  # loose fingerprint, downstream; None: any


class _Decision(NamedTuple):
    at: int
    actor: Optional[str]
    reason: Optional[str]
    command_id: str


class _Attempt(NamedTuple):
    generation: int
    outcome: str
    loose: Optional[str]
    ended_at: Optional[int]


class _Task(NamedTuple):
    name: str
    state: str
    generation: int
    dead_letter_kind: Optional[str]
    skip_cause: Optional[str]
    spec: str


def read_cause_histories(
    connection: sqlite3.Connection, run_id: Optional[str], causes: Optional[Iterable[Any]] = None
) -> List[CauseRow]:
    """The history of each of ``causes`` [[loose fingerprint, downstream or None], ...] of a run, in their order.

    ``run_id`` None: of the latest run; ``causes`` None: of what needs a human in it.

    ``fingerprint`` and ``downstream`` as given; ``runs``: the number of other runs with the cause, since ``first_at``;
    ``episodes``: the latest first, without what waits for a decision in this run; what waits in other runs is one
    episode, and only if nothing was ever decided, because each of these runs is listed itself; ``notes``: the latest
    first.
    Instants in microseconds UTC. Raises NotFoundError for a run that the file does not have.
    """
    run = read_run(connection, run_id)
    found = _causes_of(connection, run.run_id) if causes is None else causes
    requested = [(str(loose), None if downstream is None else str(downstream)) for loose, downstream in found]
    search = _Search(connection, run.run_id, run.dag_name)
    return [search.history_of(cause) for cause in requested[:CAUSES_MAX]]


def _causes_of(connection: sqlite3.Connection, run_id: str) -> List[CauseKey]:
    """The causes of what needs a human, those of most tasks first."""
    found = Counter()  # type: Counter[CauseKey]
    for cause, spec in connection.execute(_OPEN, (run_id,)):
        found[(cause, json.loads(spec).get("downstream"))] += 1
    return [cause for cause, _ in found.most_common()]


def _history_row(cause: CauseKey, runs: List[Tuple[str, int]], episodes: List[CauseRow]) -> CauseRow:
    return {
        "fingerprint": cause[0],
        "downstream": cause[1],
        "runs": len(runs),
        "first_at": runs[-1][1] if runs else None,
        "episodes": episodes,
        "notes": [],
    }


class _Search(object):
    """A request for histories: data that several causes share is read once."""

    def __init__(self, connection: sqlite3.Connection, run_id: str, dag_name: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._dag_name = dag_name
        self._room = TASKS_MAX
        self._decisions: Dict[str, Dict[Tuple[str, str, int], _Decision]] = {}
        notes = [
            (_note(data), at, actor, run) for at, actor, run, data in connection.execute(_NOTES, (NOTES_READ_MAX,))
        ]
        self._notes = [found for found in notes if found[0].flow == dag_name]

    def history_of(self, cause: CauseKey) -> CauseRow:
        loose, downstream = cause
        if loose in NO_CAUSE:
            return _history_row(cause, [], [])
        runs = self._connection.execute(_RUNS, {"loose": loose, "dag": self._dag_name}).fetchall()
        decided: List[CauseRow] = []
        waiting: List[CauseRow] = []
        for run_id, _ in runs[:RUNS_MAX]:
            if len(decided) >= EPISODES_MAX or self._room <= 0:
                break
            for episode in self._episodes(cause, run_id):
                (waiting if episode["decision"] == "undecided" else decided).append(episode)
        episodes = decided[:EPISODES_MAX] or _merged(waiting)
        others = [run for run in runs if run[0] != self._run_id]
        return dict(_history_row(cause, others, episodes), notes=self._notes_on(loose, downstream))

    def _notes_on(self, loose: str, downstream: Optional[str]) -> List[CauseRow]:
        return [
            {"at": at, "actor": actor, "run_id": run_id, "text": note.text}
            for note, at, actor, run_id in self._notes
            if note.fingerprint == loose and (downstream is None or note.downstream in (None, downstream))
        ][:NOTES_MAX]

    def _episodes(self, cause: CauseKey, run_id: str) -> List[CauseRow]:
        """The episodes of one run, the latest decision first."""
        loose, downstream = cause
        values = {"loose": loose, "run": run_id, "room": self._room}
        tasks = [_Task(*row) for row in self._connection.execute(_TASKS, values)]
        self._room -= len(tasks)
        attempts: Dict[str, List[_Attempt]] = {}
        for row in self._connection.execute(_ATTEMPTS, values):
            attempts.setdefault(row[0], []).append(_Attempt(*row[1:]))
        found: Dict[Tuple[str, str], CauseRow] = {}
        for task in tasks:
            if downstream is None or downstream == json.loads(task.spec).get("downstream"):
                for failed, later in _failures(attempts.get(task.name, []), loose):
                    self._count(found, run_id, task, failed, later)
        return sorted(found.values(), key=lambda one: one["decided_at"] or one["at"], reverse=True)

    def _count(
        self, found: Dict[Tuple[str, str], CauseRow], run_id: str, task: _Task, failed: _Attempt, later: List[_Attempt]
    ) -> None:
        word = _decision_on(task, failed.generation)
        decision = self._decision(run_id, task.name, word, failed.generation)
        if word is None or (word in _UNDECIDED and run_id == self._run_id):
            return
        if word == "requeue" and decision is None:
            return  # the executor retried by itself
        key = (word, "" if decision is None else sender_command_id(decision.command_id))
        one = found.setdefault(key, _new_episode(run_id, word, decision))
        one["tasks"] += 1
        if failed.ended_at is not None:
            one["at"] = min(one["at"] or failed.ended_at, failed.ended_at)
        if word == "requeue":
            result, ended_at = _result(task, failed, later)
            one[result] += 1
            if result == "healed" and ended_at is not None:
                one["healed_at"] = max(one["healed_at"] or ended_at, ended_at)

    def _decision(self, run_id: str, name: str, word: Optional[str], generation: int) -> Optional[_Decision]:
        if word not in _STATE_AFTER:
            return None
        if run_id not in self._decisions:
            decided = self._decisions[run_id] = {}
            for task, new, after, at, actor, reason, command_id in self._connection.execute(_DECISIONS, (run_id,)):
                decided[(task, new, after)] = _Decision(at, actor, reason, command_id)
        after = generation + 1 if word == "requeue" else generation
        return self._decisions[run_id].get((name, _STATE_AFTER[word], after))


#: Decisions that wait for a human in the inbox.
_UNDECIDED = frozenset(["undecided", "expired"])

#: Decision -> the state that it moves a task to.
_STATE_AFTER = {"requeue": str(TaskState.PENDING), "skip": str(TaskState.SKIPPED), "cancel": str(TaskState.CANCELLED)}


def _note(data: str) -> NoteWritten:
    payload = decode(EventKind.NOTE, json.loads(data))
    assert isinstance(payload, NoteWritten)
    return payload


def _new_episode(run_id: str, word: str, decision: Optional[_Decision]) -> CauseRow:
    return {
        "run_id": run_id,
        "at": None,
        "tasks": 0,
        "runs": 1,
        "decision": word,
        "decided": past_of(word) if word in _STATE_AFTER else "",
        "decided_at": None if decision is None else decision.at,
        "actor": None if decision is None else decision.actor,
        "reason": None if decision is None else decision.reason,
        "healed": 0,
        "again": 0,
        "otherwise": 0,
        "open": 0,
        "healed_at": None,
    }


def _merged(waiting: List[CauseRow]) -> List[CauseRow]:
    """Join what waits for a decision in several runs to one episode of the latest of them."""
    if not waiting:
        return []
    instants = [one["at"] for one in waiting if one["at"] is not None]
    first_at = min(instants) if instants else None
    return [dict(waiting[0], at=first_at, tasks=sum(one["tasks"] for one in waiting), runs=len(waiting))]


def _failures(attempts: List[_Attempt], loose: str) -> List[Tuple[_Attempt, List[_Attempt]]]:
    """The last attempts of generations that ended in this failure, each with the attempts after it."""
    found = []
    for place, attempt in enumerate(attempts):
        is_last = place + 1 == len(attempts) or attempts[place + 1].generation != attempt.generation
        if is_last and attempt.loose == loose and attempt.outcome in FAILED_OUTCOMES:
            found.append((attempt, attempts[place + 1 :]))
    return found


def _decision_on(task: _Task, generation: int) -> Optional[str]:
    """The decision on a task that failed in a generation; None if the executor continues by itself."""
    if task.generation > generation:
        return "requeue"
    if task.state == TaskState.SKIPPED and task.skip_cause == SkipCause.OPERATOR:
        return "skip"
    if task.state == TaskState.CANCELLED:
        return "cancel"
    if task.state == TaskState.FAILED and task.dead_letter_kind is not None:
        return "expired"
    return "undecided" if task.state in NEEDS_HUMAN else None


def _result(task: _Task, failed: _Attempt, later: List[_Attempt]) -> Tuple[str, Optional[int]]:
    """The result of the next generation, and its instant."""
    ran = min([attempt.generation for attempt in later], default=task.generation)
    if ran == task.generation and task.state in MOVING:
        return "open", None
    again = [attempt for attempt in later if attempt.generation == ran]
    if not again:
        return "otherwise", None  # it was skipped or cancelled before it ran
    last = again[-1]
    if last.outcome == "success":
        return "healed", last.ended_at
    alike = last.outcome in FAILED_OUTCOMES and last.loose == failed.loose
    return "again" if alike else "otherwise", last.ended_at
