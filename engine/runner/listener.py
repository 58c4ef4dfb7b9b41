"""The interfaces between the executor and the runner.

An attempt reports to its ``AttemptListener`` and is controlled as a ``RunningAttempt``; a runner reports what concerns
no single attempt to its ``RunnerListener``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from ..core.outcome import Outcome
from ..domain.event_payloads import AttemptRetry, ExecutorChanged, Payload


class BadRow(TypedDict):
    """A row that an attempt set aside."""

    row_key: str
    payload: str
    error: str
    fingerprint: str | None


class AttemptListener:
    """Receives the reports of one attempt, in the event loop and in order; ``ended`` is the last one.

    A subclass handles those that it needs.
    """

    def started(self, pid: int, start_ticks: int | None) -> None:
        """The process exists."""

    def started_remotely(self, host: str, pid: int, start_ticks: int | None) -> None:
        """The process exists on another host."""

    def output(self, data: bytes) -> None:
        """The task wrote to stdout or stderr. Call ``pause_output`` on the attempt when this comes too fast."""

    def progress(self, done: int, total: int | None) -> None:
        """The task reported its progress; the same numbers again are a heartbeat."""

    def retried(self, retry: AttemptRetry) -> None:
        """The code of the task retried a call."""

    def quarantined(self, row: BadRow) -> None:
        """The task set a row aside; provisional until the attempt succeeds."""

    def checkpointed(self, value: str) -> None:
        """The task stored JSON for the next attempt."""

    def step(self, payload: Payload) -> None:
        """One step of the escalation happened (deadline, stack, SIGTERM, SIGKILL, ...); ``payload``: of its event."""

    def ended(self, outcome: Outcome) -> None:
        """The attempt is over, and none of its processes lives."""


def ignore(*report: object) -> None:
    """Do nothing: the default of each report."""


@dataclass(frozen=True, slots=True)
class RunnerListener:
    """Functions for the reports of a runner, called in the event loop.

    Attributes:
        zygote_lost: the zygote died, its attempts have ended as LOST, and a flow may be opened again.
        slot_freed: a slot that a leaked thread held may be free.
        executor_changed: gets the payload of an event: a zygote, a host of threads or a worker ended.
    """

    zygote_lost: Callable[[], object] = ignore
    slot_freed: Callable[[], object] = ignore
    executor_changed: Callable[[ExecutorChanged], object] = ignore


class RunningAttempt:
    """The controls of an attempt. Here of one that has ended: none has an effect."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cancel(self, reason: str) -> bool:
        """Start the escalation now. Returns False if the attempt is ending already."""
        return False

    def interrupt(self) -> bool:
        """Do what ``cancel`` does, because the executor stops."""
        return self.cancel("the executor stops")

    def extend(self, seconds: float) -> bool:
        """Move the deadline. Returns False if there is none, or it has passed."""
        return False

    async def dump_stack(self) -> str:
        """Return the stacks of the attempt as text; empty if it does not answer within 100 ms."""
        return ""

    def pause_output(self) -> None:
        """Stop reading the pipes: the task blocks once one of them is full."""

    def resume_output(self) -> None:
        """Read the pipes again."""
