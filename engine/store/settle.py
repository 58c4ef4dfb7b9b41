"""Settles the end of an attempt: loads the task's history, decides, moves the task and emits, in one transaction.

The decision is made on the writer, between BEGIN and COMMIT, so that the row cannot change in between.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from typing import NamedTuple

from msgspec.structs import replace

from ..core import consequences, decide
from ..core.advice import NOT_JUDGED, TimeoutJudgement, judge_timeout, most_memory, past_duration
from ..core.failures.failure import PROGRESS_FACT, failure_of_wait
from ..core.failures.tables import nature_of
from ..core.outcome import (
    ENVIRONMENT_FIELDS,
    MEMORY_LIMIT_ERROR,
    Failure,
    FailureClass,
    FailureMode,
    Fingerprint,
    Outcome,
    OutcomeKind,
)
from ..core.policy import Uniform
from ..core.spec import TaskSpec, decode_task_spec
from ..domain.acts import DONE, Command, Target, release_id
from ..domain.event_payloads import AttemptColumns, AttemptLate, CanaryEnd, CanaryEnded, TaskColumns, TaskMoved
from ..domain.states import DEADLINE_MODE, FAILED_OUTCOMES, NEEDS_HUMAN, WAITING, DeadLetterKind, TaskState, effect_key
from ..domain.task_options import Overrides, load_overrides
from ..domain.text import format_bytes
from ..statefile import large_results, operator_actions, requeue
from ..statefile.action import who_cancelled
from ..statefile.map_tasks import MAPS_BELOW, collect_again, expand_below, set_keys
from ..statefile.sql import in_list
from ..statefile.transitions import (
    CHILDREN_FROM,
    CHILDREN_TO,
    Transaction,
    hold_if_blocked,
    propagate,
    resolve,
    resolve_by_success,
)
from ..statefile.undo import find_act, restore_tasks
from . import quarantined
from .claims import Claim, emit
from .endings import expires_at
from .pages import trigger_page
from .runs import healed_count, past_attempts


def settle(
    transaction: Transaction,
    claim: Claim,
    spec: TaskSpec,
    outcome: Outcome,
    uniform: Uniform,
    circumstances: decide.Circumstances = decide.NO_CIRCUMSTANCES,
) -> decide.Decision | None:
    """Write the end of an attempt, and return what follows; None: it ended too late, and the task has moved on.

    ``outcome``: as the attempt or its runner has reported it.
    """
    compact = _with_result_apart(transaction.connection, claim, outcome)  # before the maps below read the result
    is_plain = circumstances.is_silent and spec.map is None and compact.kind is OutcomeKind.SUCCESS
    if is_plain and _settle_plain_success(transaction, claim, compact):
        return decide.Succeed()
    expanded = _with_children(transaction, claim, spec, compact)
    stored = read_stored(transaction.connection, claim, is_success=expanded.kind is OutcomeKind.SUCCESS)
    history = read_history(transaction.connection, claim, spec, expanded, stored, at=transaction.at)
    explained = _with_usual_memory(transaction.connection, spec, _with_reason(expanded, history.timeout))
    decision = decide.decide(history, explained, circumstances, transaction.at, uniform)
    final = _with_failure_of_wait(claim.task, explained, decision)
    end = consequences.consequences_of(transaction.at, claim.run_id, decision, final, history)
    with _attributed_to_requester(transaction, claim) if isinstance(decision, decide.Cancel) else nullcontext():
        if not _write(transaction, claim, end, stored, is_map=spec.map is not None):
            _write_late(transaction, claim, final)
            return None
        if stored.overrides:
            finish_canary(transaction, claim.run_id, claim.task, decision, load_overrides(stored.overrides))
    return decision


def _with_result_apart(connection: sqlite3.Connection, claim: Claim, outcome: Outcome) -> Outcome:
    """Store a large result in rows of its own; the outcome then refers to them."""
    if outcome.result is None:
        return outcome
    stored_as = large_results.store(connection, claim.run_id, claim.task, outcome.result)
    return outcome if stored_as is outcome.result else replace(outcome, result=stored_as)


def _with_children(transaction: Transaction, claim: Claim, spec: TaskSpec, outcome: Outcome) -> Outcome:
    """Give a map task its children; return the failure if its elements cannot be known."""
    if not outcome.element_keys or spec.map is None or outcome.kind is not OutcomeKind.DEFERRED:
        return outcome
    keys = outcome.element_keys.get(claim.task, ())
    refusal = set_keys(transaction, claim.run_id, claim.task, keys)
    if refusal is None:
        return outcome
    fingerprint = Fingerprint(strict="elements", loose="elements", explain=f"the elements of {claim.task}")
    return Outcome(
        OutcomeKind.ERROR, Failure("PermanentError", refusal, FailureClass.PERMANENT, fingerprint), element_keys={}
    )


def _settle_plain_success(transaction: Transaction, claim: Claim, outcome: Outcome) -> bool:
    """Settle a success without further consequences; False: it may have some, or it is late.

    Most are such: to read nothing before saves a fifth of the statements of a short attempt.
    """
    columns: TaskColumns = {"ended_at": transaction.at, **consequences.success_columns(outcome), "claim_token": None}
    attempt = consequences.attempt_columns(transaction.at, outcome, None)
    payload = TaskMoved(attempt_set=attempt if "stack" not in attempt else consequences.without_long_texts(attempt))
    return _write_end(transaction, claim, TaskState.SUCCESS, columns, payload, attempt, IS_PLAIN_SUCCESS)


@contextmanager
def _attributed_to_requester(transaction: Transaction, claim: Claim) -> Iterator[None]:
    """Emit the events of a cancel in the name of the operator who requested it."""
    before = transaction.author
    transaction.author = who_cancelled(transaction.connection, claim.run_id, claim.task) or before
    try:
        yield
    finally:
        transaction.author = before


def _write(
    transaction: Transaction, claim: Claim, end: consequences.Consequences, stored: StoredTask, *, is_map: bool = False
) -> bool:
    """Move the task, close the attempt's row, and change what follows from it. False: the attempt is late."""
    columns = end.columns
    if end.state is TaskState.DEAD_LETTER:
        expires = expires_at(transaction.connection, claim.run_id, transaction.at)
        columns = {**columns, "expires_at": expires} if expires else columns
    event_columns: AttemptColumns = {**consequences.without_long_texts(end.attempt), **_output_columns(stored)}
    payload = end.payload._replace(attempt_set=event_columns)
    if not _write_end(transaction, claim, end.state, columns, payload, end.attempt, _IS_CURRENT):
        return False
    if stored.has_bad_rows:
        _change_rows(transaction, claim, end.rows)
    _change_children(transaction, claim, end.children, stored)
    if is_map and end.state is TaskState.SUCCESS:
        collect_again(transaction, claim.run_id, claim.task)
    if end.page is not None:
        trigger_page(transaction, end.page)
    elif end.resolves_pages and stored.has_pages:
        if end.state is TaskState.SUCCESS:
            resolve_by_success(transaction, claim.run_id, claim.task, is_map=is_map)
        else:
            resolve(transaction, claim.run_id, claim.task)
    if end.proven is not None:
        end_siblings(transaction, claim.run_id, claim.task, end.proven)
    return True


