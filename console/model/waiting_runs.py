"""The runs of a state file that need a human: unfinished ones, and late ones that have ended with dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...engine.core.projection import RunRow
from ..sessions.session import RunSummary, SessionStatus


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that needs a human: it is blocked, has dead letters, or is unfinished and no executor runs it."""

    run: RunRow
    dead: int
    is_lost: bool

    @property
    def weight(self) -> int:
        """How much a badge counts for it: its dead letters, at least 1."""
        return max(self.dead, 1)


def is_lost(run: RunRow, status: SessionStatus) -> bool:
    """Whether an unfinished run that could go on has no executor, and no scheduler that starts one."""
    if run.ended_at is not None or run.blocked_since is not None or status.service_pid is not None:
        return False
    return not status.has_executor_of(run)


def waiting_runs(
    summaries: Iterable[RunSummary], status: SessionStatus, except_run_id: str | None = None
) -> list[WaitingRun]:
    """The runs that need a human, in the order given, without ``except_run_id``."""
    found = (
        WaitingRun(one.run, one.dead_letters, is_lost(one.run, status))
        for one in summaries
        if (one.run.ended_at is None or one.dead_letters) and one.run.run_id != except_run_id
    )
    return [one for one in found if one.dead or one.is_lost or one.run.blocked_since is not None]
