"""Serves the schedule of a flow: starts each run when it is due, one at a time, and resumes runs that can continue.

Between two runs no process owns the state file: operators' clients apply their acts themselves, and the service
detects the changed file. Missed logical times and late runs are written in a short transaction under the lock; a
started logical time is written with its run. So a kill at any time loses and repeats no run: the next service reads
the progress of this one.

``core/schedule.py`` decides, ``store/schedules.py`` writes, ``executor/executor.py`` runs.
"""

from __future__ import annotations

import asyncio
import shlex
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from ..clock import Clock, ClockWatch
from ..core.schedule import iso_time, local_time, logical_name
from ..core.spec import LOGICAL_TIME
from ..domain.events import Event
from ..domain.states import RunState
from ..domain.text import format_duration
from ..errors import ExecutorBusyError, FlowError, RedriveError, RefusedError
from ..executor.executor import Executor
from ..executor.machine import Machine
from ..executor.run_options import RunOptions
from ..executor.shutdown import handle_signals
from ..executor.state_file_lease import check_sole_writer, create_state_folder
from ..flow.source import split_target
from ..notifications.notifier import MessageOrigin, Notifier
from ..statefile import lock_file
from ..statefile.opening import has_content
from ..statefile.ownership import require_own_state_file
from ..statefile.reader import stamps_of
from ..store import database, lock, runs, schedules
from ..store.schedules import ScheduleStatus, ServedFlow
from ..store.writer import Writer, WriterListener

BUSY_SECONDS = 1.0  # between tries while another process owns the file
RETRY_SECONDS = 60.0  # between tries after an error, or after a failed page


@dataclass(frozen=True, slots=True)
class ServiceResult:
    """The result of a service. ``interrupted``: it ended during a run, which the next service resumes."""

    interrupted: bool


