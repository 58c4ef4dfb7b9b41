"""How a run ends: asked when nothing may start, it ends the run, or says that it is blocked."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.downstreams import Downstreams
from ..core.run_outcome import RunVerdict, judge_run
from ..domain.event_payloads import RunChange, RunChanged
from ..domain.states import RunState, TaskState
from ..store import claims
from .attempts import AttemptDesk
from .commit import Commit
from .run_view import Standing


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        run_id: the name of the run.
        state: SUCCESS, FAILED, PARTIAL (an optional task failed, an operator skipped one, or rows are in quarantine
            where ``strict_rows`` forbids it), or RUNNING where one of the two below is true.
        blocked: nothing can start before an operator has decided about a dead letter.
        interrupted: the run was stopped.

    Example:
        >>> RunResult("monday", RunState.SUCCESS).blocked
        False
    """

    run_id: str
    state: RunState
    blocked: bool = False
    interrupted: bool = False


class Judge:
    """Sees whether anything can still move without an operator. ``stays``: a blocked run waits for one."""

    def __init__(self, standing: Standing, downstreams: Downstreams, desk: AttemptDesk, *, stays: bool) -> None:
        self._standing = standing
        self._downstreams = downstreams
        self._desk = desk
        self._stays = stays

    def verdict(self) -> RunResult | Commit | None:
        """The end of the run; or what to commit first: the verdict itself; or None: it goes on by itself."""
        run = self._standing.fold.run
        active = self._standing.ledger.active - self._shut_out()
        if active or self._desk.sitters:
            return None if run.blocked_since is None else self._unblock()
        verdict = judge_run(self._standing.fold.tasks.values(), active)
        if verdict.blocked and run.blocked_since is not None:
            return None if self._stays else RunResult(run.run_id, run.state, blocked=True)
        if not verdict.blocked and run.ended_at is not None:
            return RunResult(run.run_id, run.state)
        return self._write(verdict)

    def interrupted(self) -> RunResult | None:
        """The end of a run that was asked to stop, once the last attempt has ended."""
        run = self._standing.fold.run
        return None if self._desk.sitters else RunResult(run.run_id, run.state, interrupted=True)

    def _shut_out(self) -> int:
        """Tasks whose downstream stays open until an operator says otherwise: they move no more than a dead letter."""
        shut = [name for name in self._downstreams.specs if self._downstreams.is_shut(name)]
        if not shut or not self._standing.ledger.counts[TaskState.DEAD_LETTER]:
            return 0
        return sum(len(self._standing.ledger.startable(name)) for name in shut)

    def _unblock(self) -> Commit:
        run_id = self._standing.fold.run.run_id
        unblocked = RunChanged(RunChange.UNBLOCKED, {"blocked_since": None})
        return Commit(lambda journal: journal.change_run(run_id, unblocked))

    def _write(self, verdict: RunVerdict) -> Commit:
        run_id = self._standing.fold.run.run_id
        return Commit(lambda journal: claims.write_verdict(journal, run_id, verdict))