def _change_rows(transaction: Transaction, claim: Claim, rows: consequences.RowEffects) -> None:
    if rows is consequences.RowEffects.CONFIRM:
        quarantined.confirm_rows(transaction, claim)
    else:
        quarantined.discard_rows(transaction, claim, final=rows is consequences.RowEffects.DROP_FOR_GOOD)


def _change_children(
    transaction: Transaction, claim: Claim, children: consequences.Children, stored: StoredTask
) -> None:
    match children:
        case consequences.Children.PROPAGATE:
            propagate(transaction, claim.run_id, claim.task)
        case consequences.Children.EXPAND:
            if stored.has_maps_below:
                expand_below(transaction, claim.run_id, claim.task)
            if stored.has_skips:
                propagate(transaction, claim.run_id, claim.task)
        case consequences.Children.WAIT:
            hold_if_blocked(transaction, claim.run_id, claim.task)
        case _:
            pass


_IS_CURRENT = " AND claim_token = ?"  # against a late outcome


def _write_end(
    transaction: Transaction,
    claim: Claim,
    state: TaskState,
    columns: TaskColumns,
    payload: TaskMoved,
    attempt: AttemptColumns,
    guard: str,
) -> bool:
    """Move the task, if ``guard`` holds of its claim token, and close the attempt's row."""
    place, token = (claim.run_id, claim.task), (claim.token,)
    moved = transaction.move(
        *place,
        TaskState.RUNNING,
        state,
        claim.generation,
        set=columns,
        attempt=claim.attempt,
        payload=payload,
        guard=guard,
        guarded=token,
    )
    if moved:
        transaction.change_attempt(*place, claim.attempt, attempt)
    return moved


