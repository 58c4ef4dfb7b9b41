"""The worker side of ``isolation="dask"``: runs an attempt in a process of its own, and ends it when its lease expires.

A worker is a threaded process, from which forking is unsafe. So the worker has a zygote for each flow, as an executor
has, and ends attempts by the same escalation. Dask itself cannot end a running function, and it resubmits a function
whose worker died. Two rules make that safe:

- *Permission*: the process starts only after the executor has permitted this worker; it permits one worker per attempt.
- *Lease*: the executor renews it (``renew_leases``); after ``LEASE_SECONDS`` without a renewal the attempt is ended. So
  an attempt without messages for ``fence_seconds`` is certainly dead, and the next one may start.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import msgspec

from ..core.outcome import Outcome
from ..domain.event_codec import encode, kind_of
from ..domain.event_payloads import AttemptRetry, Payload
from ..domain.states import LEASE_SECONDS
from ..errors import FlowError
from ..statefile.processes import EXECUTOR_VARIABLE
from .listener import AttemptListener, BadRow, RunningAttempt
from .outcome_of_exit import not_started, refused
from .protocol import AttemptOrder
from .zygote.client import Runner

FLUSH_SECONDS = 0.1
MESSAGE_BYTES = 64 * 1024  # of output in one message; the scheduler keeps the latest thousand messages
IDLE_SECONDS = 60.0  # an unused zygote ends after this
LEASE_CHECK_SECONDS = 0.5


class Request(msgspec.Struct, frozen=True):
    """An attempt to run. ``topic``: where its messages are published."""

    executor_id: str
    topic: str
    target: str
    params: dict[str, Any]
    code_hash: str | None
    order: AttemptOrder


class Report(msgspec.Struct, frozen=True):
    """The end of an attempt. ``message_count``: how many messages about it were published before."""

    outcome: Outcome
    message_count: int


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A message about the attempt ``token``: a method of AttemptListener (or "permission_requested"), its arguments."""

    token: str
    number: int
    method: str
    arguments: tuple[Any, ...]


# --- Called by the executor, over the cluster -------------------------------------------------------------------------


def run_attempt(data: bytes) -> bytes:
    """Run an attempt to its end, in a thread of the worker. Empty: it was not permitted, and never started."""
    from distributed import get_worker

    request = msgspec.msgpack.decode(data, type=Request)
    worker = get_worker()
    attempt = LeasedRun(request, lambda message: worker.log_event(request.topic, message))
    with _lock:
        _attempts[request.order.token] = attempt
    try:
        if not attempt.request_permission(worker.address):
            return b""
        with _acquire_zygote(request) as zygote:
            attempt.zygote = zygote
            return msgspec.msgpack.encode(Report(zygote.run(attempt), attempt.message_count))
    finally:
        with _lock:
            if _attempts.get(request.order.token) is attempt:  # a later call may have come, after an absence
                del _attempts[request.order.token]


def set_permission(token: str, is_permitted: bool) -> None:
    """Answer the permission request of an attempt."""
    attempt = _attempts.get(token)
    if attempt is not None:
        attempt.set_permission(is_permitted)


def renew_leases(tokens: list[str]) -> None:
    """Renew the leases of these attempts."""
    with _lock:
        attempts = [_attempts[token] for token in tokens if token in _attempts]
    for attempt in attempts:
        attempt.renew_lease()


async def call_attempt(token: str, method: str, *arguments: object) -> object:
    """Call a method of the running attempt (``cancel``, ``extend``, ``dump_stack``, ...); None if it is gone."""
    attempt = _attempts.get(token)
    if attempt is None or attempt.zygote is None or attempt.running is None:
        return None
    return await attempt.zygote.call(attempt.running, method, arguments)


# --- One attempt ------------------------------------------------------------------------------------------------------


