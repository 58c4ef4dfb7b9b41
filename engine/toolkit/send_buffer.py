"""A send buffer: many small items, few calls, and a future for each item.

Items are collected until the batch is full, the interval has passed or one of them is urgent; then the batch is sent.
A batch is retried while its error is transient: one slow call of 40 items must not fail 40 jobs. A batch whose error
may be that of an item (INVALID_ARGUMENT, HTTP 422, ValueError) is sent again item by item, so that one bad item fails
alone. An error that concerns the caller (a refused credential, an address that is not there, ``PermanentError``) ends
all items after one call: repeating it would lock an account. So ``send`` must be all-or-nothing, or safe to repeat.
One batch is in flight at a time: items arrive in the order in which they were put.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Generic, Self, TypeVar

from ..core.failures.classify import classify
from ..core.failures.facts import extract_facts
from ..core.outcome import FailureClass
from ..core.policy import RetryPolicy, Uniform, draw_delay, send_settings
from ..errors import PermanentError
from .retry import report_retry

Item = TypeVar("Item")

#: The result of a send: None or True (all accepted), False (all refused), or one of these for each item.
SendResult = bool | Sequence[bool | Exception | None] | None
Send = Callable[[Sequence[Item]], Awaitable[SendResult]]
QueuedItem = tuple[Item, asyncio.Future[bool]]


class SendRejected(PermanentError):
    """The receiver has read the item and refused it; it is not sent again."""


class BufferFull(Exception):
    """``SendBuffer.put`` was called while as many items wait as ``capacity`` allows."""


@dataclass(frozen=True, slots=True)
class SendSettings:
    """The sizes, waits and retries of a ``SendBuffer``.

    Parameters:
        retries: tries of a batch after the first, 0 or more.
        backoff_ms: milliseconds before the first retry, 0 or more; doubled for each further one, each with up to half
            of it on top.
        timeout_seconds: seconds for one send; 60 under burst load, 0: no bound.
        batch_size_max: items of one send, at least 1. Larger: fewer calls, and a longer wait for each item.
        flush_interval_seconds: seconds that an item waits for others, 0 or more.
        elapsed_seconds_max: seconds for all tries of a batch, with those of all layers inside; None: no bound.

    Raises:
        ValueError: a number is too small; the sentence names it.

    Example:
        >>> SendSettings(retries=5, batch_size_max=100).policy.max_attempts
        6
    """

    retries: int = 3
    backoff_ms: float = 100.0
    timeout_seconds: float = 30.0
    batch_size_max: int = 50
    flush_interval_seconds: float = 0.1
    elapsed_seconds_max: float | None = None

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self)):
            value, least = getattr(self, name), 1 if name == "batch_size_max" else 0
            if value is not None and not value >= least:
                raise ValueError(f"{name} is at least {least}, not {value!r}")

    @property
    def policy(self) -> RetryPolicy:
        """The retries of a batch as a ``RetryPolicy``."""
        return replace(BATCH_POLICY, max_attempts=self.retries + 1, base=self.backoff_ms / 1000)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> SendSettings:
        """Return the settings that environment variables give; the others are as above.

        Parameters:
            environment: as ``os.environ``. ``REDRIVE_SIGNAL_SEND_RETRIES``, ``REDRIVE_SIGNAL_SEND_BACKOFF_MS``,
                ``REDRIVE_GRPC_TIMEOUT`` (seconds), ``REDRIVE_SIGNAL_MAX_BATCH_SIZE`` and
                ``REDRIVE_SIGNAL_FLUSH_INTERVAL`` (seconds) are read; the same names with ``DIGITALKIN_`` in front are
                read where one of these is not set.

        Raises:
            OptionError: (a ValueError) a variable has a wrong value; the sentence names it.

        Example:
            >>> SendSettings.from_environment({"REDRIVE_GRPC_TIMEOUT": "60"}).timeout_seconds
            60
        """
        return cls(**send_settings(environment))


def is_transient(error: Exception) -> bool:
    """Return whether an error may heal: DEADLINE_EXCEEDED, UNAVAILABLE or INTERNAL of gRPC, a lost connection, ...

    Example:
        >>> is_transient(ConnectionResetError()), is_transient(ValueError())
        (True, False)
    """
    return classify(error).failure_class is FailureClass.TRANSIENT


#: gRPC codes that say that one item is there already: the only ones of a permanent refusal that are about an item.
_CODES_OF_ITEMS = frozenset(["ALREADY_EXISTS"])
#: HTTP statuses of the same kind: gone, a conflict, a condition that does not hold, too long.
_STATUSES_OF_ITEMS = frozenset([410, 412, 414])


def concerns_caller(error: Exception) -> bool:
    """Return whether an error is about whoever sends, where or how: each item of a batch would get it alone as well.

    A refused credential; an address, a method or a condition of the service, by gRPC or HTTP; ``PermanentError`` and
    ``SendRejected``, with which ``send`` says so itself.

    Example:
        >>> concerns_caller(SendRejected("no")), concerns_caller(ValueError("13"))
        (True, False)
    """
    facts, failure_class = extract_facts(error), classify(error).failure_class
    if failure_class is not FailureClass.PERMANENT:
        return failure_class is FailureClass.AUTH
    if isinstance(error, PermanentError):
        return True
    if facts.grpc is not None:
        return facts.grpc not in _CODES_OF_ITEMS
    return facts.status is not None and facts.status not in _STATUSES_OF_ITEMS


class SendBuffer(Generic[Item]):
    """Gathers items and sends them in batches. It belongs to the event loop in which it is first used.

    A batch is tried again while its error is transient. A batch that fails for good is sent again item by item, so that
    one bad item fails alone, unless the error concerns the caller: a refused credential, HTTP 404, ``PermanentError``
    and the like end all items after one call. ``async with`` closes the buffer at the end.

    Parameters:
        send: a coroutine function that makes one call for a list of items. It returns None or True (all were taken),
            False (all were refused), or a list with one of these or an exception for each item; or it raises. All of
            its items are sent, or none, or it is safe to send them twice.
        settings: sizes, waits and retries; ``SendSettings()`` unless given. See redrive.engine.toolkit.send_buffer.
        retryable: whether another try is worth it after an error; ``is_transient`` unless given.
        capacity: items that may wait.
        uniform: the dice of the jitter, which keeps buffers apart that failed together.
        name: for messages.

    Example:
        >>> import asyncio
        >>> async def send(items):
        ...     print("sends", items)
        >>> async def main():
        ...     async with SendBuffer(send) as buffer:
        ...         futures = [buffer.put(item) for item in "abc"]
        ...     return [await future for future in futures]
        >>> asyncio.run(main())
        sends ['a', 'b', 'c']
        [True, True, True]
    """

    def __init__(
        self,
        send: Send[Item],
        settings: SendSettings | None = None,
        *,
        retryable: Callable[[Exception], bool] = is_transient,
        capacity: int = 10_000,
        uniform: Uniform = random.uniform,
        name: str = "send buffer",
    ) -> None:
        self.settings = settings or SendSettings()
        self._send = send
        self._retryable = retryable
        self._capacity = capacity
        self._uniform = uniform
        self._name = name
        self._waiting: deque[QueuedItem[Item]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._has_room = asyncio.Event()
        self._closed = False
        self._context = copy_context()  # without the budget of the caller whose item fills the batch

    def __len__(self) -> int:
        """Return how many items wait to be sent."""
        return len(self._waiting)

    def put(self, item: Item, *, urgent: bool = False) -> asyncio.Future[bool]:
        """Add an item, and return a future: True once the item is sent, or the error that ended it.

        Parameters:
            item: anything.
            urgent: send the item, and what waits before it, at once.

        Raises:
            BufferFull: as many items wait as the buffer may hold.
            RuntimeError: the buffer is closed.
        """
        if self._closed:
            raise RuntimeError(f"the {self._name} is closed")
        if len(self._waiting) >= self._capacity:
            raise BufferFull(f"{len(self._waiting)} items wait in the {self._name}: it holds no more")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((item, future))
        if urgent or len(self._waiting) >= self.settings.batch_size_max:
            self._start()
        elif self._timer is None and self._flushing is None:
            self._timer = loop.call_later(self.settings.flush_interval_seconds, self._start)
        return future

    async def send(self, item: Item) -> bool:
        """Add an item, waiting for room first where there is none, and wait until it is sent.

        Raises:
            Exception: the error that ended the item.
            RuntimeError: the buffer is closed.
        """
        while len(self._waiting) >= self._capacity and not self._closed:
            self._has_room.clear()
            self._start()
            await self._has_room.wait()
        return await self.put(item)

    async def flush(self) -> None:
        """Send all items that wait, and return once none waits any more. Raises none of the items' errors."""
        while self._waiting or self._flushing is not None:
            self._start()
            assert self._flushing is not None
            await asyncio.wait([self._flushing])

    async def close(self) -> None:
        """Refuse further items, and send those that wait."""
        self._closed = True
        self._has_room.set()
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is None:
            loop = asyncio.get_running_loop()
            self._flushing = loop.create_task(self._flush_all(), name=self._name, context=self._context)

    async def _flush_all(self) -> None:
        """Send batches until no item waits, including items that are added during the sending."""
        clock = asyncio.get_running_loop().time
        try:
            while self._waiting:
                size = min(len(self._waiting), self.settings.batch_size_max)
                batch = [self._waiting.popleft() for _ in range(size)]
                self._has_room.set()
                with budgeted(Budget(self.settings.elapsed_seconds_max, now=clock)) as budget:
                    await self._send_batch(batch, budget)
        finally:
            self._flushing = None
            _cancel_all(self._waiting)
            self._waiting.clear()

    async def _send_batch(self, batch: list[QueuedItem[Item]], budget: Budget) -> None:
        """Send one batch, with retries, until each of its items has an outcome."""
        policy = self.settings.policy
        started = budget.now()
        try:
            for index in range(policy.max_attempts):
                outcomes = await self._try_once([item for item, _ in batch], budget)
                delay, _ = draw_delay(policy, index, None, self._uniform)
                more = index + 1 < policy.max_attempts and budget.allows(delay)
                batch, error = _settle(batch, outcomes, self._retryable if more else None)
                if error is None:
                    return
                elapsed = budget.now() - started
                report_retry(self._name, index + 1, policy.max_attempts, error, delay, elapsed)
                await asyncio.sleep(delay)
        except Exception as fault:  # raised by ``retryable`` or ``uniform``: it ends the items
            _settle(batch, [fault] * len(batch), None)
        finally:
            _cancel_all(batch)

    async def _try_once(self, items: list[Item], budget: Budget) -> list[bool | Exception]:
        """Make one call for all items; if it fails permanently, and perhaps by an item, one call for each."""
        bounds = (self.settings.timeout_seconds or None, budget.remaining_seconds())
        try:
            async with asyncio.timeout(min((bound for bound in bounds if bound is not None), default=None)):
                result = await self._send(items)
        except Exception as error:
            if len(items) == 1 or self._retryable(error) or concerns_caller(error):
                return [error] * len(items)
            return await self._try_each(items, budget)
        return _outcomes(result, len(items))

    async def _try_each(self, items: list[Item], budget: Budget) -> list[bool | Exception]:
        """Make one call for each item, up to a refused credential: it is refused to all further items as well."""
        outcomes: list[bool | Exception] = []
        for item in items:
            outcomes += await self._try_once([item], budget)
            last = outcomes[-1]
            if isinstance(last, Exception) and classify(last).failure_class is FailureClass.AUTH:
                return outcomes + [last] * (len(items) - len(outcomes))
        return outcomes


