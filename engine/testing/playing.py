"""Plays a flow: hours of it in milliseconds, with faults, acts of operators and crashes, in virtual time."""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar, Unpack, cast

from ..agent.command_client import apply_under_lock
from ..clock import ClockWatch
from ..core.option_types import Duration, parse_duration
from ..core.spec import Durability, FlowSpec
from ..domain.acts import BY_NAME, Command, Scope, Target
from ..domain.states import NEEDS_HUMAN, RunState
from ..errors import FlowError, RedriveError, StorageError
from ..executor.executor import Executor
from ..executor.opening import Machine
from ..executor.run_end import RunResult
from ..executor.run_options import RunOptions, RunRequest
from ..executor.state_file_lease import StateFileLease
from ..runner.reaper import Reaper
from ..runner.runner import Runner
from ..schedule.flow_service import FlowService
from ..schedule.supervision import Launched, Supervision
from ..statefile import lists
from ..statefile.lists import QUARANTINE, query
from ..store import database, lock, runs
from ..store.schedules import served_flow
from ..store.supervisor_writer import SupervisorFile
from .bodies import StageError
from .director import ActEntry, Director, PlayedFlow, PlayOptions, Times, modules_restored
from .faults import Fault, MachineFault
from .night import Night, Stored
from .played_machine import Crash, PlayedRunner, PlayedWriter, VirtualClock, VirtualLoop

# --- The service of one flow in virtual time: runs begin and end in its event loop, one after another ----------------


class PlayedService:
    """Serves a flow until ``stop``, as the supervisor does."""

    def __init__(self, target: str, state_path: str, options: RunOptions, machine: Machine) -> None:
        self._target = target
        self._state_path = state_path
        self._options = options
        self._machine = machine
        self._stopping = asyncio.Event()
        self._executor: Executor | None = None

    async def serve(self) -> None:
        """Serve. Raises FlowError for a flow without a schedule."""
        served = served_flow(await self._machine.read_flow(self._target, self._options.params))
        if served is None:
            raise FlowError(f"{self._target} has no schedule: write Flow('name', schedule='0 2 * * *')")
        path = os.path.join(os.path.dirname(self._state_path), "schedules.supervisor")
        with closing(SupervisorFile(path, "played")) as file:
            shared = Supervision(
                "played", self._launch, file, self._machine, self._options, lambda flow, line: None, lambda: None
            )
            service = FlowService(self._target, served, self._state_path, shared)
            service.acquire()
            try:
                await self._step_until_stopped(service)
            finally:
                service.release()

    async def _step_until_stopped(self, service: FlowService) -> None:
        clock_watch = ClockWatch(self._machine.clock)
        while not self._stopping.is_set():
            if clock_watch.jump_us():
                service.wake_at = 0
            left_seconds = ((service.wake_at or 0) - self._machine.clock.now_us()) / 1e6
            if left_seconds <= 0 and service.wake_at is not None:
                await self._step(service)
                continue
            rest_seconds = self._machine.heartbeat_seconds
            try:
                async with asyncio.timeout(
                    rest_seconds if service.wake_at is None else min(left_seconds, rest_seconds)
                ):
                    await self._stopping.wait()
            except TimeoutError:
                service.check_state_file()

    async def _step(self, service: FlowService) -> None:
        try:
            await service.step()
        except RedriveError as error:
            service.record_failure(str(error))

    async def _launch(self, flow: str | None, state_path: str, run_id: str, options: RunOptions) -> Launched:
        """Run to the end: a played executor is no process."""
        self._executor = Executor(
            run_id=run_id,
            flow=flow or self._target,
            state=state_path,
            options=replace(options, trust=True),
            machine=self._machine,
        )
        try:
            result = await self._executor.run_here()
        finally:
            self._executor = None
        is_stopped = result.interrupted and result.run_state is RunState.RUNNING
        return Launched(None, is_stopped=is_stopped and not self._stopping.is_set())

    async def respond(self, line: bytes) -> Mapping[str, object]:
        """Answer an act of an operator on the active run. Raises ConnectionError if there is none."""
        if self._executor is None:
            raise ConnectionResetError("no run is active")
        return await self._executor.respond(line)

    def stop(self) -> None:
        """Stop, and stop the active run, which stays resumable."""
        self._stopping.set()
        if self._executor is not None:
            self._executor.stop()


# --- Playing ---------------------------------------------------------------------------------------------------------


