"""The machine of a night: its processes follow scripts, its clock and its writer need no time."""

from __future__ import annotations

import asyncio
import random
import selectors
import signal
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

from ..core.failures.hang import Autopsy
from ..core.outcome import LostWith, Outcome, OutcomeKind
from ..core.secret_mask import SecretMask
from ..core.spec import FlowSpec
from ..domain.event_payloads import AttemptSigkill, AttemptSigterm, ExecutorChange, ExecutorChanged
from ..runner import protocol
from ..runner.attempt import Attempt, AttemptBackend, RunnerContext
from ..runner.autopsy import ProcSampler, SampledAttempt
from ..runner.out_of_memory import OutOfMemoryWatch
from ..runner.protocol import AttemptControls, AttemptListener, AttemptOrder, RunnerListener
from ..runner.stack import without_engine
from ..runner.usage import Sample, UsageSubject
from ..store.write_ahead_log import OnDone

# --- The runner of a night: each attempt follows a script in virtual time, and the engine's own code ends it ---------
#
# Frames, output, deadline and escalation are those of a real attempt (``runner/attempt.py``); a script only says what
# the process would have done.


_PIDS = 2**22  # from the largest pid of Linux on: no process has it
_RSS_KB = 32 * 1024
_IMPORT_SECONDS = 0.5  # of an import beside a running flow


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process. ``is_out_of_memory``: the kernel killed it for its memory."""

    code: int | None = 0
    signal: int | None = None
    result: str | None = None  # of a command, as JSON
    is_out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """The course of the process of one attempt, in seconds after its start.

    Attributes:
        seconds: when it ends by itself; None: never.
        end: how: a final frame, an exit without one, or an outcome that the runner knows.
        reports: frames and output, each with its second.
        ends_after_sigterm: seconds from SIGTERM to its exit; None: it ignores SIGTERM, and is killed.
        stack: the stacks that it would dump, as faulthandler writes them.
        starts_after: seconds until the process exists.
        refused: why no process can be started.
    """

    seconds: float | None
    end: protocol.Ended | Exit | Outcome = field(default_factory=Exit)
    reports: Sequence[tuple[float, protocol.AttemptFrame | bytes]] = ()
    ends_after_sigterm: float | None = 0.0
    stack: str = ""
    starts_after: float = 0.0
    refused: OSError | None = None


LoadFlow = Callable[[Mapping[str, object], Mapping[str, object]], FlowSpec]  # given and remembered parameters


class PlayedRunner:
    """Stands in for ``runner.runner.Runner``.

    Parameters:
        load: returns the flow, as an import would. Raises FlowError.
        script_of: says what an attempt does that starts now.
        on_start: called when the process of an attempt starts.
    """

    def __init__(
        self,
        executor_id: str,
        load: LoadFlow,
        script_of: Callable[[AttemptOrder], Script],
        on_start: Callable[[AttemptOrder], None] = lambda order: None,
        *,
        project_root: str | None = None,
    ) -> None:
        self.executor_id = executor_id
        self.attempts_max = 1000
        self.warnings: tuple[str, ...] = ()
        self.printed = ""
        self.mask = SecretMask()
        self.leaked_slots = 0
        self.is_open = False
        self.running: dict[int, Attempt] = {}
        self._load = load
        self._script_of = script_of
        self._on_start = on_start
        self._project_root = project_root
        self._last_number = 0
        self._starts: set[asyncio.Task[None]] = set()
        self._listener = RunnerListener()

    def listen(self, listener: RunnerListener) -> None:
        """See ``Runner.listen``."""
        self._listener = listener

    # --- The flow --------------------------------------------------------------------------------------------------

    async def open(self, request: protocol.Open) -> FlowSpec:
        """See ``Runner.open``."""
        flow = self._load(request.params, request.remembered)
        self._use()
        return flow

    async def prepare(self, request: protocol.Open) -> Any:
        """See ``Runner.prepare``."""
        await asyncio.sleep(_IMPORT_SECONDS)
        flow = self._load(request.params, request.remembered)
        return SimpleNamespace(spec=flow, shared=SimpleNamespace(mask=self.mask))

    def _use(self) -> None:
        self.is_open = True
        self._shared = RunnerContext(self._project_root, _PlayedMemory(), sampler=_PlayedSampler(), mask=self.mask)

    def replace(self, prepared: Any) -> None:
        """See ``Runner.replace``."""
        self._use()

    async def discard(self, prepared: Any) -> None:
        """There is no process."""

    def set_slot_demand(self, has_demand: bool) -> None:
        """No slot leaks."""

    # --- Attempts --------------------------------------------------------------------------------------------------

    def launch(
        self,
        order: AttemptOrder,
        listener: AttemptListener,
        on_started: Callable[[AttemptControls], None],
        on_failed: Callable[[OSError], None],
        *,
        is_apart: bool = False,
    ) -> None:
        """See ``Runner.launch``. ``is_apart`` changes nothing: a played zygote dies by itself, not by an attempt."""

        async def start() -> None:
            script = self._script_of(order)
            await asyncio.sleep(script.starts_after)
            error = script.refused if self.is_open else ProcessLookupError("the zygote is gone")
            if error is not None:
                on_failed(error)
                return
            self._on_start(order)
            self._last_number += 1
            process = PlayedProcess(self._last_number, script, self._forget)
            attempt = Attempt(order, listener, self._shared, process, asyncio.get_running_loop().time())
            self.running[self._last_number] = attempt
            process.begin()
            on_started(attempt)

        task = asyncio.get_running_loop().create_task(start())
        self._starts.add(task)
        task.add_done_callback(self._starts.discard)

    def _forget(self, number: int) -> None:
        self.running.pop(number, None)

    # --- The end ---------------------------------------------------------------------------------------------------

    def lose_zygote(self) -> None:
        """The zygote dies, and all attempts with it."""
        if not self.is_open:
            return
        self.is_open = False
        is_shared = len(self.running) > 1
        for attempt in [*self.running.values()]:
            attempt.lose("its zygote died", is_blameless=is_shared, lost_with=LostWith.ZYGOTE)
        self._listener.executor_changed(ExecutorChanged(ExecutorChange.ZYGOTE_DIED, pid=_PIDS, how="killed"))
        self._listener.zygote_lost()

    async def close(self) -> None:
        """See ``Runner.close``."""
        self.is_open = False
        for attempt in [*self.running.values()]:
            attempt.lose("the executor ended")


class PlayedProcess(AttemptBackend):
    """The backend of an attempt that follows its script."""

    def __init__(self, number: int, script: Script, on_over: Callable[[int], None]) -> None:
        super().__init__(_PIDS + number, None)
        self.number = number
        self._script = script
        self._on_over = on_over
        self._timers: list[asyncio.TimerHandle] = []
        self._exit_of_script = Exit()

    def begin(self) -> None:
        """Play the script."""
        for seconds, report in self._script.reports:
            self._play_later(seconds, self._play_report, report)
        if self._script.seconds is not None:
            self._play_later(self._script.seconds, self._end_by_itself)

    def _play_later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, callback, *args))

    def _play_report(self, report: protocol.AttemptFrame | bytes) -> None:
        if isinstance(report, bytes):
            self._running.handle_output(report)
        else:
            self._running.handle_frame(report)

    def _end_by_itself(self) -> None:
        end = self._script.end
        if isinstance(end, Outcome):
            self._running.finish(end)
        elif isinstance(end, Exit):
            self._exit(end)
        else:
            self._running.handle_frame(end)
            self._exit(Exit(0 if end.outcome.kind is OutcomeKind.SUCCESS else 1))

    def _exit(self, exit: Exit) -> None:
        if self._running.is_over:
            return
        self._exit_of_script = exit
        rss_kb = _PlayedMemory.OUT_KB if exit.is_out_of_memory else _RSS_KB
        now = asyncio.get_running_loop().time()
        dump = "" if exit.signal is None else without_engine(self._script.stack)
        self._running.exited(protocol.Exited(self.number, exit.code, exit.signal, rss_kb, 0, 0, now, [], []), dump)

    # --- As the backend of its attempt ------------------------------------------------------------------------------

    async def dump_stack(self) -> str:
        return without_engine(self._script.stack)

    def terminate(self, reason: str) -> None:
        self._running.report(AttemptSigterm(reason, self._running.order.spec.grace_seconds))
        if self._script.ends_after_sigterm is not None:
            self._play_later(self._script.ends_after_sigterm, self._exit, Exit(None, signal.SIGTERM))

    def kill(self, reason: str) -> None:
        self._running.report(AttemptSigkill(reason, [self.pid]))
        self._exit(Exit(None, signal.SIGKILL))

    def command_result(self) -> str | None:
        return self._exit_of_script.result

    def release(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._on_over(self.number)


class _PlayedMemory(OutOfMemoryWatch):
    """The kernel's count of out-of-memory kills: a process that held ``OUT_KB`` was killed for its memory."""

    OUT_KB = 8 * 1024 * 1024

    def __init__(self) -> None:
        self.bound = "8192 MiB that this machine has"

    def mark(self) -> int:
        return 0

    def explains(self, mark: int, max_rss_kb: int) -> bool:
        return max_rss_kb >= self.OUT_KB