def _output_columns(stored: StoredTask) -> AttemptColumns:
    """Return the output counters, which are emitted only with the end of the attempt."""
    if not stored.output_bytes:
        return {}
    return {"output_bytes": stored.output_bytes, "output_dropped_bytes": stored.output_dropped_bytes or 0}


def _with_reason(outcome: Outcome, judged: TimeoutJudgement) -> Outcome:
    """Add the judgement of its timeout to the diagnostic of an attempt that was killed at it."""
    if outcome.failure is None or not judged.reason:
        return outcome
    diagnostic = "; ".join(filter(None, (outcome.failure.diagnostic, judged.reason)))
    return replace(outcome, failure=replace(outcome.failure, diagnostic=diagnostic))


def _with_failure_of_wait(task: str, outcome: Outcome, decision: decide.Decision) -> Outcome:
    """Add the failure of a sensor that ran out of time."""
    if not isinstance(decision, decide.Fail) or outcome.failure is not None:
        return outcome
    return replace(outcome, failure=failure_of_wait(task, decision.why, outcome.defer_reason))


def _write_late(transaction: Transaction, claim: Claim, outcome: Outcome) -> None:
    """Record the end of an attempt whose task has moved on; the task stays unchanged (SPEC 4.9)."""
    columns = consequences.attempt_columns(transaction.at, outcome, None)
    columns["late"] = 1
    transaction.change_attempt(claim.run_id, claim.task, claim.attempt, columns)
    quarantined.discard_rows(transaction, claim, final=False)
    emit(transaction, claim, AttemptLate(consequences.without_long_texts(columns)))


def _with_usual_memory(connection: sqlite3.Connection, spec: TaskSpec, outcome: Outcome) -> Outcome:
    """Add the usual memory of the task to the failure of an attempt that was over its limit."""
    failure = outcome.failure
    if failure is None or failure.error_type != MEMORY_LIMIT_ERROR:
        return outcome
    held = most_memory(past_attempts(connection, spec.name, item=spec.item))
    message = failure.message if held is None else f"{failure.message}; usual {format_bytes(held[0])}"
    return replace(outcome, failure=replace(failure, message=message))


# --- What a decision reads -------------------------------------------------------------------------------------------
#
# Loads what ``settle`` decides by: the counters of a task, its earlier failures, and what it has left in the file.


#: Earlier failures of the generation. One in another environment does not count as a repetition (SPEC part 4, proof of
#: determinism). Each statement below ends at the row that it asks for: a task may have thousands.
_EARLIER = (
    " FROM attempt AS now CROSS JOIN attempt AS past ON past.run_id = now.run_id AND past.name = now.name"
    " WHERE now.run_id = ? AND now.name = ? AND now.attempt = ? AND past.generation = ? AND past.attempt > ?"
    f" AND past.attempt < now.attempt AND past.fingerprint IS NOT NULL AND past.outcome IN {in_list(FAILED_OUTCOMES)}"
)
_SAME_FIELDS = [f"past.{column} IS now.{column}" for column in ENVIRONMENT_FIELDS]
_HERE = f"{_EARLIER} AND {' AND '.join(_SAME_FIELDS)}"
_FIRST = f"SELECT past.ended_at{_HERE} ORDER BY past.attempt LIMIT 1"
_LATEST = f"SELECT past.fingerprint, past.ended_at{_HERE} ORDER BY past.attempt DESC"
_COUNT = f"SELECT count(*){_EARLIER} AND past.failure_class = ?"
_LATEST_OF_CAUSE = (
    f"SELECT {', '.join(_SAME_FIELDS)}{_EARLIER} AND past.fingerprint_loose = ? ORDER BY past.attempt DESC LIMIT 1"
)


