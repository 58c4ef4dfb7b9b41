"""What the executor calls: opens a flow, runs attempts of it, and says when the process that ran them is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from ...core.spec import FlowSpec
from ...domain.event_payloads import ExecutorChange, ExecutorChanged
from ...errors import FlowImportError
from ...statefile.processes import EXECUTOR_VARIABLE
from .. import kill, process, protocol
from ..attempt import IMPORT_SECONDS, AttemptListener, ProcessAttempt, RunnerContext, RunningAttempt, raise_task_error
from ..oom import OutOfMemoryWatch
from ..protocol import AttemptOrder
from ..thread.pool import PATIENCE_SECONDS, OnStarted, ThreadHosts
from .connection import ZygoteConnection
from .flow_import import LoadedFlow
from .launch import ZygoteProcess, fork_zygote, spawn_zygote

SWEEP_SECONDS = 5.0
PRINTED_CHARACTERS = 4000
DESCRIPTORS_PER_ATTEMPT = 4
DESCRIPTORS_SPARED = 64  # for the state file, the socket, its visitors, pages on their way
ZYGOTE_DIED = "the process that forks the attempts died"


class RemoteRunner(Protocol):
    """Other machines that run attempts (``client.py``)."""

    def start(self, order: AttemptOrder, listener: AttemptListener) -> RunningAttempt:
        """Queue an attempt."""

    async def close(self) -> None:
        """Leave: what still runs there ends by itself."""


class Runner:
    """Runs attempts of one flow. Made by ``spawn`` or ``fork``; all callbacks are called in the event loop.

    ``on_lost()``: the zygote died, its attempts have ended as LOST, and ``open`` may be called again.
    ``on_freed()``: a slot that a leaked thread held may be free. ``on_news(payload)``: something to be known about
    the processes themselves. ``on_output(bytes)``: what the import of the flow prints.
    """

    patience_seconds = PATIENCE_SECONDS  # how long tasks wait for slots that leaked threads hold (pool.py)

    def __init__(self, launch: Callable[[], ZygoteProcess], executor_id: str) -> None:
        self.executor_id = executor_id
        self.on_lost: Callable[[], None] = _ignore
        self.on_freed: Callable[[], None] = _ignore
        self.on_executor_change: Callable[[ExecutorChanged], None] = lambda payload: None
        self.on_output: Callable[[bytes], None] = lambda data: None
        self.attempts_max = 1  # at a time, by the descriptors that this process may have
        self.warnings: tuple[str, ...] = ()  # what is doubtful about forking after this flow's import
        self.printed = ""  # by that import: the last of it
        self.remote: RemoteRunner | None = None  # where tasks with isolation="dask" run
        self._launch = launch
        self._descriptors = process.descriptor_limits()  # as attempts may have them: for them ours is not raised
        self._link: ZygoteConnection | None = None
        self._shared: RunnerContext | None = None
        self._numbers = 0
        self._attempts: dict[int, ProcessAttempt] = {}
        self._hosts: ThreadHosts | None = None
        self._losing: asyncio.Task[None] | None = None

    @classmethod
    def spawn(cls, *, environment: Mapping[str, str], keep_fds: Sequence[int] = ()) -> Runner:
        """For a flow in a file: ``open`` starts a clean interpreter that imports it.

        ``environment`` is added to that of this process and must hold REDRIVE_EXECUTOR, by which stray processes are
        found; ``keep_fds``: descriptors that every attempt inherits (the lock).
        """
        return cls(partial(spawn_zygote, environment, keep_fds), environment[EXECUTOR_VARIABLE])

    @classmethod
    def fork(cls, flow: LoadedFlow, *, environment: Mapping[str, str], keep_fds: Sequence[int] = ()) -> Runner:
        """For a flow in the memory of this program: forks it now, so that closures can be tasks.

        To be called before an event loop, threads or a database connection exist. A zygote that died cannot be forked
        anew: ``open`` then raises OSError.
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
        """Have the zygote import the flow ``local.py[:name]``, and return what it says of itself.

        ``remembered``: the parameters that the run had until now; those that the flow no longer declares are left out.
        Raises FlowError (FlowImportError with the traceback, CycleError), OSError when no process can be started.
        """
        if self._link is not None:
            raise RuntimeError("a flow is open already: close the runner first")
        zygote = self._launch()
        process.set_descriptor_limits(zygote.pid, self._descriptors)
        link = ZygoteConnection(
            zygote,
            on_exited=self._exited,
            on_gone=self._zygote_gone,
            on_output=lambda data: self.on_output(data),
        )
        descriptors = process.raise_descriptor_limit()
        self.attempts_max = max(1, (descriptors - DESCRIPTORS_SPARED) // DESCRIPTORS_PER_ATTEMPT)
        try:
            request = protocol.Open(target, dict(params or {}), dict(remembered or {}))
            spec, opened = await link.open(request, import_seconds)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                link.kill()  # an import does not hear that nobody waits for it
            await link.end()
            await asyncio.to_thread(kill.kill_bearers, self.executor_id, SWEEP_SECONDS)  # what the import started
            raise
        if link.is_closed:
            await link.end()
            raise FlowImportError(f"{ZYGOTE_DIED} as soon as it had imported {target!r}", "")
        self.warnings = tuple(opened.warnings)
        self.printed = protocol.clean_text(link.printed(), PRINTED_CHARACTERS)
        self._shared = RunnerContext(opened.project_root, OutOfMemoryWatch(), self._forget, opened.imports_per_attempt)
        self._hosts = ThreadHosts(
            self._shared,
            self._fork_host,
            on_freed=lambda: self.on_freed(),
            on_killed=lambda payload: self.on_executor_change(payload),
            on_output=lambda data: self.on_output(data),
            patience_seconds=self.patience_seconds,
        )
        self._link = link
        return spec

    # --- Attempts -----------------------------------------------------------------------------------------------------

    async def start(self, order: AttemptOrder, listener: AttemptListener) -> RunningAttempt:
        """Start an attempt; ``listener`` hears of it from now on. Raises OSError when no process can be started."""
        if self._link is None or self._shared is None or self._hosts is None:
            raise ProcessLookupError("there is no zygote: open a flow first")
        self._numbers += 1
        number = self._numbers
        if self.remote is not None and order.spec.isolation == "dask":
            return self.remote.start(order, listener)
        if order.spec.isolation == "thread":
            return await self._hosts.start(number, order, listener)
        shared = self._shared
        begun: list[ProcessAttempt] = []

        def begin(started: protocol.Started, fds: list[int]) -> None:
            attempt = ProcessAttempt(number, order, listener, shared, started, fds)
            self._attempts[number] = attempt
            begun.append(attempt)

        await self._link.start(protocol.Start(number, order), begin)
        return begun[0]

    @property
    def is_open(self) -> bool:
        """Whether attempts can be started: a flow is open, and its zygote lives."""
        return self._link is not None and self._shared is not None

    @property
    def zygote_pid(self) -> int | None:
        """The process that forks the attempts; None while no flow is open."""
        return None if self._link is None else self._link.pid

    @property
    def leaked_slots(self) -> int:
        """Threads that ignored their cancel token and still run."""
        return 0 if self._hosts is None else self._hosts.leaked_slots

    def set_slot_demand(self, are_wanted: bool) -> None:
        """Say whether tasks wait for slots that leaked threads hold (the rule: ``pool.py``)."""
        if self._hosts is not None:
            self._hosts.set_slot_demand(are_wanted)

    async def _fork_host(self, on_started: OnStarted) -> None:
        if self._link is None:
            raise ProcessLookupError(ZYGOTE_DIED)
        self._numbers += 1
        await self._link.start(protocol.StartHost(self._numbers), on_started)

    def _forget(self, number: int) -> None:
        self._attempts.pop(number, None)

    def _exited(self, exited: protocol.Exited) -> None:
        attempt = self._attempts.get(exited.number)
        if attempt is not None:
            attempt.exited(exited)
        elif self._hosts is not None:
            self._hosts.exited(exited)

    # --- The end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Kill whatever still runs, and end the zygote. Attempts that ran end as LOST."""
        if self._losing is not None:
            await asyncio.wait([self._losing])
        elsewhere, self.remote = self.remote, None
        if elsewhere is not None:
            await elsewhere.close()
        link, self._link = self._link, None
        if link is not None:
            await link.end()
            self._lose_attempts("the executor ended")

    def _zygote_gone(self) -> None:
        link, self._link = self._link, None
        if link is not None:  # else ``open`` is about to find out
            self._losing = asyncio.get_running_loop().create_task(self._lose(link))
            self._losing.add_done_callback(raise_task_error)

    async def _lose(self, link: ZygoteConnection) -> None:
        """Make sure that nothing of the dead zygote lives, then say so."""
        pidfds = [attempt.kill() for attempt in self._attempts.values()]
        pidfds += self._hosts.kill() if self._hosts is not None else []
        how = await link.end_in_words()
        await asyncio.to_thread(kill.wait_until_ended, pidfds, SWEEP_SECONDS)
        await asyncio.to_thread(kill.kill_bearers, self.executor_id, SWEEP_SECONDS)
        self._lose_attempts(ZYGOTE_DIED)
        self._losing = None
        printed = protocol.clean_text(link.printed(), PRINTED_CHARACTERS)
        self.on_executor_change(ExecutorChanged(ExecutorChange.ZYGOTE_DIED, pid=link.pid, how=how, printed=printed))
        self.on_lost()

    def _lose_attempts(self, why: str) -> None:
        if self._hosts is not None:
            self._hosts.mark_lost(why)
        for attempt in list(self._attempts.values()):
            attempt.lost(why)


def _ignore() -> None:
    """Nobody wants to hear of it."""
