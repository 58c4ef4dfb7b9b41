"""Reads which other runs of the state file need a human, after events that may have changed that."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.domain.events import Event, EventKind
from ..model.waiting_runs import WaitingRun, waiting_runs
from ..sessions.session import Session, SessionStatus

_Executor = tuple[bool, str | None, int | None]


class OtherRuns:
    """The waiting runs besides the one that is followed. ``refresh`` reads; nothing is read without a reason."""

    def __init__(self) -> None:
        self.waiting: Sequence[WaitingRun] = ()
        self._is_due = True
        self._run_id: str | None = None
        self._executor: _Executor | None = None

    def on_events(self, events: Sequence[Event], run_id: str) -> None:
        """Note events of runs, and of tasks of other runs than ``run_id``."""
        self._is_due |= any(
            event.kind == EventKind.RUN or (event.kind == EventKind.TASK and event.run_id not in (None, run_id))
            for event in events
        )

    def is_due(self, run_id: str, status: SessionStatus) -> bool:
        """Whether the list may have changed: by events, another followed run, or an executor that came or left."""
        return self._is_due or (run_id, _executor_of(status)) != (self._run_id, self._executor)

    async def refresh(self, session: Session, run_id: str) -> bool:
        """Read the list; True if it changed. Raises RedriveError."""
        self._is_due, self._run_id, self._executor = False, run_id, _executor_of(session.status)
        before, self.waiting = self.waiting, waiting_runs(await session.runs(), session.status, run_id)
        return before != self.waiting


def _executor_of(status: SessionStatus) -> _Executor:
    return status.executor_alive, status.executor_run_id, status.service_pid
