"""The executor side of ``isolation="dask"``: attempts on the workers of a Dask cluster.

Dask provides the queue and the workers. This module and ``dask_worker.py`` add a deadline that ends the process on the
worker, one start per attempt, and a lease, after which a silent attempt is certainly dead. Workers need redrive, and
the files of the flow at the same path.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from ..core.outcome import Outcome, OutcomeKind
from ..core.spec import FlowSpec
from ..domain.event_codec import decode
from ..domain.states import LEASE_RENEWAL_SECONDS, fence_seconds
from ..errors import FlowError
from . import dask_worker
from .dask_worker import Message, Report, Request
from .listener import AttemptListener, RunningAttempt
from .outcome_of_exit import lost, refused
from .protocol import AttemptOrder

CONNECT_SECONDS = 10.0
LATE_MESSAGES_SECONDS = 5.0  # how long the end of an attempt waits for messages that were sent before it
STACK_SECONDS = 5.0


class DaskFuture(Protocol):
    """The part of ``distributed.Future`` that is used here; it is asynchronous, as its client is."""

    status: str

    def add_done_callback(self, callback: Callable[[object], object], /) -> None: ...

    def result(self) -> Coroutine[object, object, bytes]: ...

    def exception(self) -> Coroutine[object, object, BaseException]: ...


class Submission(RunningAttempt):
    """An attempt that is queued in the cluster, or runs on a worker."""

    def __init__(self, cluster: DaskCluster, order: AttemptOrder, listener: AttemptListener) -> None:
        super().__init__(pid=0)  # it has no process on this host
        self.order = order
        self.worker: str | None = None  # address of the worker that was permitted to start it
        self.future: DaskFuture | None = None
        self.is_withdrawn = False
        self._cluster = cluster
        self._listener = listener
        self._messages: dict[int, Message] = {}  # that arrived before an earlier one, by number
        self._next = 0
        self._has_all_messages = asyncio.Event()
        self._message_count: int | None = None
        self._is_over = False

    # --- Messages of its worker ---------------------------------------------------------------------------------------

    def on_message(self, message: Message) -> None:
        """Forward messages to the listener in the order of their numbers; they may arrive in another."""
        if message.method == "permission_requested":
            self._answer_permission(message.arguments[0])
        if self.worker is None or message.number < self._next:
            return
        self._messages[message.number] = message
        while not self._is_over and self._next in self._messages:
            self._forward(self._messages.pop(self._next))
            self._next += 1
        if self._message_count is not None and self._next >= self._message_count:
            self._has_all_messages.set()

    def _answer_permission(self, address: str) -> None:
        """Permit the first worker that asks. Dask resubmits a function whose worker died: later ones are refused."""
        is_first = self.worker is None and not self.is_withdrawn and not self._is_over
        if is_first:
            self.worker = address
        self._cluster.call(address, dask_worker.set_permission, self.order.token, is_first)

    def _forward(self, message: Message) -> None:
        match message.method:
            case "permission_requested":
                pass
            case "started":
                self._listener.started_remotely(str(self.worker), *message.arguments)
            case "step" | "retried" as method:
                getattr(self._listener, method)(decode(*message.arguments))
            case method:
                getattr(self._listener, method)(*message.arguments)

    async def wait_for_messages(self, count: int) -> None:
        """Wait until all ``count`` messages of the worker were forwarded, at most ``LATE_MESSAGES_SECONDS``."""
        self._message_count = count
        if self._next < count:
            try:
                await asyncio.wait_for(self._has_all_messages.wait(), LATE_MESSAGES_SECONDS)
            except TimeoutError:
                return

    def end(self, outcome: Outcome) -> None:
        """Report the outcome, once."""
        if not self._is_over:
            self._is_over = True
            self._listener.ended(outcome)

    # --- Control ------------------------------------------------------------------------------------------------------

    def cancel(self, reason: str) -> bool:
        """Start the escalation on the worker; remove the attempt if it is still queued."""
        if self._is_over:
            return False
        if self.worker is None:
            self.is_withdrawn = True
            self._cluster.remove(self)
        else:
            self._call("cancel", reason)
        return True

    def extend(self, seconds: float) -> bool:
        """Move the deadline."""
        if self.worker is None or self._is_over or self.order.spec.timeout is None:
            return False
        self._call("extend", seconds)
        return True

    async def dump_stack(self) -> str:
        """Return the stacks of the attempt; empty if it is queued or does not answer."""
        if self.worker is None:
            return ""
        try:
            async with asyncio.timeout(STACK_SECONDS):
                dump = await self._cluster.request(
                    self.worker, dask_worker.call_attempt, self.order.token, "dump_stack"
                )
        except TimeoutError:
            return ""
        return str(dump or "")

    def pause_output(self) -> None:
        """Do nothing: the worker itself bounds what it sends."""

    def resume_output(self) -> None:
        """Do nothing."""

    def _call(self, method: str, *arguments: object) -> None:
        assert self.worker is not None
        self._cluster.call(self.worker, dask_worker.call_attempt, self.order.token, method, *arguments)


class DaskCluster:
    """The connection to one Dask scheduler and its workers."""

    def __init__(self, client: Any, executor_id: str, target: str, params: Mapping[str, Any], flow: FlowSpec) -> None:
        self._client = client
        self._executor_id = executor_id
        self._target = target
        self._params = dict(params)
        self._code_hash = flow.code_hash
        self._topic = f"redrive-{executor_id}"
        self._attempts: dict[str, Submission] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        client.subscribe_topic(self._topic, self._on_event)
        self._spawn(self._renew_leases())

    def start(self, order: AttemptOrder, listener: AttemptListener) -> Submission:
        """Queue an attempt for the next worker that has room."""
        attempt = self._attempts[order.token] = Submission(self, order, listener)
        request = Request(self._executor_id, self._topic, self._target, self._params, self._code_hash, order)
        attempt.future = self._client.submit(
            dask_worker.run_attempt,
            msgspec.msgpack.encode(request),
            key=f"redrive-{order.task}-{order.token}",
            pure=False,
            retries=0,
        )
        self._spawn(self._wait_for_end(attempt))
        return attempt

    async def _wait_for_end(self, attempt: Submission) -> None:
        outcome = lost("the cluster could not say how it ended")
        try:
            outcome = await self._outcome(attempt)
        finally:
            del self._attempts[attempt.order.token]
            attempt.end(outcome)

    async def _outcome(self, attempt: Submission) -> Outcome:
        assert attempt.future is not None
        status, value = await _wait_for_future(attempt.future)
        if isinstance(value, bytes) and value:
            report = msgspec.msgpack.decode(value, type=Report)
            await attempt.wait_for_messages(report.message_count)
            return report.outcome
        if attempt.is_withdrawn:
            return Outcome(OutcomeKind.CANCELLED)
        if attempt.worker is None:
            return _start_failure(status, value)
        await asyncio.sleep(fence_seconds(attempt.order.spec.grace_seconds))
        return lost(f"its worker {attempt.worker} is gone")

    # --- Calls to workers ---------------------------------------------------------------------------------------------

    def remove(self, attempt: Submission) -> None:
        """Remove an attempt from the queue."""
        self._spawn(self._client.cancel([attempt.future], force=True))

    def call(self, worker: str, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on a worker without waiting for the result; a worker that is gone is ignored here."""
        self._spawn(self.request(worker, function, *arguments))

    async def request(self, worker: str, function: Callable[..., object], *arguments: object) -> object:
        """Call a function on a worker and return its result; None if the worker does not answer."""
        try:
            results: dict[str, object] = await self._client.run(
                function, *arguments, workers=[worker], on_error="ignore"
            )
        except (OSError, ValueError):  # no scheduler, no such worker
            return None
        return results.get(worker)

    async def _renew_leases(self) -> None:
        """Renew the leases of all attempts until the connection is closed."""
        while True:
            await asyncio.sleep(LEASE_RENEWAL_SECONDS)
            for worker in {attempt.worker for attempt in self._attempts.values()} - {None}:
                self.call(str(worker), dask_worker.renew_lease, self._executor_id)

    def _on_event(self, event: tuple[float, bytes]) -> None:
        message = msgspec.msgpack.decode(event[1], type=Message)
        attempt = self._attempts.get(message.token)
        if attempt is not None:
            attempt.on_message(message)

    def _spawn(self, work: Coroutine[object, object, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Leave the cluster. Attempts that still run there end when their lease expires."""
        for task in self._tasks:
            task.cancel()
        for attempt in list(self._attempts.values()):
            attempt.end(lost("the executor ended"))
        await self._client.close()


async def connect(
    address: str, executor_id: str, target: str, params: Mapping[str, object], flow: FlowSpec
) -> DaskCluster:
    """Connect to the scheduler at ``address``. Raises FlowError that says what to do."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise FlowError("tasks with isolation='dask' need Dask: pip install 'redrive[dask]'") from None
    client = distributed.Client(address, asynchronous=True, timeout=CONNECT_SECONDS, set_as_default=False)
    try:
        await client
    except (OSError, TimeoutError, ValueError) as error:
        await client.close()
        why = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
        raise FlowError(f"no Dask scheduler answers at {address!r}: {why}") from None
    return DaskCluster(client, executor_id, target, params, flow)


async def _wait_for_future(future: DaskFuture) -> tuple[str, bytes | BaseException | None]:
    """Return the final status of a Dask future, and its result or exception."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
    await done.wait()
    if future.status == "finished":
        return future.status, await future.result()
    return future.status, await future.exception() if future.status == "error" else None


def _start_failure(status: str, error: object) -> Outcome:
    """No worker started the attempt: a loss without blame, unless the workers cannot run it at all."""
    if status == "error":
        return refused(f"no worker could run it: {type(error).__name__}: {error}")
    return lost("the cluster has lost it before it started", is_blameless=True)
