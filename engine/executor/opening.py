"""From "run this" to a run that can be dispatched: lock, orphans, flow, state file, recovery, in this order.

The lock comes first, because the zygote inherits it. The flow comes before the state file, so that a flow that cannot
be imported leaves no trace. Orphans of a dead executor are gone before any of its tasks is touched (DESIGN 2).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, get_args

from ..agent import command_client
from ..clock import Clock
from ..core.option_types import is_text
from ..core.projection import RunFold
from ..core.spec import FlowSpec
from ..domain.event_payloads import ExecutorChange, ExecutorChanged, RunChange, RunChanged
from ..domain.events import Event
from ..errors import ExecutorBusyError, FlowError, NotFoundError, RedriveError, StartInterrupted, StorageError
from ..flow.flow import Flow
from ..runner.environment_hash import image_hash
from ..runner.zygote.client import Runner
from ..statefile import processes
from ..statefile.changes.transitions import Journal
from ..store import breaker_rows, database, executors, flow_changes, history, lock, recovery, runs, schedules
from ..store.claims import Claimant
from ..store.flow_path import path_for_run
from ..store.writer import Writer
from .flow_file import name_of

MAX_PARALLEL = 4  # 003.16
GOODBYE_SECONDS = 2.0  # a disk that refuses is not waited for


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How an ``Executor`` runs.

    Parameters:
        max_parallel: attempts at a time, at least 1. None: what the flow says, or 4.
        durability: "full" (a power cut loses nothing) or "normal" (it may lose the last commits; faster on slow
            disks): ``PRAGMA synchronous`` of SQLite.
        params: values for parameters of the flow, by name.
        stay: True: when the run waits for an operator, wait with it instead of ending.
        resume: True: the run must be in the state file already.
        wait: True: wait until another executor leaves the state file, instead of raising ExecutorBusyError.
        dask: the address of the Dask scheduler whose workers run tasks with ``isolation="dask"``.
        logical_time: microseconds since 1970 UTC: a new run stands for this instant of its schedule.
        served: True: ``redrive serve`` runs it: its schedule waits for this run.

    Example:
        >>> RunOptions(max_parallel=8, params={"day": "2026-04-25"}).durability
        'full'
    """

    max_parallel: int | None = None
    durability: database.Durability = "full"
    params: Mapping[str, Any] = field(default_factory=dict)
    stay: bool = False
    resume: bool = False
    wait: bool = False
    dask: str | None = None
    logical_time: int | None = None
    served: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What shall be run, where and how."""

    flow: Flow | str | None  # None: the flow file that the run in the state file names
    run_id: str | None
    state_path: str
    executor_id: str
    options: RunOptions


@dataclass(slots=True)
class Place:
    """A state file that is ours: locked, and for a flow in memory with its zygote already forked.

    ``importing``: while the flow is being imported, which may take long and can be given up.
    """

    request: Request
    lock: lock.StateLock
    runner: Runner
    is_used: bool = False  # something of the run is in the state file
    is_interrupted: bool = False
    importing: asyncio.Task[FlowSpec] | None = None

    def interrupt(self) -> None:
        """Give the import up, where there is one; what comes after it is quick."""
        self.is_interrupted = True
        if self.importing is not None:
            self.importing.cancel()

    def release(self) -> None:
        """Let the next one have it. What was refused leaves no lock file behind."""
        if self.is_used:
            self.lock.release()
        else:
            self.lock.abandon()


@dataclass(slots=True)
class OpenRun:
    """Everything that the loop needs, open."""

    state_path: str
    claimant: Claimant
    flow: FlowSpec
    fold: RunFold
    median_seconds: Mapping[str, float]
    breaker_rows: Sequence[Mapping[str, Any]]
    runner: Runner
    writer: Writer
    place: Place
    hooks: Hooks
    last_word: Callable[[], Awaitable[None]] | None = None  # after the goodbye, while the file is still open

    def touch(self) -> None:
        """Show the outside that the loop turns: by the lock file's mtime, which costs no commit."""
        self.place.lock.touch()

    async def close(self) -> None:
        """Stop what runs, write what is left, say goodbye in the file."""
        await self.runner.close()
        executor_id = self.claimant.executor_id
        goodbye = self.writer.submit(lambda journal: executors.mark_stopped(journal, executor_id))
        if self.last_word is not None:
            await asyncio.wait({goodbye}, timeout=GOODBYE_SECONDS)
            with contextlib.suppress(StorageError):  # what could be kept is kept already
                await self.last_word()
        await self.writer.close()
        with contextlib.suppress(RedriveError):  # the storage refuses; the next executor finds that this one is gone
            await goodbye