class ScheduleService:
    """Serves one flow from one state file until SIGTERM or SIGINT.

    ``report(sentence)`` prints a status line; ``on_events`` gets the events of its runs and of its own writes.
    """

    def __init__(
        self,
        target: str,
        state_path: str,
        options: RunOptions,
        *,
        report: Callable[[str], None],
        on_events: Callable[[Sequence[Event]], None],
        machine: Machine | None = None,
    ) -> None:
        self._target = target
        self._flow_path = split_target(target)[0]
        self._flow_version = stamps_of(self._flow_path)
        self._state_path = state_path
        self._waits_for_lock = options.wait
        self._options = replace(options, served=True, stay=False, wait=False)
        self._report = report
        self._on_events = on_events
        self._machine = machine or Machine()
        self._clock = self._machine.clock
        self._clock_watch = ClockWatch(self._clock)
        self._id = uuid.uuid4().hex
        self._executor: Executor | None = None
        self._interrupted = False
        self._stopping = asyncio.Event()
        self._has_succeeded = False
        self._stopped_run_ids: set[str] = set()  # runs stopped by an operator, who decides about their resumption
        self._unusable_run_ids: set[str] = set()  # runs that the current flow cannot resume
        self._paused_until = 0  # microseconds UTC: no run starts before
        self._resend_at = 0  # microseconds UTC: unsent pages are retried from then on
        self._next_step_at = 0
        self._last_report = ""  # the latest status line, to avoid repetition

    def run(self) -> ServiceResult:
        """Serve. Raises ExecutorBusyError if the file is served already, FlowError, StateFileError."""
        return asyncio.run(self._serve_until_signal())

    async def _serve_until_signal(self) -> ServiceResult:
        handle_signals(asyncio.get_running_loop(), self.stop)
        return await self.serve_here()

    async def serve_here(self) -> ServiceResult:
        """Do what ``run`` does in the caller's event loop, until ``stop`` is called."""
        require_own_state_file(self._state_path)
        create_state_folder(self._state_path)
        held = self._acquire_service_lock()
        try:
            return await self._serve()
        finally:
            held.release()

    def _acquire_service_lock(self) -> lock.StateLock:
        try:
            return lock.acquire(self._state_path + lock_file.SERVICE, self._id, wait=self._waits_for_lock)
        except ExecutorBusyError as error:
            who = f"pid {error.pid} on {error.host}"
            raise ExecutorBusyError(
                f"{self._state_path} is served already, by {who}; `--wait` stands by until it has gone",
                pid=error.pid,
                host=error.host,
            ) from None

    # --- The loop --------------------------------------------------------------------------------------------------

    async def _serve(self) -> ServiceResult:
        self._served = await self._load_schedule()
        self._report_once(f"serves {self._served.name}; watch it with: redrive attach {shlex.quote(self._state_path)}")
        while not self._stopping.is_set():
            self._file_version = stamps_of(self._state_path)
            if not await self._try_step():
                await self._wait()
        return ServiceResult(self._interrupted)

    async def respond(self, line: bytes) -> Mapping[str, object]:
        """Answer an act of an operator on the active run. Raises ConnectionError if there is none."""
        if self._executor is None:
            raise ConnectionResetError("no run is active")
        return await self._executor.respond(line)

    def stop(self) -> None:
        """Stop gracefully: terminate a running run, which stays resumable."""
        self._stopping.set()
        if self._executor is not None:
            self._executor.stop()

    async def _try_step(self) -> bool:
        """Run one step; True: try the next one at once."""
        try:
            return await self._step()
        except ExecutorBusyError as error:
            self._pause(BUSY_SECONDS, f"waiting: {error}")
        except RedriveError as error:
            if not self._has_succeeded:
                raise  # the first step failed: end with the error, for the user who started the service
            self._pause(RETRY_SECONDS, f"not possible now, tried again in {RETRY_SECONDS:g} s: {error}")
        return False

    async def _step(self) -> bool:
        if stamps_of(self._flow_path) != self._flow_version:
            await self._reload_schedule()
        now = self._clock.now_us()
        status = await asyncio.to_thread(self._load_status, now)
        if self._needs_write(status, now):
            await self._update_file()
            return True
        self._next_step_at = self._next_due_time(status, now)
        if now < self._paused_until:
            return False
        decision = status.decision(self._served, now)
        if resumable := [
            run_id for run_id in status.unfinished if run_id not in self._stopped_run_ids | self._unusable_run_ids
        ]:
            await self._resume(resumable[0])
        elif decision is not None and decision.run is not None:
            await self._start(decision.run)
        else:
            self._report_next(status, now)
            return False
        return True

    async def _wait(self) -> None:
        """Wait until the next due time, a change of the state file or flow file, or a stop."""
        while not self._stopping.is_set():
            if jump_us := self._clock_watch.jump_us():
                self._on_clock_step(jump_us)
            left_seconds = (self._next_step_at - self._clock.now_us()) / 1e6
            try:
                async with asyncio.timeout(min(max(left_seconds, 0.0), self._machine.heartbeat_seconds)):
                    await self._stopping.wait()
            except TimeoutError:
                pass
            has_changed = (
                stamps_of(self._state_path) != self._file_version or stamps_of(self._flow_path) != self._flow_version
            )
            if has_changed or self._clock.now_us() >= self._next_step_at:
                return

    def _next_due_time(self, status: ScheduleStatus, now: int) -> int:
        """Return the next time, in microseconds UTC, at which a step may be due."""
        instants = [
            self._paused_until,
            status.next_late_at,
            status.progress.next_at if status.progress is not None else None,
        ]
        instants += [self._resend_at] if status.has_unsent_page and self._served.flow.pages else []
        return min((at for at in instants if at is not None and at > now), default=now + round(RETRY_SECONDS * 1e6))

    def _pause(self, seconds: float, why: str) -> None:
        """Start no runs for ``seconds``."""
        self._paused_until = self._next_step_at = self._clock.now_us() + round(seconds * 1e6)
        self._report_once(why)

    # --- The flow and the file -------------------------------------------------------------------------------------

    async def _load_schedule(self) -> ServedFlow:
        served = schedules.served_flow(await self._machine.read_flow(self._target, self._options.params))
        if served is None:
            raise FlowError(f"{self._target} has no schedule: write Flow('name', schedule='0 2 * * *')")
        return served

    async def _reload_schedule(self) -> None:
        """Apply a changed flow file, if it can be imported."""
        self._flow_version = stamps_of(self._flow_path)
        self._unusable_run_ids.clear()
        self._paused_until = 0
        try:
            self._served = await self._load_schedule()
        except FlowError as error:
            self._report_once(f"the flow has changed and cannot be used, its old schedule stays: {error}")

    def _load_status(self, now: int) -> ScheduleStatus:
        if not has_content(self._state_path):
            return ScheduleStatus(None)
        with database.reading(self._state_path) as connection:
            return schedules.load_status(connection, self._served, now)

    def _needs_write(self, status: ScheduleStatus, now: int) -> bool:
        """Whether the schedule, late runs or pages need a write, apart from the start of a run."""
        decision = status.decision(self._served, now)
        if (
            status.progress is None
            or decision is None
            or (status.next_late_at is not None and status.next_late_at <= now)
        ):
            return True
        if status.has_unsent_page and self._served.flow.pages and self._resend_at <= now:
            return True
        return bool(decision.missed) or (
            decision.run is None and decision.decided_until != status.progress.decided_until
        )

    async def _update_file(self) -> None:
        """Update the schedule in the file under its lock, and send unsent pages."""
        served = self._served
        held = lock.acquire(self._state_path, self._id)
        try:
            check_sole_writer(self._state_path)
            self._resend_at = self._clock.now_us() + round(RETRY_SECONDS * 1e6)
            writer = self._open_writer()
            origin = MessageOrigin(served.name, "", self._state_path)
            notifier = Notifier(served.flow.pages, origin, writer, self._clock)
            notifier.start()
            try:
                await writer.submit(lambda transaction: schedules.update_schedule(transaction, served))
            finally:
                await notifier.close()
                await writer.close()
        finally:
            held.release()
        self._has_succeeded = True

    def _open_writer(self) -> Writer:
        connection = self._machine.open_database(self._state_path, self._options.durability)
        try:
            loop, now_us, thread = asyncio.get_running_loop(), self._clock.now_us, self._machine.writer_thread
            return Writer(connection, loop, now_us, WriterListener(events_durable=self._on_events), thread=thread)
        except BaseException:
            connection.close()
            raise

    # --- Runs ------------------------------------------------------------------------------------------------------

    async def _start(self, logical: int) -> None:
        zone = self._served.schedule.zone
        params = {**self._options.params, LOGICAL_TIME: iso_time(logical, zone)}
        run_id = logical_name(logical, zone)
        self._report_once(f"run {run_id} is due")
        try:
            await self._run(run_id, replace(self._options, params=params, logical_time=logical))
        except RefusedError as error:  # another process started it first
            self._report_once(str(error))

    async def _resume(self, run_id: str) -> None:
        self._report_once(f"run {run_id} is resumed")
        try:
            await self._run(run_id, replace(self._options, params={}, resume=True))
        except (FlowError, RefusedError) as error:  # other runs continue
            self._unusable_run_ids.add(run_id)
            self._report_once(f"run {run_id} is left as it is: {error}")

    async def _run(self, run_id: str, options: RunOptions) -> None:
        executor = Executor(
            run_id=run_id,
            flow=self._target,
            state=self._state_path,
            options=options,
            machine=self._machine,
            on_events=self._on_events,
        )
        self._executor = executor
        try:
            result = await executor.run_here()
        finally:
            self._executor = None
        self._has_succeeded = True
        is_unfinished = result.interrupted and result.run_state is RunState.RUNNING
        self._interrupted = is_unfinished and self._stopping.is_set()
        if is_unfinished and not self._stopping.is_set():
            self._stopped_run_ids.add(result.run_id)
            self._report_once(f"run {result.run_id} was stopped by an operator; `redrive resume` continues it")

    # --- Status lines ----------------------------------------------------------------------------------------------

    def _report_next(self, status: ScheduleStatus, now: int) -> None:
        upcoming = None if status.progress is None else status.progress.next_at
        if upcoming is None:
            self._report_once("the schedule has no further runs")
            return
        wall = local_time(upcoming - self._served.schedule.splay_us, self._served.schedule.zone)
        text = f"next {wall:%Y-%m-%d %H:%M:%S} {self._served.spec.timezone}"
        if text not in self._last_report:
            self._report_once(f"{text}, in {format_duration(upcoming - now)}")

    def _report_once(self, sentence: str) -> None:
        if sentence != self._last_report:
            self._last_report = sentence
            self._report(sentence)

    def _on_clock_step(self, jump_us: int) -> None:
        """Reset the waits after a clock step; logical times are times of day and stay."""
        self._paused_until = self._resend_at = self._next_step_at = 0
        self._report_once(f"the clock of this machine moved by {jump_us / 1e6:+.0f} s")


