"""After a crash: what a dead executor had running is settled as lost, and stored instants are made sane.

Runs under the lock and after the sweep, so nothing of what is settled here can still be alive. Afterwards no attempt is
``running``, and every task either will move by itself or waits for a human, with the reason.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ..core.decide import Uniform
from ..core.outcome import Outcome, OutcomeKind
from ..core.spec import TaskSpec, with_overrides
from ..domain.event_payloads import ExecutorChange, ExecutorChanged
from ..domain.liveness import fence_seconds
from ..domain.states import TIMED, TaskState
from ..statefile.changes.abandoned import tell_evidence
from ..statefile.changes.transitions import Journal
from ..statefile.processes import is_there
from ..statefile.state_lists import in_list
from .claims import Claim
from .settle import settle

LOSSES_WINDOW_SECONDS = 24 * 3600  # losses longer ago than this say nothing about a crash loop


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found: attempts that were lost, as (run_id, task), and tasks whose due time was beyond all reason."""

    lost: tuple[tuple[str, str], ...]
    clamped: tuple[tuple[str, str], ...]
    executors: tuple[str, ...]


def dead_executors(connection: sqlite3.Connection, executor_id: str) -> list[str]:
    """Return the executors that never said goodbye, except ``executor_id``."""
    rows = connection.execute(
        "SELECT executor_id FROM executor WHERE stopped_at IS NULL AND executor_id <> ? ORDER BY started_at",
        (executor_id,),
    )
    return [dead for (dead,) in rows]


def to_be_swept(connection: sqlite3.Connection, executor_id: str) -> list[str]:
    """Return those of the dead whose processes may be killed: not those of one that lives.

    Whoever resumes a copy of a state file that is being written meets an executor that never said goodbye, because it
    writes the original: what it runs is not ours to end.
    """
    dead = dead_executors(connection, executor_id)
    rows = connection.execute("SELECT executor_id, pid, start_ticks, boot_id FROM executor").fetchall()
    alive = {identity for identity, *process in rows if is_there(*process)}
    return [identity for identity in dead if identity not in alive]


def recover(journal: Journal, executor_id: str, uniform: Uniform = random.uniform) -> Recovered:
    """Settle whatever executors before ``executor_id`` left behind, in every run of the file.

    A lost attempt spends no retry budget but counts as a loss: its task waits at least ``base`` before it runs again,
    is dead-lettered as a crash loop after ``max_losses`` within a day, and at once if it is not idempotent, because
    nobody knows how far it came (SPEC 4.2, 003.32).
    """
    lost = [_lose(journal, claim, uniform) for claim in _left_running(journal.connection, executor_id)]
    executors = dead_executors(journal.connection, executor_id)
    for dead in executors:
        journal.connection.execute(
            "UPDATE executor SET stopped_at = ? WHERE executor_id = ? AND stopped_at IS NULL", (journal.at, dead)
        )
        journal.emit(ExecutorChanged(ExecutorChange.LOST, dead))
    return Recovered(tuple(lost), tuple(clamp_instants(journal)), tuple(executors))


def _left_running(connection: sqlite3.Connection, executor_id: str) -> list[Claim]:
    rows = connection.execute(
        "SELECT run_id, name, attempt, generation, token FROM attempt"
        " WHERE outcome = 'running' AND executor_id IS NOT ? ORDER BY run_id, name, attempt",
        (executor_id,),
    )
    return [Claim(*row) for row in rows.fetchall()]


def _lose(journal: Journal, claim: Claim, uniform: Uniform) -> tuple[str, str]:
    _forgive_old_losses(journal, claim)
    tell_evidence(journal, claim.run_id, claim.name, claim.attempt, claim.generation)
    spec = _spec(journal.connection, claim)
    settle(journal, claim, spec, Outcome(OutcomeKind.LOST), uniform)
    if spec.isolation == "dask":
        _wait_for_the_fence(journal, claim, spec)
    return claim.run_id, claim.name


def _wait_for_the_fence(journal: Journal, claim: Claim, spec: TaskSpec) -> None:
    """No sweep reaches other hosts: there the attempt ends by itself, and until then no other may start."""
    key = (claim.run_id, claim.name)
    earliest = journal.at + round(fence_seconds(spec.grace_seconds) * 1e6)
    row = journal.connection.execute(
        "SELECT next_retry_at FROM task WHERE run_id = ? AND name = ? AND state = 'RETRYING'", key
    ).fetchone()
    if row is not None and row[0] < earliest:
        journal.change(*key, {"next_retry_at": earliest})


def _forgive_old_losses(journal: Journal, claim: Claim) -> None:
    key = (claim.run_id, claim.name)
    row = journal.connection.execute("SELECT losses FROM task WHERE run_id = ? AND name = ?", key).fetchone()
    (recent,) = journal.connection.execute(
        "SELECT count(*) FROM attempt WHERE run_id = ? AND name = ? AND generation = ? AND outcome = 'lost'"
        " AND ended_at > ?",
        (*key, claim.generation, journal.at - LOSSES_WINDOW_SECONDS * 1_000_000),
    ).fetchone()
    if row is not None and recent < row[0]:
        journal.change(*key, {"losses": recent})


def _spec(connection: sqlite3.Connection, claim: Claim) -> TaskSpec:
    text, overrides = connection.execute(
        "SELECT spec, overrides FROM task WHERE run_id = ? AND name = ?", (claim.run_id, claim.name)
    ).fetchone()
    return with_overrides(_decode(claim.name, text), overrides)


def _decode(name: str, text: str) -> TaskSpec:
    return TaskSpec(name) if text == "{}" else msgspec.json.decode(text, type=TaskSpec)


def clamp_instants(journal: Journal) -> Iterator[tuple[str, str]]:
    """Pull in due times that a clock which was ahead has put beyond what their policy could have asked for."""
    rows = journal.connection.execute(
        "SELECT run_id, name, state, next_retry_at, next_retry_at - ended_at, delay_us, spec FROM task"
        f" WHERE state IN {in_list(TIMED)} AND next_retry_at IS NOT NULL ORDER BY run_id, position"
    ).fetchall()
    for run_id, name, state, due_at, asked_us, delay_us, text in rows:
        wait_us = delay_us if state == TaskState.RETRYING else asked_us
        latest = journal.at + _longest_wait_us(_decode(name, text), state, wait_us)
        if due_at > latest:
            journal.change(run_id, name, {"next_retry_at": latest})
            yield run_id, name


def _longest_wait_us(spec: TaskSpec, state: str, wait_us: int | None) -> int:
    """``wait_us``: what was drawn or asked for (Retry-After, a sensor's own recheck), which may be longer."""
    seconds = spec.retry.cap if state == TaskState.RETRYING else 2 * spec.recheck_seconds
    return max(round(seconds * 1e6), wait_us or 0)