def _cancel_all(entries: Iterable[QueuedItem[Item]]) -> None:
    """Cancel the futures that a cancelled flush leaves, so that no caller waits forever."""
    for _, future in entries:
        future.cancel()


def _outcomes(result: SendResult, count: int) -> list[bool | Exception]:
    """Convert the result of a send to one outcome for each item."""
    if result is None or isinstance(result, bool):
        results: Sequence[bool | Exception | None] = [result] * count
    elif isinstance(result, Sequence) and len(result) == count:
        results = result
    else:
        words = f"{count} items were sent, and the answer does not speak of as many: {result!r:.200}"
        return [SendRejected(words)] * count
    return [SendRejected("refused") if one is False else one if isinstance(one, Exception) else True for one in results]


def _settle(
    batch: list[QueuedItem[Item]], outcomes: list[bool | Exception], retryable: Callable[[Exception], bool] | None
) -> tuple[list[QueuedItem[Item]], Exception | None]:
    """Resolve the futures. Returns the entries to retry, and one of their errors."""
    again, why = [], None
    for (item, future), outcome in zip(batch, outcomes, strict=True):
        if isinstance(outcome, Exception) and retryable is not None and retryable(outcome):
            again.append((item, future))
            why = outcome
        elif future.done():  # cancelled by its caller
            continue
        elif isinstance(outcome, StopIteration):  # a future refuses to carry one
            future.set_exception(RuntimeError(f"send raised {outcome!r}"))
        elif isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(True)
    return again, why


