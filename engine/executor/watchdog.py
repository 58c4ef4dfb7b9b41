"""Detects vanished processes, silent and late tasks, a deadline out of reach, and long outages of downstreams.

Checked once a second by the heartbeat. ``domain/liveness.py`` and ``core/deadline.py`` make the decisions.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..clock import Clock
from ..core.causes import PageRequest
from ..core.deadline import Slack, compute_slack, is_due
from ..core.downstreams import DownstreamStates, LongOutage, LongOutages
from ..core.projection import TaskRow
from ..core.ready_queue import spec_of
from ..core.schedule import expected_at
from ..core.spec import ExpectedBy
from ..core.views import describe_task, task_view
from ..core.waiting import long_wait
from ..domain import liveness
from ..domain.event_payloads import AttemptReclaimed, AttemptSilent
from ..domain.liveness import Liveness
from ..domain.states import MOVING, DeadLetterKind
from ..domain.text import format_clock, format_duration, format_seconds
from ..flow.source import open_zone
from ..runner import process
from ..statefile.processes import identity
from ..store import claims
from ..store.pages import trigger_page
from .active_run import ActiveRun
from .attempts import AttemptRecorder, RunningAttempts

TASKS_PER_DEADLINE_CHECK = 2000  # larger runs check the deadline less often than once a second


class Watchdog:
    """Checks the run and writes its findings as events and pages."""

    def __init__(self, run: ActiveRun, attempts: RunningAttempts, downstreams: DownstreamStates, clock: Clock) -> None:
        self._run = run
        self._projection = run.projection
        self._attempts = attempts
        self._clock = clock
        self._swept_at = clock.monotonic()
        self._suspects: set[str] = set()  # tokens of attempts whose process was gone at the previous sweep
        self._silent: set[str] = set()  # tokens of attempts whose silence was emitted
        self._checks = 0
        self._is_late = False
        self._zone = open_zone(run.flow.timezone, run.flow.name)
        self._expected: list[tuple[int, str]] = []  # when tasks are expected to have succeeded, the latest first
        self._known_count = 0  # tasks of which ``_expected`` knows
        self._clock_moved_us = 0  # since the start of this executor
        self._outages = LongOutages(run.ready_queue, downstreams)
        self._noticed: set[str] = set()  # causes of long waits

    def shift_clock(self, jump_us: int) -> None:
        """Expect tasks so long after the start of the run as before a step of the clock."""
        self._clock_moved_us += jump_us
        self._known_count = 0

    def check(self) -> None:
        """Run the checks that are due; called once a second."""
        self._checks += 1
        if self._checks % (1 + len(self._projection.tasks) // TASKS_PER_DEADLINE_CHECK) == 0:
            self._check_deadline()
        self._check_expected()
        now = self._clock.monotonic()
        for outage in self._outages.update(self._clock.now_us()):
            self._page(self._outage(outage))
        if now - self._swept_at >= liveness.SWEEP_SECONDS:
            self._swept_at = now
            self._check_waits()
            self.sweep()

    # --- Attempts ---------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Check the process of every attempt."""
        suspects: set[str] = set()
        for recorder in list(self._attempts.running.values()):
            if recorder.pid is None:
                continue
            token = recorder.claim.token
            is_there = recorder.start_ticks is None or identity(recorder.pid)[0] == recorder.start_ticks
            silent_seconds = self._attempts.loop.time() - recorder.last_seen_at
            match liveness.check_liveness(is_there, token in self._suspects, recorder.sends_heartbeats, silent_seconds):
                case Liveness.SUSPECT:
                    suspects.add(token)
                case Liveness.LOST:
                    self._emit(recorder, AttemptReclaimed, silent_seconds, "gone")
                    recorder.mark_lost(f"its process {recorder.pid} is gone, and its exit status is unknown")
                case Liveness.SILENT if token not in self._silent:
                    self._silent.add(token)
                    self._emit(recorder, AttemptSilent, silent_seconds, process.kernel_view(recorder.pid))
        self._suspects = suspects

    def _emit(
        self,
        recorder: AttemptRecorder,
        evidence: type[AttemptSilent | AttemptReclaimed],
        silent_seconds: float,
        seen: str,
    ) -> None:
        """Emit the evidence before its consequences."""
        payload = evidence(recorder.pid, recorder.start_ticks, seen, round(silent_seconds, 1))
        self._attempts.emit(recorder.claim, payload)

    def _page(self, request: PageRequest) -> None:
        self._attempts.write(lambda transaction: trigger_page(transaction, request))

    # --- Late tasks -------------------------------------------------------------------------------------------------

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
                state_text = describe_task(task_view(self._projection, name, now))
                why = f"it was expected by {self._describe(row.spec.expect_by, at)} and is not done: {state_text}"
                self._notice(row, why, "later than expected", f"expected:{self._run.run_id}/{name}")

    def _describe(self, expected: ExpectedBy | None, at: int) -> str:
        if expected is not None and expected.clock is not None:
            return f"{expected.clock} {self._run.flow.timezone}"
        return f"{format_clock(at)}, {expected}"

    def _expectations(self) -> Iterator[tuple[int, str]]:
        run = self._projection.run
        schedule = self._run.flow.schedule
        is_day = schedule is not None and schedule.follows
        start = run.started_at if run.logical_time is None or is_day else run.logical_time
        for row in self._projection.tasks.values():
            expected = None if row.spec is None else row.spec.expect_by
            if expected is not None and row.state in MOVING:
                moved_us = self._clock_moved_us if expected.clock is None else 0
                yield expected_at(expected, start, self._zone) + moved_us, row.name

    def _check_waits(self) -> None:
        """Page once for each wait that ends by itself, and much later than anybody expects."""
        run, now = self._projection.run, self._clock.now_us()
        found = [wait for row in self._projection.tasks.values() if (wait := long_wait(run, row, now)) is not None]
        for wait in found:
            if wait.cause not in self._noticed:
                self._notice(self._projection.tasks[wait.task], wait.why, "waits long", wait.cause)
        self._noticed = {wait.cause for wait in found}

    def _notice(self, row: TaskRow, why: str, title: str, cause: str) -> None:
        run_id = self._run.run_id
        request = PageRequest(run_id, row.name, title, why, cause=cause, owner=spec_of(row).owner)
        self._attempts.write(lambda transaction: claims.write_notice(transaction, run_id, row.name, why, request))

    # --- Downstreams ------------------------------------------------------------------------------------------------

    def _outage(self, outage: LongOutage) -> PageRequest:
        downstream, held, lasts_us = outage
        tasks = "1 task waits" if len(held) == 1 else f"{len(held)} tasks wait"
        return PageRequest(
            run_id=self._run.run_id,
            task=held[0],
            title=f"{downstream} is down",
            why=f"{downstream} has failed for {format_duration(lasts_us)}, and {tasks} for it",
            kind=DeadLetterKind.BREAKER,
            downstream=downstream,
            owner=spec_of(self._projection.tasks[held[0]]).owner,
        )

    # --- The deadline -----------------------------------------------------------------------------------------------

    def _check_deadline(self) -> None:
        run, now = self._projection.run, self._clock.now_us()
        if run.deadline_passed_at is not None or is_due(run, now):
            return  # ``run_end.py`` ends the run, with a page
        slack = compute_slack(self._projection, self._run.path_seconds, now)
        is_late = slack is not None and slack.seconds < 0
        if is_late and not self._is_late and slack is not None:
            self._page(self._lateness(slack))
        self._is_late = is_late

    def _lateness(self, slack: Slack) -> PageRequest:
        run, row = self._projection.run, self._projection.tasks[slack.task]
        assert run.deadline_at is not None
        is_missed = self._clock.now_us() >= run.deadline_at
        state_text = describe_task(task_view(self._projection, row.name, self._clock.now_us()))
        needs = f"{format_seconds(slack.needs_seconds)} of work are left" if slack.needs_seconds else "it is over time"
        return PageRequest(
            run_id=run.run_id,
            task=row.name,
            title="deadline missed" if is_missed else "deadline at risk",
            why=f"the run can no longer make {format_clock(run.deadline_at)}: {row.name} is not done"
            f" ({state_text}), and from there {needs}",
            kind=DeadLetterKind.DEADLINE,
            owner=spec_of(row).owner,
        )
