"""Runs made of events, as the session would deliver them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redrive.engine.core.projection import AttemptRow, RunProjection, TaskRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.event_codec import decode
from redrive.engine.domain.event_payloads import TaskMoved
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import TaskState

S = 1_000_000
MINUTE = 60 * S
START = 1_777_000_000 * S


def projection_of(
    pairs: Iterable[tuple[str, Iterable[str]]], specs: dict[str, dict[str, Any]] | None = None, **run: Any
) -> RunProjection:
    """A run as it was created: every task PENDING."""
    projection = RunProjection(RunRow("run-1", "flow", started_at=START, **run))
    children: dict[str, list[str]] = {}
    for position, (name, parents) in enumerate(pairs):
        above = tuple(parents)
        spec = TaskSpec(name, above, **(specs or {}).get(name, {}))
        projection.tasks[name] = TaskRow(name, spec=spec, position=position, max_attempts=spec.retry.max_attempts)
        projection.parents[name] = above
        for parent in above:
            children.setdefault(parent, []).append(name)
    projection.children = {name: tuple(children.get(name, ())) for name in projection.tasks}
    return projection


class EventBuilder:
    """Tells events of one run, numbered and in order."""

    def __init__(self, projection: RunProjection, at: int = START) -> None:
        self.projection = projection
        self.at = at
        self.seq = projection.seq
        self._states = {name: row.state for name, row in projection.tasks.items()}
        self._attempts = {name: row.attempt for name, row in projection.tasks.items()}

    def after(self, seconds: float) -> EventBuilder:
        """Let time pass."""
        self.at += round(seconds * S)
        return self

    def event(self, kind: str, task: str | None = None, **fields: Any) -> Event:
        """One event of any kind."""
        self.seq += 1
        columns: dict[str, Any] = {
            "old": None,
            "new": None,
            "attempt": None,
            "generation": 0,
            "actor": None,
            "reason": None,
        }
        columns |= {"command_id": None, "payload": decode(kind, fields.pop("data", {})), **fields}
        return Event(seq=self.seq, at=self.at, kind=kind, run_id=self.projection.run.run_id, task=task, **columns)

    def move(self, name: str, new: str, of_attempt: dict[str, Any] | None = None, **columns: Any) -> Event:
        """A task moves; ``of_attempt`` are columns of its latest attempt."""
        old, self._states[name] = self._states[name], TaskState(new)
        payload = TaskMoved(columns, of_attempt or {})
        number = self._attempts[name] if of_attempt is not None else None
        return self.event(EventKind.TASK, name, old=str(old), new=new, attempt=number, payload=payload)

    def start(self, name: str, **attempt: Any) -> list[Event]:
        """READY, then claimed."""
        events = [self.move(name, "READY")]
        self._attempts[name] += 1
        number = self._attempts[name]
        first = {"attempt": number, "started_at": self.at, "outcome": "running", **attempt}
        return [*events, self.move(name, "RUNNING", first, **self._claimed(number))]

    def _claimed(self, number: int) -> dict[str, Any]:
        return {"attempt": number, "started_at": self.at, "ended_at": None}

    def succeed(self, name: str, **attempt: Any) -> list[Event]:
        """The running attempt ends well."""
        ended = {"ended_at": self.at, "outcome": "success", **attempt}
        return [self.move(name, "SUCCESS", ended, ended_at=self.at)]

    def fail(self, name: str, state: str = "RETRYING", error: str = "ValueError", **columns: Any) -> list[Event]:
        """The running attempt ends in an error; ``state`` is what the engine decided."""
        attempt = {
            "ended_at": self.at,
            "outcome": "error",
            "error_type": error,
            "error": f"{error} happened",
            "explain": f"{error} settle.py:87 in settle",
            "fingerprint": f"strict-{error}",
            "fingerprint_loose": f"loose-{error}",
        } | columns.pop("attempt", {})
        return [self.move(name, state, attempt, ended_at=self.at, error=attempt["error"], **columns)]


def ran_task(projection: RunProjection, name: str, started_at: int, duration_us: int) -> None:
    """Put a task into the projection as if its first attempt had succeeded."""
    row = projection.tasks[name]
    row.state, row.attempt, row.started_at, row.ended_at = TaskState.SUCCESS, 1, started_at, started_at + duration_us
    row.attempts[1] = AttemptRow(
        1, started_at=started_at, ended_at=row.ended_at, outcome="success", duration_us=duration_us
    )


def failed_task(
    projection: RunProjection, name: str, state: str = "DEAD_LETTER", error: str = "ValueError", at: int = START
) -> TaskRow:
    """Put a task into the projection as if one attempt had failed."""
    row = projection.tasks[name]
    row.state = TaskState(state)
    row.attempt = 1
    row.failures = 1
    row.ended_at = at
    row.error = f"{error} happened"
    row.failure_fingerprint = f"strict-{error}"
    row.attempts[1] = AttemptRow(
        1,
        started_at=at - S,
        ended_at=at,
        outcome="error",
        error_type=error,
        error=row.error,
        explain=f"{error} settle.py:87 in settle",
        fingerprint=f"strict-{error}",
        fingerprint_loose=f"loose-{error}",
    )
    return row
