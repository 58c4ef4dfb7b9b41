"""The end of a run: at its deadline, when no task may start, or when it is stopped."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..clock import Clock
from ..core.deadline import is_due
from ..core.downstreams import DownstreamStates
from ..core.projection import TaskRow, missing_result
from ..core.run_outcome import HeldTasks, RunOutcome, evaluate_run, find_held_tasks
from ..core.spec import FlowSpec
from ..core.waiting import ExplainContext
from ..domain.acts import Answer, Author
from ..domain.event_payloads import OperatorActed, RunChange, RunChanged
from ..domain.states import RunState, TaskState
from ..domain.text import counted
from ..errors import StorageError
from ..runner.context import Missing
from ..statefile import large_results, lock_file
from ..statefile.pruning import PruneStep, RetentionRule, prune_step
from ..statefile.transitions import Transaction
from ..store import database, endings, schedules
from ..store.writer import Writer
from .active_run import ActiveRun, Commit
from .attempts import RunningAttempts
from .opening import OpenRun

BLOCKED = "BLOCKED"


@dataclass(frozen=True, slots=True, repr=False)
class RunResult:
    """The end of a run; ``result["extract"]`` is what the task ``extract`` returned.

    Attributes:
        run_id: the name of the run.
        run_state: the state in the state file: SUCCESS, FAILED, PARTIAL (an optional task failed, an operator skipped a
            task, or rows are in quarantine although ``strict_rows`` forbids it), or RUNNING if one of the two below is
            true.
        blocked: no task can start before an operator acts: a dead letter, a breaker or a pause waits for one.
        interrupted: the run was stopped.
        late: the deadline of the run has ended it.
        why: what a blocked run waits for.
        asked: the tasks of a blocked run that wait for an approval.

    Example:
        >>> from redrive.engine import Executor, Flow
        >>> flow = Flow("sums")
        >>> @flow.task
        ... def extract(): return [5, 7]
        >>> @flow.task(after=extract)
        ... def add(extract): return sum(extract)
        >>> result = Executor(run_id="monday", flow=flow).run_result()
        >>> result, result.state, result["add"]
        (<run 'monday': SUCCESS, 2 tasks SUCCESS>, 'SUCCESS', 12)
    """

    run_id: str
    run_state: RunState
    blocked: bool = False
    interrupted: bool = False
    late: bool = False
    why: str = ""
    asked: tuple[str, ...] = ()
    _tasks: Mapping[str, TaskRow] = field(default_factory=dict, compare=False)
    _state_path: str = field(default="", compare=False)

    @property
    def state(self) -> str:
        """``run_state`` as text, or "BLOCKED" for a run that waits for an operator."""
        return BLOCKED if self.blocked else str(self.run_state)

    @property
    def states(self) -> dict[str, str]:
        """The state of each task, by its name."""
        return {name: str(row.state) for name, row in self._tasks.items()}

    def __getitem__(self, task: str) -> Any:
        """Return the result of a task, or ``Missing`` (which is false, and says why) if it has none.

        Raises:
            KeyError: the run has no such task.
        """
        row = self._tasks.get(task)
        if row is None:
            raise KeyError(f"run {self.run_id!r} has no task {task!r}; it has {', '.join(self._tasks) or 'none'}")
        why = missing_result(row)
        result = row.result
        if large_results.is_large(result):
            with database.reading(self._state_path) as connection:
                result = large_results.load(connection, self.run_id, task, result)
        return Missing(task, why) if why is not None else None if result is None else json.loads(result)

    def __repr__(self) -> str:
        counts = Counter(row.state for row in self._tasks.values())
        tasks = "".join(f", {counted(count, 'task')} {state}" for state, count in counts.items())
        return f"<run {self.run_id!r}: {self.state}{tasks}>"


class RunEndCheck:
    """Decides whether a run can progress without an operator."""

    def __init__(
        self, run: ActiveRun, downstreams: DownstreamStates, attempts: RunningAttempts, opened: OpenRun
    ) -> None:
        self._run = run
        self._downstreams = downstreams
        self._attempts = attempts
        self._options = opened.lease.request.options
        self._state_path = opened.state_path

    @property
    def is_deadline_due(self) -> bool:
        """Whether the deadline is to end the run now: no task starts any more."""
        return is_due(self._run.projection.run, self._run.now_us())

    def pass_deadline(self) -> Commit | None:
        """Return the commit that ends what the deadline of the run ends, if that is due."""
        if not self.is_deadline_due:
            return None
        return Commit(lambda transaction: endings.pass_deadline(transaction, self._run.run_id), durable=True)

    def check(self) -> RunResult | Commit | None:
        """Return the result of the run, or the commit of its verdict, or None while the run can progress."""
        run = self._run.projection.run
        if self._is_busy:
            return self._unblock_if_blocked()
        active = self._run.ready_queue.active_count
        held = self._find_held_tasks() if active else ()
        if active and not held:
            return self._unblock_if_blocked()
        verdict = evaluate_run(self._run.projection, held)
        if verdict.is_blocked and run.blocked_since is not None:
            if self._options.stay or self._awaits_timeout:
                return None
            return replace(self._result(), blocked=True, why=verdict.why or "", asked=tuple(verdict.asked))
        if not verdict.is_blocked and run.ended_at is not None:
            return self._result()
        return self._commit_verdict(verdict)

    def interrupted_result(self) -> RunResult | None:
        """Return the result of a run that was asked to stop; None while attempts run."""
        return None if self._is_busy else self._result(interrupted=True)

    @property
    def _awaits_timeout(self) -> bool:
        """Whether an approval fails at its timeout unless it is answered: the executor is there to fail it.

        ``redrive serve`` starts one then.
        """
        if self._options.served:
            return False
        tasks = self._run.projection.tasks.values()
        return any(row.state is TaskState.READY and row.expires_at is not None for row in tasks)

    @property
    def _is_busy(self) -> bool:
        """Whether attempts run, or claims are being committed."""
        return bool(self._attempts.running or self._run.ready_queue.claiming)

    def _result(self, *, interrupted: bool = False) -> RunResult:
        projection = self._run.projection
        return RunResult(
            projection.run.run_id,
            RunState(projection.run.state),
            interrupted=interrupted,
            late=projection.run.deadline_passed_at is not None,
            _tasks=projection.tasks,
            _state_path=self._state_path,
        )

    def _find_held_tasks(self) -> tuple[HeldTasks, ...]:
        context = ExplainContext(self._downstreams.statuses)
        return find_held_tasks(self._run.projection, self._run.now_us(), context)

    def _unblock_if_blocked(self) -> Commit | None:
        if self._run.projection.run.blocked_since is None:
            return None
        unblocked = RunChanged(RunChange.UNBLOCKED, {"blocked_since": None})
        return Commit(lambda transaction: transaction.change_run(self._run.run_id, unblocked))

    def _commit_verdict(self, verdict: RunOutcome) -> Commit:
        run_id, seq = self._run.run_id, self._run.projection.seq
        return Commit(lambda transaction: endings.write_verdict(transaction, run_id, verdict, seq), durable=True)


# --- A graceful stop -------------------------------------------------------------------------------------------------
#
# No more attempts start; the running ones are waited for ("drain") or terminated ("now").


class Shutdown:
    """``mode``: None, "drain" or "now"; ``on_request()`` is called at every request."""

    def __init__(self, attempts: RunningAttempts, on_request: Callable[[], None]) -> None:
        self.mode: str | None = None
        self._attempts = attempts
        self._on_request = on_request

    def request(self, mode: str) -> None:
        """Stop with ``mode`` "drain" or "now"; "now" cannot be downgraded."""
        if self.mode != "now":
            self.mode = mode
        if mode == "now":
            self._attempts.interrupt_all()
        self._on_request()


# --- Deletes old runs after a run, while this executor still owns the state file (``Flow(retention=...)``) -----------


APPLY_SECONDS = 10.0  # after each run; the next run goes on with what is left
RETENTION = Author("retention")


async def apply_retention(writer: Writer, flow: FlowSpec, run_id: str, is_stopping: Callable[[], bool]) -> None:
    """Delete what the flow's retention does not keep, in steps, until a stop is requested or APPLY_SECONDS are over."""
    retention = RetentionRule(flow.retention_runs, flow.retention_seconds)
    if retention == RetentionRule():
        return
    loop = asyncio.get_running_loop()
    end = loop.time() + APPLY_SECONDS
    while loop.time() < end and not is_stopping():
        try:
            step = await writer.submit(lambda transaction: _step(transaction, retention, run_id))
        except StorageError:  # the run has ended; the next one goes on here
            return
        if step.is_last:
            return


