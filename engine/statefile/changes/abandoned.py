"""What a dead executor left RUNNING, when an operator decides about it before anybody has resumed the run.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Under the lock nothing of such a task should be alive. That is made sure of first: while one process of it lives, no act
on it is accepted (SPEC 4.9). Then its attempt is settled as lost, with the evidence, as ``recovery.py`` does it for a
resume, and the operator's act follows in the same transaction. What is not idempotent becomes a dead letter, and is not
run again by an act that was sent before anybody knew: the operator saw RUNNING, and has to find out first.
"""

import json
from typing import Any, Dict, Optional

from ...domain.command import REFUSED, Target
from ...domain.event_payloads import AttemptColumns, AttemptReclaimed, TaskColumns, TaskMoved
from ...domain.liveness import HEARTBEAT_SECONDS, effect_key, fence_seconds, what_is_known
from ...domain.states import DeadLetterKind, TaskState
from ..processes import ancestors, bears_token, identity, is_there, pids
from .action import Seen, Work, look, still_as_seen
from .canary import abandon
from .quarantine_actions import drop_provisional
from .transitions import Journal

_ATTEMPT = (
    "SELECT attempt.pid, attempt.pid_start_ticks, attempt.executor_id, executor.boot_id, executor.heartbeat_at,"
    " task.losses, task.spec, task.key_generation, executor.pid, executor.start_ticks FROM task"
    " JOIN attempt ON attempt.run_id = task.run_id AND attempt.name = task.name AND attempt.attempt = task.attempt"
    " LEFT JOIN executor ON executor.executor_id = attempt.executor_id WHERE task.run_id = ? AND task.name = ?"
)
_EVIDENCE = (
    "SELECT pid, pid_start_ticks, executor_id, max(attempt.started_at, coalesce(last_heartbeat_at, 0)) FROM attempt"
    " JOIN task USING (run_id, name) WHERE run_id = ? AND name = ? AND attempt.attempt = ?"
)


def find(work: Work, target: Target) -> Optional[Seen]:
    """The target of an act if it is still what the operator saw; what nobody runs any more is settled as lost first.

    None: its refusal is written down.
    """
    row = still_as_seen(work, target)
    if row is None or row.state != TaskState.RUNNING or not work.is_abandoned:
        return row
    names = ("pid", "start_ticks", "executor_id", "boot_id", "heartbeat_at", "losses", "spec", "key_generation")
    found = work.journal.connection.execute(_ATTEMPT, (work.run_id, row.name)).fetchone()
    attempt = dict(zip(names + ("executor_pid", "executor_ticks"), found))
    spec = json.loads(attempt["spec"])
    obstacle = _who_lives(work, attempt) or _may_live_elsewhere(work, attempt, spec)
    if obstacle is not None:
        work.say(row.name, REFUSED, obstacle)
        return None
    journal = Journal(work.journal.connection, work.journal.at)  # not the operator's doing: no undo brings it back
    journal.events = work.journal.events
    if spec.get("idempotent", True):
        columns: TaskColumns = {"next_retry_at": journal.at, "losses": attempt["losses"] + 1}
        _settle(journal, work.run_id, row, str(TaskState.RETRYING), columns)
        return look(work.journal.connection, work.run_id, row.name)
    columns = {"dead_letter_kind": str(DeadLetterKind.INDETERMINATE), "losses": attempt["losses"] + 1}
    abandon(journal, work.run_id, row.name, row.overrides)
    key = effect_key(work.run_id, row.name, attempt["key_generation"]) if spec.get("effect") else None
    columns["error"] = what_is_known(key)
    _settle(journal, work.run_id, row, str(TaskState.DEAD_LETTER), columns)
    if work.act == "requeue":
        work.say(row.name, REFUSED, "{}; it is a dead letter now".format(what_is_known(key)))
        return None
    return look(work.journal.connection, work.run_id, row.name)


def tell_evidence(journal: Journal, run_id: str, name: str, attempt: int, generation: int) -> None:
    """Why an attempt is taken from its task: its executor is dead, and nothing of it is alive."""
    found = journal.connection.execute(_EVIDENCE, (run_id, name, attempt)).fetchone()
    pid, start_ticks, executor_id, heard_at = found
    evidence = AttemptReclaimed(pid, start_ticks, "gone", round((journal.at - heard_at) / 1e6, 1), executor_id)
    journal.emit(evidence, run_id, name, attempt=attempt, generation=generation)


def _who_lives(work: Work, attempt: Dict[str, Any]) -> Optional[str]:
    """Why nothing may be done yet: a process of the dead executor is still there."""
    if is_there(attempt["executor_pid"], attempt["executor_ticks"], attempt["boot_id"]):
        return None  # this file is a copy: what lives belongs to the original
    pid = attempt["pid"]
    ticks, boot = identity(pid) if pid else (None, None)
    if ticks is None or (ticks, boot) != (attempt["start_ticks"], attempt["boot_id"] or boot):
        pid = _bearer(work, str(attempt["executor_id"]))
    if pid is None:
        return None
    return "its executor is dead, but process {} of it still lives: redrive resume ends that, or kill -9 {}".format(
        pid, pid
    )


def _bearer(work: Work, executor_id: str) -> Optional[int]:
    if executor_id not in work.bearers:
        spared = ancestors()
        found = (pid for pid in pids() if pid not in spared and bears_token(pid, [executor_id]))
        work.bearers[executor_id] = next(found, None)
    return work.bearers[executor_id]


def _may_live_elsewhere(work: Work, attempt: Dict[str, Any], spec: Dict[str, Any]) -> Optional[str]:
    """On another host an attempt ends by itself when nobody renews its lease; nobody can look there."""
    if spec.get("isolation") != "dask" or attempt["heartbeat_at"] is None:
        return None
    seconds = HEARTBEAT_SECONDS + fence_seconds(float(spec.get("grace_seconds") or 0))
    left = seconds - (work.journal.at - attempt["heartbeat_at"]) / 1e6
    sentence = "it may still run on a Dask worker until its lease is over: try again in {:.0f} s"
    return sentence.format(left) if left > 0 else None


def _settle(journal: Journal, run_id: str, row: Seen, state: str, columns: TaskColumns) -> None:
    """As ``settle.py`` writes the end of a lost attempt; what is to follow is the operator's word and nobody's dice."""
    tell_evidence(journal, run_id, row.name, row.attempt, row.generation)
    ended: AttemptColumns = {"ended_at": journal.at, "outcome": "lost", "failure_mode": "lost"}
    journal.change_attempt(run_id, row.name, row.attempt, ended)
    drop_provisional(journal, run_id, row.name, row.attempt)
    columns.update({"ended_at": journal.at, "failure_mode": "lost", "claim_token": None})
    if row.cancel_requested_at is not None:
        columns["cancel_requested_at"] = None
    payload = TaskMoved(attempt_set=ended)
    journal.move(run_id, row.name, row.state, state, row.generation, columns, row.attempt, payload=payload)