@dataclass(slots=True)
class Hooks:
    """Where the parts report to; the loop puts itself here once it turns."""

    early: list[Event] = field(default_factory=list)  # what was told before that: in the fold, and not yet shown
    on_events: Callable[[Sequence[Event]], None] = field(init=False)
    on_trouble: Callable[[str, str], None] = lambda what, sentence: None

    def __post_init__(self) -> None:
        self.on_events = self.early.extend


def state_path_of(flow: Flow | str | None, state: str | None, params: Mapping[str, Any]) -> str:
    """Where a run is kept: as told, else by REDRIVE_STATE, else under the flow's name in the default place."""

    def flow_name() -> str:
        if flow is None:
            raise RedriveError("say which state file to resume")
        return flow.name if isinstance(flow, Flow) else name_of(flow, params)

    return path_for_run(state, flow_name)


# --- Before the loop -----------------------------------------------------------------------------------------------


def reserve(request: Request) -> Place:
    """Take the lock, and fork the zygote of an in-memory flow while this process has no thread and no loop yet.

    Raises ExecutorBusyError, StateFileError, FlowError.
    """
    options = request.options
    if options.max_parallel is not None and options.max_parallel < 1:
        raise RedriveError(f"max_parallel is a whole number of at least 1, not {options.max_parallel!r}")
    if options.durability not in get_args(database.Durability):
        raise RedriveError(f"durability is one of full, normal, not {options.durability!r}")
    if request.run_id is not None and not is_text(request.run_id):
        raise RedriveError(f"the name of a run is a text: not {request.run_id!r}")
    if options.resume and not os.path.lexists(request.state_path):
        raise RedriveError(f"there is no state file {request.state_path!r} to resume")
    if isinstance(request.flow, Flow):
        request.flow.spec()  # refuse here what the zygote would refuse, with a traceback of the caller's own
    make_folder(request.state_path)
    held = lock.acquire(request.state_path, request.executor_id, request.run_id, wait=options.wait)
    try:
        demand_alone(request.state_path)
        environment = {processes.EXECUTOR_VARIABLE: request.executor_id}
        keep_fds = (held.fileno(),)
        if isinstance(request.flow, Flow):
            runner = Runner.fork(request.flow, environment=environment, keep_fds=keep_fds)
        else:
            runner = Runner.spawn(environment=environment, keep_fds=keep_fds)
        return Place(request, held, runner)
    except BaseException:
        held.abandon()
        raise


def demand_alone(state_path: str) -> None:
    """Whoever removes a lock file removes the lock, not its owner: he still answers at his socket."""
    try:
        said = command_client.ping(state_path)
    except RedriveError:
        return  # nobody listens, or nobody who can be understood
    if said is not None:
        why = "its lock file was removed: stop it first, for two writers would damage the file"
        raise ExecutorBusyError(f"another executor still writes {state_path}, and {why}")


def make_folder(state_path: str) -> None:
    folder = os.path.dirname(os.path.abspath(state_path))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        why = f"the folder {folder!r} cannot be made: {error.strerror}; choose another with --state"
        raise RedriveError(why) from None


# --- In the loop ---------------------------------------------------------------------------------------------------


