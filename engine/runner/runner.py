"""The ``Runner``, through which the executor opens a flow, starts its attempts, and notices the zygote's death."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..core.secret_mask import SecretMask, secret_values
from ..core.spec import FlowSpec, Isolation
from ..domain.event_payloads import ExecutorChange, ExecutorChanged
from ..errors import FlowError, FlowImportError
from ..flow.source import declared_python, environment_of
from ..statefile.processes import EXECUTOR_VARIABLE
from . import process, protocol, reaper
from .attempt import IMPORT_SECONDS, Attempt, RunnerContext, raise_task_error
from .cgroups import Cgroups, open_cgroups
from .command import attempts_folder, encoded_variables
from .forked_process import ForkedProcess
from .out_of_memory import OutOfMemoryWatch
from .protocol import AttemptControls, AttemptListener, AttemptOrder, RunnerListener, ignore
from .threads import PATIENCE_SECONDS, ThreadHosts
from .workers import Worker, WorkerPool
from .zygote.connection import ZygoteConnection, ZygoteGone
from .zygote.interpreter import find_interpreter
from .zygote.launch import ZYGOTE_DIED, StartZygote, ZygoteProcess, fork_at_once, spawn_zygote

if TYPE_CHECKING:
    from .zygote.flow_import import LoadedFlow

SWEEP_SECONDS = 5.0
ZYGOTE_KILLED = "the process that forks the attempts was killed"
PRINTED_CHARACTERS = 4000
DESCRIPTORS_PER_ATTEMPT = 6  # of a command: four of its worker, two of its program
OPENINGS_MAX = 2  # zygotes for one attempt each that import the flow at a time
IDLE_SHARE = 8  # one in so many processes may be an idle worker
DESCRIPTORS_RESERVED = 64  # reserved for the state file, the command socket and its clients, senders of pages


class Runner:
    """Runs attempts of one flow. Created by ``spawn`` or ``fork``; reports to its listener (``listen``).

    ``on_zygote``: gets the pid of each zygote that is started.
    """

    patience_seconds = PATIENCE_SECONDS  # how long tasks wait for slots of leaked threads

    def __init__(
        self,
        start_zygote: StartZygote,
        executor_id: str,
        on_zygote: Callable[[int], object] = ignore,
    ) -> None:
        self.executor_id = executor_id
        self.attempts_max = 1  # at a time, by the descriptor limit of this process
        self.warnings: tuple[str, ...] = ()  # about forking after the import of this flow
        self.printed = ""  # the end of the import's output
        self.mask = SecretMask()  # of the open flow
        self._cgroups: Cgroups | None = None  # of attempts with limits, where this process may make some
        self._start_zygote = start_zygote
        self._on_zygote = on_zygote
        self._listener: RunnerListener | None = None
        self._early: list[Callable[[RunnerListener], object]] = []  # reports from before anybody listens
        self._descriptors = process.descriptor_limits()  # the limits of attempts: only this process raises its own
        self._flow: OpenFlow | None = None  # gets the new attempts
        self._retired: list[OpenFlow] = []  # replaced flows whose attempts still run
        self._last_number = 0
        self._cleanups: set[asyncio.Task[None]] = set()
        self._starts: set[asyncio.Task[None]] = set()  # attempts that wait for a process
        self._openings: set[asyncio.Task[None]] = set()  # attempts that wait for a zygote of their own
        self._opening_apart = asyncio.Semaphore(OPENINGS_MAX)
        self._opened_pids: set[int] = set()  # zygotes that import now

    @classmethod
    def spawn(cls, *, environment: Mapping[str, str], inherited_fds: Sequence[int] = ()) -> Runner:
        """For a flow in a file: ``open`` starts a clean interpreter that imports it.

        ``environment`` is added to that of this process. It must hold REDRIVE_EXECUTOR, the token by which stray
        processes are found. ``inherited_fds``: descriptors that every attempt inherits (the lock).
        """
        return cls(lambda python: spawn_zygote(environment, inherited_fds, python), environment[EXECUTOR_VARIABLE])

    @classmethod
    def fork(cls, flow: LoadedFlow, *, environment: Mapping[str, str], inherited_fds: Sequence[int] = ()) -> Runner:
        """For a flow in the memory of this program: forks it now, so that closures can be tasks.

        Call it before an event loop, threads or a database connection exist. A zygote that died cannot be forked
        again: ``open`` then raises OSError.
        """
        return cls(fork_at_once(flow, environment, inherited_fds), environment[EXECUTOR_VARIABLE])

    def listen(self, listener: RunnerListener) -> None:
        """Report to ``listener`` from now on, and first what happened before."""
        early, self._early, self._listener = self._early, [], listener
        for report in early:
            report(listener)

    def _report(self, report: Callable[[RunnerListener], object]) -> None:
        if self._listener is None:  # a zygote may die while the executor opens the run
            self._early.append(report)
        else:
            report(self._listener)

    def report(self, payload: ExecutorChanged) -> None:
        """Report what concerns no single attempt."""
        self._report(lambda listener: listener.executor_changed(payload))

    # --- The flow -----------------------------------------------------------------------------------------------------

    async def open(self, request: protocol.Open) -> FlowSpec:
        """Have the zygote import a flow, and return its specification.

        Raises FlowError (FlowImportError with the traceback, CycleError), OSError if no process can be started.
        """
        if self._flow is not None:
            raise RuntimeError("a flow is open already: close the runner first")
        self._use(await self.prepare(request))
        return self._require_flow().spec

    async def prepare(self, request: protocol.Open) -> OpenFlow:
        """Have a new zygote import the flow, beside the one that is open. ``replace`` or ``discard`` the result."""
        is_here = request.target and not request.sources
        named = declared_python(request.target) if is_here else None
        python = None if named is None else await asyncio.to_thread(find_interpreter, named, request.target)
        return await self._open_zygote(request, python)

    async def _open_zygote(self, request: protocol.Open, python: str | None) -> OpenFlow:
        zygote = self._start_zygote(python)
        self._opened_pids.add(zygote.pid)
        try:
            return await self._open_in(zygote, request, python)
        finally:
            self._opened_pids.discard(zygote.pid)

    async def _open_in(self, zygote: ZygoteProcess, request: protocol.Open, python: str | None) -> OpenFlow:
        self._on_zygote(zygote.pid)
        process.set_descriptor_limits(zygote.pid, self._descriptors)
        connection = ZygoteConnection(zygote, on_exit=self._end_idle_flows, on_gone=self._on_zygote_gone)
        descriptors = process.raise_descriptor_limit()
        processes_max = (descriptors - DESCRIPTORS_RESERVED) // DESCRIPTORS_PER_ATTEMPT
        idle_max = processes_max // IDLE_SHARE
        self.attempts_max = max(1, processes_max - idle_max)
        try:
            spec, opened = await connection.open(request, IMPORT_SECONDS)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                connection.kill()  # the import itself does not notice the cancellation
            await connection.end()
            self._opened_pids.discard(zygote.pid)
            await self._kill_strays()  # children of the import
            raise
        if connection.link.is_closed:
            await connection.end()
            raise FlowImportError(f"{ZYGOTE_DIED} as soon as it had imported {request.target!r}", "")
        if spec.python is not None and python is None:
            await connection.end()
            raise FlowError(
                f"flow {spec.name!r}: python={spec.python!r} is read before the flow is imported: write it as text in "
                'the line flow = Flow("...", python="...") of a flow file'
            )
        try:
            self._cgroups = self._cgroups or open_cgroups(spec, shares_process=opened.imports_per_process)
        except FlowError:
            await connection.end()
            raise
        environment = {**os.environ, **request.variables} if request.sources else environment_of(spec)
        mask = SecretMask(secret_values(spec, environment))
        shared = RunnerContext(opened.project_root, OutOfMemoryWatch(), opened.imports_per_process, mask=mask)
        hosts = ThreadHosts(
            shared,
            lambda host: connection.request(protocol.StartShared(self._new_number(), is_thread_host=True), host),
            on_freed=self._on_slot_freed,
            on_killed=self.report,
            patience_seconds=self.patience_seconds,
        )
        workers = WorkerPool(on_retired=self.report, idle_max=idle_max)
        connection.watch()
        warnings, printed = tuple(opened.warnings), _printed(connection, mask)
        return OpenFlow(spec, request, python, connection, shared, hosts, workers, warnings, printed)

    def replace(self, prepared: OpenFlow) -> None:
        """Start further attempts from ``prepared``; running attempts stay with the code that they began with."""
        replaced, self._flow = self._flow, None
        self._use(prepared)
        if replaced is not None:
            self._retired.append(replaced)
            replaced.hosts.retire()
            replaced.workers.retire()
            self._end_idle_flows()

    async def discard(self, prepared: OpenFlow) -> None:
        """End a zygote that is not to be used."""
        await prepared.workers.close()
        await prepared.connection.end()

    def _use(self, flow: OpenFlow) -> None:
        self._flow, self.warnings, self.printed, self.mask = flow, flow.warnings, flow.printed, flow.shared.mask

    def _require_flow(self) -> OpenFlow:
        if self._flow is None:
            raise ProcessLookupError("there is no zygote: open a flow first")
        return self._flow

    # --- Attempts -----------------------------------------------------------------------------------------------------

    async def start(self, order: AttemptOrder, listener: AttemptListener) -> AttemptControls:
        """Start an attempt, which reports to ``listener``. Raises OSError if no process can be started."""
        attempt: asyncio.Future[AttemptControls] = asyncio.get_running_loop().create_future()
        self.launch(order, listener, attempt.set_result, attempt.set_exception)
        return await asyncio.shield(attempt)

    def launch(
        self,
        order: AttemptOrder,
        listener: AttemptListener,
        on_started: OnStarted,
        on_failed: OnStartFailed,
        *,
        is_apart: bool = False,
    ) -> None:
        """Do what ``start`` does, and call one of two functions, perhaps before the return.

        ``is_apart``: in a zygote of its own, because a zygote died while the task ran: if it has ended that one, it
        ends no other attempt now.
        Without a task of asyncio for each attempt, which costs as much as all else here.
        """
        try:
            flow = self._require_flow()
        except OSError as error:
            on_failed(error)
            return
        start = StartingAttempt(self._new_number(), order, listener, flow, on_started, on_failed, self._on_begun)
        if is_apart:
            self._spawn(self._begin_apart(start), self._openings)
        else:
            self._begin(start)

    def _begin(self, start: StartingAttempt) -> None:
        order, flow = start.order, start.flow
        flow.starting += 1
        if self._cgroups is not None and (order.spec.kind == "command" or start.isolation == "process"):
            try:
                start.order = order = self._cgroups.bound(order, start.number)
            except OSError as error:
                start.failed(error)
                return
        if order.spec.kind == "command":
            folder = attempts_folder(self.executor_id, flow.connection.pid)
            start.order = msgspec.structs.replace(order, folder=os.path.join(folder, str(start.number)))
        if not start.begin_at_once():
            self._spawn(start.begin(), self._starts)

    async def _begin_apart(self, start: StartingAttempt) -> None:
        """Begin in a zygote that is opened for this attempt, and ends after it like that of a replaced flow."""
        flow = start.flow
        try:
            async with self._opening_apart:
                own = await self._open_zygote(flow.request, flow.python)
            if own.spec.code_hash != flow.spec.code_hash:
                await self.discard(own)
                raise FlowError("its code has changed: reload it")
        except (FlowError, OSError) as error:
            start.on_failed(OSError(f"no process of its own could import the flow: {error}"))
            return
        except asyncio.CancelledError:  # the runner is closed
            start.on_failed(ZygoteGone(is_blameless=True))
            raise
        start.flow = own
        own.workers.retire()
        self._retired.append(own)
        self._begin(start)

    def _new_number(self) -> int:
        """Return the number of the next process or thread: unique in this runner."""
        self._last_number += 1
        return self._last_number

    def _on_begun(self, flow: OpenFlow) -> None:
        flow.starting -= 1
        if flow in self._retired:
            flow.hosts.retire()  # also a host that was forked since
        self._end_idle_flows()

    @property
    def is_open(self) -> bool:
        """Whether attempts can be started: a flow is open, and its zygote lives."""
        return self._flow is not None

    @property
    def zygote_pid(self) -> int | None:
        """The process that forks the attempts; None while no flow is open."""
        return None if self._flow is None else self._flow.connection.pid

    @property
    def leaked_slots(self) -> int:
        """Threads that ignored their cancel token and still run."""
        return sum(flow.hosts.leaked_slots for flow in self._flows())

    def set_slot_demand(self, has_demand: bool) -> None:
        """Set whether tasks wait for slots that leaked threads hold (rule 3 of ``threads.py``)."""
        for flow in self._flows():
            flow.hosts.set_slot_demand(has_demand)

    def _flows(self) -> list[OpenFlow]:
        """Return every flow with a zygote."""
        return self._retired if self._flow is None else [*self._retired, self._flow]

    def wake(self) -> None:
        """Report that a task may start."""
        self._report(lambda listener: listener.slot_freed())

    def _on_slot_freed(self) -> None:
        self._end_idle_flows()
        self.wake()

    def _end_idle_flows(self) -> None:
        """End the zygotes of replaced flows of which nothing runs any more."""
        for flow in [flow for flow in self._retired if flow.is_idle]:
            self._retired.remove(flow)
            self._spawn(self.discard(flow), self._cleanups)

    def _spawn(self, work: Coroutine[object, object, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(raise_task_error)

    # --- The end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Kill all attempts, which end as LOST, and end the zygote."""
        for opening in self._openings:
            opening.cancel()
        while unfinished := self._cleanups | self._openings:
            await asyncio.wait(unfinished)
        for flow in self._flows():
            await flow.workers.close()
        flows, self._flow, self._retired = self._flows(), None, []
        for flow in flows:
            await flow.connection.end()
            flow.connection.lose_all("the executor ended")
        if any(flow.connection.was_killed for flow in flows):
            await self._kill_strays()
        if self._cgroups is not None:
            self._cgroups.close()

    def _on_zygote_gone(self, connection: ZygoteConnection) -> None:
        flow = next((flow for flow in self._flows() if flow.connection is connection), None)
        if flow is None:  # ``prepare`` is running and reports it
            return
        is_current = flow is self._flow
        if is_current:
            self._flow = None
        else:
            self._retired.remove(flow)
        self._spawn(self._clean_up(flow, frozenset(self._cleanups), is_current), self._cleanups)

    async def _clean_up(self, flow: OpenFlow, earlier: Collection[asyncio.Task[None]], is_current: bool) -> None:
        """Kill all processes of the dead zygote, then settle its attempts and report its death.

        ``earlier``: the cleanups that end first, because they would kill a zygote that is opened meanwhile.
        """
        connection = flow.connection
        pidfds = connection.kill_forked()
        how = await connection.exit_text()
        await asyncio.to_thread(reaper.wait_until_ended, pidfds, SWEEP_SECONDS)
        await self._kill_strays()
        silence = connection.silence
        connection.lose_all(ZYGOTE_DIED if silence is None else f"{ZYGOTE_KILLED}, because {silence}")
        printed = _printed(connection, flow.shared.mask)
        self.report(ExecutorChanged(ExecutorChange.ZYGOTE_DIED, pid=connection.pid, how=how, printed=printed))
        if is_current:
            if earlier:
                await asyncio.wait(earlier)
            self._report(lambda listener: listener.zygote_lost())

    async def _kill_strays(self) -> None:
        """Kill all processes of this executor that do not descend from a living zygote."""
        living = frozenset(flow.connection.pid for flow in self._flows()) | self._opened_pids
        await asyncio.to_thread(reaper.kill_by_token, self.executor_id, SWEEP_SECONDS, living)


