"""A flow that a zygote has imported, all that runs of it, and the start of its attempts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ...core.spec import FlowSpec, Isolation, TaskSpec
from .. import protocol
from ..attempt import Attempt, RunnerContext
from ..forked_process import ForkedProcess
from ..listener import AttemptListener, RunningAttempt
from ..protocol import AttemptOrder
from ..task_environment import encoded_variables
from ..threads import ThreadHosts
from ..workers import WorkerPool
from .connection import ZygoteConnection

OnStarted = Callable[[RunningAttempt], None]
OnStartFailed = Callable[[OSError], None]


@dataclass(slots=True, eq=False)
class OpenFlow:
    """A flow that a zygote has imported, with the processes that were forked from it."""

    spec: FlowSpec
    connection: ZygoteConnection
    shared: RunnerContext
    hosts: ThreadHosts
    workers: WorkerPool
    warnings: tuple[str, ...]  # about forking after the import
    printed: str  # the end of the import's output
    starting: int = 0  # attempts that have no process yet
    others: dict[str, OpenFlow] = field(default_factory=dict)  # the same in other interpreters: ``TaskSpec.python``

    @property
    def is_idle(self) -> bool:
        """Whether no attempt of the flow runs."""
        connection = self.connection
        is_busy = self.starting or connection.has_pending or len(connection.forked) > self.workers.idle_count
        return not is_busy and all(other.is_idle for other in self.others.values())

    def for_task(self, spec: TaskSpec) -> OpenFlow:
        """Return the flow in the interpreter of a task. Raises ProcessLookupError if that has died."""
        if spec.python is None:
            return self
        if spec.python not in self.others:
            raise ProcessLookupError(f"the zygote of python={spec.python!r} has died")
        return self.others[spec.python]


@dataclass(slots=True)
class Launch:
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
        match self._isolation:
            case "thread":
                attempt = self.flow.hosts.start_at_once(self.number, self.order, self.listener)
            case "worker":
                attempt = self.flow.workers.start_at_once(self.order, self.listener)
            case _ if self.flow.connection.link.is_writable:
                self._request()
                return True
        if attempt is not None:
            self._attach(attempt)
        return attempt is not None

    async def begin(self) -> None:
        """Begin once the zygote keeps up with its requests, or has forked the process that takes the attempt."""
        try:
            match self._isolation:
                case "thread":
                    self._attach(await self.flow.hosts.start(self.number, self.order, self.listener))
                case "worker":
                    self._attach(await self.flow.workers.start(self.order, self.listener))
                case _:
                    await self.flow.connection.link.wait_writable()
                    self._request()
        except OSError as error:
            self.failed(error)

    @property
    def _isolation(self) -> Isolation:
        spec = self.order.spec
        if spec.isolation == "thread":
            return "thread"
        shares_process = spec.isolation == "worker" or self.flow.shared.imports_per_process
        return "worker" if shares_process and spec.kind != "command" else "process"

    def _request(self) -> None:
        order = self.order
        frame = protocol.Start(self.number, protocol.encode_order(order), encoded_variables(order))
        self.flow.connection.request(frame, self)

    def _attach(self, attempt: Attempt) -> None:
        self.on_over(self.flow)
        self.on_started(attempt)

    # --- Responses of the zygote --------------------------------------------------------------------------------------

    def started(self, started: protocol.Started, fds: list[int]) -> ForkedProcess:
        """Run the attempt in its process."""
        process = ForkedProcess(started, fds)
        self._attach(Attempt(self.order, self.listener, self.flow.shared, process, started.forked_at))
        return process

    def failed(self, error: OSError) -> None:
        """Report that there is no process."""
        self.on_over(self.flow)
        self.on_failed(error)