class LeasedRun(AttemptListener):
    """One attempt on this worker. As its listener, it publishes what happens to the executor."""

    def __init__(self, request: Request, publish: Callable[[bytes], None]) -> None:
        self.request = request
        self.zygote: WorkerZygote | None = None
        self.running: RunningAttempt | None = None
        self.outcome: Future[Outcome] = Future()
        self.message_count = 0
        self._publish = publish
        self._is_answered = threading.Event()
        self._is_permitted = False
        self._renewed_at = time.monotonic()
        self._unsent = b""
        self._flush_timer: asyncio.TimerHandle | None = None

    def request_permission(self, address: str) -> bool:
        """Wait until the executor permits or refuses a start on this worker; False if it does not answer."""
        self._emit("permission_requested", address)
        return self._is_answered.wait(LEASE_SECONDS) and self._is_permitted

    def set_permission(self, is_permitted: bool) -> None:
        """Store the answer of the executor."""
        self._is_permitted = is_permitted
        self.renew_lease()
        self._is_answered.set()

    def renew_lease(self) -> None:
        """Restart the lease."""
        self._renewed_at = time.monotonic()

    @property
    def is_lease_expired(self) -> bool:
        """Whether the executor may already count the attempt as lost."""
        return time.monotonic() - self._renewed_at > LEASE_SECONDS

    def on_start_done(self, starting: Future[None]) -> None:
        """End the attempt with an unexpected exception of its start."""
        if (error := starting.exception()) is not None:
            self.outcome.set_exception(error)

    def _emit(self, method: str, *arguments: object) -> None:
        message = Message(self.request.order.token, self.message_count, method, arguments)
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

    def __init__(self, request: Request) -> None:
        self._request = request
        self._loop = asyncio.new_event_loop()
        self._runner = Runner.spawn(environment={EXECUTOR_VARIABLE: request.executor_id})
        self._opening = asyncio.Lock()
        self.users = 0  # guarded by the lock of the module
        threading.Thread(target=self._loop.run_forever, name="redrive", daemon=True).start()

    def run(self, attempt: LeasedRun) -> Outcome:
        """Run an attempt and return its outcome. Called in threads of the worker."""
        starting = asyncio.run_coroutine_threadsafe(self._start(attempt), self._loop)
        starting.add_done_callback(attempt.on_start_done)
        while not wait([attempt.outcome], LEASE_CHECK_SECONDS).done:
            if attempt.is_lease_expired and attempt.running is not None:
                self._loop.call_soon_threadsafe(attempt.running.cancel, "its executor is gone")
        return attempt.outcome.result()

    async def _start(self, attempt: LeasedRun) -> None:
        try:
            await self._open()
            attempt.running = await self._runner.start(attempt.request.order, attempt)
        except FlowError as error:
            attempt.ended(refused(str(error)))
        except OSError as error:
            attempt.ended(not_started(error))

    async def _open(self) -> None:
        """Open the flow in the zygote. Raises FlowError if its code differs from the executor's."""
        async with self._opening:
            if self._runner.is_open:
                return
            request = self._request
            spec = await self._runner.open(request.target, request.params)
            if spec.code_hash != request.code_hash:
                await self._runner.close()
                raise FlowError(f"{request.target} is another version on this worker than where the executor runs")

    async def call(self, attempt: RunningAttempt, method: str, arguments: tuple[object, ...]) -> object:
        """Call a method of an attempt in the loop of the zygote. Called in the loop of the worker."""

        async def call() -> object:
            result = getattr(attempt, method)(*arguments)
            return await result if asyncio.iscoroutine(result) else result

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))

    def close_when_idle(self) -> None:
        """End the zygote unless an attempt comes within ``IDLE_SECONDS``."""
        self._loop.call_soon_threadsafe(self._loop.call_later, IDLE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        with _lock:
            if self.users or _zygotes.get(_key(self._request)) is not self:
                return
            del _zygotes[_key(self._request)]
        closing = self._loop.create_task(self._runner.close())
        closing.add_done_callback(lambda _: self._loop.stop())


_lock = threading.Lock()
_attempts: dict[str, LeasedRun] = {}  # by token
_zygotes: dict[tuple[str, str], WorkerZygote] = {}


def _key(request: Request) -> tuple[str, str]:
    return request.executor_id, request.target


@contextmanager
def _acquire_zygote(request: Request) -> Iterator[WorkerZygote]:
    """The zygote of this executor and flow; it stays open while the ``with`` block runs."""
    with _lock:
        zygote = _zygotes.get(_key(request))
        if zygote is None:
            zygote = _zygotes[_key(request)] = WorkerZygote(request)
        zygote.users += 1
    try:
        yield zygote
    finally:
        with _lock:
            zygote.users -= 1
        zygote.close_when_idle()
