"""The service of one flow in the supervisor: takes its next step, and starts an executor only for a run.

Between two runs no process owns the state file. Missed and late runs are written in a short transaction under its
lock; a started logical time is written by its executor, with the run. The executor has a session of its own and
outlives the supervisor: whoever finds the lock of the state file held waits for the end of its owner.

``core/supervision.py`` decides, ``store/schedules.py`` writes, ``executor/host.py`` starts. Of what a service knows:

    schedule_edits.py    the schedules that the flow file had, and that come yet
    start_failures.py    why runs do not start
    executor_watch.py    the process that owns the state file
    flow_ledger.py       what became of each logical time, and why
    following.py         the days of a flow that follows others
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TypeVar

import msgspec

from ..core.schedule import Excused, Schedule, iso_time, local_time, logical_name
from ..core.spec import LOGICAL_TIME
from ..core.supervision import ScheduleFacts, ScheduleStep, StepKind, decide_step, is_ahead, next_problem
from ..core.views import run_code
from ..core.waiting import ALIVE
from ..domain.states import RunState
from ..domain.text import place_words, shell_command
from ..errors import ExecutorBusyError, FlowError, RedriveError, RefusedError, StorageError
from ..executor.run_options import RunOptions
from ..executor.state_file_lease import check_sole_writer, create_state_folder
from ..flow.source import split_target
from ..notifications.notifier import MessageOrigin, Notifier
from ..notifications.storage_page import StoragePager
from ..statefile import lock_file
from ..statefile.lists import ScheduleRow
from ..statefile.opening import holds_nothing
from ..statefile.reader import Stamp, stamp_of
from ..statefile.start_requests import StartRequest, claim, remove
from ..statefile.supervisor_file import FOREVER, PastRun, ServedSchedule
from ..statefile.transitions import Transaction
from ..store import database, lock, pages, runs, schedules
from ..store.schedules import LedgerMark, ScheduleStatus, ServedFlow, encode_spec, with_schedule
from ..store.supervisor_writer import DECIDED
from ..store.writer import Writer, WriterListener
from .executor_watch import ExecutorWatch
from .flow_ledger import FlowLedger
from .following import Followed, follow_now
from .schedule_edits import ScheduleEdits
from .start_failures import StartFailure, StartFailures
from .supervision import Supervision

T = TypeVar("T")

BUSY_SECONDS = 1.0  # between tries while another process owns the file for a moment
STARTED_SECONDS = 1.0  # after a start, before the next look at its state file: other runs may be due now
RETRY_SECONDS = 60.0  # between tries after a failed start, or after a failed page
DEATH_SECONDS = 5.0  # before the run of an executor that died is resumed


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
        self.gone_since: int | None = None  # its flow is in no file that is served
        #: As it is in the supervisor's file: what was saved last, and what operators decided since.
        self.row = ServedSchedule(0, target, split_target(target)[0], split_target(target)[1], served.name, state_path)
        self.requests: tuple[StartRequest, ...] = ()
        self.is_stepping = False
        self._shared = shared
        self._clock = shared.machine.clock
        self._options = replace(shared.options, served=True, stay=False, wait=False, few_tasks=few_tasks)
        self._held: lock.StateLock | None = None
        self.stood_by = ""  # which other supervisor had the flow when this one came
        self.watch = ExecutorWatch(state_path, self._on_executor_end)
        self._is_woken = False  # since the step in progress began
        self._file_version = _version_of(state_path)
        self._failures = StartFailures()
        self._storage_pager: StoragePager | None = None  # since its state file has refused a start
        self._ledger = FlowLedger(shared, self._failures)
        self._new_since: int | None = None  # its schedule is in no state file since then: another process owns the file
        self._read_at = self._clock.now_us()
        self._retry_at = self._resend_at = 0
        self._edits = ScheduleEdits(lambda text: shared.file.note_edits(self.row.id, text))
        self._stopped_run_ids: set[str] = set()  # runs stopped by an operator, who decides about their resumption
        self._stuck: dict[str, StartFailure] = {}  # runs that the current flow cannot resume
        self._followed: Followed | None = None  # of a flow that follows others: its days as of now
        self._is_in_circle = False  # it comes after itself
        self._far_at: int | None = 0  # the next run that was compared with the rhythm of the schedule
        self._last_report = ""
        self._ended: tuple[PastRun, ...] = ()  # the latest runs that have ended, as the supervisor's file has them

    @property
    def is_standby(self) -> bool:
        """Whether another supervisor serves the flow."""
        return self._held is None

    def acquire(self) -> None:
        """Become the one service of the state file, if nobody else is, and go on from what the one before it knew."""
        create_state_folder(self.state_path)
        try:
            self._held = lock.acquire(self.state_path + lock_file.SERVICE, self._shared.id)
        except ExecutorBusyError as error:
            holder = lock_file.served_by(self.state_path)
            self.stood_by = f"pid {error.pid}" if holder is None else holder.who
            self.report(f"is served already, by {self.stood_by}; this process stands by")
            return
        own = self.gone_since, self._failures.current
        self._restore(self._shared.file.claim(self.target, self.served.name, self.state_path))
        if self.stood_by:  # it has read the flow's file itself
            self.gone_since, self._failures.current = own

    def _restore(self, stored: ServedSchedule) -> None:
        self.row, self.gone_since = stored, stored.gone_since
        held = self._held_until_now
        self._ledger.mark = LedgerMark(stored.ledger_until, stored.seen_run, held.schedule)
        self._edits.restore(self.served, stored.edits)
        if stored.expression is not None and not self._edits.last_or(held).means(self.served):
            self._edits.add(self.served, self._read_at)
        if stored.start_error is not None and stored.spec:
            since, at, is_gone = stored.failed_since or 0, stored.failed_at or 0, stored.gone_since is not None
            self._failures.current = StartFailure(stored.start_error, since, at, is_of_reading=is_gone)

    @property
    def _held_until_now(self) -> ServedFlow:
        """The flow with the schedule by which was decided until now."""
        expression, timezone, spec = self.row.expression, self.row.timezone, self.served.spec
        if expression is None or timezone is None:
            return self.served
        return with_schedule(self.served, msgspec.structs.replace(spec, expression=expression, timezone=timezone))

    def release(self) -> None:
        """Stop; a run goes on."""
        self.watch.close()
        if self._storage_pager is not None:
            self._storage_pager.close()
            self._storage_pager = None
        if self._held is not None:
            self._held.release()
            self._held = None

    def report(self, sentence: str) -> None:
        """Print a status line, unless it is the latest one."""
        if sentence != self._last_report:
            self._last_report = sentence
            self._shared.report(self.served.name, sentence)

    # --- What others change ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Step as soon as possible, also if what has changed comes too late for the step in progress."""
        self.wake_at, self._is_woken = 0, True

    def shift_clock(self, jump_us: int) -> None:
        """Decide again after a step of the clock: logical times are times of day and stay, waits last as long."""
        if self._retry_at != FOREVER:
            self._retry_at += jump_us
        self._resend_at += jump_us
        self.wake()

    def use_flow(self, served: ServedFlow, *, few_tasks: bool) -> None:
        """Apply a flow file that was read: it may have been repaired."""
        self._read_at, before, self.served = self._clock.now_us(), self.served, served
        if served.schedule.recurrence != before.schedule.recurrence and not self.is_standby:
            self._edits.add(served, self._read_at)
        self._options = replace(self._options, few_tasks=few_tasks)
        self._stuck.clear()
        self._retry_at, self.gone_since = 0, None
        if self._failures.current is not None and self._failures.current.is_of_reading:
            self._failures.end(self._read_at)
            self.report("its file can be read again")
        self.wake()

    def use_decisions(self, row: ServedSchedule) -> None:
        """Apply what operators decided."""
        decided = self.row._replace(**{name: getattr(row, name) for name in DECIDED})
        if decided != self.row:
            self.row = decided
            self.wake()

    def use_requests(self, requests: tuple[StartRequest, ...]) -> None:
        """Apply the starts that operators ask for."""
        if requests != self.requests:
            self.requests = requests
            self.wake()

    def lose_flow(self, why: str) -> None:
        """Go on without the flow, which is in no file: what is due is late and pages, until somebody forgets it."""
        now = self._clock.now_us()
        self.gone_since, self._retry_at = self.gone_since or now, FOREVER
        self._failures.record(why, now, is_of_reading=True)
        self.wake()
        self.report(why)

    def record_failure(
        self, error: str, *, is_of_reading: bool = False, is_of_storage: bool = False, due_at: int | None = None
    ) -> None:
        """Record a start that failed, or a file that cannot be read. Late runs are still checked, and page with it."""
        now = self._clock.now_us()
        self._failures.record(error, now, is_of_reading=is_of_reading, is_of_storage=is_of_storage, due_at=due_at)
        if not is_of_reading:
            self._retry_at = now + round(RETRY_SECONDS * 1e6)
        self.wake()
        self.report(f"cannot start, tried again in {RETRY_SECONDS:g} s: {error}")

    def page_storage(self) -> None:
        """Page for a state file that cannot be written: its own pages cannot, and no executor runs that would."""
        failure = self._failures.current
        if failure is not None and failure.is_of_storage and self._storage_pager is None and not self.is_standby:
            folder = self._shared.machine.pages_folder()
            self._storage_pager = StoragePager(self.served.flow.pages, self._origin, folder, self._clock)
        if self._storage_pager is not None:
            since = failure.since if failure is not None and failure.is_of_storage else None
            self._storage_pager.check(since, "" if failure is None else failure.error)

    def check_state_file(self) -> None:
        """Wake up if somebody has written the state file, as an operator does, or removed the lock."""
        if self._held is not None and not self._held.is_in_place:
            self.wake()
        if self.watch.process is None and _version_of(self.state_path) != self._file_version:
            self.wake()

    # --- One step --------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        """Do the next step, and set when the one after it is due."""
        if self._held is not None and not self._held.is_in_place:
            self._held.drop()
            self._held = None
        if self.is_standby:
            self.acquire()
        if self.is_standby:
            self.wake_at = self._after(BUSY_SECONDS)
            return
        now, self._is_woken = self._clock.now_us(), False
        holder = self.watch.living_holder()
        self._file_version = _version_of(self.state_path)
        served = self._edits.first_or(self.served)
        known = self._shared.file.stored() if served.schedule.follows else []
        status = await asyncio.to_thread(self._load_status, now, known)
        self._new_since = (self._new_since or now) if status.progress is None else None
        self._refuse_circle("" if self._followed is None else self._followed.error)
        if holder is None and self.watch.run_id is not None:
            await self._handle_end(self.watch.run_id, status)
            self.watch.run_id = None
        if self._edits.first_or(self.served) is not served:  # its file was read meanwhile
            self.wake_at = 0
            return
        if holder is None and await self._adopts(status, now):
            self.wake_at = 0
            return
        schedule = status.replaced or self._as_of_now(served).schedule
        if self._edits.match(status.progress, status.replaced, self.served, self._read_at):
            # the ledger has what was decided by the schedule before
            self._save(status, schedule, ScheduleStep(StepKind.WAIT), holder, now)
            self.wake_at = 0
            return
        await self._note_far_run(status, schedule, now)
        step = decide_step(schedule, self._facts(status, holder is not None), now)
        self.wake_at = 0
        await self._do(step, status, now)
        if step.kind in (StepKind.START, StepKind.RESUME):
            holder = self.watch.living_holder()
            if holder is not None:  # its end wakes this service
                self.wake_at = self._after(STARTED_SECONDS)
        self._save(status, schedule, step, holder, now)
        if self._is_woken:
            self.wake_at = 0

    async def _do(self, step: ScheduleStep, status: ScheduleStatus, now: int) -> None:
        """``now``: of the decision. An instant that has passed since is due at once."""
        try:
            match step.kind:
                case StepKind.RECORD:
                    await self._record()
                case StepKind.SKIP:
                    await self._write(lambda change: schedules.skip_slot(change, self.served, step.logical or 0))
                    self.report("the run that an operator skips is given up")
                case StepKind.START:
                    await (self._start_requested() if step.is_requested else self._start(step.logical or 0))
                case StepKind.RESUME:
                    await self._resume(step.run_id or "")
                case StepKind.WAIT:
                    # When the last run is due that it waits for, a pause of its flow needs a human.
                    expected_at = None if self._followed is None else self._followed.following.expected_at
                    later = [at for at in (step.wake_at, expected_at) if at is not None and at > now]
                    self.wake_at = min(later, default=None)
                    self._report_next(status)
        except ExecutorBusyError as error:
            self.report(f"waits: {error}")
            self.wake_at = self._after(BUSY_SECONDS)
        except RedriveError as error:
            is_of_storage = isinstance(error, StorageError)
            due_at = None if step.logical is None else self.served.schedule.due_at(step.logical)
            self.record_failure(str(error), is_of_storage=is_of_storage, due_at=due_at)
            if step.kind in (StepKind.RECORD, StepKind.SKIP):  # the same step would fail again at once
                self.wake_at, self._is_woken = self._retry_at, False

    def _on_executor_end(self) -> None:
        self.wake()
        self._shared.wake()

    def _load_status(self, now: int, known: Sequence[ServedSchedule]) -> ScheduleStatus:
        """``known``: all schedules, of a flow that follows others."""
        if holds_nothing(self.state_path):
            self._follow(None, known, now)
            return ScheduleStatus(None)
        with database.reading(self.state_path) as connection:
            self._follow(connection, known, now)
            served = self._as_of_now(self._edits.first_or(self.served))
            return schedules.load_status(
                connection, served, now, self._excused, self._edits.replaced_at, self._ledger.mark
            )

    def _follow(self, connection: sqlite3.Connection | None, known: Sequence[ServedSchedule], now: int) -> None:
        """Find out which days are ready of a flow that follows others."""
        served, self._followed = self._edits.first_or(self.served), None
        if served.schedule.follows:
            self._followed = follow_now(served, connection, known, now)
            self._ledger.note_waits({day.logical: day.why for day in self._followed.following.days})

    def _refuse_circle(self, sentence: str) -> None:
        """A flow that comes after itself cannot start, until it or another one is changed."""
        if sentence and not self._is_in_circle:
            self.record_failure(sentence, is_of_reading=True)
        elif self._is_in_circle and not sentence:
            self._failures.end(self._clock.now_us())
        self._is_in_circle = bool(sentence)

    def _as_of_now(self, served: ServedFlow) -> ServedFlow:
        return served if self._followed is None else self._followed.served

    @property
    def _waits(self) -> str:
        """For which flows before it the next run waits; empty: for none."""
        return "" if self._followed is None else self._followed.sentence

    def _state_of(self, run_id: str) -> RunState | str:
        """The state of a run; empty: there is none."""
        if holds_nothing(self.state_path):
            return ""
        with database.reading(self.state_path) as connection:
            return runs.run_state(connection, run_id)[0] if runs.exists(connection, run_id) else ""

    @property
    def _origin(self) -> MessageOrigin:
        return MessageOrigin(self.served.name, "", os.path.abspath(self.state_path))

    @property
    def _excused(self) -> Excused:
        return schedules.excused_starts(self.served, self.row)

    def _facts(self, status: ScheduleStatus, is_owned: bool) -> ScheduleFacts:
        left_alone = self._stopped_run_ids | self._stuck.keys()
        progress, new_since = status.progress, self._new_since if is_owned else None
        instants = [instant for instant in (status.next_late_at, status.next_expiry) if instant is not None]
        if status.next_page_at is not None and self.served.flow.pages:
            instants.append(max(self._resend_at, status.next_page_at))
        return ScheduleFacts(
            is_owned=is_owned,
            decided_until=new_since if progress is None else progress.decided_until,
            next_at=None if progress is None else progress.next_at,
            started=status.fired,
            resumable=next((run_id for run_id in status.unfinished if run_id not in left_alone), None),
            has_request=bool(self.requests),
            paused_until=self.row.paused_until,
            retry_at=self._retry_at,
            skip_logical=self.row.skip_logical,
            record_at=min(instants, default=None),
            replaced_at=self._edits.replaced_at,
        )

    def _after(self, seconds: float) -> int:
        return self._clock.now_us() + round(seconds * 1e6)

    # --- Writing the state file ------------------------------------------------------------------------------------

    async def _record(self) -> None:
        self._resend_at = self._after(RETRY_SECONDS)
        served, replaced_at = self._as_of_now(self._edits.first_or(self.served)), self._edits.replaced_at
        error = self._failures.error or self._waits or None
        update = partial(schedules.update_schedule, served=served, excused=self._excused, start_error=error)
        await self._write(partial(update, replaced_at=replaced_at, new_since=self._new_since))

    async def _write(self, change: Callable[[Transaction], T]) -> T:
        """Change the state file under its lock, and send unsent pages."""
        async with self._shared.writes:
            return await self._write_alone(change)

    async def _write_alone(self, change: Callable[[Transaction], T]) -> T:
        held = lock.acquire(self.state_path, self._shared.id)
        try:
            held.lock_file()
            check_sole_writer(self.state_path)
            machine = self._shared.machine
            connection = machine.open_database(self.state_path, self._options.durability)
            loop, thread = asyncio.get_running_loop(), machine.writer_thread
            writer = Writer(connection, loop, self._clock.now_us, WriterListener(), thread=thread)
            notifier = Notifier(self.served.flow.pages, self._origin, writer, self._clock)
            notifier.start()
            try:
                return await writer.submit(partial(self._with_past_page, change))
            finally:
                await notifier.close()
                await writer.close()
        finally:
            held.release()

    def _with_past_page(self, change: Callable[[Transaction], T], transaction: Transaction) -> T:
        """Make a change, and list the page that was sent while the state file could not be written."""
        message = None if self._storage_pager is None else self._storage_pager.pop_past()
        if message is not None:
            pages.record_past(transaction, message)
        return change(transaction)

    # --- Runs ------------------------------------------------------------------------------------------------------

    async def _start(self, logical: int) -> None:
        zone = self.served.schedule.zone
        params = {**self._options.params, LOGICAL_TIME: iso_time(logical, zone)}
        options = replace(self._options, params=params, logical_time=logical)
        try:
            await self._launch(self.target, logical_name(logical, zone), options)
        except RefusedError as error:  # another process was faster, or its slot was decided before a crash
            self.report(str(error))

    async def _start_requested(self) -> None:
        """Start the oldest run that an operator has asked for; nobody waits for a second try if it cannot start."""
        request, zone = self.requests[0], self.served.schedule.zone
        self.requests = self.requests[1:]
        if not claim(request) or await asyncio.to_thread(self._state_of, request.name) != "":
            remove(request)
            return
        logical = request.asked_at // 1_000_000 * 1_000_000 if request.logical is None else request.logical
        params = {**self._options.params, **request.params, LOGICAL_TIME: iso_time(logical, zone)}
        options = replace(self._options, params=params, logical_time=request.logical, served=False)
        run_id = request.name if request.logical is None else logical_name(logical, zone)
        try:
            await self._launch(self.target, run_id, options)
        except ExecutorBusyError:
            self.requests = (request, *self.requests)
            raise
        except RefusedError as error:  # the logical time was decided meanwhile
            self.report(str(error))
        except RedriveError:
            remove(request)
            raise
        remove(request)

    def _later_end(self, run_id: str) -> str:
        """The end of a run by a later state file, of which this one is an older copy; empty if none is known."""
        with database.reading(self.state_path) as connection:
            started_at = schedules.started_and_never_ended(connection, run_id)
        ran = self._shared.file.past_runs(self.row.id)
        return next((one.state for one in ran if (one.run_id, one.started_at) == (run_id, started_at)), "")

    async def _resume(self, run_id: str) -> None:
        try:
            if state := self._later_end(run_id):
                raise RefusedError(
                    f"run {run_id!r} has ended as {state}, and this older copy of its state file would run it again"
                )
            await self._launch(None, run_id, replace(self._options, params={}, resume=True))
        except ExecutorBusyError:
            raise
        except (FlowError, RefusedError) as error:  # other runs continue
            now = self._clock.now_us()
            self._stuck[run_id] = StartFailure(str(error), now, now)
            self.report(f"run {run_id} is left as it is: {error}")
            await self._write(partial(schedules.page_stuck_run, run_id=run_id, error=str(error)))

    async def _launch(self, target: str | None, run_id: str, options: RunOptions) -> None:
        launched = await self._shared.launch(target, self.state_path, run_id, options)
        self._failures.end(self._clock.now_us())
        verb = "is resumed" if options.resume else "has started"
        self.report(f"run {run_id} {verb}" + ("" if launched.pid is None else f", pid {launched.pid}"))
        if launched.pid is not None:
            self.watch.run_id = run_id
        elif launched.is_stopped:
            self._stopped_run_ids.add(run_id)

    async def _handle_end(self, run_id: str, status: ScheduleStatus) -> None:
        """Report the end of the run whose executor has ended, and decide whether it is resumed."""
        self._stuck.pop(run_id, None)  # somebody has resumed it
        if run_id not in status.unfinished:
            ended = next((one.state for one in status.ended if one.run_id == run_id), "")
            state = ended or await asyncio.to_thread(self._state_of, run_id)
            inbox = shell_command(["redrive", "inbox", self.state_path])
            how = f"waits for a human: {inbox}" if state is RunState.RUNNING else state or "was not written"
            self.report(f"run {run_id} {how}")
            return
        last = lock_file.last_holder(self.state_path)
        if last is None or last.released_at is None:
            self._retry_at = self._after(DEATH_SECONDS)
            self.report(f"the executor of run {run_id} has died; the run is resumed in {DEATH_SECONDS:g} s")
        else:
            self._stopped_run_ids.add(run_id)
            resume = shell_command(["redrive", "resume", *place_words(self.state_path, run_id)])
            self.report(f"run {run_id} was stopped by an operator; `{resume}` continues it")

    def _report_next(self, status: ScheduleStatus) -> None:
        if self.watch.run_id is not None or self._failures.current is not None:
            return
        upcoming, zone = None if status.progress is None else status.progress.next_at, self.served.schedule.zone
        if self.row.is_paused(self._clock.now_us()):
            until = self.row.paused_until
            end = "" if until == FOREVER else f" until {local_time(until, zone):%Y-%m-%d %H:%M}"
            self.report(f"is paused{end}")
        elif self._waits:
            self.report(self._waits)
        elif upcoming is not None:
            wall = local_time(upcoming - self.served.schedule.splay_us, zone)
            self.report(f"next {wall:%Y-%m-%d %H:%M:%S} {self.served.spec.timezone}")

    # --- The supervisor's file -------------------------------------------------------------------------------------

    async def _adopts(self, status: ScheduleStatus, now: int) -> bool:
        """Whether the state file is older than the ledger, as after a restore: what it lacks is not started again."""
        if not self._ledger.knows_more(status, now):
            return False
        mark, served, ran = self._ledger.mark, self._held_until_now, self._shared.file.past_runs(self.row.id)
        why = await self._write(lambda change: schedules.adopt(change, served, mark.until, ran))
        self._ledger.mark = msgspec.structs.replace(mark, run_row=status.last_run_row)
        if why:
            self._warn(why, now)
        return True

    async def _note_far_run(self, status: ScheduleStatus, schedule: Schedule, now: int) -> None:
        """Warn once of a next run that comes much later than the schedule says, or never; page as of late runs."""
        next_at = None if status.progress is None else status.progress.next_at
        if status.progress is None or status.replaced is not None or next_at == self._far_at:
            return
        if is_ahead(status.progress.decided_until, now):
            return  # the clock was wrong, not the schedule: it is undecided again
        problem, self._far_at = next_problem(schedule, next_at, now), next_at
        if not problem or problem == self.row.warning:
            return
        self._warn(problem, now)
        if schedule.start_within_us is not None:
            title, served = f"{self.served.name} is planned too late", self.served
            await self._write(lambda change: schedules.page_schedule(change, served, title, problem))

    def _warn(self, sentence: str, now: int) -> None:
        self.report(sentence)
        self._shared.file.warn(self.row.id, sentence, now)

    def _save(
        self,
        status: ScheduleStatus,
        schedule: Schedule,
        step: ScheduleStep,
        holder: lock_file.LockHolder | None,
        now: int,
    ) -> None:
        """Write what is known into the supervisor's file, and what was decided into its ledger, if it has changed.

        ``schedule``: the one that holds in the state file.
        """
        if why := self._ledger.revoke_ahead(self.row.id, status, schedule, now):
            self._warn(why, now)
        decided = [self._ledger.row(one, self.served, self.row, now) for one in status.decided]
        self._ledger.advance(status, schedule)
        row = self._row_of(status, step, holder, now)
        if status.ended != self._ended:
            self._ended, lasts = status.ended, self._shared.file.note_runs(row.id, status.ended)
            row = row._replace(usual_us=round(median(lasts)) if lasts else None)
        if row != self.row or decided or status.caught_up:
            self._shared.file.save(row, decided, status.caught_up)
            self.row = row

    def _next_of(self, progress: ScheduleRow | None) -> tuple[int | None, int | None]:
        """Return when the next run is due, and its logical time: of a day that waits, when the runs before it are."""
        if self._followed is not None:
            days = [day.logical for day in self._followed.following.days]
            return self._followed.following.expected_at, max(days, default=None)
        schedule = self.served.schedule
        if progress is None and self._new_since is not None:
            logical = schedule.first_undecided(self._new_since, ())
            return None if logical is None else schedule.due_at(logical), logical
        next_at = None if progress is None else progress.next_at
        return next_at, None if next_at is None else next_at - schedule.splay_us

    def _row_of(
        self, status: ScheduleStatus, step: ScheduleStep, holder: lock_file.LockHolder | None, now: int
    ) -> ServedSchedule:
        file, name = split_target(self.target)
        progress, latest, failure = status.progress, status.latest, self._failures.current
        next_at, next_logical = self._next_of(progress)
        stuck = next(((one, self._stuck[one]) for one in status.unfinished if one in self._stuck), None)
        return self.row._replace(
            target=self.target,
            file=file,
            object=name,
            flow=self.served.name,
            supervisor_id=self._shared.id,
            spec=encode_spec(self.served.flow),
            state_path=self.state_path,
            expression=(progress or self.served.spec).expression,  # by which was decided until now
            timezone=(progress or self.served.spec).timezone,
            next_at=next_at,
            next_logical=next_logical,
            last_run_id=None if latest is None else latest.run_id,
            last_state=None if latest is None else run_code(latest, ALIVE),
            last_started_at=None if latest is None else latest.started_at,
            running_since=None if holder is None else holder.started_at,
            late_since=None if self.row.is_paused(now) else step.late_since,
            start_error=None if failure is None else failure.error,
            failed_since=None if failure is None else failure.since,
            failed_at=None if failure is None else failure.at,
            stuck_run_id=None if stuck is None else stuck[0],
            stuck_since=None if stuck is None else stuck[1].since,
            stuck_error=None if stuck is None else stuck[1].error,
            edits=self._edits.text,
            gone_since=self.gone_since,
            ledger_until=self._ledger.mark.until,
            seen_run=self._ledger.mark.run_row,
            after=() if self._followed is None else self._followed.before(self.row.after, now),
        )


def _version_of(state_path: str) -> tuple[Stamp, Stamp]:
    """Return what changes with each write of a state file."""
    return stamp_of(state_path), stamp_of(state_path + "-wal")