START = "2026-01-05T22:00:00+00:00"
EXECUTORS_MAX = 1000  # in one run
HEARTBEAT_SECONDS = 10.0  # each beat costs as much as a commit, and nights last days; nothing waits for a beat
LIMIT = "1d"
REOPEN_SECONDS = 10.0
_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a sync costs nothing there
_ACTOR = "ana@night"

P = ParamSpec("P")
T = TypeVar("T")
Respond = Callable[[bytes], Awaitable[Mapping[str, object]]]  # of an executor, to the line of a command


def play(
    flow: PlayedFlow,
    *,
    runs: int = 1,
    every: Duration = "1h",
    until: Duration = LIMIT,
    keep: str | os.PathLike[str] | None = None,
    **options: Unpack[PlayOptions],
) -> Night:
    """Play one or several runs of a flow with the real executor, store and policies, and return what came of it.

    Bodies of tasks are called in this process, where ``time.sleep`` takes no time. Commands run no program: their
    results, durations or exits are given.

    Parameters:
        flow: the path of a flow file, a ``Flow``, or a function without arguments that makes one.
        params: values for parameters of the flow, by name.
        at: when the night begins: an instant with its offset, as "2026-03-28T22:00+01:00".
        faults: what goes wrong: values of ``down``, ``error``, ``hang``, ``crash``, ...
        durations: by task, how long an attempt takes; ``in_turn(...)`` for one after another.
        results: by task, what it returns instead of its body: a value, an exception, a function that is called in its
            place, or ``in_turn(...)`` of these.
        acts: of operators, each a tuple: (instant, act, names..., options), as ("+5m", "requeue", "settle") or
            ("+5m", "breaker", "bank", "close"). "*" names all tasks that need a human. ("+5m", "change", flow) changes
            the code of the flow; ("+5m", "resume") resumes a run that was stopped.
        seed: of all dice: the same seed gives the same night.
        runs: how many runs follow each other in one state file, one ``every`` so often, or when the one before ends.
        max_parallel: attempts at a time; None: the flow's own setting, or 4.
        until: when each run is stopped at the latest, after its start.
        keep: where a copy of the state file is kept.

    Raises:
        StageError: the flow, a fault or an act cannot be played.
        FlowError: the flow cannot be run.
    """
    __tracebackhide__ = True  # in the report of pytest

    def play_runs(night: _Play) -> None:
        for number in range(runs):
            night.advance_to(number * parse_duration(every))
            night.play_run(f"night-{number + 1}" if runs > 1 else "night", parse_duration(until))

    return _play_night(play_runs, flow, keep, options)


def play_schedule(
    flow: PlayedFlow,
    *,
    lasts: Duration = LIMIT,
    keep: str | os.PathLike[str] | None = None,
    **options: Unpack[PlayOptions],
) -> Night:
    """Play ``redrive serve`` of a flow with a schedule, from ``at`` on: each run starts when it is due.

    ``runs`` of the night has the runs in the order of their starts. ``crash("executor", at=..., lasts="2d")`` switches
    the machine off: the next service finds what was missed.

    Parameters:
        lasts: how long the service is watched; a run that is active then is stopped.
        The others are those of ``play``.

    Raises:
        StageError: the flow, a fault or an act cannot be played, or no run was due.
        FlowError: the flow cannot be run, or has no schedule.
    """
    __tracebackhide__ = True
    return _play_night(lambda night: night.play_service(parse_duration(lasts)), flow, keep, options)


def _play_night(
    events: Callable[[_Play], None], flow: PlayedFlow, keep: str | os.PathLike[str] | None, options: PlayOptions
) -> Night:
    """Play a night. An error of the caller has no frames of this package: the line of the test is what to mend."""
    __tracebackhide__ = True
    try:
        with modules_restored():
            night = _Play(flow, **options)
            events(night)
            night.end_acts()
        return night.close(keep)
    except (StageError, FlowError) as error:
        raise error.with_traceback(None) from None


def _instant(at: str | datetime) -> datetime:
    try:
        instant = datetime.fromisoformat(at) if isinstance(at, str) else at
    except ValueError:
        raise StageError(f"{at!r} is no instant: write 2026-03-28T22:00+01:00") from None
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


