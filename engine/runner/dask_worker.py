"""The worker side of ``isolation="dask"``: runs an attempt in a process of its own, and ends it when its lease expires.

A worker is a threaded process, from which forking is unsafe. So the worker has a zygote for each flow, as an executor
has, and ends attempts by the same escalation. Dask itself cannot end a running function, and it resubmits a function
whose worker died. Three rules make that safe:

- *Offer*: what Dask queues is an offer of work, without an attempt. The worker that begins it asks the executor, which
  answers once per offer, with the order of an attempt that it has claimed by then.
- *Lease*: the executor renews it (``renew_leases``); after ``LEASE_SECONDS`` without a renewal the attempt is ended. So
  an attempt without messages for ``fence_seconds`` is certainly dead, and the next one may start.
- *Silence*: a zygote whose worker does not ping it for as long ends with its attempts: a worker that was stopped
  (SIGSTOP) enforces no lease.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from ... import __version__
from ..core.failures.attempt_end import lost_outcome, not_started_outcome, refused_outcome
from ..core.flow_difference import other_import
from ..core.outcome import Outcome
from ..core.spec import FlowSpec
from ..domain.event_codec import encode, kind_of
from ..domain.event_payloads import AttemptRetry, Payload
from ..domain.liveness import LEASE_SECONDS
from ..errors import FlowError
from ..statefile.processes import EXECUTOR_VARIABLE, boot_id, identity, pids
from .process import session_of
from .protocol import AttemptControls, AttemptListener, AttemptOrder, BadRow, Open
from .runner import Runner

FLUSH_SECONDS = 0.1
MESSAGE_BYTES = 64 * 1024  # of output in one message; the scheduler keeps the latest thousand messages
IDLE_SECONDS = 60.0  # an unused zygote ends after this
LEASE_CHECK_SECONDS = 0.5


class Permit(msgspec.Struct, frozen=True):
    """The attempt that a worker may start. ``target``: the flow, at its path on the host of the executor."""

    target: str
    order: AttemptOrder


class RemoteFlow(msgspec.Struct, frozen=True):
    """A flow as the executor has imported it.

    ``target``: at its path on the host of the executor; ``sources``: its files and those that it reads when it is made,
    by path; ``variables``: those of the environment that it declares.
    """

    target: str
    spec: FlowSpec
    sources: Mapping[str, bytes]
    variables: Mapping[str, str]


class Report(msgspec.Struct, frozen=True):
    """The end of a call. ``outcome`` None: no attempt was permitted, and none has started in this call.

    ``message_count``: how many messages were published before.
    """

    worker: str
    outcome: Outcome | None
    message_count: int


class OfferMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message about an offer: a method of AttemptListener, or a request of the worker; its arguments."""

    offer: str
    number: int
    method: str
    arguments: tuple[Any, ...]


class WorkerFacts(msgspec.Struct, frozen=True, array_like=True):
    """A worker. ``machine``: what its pids belong to: the boot and the namespace of its host."""

    version: str
    machine: str


def topic_of(executor_id: str) -> str:
    """Return the topic to which workers publish their messages (OfferMessage) for an executor."""
    return f"redrive-{executor_id}"