#: When a sensor has got its latest answer: errors before it count no more.
_ANSWERED = "SELECT max(attempt) FROM attempt WHERE run_id = ? AND name = ? AND outcome = 'deferred'"


class StoredTask(NamedTuple):
    """The columns that the end of an attempt needs, of its task and of its output. One statement reads them."""

    failures: int = 0
    losses: int = 0
    deferrals: int = 0
    refusals: int = 0
    delay_us: int | None = None
    first_started_at: int | None = None
    cancel_requested_at: int | None = None
    overrides: str | None = None
    key_generation: int = 0
    failure_mode: str | None = None
    error: str | None = None
    expires_at: int | None = None
    has_bad_rows: int = 0
    output_bytes: int | None = None
    output_dropped_bytes: int | None = None
    has_pages: int = 1  # open ones, for failures of the task or of its children, in any run
    has_maps_below: int = 1  # asked after a success alone
    has_skips: int = 1  # of the run; the same: it may be the last parent of a task that is skipped with another one


_BAD_ROWS = "EXISTS (SELECT 1 FROM quarantine WHERE quarantine.run_id = task.run_id AND quarantine.name = task.name)"
_OPEN_PAGE = "EXISTS (SELECT 1 FROM page_task AS page WHERE page.done = 0 AND {})"
_OF_CHILDREN = f"page.task >= {CHILDREN_FROM} AND page.task < {CHILDREN_TO}"
_OPEN_PAGES = f"({_OPEN_PAGE.format('page.task = task.name')} OR {_OPEN_PAGE.format(_OF_CHILDREN)})"
_MAPS_BELOW = f"EXISTS ({MAPS_BELOW.format('task.run_id', 'task.name')})"
_SKIPS = (
    "EXISTS (SELECT 1 FROM task AS skipped"
    f" WHERE skipped.run_id = task.run_id AND skipped.state = '{TaskState.SKIPPED}')"
)
_READ = (
    f"SELECT {', '.join(f'task.{column}' for column in StoredTask._fields[:12])}, {_BAD_ROWS},"
    f" attempt.output_bytes, attempt.output_dropped_bytes, {_OPEN_PAGES}, ? AND {_MAPS_BELOW}, ? AND {_SKIPS} FROM task"
    " LEFT JOIN attempt"
    " ON attempt.run_id = task.run_id AND attempt.name = task.name AND attempt.attempt = ?"
    " WHERE task.run_id = ? AND task.name = ?"
)

#: SQL: the attempt with this token is the current one, and its success without output changes no other row.
IS_PLAIN_SUCCESS = (
    f" AND claim_token = ? AND cancel_requested_at IS NULL AND overrides IS NULL"
    f" AND NOT {_BAD_ROWS} AND NOT {_OPEN_PAGES} AND NOT {_MAPS_BELOW} AND NOT {_SKIPS}"
    " AND expires_at IS NULL"
)


def read_stored(connection: sqlite3.Connection, claim: Claim, *, is_success: bool) -> StoredTask:
    """Read the row of the task of an attempt; the defaults if there is none."""
    asked = (is_success, is_success)
    row = connection.execute(_READ, (*asked, claim.attempt, claim.run_id, claim.task)).fetchone()
    return StoredTask() if row is None else StoredTask(*row)


