"""The executor side of ``isolation="dask"``: attempts on the workers of a Dask cluster.

Dask provides the queue and the workers. This module and ``dask_worker.py`` add a deadline that ends the process on the
worker, one start per attempt, and a lease, after which a silent attempt is certainly dead. Workers need redrive, and
the files of the flow at the same path.

Where the cluster is away, nothing here fails: an attempt that no worker was permitted to start waits, and is queued
again in the cluster that answers next; it may be withdrawn at once. One that a worker was permitted to start is lost
when its lease has certainly expired. Dask's own client gives up for good after a few seconds; it is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from ..core.outcome import Outcome, OutcomeKind
from ..core.spec import FlowSpec
from ..domain.event_codec import decode
from ..domain.event_payloads import ExecutorChange, ExecutorChanged
from ..domain.states import LEASE_RENEWAL_SECONDS, fence_seconds
from ..domain.text import counted
from ..errors import FlowError
from . import dask_worker
from .dask_worker import Message, Report, Request
from .listener import AttemptListener, RunningAttempt, ignore
from .outcome_of_exit import lost, refused
from .protocol import AttemptOrder

CONNECT_SECONDS = 5.0  # also of the client that reconnects: a stop waits for so long
CLOSE_SECONDS = CONNECT_SECONDS + 2
WATCH_SECONDS = 1.0  # how often the connection is looked at
NO_WORKER_SECONDS = 10.0  # without a worker that takes an attempt, until people are told
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
        self.queued_at: float | None = None  # in this cluster, on the clock of the loop
        self.unrenewed_since: float | None = None  # its lease is not renewed any more
        self.interrupted = asyncio.Event()  # its future tells nothing any more: withdrawn, or the connection is lost
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
            self.interrupted.set()
            self._cluster.remove(self)
        else:
            self._call("cancel", reason)
            self._cluster.end_at_expiry(self)
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
    """The connection to one Dask scheduler and its workers.

    ``make_client()``: connects again after the scheduler was away; ``report(payload)``: tells people what changed.
    """

    def __init__(
        self,
        client: Any,
        executor_id: str,
        target: str,
        params: Mapping[str, Any],
        flow: FlowSpec,
        *,
        make_client: Callable[[], Awaitable[Any]] | None = None,
        report: Callable[[ExecutorChanged], object] = ignore,
    ) -> None:
        self._client = client
        self._make_client = make_client
        self._report = report
        self._is_there = asyncio.Event()  # the scheduler answers
        self._is_there.set()
        self._has_told_wait = False
        self._executor_id = executor_id
        self._target = target
        self._params = dict(params)
        self._code_hash = flow.code_hash
        self._topic = f"redrive-{executor_id}"
        self._attempts: dict[str, Submission] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        client.subscribe_topic(self._topic, self._on_event)
        self._spawn(self._renew_leases())
        self._spawn(self._watch())

    def start(self, order: AttemptOrder, listener: AttemptListener) -> Submission:
        """Queue an attempt for the next worker that has room."""
        attempt = self._attempts[order.token] = Submission(self, order, listener)
        self._submit(attempt)
        self._spawn(self._wait_for_end(attempt))
        return attempt

    def _submit(self, attempt: Submission) -> None:
        """Queue an attempt, unless the cluster is away."""
        order = attempt.order
        attempt.future, attempt.queued_at = None, None
        attempt.interrupted.clear()
        if not self._is_there.is_set():
            return
        request = Request(self._executor_id, self._topic, self._target, self._params, self._code_hash, order)
        try:
            attempt.future = self._client.submit(
                dask_worker.run_attempt,
                msgspec.msgpack.encode(request),
                key=f"redrive-{order.task}-{order.token}",
                pure=False,
                retries=0,
            )
        except Exception:  # whatever the connection raises: the cluster is away
            self._lose_scheduler()
        else:
            attempt.queued_at = asyncio.get_running_loop().time()

    async def _wait_for_end(self, attempt: Submission) -> None:
        outcome = lost("the cluster could not say how it ended")
        try:
            outcome = await self._outcome(attempt)
        finally:
            del self._attempts[attempt.order.token]
            attempt.end(outcome)

    async def _outcome(self, attempt: Submission) -> Outcome:
        status, value = await self._wait_somewhere(attempt)
        if isinstance(value, bytes) and value:
            report = msgspec.msgpack.decode(value, type=Report)
            await attempt.wait_for_messages(report.message_count)
            return report.outcome
        if attempt.is_withdrawn:
            return Outcome(OutcomeKind.CANCELLED)
        if attempt.worker is None:
            return _start_failure(status, value)
        await asyncio.sleep(self._stop_renewing(attempt))
        return lost(f"its worker {attempt.worker} is gone")

    async def _wait_somewhere(self, attempt: Submission) -> tuple[str, bytes | BaseException | None]:
        """Wait for the end. An attempt that no worker was permitted to start is queued again after an absence."""
        while True:
            if attempt.future is None:
                await _first_of(self._is_there, attempt.interrupted)
            else:
                ended = await _wait_for_future(attempt.future, attempt.interrupted)
                is_lost = ended is None or (ended[0] not in ("finished", "error") and attempt.worker is None)
                if ended is not None and not is_lost:
                    return ended
                await _first_of(attempt.interrupted, seconds=WATCH_SECONDS)  # the watch sees why
            if attempt.is_withdrawn or attempt.worker is not None:
                return "lost", None
            self._submit(attempt)

    # --- The lease ----------------------------------------------------------------------------------------------------

    def _stop_renewing(self, attempt: Submission) -> float:
        """Return the seconds until the attempt is certainly dead."""
        now = asyncio.get_running_loop().time()
        if attempt.unrenewed_since is None:
            attempt.unrenewed_since = now
        return max(0.0, attempt.unrenewed_since + fence_seconds(attempt.order.spec.grace_seconds) - now)

    def end_at_expiry(self, attempt: Submission) -> None:
        """Let the lease expire: an attempt that is cancelled ends by then, also if nobody can say so."""
        seconds = self._stop_renewing(attempt)
        asyncio.get_running_loop().call_later(seconds, attempt.interrupted.set)

    # --- The scheduler ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Notice that the scheduler is away, and connect again until the connection is closed."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._is_there.is_set() and self._client.status == "running":
                self._report_waits()
                continue
            self._lose_scheduler()
            if self._make_client is not None and self._client.status != "connecting":  # else it closes itself soon
                await _close(self._client)
                try:
                    self._client = await self._make_client()
                except FlowError:
                    continue
                self._client.subscribe_topic(self._topic, self._on_event)
                self._is_there.set()
                self._tell("the Dask scheduler answers again")

    def _lose_scheduler(self) -> None:
        if not self._is_there.is_set():
            return
        self._is_there.clear()
        self._tell("no Dask scheduler answers: what waits for a worker goes on waiting, and what ran there is lost")
        for attempt in self._attempts.values():
            if attempt.worker is not None:
                self._stop_renewing(attempt)
            attempt.interrupted.set()

    def _report_waits(self) -> None:
        """Tell once that attempts wait for a worker."""
        since = asyncio.get_running_loop().time() - NO_WORKER_SECONDS
        waiting = [one for one in self._attempts.values() if one.worker is None and one.queued_at is not None]
        is_long = any(one.queued_at is not None and one.queued_at <= since for one in waiting)
        if is_long and not self._has_told_wait:
            workers = len(self._client.scheduler_info()["workers"])
            self._tell(f"{counted(len(waiting), 'attempt')} in the Dask cluster with no free worker, of {workers}")
        self._has_told_wait = is_long

    def _tell(self, what: str) -> None:
        self._report(ExecutorChanged(ExecutorChange.CLUSTER_CHANGED, how=what))

    # --- Calls to workers ---------------------------------------------------------------------------------------------

    def remove(self, attempt: Submission) -> None:
        """Remove an attempt from the queue."""
        if attempt.future is not None:
            self._spawn(self._cancel(attempt.future))

    async def _cancel(self, future: DaskFuture) -> None:
        try:
            await self._client.cancel([future], force=True)
        except Exception:  # whatever the connection raises: it is lost, and the scheduler forgets what was queued
            return

    def call(self, worker: str, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on a worker without waiting for the result; a worker that is gone is ignored here."""
        self._spawn(self.request(worker, function, *arguments))

    async def request(self, worker: str, function: Callable[..., object], *arguments: object) -> object:
        """Call a function on a worker and return its result; None if the worker does not answer."""
        try:
            results: dict[str, object] = await self._client.run(
                function, *arguments, workers=[worker], on_error="ignore"
            )
        except Exception:  # no scheduler, no such worker: whatever the connection raises
            return None
        return results.get(worker)

    async def _renew_leases(self) -> None:
        """Renew the leases of all attempts until the connection is closed."""
        while True:
            await asyncio.sleep(LEASE_RENEWAL_SECONDS)
            renewed = [one for one in self._attempts.values() if one.unrenewed_since is None]
            for worker in {attempt.worker for attempt in renewed} - {None}:
                tokens = [attempt.order.token for attempt in renewed if attempt.worker == worker]
                self.call(str(worker), dask_worker.renew_leases, tokens)

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
        await _close(self._client)