# --- Backfill: the logical times of a schedule without a run, and waiting for runs of the live schedule --------------


RUNS_MAX = 10_000  # in one backfill
RUN_POLL_SECONDS = 0.5  # between polls: a service that starts its run sends no event


@dataclass(frozen=True, slots=True)
class BackfillSlot:
    """A logical time. ``run_id`` None: it has no run yet."""

    logical: int
    run_id: str | None = None
    state: RunState | None = None
    is_blocked: bool = False
    is_deleted: bool = False  # its run is

    @property
    def is_resumable(self) -> bool:
        """Whether it has a run that can continue: interrupted, or decided about after it was blocked."""
        return self.state is RunState.RUNNING and not self.is_blocked

    @property
    def is_pending(self) -> bool:
        """Whether it has no run, or one that can continue."""
        return self.run_id is None or self.is_resumable

    @property
    def has_ended(self) -> bool:
        return self.state not in (None, RunState.RUNNING)


def backfill_slots(state_path: str, served: ServedFlow, since: int, until: int) -> list[BackfillSlot]:
    """Return the logical times from ``since`` to ``until`` inclusive, each with its run.

    Raises RefusedError for more than RUNS_MAX, StateFileError if the file cannot be read.
    """
    times = list(islice(takewhile(lambda at: at <= until, served.schedule.recurrence.after(since - 1)), RUNS_MAX + 1))
    if len(times) > RUNS_MAX:
        raise RefusedError(f"that is more than {RUNS_MAX:,} runs: backfill a shorter range at a time")
    if not times or not has_content(state_path):
        return [BackfillSlot(at) for at in times]
    with database.reading(state_path) as connection:
        slots = _slots_with_runs(connection, served, times)
    return [slots.get(at, BackfillSlot(at)) for at in times]