def read_history(
    connection: sqlite3.Connection,
    claim: Claim,
    spec: TaskSpec,
    outcome: Outcome,
    stored: StoredTask,
    *,
    at: int,
) -> decide.TaskHistory:
    """Load the history of a task for ``decide``: counters of the generation, fingerprints in order, healed failures.

    ``at``: the end of the attempt, microseconds UTC.
    """
    failure = outcome.failure
    history = decide.TaskHistory(
        spec=spec,
        failures=stored.failures,
        losses=stored.losses,
        deferrals=stored.deferrals,
        refusals=stored.refusals,
        previous_delay=None if stored.delay_us is None else stored.delay_us / 1e6,
        siblings=_siblings(connection, claim, failure),
        timeout=_judge_timeout(connection, claim, spec, outcome, at),
        first_started_at=stored.first_started_at,
        effect_key=effect_key(claim.run_id, claim.task, stored.key_generation) if spec.effect else None,
        cancel_requested=stored.cancel_requested_at is not None,
        deadline_passed=_deadline_passed(stored),
        bounded_until=stored.expires_at,
        verifies=load_overrides(stored.overrides).get("verifies"),
    )
    return history if failure is None else _with_past(connection, claim, history, failure)


def _with_past(
    connection: sqlite3.Connection, claim: Claim, history: decide.TaskHistory, failure: Failure
) -> decide.TaskHistory:
    """Add what the earlier failures say; of a sensor those since its latest answer."""
    is_sensor = history.spec.kind == "sensor"
    since = connection.execute(_ANSWERED, (claim.run_id, claim.task)).fetchone() if is_sensor else (None,)
    place = (claim.run_id, claim.task, claim.attempt, claim.generation, since[0] or 0)
    strict, loose = failure.fingerprint.strict, failure.fingerprint.loose
    first = connection.execute(_FIRST, place).fetchone()
    is_counted = failure.failure_class in decide.COUNTED_CLASSES
    history = replace(
        history,
        first_failed_at=None if first is None else first[0],
        failures_of_class=connection.execute(_COUNT, (*place, failure.failure_class)).fetchone()[0]
        if is_counted
        else 0,
        changed=_changed(connection.execute(_LATEST_OF_CAUSE, (*place, loose)).fetchone() or ()),
    )
    if not strict or not decide.compares(history, failure):
        return history
    alike = takewhile(lambda row: row[0] == strict, connection.execute(_LATEST, place))
    return replace(
        history,
        same_failures_at=tuple(ended_at for _, ended_at in alike),
        healed=healed_count(connection, claim.task, strict),
    )


def _deadline_passed(stored: StoredTask) -> str | None:
    """Return why the deadline of the run ends the attempt (``endings.py``); None: it does not."""
    is_ended = stored.cancel_requested_at is not None and stored.failure_mode == DEADLINE_MODE
    return stored.error if is_ended else None


def _changed(same: Sequence[int]) -> tuple[str, ...]:
    """Return the environment fields that changed. ``same``: whether each is as it was; empty: there is no such row."""
    return tuple(word for word, alike in zip(ENVIRONMENT_FIELDS.values(), same, strict=False) if not alike)


def _siblings(connection: sqlite3.Connection, claim: Claim, failure: Failure | None) -> decide.Siblings:
    if failure is None or nature_of(failure) is None or not failure.fingerprint.strict:
        return decide.NO_SIBLINGS
    return read_siblings(connection, claim.run_id, claim.task, failure.fingerprint.strict)


# --- Timeouts ------------------------------------------------------------------------------------------------------

_TIMED_OUT_BEFORE = (
    "SELECT fingerprint_detail FROM attempt WHERE run_id = ? AND name = ? AND attempt < ? AND generation = ?"
    " AND outcome = 'timed_out' ORDER BY attempt DESC LIMIT 1"
)


def _judge_timeout(
    connection: sqlite3.Connection, claim: Claim, spec: TaskSpec, outcome: Outcome, at: int
) -> TimeoutJudgement:
    if outcome.kind is not OutcomeKind.TIMED_OUT or spec.timeout is None:
        return NOT_JUDGED
    killed = past_duration(at, round(spec.timeout * 1e6), "timed_out", None)
    past = [*past_attempts(connection, claim.task, item=spec.item), killed]
    return judge_timeout(past, spec.timeout, outcome.progress, _done_before(connection, claim))


