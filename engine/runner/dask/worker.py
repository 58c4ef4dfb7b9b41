"""What runs on a worker of a Dask cluster: an attempt in a process of its own, ended when nobody waits for it any more.

A worker is a threaded process, from which nothing can be forked safely, so each has a zygote of its own, as an executor
has, and the same ladder ends what hangs. Dask alone knows neither: it cannot end a running function, and it starts one
anew, unasked, when its worker died. Two rules fence that in:

- *Permission*: the process starts only after the executor has said yes to this worker; it says so once per attempt.
- *Lease*: the executor renews it (``renew``); once ``LEASE_SECONDS`` have passed without, the attempt is ended. So
  after ``core.liveness.fence_seconds`` an attempt of which nothing was heard is certainly dead: the next may start.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

import msgspec

from ...core.outcome import Outcome
from ...domain.event_codec import encode, kind_of
from ...domain.event_payloads import AttemptRetry, Payload
from ...domain.liveness import LEASE_SECONDS
from ...errors import FlowError
from ...statefile.processes import EXECUTOR_VARIABLE
from ..attempt import RunningAttempt
from ..listener import NullListener
from ..outcome_of_exit import not_started, refused
from ..protocol import AttemptOrder
from ..zygote.client import Runner

FLUSH_SECONDS = 0.1
MESSAGE_BYTES = 64 * 1024  # of output in one message; the scheduler keeps the latest thousand
IDLE_SECONDS = 60.0  # then the zygote of a flow goes
LOOK_SECONDS = 0.5


class Errand(msgspec.Struct, frozen=True):
    """An attempt, and whose it is. ``topic``: where to tell of it."""

    executor_id: str
    topic: str
    target: str
    params: dict[str, Any]
    code_hash: str | None
    order: AttemptOrder


class Report(msgspec.Struct, frozen=True):
    """The end of an attempt. ``told``: how many messages about it were sent before."""

    outcome: Outcome
    told: int


class Told(msgspec.Struct, frozen=True, array_like=True):
    """Something about the attempt ``token``: a method of AttemptListener and its arguments."""

    token: str
    number: int
    what: str
    arguments: tuple[Any, ...]


# --- Called by the executor, over the cluster -------------------------------------------------------------------------


def attend(data: bytes) -> bytes:
    """Run an attempt to its end, in a thread of the worker. Empty: it was not permitted, and never started."""
    from distributed import get_worker

    errand = msgspec.msgpack.decode(data, type=Errand)
    worker = get_worker()
    charge = WorkerAttempt(errand, lambda told: worker.log_event(errand.topic, told))
    with _lock:
        _charges[errand.order.token] = charge
    try:
        if not charge.ask(worker.address):
            return b""
        with _station(errand) as station:
            charge.station = station
            return msgspec.msgpack.encode(Report(station.attend(charge), charge.told))
    finally:
        with _lock:
            _charges.pop(errand.order.token, None)


def permit(token: str, is_permitted: bool) -> None:
    """Answer a worker that has asked whether it shall start an attempt."""
    charge = _charges.get(token)
    if charge is not None:
        charge.answer(is_permitted)


def renew(executor_id: str) -> None:
    """The executor lives, and waits for its attempts."""
    with _lock:
        charges = [charge for charge in _charges.values() if charge.errand.executor_id == executor_id]
    for charge in charges:
        charge.renew()


async def order(token: str, what: str, *arguments: Any) -> Any:
    """Call a method of the running attempt: ``cancel``, ``extend``, ``dump_stack``, ..."""
    charge = _charges.get(token)
    if charge is None or charge.station is None or charge.attempt is None:
        return None
    return await charge.station.call(charge.attempt, what, arguments)


# --- One attempt ------------------------------------------------------------------------------------------------------


class WorkerAttempt(NullListener):
    """One attempt that this worker looks after. As its listener, it tells the executor what it hears."""

    def __init__(self, errand: Errand, tell: Callable[[bytes], None]) -> None:
        self.errand = errand
        self.station: Station | None = None
        self.attempt: RunningAttempt | None = None
        self.outcome: Future[Outcome] = Future()
        self.told = 0
        self._tell_executor = tell
        self._answered = threading.Event()
        self._is_permitted = False
        self._renewed_at = time.monotonic()
        self._unsent = b""
        self._flush_timer: asyncio.TimerHandle | None = None

    def ask(self, address: str) -> bool:
        """Whether the executor wants it to be started here; False if it does not answer."""
        self._tell("asked", address)
        return self._answered.wait(LEASE_SECONDS) and self._is_permitted

    def answer(self, is_permitted: bool) -> None:
        """What the executor said."""
        self._is_permitted = is_permitted
        self.renew()
        self._answered.set()

    def renew(self) -> None:
        """Somebody waits for it."""
        self._renewed_at = time.monotonic()

    @property
    def is_forsaken(self) -> bool:
        """Whether nobody has asked for it for so long that the executor may count it as lost."""
        return time.monotonic() - self._renewed_at > LEASE_SECONDS

    def check(self, starting: Future[None]) -> None:
        """What went wrong in here is the end of the attempt, too."""
        if (error := starting.exception()) is not None:
            self.outcome.set_exception(error)

    def _tell(self, what: str, *arguments: Any) -> None:
        told = Told(self.errand.order.token, self.told, what, arguments)
        self.told += 1
        self._tell_executor(msgspec.msgpack.encode(told))

    # --- As a listener, in the loop of the station ---

    def started(self, pid: int, start_ticks: int | None) -> None:
        self._tell("started", pid, start_ticks)

    def output(self, data: bytes) -> None:
        self._unsent += data
        if len(self._unsent) > MESSAGE_BYTES and self.attempt is not None:
            self.attempt.pause_output()
        if self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flush_timer = None
        piece, self._unsent = self._unsent[:MESSAGE_BYTES], self._unsent[MESSAGE_BYTES:]
        self._tell("output", piece)
        if self._unsent:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)
        elif self.attempt is not None:
            self.attempt.resume_output()

    def progress(self, done: int, total: int | None) -> None:
        self._tell("progress", done, total)

    def retried(self, retry: AttemptRetry) -> None:
        self._tell_payload("retried", retry)

    def quarantined(self, row: Mapping[str, Any]) -> None:
        self._tell("quarantined", row)

    def checkpointed(self, value: str) -> None:
        self._tell("checkpointed", value)

    def step(self, payload: Payload) -> None:
        self._tell_payload("step", payload)

    def _tell_payload(self, what: str, payload: Payload) -> None:
        self._tell(what, kind_of(payload), encode(payload))

    def ended(self, outcome: Outcome) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        while self._unsent:
            piece, self._unsent = self._unsent[:MESSAGE_BYTES], self._unsent[MESSAGE_BYTES:]
            self._tell("output", piece)
        self.outcome.set_result(outcome)


# --- The zygote -------------------------------------------------------------------------------------------------------


class Station:
    """A zygote of one flow of one executor, and the loop in which its attempts are watched."""

    def __init__(self, errand: Errand) -> None:
        self._errand = errand
        self._loop = asyncio.new_event_loop()
        self._runner = Runner.spawn(environment={EXECUTOR_VARIABLE: errand.executor_id})
        self._opening = asyncio.Lock()
        self._closing: asyncio.TimerHandle | None = None
        self.attending = 0  # guarded by the lock of the module
        threading.Thread(target=self._loop.run_forever, name="redrive", daemon=True).start()

    def attend(self, charge: WorkerAttempt) -> Outcome:
        """Run an attempt and return how it ended. Called in threads of the worker."""
        starting = asyncio.run_coroutine_threadsafe(self._start(charge), self._loop)
        starting.add_done_callback(charge.check)
        while not wait([charge.outcome], LOOK_SECONDS).done:
            if charge.is_forsaken and charge.attempt is not None:
                self._loop.call_soon_threadsafe(charge.attempt.cancel, "its executor is gone")
        return charge.outcome.result()

    async def _start(self, charge: WorkerAttempt) -> None:
        errand = charge.errand
        try:
            await self._open()
            charge.attempt = await self._runner.start(errand.order, charge)
        except FlowError as error:
            charge.ended(refused(str(error)))
        except OSError as error:
            charge.ended(not_started(error))

    async def _open(self) -> None:
        """Have a zygote with the same flow as the executor's."""
        async with self._opening:
            if self._runner.is_open:
                return
            errand = self._errand
            spec = await self._runner.open(errand.target, errand.params)
            if spec.code_hash != errand.code_hash:
                await self._runner.close()
                raise FlowError(f"{errand.target} is another version on this worker than where the executor runs")

    async def call(self, attempt: RunningAttempt, what: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of an attempt in the loop where it lives. Called in the loop of the worker."""

        async def called() -> Any:
            answer = getattr(attempt, what)(*arguments)
            return await answer if asyncio.iscoroutine(answer) else answer

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(called(), self._loop))

    def close_when_idle(self) -> None:
        """Go, unless an attempt comes within a minute."""
        self._loop.call_soon_threadsafe(self._loop.call_later, IDLE_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        with _lock:
            if self.attending or _stations.get(_key(self._errand)) is not self:
                return
            del _stations[_key(self._errand)]
        closing = self._loop.create_task(self._runner.close())
        closing.add_done_callback(lambda _: self._loop.stop())


_lock = threading.Lock()
_charges: dict[str, WorkerAttempt] = {}  # by token; what the executor's calls find again
_stations: dict[tuple[str, str], Station] = {}


def _key(errand: Errand) -> tuple[str, str]:
    return errand.executor_id, errand.target


@contextmanager
def _station(errand: Errand) -> Iterator[Station]:
    """The zygote for this errand, kept while somebody is in here."""
    with _lock:
        station = _stations.get(_key(errand))
        if station is None:
            station = _stations[_key(errand)] = Station(errand)
        station.attending += 1
    try:
        yield station
    finally:
        with _lock:
            station.attending -= 1
        station.close_when_idle()