async def connect(
    address: str,
    executor_id: str,
    target: str,
    params: Mapping[str, object],
    flow: FlowSpec,
    report: Callable[[ExecutorChanged], object] = ignore,
) -> DaskCluster:
    """Connect to the scheduler at ``address``. Raises FlowError that says what to do."""

    async def make_client() -> Any:
        return await _connect(address)

    client = await make_client()
    return DaskCluster(client, executor_id, target, params, flow, make_client=make_client, report=report)


async def _connect(address: str) -> Any:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise FlowError("tasks with isolation='dask' need Dask: pip install 'redrive[dask]'") from None
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # the journal says when the scheduler is away
    client = distributed.Client(address, asynchronous=True, timeout=CONNECT_SECONDS, set_as_default=False)
    try:
        await client
    except (OSError, TimeoutError, ValueError) as error:
        await _close(client)
        why = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
        raise FlowError(f"no Dask scheduler answers at {address!r}: {why}") from None
    return client


async def _close(client: Any) -> None:
    """Close a client, which may wait for a scheduler that does not answer."""
    with contextlib.suppress(Exception):  # whatever the connection raises
        await asyncio.wait_for(client.close(), CLOSE_SECONDS)


async def _first_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait for one of several events, at most some seconds."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _wait_for_future(
    future: DaskFuture, interrupted: asyncio.Event
) -> tuple[str, bytes | BaseException | None] | None:
    """Return the final status of a Dask future, and its result or exception; None: it was interrupted before."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set))
    await _first_of(done, interrupted)
    if not done.is_set():
        return None
    if future.status == "finished":
        return future.status, await future.result()
    return future.status, await future.exception() if future.status == "error" else None


def _start_failure(status: str, error: object) -> Outcome:
    """No worker started the attempt: a loss without blame, unless the workers cannot run it at all."""
    if status == "error":
        return refused(f"no worker could run it: {type(error).__name__}: {error}")
    return lost("the cluster has lost it before it started", is_blameless=True)