class _PlayedSampler(ProcSampler):
    """There is no process whose files could be read."""

    async def examine(self, subject: UsageSubject, before: Sample, until: float) -> Autopsy:
        return Autopsy()

    def follow(self, attempt: SampledAttempt, measure: object = None) -> None:
        """Nothing is measured."""


# --- Virtual time ----------------------------------------------------------------------------------------------------
#
# An event loop whose time passes only while it would wait, its clock, and a writer without a thread.


class Crash(SystemExit):
    """The executor dies at this instant. SystemExit is what an event loop lets pass through its callbacks."""


class Stuck(Exception):
    """Nothing is ready and no timer is armed: the loop would wait for ever."""


class Elapsed(Protocol):
    """Holds the seconds that have passed."""

    seconds: float


class _TimeSelector(selectors.BaseSelector):
    """Keeps the registered descriptors, which are never ready, and passes the time that it is told to wait."""

    def __init__(self, time: Elapsed) -> None:
        self._time = time
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, -1, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is ready, and no timer is armed")
        if timeout > 0:
            self._time.seconds += timeout
        return []

    def get_map(self) -> Any:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to its next timer. It has one thread: work for another one is done at once."""

    def __init__(self, elapsed: Elapsed, on_error: Callable[[dict[str, Any]], None]) -> None:
        self._elapsed = elapsed
        self._on_error = on_error
        self._listeners: list[Any] = []
        self._is_abandoned = False
        super().__init__(_TimeSelector(elapsed))

    def time(self) -> float:
        return self._elapsed.seconds

    def call_soon_threadsafe(  # type: ignore[override]  # one thread plays: typeshed has type variables here
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]  # one thread plays: typeshed has type variables here
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def add_reader(  # type: ignore[override]  # typeshed has type variables here
        self, fd: Any, callback: Any, *args: Any
    ) -> None:
        """Remember a socket on which an executor listens: nobody connects to it."""
        self._listeners.append(fd)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._is_abandoned:
            super().call_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(context)

    def abandon(self) -> None:
        """Drop what an executor that died left in the loop: no line of it runs on."""
        self._is_abandoned = True
        for listener in self._listeners:
            listener.close()
        for task in asyncio.all_tasks(self):
            coroutine: Any = task.get_coro()
            for _ in range(50):
                try:
                    coroutine.close()
                    break
                except BaseException:  # a finally block that awaits, or that misses its loop
                    continue


class VirtualClock:
    """The clock of a night, which its loops advance one after another. ``step`` sets the wall clock."""

    def __init__(self, seed: object, start_us: int) -> None:
        self._start_us = start_us
        self.seconds = 0.0  # since the night began, on no wall clock
        self._stepped_us = 0
        self._dice = random.Random(f"{seed}:clock")

    def monotonic(self) -> float:
        return self.seconds

    def now_us(self) -> int:
        return self._start_us + self._stepped_us + round(self.seconds * 1e6)

    def uniform(self, low: float, high: float) -> float:
        return self._dice.uniform(low, high)

    def step(self, seconds: float) -> None:
        self._stepped_us += round(seconds * 1e6)


class PlayedWriter:
    """Runs the work of a writer at once, as its thread would, and reports each batch after ``delay_seconds()``.

    ``refuses()``: the disk is full at this batch. ``before_batch``, ``after_batch`` may end the executor.
    """

    def __init__(self) -> None:
        self.refuses: Callable[[], bool] = lambda: False
        self.before_batch: Callable[[], None] = protocol.ignore
        self.after_batch: Callable[[], None] = protocol.ignore
        self.delay_seconds: Callable[[], float] = lambda: 0.0
        self._loop: VirtualLoop | None = None

    def start(self, work: Callable[[], object], on_done: OnDone, *, is_batch: bool = False) -> None:
        """See ``WorkThread``."""
        if self._loop is None:
            return
        if not is_batch:
            on_done(*_done(work))
            return
        self.before_batch()
        done = (None, _disk_full()) if self.refuses() else _done(work)
        self.after_batch()
        self._loop.call_later(self.delay_seconds(), on_done, *done)

    def use(self, loop: VirtualLoop | None) -> None:
        """Work in a loop from now on. None: the executor is dead, and nothing is done any more."""
        self._loop = loop

    def close(self) -> None:
        """There is no thread."""


def _disk_full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def _done(work: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Do the work, and return its result or its exception."""
    try:
        return work(), None
    except Exception as error:
        return None, error
