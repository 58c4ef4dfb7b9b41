"""The end of a run: when no task may start, ends the run or marks it as blocked."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.downstreams import DownstreamStates
from ..core.run_outcome import RunOutcome, evaluate_run
from ..domain.event_payloads import RunChange, RunChanged
from ..domain.states import RunState, TaskState
from ..store import claims
from .attempts import AttemptManager
from .commit import Commit
from .run_view import RunView


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        run_id: the name of the run.
        state: SUCCESS, FAILED, PARTIAL (an optional task failed, an operator skipped a task, or rows are in
            quarantine although ``strict_rows`` forbids it), or RUNNING if one of the two below is true.
        blocked: no task can start before an operator decides about a dead letter.
        interrupted: the run was stopped.

    Example:
        >>> RunResult("monday", RunState.SUCCESS).blocked
        False
    """

    run_id: str
    state: RunState
    blocked: bool = False
    interrupted: bool = False


class RunEndCheck:
    """Decides whether a run can progress without an operator. ``stays``: a blocked run waits instead of ending."""

    def __init__(self, view: RunView, downstreams: DownstreamStates, attempts: AttemptManager, *, stays: bool) -> None:
        self._view = view
        self._downstreams = downstreams
        self._attempts = attempts
        self._stays = stays

    def check(self) -> RunResult | Commit | None:
        """Return the result of the run, or the commit of its verdict, or None while the run can progress."""
        run = self._view.projection.run
        active = self._view.ready_queue.active_count - self._count_held_by_operator()
        if active or self._attempts.running:
            return None if run.blocked_since is None else self._unblock()
        verdict = evaluate_run(self._view.projection.tasks.values(), active)
        if verdict.is_blocked and run.blocked_since is not None:
            return None if self._stays else RunResult(run.run_id, run.state, blocked=True)
        if not verdict.is_blocked and run.ended_at is not None:
            return RunResult(run.run_id, run.state)
        return self._commit_verdict(verdict)

    def interrupted_result(self) -> RunResult | None:
        """Return the result of a run that was asked to stop; None while attempts run."""
        run = self._view.projection.run
        return None if self._attempts.running else RunResult(run.run_id, run.state, interrupted=True)

    def _count_held_by_operator(self) -> int:
        """Count tasks that only an operator can release, because a breaker stays open until an operator closes it."""
        held = [name for name in self._downstreams.specs if self._downstreams.needs_operator(name)]
        if not held or not self._view.ready_queue.counts[TaskState.DEAD_LETTER]:
            return 0
        return sum(len(self._view.ready_queue.startable_for(name)) for name in held)

    def _unblock(self) -> Commit:
        run_id = self._view.projection.run.run_id
        unblocked = RunChanged(RunChange.UNBLOCKED, {"blocked_since": None})
        return Commit(lambda transaction: transaction.change_run(run_id, unblocked))

    def _commit_verdict(self, verdict: RunOutcome) -> Commit:
        run_id = self._view.projection.run.run_id
        return Commit(lambda transaction: claims.write_verdict(transaction, run_id, verdict))