def _require_no_loop() -> None:
    """Raise StageError in a coroutine: a night has an event loop of its own, and a thread runs one at a time."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise StageError("a night is played in a plain function, not in a coroutine: write def test_...(), without async")


class _PlannedAct(NamedTuple):
    seconds: float
    number: int
    act: str
    names: tuple[Any, ...]
    options: Mapping[str, Any]


class _Play:
    """A night in progress."""

    def __init__(self, flow: PlayedFlow, **options: Unpack[PlayOptions]) -> None:
        faults, seed = options.get("faults", ()), options.get("seed", 0)
        _require_no_loop()
        start = _instant(options.get("at", START))
        self._folder = tempfile.TemporaryDirectory(prefix="redrive-night-", dir=_FOLDER)
        self._path = os.path.join(self._folder.name, "night.db")
        self._start_us = round(start.timestamp() * 1e6)
        self._clock = VirtualClock(seed, self._start_us)
        self._times = Times(start)
        self._faults = faults
        self._director = Director(flow, self._folder.name, self._clock, self._times, options)
        self._options = RunOptions(max_parallel=options.get("max_parallel"), params=dict(options.get("params") or {}))
        for fault in faults:
            if not isinstance(fault, Fault):
                raise StageError(f"{fault!r} is no fault: use down, error, hang, crash, ... of redrive.engine.testing")
            self._times.span(fault.when)  # refuse what cannot be read
        self._machine_faults = [fault for fault in faults if isinstance(fault, MachineFault)]
        acts = [self._planned(number, act) for number, act in enumerate(options.get("acts", ()))]
        self._acts = sorted(acts, key=lambda planned: planned.seconds)
        self._answers: list[tuple[str, bool, str]] = []
        writer = PlayedWriter()
        self._stage = Stage(self._clock, writer, self._new_runner, self._read_flow, seed=seed)
        full = [self._times.span(fault.when) for fault in self._machine_faults if fault.what == "disk"]
        writer.refuses = lambda: any(start <= self._clock.seconds < end for start, end in full)

    def _new_runner(self, executor_id: str) -> PlayedRunner:
        director = self._director
        load, script_of = self._ending_the_night(director.load), self._ending_the_night(director.script_of)
        return PlayedRunner(executor_id, load, script_of, project_root=director.project_root)

    async def _read_flow(self, target: str, params: Mapping[str, object]) -> FlowSpec:
        return self._ending_the_night(self._director.load)(params, {})

    def _ending_the_night(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return a function whose StageError ends the night, and not only the run."""

        def call(*args: P.args, **options: P.kwargs) -> T:
            try:
                return function(*args, **options)
            except (StageError, KeyboardInterrupt) as error:
                self._stage.fail(error)

        return call

    def advance_to(self, seconds: float) -> None:
        """Let time pass while no executor lives."""
        self._clock.seconds = max(self._clock.seconds, seconds)

    # --- Runs --------------------------------------------------------------------------------------------------------

    def play_run(self, run_id: str, seconds: float) -> None:
        """Play one run until it ends, or waits for an act that does not come, at most for some seconds."""
        limit = self._clock.seconds + seconds
        for _ in range(EXECUTORS_MAX):
            try:
                result = self._stage.run(lambda: self._session(run_id, limit))
            except StorageError:  # the disk is full, and the run cannot be opened: somebody tries again
                self._clock.seconds += REOPEN_SECONDS
                continue
            if result is None:
                self._clock.seconds = self._end_of_crash()
            elif self._clock.seconds >= limit or not self._is_resumed(result, limit):
                return
        raise StageError(f"run {run_id!r} has not ended after {EXECUTORS_MAX} executors")

    def play_service(self, seconds: float) -> None:
        """Play services one after another for some seconds."""
        while self._clock.seconds < seconds:
            if self._stage.run(lambda: self._serve(seconds)) is None:
                self._clock.seconds = self._end_of_crash()

    async def _serve(self, limit: float) -> bool:
        service = PlayedService(self._director.source, self._path, self._options, self._stage.machine)
        async with self._with_planned_acts(self._operate(service.respond, applies_to_file=True), limit, service.stop):
            await service.serve()
        return True

    @asynccontextmanager
    async def _with_planned_acts(
        self, acts: Coroutine[Any, Any, None], limit: float, stop: Callable[[], None]
    ) -> AsyncIterator[None]:
        """Let the acts and the faults of the processes come meanwhile, and stop at the limit."""
        loop = asyncio.get_running_loop()
        self._arm_faults(loop)
        loop.call_at(limit, stop)
        operator = loop.create_task(acts)
        try:
            yield
        finally:
            operator.cancel()
            with suppress(asyncio.CancelledError):
                await operator

    def _end_of_crash(self) -> float:
        """Return when a new executor starts after the crash of this instant."""
        spans = [self._times.span(fault.when) for fault in self._machine_faults if fault.what in ("executor", "zygote")]
        return max(end for start, end in spans if abs(start - self._clock.seconds) < 1e-6)

    async def _session(self, run_id: str, limit: float) -> RunResult:
        opened = asyncio.Event()
        executor = Executor(
            run_id=run_id,
            flow="played.py",
            state=self._path,
            options=self._options,
            machine=self._stage.machine,
            on_open=lambda name: opened.set(),
        )

        async def operator() -> None:
            await opened.wait()
            await self._operate(executor.respond)

        async with self._with_planned_acts(operator(), limit, executor.stop):
            return await executor.run_here()

    def _arm_faults(self, loop: asyncio.AbstractEventLoop) -> None:
        now = self._clock.seconds
        for fault in self._machine_faults:
            at, _ = self._times.span(fault.when)
            if at > now or (at == now == 0):
                loop.call_at(at, self._strike, fault)

    def _strike(self, fault: MachineFault) -> None:
        if fault.what == "clock":
            self._clock.step(fault.clock_step_seconds)
        elif fault.what == "executor":
            raise Crash("killed")
        elif fault.what == "zygote" and self._stage.runner is not None:
            self._stage.runner.lose_zygote()

    # --- Acts --------------------------------------------------------------------------------------------------------

    def _planned(self, number: int, act: ActEntry) -> _PlannedAct:
        if len(act) < 2 or not isinstance(act[1], str):
            raise StageError(f"an act is a tuple (instant, act, names..., options), not {act!r}")
        at, name, *names = act
        if name not in BY_NAME and name not in ("change", "resume"):
            raise StageError(f"there is no act {name!r}; there are {', '.join(BY_NAME)}, change and resume")
        options = dict(names.pop()) if names and isinstance(names[-1], Mapping) else {}
        return _PlannedAct(self._times.seconds(at), number, name, tuple(names), options)

    async def _operate(self, respond: Respond, *, applies_to_file: bool = False) -> None:
        """Send each act at its instant to the executor of the latest run.

        ``applies_to_file``: where none is active, apply it to the file and go on.
        """
        while self._acts:
            await asyncio.sleep(max(0.0, self._acts[0].seconds - self._clock.seconds))
            run_ids = self._run_ids()
            if not run_ids:
                self._stage.fail(StageError(f"{self._acts[0].act}: no run has started by then"))
            command = self._command(self._acts[0], run_ids[-1])
            if command is not None:
                line = json.dumps(command.as_json()).encode()
                try:
                    self._record_answer(command, await respond(line))
                except ConnectionError:
                    if not applies_to_file:
                        return  # the executor leaves: the act is applied when it has left
                    self._apply(command)
            self._acts.pop(0)

    def _record_answer(self, command: Command, answer: Mapping[str, object]) -> None:
        self._answers.append((command.act, bool(answer["ok"]), str(answer["message"])))

    def _is_resumed(self, result: RunResult, limit: float) -> bool:
        """Apply the acts that come while no executor lives; return whether one of them continues the run."""
        run_id, is_stopped = result.run_id, result.interrupted
        while self._acts and self._acts[0].seconds < limit:
            planned = self._acts.pop(0)
            self.advance_to(planned.seconds)
            if planned.act == "resume":
                return True
            command = self._command(planned, run_id)
            if command is not None and self._apply(command) and not is_stopped and BY_NAME[planned.act].starts_work:
                return True
        return False

    def end_acts(self) -> None:
        """Apply the acts that are left after the last run."""
        if self._acts:
            left = ", ".join(f"{planned.act} at {planned.seconds:g} s" for planned in self._acts)
            raise StageError(f"the night is over before these acts: {left}")

    def _command(self, planned: _PlannedAct, run_id: str) -> Command | None:
        """Return the command of an act, with the targets as they are now; None: it is not sent to an executor."""
        if planned.act == "change":
            self._director.change(planned.names[0])
            return None
        if planned.act == "resume":
            return None
        act, options, names = BY_NAME[planned.act], dict(planned.options), planned.names
        targets: tuple[Target, ...] = ()
        if act.scope is Scope.TASKS:
            targets = self._targets(run_id, names)
        elif act.scope is Scope.BREAKER and names:
            options = {"downstream": names[0], "how": names[1], **options}
        elif act.scope is Scope.ROWS and "rows" not in options:
            with self._reading() as connection:
                rows = query(connection, QUARANTINE, {"run_id": run_id})
            options["rows"] = [row.id for row in rows if row.state == "held"]
        elif planned.act == "stop":
            options.setdefault("how", names[0] if names else "drain")
        reason = str(options.pop("reason", "as played"))
        return Command(f"act-{planned.number}", planned.act, run_id, targets, _ACTOR, reason, options)

    def _targets(self, run_id: str, names: Sequence[str]) -> tuple[Target, ...]:
        with self._reading() as connection:
            rows = runs.load_run(connection, run_id, has_attempts=False).tasks.values()
        known = {row.name: Target(row.name, str(row.state), row.generation) for row in rows}
        if names == ("*",):
            return tuple(target for target in known.values() if target.state in NEEDS_HUMAN)
        missing = [name for name in names if name not in known]
        if missing:
            raise StageError(f"run {run_id!r} has no task {missing[0]!r}; it has {', '.join(known)}")
        return tuple(known[name] for name in names)

    def _reading(self) -> closing[Any]:
        return closing(database.open_beside_writer(self._path))

    def _run_ids(self) -> tuple[str, ...]:
        """The runs so far, the first one first."""
        if not os.path.exists(self._path):
            return ()
        with self._reading() as connection:
            return tuple(listing.run.run_id for listing in reversed(lists.runs(connection)))

    def _apply(self, command: Command) -> bool:
        """Apply an act as the shell does when no executor lives; return whether it changed something."""
        answer = apply_under_lock(self._path, command, self._clock.now_us())
        assert answer is not None  # no executor lives
        self._record_answer(command, answer.as_json())
        return answer.ok

    # --- The end -----------------------------------------------------------------------------------------------------

    def close(self, keep: str | os.PathLike[str] | None) -> Night:
        """Return the night; copy its state file to ``keep``."""
        stored = Stored(
            self._folder,
            self._path,
            self._start_us,
            self._clock.now_us(),
            tuple(self._director.starts),
            tuple(self._answers),
            tuple(self._faults),
            self._times,
        )
        run_ids = self._run_ids()
        if not run_ids:
            raise StageError("no run was started: let the schedule be watched for longer, lasts=")
        night = Night(stored, run_ids)
        if keep is not None:
            night.save(keep)
        return night