def _printed(connection: ZygoteConnection, mask: SecretMask) -> str:
    """Return the end of the import's output."""
    return mask.text(protocol.clean_text(connection.printed(), PRINTED_CHARACTERS))


# --- A flow that a zygote has imported, all that runs of it, and the start of its attempts ---------------------------


OnStarted = Callable[[AttemptControls], None]
OnStartFailed = Callable[[OSError], None]


class OpenFlow(msgspec.Struct, eq=False):
    """A flow that a zygote has imported, with the processes that were forked from it."""

    spec: FlowSpec
    request: protocol.Open  # by which it was imported
    python: str | None  # the path of its interpreter; None: the one of the executor
    connection: ZygoteConnection
    shared: RunnerContext
    hosts: ThreadHosts
    workers: WorkerPool
    warnings: tuple[str, ...]  # about forking after the import
    printed: str  # the end of the import's output
    starting: int = 0  # attempts that have no process yet

    @property
    def is_idle(self) -> bool:
        """Whether no attempt of the flow runs."""
        connection = self.connection
        return not (self.starting or connection.has_pending or len(connection.forked) > self.workers.idle_count)


class StartingAttempt(msgspec.Struct):
    """The start of an attempt. ``on_started`` or ``on_failed`` is called once, after ``on_over(flow)``."""

    number: int
    order: AttemptOrder
    listener: AttemptListener
    flow: OpenFlow
    on_started: OnStarted
    on_failed: OnStartFailed
    on_over: Callable[[OpenFlow], None]

    def begin_at_once(self) -> bool:
        """Begin, unless something has to be waited for; return whether it has begun."""
        attempt: Attempt | None = None
        if self.isolation == "thread":
            attempt = self.flow.hosts.start_at_once(self.number, self.order, self.listener)
        elif self.isolation == "worker":
            attempt = self.flow.workers.start_at_once(self.order, self.listener)
        if attempt is not None:
            self._attach(attempt)
        elif self.isolation != "thread" and self.flow.connection.link.is_writable:
            self._request()
        else:
            return False
        return True

    async def begin(self) -> None:
        """Begin once the zygote keeps up with its requests, or has forked the host that takes the attempt."""
        if self.isolation != "thread":
            await self.flow.connection.link.wait_writable()
            self._request()
            return
        try:
            self._attach(await self.flow.hosts.start(self.number, self.order, self.listener))
        except OSError as error:
            self.failed(error)

    @property
    def isolation(self) -> Isolation:
        spec = self.order.spec
        if spec.isolation == "thread":
            return "thread"
        shares_process = spec.isolation == "worker" or self.flow.shared.imports_per_process
        return "worker" if shares_process or spec.kind == "command" else "process"

    def _request(self) -> None:
        order = self.order
        if self.isolation == "worker":
            self.flow.connection.request(protocol.StartShared(self.number), self)
            return
        frame = protocol.Start(self.number, protocol.encode_order(order), encoded_variables(order))
        self.flow.connection.request(frame, self)

    def _attach(self, attempt: Attempt) -> None:
        self.on_over(self.flow)
        self.on_started(attempt)

    # --- Responses of the zygote --------------------------------------------------------------------------------------

    def started(self, started: protocol.Started, fds: list[int]) -> ForkedProcess:
        if self.isolation == "worker":
            worker = Worker(started, fds, self.flow.shared, self.flow.workers)
            self._attach(worker.start(self.order, self.listener))
            return worker
        process = ForkedProcess(started, fds)
        self._attach(Attempt(self.order, self.listener, self.flow.shared, process, started.forked_at))
        return process

    def failed(self, error: OSError) -> None:
        """Report that there is no process."""
        self.on_over(self.flow)
        self.on_failed(error)