# --- Three layers of retries around one call, and one budget over all of them ----------------------------------------
#
# Each layer retries what the layer inside has given up: A in the channel, B around one query, C around a batch
# (``send_buffer.py``). Independent layers multiply: 5 x 3 x 4 tries are 60 calls, and a batch alone can take two
# minutes if every call reaches its deadline. So they share a ``Budget``: seconds and calls for all layers together.


T = TypeVar("T")
Call = Callable[[], Awaitable[T]]

#: Layer A: 5 attempts, 0.1 s up to 10 s.
CHANNEL_POLICY = RetryPolicy(max_attempts=5, base=0.1, cap=10.0, jitter="full")
CHANNEL_CODES = frozenset(["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"])

#: Layer B: 2 retries, after 50 ms and 100 ms.
QUERY_POLICY = RetryPolicy(max_attempts=3, base=0.05, cap=1.0, jitter="none")
QUERY_CODES = frozenset(["UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"])

#: Layer C: 3 retries, after 100, 200 and 400 ms, each plus up to half of it (``SendSettings`` of send_buffer.py).
BATCH_POLICY = RetryPolicy(max_attempts=4, base=0.1, cap=60.0, jitter="add50")
BATCH_CODES = frozenset(["DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL"])


def code_of(error: BaseException) -> str | None:
    """Return the name of the gRPC status code of an exception, None where it has none.

    ``TimeoutError``, a deadline of our own, is DEADLINE_EXCEEDED as well.

    Example:
        >>> code_of(TimeoutError()), code_of(ValueError())
        ('DEADLINE_EXCEEDED', None)
    """
    return extract_facts(error).grpc or ("DEADLINE_EXCEEDED" if isinstance(error, TimeoutError) else None)


