"""Who hears of an attempt, and what may be asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..core.outcome import Outcome
from ..domain.event_payloads import AttemptRetry, Payload


class AttemptListener(Protocol):
    """Hears of one attempt, in the event loop and in order. After ``ended`` nothing follows."""

    def started(self, pid: int, start_ticks: int | None) -> None:
        """Its process exists."""

    def started_remotely(self, host: str, pid: int, start_ticks: int | None) -> None:
        """Its process exists, where it cannot be looked at from here."""

    def output(self, data: bytes) -> None:
        """It wrote to stdout or stderr. Call ``pause_output`` on the attempt when this comes too fast."""

    def progress(self, done: int, total: int | None) -> None:
        """It reported how far it is; the same numbers again mean only that it is alive."""

    def retried(self, retry: AttemptRetry) -> None:
        """Its own code retried something."""

    def quarantined(self, row: Mapping[str, Any]) -> None:
        """It set a row aside: row_key, payload, error, fingerprint. Provisional until it succeeds."""

    def checkpointed(self, value: str) -> None:
        """It left JSON for the next attempt."""

    def step(self, payload: Payload) -> None:
        """One rung of the ladder, as its event tells it."""

    def ended(self, outcome: Outcome) -> None:
        """It is over, and none of its processes lives."""


class RunningAttempt(Protocol):
    """What may be asked of an attempt while it runs."""

    pid: int

    def cancel(self, reason: str) -> bool:
        """End it by the ladder, without waiting for its deadline. False: it is ending already."""

    def extend(self, seconds: float) -> bool:
        """Move its deadline. False: it has none, or it has passed."""

    async def dump_stack(self) -> str:
        """Where it stands now, as text; empty when it does not answer within 100 ms."""

    def pause_output(self) -> None:
        """Stop reading what it says: it waits once a pipe is full."""

    def resume_output(self) -> None:
        """Read again."""


class NullListener:
    """Hears everything and does nothing: a base for listeners that want little."""

    def started(self, pid: int, start_ticks: int | None) -> None: ...

    def started_remotely(self, host: str, pid: int, start_ticks: int | None) -> None: ...

    def output(self, data: bytes) -> None: ...

    def progress(self, done: int, total: int | None) -> None: ...

    def retried(self, retry: AttemptRetry) -> None: ...

    def quarantined(self, row: Mapping[str, Any]) -> None: ...

    def checkpointed(self, value: str) -> None: ...

    def step(self, payload: Payload) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...
