"""Opens a run up to the point where it can be dispatched: lock, flow, state file, orphans, recovery, in this order.

The lock comes first, because the zygote inherits it. The flow comes before the state file, so that a failed import
leaves no trace. Orphans of a dead executor are killed before any of its tasks is changed (DESIGN 2).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from ..clock import Clock, ClockWatch, SystemClock
from ..core import flow_difference
from ..core.policy import Uniform
from ..core.projection import RunProjection, new_projection
from ..core.secret_mask import require_secrets
from ..core.spec import Durability, FlowSpec, TaskSpec, collector_paused, work_of
from ..domain.event_payloads import ExecutorChange, ExecutorChanged, RunChange, RunChanged, RunColumns
from ..domain.events import Event
from ..domain.rows import BreakerRow, RunRow
from ..domain.states import END, RunState, cut_off_cause
from ..domain.text import printable
from ..errors import FlowChangesError, FlowError, RedriveError, StartInterrupted, StorageError
from ..flow.source import declared_files, declared_variables, environment_of
from ..runner.command import remove_folders
from ..runner.protocol import Open
from ..runner.runner import Runner
from ..runner.zygote.interpreter import environment_hash
from ..statefile.durations import DurationStats, duration_stats
from ..statefile.lists import BREAKERS, query
from ..statefile.open_writing import refuse_copy
from ..statefile.opening import holds_nothing
from ..statefile.paths import default_folder
from ..statefile.transitions import Transaction, resolve_cause
from ..store import database, executors, flow_changes, lock, recovery, runs, schedules
from ..store.database import explained_by_rows
from ..store.executors import ExecutorIdentity, random_hex
from ..store.write_ahead_log import WorkThread
from ..store.writer import FlushLimits, Writer, WriterListener
from .resume_plan import check_trust, flow_path_of, read_flow, run_to_resume, without_process
from .run_options import RunOptions, RunRequest
from .state_file_lease import INTERRUPTED, StateFileLease, acquire_state_file

if TYPE_CHECKING:
    from ..runner.dask_client import DaskCluster

MAX_PARALLEL = 4  # 003.16
UNREGISTER_SECONDS = 2.0  # limit for a disk that refuses writes
HEARTBEAT_SECONDS = 1.0

T = TypeVar("T")


class Machine(msgspec.Struct, frozen=True):
    """The parts of a machine that an executor uses: a played night gives it another machine.

    Attributes:
        acquire: locks the state file and makes the runner of the attempts.
        read_flow: imports a flow file apart from a run, with parameters.
        open_database: opens the locked state file for writing.
        writer_thread: runs the writes; None: threads of the writer.
        environment_hash: names the interpreter and its packages.
        breakers_folder: returns where executors tell one another which downstreams are down; None: they do not.
        pages_folder: returns where executors tell one another what they have paged; None: they do not.
        random_hex: names an executor (16 bytes) and an attempt (8 bytes) as no other.
        heartbeat_seconds: between two beats of an executor, and two looks of a service at the clock.
    """

    clock: Clock = msgspec.field(default_factory=SystemClock)
    acquire: Callable[[RunRequest], StateFileLease] = acquire_state_file
    read_flow: Callable[[str, Mapping[str, object]], Awaitable[FlowSpec]] = read_flow
    open_database: Callable[[str, Durability], sqlite3.Connection] = database.open_for_writing
    writer_thread: WorkThread | None = None
    environment_hash: Callable[[], str] = environment_hash
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    breakers_folder: Callable[[], str | None] = lambda: os.path.join(default_folder(), "breakers")
    pages_folder: Callable[[], str | None] = lambda: os.path.join(default_folder(), "pages")
    random_hex: Callable[[int], str] = random_hex


class OpenRun(msgspec.Struct):
    """The open resources of a run, as the loop needs them."""

    state_path: str
    identity: ExecutorIdentity
    flow: FlowSpec
    stored_tasks: Sequence[TaskSpec]  # those of ``flow`` as the state file holds them
    projection: RunProjection
    durations: Mapping[str, DurationStats]  # of earlier runs
    breaker_rows: Sequence[BreakerRow]
    runner: Runner
    writer: Writer
    lease: StateFileLease
    early: Sequence[Event]  # committed before the loop listens: in the projection, not yet shown
    clock_watch: ClockWatch  # from before the first write on, which may take long
    remote: DaskCluster | None  # runs the tasks with isolation="dask"
    is_new: bool = True

    async def close(self, save_file: Callable[[], Awaitable[None]] | None) -> None:
        """Close the runner, unregister the executor and flush all writes. ``save_file``: called before the last.

        Raises StorageError if what was written is not in the state file.
        """
        if self.remote is not None:
            await self.remote.close()
        await self.runner.close()
        executor_id = self.identity.executor_id
        unregistered = self.writer.submit(lambda transaction: executors.mark_executor_stopped(transaction, executor_id))
        try:
            if save_file is not None:
                await asyncio.wait({unregistered}, timeout=UNREGISTER_SECONDS)
                await save_file()
        finally:
            await self.writer.close()
        with contextlib.suppress(RedriveError):  # the storage refuses; the next executor marks this one as lost
            await unregistered


async def open_run(lease: StateFileLease, machine: Machine) -> OpenRun:
    """Open the resources and write the run, so that it can be dispatched."""
    request, runner = lease.request, lease.runner
    with explained_by_rows(request.state_path):
        requested = _find_run(request)
        flow = await _import(lease, requested)
        remote = None
        try:
            remote = await _connect_dask(runner, request.options, requested.flow_target, flow)
            return await _write_run(lease, requested, flow, machine, remote)
        except BaseException:
            if remote is not None:
                await remote.close()
            await runner.close()
            raise


async def _write_run(
    lease: StateFileLease, requested: _RequestedRun, flow: FlowSpec, machine: Machine, remote: DaskCluster | None
) -> OpenRun:
    mask = lease.runner.mask
    early: list[Event] = []
    writer = _open_writer(lease, machine)
    lease.lock.set_run(requested.run_id)
    host, environment = socket.gethostname(), machine.environment_hash()
    identity = ExecutorIdentity(
        lease.request.executor_id, host, flow.code_hash, mask.stored_params(flow), environment, machine.random_hex
    )
    clock_watch = ClockWatch(machine.clock)
    stored = mask.stored_flow(flow)
    first_write = _FirstWrite(requested, flow, stored, lease, identity, machine.clock.uniform)
    # A new run is built while the thread of the writer writes it.
    building = (
        None if requested.source is not None else asyncio.create_task(_build_projection(requested.run_id, stored))
    )
    projection, durations, breakers = await _write_first(lease, writer, first_write.write, early)
    if building is not None:
        projection = replace(await building, run=projection.run, seq=projection.seq)
    return OpenRun(
        lease.request.state_path,
        identity,
        flow,
        stored.tasks,
        projection,
        durations,
        breakers,
        lease.runner,
        writer,
        lease,
        early,
        clock_watch,
        remote,
        is_new=requested.source is None,
    )


def _open_writer(lease: StateFileLease, machine: Machine) -> Writer:
    """Open the state file for writing, and kill what dead executors left."""
    request, loop, clock = lease.request, asyncio.get_running_loop(), machine.clock
    connection = machine.open_database(request.state_path, request.options.durability)
    try:
        lease.lock.lock_file()  # of a file that was made now
        lease.has_run = True
        _kill_orphans(connection, request)
        limits = FlushLimits.from_environment(on_invalid=lambda error: _warn(f"{error}; the executor uses its default"))
        return Writer(
            connection, loop, clock.now_us, limits=limits, thread=machine.writer_thread, uniform=clock.uniform
        )
    except BaseException:
        connection.close()
        raise


async def _import(lease: StateFileLease, requested: _RequestedRun) -> FlowSpec:
    """Import the flow. Raises StartInterrupted if a stop is requested meanwhile."""
    params, source = lease.request.options.params or {}, requested.source or runs.RunSource()
    import_request = Open(requested.flow_target, params, source.params, source.python_path)
    import_task = asyncio.get_running_loop().create_task(lease.runner.open(import_request))
    with lease.interruptible(import_task.cancel):
        try:
            flow = await import_task
        except asyncio.CancelledError:
            if not lease.is_interrupted:
                raise
            raise StartInterrupted("interrupted while the flow was imported: nothing was started") from None
        except OSError as error:
            raise without_process(error) from None
    try:
        require_secrets(flow, environment_of(flow))
    except FlowError:
        await lease.runner.close()
        raise
    if flow.unused_env_sentence:
        _warn(f"flow {flow.name!r}: {flow.unused_env_sentence}")
    return flow


@cache
def _warn(sentence: str) -> None:
    """Print a warning once in this process, which may open many runs (``redrive rehearse --nights``)."""
    print(printable(f"redrive: {sentence}"), file=sys.stderr, flush=True)


async def _connect_dask(runner: Runner, options: RunOptions, target: str, flow: FlowSpec) -> DaskCluster | None:
    """Connect to the Dask cluster if a task needs it, before the run is written.

    A command that an operator types fails if no scheduler answers; a run that is resumed or served waits for it.
    """
    address = options.dask
    dask_task = next((task.name for task in flow.tasks if work_of(task).isolation == "dask"), None)
    if dask_task is None:
        return None
    if address is None:
        raise FlowError(f"task {dask_task!r} runs on Dask: say where with --dask tcp://HOST:8786 or REDRIVE_DASK")
    if not target:
        raise FlowError(f"task {dask_task!r} runs on Dask, where workers import the flow: give it in a file")
    from ..flow.loading import read_sources
    from ..runner.dask_client import connect
    from ..runner.dask_worker import RemoteFlow

    sources = await asyncio.to_thread(read_sources, flow.sources)
    if sources.keys() != flow.sources.keys():
        raise FlowError("a source file of the flow changed while it was imported: start the run again")
    sent = RemoteFlow(flow.path or target, flow, sources | declared_files(flow), declared_variables(flow))
    may_be_away = options.resume or options.served
    return await connect(
        address, runner.executor_id, sent, may_be_away=may_be_away, report=runner.report, wake=runner.wake
    )


class _RequestedRun(msgspec.Struct, frozen=True):
    """The requested run as far as the state file knows it."""

    flow_target: str
    run_id: str
    source: runs.RunSource | None = None  # of a run that exists


def _find_run(request: RunRequest) -> _RequestedRun:
    """Find the requested run and its flow file without writing."""
    target = request.flow if isinstance(request.flow, str) else ""
    options = request.options
    if not options.resume and holds_nothing(request.state_path):
        return _RequestedRun(target, request.run_id or new_run_id())
    with database.reading(request.state_path) as connection:
        if not options.copy:
            refuse_copy(connection, request.state_path, None)
        run_id = request.run_id or (run_to_resume(connection, request.state_path) if options.resume else None)
        new_id = _unused(connection, run_id if run_id and options.logical_time else new_run_id())
        source = None
        if options.logical_time is not None:
            run_id = None  # always a new run: another flow in this file may have a run of this name
        if run_id is not None:
            source = runs.find_source(connection, run_id)
        if source is not None and not options.copy:
            refuse_copy(connection, request.state_path, run_id)
        if source is not None and options.params:
            _check_is_unfinished(connection, str(run_id))
    if source is None:
        if options.resume:
            raise runs.unknown_run(run_id or "", request.state_path)
        return _RequestedRun(target, run_id or new_id)
    if request.flow is None:
        target = flow_path_of(source, request.state_path, str(run_id))
        if not options.trust:
            check_trust(source, request.state_path)
    return _RequestedRun(target, str(run_id), source)


def _check_is_unfinished(connection: sqlite3.Connection, run_id: str) -> None:
    """Raise RedriveError if the run has ended, so that new parameters would have no effect."""
    state, _ = runs.run_state(connection, run_id)
    if state is not RunState.RUNNING:
        raise RedriveError(
            f"run {run_id!r} has ended: {state}; its parameters cannot change: requeue tasks of it with --param, or"
            " start a run with another --run-id"
        )


def own_python_path() -> list[str]:
    """Return the folders of PYTHONPATH of this process."""
    return [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def new_run_id() -> str:
    """Return the default name of a run: the local time, sortable."""
    return datetime.now().astimezone().strftime("%Y%m%dT%H%M%S")


def _unused(connection: sqlite3.Connection, run_id: str) -> str:
    """Return ``run_id``, with a number appended if the file has a run of this name."""
    candidate, number = run_id, 1
    while runs.exists(connection, candidate):
        number += 1
        candidate = f"{run_id}-{number}"
    return candidate


def _kill_orphans(connection: sqlite3.Connection, request: RunRequest) -> None:
    """Kill leftover processes of dead executors before their tasks run again."""
    with database.translated_errors(request.state_path):
        dead = recovery.sweepable_executors(connection, request.executor_id)
    if dead:
        lock.sweep_orphans(dead, request.state_path)
    for executor_id in dead:
        remove_folders(executor_id)


async def _build_projection(run_id: str, flow: FlowSpec) -> RunProjection:
    with collector_paused():
        return new_projection(RunRow(run_id), flow.tasks, has_attempts=False)


class _FirstWrite(msgspec.Struct, frozen=True):
    """The transaction that opens a run: recovers what dead executors left, and creates or resumes the run.

    ``stored``: the flow as the state file holds it.
    """

    requested: _RequestedRun
    flow: FlowSpec
    stored: FlowSpec
    lease: StateFileLease
    identity: ExecutorIdentity
    uniform: Uniform

    def write(self, transaction: Transaction) -> tuple[RunProjection, Mapping[str, DurationStats], list[BreakerRow]]:
        """Write, and return the run (a new one without its tasks), durations by task, and the breakers."""
        run_id, connection = self.requested.run_id, transaction.connection
        _register_executor(transaction, self.identity, run_id, self.lease.runner)
        dead = recovery.recover(transaction, self.identity.executor_id, self.uniform)
        recovery.report_cut_off(transaction, dead, run_id)
        if self.requested.source is not None:
            projection = _resume_run(transaction, run_id, self.stored, self.lease.request.options)
        else:
            self._create_run(transaction)
            projection = runs.load_run_alone(connection, run_id)
        return projection, duration_stats(connection, self.flow.name), query(connection, BREAKERS, {})

    def _create_run(self, transaction: Transaction) -> None:
        flow, options, run_id = self.flow, self.lease.request.options, self.requested.run_id
        deadline_at = _deadline_at(flow, options, transaction.at)
        missed_at = _missed_deadline(flow, options, deadline_at, transaction.at)
        served = _claim_slot(transaction, flow, run_id, options, is_over=missed_at is not None)
        runs.create_run(
            transaction,
            run_id=run_id,
            flow=self.stored,
            max_parallel=options.max_parallel or flow.max_parallel or MAX_PARALLEL,
            params=self.stored.params,
            at=transaction.at,
            deadline_at=deadline_at if missed_at is None else None,
            logical_time=options.logical_time,
            python_path=os.pathsep.join(own_python_path()),
            is_backfill=options.logical_time is not None and not options.served,
        )
        if missed_at is not None and served is not None and options.logical_time is not None:
            schedules.record_start_after_deadline(transaction, served, options.logical_time, run_id, missed_at)


async def _write_first(
    lease: StateFileLease, writer: Writer, item: Callable[[Transaction], T], early: list[Event]
) -> T:
    """Write the first item, and collect its events. If the storage refuses it, or a stop is requested, close the writer
    and raise.

    Nothing runs yet, so there is nothing to keep in memory until the storage accepts writes.
    """
    problems: list[str] = []
    closing: list[asyncio.Task[None]] = []

    def give_up() -> None:
        closing.append(asyncio.get_running_loop().create_task(writer.close()))

    def on_storage_change(what: str, sentence: str) -> None:
        problems.append(sentence)
        give_up()

    writer.listen(WriterListener(early.extend, storage_changed=on_storage_change))
    with lease.interruptible(give_up):
        try:
            written = await writer.submit(item, durable=True)
        except BaseException as error:
            if isinstance(error, FlowChangesError):
                refused = RunChanged(RunChange.FLOW_REFUSED, why=str(error))
                run_id = error.run_id
                await writer.submit(lambda transaction: transaction.emit(refused, run_id))  # for later readers
            await writer.close()
            if lease.is_interrupted:
                raise StartInterrupted(INTERRUPTED) from None
            raise
    if closing:  # the last try of the closing writer has succeeded: the run can be resumed
        await asyncio.wait(closing)
        raise StartInterrupted(INTERRUPTED) if lease.is_interrupted else StorageError(problems[0])
    return written


def _claim_slot(
    transaction: Transaction, flow: FlowSpec, run_id: str, options: RunOptions, *, is_over: bool
) -> schedules.ServedFlow | None:
    """Claim the logical time for the run; None: it has none.

    Raises RefusedError if the logical time has a run already, FlowError without a schedule.
    """
    if options.logical_time is None:
        return None
    served = schedules.served_flow(flow)
    if served is None:
        raise FlowError(f"flow {flow.name!r} has no schedule any more")
    is_again, replaced = not options.served, options.replaced_run
    schedules.claim_slot(
        transaction, served, options.logical_time, run_id, again=is_again, replaced=replaced, is_over=is_over
    )
    return served


def _deadline_at(flow: FlowSpec, options: RunOptions, now: int) -> int | None:
    """Return the deadline: of a served run counted from its logical time, unless that is a day; else from now."""
    if flow.deadline_seconds is None:
        return None
    is_day = flow.schedule is not None and flow.schedule.follows
    start = options.logical_time if options.served and options.logical_time is not None and not is_day else now
    return start + round(flow.deadline_seconds * 1e6)


def _missed_deadline(flow: FlowSpec, options: RunOptions, deadline_at: int | None, now: int) -> int | None:
    """Return the deadline of a scheduled run that starts after it: it would end the run before the first task."""
    is_missed = deadline_at is not None and deadline_at <= now and flow.deadline_action == END
    return deadline_at if is_missed and options.served else None


def _resume_run(transaction: Transaction, run_id: str, flow: FlowSpec, options: RunOptions) -> RunProjection:
    """Write what differs from the current flow and options, and return the run as it is then."""
    resolve_cause(transaction, cut_off_cause(run_id))
    projection = runs.load_run(transaction.connection, run_id, has_attempts=False)
    difference = flow_difference.compare(projection, flow)
    if difference.needs_acceptance and not options.accept_changes:
        raise FlowChangesError(flow_difference.refusal(run_id, difference), run_id)
    changes = transaction.connection.total_changes
    flow_changes.apply(transaction, projection, flow, difference)
    if transaction.connection.total_changes != changes:
        del projection  # before a second one is made
        projection = runs.load_run(transaction.connection, run_id, has_attempts=False)
    _change_run(transaction, projection.run, flow, options)
    for event in transaction.events:
        projection.apply(event)
    return projection


def _change_run(transaction: Transaction, run: RunRow, flow: FlowSpec, options: RunOptions) -> None:
    """Write what differs of the run itself."""
    flow_changes.write_options(transaction, run.run_id, run.options, flow)
    flow_changes.write_params(transaction, run.run_id, json.loads(run.params), flow)
    opened: RunColumns = {}
    if run.code_changed is not None:
        opened["code_changed"] = None
    if run.pool_waits is not None:
        opened["pool_waits"] = None
    if options.max_parallel is not None:
        opened["max_parallel"] = options.max_parallel
    if opened:
        transaction.change_run(run.run_id, RunChanged(RunChange.OPENED, opened))


def _register_executor(transaction: Transaction, identity: ExecutorIdentity, run_id: str, runner: Runner) -> None:
    executors.insert_executor(transaction, identity, run_id)
    started = ExecutorChanged(
        ExecutorChange.STARTED,
        identity.executor_id,
        os.getpid(),
        identity.host,
        warnings=runner.warnings,
        printed=runner.printed or None,
    )
    transaction.emit(started, run_id)