# --- The budget ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Budget:
    """The bounds of one call, counted over all layers.

    Parameters:
        elapsed_seconds: seconds from now; None: no bound.
        calls: calls in all, the first included; None: no bound.
        now: a clock in seconds.
        calls_made: calls so far.

    Example:
        >>> budget = Budget(elapsed_seconds=10, calls=3, now=lambda: 0.0)
        >>> budget.allows(4), budget.allows(10), budget.remaining_seconds()
        (True, False, 10.0)
    """

    elapsed_seconds: float | None = None
    calls: int | None = None
    now: Callable[[], float] = time.monotonic
    calls_made: int = 0
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def allows(self, delay: float) -> bool:
        """Return whether another call may be made after ``delay`` seconds."""
        if self.calls is not None and self.calls_made >= self.calls:
            return False
        remaining = self.remaining_seconds()
        return remaining is None or delay < remaining

    def remaining_seconds(self) -> float | None:
        """Return the seconds that are left, None without a bound."""
        return None if self.elapsed_seconds is None else self.started + self.elapsed_seconds - self.now()


_current: ContextVar[Budget | None] = ContextVar("redrive_retry_budget", default=None)


@contextmanager
def budgeted(budget: Budget) -> Iterator[Budget]:
    """Let all layers inside the block share a budget. Inside another block the outer budget stays in force.

    Example:
        >>> with budgeted(Budget(calls=0)):
        ...     budget_allows(0)
        False
    """
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def budget_allows(delay: float) -> bool:
    """Return whether the budget in force, if any, allows another call after ``delay`` seconds."""
    budget = _current.get()
    return budget is None or budget.allows(delay)


