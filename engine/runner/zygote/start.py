"""The start of one attempt: at once if a process takes it or is asked for, else in a task of asyncio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import protocol
from ..listener import AttemptListener, RunningAttempt
from ..process_attempt import ProcessAttempt
from ..protocol import AttemptOrder
from ..task_environment import encoded_variables
from ..thread.pool import ThreadHosts
from ..worker.pool import WorkerPool
from .open_flow import OpenFlow

OnAttempt = Callable[[RunningAttempt], None]
OnStartFailed = Callable[[OSError], None]


@dataclass(slots=True)
class AttemptStart:
    """The start of an attempt. ``on_started`` or ``on_failed`` is called once, after ``on_over(flow)``."""

    number: int
    order: AttemptOrder
    listener: AttemptListener
    flow: OpenFlow
    on_started: OnAttempt
    on_failed: OnStartFailed
    on_over: Callable[[OpenFlow], None]

    def begin_at_once(self) -> bool:
        """Begin, unless something has to be waited for; return whether it has begun."""
        pool, connection = self._pool, self.flow.connection
        if pool is None:
            if not connection.link.is_writable:
                return False
            connection.request(self._frame(), self)
            return True
        attempt = pool.start_at_once(self.number, self.order, self.listener)
        if attempt is not None:
            self._attach(attempt)
        return attempt is not None

    async def begin(self) -> None:
        """Begin once the zygote keeps up with its requests, or has forked the process that takes the attempt."""
        pool, connection = self._pool, self.flow.connection
        if pool is None:
            await connection.link.wait_writable()
            connection.request(self._frame(), self)
            return
        try:
            attempt = await pool.start(self.number, self.order, self.listener)
        except OSError as error:
            self.failed(error)
        else:
            self._attach(attempt)

    @property
    def _pool(self) -> ThreadHosts | WorkerPool | None:
        """The processes that take attempts; None: a new process does."""
        spec = self.order.spec
        if spec.isolation == "thread":
            return self.flow.hosts
        shares_process = spec.isolation == "worker" or self.flow.shared.imports_per_process
        return self.flow.workers if shares_process and spec.kind != "command" else None

    def _frame(self) -> protocol.Start:
        return protocol.Start(self.number, protocol.encode_order(self.order), encoded_variables(self.order))

    def _attach(self, attempt: RunningAttempt) -> None:
        self.on_over(self.flow)
        self.on_started(attempt)

    # --- Responses of the zygote --------------------------------------------------------------------------------------

    def started(self, started: protocol.Started, fds: list[int]) -> None:
        """Control the process, which runs."""
        attempt = ProcessAttempt(self.number, self.order, self.listener, self.flow.shared, started, fds)
        self.flow.attempts[self.number] = attempt
        self._attach(attempt)

    def failed(self, error: OSError) -> None:
        """Report that there is no process."""
        self.on_over(self.flow)
        self.on_failed(error)
