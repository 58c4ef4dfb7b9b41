"""The supervisor: one process that holds the schedules of all flows below folders, or in named files.

It imports no flow. ``flow_files.py`` reads the files in short processes, ``flow_service.py`` decides about each flow,
and executors run in processes that outlive this one. A flow at rest costs a row, a lock and a few hundred bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ..asyncio_log import run_with_log
from ..clock import ClockWatch
from ..core.supervision import spread_starts
from ..domain.text import shell_command
from ..errors import CorruptFileError, ExecutorBusyError, FlowError, RedriveError, StateFileError, StorageError
from ..executor.executor import handle_signals
from ..executor.host import Starter
from ..executor.opening import Machine
from ..executor.run_options import RunOptions
from ..executor.state_file_lease import create_state_folder
from ..flow.source import split_target
from ..statefile import lock_file
from ..statefile.flow_times import end_schedule
from ..statefile.ownership import require_own_state_file
from ..statefile.paths import supervisor_path
from ..statefile.reader import Stamp, stamp_of
from ..statefile.start_requests import read_requests, requests_folder
from ..statefile.supervisor_file import HEARTBEAT_SECONDS, ServedSchedule
from ..store.flow_path import path_for_run
from ..store.schedules import decode_spec, served_flow
from ..store.supervisor_writer import SupervisorFile
from .flow_files import FlowFile, FlowFinder, FlowSource, FoundFlow, group_by_interpreter, read_flow_files
from .flow_service import RETRY_SECONDS, FlowService
from .start_failures import StartFailure
from .supervision import Launcher, Supervision, launch_executor
from .watchdog import SystemdWatchdog

TICK_SECONDS = 1.0  # between looks at the operators' decisions
SCAN_SECONDS = 5.0  # between looks at the flow files and the state files
CHANGED_SECONDS = 0.2  # between tries while a changed flow file is read
GAP_US = 10_000_000  # between two looks: nothing was decided meanwhile
STOP_SECONDS = 20.0  # until the steps in progress have ended
REQUESTS_SETTLED_US = 2_000_000  # since a change of their folder: longer than any tick of a clock of a file system


class _KnownFile(msgspec.Struct):
    """A flow file. ``retry_at``: when it is read again, if that failed; on the monotonic clock."""

    source: FlowSource
    stamp: Stamp
    retry_at: float | None = None
    is_read: bool = False
    holidays: dict[str, Stamp] = {}  # the files of dates that its flows name, as they were

    @property
    def is_current(self) -> bool:
        """Whether the file is as it was read."""
        return self.is_read and stamp_of(self.source.file) == self.stamp and self.has_its_holidays

    @property
    def has_its_holidays(self) -> bool:
        """Whether the files of dates are as they were read."""
        return all(stamp_of(path) == stamp for path, stamp in self.holidays.items())


class Supervisor:
    """Serves flows until SIGTERM or SIGINT; runs go on after that.

    ``words``: folders and flow files. ``report(flow, sentence)`` prints a status line. ``state``: the state file, if
    there is one flow; ``stops_runs``: runs do not go on after the end of the supervisor, but are stopped in order.
    """

    def __init__(
        self,
        words: Sequence[str],
        options: RunOptions,
        *,
        report: Callable[[str, str], None],
        state: str | None = None,
        stops_runs: bool = False,
    ) -> None:
        self._words = [os.path.abspath(word) for word in words]
        self._finder = FlowFinder(words)
        self._options = options
        self._report = report
        self._state = state
        self._stops_runs = stops_runs
        self._machine = Machine()
        self._clock = self._machine.clock
        self._clock_watch = ClockWatch(self._clock)
        self._watchdog = SystemdWatchdog()
        self._id = uuid.uuid4().hex
        self._seen_at = self._clock.now_us()
        self._last_report = ""
        self._services: dict[str, FlowService] = {}  # by target
        self._broken: dict[str, StartFailure] = {}  # by target of a file that could never be read
        self._files: dict[str, _KnownFile] = {}  # by target of the source
        self._rivals: dict[str, Stamp] = {}  # by target: files whose flow has the state file of another, as they were
        self._requests_at: int | None = None  # when the folder of requests changed, as far as it was read
        self._tasks: set[asyncio.Task[None]] = set()
        self._readings: set[asyncio.Task[None]] = set()
        self._scan_at = self._beat_at = 0.0  # on the monotonic clock
        self._has_read = False
        self._has_begun = False  # it was not refused when all files had been read
        self._left_out: dict[str, str] = {}
        self._ending: dict[tuple[str, str], FlowService | None] = {}  # by state file and flow: renamed or forgotten

    def _begin(self, file: SupervisorFile, launch: Launcher) -> None:
        self._shared = Supervision(self._id, launch, file, self._machine, self._options, self._report, self._wake.set)
        file.register(os.getpid(), socket.gethostname(), json.dumps(self._words), self._clock.now_us())
        self._stored = file.stored()  # what earlier supervisors knew

    def run(self) -> None:
        """Serve. Raises StateFileError; ExecutorBusyError if others serve all flows."""
        run_with_log(self._serve_until_signal(), lambda line: self._report("", line))

    async def _serve_until_signal(self) -> None:
        self._wake, self._stopping = asyncio.Event(), False
        handle_signals(asyncio.get_running_loop(), self.stop)
        create_state_folder(supervisor_path())
        file = SupervisorFile(supervisor_path(), self._id)
        with contextlib.closing(file), contextlib.closing(self._watchdog), contextlib.closing(Starter()) as starter:
            try:
                starter.open()
                self._begin(file, functools.partial(launch_executor, starter.start))
                await self._serve()
            finally:
                await self._close()
                if self._stopping:  # else it failed, and its silence is an alarm
                    file.stop(self._clock.now_us())

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def stop(self) -> None:
        """End the supervisor; runs go on."""
        self._stopping = True
        self._wake.set()

    async def _serve(self) -> None:
        while not self._stopping:
            self._require_file()
            self._wake.clear()
            self._watchdog.ping()
            self._note_gap(jump_us := self._clock_watch.jump_us())
            if jump_us:
                self._on_clock_step(jump_us)
            try:
                self._beat()
                self._scan()
                self._use_decisions()
            except CorruptFileError:
                raise
            except RedriveError as error:  # a full disk must not end what starts the runs
                self._report_once(str(error))
            self._start_steps()
            for service in self._services.values():
                service.page_storage()
            self._refuse_if_served()
            await self._wait(self._seconds_to_wait())

    def _require_file(self) -> None:
        """Raise StateFileError if others do not find the file of this supervisor: they would serve the same flows."""
        if why := self._shared.file.explain_loss():
            raise StateFileError(f"{why}: serve it again")

    async def _close(self) -> None:
        for reading in self._readings:
            reading.cancel()
        if left := self._tasks | self._readings:
            await asyncio.wait(left, timeout=STOP_SECONDS)
        if self._stops_runs and self._stopping:
            await asyncio.gather(*(service.watch.stop_run() for service in self._services.values()))
        for service in self._services.values():
            service.release()

    def _seconds_to_wait(self) -> float:
        now = self._clock.now_us()
        waits = [
            (service.wake_at - now) / 1e6
            for service in self._services.values()
            if service.wake_at is not None and not service.is_stepping
        ]
        return max(0.0, min([TICK_SECONDS, *waits]))

    def _report_once(self, sentence: str) -> None:
        if sentence != self._last_report:
            self._last_report = sentence
            self._report("", sentence)

    def _beat(self) -> None:
        if self._clock.monotonic() >= self._beat_at:
            self._beat_at = self._clock.monotonic() + HEARTBEAT_SECONDS
            self._shared.file.beat(self._clock.now_us())

    def _note_gap(self, jump_us: int) -> None:
        """Remember why nothing was decided for a while."""
        before, self._seen_at = self._seen_at, self._clock.now_us()
        if jump_us > 0:
            why = "the clock was set forward over it, or the machine slept"
            self._shared.gaps.append((before, self._seen_at, why))
        elif self._seen_at - before > GAP_US:
            self._shared.gaps.append((before, self._seen_at, "redrive serve stood still then"))

    def _on_clock_step(self, jump_us: int) -> None:
        self._report("", f"the clock of this machine moved by {jump_us / 1e6:+.0f} s")
        for service in self._services.values():
            service.shift_clock(jump_us)

    def _use_decisions(self) -> None:
        rows = self._shared.file.changed()
        if rows is not None:
            self._wake_followers()
            for target, service in list(self._services.items()):
                if service.row.id in rows:
                    service.use_decisions(rows[service.row.id])
                elif service.gone_since is not None:
                    self._end_service(target, "is forgotten")
        self._use_requests()

    def _use_requests(self) -> None:
        """Give each service the starts that operators ask for; the folder is read only if it may have changed."""
        waits = any(service.requests for service in self._services.values())
        try:
            changed_at = os.stat(requests_folder()).st_mtime_ns
        except OSError:  # nobody has asked for a start yet
            return
        if changed_at == self._requests_at and not waits:
            return
        now, found = self._clock.now_us(), read_requests()
        # Two changes within one tick of the file system's clock have one time: the later may have come after the read.
        self._requests_at = changed_at if now - changed_at // 1000 > REQUESTS_SETTLED_US else None
        for service in self._services.values():
            own = service.served.name, service.state_path
            service.use_requests(
                tuple(one for one in found if (one.flow, one.state_path) == own and not one.is_stale(now))
            )

    # --- Steps -------------------------------------------------------------------------------------------------------

    def _start_steps(self) -> None:
        """Start the steps that are due, spread over a second: fifty flows of one minute would hold up one another."""
        now = self._clock.now_us()
        due = [
            service
            for service in self._services.values()
            if not service.is_stepping
            and service.wake_at is not None
            and service.wake_at <= now
            and (self._has_read or not service.served.schedule.follows)  # until then a flow before it may be missing
        ]
        for service, delay_seconds in zip(due, spread_starts(len(due)), strict=True):
            service.is_stepping = True
            task = asyncio.get_running_loop().create_task(self._step(service, delay_seconds))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _step(self, service: FlowService, delay_seconds: float) -> None:
        try:
            if delay_seconds:
                await asyncio.sleep(delay_seconds)
            is_served = self._services.get(service.target) is service  # its flow may have another name meanwhile
            if not self._stopping and is_served and not self._shared.file.explain_loss():
                known = self._files.get(service.source)
                if known is None or known.is_current:  # without a file: its flow is gone
                    await service.step()
                    self._wake_followers(service)
                else:  # its schedule may be another one now
                    self._scan_at = 0.0
                    service.wake_at = self._clock.now_us() + round(CHANGED_SECONDS * 1e6)
        except Exception as error:  # whatever it is, it must not stop the other flows
            why = str(error) if isinstance(error, RedriveError) else f"{type(error).__name__}: {error}"
            if isinstance(error, StateFileError) and error.path == self._shared.file.path:
                self._report_once(why)  # the flow could start
            else:
                service.record_failure(why, is_of_storage=isinstance(error, StorageError))
            service.wake_at = self._clock.now_us() + round(RETRY_SECONDS * 1e6)
        finally:
            service.is_stepping = False
            self._wake.set()

    def _wake_followers(self, before: FlowService | None = None) -> None:
        """Wake up the flows after one, whose run may have ended; None: after any one, of another supervisor."""
        for service in self._services.values():
            follows = service.served.schedule.follows
            if follows and (before is None or before.served.name in follows):
                service.wake()

    def _refuse_if_served(self) -> None:
        """Raise ExecutorBusyError if other supervisors serve all flows; for a part of them this one stands by."""
        services = self._services.values()
        if self._has_read and services and not self._has_begun and not self._broken:
            self._has_begun = True
            if all(service.is_standby and service.stood_by for service in services):
                others = " and ".join(sorted({service.stood_by for service in services}))
                raise ExecutorBusyError(f"all of these flows are served already, by {others}")

    # --- Flow files --------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Find new, changed and removed flow files, and state files that somebody has written."""
        if self._clock.monotonic() < self._scan_at:
            return
        self._scan_at = self._clock.monotonic() + SCAN_SECONDS
        for service in self._services.values():
            service.check_state_file()
        self._end_schedules()
        try:
            found = self._finder.find()
        except RedriveError as error:
            self._report_once(f"the flows stay as they are: {error}")
            return
        self._leave_out(self._finder.left_out)
        for target in self._files.keys() - {source.target for source in found}:
            self._remove_file(target)
        changed = [source for source, stamp in found.items() if self._is_changed(source, stamp)]
        read = {source.target: _KnownFile(source, found[source]) for source in changed}
        self._files.update(read)
        for python, targets in group_by_interpreter(changed).items():
            files = {target: read[target] for target in targets}
            reading = asyncio.get_running_loop().create_task(self._read(python, files))
            self._readings.add(reading)
            reading.add_done_callback(self._on_read)
        self._end_reading()

    def _end_reading(self) -> None:
        """Once all files are read, miss the flows that an earlier supervisor served."""
        if self._readings or self._has_read:
            return
        self._has_read = True
        left, self._stored = self._stored, []
        for stored in left:
            served, path = decode_spec(stored.spec), stored.state_path
            is_own = stored.supervisor_id == self._shared.id and path is not None
            known = self._services.values()
            if served is None or not is_own or any(path == one.state_path or stored.id == one.row.id for one in known):
                continue
            service = self._add_service(stored.target, FoundFlow(served.flow), path or "", stored.file)
            service.lose_flow(_gone_sentence(stored.file))
        if not self._services and not self._broken:
            words = ", ".join(map(os.path.relpath, self._words))
            self._report("", f"no flow with a schedule in {words} yet: a new or changed file is noticed")

    def _leave_out(self, files: Mapping[str, str]) -> None:
        """Say which files are not served, when that has changed."""
        if files != self._left_out:
            for file in files.keys() - self._left_out.keys():
                self._report("", f"left out: {file} {files[file]}")
            self._left_out = dict(files)
            self._shared.file.leave_out(files)

    def _is_changed(self, source: FlowSource, stamp: Stamp) -> bool:
        known = self._files.get(source.target)
        if known is None or known.stamp != stamp or not known.has_its_holidays:
            return True
        return known.retry_at is not None and known.retry_at <= self._clock.monotonic()

    async def _read(self, python: str, files: Mapping[str, _KnownFile]) -> None:
        """Read files. An import may take long: its file may be removed, or be changed and read anew, meanwhile."""
        try:
            async for found in read_flow_files(python, files):
                if self._files.get(found.target) is files[found.target]:
                    self._use_file(files[found.target], found)
                    self._wake.set()
        except RedriveError as error:
            self._report_once(str(error))
        finally:
            for known in files.values():
                if not known.is_read:
                    known.retry_at = self._clock.monotonic() + RETRY_SECONDS

    def _on_read(self, reading: asyncio.Task[None]) -> None:
        self._readings.discard(reading)
        self._end_reading()
        self._wake.set()

    def _use_file(self, known: _KnownFile, found: FlowFile) -> None:
        """Apply a flow file that was read: its flows, or why it cannot be read."""
        error = found.error
        flows = {f"{known.source.file}:{name}": flow for name, flow in found.flows.items() if flow.spec.schedule}
        if error is None and not flows and known.source.is_named:
            error = f"{found.target} has no schedule: write Flow('name', schedule='0 2 * * *')"
        known.is_read = True
        paths = [flow.spec.schedule.holidays_path for flow in flows.values() if flow.spec.schedule]
        known.holidays = {path: stamp_of(path) for path in paths if path is not None}
        known.retry_at = None if error is None else self._clock.monotonic() + RETRY_SECONDS
        if error is not None:
            self._use_broken_file(known.source, error)
            return
        self._forget_broken(found.target)
        for target in [target for target in self._services if self._is_of(target, known.source)]:
            if target not in flows:
                self._lose_flow(target, f"it is no longer in {found.target}, or has no schedule there")
        for target, flow in flows.items():
            self._use_flow(target, flow, known.source)

    def _is_of(self, target: str, source: FlowSource) -> bool:
        return target == source.target or split_target(target)[0] == source.target

    def _use_broken_file(self, source: FlowSource, error: str) -> None:
        """Serve what was known of a file that cannot be read, so that its late runs page."""
        for stored in self._stored:
            served, target = decode_spec(stored.spec), stored.target
            if target not in self._services and self._is_of(target, source) and served is not None:
                self._use_flow(target, FoundFlow(served.flow), source)
        services = [service for target, service in self._services.items() if self._is_of(target, source)]
        for service in services:
            service.record_failure(error, is_of_reading=True)
        if not services:
            self._record_broken(source.target, error)

    def _record_broken(self, target: str, error: str) -> None:
        """Record a flow that could never be read: it has no schedule yet."""
        file, name = split_target(target)
        flow = os.path.splitext(os.path.basename(file))[0]
        now, known = self._clock.now_us(), self._broken.get(target)
        if known is None or known.error != error:
            self._report(flow, f"cannot be served, tried again in {RETRY_SECONDS:g} s: {error}")
        stored = [one.failed_since for one in self._stored if one.target == target and one.state_path is None]
        since = known.since if known is not None else (stored or [None])[0] or now
        self._broken[target] = StartFailure(error, since, now)
        row = ServedSchedule(0, target, file, name, flow, supervisor_id=self._shared.id)
        self._shared.file.save_broken(row._replace(start_error=error, failed_since=since, failed_at=now))

    def _forget_broken(self, target: str) -> None:
        was_stored = any(one.target == target and one.state_path is None for one in self._stored)
        if self._broken.pop(target, None) is not None or was_stored:
            self._shared.file.remove_broken(target)

    def _use_flow(self, target: str, flow: FoundFlow, source: FlowSource) -> None:
        """Serve a flow of a file that was read, or apply its change."""
        try:
            served = served_flow(flow.spec)
            assert served is not None  # its schedule was checked
            service = self._services.get(target)
            if service is not None and service.served.name != served.name:
                self._end_service(target, f"is {served.name} now")
                service = None
            if service is not None:
                service.use_flow(served, few_tasks=flow.few_tasks)
                return
            state_path = self._state_path(target, served.name)
        except RedriveError as error:
            self._record_broken(target, str(error))
            self._files[source.target].retry_at = self._clock.monotonic() + RETRY_SECONDS
            return
        self._forget_broken(target)
        for other in [one for one, known in self._services.items() if known.state_path == state_path]:
            self._remove_service(other, f"is in {target} now")
        self._add_service(target, flow, state_path, source.target)

    def _add_service(self, target: str, flow: FoundFlow, state_path: str, source: str) -> FlowService:
        served = served_flow(flow.spec)
        assert served is not None
        service = self._services[target] = FlowService(
            target, served, state_path, self._shared, source, few_tasks=flow.few_tasks
        )
        for one in self._stored:
            if one.target == target and one.flow != served.name and one.state_path is not None:
                self._ending[one.state_path, one.flow] = None  # renamed while nobody served it
        with contextlib.suppress(RedriveError):  # else its first step says why
            service.acquire()
        self._requests_at = None
        if source in self._files:
            service.use_flow(served, few_tasks=flow.few_tasks)
        return service

    def _state_path(self, target: str, name: str) -> str:
        """Return the state file of a flow. Raises StateFileError, FlowError if another flow has it.

        A flow of the same name takes it over only if its file has come, or was changed, after the other one went, or
        when no other supervisor serves that any more.
        """
        stored = [one for one in self._shared.file.stored() if one.flow == name and one.state_path]
        own = next((one.state_path for one in stored if one.target == target and self._state is None), None)
        # the stored path, also if a link to a folder of releases leads elsewhere now
        path = own or path_for_run(self._state, functools.partial(str, name), target)
        stamp = stamp_of(split_target(target)[0])
        if here := [one for one in self._services.values() if one.state_path == path]:
            was_rival = self._rivals.get(target) == stamp
            rivals = [one.target for one in here if one.gone_since is None or was_rival]
        else:
            stored = [one for one in stored if one.state_path == path and lock_file.served_by(path)]
            rivals = [one.target for one in stored if _are_two(one.file, split_target(target)[0])]
        if rivals:
            self._rivals[target] = stamp
            raise FlowError(f"its flow {name!r} has the state file of {rivals[0]}: rename one of them")
        require_own_state_file(path)
        return path

    def _remove_file(self, target: str) -> None:
        source = self._files.pop(target).source
        self._forget_broken(target)
        for one in [one for one in self._services if self._is_of(one, source)]:
            self._lose_flow(one, _gone_sentence(source.file))

    def _lose_flow(self, target: str, why: str) -> None:
        """Serve a flow that is in no file as one that cannot start: nobody may have meant that."""
        service = self._services[target]
        if service.gone_since is None:
            forget = shell_command(("redrive", "schedule", "forget", service.served.name))
            service.lose_flow(f"{why}; {forget} ends it")

    def _end_service(self, target: str, why: str) -> None:
        """End a schedule for good, also in its state file, as soon as no run holds that."""
        service = self._services[target]
        self._remove_service(target, why)
        self._ending[service.state_path, service.served.name] = service
        self._scan_at = 0.0

    def _end_schedules(self) -> None:
        """End what was renamed or forgotten in its state file, as soon as nobody writes that."""
        used = {service.state_path for service in self._services.values()}
        for (path, flow), service in list(self._ending.items()):
            is_stepping = service is not None and service.is_stepping
            if path in used or (not is_stepping and end_schedule(path, flow)):
                del self._ending[path, flow]

    def _remove_service(self, target: str, why: str) -> None:
        service = self._services.pop(target)
        service.report(why)
        service.release()


def _are_two(one: str, other: str) -> bool:
    """Whether these are two files; not if one is gone, or cannot be read."""
    with contextlib.suppress(OSError):
        return not os.path.samefile(one, other)
    return False


def _gone_sentence(file: str) -> str:
    return f"{file} is gone, or cannot be read"