# --- One layer ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of retries around a call.

    Parameters:
        name: for the reports of retries.
        policy: how often, and after which waits.
        codes: the gRPC status codes after which it tries again.
        deadline_seconds: seconds for all of its tries together; None: no bound. In gRPC the deadline covers every
            attempt of the channel (proposal A6), so the channel cannot retry a DEADLINE_EXCEEDED that its own
            deadline caused, even if ``codes`` names it; only the layers around it can.
        uniform: the dice of the jitter.

    Example:
        >>> async def query() -> int:
        ...     return 42
        >>> asyncio.run(query_layer().call(query))
        42
    """

    name: str
    policy: RetryPolicy
    codes: frozenset[str]
    deadline_seconds: float | None = None
    uniform: Uniform = random.uniform

    async def call(self, function: Call[T]) -> T:
        """Call until it succeeds, or the tries or the budget are spent.

        Raises:
            Exception: the last error, or one whose code is none of this layer's.
            TimeoutError: ``deadline_seconds`` have passed.
        """
        clock, previous = asyncio.get_running_loop().time, None
        started = clock()
        async with asyncio.timeout(self.deadline_seconds):
            for index in range(self.policy.max_attempts):
                try:
                    return await function()
                except Exception as error:
                    previous, _ = draw_delay(self.policy, index, previous, self.uniform)
                    last = index + 1 == self.policy.max_attempts
                    if last or code_of(error) not in self.codes or not budget_allows(previous):
                        raise
                    elapsed = clock() - started
                    report_retry(self.name, index + 1, self.policy.max_attempts, error, previous, elapsed)
                await asyncio.sleep(previous)
        raise AssertionError("the last try either returns or raises")


def channel_layer(deadline_seconds: float | None = 30.0) -> Layer:
    """Return layer A, for a client that has no retries in its channel: 5 tries, waits of 0.1 s up to 10 s.

    Example:
        >>> channel_layer().policy.max_attempts
        5
    """
    return Layer("channel", CHANNEL_POLICY, CHANNEL_CODES, deadline_seconds)


def query_layer() -> Layer:
    """Return layer B, around one query: 3 tries, waits of 50 and 100 ms.

    Example:
        >>> sorted(query_layer().codes)
        ['DEADLINE_EXCEEDED', 'INTERNAL', 'UNAVAILABLE']
    """
    return Layer("query", QUERY_POLICY, QUERY_CODES)


def batch_layer() -> Layer:
    """Return layer C, for calls that are sent in batches without a ``SendBuffer``: 4 tries, waits of 0.1 to 0.6 s.

    Example:
        >>> batch_layer().policy.jitter
        'add50'
    """
    return Layer("batch", BATCH_POLICY, BATCH_CODES)


async def exec_query(function: Call[T], layer: Layer | None = None) -> T:
    """Make one call under a layer, layer B unless given: two retries for UNAVAILABLE, INTERNAL, DEADLINE_EXCEEDED.

    Raises:
        Exception: the last error.
    """
    return await (layer or query_layer()).call(function)


async def call_through(layers: Sequence[Layer], function: Call[T], budget: Budget | None = None) -> T:
    """Make one call through several layers under one budget.

    Parameters:
        layers: the innermost first.
        function: makes the call.
        budget: for all layers together; no bound unless given.

    Raises:
        Exception: what the outermost layer let through.
        TimeoutError: the seconds of the budget have passed.

    Example:
        >>> async def query() -> int:
        ...     return 42
        >>> asyncio.run(call_through([channel_layer(), query_layer()], query, Budget(elapsed_seconds=60, calls=6)))
        42
    """
    budget = budget or Budget()

    async def count_and_call() -> T:
        current = _current.get()
        assert current is not None
        current.calls_made += 1
        return await function()

    wrapped: Call[T] = count_and_call
    for layer in layers:
        wrapped = partial(layer.call, wrapped)
    with budgeted(budget):
        async with asyncio.timeout(budget.elapsed_seconds):
            return await wrapped()


# --- The channel of a real gRPC client ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings of a gRPC client whose channel is layer A. It holds no connection.

    Parameters:
        timeout_seconds: seconds for one call, all attempts of the channel included; 60 under burst load.
        policy: of the channel's retries.
        codes: the status codes after which the channel tries again.

    Example:
        >>> ClientConfig().channel_options()[0]
        ('grpc.enable_retries', 1)
    """

    timeout_seconds: float = 30.0
    policy: RetryPolicy = CHANNEL_POLICY
    codes: frozenset[str] = CHANNEL_CODES

    def service_config(self) -> str:
        """Return the service config as JSON, as gRPC's proposal A6 has it: ``maxAttempts`` counts up to 5 there."""
        retry_policy = {
            "maxAttempts": self.policy.max_attempts,
            "initialBackoff": f"{self.policy.base:g}s",
            "maxBackoff": f"{self.policy.cap:g}s",
            "backoffMultiplier": self.policy.factor,
            "retryableStatusCodes": sorted(self.codes),
        }
        return json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": retry_policy}]})

    def channel_options(self) -> list[tuple[str, object]]:
        """Return the ``options`` of ``grpc.aio.insecure_channel`` and ``grpc.aio.secure_channel``."""
        return [("grpc.enable_retries", 1), ("grpc.service_config", self.service_config())]