def _slots_with_runs(connection: sqlite3.Connection, served: ServedFlow, times: list[int]) -> dict[int, BackfillSlot]:
    started = schedules.runs_of(connection, served.name, times[0], times[-1])
    return {at: _slot(connection, at, run_id, end) for at, (run_id, end) in started.items()}


def _slot(connection: sqlite3.Connection, logical: int, run_id: str, end: RunState | None) -> BackfillSlot:
    if end is not None:
        return BackfillSlot(logical, run_id, end, is_deleted=True)
    state, is_blocked = runs.run_state(connection, run_id)
    return BackfillSlot(logical, run_id, state, is_blocked)


def wait_for_schedule(state_path: str, served: ServedFlow, clock: Clock, report: Callable[[str], None]) -> None:
    """Wait while a service of the same file has a due run to start, which takes precedence over the backfill."""
    is_reported = False
    while lock_file.served_by(state_path) is not None and _is_due(state_path, served, clock.now_us()):
        if not is_reported:
            report("waiting for the run that is due by the schedule")
            is_reported = True
        time.sleep(RUN_POLL_SECONDS)  # the service does not announce that it has started the run


def _is_due(state_path: str, served: ServedFlow, now: int) -> bool:
    if not has_content(state_path):
        return False
    with database.reading(state_path) as connection:
        next_at = schedules.next_at(connection, served.name)
    return next_at is not None and next_at <= now