def _done_before(connection: sqlite3.Connection, claim: Claim) -> int | None:
    """Return the progress of the attempt that timed out before this one, if it had any."""
    place = (claim.run_id, claim.task, claim.attempt, claim.generation)
    row = connection.execute(_TIMED_OUT_BEFORE, place).fetchone()
    done = json.loads(row[0] or "{}").get("facts", {}).get(PROGRESS_FACT) if row is not None else None
    return done if isinstance(done, int) else None


# --- The end of a canary ---------------------------------------------------------------------------------------------
#
# Its success releases the other tasks at a limited rate, its failure holds them (``requeue.py``).
#
# Written in the transaction of that end. The release is an act of the operator who sent the canary, recorded like any
# other act, so that it is visible and can be undone.


RELEASE_PER_SECOND = 5.0

#: Options of the first act that concern the canary alone.
_CANARY_OPTIONS = frozenset(["canary", "not_before"])


def finish_canary(
    transaction: Transaction, run_id: str, name: str, decision: decide.Decision, overrides: Overrides
) -> None:
    """Apply the end of an attempt whose task was a canary, or was released by one. ``overrides``: of its generation."""
    if "rollout" not in overrides or isinstance(decision, decide.Retry | decide.Defer | decide.Interrupt):
        return
    # Before the restore, so that restored tasks wait for no canary.
    held = requeue.release_followers(transaction, run_id, name)
    if isinstance(decision, decide.Succeed):
        if held:
            _release(transaction, run_id, name, overrides, held)
        return
    not_fixed = isinstance(decision, decide.DeadLetter) and decision.fix_failed
    if not_fixed:
        held += _hold_released(transaction, run_id, name, overrides["rollout"])
    if held:
        _emit(transaction, run_id, name, CanaryEnd.NOT_FIXED if not_fixed else CanaryEnd.FAILED, held)


def _emit(transaction: Transaction, run_id: str, name: str, what: str, others: list[str]) -> None:
    transaction.emit(CanaryEnded(what, others), run_id, name)


def _release(transaction: Transaction, run_id: str, name: str, overrides: Overrides, waiting: list[str]) -> None:
    act = find_act(transaction.connection, overrides["rollout"])
    assert act is not None, "a rollout begins with its act, in one transaction"
    _emit(transaction, run_id, name, CanaryEnd.RELEASED, waiting)
    options = {key: value for key, value in act.payload.options.items() if key not in _CANARY_OPTIONS}
    options.setdefault("rate_per_second", RELEASE_PER_SECOND)
    options.update(rollout=overrides["rollout"], verifies=overrides.get("verifies"))
    command = Command(
        id=release_id(overrides["rollout"]),
        act="requeue",
        run_id=run_id,
        targets=_current_targets(transaction, run_id, waiting),
        actor=act.actor or "",
        reason=act.reason or "",
        options=options,
    )
    operator_actions.apply(transaction, command)


def _current_targets(transaction: Transaction, run_id: str, names: list[str]) -> tuple[Target, ...]:
    sql = "SELECT name, state, generation FROM task WHERE run_id = ? AND name = ?"
    rows = [transaction.connection.execute(sql, (run_id, name)).fetchone() for name in names]
    return tuple(Target(*row) for row in rows if row[1] in NEEDS_HUMAN)


def _hold_released(transaction: Transaction, run_id: str, name: str, rollout: str) -> list[str]:
    """Hold the released tasks that have not started yet again, and return their names."""
    act = find_act(transaction.connection, release_id(rollout))
    if act is None:
        return []
    targets = {result.task for result in act.answer.results if result.outcome == DONE}
    was = {task: before for task, before in act.payload.was.items() if task in targets}
    unstarted = {task: before for task, before in was.items() if _is_unstarted(transaction, run_id, task, before)}
    restore_tasks(transaction, run_id, unstarted, f"the fix did not help: {name} failed as before")
    return list(unstarted)


