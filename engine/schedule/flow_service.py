"""The service of one flow in the supervisor: decides its next step, and starts an executor only for a run.

Between two runs no process owns the state file. Missed and late runs are written in a short transaction under its
lock; a started logical time is written by its executor, with the run. The executor has a session of its own and
outlives the supervisor: whoever finds the lock of the state file held waits for the end of its owner.

``core/schedule.py`` decides, ``store/schedules.py`` writes, ``executor/host.py`` starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from functools import partial

import msgspec

from ..core.schedule import FlowFacts, Step, StepKind, decide_step, iso_time, local_time, logical_name
from ..core.spec import LOGICAL_TIME, FlowSpec
from ..core.views import run_code
from ..domain.states import RunState
from ..errors import ExecutorBusyError, FlowError, RedriveError, RefusedError
from ..executor import host
from ..executor.opening import Machine
from ..executor.run_options import RunOptions
from ..executor.state_file_lease import check_sole_writer, create_state_folder
from ..flow.source import split_target
from ..notifications.notifier import MessageOrigin, Notifier
from ..statefile import lock_file
from ..statefile.opening import holds_nothing
from ..statefile.reader import Stamp, stamp_of
from ..statefile.supervisor_file import Control, MissedRun, ScheduleRecord, StoredSchedule, SupervisorFile
from ..statefile.transitions import Transaction
from ..store import database, lock, runs, schedules
from ..store.schedules import ScheduleStatus, ServedFlow, served_flow
from ..store.writer import Writer, WriterListener

BUSY_SECONDS = 1.0  # between tries while another process owns the file for a moment
RETRY_SECONDS = 60.0  # between tries after a failed start, or after a failed page
WRITES_MAX = 16  # state files open at a time: each has the cache of a database
DEATH_SECONDS = 5.0  # before the run of an executor that died is resumed


class Launched(msgspec.Struct, frozen=True):
    """A started run. ``pid``: of its executor; None: it has ended already; ``is_stopped``: by an operator."""

    pid: int | None
    is_stopped: bool = False


#: Starts the run of a flow, or resumes one (flow None): flow, state file, run, options. Raises RedriveError.
Launch = Callable[[str | None, str, str, RunOptions], Awaitable[Launched]]


class Supervision(msgspec.Struct, frozen=True):
    """What the services of one supervisor share. ``wake()``: a service has something to do."""

    id: str
    launch: Launch
    file: SupervisorFile
    machine: Machine
    options: RunOptions
    report: Callable[[str, str], None]
    wake: Callable[[], None]
    writes: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(WRITES_MAX))


class StartFailure(msgspec.Struct, frozen=True):
    """The latest start failed, or the flow file cannot be read. ``since``: the first time since the last good start."""

    error: str
    since: int
    at: int
    is_of_reading: bool = False


class FlowService:
    """Serves one flow. ``acquire`` comes first, ``step`` whenever ``wake_at`` has come, ``release`` last."""

    def __init__(
        self,
        target: str,
        served: ServedFlow,
        state_path: str,
        shared: Supervision,
        source: str = "",
        *,
        few_tasks: bool = False,
    ) -> None:
        self.target = target
        self.source = source  # the target of its file, as it was found
        self.served = served
        self.state_path = state_path
        self.wake_at: int | None = 0
        self.control = Control()
        self.is_stepping = False
        self._shared = shared
        self._clock = shared.machine.clock
        self._options = replace(shared.options, served=True, stay=False, wait=False, few_tasks=few_tasks)
        self._held: lock.StateLock | None = None
        self._executor: _WatchedProcess | None = None
        self._has_ended = False  # the executor, since the step in progress began
        self._run_id: str | None = None  # of the executor that this service has seen
        self._file_version = _version_of(state_path)
        self._failure: StartFailure | None = None
        self._missed_until = self._clock.now_us()
        self._retry_at = self._resend_at = 0
        self._edits: list[tuple[ServedFlow, int]] = []  # schedules to come, and since when they are in the file
        self._stopped_run_ids: set[str] = set()  # runs stopped by an operator, who decides about their resumption
        self._unusable_run_ids: set[str] = set()  # runs that the current flow cannot resume
        self._saved: object = None
        self._last_report = ""

    @property
    def file(self) -> str:
        return split_target(self.target)[0]

    @property
    def is_standby(self) -> bool:
        """Whether another supervisor serves the flow."""
        return self._held is None

    def restore(self, stored: StoredSchedule) -> None:
        """Go on from what an earlier supervisor knew."""
        self._missed_until = stored.missed_until
        if stored.start_error is not None:
            self._failure = StartFailure(stored.start_error, stored.failed_since or 0, stored.failed_at or 0)

    def acquire(self) -> None:
        """Become the one service of the state file, if nobody else is."""
        create_state_folder(self.state_path)
        try:
            self._held = lock.acquire(self.state_path + lock_file.SERVICE, self._shared.id)
        except ExecutorBusyError as error:
            self.report(f"is served already, by pid {error.pid} on {error.host}; this process stands by")

    def release(self) -> None:
        """Stop; a run goes on."""
        if self._executor is not None:
            self._executor.close()
        if self._held is not None:
            self._held.release()
            self._held = None

    async def stop_run(self) -> None:
        """Stop the run in order, if one goes on, and wait for the end of its executor."""
        holder = lock_file.current_holder(self.state_path)
        if holder is None or not holder.is_alive() or holder.host != socket.gethostname():
            return
        ended = asyncio.Event()
        with contextlib.suppress(ProcessLookupError):
            process = _WatchedProcess(holder.pid, ended.set)
            os.kill(process.pid, signal.SIGTERM)
            await ended.wait()

    def report(self, sentence: str) -> None:
        """Print a status line, unless it is the latest one."""
        if sentence != self._last_report:
            self._last_report = sentence
            self._shared.report(self.served.name, sentence)

    # --- What others change ----------------------------------------------------------------------------------------

    def use_flow(self, served: ServedFlow, *, few_tasks: bool) -> None:
        """Apply a flow file that was read: it may have been repaired."""
        if served.schedule.recurrence != self.served.schedule.recurrence:
            self._edits.append((served, self._clock.now_us()))
        self.served = served
        self._options = replace(self._options, few_tasks=few_tasks)
        self._unusable_run_ids.clear()
        self._retry_at = 0
        if self._failure is not None and self._failure.is_of_reading:
            self._failure = None
            self.report("its file can be read again")
        self.wake_at = 0

    def use_control(self, control: Control) -> None:
        """Apply what operators decided."""
        if control != self.control:
            self.control = control
            self.wake_at = 0

    def record_failure(self, error: str, *, is_of_reading: bool = False) -> None:
        """Record a start that failed, or a file that cannot be read. Late runs are still checked, and page with it."""
        now = self._clock.now_us()
        since = now if self._failure is None else self._failure.since
        self._failure = StartFailure(error, since, now, is_of_reading)
        if not is_of_reading:
            self._retry_at = now + round(RETRY_SECONDS * 1e6)
        self.wake_at = 0
        self.report(f"cannot start, tried again in {RETRY_SECONDS:g} s: {error}")

    def check_state_file(self) -> None:
        """Wake up if somebody has written the state file, as a decision about a blocked run does."""
        if self._executor is None and _version_of(self.state_path) != self._file_version:
            self.wake_at = 0

    # --- One step --------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Do the next step, and set when the one after it is due."""
        if self.is_standby:
            self.acquire()
        if self.is_standby:
            self.wake_at = self._after(BUSY_SECONDS)
            return
        now, self._has_ended = self._clock.now_us(), False
        holder = self._living_holder()
        self._file_version = _version_of(self.state_path)
        status = await asyncio.to_thread(self._load_status, now)
        if holder is None and self._run_id is not None:
            await self._handle_end(self._run_id, status)
            self._run_id = None
        self._note_edits(status, now)
        schedule = status.replaced or self.served.schedule
        step = decide_step(schedule, self._facts(status, holder is not None), now)
        self.wake_at = 0
        await self._do(step, status)
        self._save(status, step, holder)
        if self._has_ended:  # the step has waited for an executor that ended meanwhile
            self.wake_at = 0

    async def _do(self, step: Step, status: ScheduleStatus) -> None:
        try:
            match step.kind:
                case StepKind.RECORD:
                    await self._record()
                case StepKind.SKIP:
                    await self._write(lambda change: schedules.skip_slot(change, self.served, step.logical or 0))
                    self.report("the run that an operator skips is given up")
                case StepKind.START:
                    await self._start(step.logical or 0, is_requested=step.is_requested)
                case StepKind.RESUME:
                    await self._resume(step.run_id or "")
                case StepKind.WAIT:
                    self.wake_at = step.wake_at
                    self._report_next(status)
        except ExecutorBusyError as error:
            self.report(f"waits: {error}")
            self.wake_at = self._after(BUSY_SECONDS)
        except RedriveError as error:
            self.record_failure(str(error))

    def _living_holder(self) -> lock_file.LockHolder | None:
        """Return the owner of the state file, whose end wakes this service."""
        holder = lock_file.current_holder(self.state_path)
        if holder is None or not holder.is_alive():
            return None
        if self._executor is None or self._executor.pid != holder.pid:
            self._watch(holder)
        self._run_id = holder.run_id or self._run_id
        return holder

    def _watch(self, holder: lock_file.LockHolder) -> None:
        if self._executor is not None:
            self._executor.close()
        try:
            if holder.host != socket.gethostname():
                raise ProcessLookupError
            self._executor = _WatchedProcess(holder.pid, self._on_executor_end)
        except OSError:  # it has ended meanwhile, or runs elsewhere: ask again soon
            self._executor = None
            asyncio.get_running_loop().call_later(BUSY_SECONDS, self._on_executor_end)

    def _on_executor_end(self) -> None:
        self._executor = None
        self._has_ended = True
        self.wake_at = 0
        self._shared.wake()

    def _load_status(self, now: int) -> ScheduleStatus:
        if holds_nothing(self.state_path):
            return ScheduleStatus(None)
        with database.reading(self.state_path) as connection:
            return schedules.load_status(connection, self.served, now, self._late_from, self._replaced_at)

    def _note_edits(self, status: ScheduleStatus, now: int) -> None:
        """Forget the edits of the schedule that hold in the state file; one that nobody has seen is of this moment."""
        if status.replaced is None or status.progress is None:
            self._edits.clear()
            return
        held = status.progress.expression, status.progress.timezone
        while self._edits and (self._edits[0][0].spec.expression, self._edits[0][0].spec.timezone) == held:
            del self._edits[0]
        if not self._edits:
            self._edits.append((self.served, now))

    @property
    def _replaced_at(self) -> int | None:
        """When the schedule that holds in the state file was replaced in the flow file; None: it was not."""
        return self._edits[0][1] if self._edits else None

    def _state_of(self, run_id: str) -> RunState | str:
        with database.reading(self.state_path) as connection:
            return runs.run_state(connection, run_id)[0] if runs.exists(connection, run_id) else "was not written"

    @property
    def _late_from(self) -> int:
        """Before this instant no start is late, because the flow is or was paused."""
        within_us = self.served.schedule.start_within_us
        return self.control.paused_until + within_us if self.control.paused_until and within_us else 0

    def _facts(self, status: ScheduleStatus, is_owned: bool) -> FlowFacts:
        left_alone = self._stopped_run_ids | self._unusable_run_ids
        instants = [instant for instant in (status.next_late_at, status.next_expiry) if instant is not None]
        if status.has_unsent_page and self.served.flow.pages:
            instants.append(self._resend_at)
        return FlowFacts(
            is_owned=is_owned,
            decided_until=None if status.progress is None else status.progress.decided_until,
            next_at=None if status.progress is None else status.progress.next_at,
            started=status.fired,
            resumable=next((run_id for run_id in status.unfinished if run_id not in left_alone), None),
            requested=tuple(logical for logical, _ in self.control.requests),
            paused_until=self.control.paused_until,
            retry_at=self._retry_at,
            skip_logical=self.control.skip_logical,
            record_at=min(instants, default=None),
            replaced_at=self._replaced_at,
        )

    def _after(self, seconds: float) -> int:
        return self._clock.now_us() + round(seconds * 1e6)

    # --- Writing the state file ------------------------------------------------------------------------------------

    async def _record(self) -> None:
        self._resend_at = self._after(RETRY_SECONDS)
        served, replaced_at = self._edits[0] if self._edits else (self.served, None)
        error = None if self._failure is None else self._failure.error
        update = partial(schedules.update_schedule, served=served, late_from=self._late_from, start_error=error)
        await self._write(partial(update, replaced_at=replaced_at))

    async def _write(self, change: Callable[[Transaction], None]) -> None:
        """Change the state file under its lock, and send unsent pages."""
        async with self._shared.writes:
            await self._write_alone(change)

    async def _write_alone(self, change: Callable[[Transaction], None]) -> None:
        held = lock.acquire(self.state_path, self._shared.id)
        try:
            held.lock_file()
            check_sole_writer(self.state_path)
            machine = self._shared.machine
            connection = machine.open_database(self.state_path, self._options.durability)
            loop, thread = asyncio.get_running_loop(), machine.writer_thread
            writer = Writer(connection, loop, self._clock.now_us, WriterListener(), thread=thread)
            origin = MessageOrigin(self.served.name, "", os.path.abspath(self.state_path))
            notifier = Notifier(self.served.flow.pages, origin, writer, self._clock)
            notifier.start()
            try:
                await writer.submit(change)
            finally:
                await notifier.close()
                await writer.close()
        finally:
            held.release()

    # --- Runs ------------------------------------------------------------------------------------------------------

    async def _start(self, logical: int, *, is_requested: bool) -> None:
        zone = self.served.schedule.zone
        wanted = dict(self.control.requests).get(logical, "{}") if is_requested else "{}"
        params = {**self._options.params, **json.loads(wanted), LOGICAL_TIME: iso_time(logical, zone)}
        options = replace(self._options, params=params, logical_time=logical, served=not is_requested)
        try:
            await self._launch(self.target, logical_name(logical, zone), options)
        except RefusedError as error:  # another process was faster, or its slot was decided before a crash
            self.report(str(error))
        except ExecutorBusyError:
            raise
        except RedriveError:
            if is_requested:
                self._finish_request(logical)  # its error is recorded; nobody waits for a second try
            raise
        if is_requested:
            self._finish_request(logical)

    def _finish_request(self, logical: int) -> None:
        self._shared.file.finish_request(self.target, logical)
        left = tuple(request for request in self.control.requests if request[0] != logical)
        self.control = self.control._replace(requests=left)

    async def _resume(self, run_id: str) -> None:
        try:
            await self._launch(None, run_id, replace(self._options, params={}, resume=True))
        except ExecutorBusyError:
            raise
        except (FlowError, RefusedError) as error:  # other runs continue
            self._unusable_run_ids.add(run_id)
            self.report(f"run {run_id} is left as it is: {error}")

    async def _launch(self, target: str | None, run_id: str, options: RunOptions) -> None:
        launched = await self._shared.launch(target, self.state_path, run_id, options)
        self._failure = None
        verb = "is resumed" if options.resume else "has started"
        self.report(f"run {run_id} {verb}" + ("" if launched.pid is None else f", pid {launched.pid}"))
        if launched.pid is not None:
            self._run_id = run_id
        elif launched.is_stopped:
            self._stopped_run_ids.add(run_id)

    async def _handle_end(self, run_id: str, status: ScheduleStatus) -> None:
        """Report the end of the run whose executor has ended, and decide whether it is resumed."""
        if run_id not in status.unfinished:
            state = await asyncio.to_thread(self._state_of, run_id)
            self.report(f"run {run_id} {'waits for a human: redrive inbox' if state is RunState.RUNNING else state}")
            return
        last = lock_file.last_holder(self.state_path)
        if last is None or last.released_at is None:
            self._retry_at = self._after(DEATH_SECONDS)
            self.report(f"the executor of run {run_id} has died; the run is resumed in {DEATH_SECONDS:g} s")
        else:
            self._stopped_run_ids.add(run_id)
            self.report(f"run {run_id} was stopped by an operator; `redrive resume` continues it")

    def _report_next(self, status: ScheduleStatus) -> None:
        upcoming = None if status.progress is None else status.progress.next_at
        if self._run_id is None and self._failure is None and upcoming is not None:
            wall = local_time(upcoming - self.served.schedule.splay_us, self.served.schedule.zone)
            self.report(f"next {wall:%Y-%m-%d %H:%M:%S} {self.served.spec.timezone}")

    # --- The supervisor's file -------------------------------------------------------------------------------------

    def _save(self, status: ScheduleStatus, step: Step, holder: lock_file.LockHolder | None) -> None:
        """Write what is known into the supervisor's file, if it has changed."""
        skipped = self.control.skip_logical
        given_up = [logical for logical, _ in status.missed]
        new = [
            MissedRun(logical, self.served.schedule.due_at(logical))
            for logical, decided_at in status.missed
            if decided_at > self._missed_until and logical != skipped
        ]
        missed_until = max([self._missed_until, *(decided_at for _, decided_at in status.missed)])
        record = self._record_of(status, step, holder, missed_until)
        if (record, given_up) != self._saved:
            self._shared.file.save(self.target, record, given_up, new)
            self._saved, self._missed_until = (record, given_up), missed_until

    def _record_of(
        self, status: ScheduleStatus, step: Step, holder: lock_file.LockHolder | None, missed_until: int
    ) -> ScheduleRecord:
        file, name = split_target(self.target)
        progress, latest, failure = status.progress, status.latest, self._failure
        next_at = None if progress is None else progress.next_at
        return ScheduleRecord(
            file=file,
            object=name,
            flow=self.served.name,
            supervisor_id=self._shared.id,
            spec=encode_spec(self.served.flow),
            state_path=self.state_path,
            expression=self.served.spec.expression,
            timezone=self.served.spec.timezone,
            next_at=next_at,
            next_logical=None if next_at is None else next_at - self.served.schedule.splay_us,
            last_run_id=None if latest is None else latest.run_id,
            last_state=None if latest is None else run_code(latest),
            last_started_at=None if latest is None else latest.started_at,
            usual_us=status.usual_us,
            running_since=None if holder is None else holder.started_at,
            late_since=None if self._clock.now_us() < self.control.paused_until else step.late_since,
            start_error=None if failure is None else failure.error,
            failed_since=None if failure is None else failure.since,
            failed_at=None if failure is None else failure.at,
            missed_until=missed_until,
        )