# --- The stage of a night: executors and services one after another on one state file, in virtual time ---------------


class Stage:
    """Gives each executor a machine of its own making: a clock, a runner and a writer that are played.

    Parameters:
        new_runner: makes the runner of an executor, by its id.
        read_flow: see ``Machine.read_flow``.
    """

    def __init__(
        self,
        clock: VirtualClock,
        writer: PlayedWriter,
        new_runner: Callable[[str], PlayedRunner],
        read_flow: Callable[[str, Mapping[str, object]], Awaitable[FlowSpec]],
        *,
        seed: object,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.clock = clock
        self.runner: PlayedRunner | None = None  # of the latest executor
        self.failures: list[BaseException] = []  # errors that nobody has handled
        self._writer = writer
        self._new_runner = new_runner
        self._locks: list[lock.StateLock] = []
        self._connections: list[Any] = []
        dice = random.Random(f"{seed}:tokens")
        self.machine = Machine(
            clock=clock,
            acquire=self._acquire,
            read_flow=read_flow,
            open_database=self._open_database,
            writer_thread=writer,
            environment_hash=lambda: "played",
            heartbeat_seconds=heartbeat_seconds,
            breakers_folder=lambda: None,
            pages_folder=lambda: None,
            random_hex=lambda size: dice.randbytes(size).hex(),
        )

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Run a coroutine to its end, which may run executors. None: what it ran has died.

        Raises what the coroutine raises, else the first error in a callback.
        """
        loop = VirtualLoop(self.clock, self._on_error)
        self._writer.use(loop)
        try:
            return loop.run_until_complete(main())
        except Crash:
            return None
        finally:
            self._writer.use(None)
            for held in self._locks:
                held.drop()
            for connection in self._connections:
                connection.close()  # an open transaction is lost
            self._locks.clear()
            self._connections.clear()
            loop.abandon()
            loop.close()
            if self.failures:
                raise self.failures[0]

    def fail(self, error: BaseException) -> NoReturn:
        """End the night with an error that the engine must not catch."""
        self.failures.append(error)
        raise Crash(str(error))

    def _on_error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Crash):  # else the executor died in a task that nobody waits for any more
            self.failures.append(error if isinstance(error, Exception) else RuntimeError(str(context["message"])))

    def _acquire(self, request: RunRequest) -> StateFileLease:
        held = lock.acquire(request.state_path, request.executor_id, request.run_id)
        self._locks.append(held)
        self.runner = self._new_runner(request.executor_id)
        return StateFileLease(request, held, cast(Runner, self.runner), cast(Reaper, _NoReaper()))

    def _open_database(self, path: str, durability: Durability) -> Any:
        connection = database.open_for_writing(path, durability)
        self._connections.append(connection)
        return connection


class _NoReaper:
    def end(self) -> None:
        """There are no processes."""
