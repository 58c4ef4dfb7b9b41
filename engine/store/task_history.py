"""Loads what ``settle`` decides by: the counters of a task, its earlier failures, and what it has left in the file."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from ..core.advice import NOT_JUDGED, PastDuration, TimeoutJudgement, judge_timeout
from ..core.breaker import DownstreamHealth
from ..core.decide import NO_SIBLINGS, Siblings, TaskHistory
from ..core.failures.determinism import nature_of
from ..core.failures.failure import PROGRESS_FACT
from ..core.outcome import ENVIRONMENT_FIELDS, Failure, FailureClass, Outcome, OutcomeKind
from ..core.spec import TaskSpec
from ..domain.liveness import effect_key
from ..domain.overrides import load_overrides
from ..domain.states import DEADLINE_MODE, FAILED_OUTCOMES
from ..statefile.changes.mapping import MAPS_BELOW
from ..statefile.reader import Row
from ..statefile.state_lists import in_list
from .claims import Claim
from .history import healed_count, past_attempts, weekday_of
from .siblings import read_siblings

#: Earlier failures of the generation, and for each environment field whether it is the same as now. A failure in
#: another environment does not count as a repetition (SPEC part 4, proof of determinism).
_PAST = (
    f"SELECT past.fingerprint, past.ended_at, past.failure_class, past.fingerprint_loose,"
    f" {', '.join(f'past.{column} IS now.{column}' for column in ENVIRONMENT_FIELDS)}"
    " FROM attempt AS now CROSS JOIN attempt AS past ON past.run_id = now.run_id AND past.name = now.name"
    " WHERE now.run_id = ? AND now.name = ? AND now.attempt = ? AND past.generation = ? AND past.attempt < now.attempt"
    f" AND past.fingerprint IS NOT NULL AND past.outcome IN {in_list(FAILED_OUTCOMES)} ORDER BY past.attempt"
)


class StoredTask(NamedTuple):
    """What the state file holds when an attempt ends: of its task, and of its output. One statement reads it."""

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
    has_bad_rows: int = 0
    output_bytes: int | None = None
    output_dropped_bytes: int | None = None
    has_pages: int = 1  # open ones, for failures of the task
    has_maps_below: int = 1  # asked after a success alone


_BAD_ROWS = "EXISTS (SELECT 1 FROM quarantine WHERE quarantine.run_id = task.run_id AND quarantine.name = task.name)"
_OPEN_PAGES = (
    "EXISTS (SELECT 1 FROM page_task AS page"
    " WHERE page.run_id = task.run_id AND page.task = task.name AND page.done = 0)"
)
_MAPS_BELOW = f"EXISTS ({MAPS_BELOW.format('task.run_id', 'task.name')})"
_READ = (
    f"SELECT {', '.join(f'task.{column}' for column in StoredTask._fields[:11])}, {_BAD_ROWS},"
    f" attempt.output_bytes, attempt.output_dropped_bytes, {_OPEN_PAGES}, ? AND {_MAPS_BELOW} FROM task"
    " LEFT JOIN attempt"
    " ON attempt.run_id = task.run_id AND attempt.name = task.name AND attempt.attempt = ?"
    " WHERE task.run_id = ? AND task.name = ?"
)

#: SQL: the attempt with this token is the current one, and its success without output changes no other row.
IS_PLAIN_SUCCESS = (
    f" AND claim_token = ? AND cancel_requested_at IS NULL AND overrides IS NULL"
    f" AND NOT {_BAD_ROWS} AND NOT {_OPEN_PAGES} AND NOT {_MAPS_BELOW}"
)


def read_stored(connection: sqlite3.Connection, claim: Claim, *, is_success: bool) -> StoredTask:
    """Read the row of the task of an attempt; the defaults if there is none."""
    row = connection.execute(_READ, (is_success, claim.attempt, claim.run_id, claim.name)).fetchone()
    return StoredTask() if row is None else StoredTask(*row)


def read_history(
    connection: sqlite3.Connection,
    claim: Claim,
    spec: TaskSpec,
    outcome: Outcome,
    stored: StoredTask,
    *,
    at: int,
    path_seconds: float,
    deadline_at: int | None,
    health: DownstreamHealth,
) -> TaskHistory:
    """Load the history of a task for ``decide``: counters of the generation, fingerprints in order, healed failures.

    ``at``: the end of the attempt, microseconds UTC.
    """
    failure = outcome.failure
    place = (claim.run_id, claim.name, claim.attempt, claim.generation)
    past = [] if failure is None else connection.execute(_PAST, place).fetchall()  # read by failures alone
    alike = [row for row in past if all(row[4:])]
    return TaskHistory(
        failures=stored.failures,
        losses=stored.losses,
        deferrals=stored.deferrals,
        refusals=stored.refusals,
        previous_delay=None if stored.delay_us is None else stored.delay_us / 1e6,
        fingerprints=tuple(row[0] for row in alike),
        failed_at=tuple(row[1] for row in alike),
        classes=tuple(FailureClass(row[2]) for row in past if row[2]),
        healed=0 if failure is None else healed_count(connection, claim.name, failure.fingerprint.strict),
        siblings=_siblings(connection, claim, failure),
        timeout=_judge_timeout(connection, claim, spec, outcome, at),
        first_started_at=stored.first_started_at,
        idempotent=spec.idempotent,
        is_command=spec.kind == "command",
        names_downstream=spec.downstream is not None,
        effect_key=effect_key(claim.run_id, claim.name, stored.key_generation) if spec.effect else None,
        health=health,
        max_losses=spec.max_losses,
        recheck_seconds=spec.recheck_seconds,
        path_seconds=path_seconds,
        deadline_at=deadline_at,
        cancel_requested=stored.cancel_requested_at is not None,
        deadline_passed=_deadline_passed(stored),
        changed=() if failure is None else _changed(past, failure.fingerprint.loose),
        verifies=load_overrides(stored.overrides).get("verifies"),
    )


def _deadline_passed(stored: StoredTask) -> str | None:
    """Return why the deadline of the run ends the attempt (``expiry.py``); None: it does not."""
    is_ended = stored.cancel_requested_at is not None and stored.failure_mode == DEADLINE_MODE
    return stored.error if is_ended else None


def _changed(past: Sequence[Row], loose: str) -> tuple[str, ...]:
    """Return the environment fields that changed since the last failure of this kind; empty: no such failure."""
    same = next((row[4:] for row in reversed(past) if row[3] == loose), ())
    return tuple(word for word, alike in zip(ENVIRONMENT_FIELDS.values(), same, strict=False) if not alike)


def _siblings(connection: sqlite3.Connection, claim: Claim, failure: Failure | None) -> Siblings:
    if failure is None or nature_of(failure) is None or not failure.fingerprint.strict:
        return NO_SIBLINGS
    return read_siblings(connection, claim.run_id, claim.name, failure.fingerprint.strict)


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
    weekday = weekday_of(at)
    past = [*past_attempts(connection, claim.name), PastDuration(weekday, spec.timeout, succeeded=False)]
    return judge_timeout(past, spec.timeout, weekday, outcome.progress, _done_before(connection, claim))


def _done_before(connection: sqlite3.Connection, claim: Claim) -> int | None:
    """Return the progress of the attempt that timed out before this one, if it had any."""
    place = (claim.run_id, claim.name, claim.attempt, claim.generation)
    row = connection.execute(_TIMED_OUT_BEFORE, place).fetchone()
    done = json.loads(row[0] or "{}").get("facts", {}).get(PROGRESS_FACT) if row is not None else None
    return done if isinstance(done, int) else None