def _version_of(state_path: str) -> tuple[Stamp, Stamp]:
    """Return what changes with each write of a state file."""
    return stamp_of(state_path), stamp_of(state_path + "-wal")


async def launch_executor(
    start: host.StartProcess, flow: str | None, state_path: str, run_id: str, options: RunOptions
) -> Launched:
    """Start an executor in a session of its own, which outlives this process."""
    return Launched(
        await asyncio.to_thread(
            host.spawn, flow=flow, state=state_path, run_id=run_id, options=asdict(options), start=start
        )
    )


def encode_spec(flow: FlowSpec) -> str:
    """Return a flow without tasks as JSON."""
    return msgspec.json.encode(flow).decode()


def decode_spec(text: str) -> ServedFlow | None:
    """Return the flow of a JSON text; None if there is none, or if another version wrote it."""
    try:
        return served_flow(msgspec.json.decode(text, type=FlowSpec))
    except (msgspec.DecodeError, FlowError):
        return None


class _WatchedProcess:
    """A process, of this supervisor or of an earlier one. ``on_end()`` is called once when it has ended."""

    def __init__(self, pid: int, on_end: Callable[[], None]) -> None:
        """Raises OSError if there is no such process."""
        self.pid = pid
        self._on_end = on_end
        self._descriptor = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._end)

    def _end(self) -> None:
        self.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        self._on_end()

    def close(self) -> None:
        """Watch it no longer."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
