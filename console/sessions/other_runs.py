"""The runs of a state file that need a human, besides the one that is followed."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.domain.events import Event, EventKind
from ...engine.statefile.lists import ATTENTION_RUNS
from ..model.runs import WaitingRun, waiting_runs
from ..model.session_status import SessionStatus
from .session import Session

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
        rows = await session.rows(ATTENTION_RUNS)
        before, self.waiting = self.waiting, waiting_runs(rows, session.status, session.now_us(), run_id)
        return before != self.waiting


def _executor_of(status: SessionStatus) -> _Executor:
    return status.executor.alive, status.executor.run_id, status.service_pid