def machine_of_this_process() -> str:
    """Return a text that processes share if they see each other by their pids; empty if that is not known."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


# --- Called by the executor, over the cluster -------------------------------------------------------------------------


def run_attempt(offer: str, executor_id: str) -> bytes:
    """Ask the executor for an attempt, and run it to its end, in a thread of the worker. Returns a Report."""
    from distributed import get_worker

    worker = get_worker()
    attempt = LeasedRun(offer, partial(worker.log_event, topic_of(executor_id)))
    with _lock:
        _attempts[offer] = attempt
    try:
        permit, outcome = attempt.request_permit(worker.address), None
        if permit is not None:
            with _acquire_zygote(executor_id, permit.target) as zygote:
                attempt.zygote = zygote
                outcome = zygote.run(attempt, permit)
        return msgspec.msgpack.encode(Report(worker.address, outcome, attempt.message_count))
    finally:
        with _lock:
            if _attempts.get(offer) is attempt:  # Dask may have called it again
                del _attempts[offer]


def answer(offer: str, permit: bytes) -> None:
    """Answer the request of a worker. ``permit``: empty if it may start nothing."""
    attempt = _attempts.get(offer)
    if attempt is not None:
        attempt.answer(msgspec.msgpack.decode(permit, type=Permit) if permit else None)


def receive_flow(offer: str, data: bytes) -> None:
    """Receive the flow (RemoteFlow) that the worker has requested."""
    attempt = _attempts.get(offer)
    if attempt is not None and attempt.zygote is not None:
        zygote, flow = attempt.zygote, msgspec.msgpack.decode(data, type=RemoteFlow)
        zygote.loop.call_soon_threadsafe(zygote.receive_flow, flow)


def renew_leases(offers: list[str]) -> bytes:
    """Renew the leases of these attempts. Returns WorkerFacts: the worker answers."""
    with _lock:
        attempts = [_attempts[offer] for offer in offers if offer in _attempts]
    for attempt in attempts:
        attempt.renew_lease()
    return msgspec.msgpack.encode(WorkerFacts(__version__, machine_of_this_process()))


def call_attempt(offer: str, method: str, *arguments: object) -> None:
    """Call a method of the running attempt, ``cancel`` or ``extend``, if it is there."""
    attempt = _attempts.get(offer)
    if attempt is not None and attempt.zygote is not None and attempt.running is not None:
        attempt.zygote.loop.call_soon_threadsafe(getattr(attempt.running, method), *arguments)


def has_ended(pid: int, start_ticks: int | None) -> bool:
    """Whether the process of an attempt of this machine has ended, and with it all of its session.

    Its zygote kills what has left the session, also before it ends itself.
    """
    return identity(pid)[0] != start_ticks and all(session_of(other) != pid for other in pids())


# --- One attempt ------------------------------------------------------------------------------------------------------


class LeasedRun(AttemptListener):
    """A call on this worker, and its attempt. As the listener of that, it publishes what happens to the executor."""

    def __init__(self, offer: str, publish: Callable[[bytes], object]) -> None:
        self.zygote: WorkerZygote | None = None
        self.running: AttemptControls | None = None
        self.outcome: Future[Outcome] = Future()
        self.message_count = 0
        self._offer = offer
        self._publish = publish
        self._is_answered = threading.Event()
        self._permit: Permit | None = None
        self._renewed_at = _now()
        self._unsent = b""
        self._flush_timer: asyncio.TimerHandle | None = None

    def request_permit(self, address: str) -> Permit | None:
        """Wait for the attempt that the executor permits on this worker; None if it refuses or does not answer."""
        self._emit("permit_requested", address, __version__, machine_of_this_process())
        return self._permit if self._is_answered.wait(LEASE_SECONDS) else None

    def answer(self, permit: Permit | None) -> None:
        """Store the answer of the executor."""
        self._permit = permit
        self.renew_lease()
        self._is_answered.set()

    def request_flow(self) -> None:
        """Ask the executor for the flow."""
        self._emit("flow_requested")

    def refuse(self, why: str) -> None:
        """End the attempt before its start: this worker would run another flow."""
        self._emit("flow_refused", why)
        self.ended(lost_outcome(f"its worker imports another flow: {why}", is_blameless=True))

    def renew_lease(self) -> None:
        """Restart the lease."""
        self._renewed_at = _now()

    @property
    def is_lease_expired(self) -> bool:
        """Whether the executor may already count the attempt as lost."""
        return _now() - self._renewed_at > LEASE_SECONDS

    def on_start_done(self, starting: Future[None]) -> None:
        """End the attempt with an unexpected exception of its start."""
        if (error := starting.exception()) is not None:
            self.outcome.set_exception(error)

    def _emit(self, method: str, *arguments: object) -> None:
        message = OfferMessage(self._offer, self.message_count, method, arguments)
        self.message_count += 1
        self._publish(msgspec.msgpack.encode(message))

    # --- As a listener, in the loop of the zygote ---

    def started(self, pid: int, start_ticks: int | None) -> None:
        self._emit("started", pid, start_ticks)

    def output(self, data: bytes) -> None:
        self._unsent += data
        if len(self._unsent) > MESSAGE_BYTES and self.running is not None:
            self.running.pause_output()
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _emit_output(self) -> None:
        chunk, self._unsent = self._unsent[:MESSAGE_BYTES], self._unsent[MESSAGE_BYTES:]
        self._emit("output", chunk)

    def _flush(self) -> None:
        self._flush_timer = None
        self._emit_output()
        if self._unsent:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)
        elif self.running is not None:
            self.running.resume_output()

    def progress(self, done: int, total: int | None) -> None:
        self._emit("progress", done, total)

    def retried(self, retry: AttemptRetry) -> None:
        self._emit("retried", kind_of(retry), encode(retry))

    def quarantined(self, row: BadRow) -> None:
        self._emit("quarantined", row)

    def checkpointed(self, value: str) -> None:
        self._emit("checkpointed", value)

    def step(self, payload: Payload) -> None:
        self._emit("step", kind_of(payload), encode(payload))

    def ended(self, outcome: Outcome) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        while self._unsent:
            self._emit_output()
        self.outcome.set_result(outcome)


# --- The zygote -------------------------------------------------------------------------------------------------------


class WorkerZygote:
    """The zygote of one flow of one executor, and the event loop, in a thread of its own, that runs its attempts."""

    def __init__(self, executor_id: str, target: str) -> None:
        self._key = (executor_id, target)
        self.loop = asyncio.new_event_loop()
        self._runner = Runner.spawn(environment={EXECUTOR_VARIABLE: executor_id})
        self._opening = asyncio.Lock()
        self._flow: asyncio.Future[RemoteFlow] = self.loop.create_future()
        self._difference = ""  # of the flow as it is imported here
        self.users = 0  # guarded by the lock of the module
        threading.Thread(target=self.loop.run_forever, name="redrive", daemon=True).start()

    def run(self, attempt: LeasedRun, permit: Permit) -> Outcome:
        """Run an attempt and return its outcome. Called in threads of the worker."""
        starting = asyncio.run_coroutine_threadsafe(self._start(attempt, permit), self.loop)
        starting.add_done_callback(attempt.on_start_done)
        while not wait([attempt.outcome], LEASE_CHECK_SECONDS).done:
            if attempt.is_lease_expired and attempt.running is not None:
                self.loop.call_soon_threadsafe(attempt.running.cancel, "its executor is gone")
        return attempt.outcome.result()

    async def _start(self, attempt: LeasedRun, permit: Permit) -> None:
        try:
            await self._open(attempt)
            if self._difference:
                attempt.refuse(self._difference)
            else:
                attempt.running = await self._runner.start(permit.order, attempt)
        except FlowError as error:
            attempt.ended(refused_outcome(str(error)))
        except OSError as error:
            attempt.ended(not_started_outcome(error))

    async def _open(self, attempt: LeasedRun) -> None:
        """Open the flow in the zygote, as the executor has it. Raises FlowError."""
        async with self._opening:
            if self._runner.is_open:
                return
            if not self._flow.done():
                attempt.request_flow()
            try:
                flow = await asyncio.wait_for(asyncio.shield(self._flow), LEASE_SECONDS)
            except TimeoutError:
                raise OSError("the flow did not arrive from the executor") from None
            request = Open(flow.target, flow.spec.params, sources=flow.sources, variables=flow.variables)
            imported = await self._runner.open(request)
            self._difference = other_import(flow.spec, imported)

    def receive_flow(self, flow: RemoteFlow) -> None:
        """Receive the flow, perhaps once more. Called in the loop of the zygote."""
        if not self._flow.done():
            self._flow.set_result(flow)

    def close_when_idle(self) -> None:
        """End the zygote unless an attempt comes within ``IDLE_SECONDS``."""
        self.loop.call_soon_threadsafe(self.loop.call_later, IDLE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        with _lock:
            if self.users or _zygotes.get(self._key) is not self:
                return
            del _zygotes[self._key]
        closing = self.loop.create_task(self._runner.close())
        closing.add_done_callback(lambda _: self.loop.stop())


_lock = threading.Lock()
_attempts: dict[str, LeasedRun] = {}  # by offer
_zygotes: dict[tuple[str, str], WorkerZygote] = {}  # by executor and flow


@contextmanager
def _acquire_zygote(executor_id: str, target: str) -> Iterator[WorkerZygote]:
    """The zygote of this executor and flow; it stays open while the ``with`` block runs."""
    with _lock:
        zygote = _zygotes.get((executor_id, target))
        if zygote is None:
            zygote = _zygotes[executor_id, target] = WorkerZygote(executor_id, target)
        zygote.users += 1
    try:
        yield zygote
    finally:
        with _lock:
            zygote.users -= 1
        zygote.close_when_idle()


def _now() -> float:
    """Return the seconds on a clock that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
