"""Detects vanished processes, silent, late and slow tasks, a deadline out of reach, and long outages of downstreams.

Checked once a second by the heartbeat. ``domain/liveness.py`` and ``core/deadline.py`` make the decisions.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..clock import Clock
from ..core.deadline import Slack, compute_slack, describe_slow, is_due, slow_after_seconds
from ..core.dispatch_rules import LongOutage, LongOutages
from ..core.downstreams import DownstreamStates
from ..core.projection import TaskRow
from ..core.schedule import expected_at
from ..core.spec import ExpectedBy
from ..domain import liveness
from ..domain.durations import format_clock, format_duration
from ..domain.event_payloads import AttemptReclaimed, AttemptSilent
from ..domain.liveness import Liveness
from ..domain.states import MOVING, DeadLetterKind, TaskState
from ..flow.time_zones import open_zone
from ..runner import process
from ..statefile.processes import identity
from ..store import claims
from ..store.pages import PageRequest, trigger_page
from .attempts import AttemptManager, AttemptSupervisor
from .run_view import RunView

TASKS_PER_DEADLINE_CHECK = 2000  # larger runs check the deadline less often than once a second


class Watchdog:
    """Checks the run and writes its findings as events and pages."""

    def __init__(self, view: RunView, attempts: AttemptManager, downstreams: DownstreamStates, clock: Clock) -> None:
        self._view = view
        self._projection = view.projection
        self._attempts = attempts
        self._clock = clock
        self._swept_at = clock.monotonic()
        self._suspects: set[str] = set()  # tokens of attempts whose process was gone at the previous sweep
        self._silent: set[str] = set()  # tokens of attempts whose silence was emitted
        self._checks = 0
        self._is_late = False
        self._zone = open_zone(view.flow.timezone, view.flow.name)
        self._expected: list[tuple[int, str]] = []  # when tasks are expected to have succeeded, the latest first
        self._known_count = 0  # tasks of which ``_expected`` knows
        self._slow: set[str] = set()  # tokens of attempts whose slowness was noticed
        self._outages = LongOutages(view.ready_queue, downstreams)

    def check(self) -> None:
        """Run the checks that are due; called once a second."""
        self._checks += 1
        if self._checks % (1 + len(self._projection.tasks) // TASKS_PER_DEADLINE_CHECK) == 0:
            self._check_deadline()
        self._check_expected()
        self._check_slow()
        now = self._clock.monotonic()
        for outage in self._outages.update(round(now * 1e6)):
            self._page(self._outage(outage))
        if now - self._swept_at >= liveness.SWEEP_SECONDS:
            self._swept_at = now
            self.sweep()

    # --- Attempts ---------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Check the process of every attempt."""
        suspects: set[str] = set()
        for supervisor in list(self._attempts.running.values()):
            if supervisor.pid is None:
                continue
            token = supervisor.claim.token
            is_there = supervisor.start_ticks is None or identity(supervisor.pid)[0] == supervisor.start_ticks
            silent_seconds = self._attempts.loop.time() - supervisor.last_seen_at
            match liveness.check_liveness(
                is_there, token in self._suspects, supervisor.sends_heartbeats, silent_seconds
            ):
                case Liveness.SUSPECT:
                    suspects.add(token)
                case Liveness.LOST:
                    self._reclaim(supervisor, silent_seconds)
                case Liveness.SILENT if token not in self._silent:
                    self._silent.add(token)
                    self._emit(supervisor, AttemptSilent, silent_seconds, process.kernel_view(supervisor.pid))
        self._suspects = suspects

    def _reclaim(self, supervisor: AttemptSupervisor, silent_seconds: float) -> None:
        self._emit(supervisor, AttemptReclaimed, silent_seconds, "gone")
        supervisor.mark_lost(f"its process {supervisor.pid} is gone, and its exit status is unknown")

    def _emit(
        self,
        supervisor: AttemptSupervisor,
        evidence: type[AttemptSilent | AttemptReclaimed],
        silent_seconds: float,
        seen: str,
    ) -> None:
        """Emit the evidence before its consequences."""
        payload = evidence(supervisor.pid, supervisor.start_ticks, seen, round(silent_seconds, 1))
        self._attempts.emit(supervisor.claim, payload)

    def _page(self, request: PageRequest) -> None:
        self._attempts.write(lambda transaction: trigger_page(transaction, request))

    # --- Late and slow tasks ----------------------------------------------------------------------------------------

    def _check_expected(self) -> None:
        """Page for tasks that have not succeeded when they were expected to."""
        tasks, now = self._projection.tasks, self._clock.now_us()
        if len(tasks) != self._known_count:  # also after a map task got its children
            self._known_count = len(tasks)
            self._expected = sorted(self._expectations(), reverse=True)
        while self._expected and self._expected[-1][0] <= now:
            at, name = self._expected.pop()
            row = tasks[name]
            if row.state in MOVING and row.spec is not None:
                state_text = _STATE_TEXT.get(row.state, "has not started")
                why = f"it was expected by {self._describe(row.spec.expect_by, at)} and {state_text}"
                self._notice(row, why, "later than expected", f"expected:{self._projection.run.run_id}/{name}")

    def _describe(self, expected: ExpectedBy | None, at: int) -> str:
        if expected is not None and expected.clock is not None:
            return f"{expected.clock} {self._view.flow.timezone}"
        return f"{format_clock(at)}, {expected}"

    def _expectations(self) -> Iterator[tuple[int, str]]:
        run = self._projection.run
        start = run.started_at if run.logical_time is None else run.logical_time
        for row in self._projection.tasks.values():
            if row.spec is not None and row.spec.expect_by is not None and row.state in MOVING:
                yield expected_at(row.spec.expect_by, start, self._zone), row.name

    def _check_slow(self) -> None:
        """Page for attempts that run longer than the task allows."""
        now = self._clock.now_us()
        for supervisor in self._attempts.running.values():
            limit, name, token = supervisor.spec.warn_if_slower, supervisor.task, supervisor.claim.token
            row = self._projection.tasks[name]
            if limit is None or token in self._slow or row.state is not TaskState.RUNNING or row.started_at is None:
                continue
            usual, elapsed = self._view.usual_seconds.get(name), (now - row.started_at) / 1e6
            after = slow_after_seconds(limit, usual)
            if after is not None and elapsed > after:
                self._slow.add(token)
                cause = f"slow:{self._projection.run.run_id}/{name}/{row.generation}"
                self._notice(row, describe_slow(elapsed, limit, usual), "slower than usual", cause)

    def _notice(self, row: TaskRow, why: str, title: str, cause: str) -> None:
        run_id, owner = self._projection.run.run_id, None if row.spec is None else row.spec.owner
        request = PageRequest(run_id, row.name, title, why, cause=cause, owner=owner)
        self._attempts.write(lambda transaction: claims.write_notice(transaction, run_id, row.name, why, request))

    # --- Downstreams ------------------------------------------------------------------------------------------------

    def _outage(self, outage: LongOutage) -> PageRequest:
        downstream, held, lasts_us = outage
        tasks = "1 task" if len(held) == 1 else f"{len(held)} tasks"
        spec = self._projection.tasks[held[0]].spec
        return PageRequest(
            run_id=self._projection.run.run_id,
            task=held[0],
            title=f"{downstream} is down",
            why=f"{downstream} has failed for {format_duration(lasts_us)}, and its breaker holds {tasks}",
            kind=DeadLetterKind.BREAKER,
            downstream=downstream,
            owner=None if spec is None else spec.owner,
        )

    # --- The deadline -----------------------------------------------------------------------------------------------

    def _check_deadline(self) -> None:
        run, now = self._projection.run, self._clock.now_us()
        if run.deadline_passed_at is not None or is_due(run, now):
            return  # ``run_end.py`` ends the run, with a page
        slack = compute_slack(self._projection, self._view.path_seconds, now)
        is_late = slack is not None and slack.seconds < 0
        if is_late and not self._is_late and slack is not None:
            self._page(self._lateness(slack))
        self._is_late = is_late

    def _lateness(self, slack: Slack) -> PageRequest:
        run, row = self._projection.run, self._projection.tasks[slack.task]
        assert run.deadline_at is not None
        is_missed = self._clock.now_us() >= run.deadline_at
        state_text = _STATE_TEXT.get(row.state, "has not started")
        needs = (
            f"{format_duration(round(slack.needs_seconds * 1e6))} of work are left"
            if slack.needs_seconds
            else "it is over time"
        )
        spec = row.spec
        return PageRequest(
            run_id=run.run_id,
            task=row.name,
            title="deadline missed" if is_missed else "deadline at risk",
            why=f"the run can no longer make {format_clock(run.deadline_at)}: {row.name} {state_text}, and from there"
            f" {needs}",
            kind=DeadLetterKind.DEADLINE,
            owner=None if spec is None else spec.owner,
        )


_STATE_TEXT = {
    TaskState.RUNNING: "is running",
    TaskState.RETRYING: "waits for its next attempt",
    TaskState.SENSING: "is still waiting for what it looks for",
    TaskState.DEAD_LETTER: "waits for a human",
    TaskState.READY: "waits for a slot",
}
