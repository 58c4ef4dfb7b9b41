"""The start of one attempt: at once if a process takes it or is asked for, else in a task of asyncio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import protocol
from ..clean_run import outcome_of_clean_run
from ..listener import AttemptListener, RunningAttempt
from ..masked_listener import MaskedListener
from ..process_attempt import ProcessAttempt, RanAttempt
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
        order, spec = self.order, self.order.spec
        function = None if spec.kind != "python" or spec.map is not None or spec.item is not None else spec.name
        arguments = None if function is None else protocol.encode_arguments(order)
        data, variables = protocol.encode_order(order), encoded_variables(order)
        return protocol.Start(self.number, data, function, spec.timeout, variables, arguments)

    def _attach(self, attempt: RunningAttempt) -> None:
        self.on_over(self.flow)
        self.on_started(attempt)

    # --- Responses of the zygote --------------------------------------------------------------------------------------

    def started(self, started: protocol.Started, fds: list[int]) -> None:
        """Control the process, which runs."""
        attempt = ProcessAttempt(self.number, self.order, self.listener, self.flow.shared, started, fds)
        self.flow.attempts[self.number] = attempt
        self._attach(attempt)

    def ran(self, ran: protocol.Ran) -> None:
        """Settle the attempt, which has ended."""
        shared, outcome = self.flow.shared, outcome_of_clean_run(self.order, ran)
        if outcome is None:
            self._attach(RanAttempt(self.number, self.order, self.listener, shared, ran))
            return
        self.listener.started(ran.pid, None)  # for another executor, whose attempt runs here
        MaskedListener(self.listener, shared.mask).ended(outcome)
        self._attach(RunningAttempt(ran.pid))

    def failed(self, error: OSError) -> None:
        """Report that there is no process."""
        self.on_over(self.flow)
        self.on_failed(error)