def _is_unstarted(transaction: Transaction, run_id: str, name: str, before: TaskColumns) -> bool:
    state, generation, has_started = transaction.connection.execute(
        "SELECT state, generation, EXISTS (SELECT 1 FROM attempt WHERE attempt.run_id = task.run_id"
        " AND attempt.name = task.name AND attempt.generation = task.generation) FROM task"
        " WHERE run_id = ? AND name = ?",
        (run_id, name),
    ).fetchone()
    return state in WAITING and generation == before["generation"] + 1 and not has_started


# --- Siblings --------------------------------------------------------------------------------------------------------
#
# The tasks of a run that failed alike: counted as evidence, and ended together once the failure is proven to repeat.
#
# 1,247 tasks that read one corrupt file fail alike. Three of them prove it with two failures each; every other needs
# one start: it becomes a dead letter at its first failure, or at once if it waits for its retry.


#: SQL: other tasks of the run whose latest failure is the same. A requeue forgets the failure of its task.
_SAME = "FROM task WHERE run_id = :run AND failure_fingerprint = :fingerprint AND name <> :name"
_CONDITIONS = ("", " AND state = 'DEAD_LETTER' AND dead_letter_kind = 'poison'", " AND state = 'SUCCESS'")
_COUNTS = ", ".join(f"(SELECT count(*) FROM (SELECT 1 {_SAME}{condition} LIMIT :most))" for condition in _CONDITIONS)

#: Those that wait for their next attempt. What an operator changed for a generation (a canary, too) stays his. The
#: inner query reads the index alone: without statistics SQLite would walk all tasks of the run instead.
_WAITING = (
    "SELECT name, state, generation, spec FROM task WHERE run_id = :run AND overrides IS NULL AND canary IS NULL"
    f" AND name IN (SELECT name {_SAME} AND state IN ('RETRYING', 'READY')) ORDER BY position"
)


#: What becomes of those that wait.
_SHARED = decide.DeadLetter(DeadLetterKind.POISON, FailureMode.POISONED, decide.SIBLINGS_REASON)


def read_siblings(connection: sqlite3.Connection, run_id: str, name: str, fingerprint: str) -> decide.Siblings:
    """Count the other tasks of the run that failed with this strict fingerprint; an index bounds the work."""
    place = {"run": run_id, "name": name, "fingerprint": fingerprint, "most": decide.SIBLINGS_MIN}
    return decide.Siblings(*connection.execute(f"SELECT {_COUNTS}", place).fetchone())


def end_siblings(transaction: Transaction, run_id: str, name: str, failure: Failure) -> None:
    """Make dead letters of those that failed like ``name`` and wait for a retry, once all of them are proof."""
    fingerprint = failure.fingerprint.strict
    every = read_siblings(transaction.connection, run_id, "", fingerprint)  # ``name`` included
    if nature_of(failure) is None or not every.are_proof:
        return
    columns: TaskColumns = {
        "ended_at": transaction.at,
        "next_retry_at": None,
        "failure_mode": str(_SHARED.mode),
        "dead_letter_kind": str(_SHARED.kind),
    }
    if expires := expires_at(transaction.connection, run_id, transaction.at):
        columns["expires_at"] = expires
    payload = TaskMoved(why=_SHARED.why, explain=failure.fingerprint.explain)
    for state, generation, spec in _waiting(transaction.connection, run_id, name, fingerprint):
        moved = transaction.move(
            run_id, spec.name, state, TaskState.DEAD_LETTER, generation, set=columns, payload=payload
        )
        if moved:
            trigger_page(transaction, consequences.page_of(run_id, spec, _SHARED, failure))


def _waiting(
    connection: sqlite3.Connection, run_id: str, name: str, fingerprint: str
) -> Iterator[tuple[TaskState, int, TaskSpec]]:
    place = {"run": run_id, "name": name, "fingerprint": fingerprint}
    for sibling, state, generation, text in connection.execute(_WAITING, place).fetchall():
        spec = decode_task_spec(text)
        if spec.retry.poison_after == "evidence" and not healed_count(connection, sibling, fingerprint):
            yield TaskState(state), int(generation), replace(spec, name=sibling)