def _step(transaction: Transaction, retention: RetentionRule, run_id: str) -> PruneStep:
    """Do a step, with an event if it deletes runs."""
    step = prune_step(transaction, retention, run_id)
    if step.runs:
        transaction.author = RETENTION
        count = len(step.runs)
        answer = Answer(True, f"{counted(count, 'run')} deleted")
        transaction.emit(OperatorActed("prune", dict(retention._asdict()), answer.as_json()))
    return step


# --- Reports late runs of a served flow while a run is active: a start or an end after its deadline ------------------
#
# A state file has one run at a time, so a long run delays the next one, and only the executor of the long run can
# report that, also if it was started by hand while a service waits for the file. While no executor lives,
# ``schedule/flow_service.py`` reports late runs by the same function.


SERVICE_POLL_SECONDS = 10.0  # between checks whether a service has started


class LateRuns:
    """Checked at every heartbeat; queries the state file only when a run may have become late."""

    def __init__(self, opened: OpenRun, clock: Clock, on_error: Callable[[BaseException], None]) -> None:
        self._served = schedules.served_flow(opened.flow)
        self._is_of_service = opened.lease.request.options.served
        self._state_path = opened.state_path
        self._submit = opened.writer.submit
        self._run_id = opened.projection.run.run_id
        self._clock = clock
        self._on_error = on_error
        self._next_late_at: int | None = 0  # microseconds UTC; 0: unknown; None: never, or a query is in flight

    def check(self) -> None:
        """Record late runs if one may be late by now."""
        served = self._served
        if served is None or self._next_late_at is None or self._clock.now_us() < self._next_late_at:
            return
        if not self._is_of_service and lock_file.served_by(self._state_path) is None:
            # Deadlines apply to a served flow only.
            self._next_late_at = self._clock.now_us() + round(SERVICE_POLL_SECONDS * 1e6)
            return
        self._next_late_at = None
        self._submit(partial(self._record, served)).add_done_callback(self._on_recorded)

    def _record(self, served: schedules.ServedFlow, transaction: Transaction) -> int | None:
        """Record late runs, and return when to look again: during a pause soon, for nobody says when it ends."""
        excused = schedules.excused_starts(served, state_path=self._state_path)
        next_late_at = schedules.record_late_runs(transaction, served, self._run_id, excused=excused)
        poll_at = transaction.at + round(SERVICE_POLL_SECONDS * 1e6)
        return next_late_at if next_late_at is None or excused.until <= transaction.at else min(next_late_at, poll_at)

    def _on_recorded(self, written: asyncio.Future[int | None]) -> None:
        if written.cancelled():
            return
        error = written.exception()
        if error is None:
            self._next_late_at = written.result()
        elif isinstance(error, StorageError):  # reported by StorageHealth
            self._next_late_at = 0
        else:
            self._on_error(error)
