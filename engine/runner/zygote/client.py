"""The ``Runner``, through which the executor opens a flow, starts its attempts, and learns of the zygote's death."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from ...core.spec import FlowSpec
from ...domain.event_payloads import ExecutorChange, ExecutorChanged
from ...errors import FlowImportError
from ...statefile.processes import EXECUTOR_VARIABLE
from .. import kill, process, protocol
from ..attempt import IMPORT_SECONDS, AttemptListener, ProcessAttempt, RunnerContext, RunningAttempt, raise_task_error
from ..command import attempts_folder
from ..oom import OutOfMemoryWatch
from ..protocol import AttemptOrder
from ..thread.pool import PATIENCE_SECONDS, OnStarted, ThreadHosts
from .connection import ZygoteConnection
from .flow_import import LoadedFlow
from .launch import ZygoteProcess, fork_zygote, spawn_zygote

SWEEP_SECONDS = 5.0
PRINTED_CHARACTERS = 4000
DESCRIPTORS_PER_ATTEMPT = 4
DESCRIPTORS_RESERVED = 64  # reserved for the state file, the command socket and its clients, senders of pages
ZYGOTE_DIED = "the process that forks the attempts died"


class RemoteRunner(Protocol):
    """Runs attempts on other machines (``dask/client.py``)."""

    def start(self, order: AttemptOrder, listener: AttemptListener) -> RunningAttempt:
        """Queue an attempt."""

    async def close(self) -> None:
        """Disconnect: attempts that still run end when their lease expires."""


class Runner:
    """Runs attempts of one flow. Created by ``spawn`` or ``fork``; all callbacks are called in the event loop.

    ``on_lost()``: the zygote died, its attempts have ended as LOST, and ``open`` may be called again. ``on_freed()``: a
    slot that a leaked thread held may be free. ``on_executor_change(payload)``: a zygote or a host of threads ended.
    ``on_output(bytes)``: output of the flow's import.
    """

    patience_seconds = PATIENCE_SECONDS  # how long tasks wait for slots of leaked threads (pool.py)

    def __init__(self, launch: Callable[[], ZygoteProcess], executor_id: str) -> None:
        self.executor_id = executor_id
        self.on_lost: Callable[[], None] = _ignore
        self.on_freed: Callable[[], None] = _ignore
        self.on_executor_change: Callable[[ExecutorChanged], None] = lambda payload: None
        self.on_output: Callable[[bytes], None] = lambda data: None
        self.attempts_max = 1  # at a time, by the descriptor limit of this process
        self.warnings: tuple[str, ...] = ()  # about forking after the import of this flow
        self.printed = ""  # the end of the import's output
        self.remote: RemoteRunner | None = None  # runs tasks with isolation="dask"
        self._launch = launch
        self._descriptors = process.descriptor_limits()  # the limits of attempts: only this process raises its own
        self._zygote: ZygoteConnection | None = None
        self._shared: RunnerContext | None = None
        self._last_number = 0
        self._attempts: dict[int, ProcessAttempt] = {}
        self._hosts: ThreadHosts | None = None
        self._cleanup: asyncio.Task[None] | None = None

    @classmethod
    def spawn(cls, *, environment: Mapping[str, str], keep_fds: Sequence[int] = ()) -> Runner:
        """For a flow in a file: ``open`` starts a clean interpreter that imports it.

        ``environment`` is added to that of this process. It must hold REDRIVE_EXECUTOR, the token by which stray
        processes are found. ``keep_fds``: descriptors that every attempt inherits (the lock).
        """
        return cls(partial(spawn_zygote, environment, keep_fds), environment[EXECUTOR_VARIABLE])

    @classmethod
    def fork(cls, flow: LoadedFlow, *, environment: Mapping[str, str], keep_fds: Sequence[int] = ()) -> Runner:
        """For a flow in the memory of this program: forks it now, so that closures can be tasks.

        Call it before an event loop, threads or a database connection exist. A zygote that died cannot be forked
        again: ``open`` then raises OSError.
        """
        forked = [fork_zygote(flow, environment, keep_fds)]

        def launch() -> ZygoteProcess:
            if not forked:
                raise ProcessLookupError(f"{ZYGOTE_DIED}, and with it the flow that was built in memory")
            return forked.pop()

        return cls(launch, environment[EXECUTOR_VARIABLE])

    # --- The flow -----------------------------------------------------------------------------------------------------

    async def open(
        self,
        target: str = "",
        params: Mapping[str, object] | None = None,
        *,
        remembered: Mapping[str, object] | None = None,
        import_seconds: float = IMPORT_SECONDS,
    ) -> FlowSpec:
        """Have the zygote import the flow ``local.py[:name]``, and return its specification.

        ``remembered``: the stored parameters of the run; those that the flow no longer declares are left out.
        Raises FlowError (FlowImportError with the traceback, CycleError), OSError if no process can be started.
        """
        if self._zygote is not None:
            raise RuntimeError("a flow is open already: close the runner first")
        zygote = self._launch()
        process.set_descriptor_limits(zygote.pid, self._descriptors)
        connection = ZygoteConnection(
            zygote,
            on_exited=self._on_exited,
            on_gone=self._on_zygote_gone,
            on_output=lambda data: self.on_output(data),
        )
        descriptors = process.raise_descriptor_limit()
        self.attempts_max = max(1, (descriptors - DESCRIPTORS_RESERVED) // DESCRIPTORS_PER_ATTEMPT)
        try:
            request = protocol.Open(target, dict(params or {}), dict(remembered or {}))
            spec, opened = await connection.open(request, import_seconds)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                connection.kill()  # the import itself does not notice the cancellation
            await connection.end()
            await asyncio.to_thread(kill.kill_bearers, self.executor_id, SWEEP_SECONDS)  # children of the import
            raise
        if connection.is_closed:
            await connection.end()
            raise FlowImportError(f"{ZYGOTE_DIED} as soon as it had imported {target!r}", "")
        self.warnings = tuple(opened.warnings)
        self.printed = protocol.clean_text(connection.printed(), PRINTED_CHARACTERS)
        self._shared = RunnerContext(opened.project_root, OutOfMemoryWatch(), self._forget, opened.imports_per_attempt)
        self._hosts = ThreadHosts(
            self._shared,
            self._fork_host,
            on_freed=lambda: self.on_freed(),
            on_killed=lambda payload: self.on_executor_change(payload),
            on_output=lambda data: self.on_output(data),
            patience_seconds=self.patience_seconds,
        )
        self._zygote = connection
        return spec

    # --- Attempts -----------------------------------------------------------------------------------------------------

    async def start(self, order: AttemptOrder, listener: AttemptListener) -> RunningAttempt:
        """Start an attempt, which reports to ``listener``. Raises OSError if no process can be started."""
        if self._zygote is None or self._shared is None or self._hosts is None:
            raise ProcessLookupError("there is no zygote: open a flow first")
        self._last_number += 1
        number = self._last_number
        if self.remote is not None and order.spec.isolation == "dask":
            return self.remote.start(order, listener)
        if order.spec.kind == "command":
            order = replace(order, folder=os.path.join(attempts_folder(self.executor_id), str(number)))
        if order.spec.isolation == "thread":
            return await self._hosts.start(number, order, listener)
        shared = self._shared
        started_attempts: list[ProcessAttempt] = []

        def on_started(started: protocol.Started, fds: list[int]) -> None:
            attempt = ProcessAttempt(number, order, listener, shared, started, fds)
            self._attempts[number] = attempt
            started_attempts.append(attempt)

        await self._zygote.start(protocol.Start(number, order), on_started)
        return started_attempts[0]

    @property
    def is_open(self) -> bool:
        """Whether attempts can be started: a flow is open, and its zygote lives."""
        return self._zygote is not None and self._shared is not None

    @property
    def zygote_pid(self) -> int | None:
        """The process that forks the attempts; None while no flow is open."""
        return None if self._zygote is None else self._zygote.pid

    @property
    def leaked_slots(self) -> int:
        """Threads that ignored their cancel token and still run."""
        return 0 if self._hosts is None else self._hosts.leaked_slots

    def set_slot_demand(self, has_demand: bool) -> None:
        """Set whether tasks wait for slots that leaked threads hold (rule 3 of ``thread/pool.py``)."""
        if self._hosts is not None:
            self._hosts.set_slot_demand(has_demand)

    async def _fork_host(self, on_started: OnStarted) -> None:
        if self._zygote is None:
            raise ProcessLookupError(ZYGOTE_DIED)
        self._last_number += 1
        await self._zygote.start(protocol.StartHost(self._last_number), on_started)

    def _forget(self, number: int) -> None:
        self._attempts.pop(number, None)

    def _on_exited(self, exited: protocol.Exited) -> None:
        attempt = self._attempts.get(exited.number)
        if attempt is not None:
            attempt.exited(exited)
        elif self._hosts is not None:
            self._hosts.exited(exited)

    # --- The end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Kill all attempts, which end as LOST, and end the zygote."""
        if self._cleanup is not None:
            await asyncio.wait([self._cleanup])
        elsewhere, self.remote = self.remote, None
        if elsewhere is not None:
            await elsewhere.close()
        connection, self._zygote = self._zygote, None
        if connection is not None:
            await connection.end()
            self._lose_attempts("the executor ended")

    def _on_zygote_gone(self) -> None:
        connection, self._zygote = self._zygote, None
        if connection is not None:  # None: ``open`` is running and reports it
            self._cleanup = asyncio.get_running_loop().create_task(self._clean_up(connection))
            self._cleanup.add_done_callback(raise_task_error)

    async def _clean_up(self, connection: ZygoteConnection) -> None:
        """Kill all processes of the dead zygote, then settle its attempts and report its death."""
        pidfds = [attempt.kill() for attempt in self._attempts.values()]
        pidfds += self._hosts.kill() if self._hosts is not None else []
        how = await connection.end_in_words()
        await asyncio.to_thread(kill.wait_until_ended, pidfds, SWEEP_SECONDS)
        await asyncio.to_thread(kill.kill_bearers, self.executor_id, SWEEP_SECONDS)
        self._lose_attempts(ZYGOTE_DIED)
        self._cleanup = None
        printed = protocol.clean_text(connection.printed(), PRINTED_CHARACTERS)
        self.on_executor_change(
            ExecutorChanged(ExecutorChange.ZYGOTE_DIED, pid=connection.pid, how=how, printed=printed)
        )
        self.on_lost()

    def _lose_attempts(self, why: str) -> None:
        if self._hosts is not None:
            self._hosts.mark_lost(why)
        for attempt in list(self._attempts.values()):
            attempt.lost(why)


def _ignore() -> None:
    """Do nothing: the default of callbacks."""