async def open_run(place: Place, clock: Clock) -> OpenRun:
    """Open everything and bring the run to where it can be dispatched."""
    request, hooks = place.request, Hooks()
    known = _look_into(request)
    runner = place.runner
    flow = await _import(place, known)
    try:
        await _join_cluster(runner, request.options.dask, known.flow_target, flow)
        connection = database.open_for_writing(request.state_path, request.options.durability)
        place.is_used = True
        try:
            _bury_the_dead(connection, request)
            loop = asyncio.get_running_loop()
            writer = Writer(
                connection,
                loop,
                clock.now_us,
                lambda events: hooks.on_events(events),
                lambda what, sentence: hooks.on_trouble(what, sentence),
                reopen=lambda: database.open_for_writing(request.state_path, request.options.durability),
            )
        except BaseException:
            connection.close()
            raise
        place.lock.tell_run(known.run_id)
        host, image = socket.gethostname(), image_hash()
        claimant = Claimant(request.executor_id, host, flow.code_hash, flow.params, image)
        opened = await _prepare_run(place, known, flow, writer, claimant, runner, hooks)
    except BaseException:
        await runner.close()
        raise
    return opened


async def _import(place: Place, known: _Known) -> FlowSpec:
    """Raises StartInterrupted where somebody asks to stop meanwhile."""
    params = place.request.options.params
    opening = place.runner.open(known.flow_target, params, remembered=known.params)
    place.importing = asyncio.get_running_loop().create_task(opening)
    try:
        if place.is_interrupted:
            place.importing.cancel()
        return await place.importing
    except asyncio.CancelledError:
        if not place.is_interrupted:
            raise
        raise StartInterrupted("interrupted while the flow was imported: nothing was started") from None
    finally:
        place.importing = None


async def _join_cluster(runner: Runner, address: str | None, target: str, flow: FlowSpec) -> None:
    """Find the workers of tasks that want to run elsewhere, before anything of the run begins."""
    wanting = next((task.name for task in flow.tasks if task.isolation == "dask"), None)
    if wanting is None:
        return
    if address is None:
        raise FlowError(f"task {wanting!r} runs on Dask: say where with --dask tcp://HOST:8786 or REDRIVE_DASK")
    if not target:
        raise FlowError(f"task {wanting!r} runs on Dask, where workers import the flow: give it in a file")
    from ..runner.dask.client import connect

    runner.elsewhere = await connect(address, runner.executor_id, target, flow.params, flow)


@dataclass(frozen=True, slots=True)
class _Known:
    """What the state file says already about the run that is meant."""

    flow_target: str
    run_id: str
    exists: bool
    params: Mapping[str, Any]


def _look_into(request: Request) -> _Known:
    """Read, before anything is written, which run is meant and which flow it belongs to."""
    target = request.flow if isinstance(request.flow, str) else ""
    options = request.options
    if not options.resume and _is_missing_or_empty(request.state_path):
        return _Known(target, request.run_id or new_run_id(), False, {})
    with database.reading(request.state_path) as connection:
        run_id = request.run_id or (runs.latest_run_id(connection) if options.resume else None)
        fresh_id = _unused(connection, run_id if run_id and options.logical_time else new_run_id())
        source = None
        if options.logical_time is not None:
            run_id = None  # always a run of its own: another flow of this file may have one of this name
        if run_id is not None:
            source = runs.find_source(connection, run_id)
    if source is None:
        if options.resume:
            raise NotFoundError(f"there is no run {run_id or ''!r} to resume in {request.state_path}; see redrive runs")
        return _Known(target, run_id or fresh_id, False, {})
    if request.flow is None and source.flow_path is None:
        raise FlowError(f"run {run_id!r} was started by a program, not from a flow file; start that program again")
    return _Known(target or source.flow_path or "", str(run_id), True, source.params)


def _is_missing_or_empty(path: str) -> bool:
    try:
        return os.path.getsize(path) == 0
    except FileNotFoundError:
        return True
    except OSError:  # a ring of links: whoever opens it says so
        return False


