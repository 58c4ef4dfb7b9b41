"""Serves the schedule of a flow: starts each run when it is due, one at a time, and takes up what an operator freed.

Between two runs nobody owns the state file, so an operator's act is applied by whoever asks for it, and is seen here by
what it leaves on the file system. What the file has to remember (logical times that were given up, promises that broke)
is written under its lock, in a moment of its own; what runs is written with its run. So a kill at any instant loses
nothing and doubles nothing: the next service reads how far this one came.

``core/schedule.py`` decides, ``store/schedules.py`` remembers, ``loop.py`` runs.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..clock import Clock, SystemClock
from ..core.durations import format_duration
from ..core.schedule import iso_time, local_time, logical_name
from ..core.spec import LOGICAL_TIME
from ..domain.events import Event
from ..domain.states import RunState
from ..errors import ExecutorBusyError, FlowError, RedriveError, RefusedError
from ..executor.clock_watch import ClockWatch
from ..executor.flow_file import read_flow
from ..executor.loop import Executor
from ..executor.run_options import RunOptions
from ..executor.state_file_lease import check_sole_writer, create_state_folder
from ..flow.loading import split_target
from ..notifications.notifier import MessageOrigin, Notifier
from ..statefile import lock_file
from ..statefile.file_changes import stamps_of
from ..store import database, lock, schedules
from ..store.schedules import ScheduleStatus, ServedFlow
from ..store.writer import Writer

LOOK_SECONDS = 1.0  # between two looks at the wall clock and at the file: neither tells when it moves
BUSY_SECONDS = 1.0  # somebody else owns the file: nobody tells when he leaves it
AGAIN_SECONDS = 60.0  # until what could not be done is tried again, or a page that no sender took is sent again


@dataclass(frozen=True, slots=True)
class ServiceResult:
    """How a service ended. ``interrupted``: in the middle of a run, which the next one takes up."""

    interrupted: bool


class ScheduleService:
    """Serves one flow from one state file until SIGTERM or SIGINT.

    ``say(sentence)`` tells people what it does; ``on_events`` gets what its runs and its own writing tell.
    """

    def __init__(
        self,
        target: str,
        state_path: str,
        options: RunOptions,
        *,
        say: Callable[[str], None],
        on_events: Callable[[Sequence[Event]], None],
        clock: Clock | None = None,
    ) -> None:
        self._target = target
        self._flow_path = split_target(target)[0]
        self._flow_seen = stamps_of(self._flow_path)
        self._state_path = state_path
        self._stands_by = options.wait
        self._options = replace(options, served=True, stay=False, wait=False)
        self._say = say
        self._on_events = on_events
        self._clock: Clock = clock or SystemClock()
        self._clock_watch = ClockWatch(self._clock, self._follow_the_clock)
        self._id = uuid.uuid4().hex
        self._executor: Executor | None = None
        self._interrupted = False
        self._has_begun = False
        self._stopped: set[str] = set()  # runs that an operator has stopped: who goes on with them is his to say
        self._unusable: set[str] = set()  # runs that the flow as it is now cannot go on with
        self._hold_until = 0  # microseconds UTC: nothing is started before
        self._send_at = 0  # from when on a page that was not sent is tried again
        self._wakes_at = 0
        self._told = ""  # the latest sentence: said once

    def run(self) -> ServiceResult:
        """Serve. Raises ExecutorBusyError where the file is served already, FlowError, StateFileError."""
        create_state_folder(self._state_path)
        held = self._become_the_server()
        try:
            return asyncio.run(self._serve())
        finally:
            held.release()

    def _become_the_server(self) -> lock.StateLock:
        try:
            return lock.acquire(self._state_path + lock_file.SERVICE, self._id, wait=self._stands_by)
        except ExecutorBusyError as error:
            who = f"pid {error.pid} on {error.host}"
            raise ExecutorBusyError(
                f"{self._state_path} is served already, by {who}; `--wait` stands by until it has gone",
                pid=error.pid,
                host=error.host,
            ) from None

    # --- The loop --------------------------------------------------------------------------------------------------

    async def _serve(self) -> ServiceResult:
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._served = await self._read_schedule()
        self._tell_once(f"serves {self._served.name}; look at it with: redrive attach {shlex.quote(self._state_path)}")
        while not self._stopping.is_set():
            self._seen = stamps_of(self._state_path)
            if not await self._try_a_step():
                await self._rest()
        return ServiceResult(self._interrupted)

    def _stop(self) -> None:
        """In order: what runs is ended and stays unfinished."""
        self._stopping.set()
        if self._executor is not None:
            self._executor.stop()

    async def _try_a_step(self) -> bool:
        """True where something was done, and so something else may be to do."""
        try:
            return await self._step()
        except ExecutorBusyError as error:
            self._hold(BUSY_SECONDS, f"waiting: {error}")
        except RedriveError as error:
            if not self._has_begun:
                raise  # it never worked: whoever started the service is still there to read why
            self._hold(AGAIN_SECONDS, f"not possible now, tried again in {AGAIN_SECONDS:g} s: {error}")
        return False

    async def _step(self) -> bool:
        if stamps_of(self._flow_path) != self._flow_seen:
            await self._read_schedule_again()
        now = self._clock.now_us()
        view = await asyncio.to_thread(self._look, now)
        if self._is_to_be_written(view, now):
            await self._write()
            return True
        self._wakes_at = self._next_instant(view, now)
        if now < self._hold_until:
            return False
        decision = view.decision(self._served, now)
        if waiting := [run_id for run_id in view.unfinished if run_id not in self._stopped | self._unusable]:
            await self._take_up(waiting[0])
        elif decision is not None and decision.run is not None:
            await self._start(decision.run)
        else:
            self._tell_next(view, now)
            return False
        return True

    async def _rest(self) -> None:
        """Until something is due, the file or the flow has changed, or it is time to stop."""
        while not self._stopping.is_set():
            self._clock_watch.check()
            left_seconds = (self._wakes_at - self._clock.now_us()) / 1e6
            try:
                async with asyncio.timeout(min(max(left_seconds, 0.0), LOOK_SECONDS)):
                    await self._stopping.wait()
            except TimeoutError:
                pass
            has_changed = stamps_of(self._state_path) != self._seen or stamps_of(self._flow_path) != self._flow_seen
            if has_changed or self._clock.now_us() >= self._wakes_at:
                return

    def _next_instant(self, view: ScheduleStatus, now: int) -> int:
        """When time alone may change what is to be done."""
        instants = [self._hold_until, view.next_late_at, view.progress.next_at if view.progress is not None else None]
        instants += [self._send_at] if view.has_unsent_page and self._served.flow.pages else []
        return min((at for at in instants if at is not None and at > now), default=now + round(AGAIN_SECONDS * 1e6))

    def _hold(self, seconds: float, why: str) -> None:
        """Start nothing for a while."""
        self._hold_until = self._wakes_at = self._clock.now_us() + round(seconds * 1e6)
        self._tell_once(why)

    # --- The flow and the file -------------------------------------------------------------------------------------

    async def _read_schedule(self) -> ServedFlow:
        served = schedules.served_flow(await read_flow(self._target, self._options.params))
        if served is None:
            raise FlowError(f"{self._target} has no schedule: write Flow('name', schedule='0 2 * * *')")
        return served

    async def _read_schedule_again(self) -> None:
        """The file of the flow has changed. What it says now holds from now on, if it can be read."""
        self._flow_seen = stamps_of(self._flow_path)
        self._unusable.clear()
        self._hold_until = 0
        try:
            self._served = await self._read_schedule()
        except FlowError as error:
            self._tell_once(f"the flow has changed and cannot be used, its old schedule stays: {error}")

    def _look(self, now: int) -> ScheduleStatus:
        if not os.path.exists(self._state_path) or not os.path.getsize(self._state_path):
            return ScheduleStatus(None)
        with database.reading(self._state_path) as connection:
            return schedules.load_status(connection, self._served, now)

    def _is_to_be_written(self, view: ScheduleStatus, now: int) -> bool:
        """Whether there is more to write down than the start of a run."""
        decision = view.decision(self._served, now)
        if view.progress is None or decision is None or (view.next_late_at is not None and view.next_late_at <= now):
            return True
        if view.has_unsent_page and self._served.flow.pages and self._send_at <= now:
            return True
        return bool(decision.missed) or (decision.run is None and decision.decided_until != view.progress.decided_until)

    async def _write(self) -> None:
        """Bring the file up to now under its lock, and send the pages that this, or an earlier run, has left."""
        served = self._served
        held = lock.acquire(self._state_path, self._id)
        try:
            check_sole_writer(self._state_path)
            self._send_at = self._clock.now_us() + round(AGAIN_SECONDS * 1e6)
            writer = self._open_writer()
            origin = MessageOrigin(served.name, "", self._state_path)
            notifier = Notifier(served.flow.pages, origin, writer.submit, self._clock)
            notifier.start()
            try:
                await writer.submit(lambda journal: schedules.update_schedule(journal, served))
            finally:
                await notifier.close()
                await writer.close()
        finally:
            held.release()
        self._has_begun = True

    def _open_writer(self) -> Writer:
        connection = database.open_for_writing(self._state_path, self._durability)
        try:
            return Writer(connection, asyncio.get_running_loop(), self._clock.now_us, self._on_events)
        except BaseException:
            connection.close()
            raise

    @property
    def _durability(self) -> database.Durability:
        return "normal" if self._options.durability == "normal" else "full"

    # --- Runs ------------------------------------------------------------------------------------------------------

    async def _start(self, logical: int) -> None:
        zone = self._served.schedule.zone
        params = {**self._options.params, LOGICAL_TIME: iso_time(logical, zone)}
        run_id = logical_name(logical, zone)
        self._tell_once(f"run {run_id} is due")
        try:
            await self._run(run_id, replace(self._options, params=params, logical_time=logical))
        except RefusedError as error:  # somebody else was quicker
            self._tell_once(str(error))

    async def _take_up(self, run_id: str) -> None:
        self._tell_once(f"run {run_id} is taken up")
        try:
            await self._run(run_id, replace(self._options, params={}, resume=True))
        except (FlowError, RefusedError) as error:  # the others need not wait until somebody has repaired this
            self._unusable.add(run_id)
            self._tell_once(f"run {run_id} is left as it is: {error}")

    async def _run(self, run_id: str, options: RunOptions) -> None:
        executor = Executor(
            run_id=run_id,
            flow=self._target,
            state=self._state_path,
            options=options,
            clock=self._clock,
            on_events=self._on_events,
        )
        self._executor = executor
        try:
            result = await executor.run_here()
        finally:
            self._executor = None
        self._has_begun = True
        is_unfinished = result.interrupted and result.state is RunState.RUNNING
        self._interrupted = is_unfinished and self._stopping.is_set()
        if is_unfinished and not self._stopping.is_set():
            self._stopped.add(result.run_id)
            self._tell_once(f"run {result.run_id} was stopped by an operator; `redrive resume` goes on with it")

    # --- What people hear ------------------------------------------------------------------------------------------

    def _tell_next(self, view: ScheduleStatus, now: int) -> None:
        upcoming = None if view.progress is None else view.progress.next_at
        if upcoming is None:
            self._tell_once("nothing comes any more")
            return
        wall = local_time(upcoming - self._served.schedule.splay_us, self._served.schedule.zone)
        text = f"next {wall:%Y-%m-%d %H:%M:%S} {self._served.spec.timezone}"
        if text not in self._told:
            self._tell_once(f"{text}, in {format_duration(upcoming - now)}")

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._say(sentence)

    def _follow_the_clock(self, jump_us: int) -> None:
        """Logical times are times of day and stay; what waits for a minute does not wait for a day because of it."""
        self._hold_until = self._send_at = self._wakes_at = 0
        self._tell_once(f"the clock of this machine moved by {jump_us / 1e6:+.0f} s")