def new_run_id() -> str:
    """Unless given: the instant, short enough for a header, readable and sortable."""
    return datetime.now().astimezone().strftime("%Y%m%dT%H%M%S")


def _unused(connection: sqlite3.Connection, run_id: str) -> str:
    """The same, or with a number behind it where a run of this second is in the file already."""
    candidate, number = run_id, 1
    while runs.exists(connection, candidate):
        number += 1
        candidate = f"{run_id}-{number}"
    return candidate


def _bury_the_dead(connection: sqlite3.Connection, request: Request) -> None:
    """Kill whatever an executor that died has left alive, before any of its tasks may run again."""
    with database.explained(request.state_path):
        dead = recovery.to_be_swept(connection, request.executor_id)
    if dead:
        lock.sweep_orphans(dead, request.state_path)


async def _prepare_run(
    place: Place,
    known: _Known,
    flow: FlowSpec,
    writer: Writer,
    claimant: Claimant,
    runner: Runner,
    hooks: Hooks,
) -> OpenRun:
    options, run_id = place.request.options, known.run_id
    parallel = options.max_parallel or flow.max_parallel or MAX_PARALLEL

    def item(journal: Journal) -> tuple[RunFold, dict[str, float], list[dict[str, Any]]]:
        _say_hello(journal, claimant, run_id, runner)
        recovery.recover(journal, claimant.executor_id)
        if not known.exists:
            _fire(journal, flow, run_id, options)
            runs.create_run(
                journal,
                run_id=run_id,
                flow=flow,
                max_parallel=parallel,
                params=flow.params,
                at=journal.at,
                deadline_at=_deadline_at(flow, options, journal.at),
                logical_time=options.logical_time,
            )
        else:
            _take_up(journal, run_id, flow, options)
        fold = runs.load_fold(journal.connection, run_id)
        return fold, history.durations(journal.connection, flow.name), breaker_rows.read_rows(journal.connection)

    try:
        fold, medians, breakers = await writer.submit(item)
    except BaseException:
        await writer.close()
        raise
    return OpenRun(place.request.state_path, claimant, flow, fold, medians, breakers, runner, writer, place, hooks)


def _fire(journal: Journal, flow: FlowSpec, run_id: str, options: RunOptions) -> None:
    """Let the run stand for its logical time, which nobody else may have run. Raises RefusedError, FlowError."""
    if options.logical_time is None:
        return
    served = schedules.served_of(flow)
    if served is None:
        raise FlowError(f"flow {flow.name!r} has no schedule any more")
    schedules.fire(journal, served, options.logical_time, run_id, again=not options.served)


def _deadline_at(flow: FlowSpec, options: RunOptions, now: int) -> int | None:
    """Of a run that is served the instant that was promised, however late it starts; else so long from now."""
    if flow.deadline_seconds is None:
        return None
    start = options.logical_time if options.served and options.logical_time is not None else now
    return start + round(flow.deadline_seconds * 1e6)


def _take_up(journal: Journal, run_id: str, flow: FlowSpec, options: RunOptions) -> None:
    fold = runs.load_fold(journal.connection, run_id)
    difference = flow_changes.compare(fold, flow)
    if difference:
        flow_changes.write(journal, run_id, flow, difference)
    flow_changes.write_options(journal, run_id, fold.run.options, flow)
    flow_changes.write_params(journal, run_id, json.loads(fold.run.params), flow)
    if options.max_parallel is not None:
        journal.change_run(run_id, RunChanged(RunChange.OPENED, {"max_parallel": options.max_parallel}))


def _say_hello(journal: Journal, claimant: Claimant, run_id: str, runner: Runner) -> None:
    executors.insert(journal, claimant, run_id)
    started = ExecutorChanged(
        ExecutorChange.STARTED,
        claimant.executor_id,
        os.getpid(),
        claimant.host,
        warnings=runner.warnings,
        printed=runner.printed or None,
    )
    journal.emit(started, run_id)
