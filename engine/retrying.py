"""Retries inside a task: the decorator, its block form, and the waits of the documents as plain functions.

    @retry(exceptions=(TimeoutError,), jitter=full_jitter)        for attempt in retrying(retries=5):
    def fetch(page): ...                                              with attempt:
                                                                          fetch(page)

This is document 001's decorator. It is meant for calls to flaky I/O that usually succeed on the second try; not for
what is not safe to run twice, nor where the answer must be fresh. ``retries`` counts the tries after the first, where
the engine's ``max_attempts`` counts all of them: ``retries=3`` makes up to four calls.

A failed try of the decorator costs the task no attempt: the executor sees only what comes out in the end, and each
retry as an event (``set_observer``). Coroutine functions are awaited and wait with ``asyncio.sleep``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from .core.fingerprint import message_of
from .core.policy import Jitter, RetryPolicy, ceiling, draw
from .errors import NotReady, PermanentError, RetryAfter, SkipTask, TaskTerminated, TransientError

P = ParamSpec("P")
T = TypeVar("T")

Sleep = Callable[[float], object]
OnRetry = Callable[[int, BaseException, float], object]
Observer = Callable[[Mapping[str, object]], object]

logger = logging.getLogger("redrive.retry")

#: These pass through every retry: they say that the work shall stop.
_STOPS = (asyncio.CancelledError, GeneratorExit, TaskTerminated)

#: These are a task's own word that another try is pointless, unless the caller names them in ``exceptions``.
_FINAL = (PermanentError, NotReady, SkipTask)

_observer: Observer | None = None


def set_observer(observer: Observer | None) -> None:
    """Have each retry of this process reported: the attempt's process does so to tell the executor.

    The mapping holds ``function``, ``try`` (the one that failed, from 1), ``error_type``, ``message``,
    ``delay_seconds`` and ``elapsed_seconds``. One observer; None takes it away.
    """
    global _observer
    _observer = observer


# --- the waits of the documents -----------------------------------------------------------------------------------


def backoff_delay(attempt: int, base: float = 1.0, cap: float = 300.0, jitter: Jitter = "full") -> float:
    """Return the delay in seconds before the (attempt+1)-th retry (document 000): a roll under ``base * 2**attempt``.

    Raises ValueError for a negative attempt and for a jitter that is not known.
    """
    return draw(RetryPolicy(base=base, cap=cap, jitter=jitter), attempt, None, random.uniform)[0]


def wait_seconds(attempt: int, base: float = 1, cap: float = 60) -> float:
    """Return document 004's wait without jitter: 1 2 4 8 16 32 60 60 seconds."""
    return backoff_delay(attempt, base, cap, jitter="none")


def wait_with_full_jitter(attempt: int, base: float = 1, cap: float = 60) -> float:
    """Return document 004's wait with full jitter: anywhere from 0 to the capped wait."""
    return backoff_delay(attempt, base, cap, jitter="full")


def wait_with_equal_jitter(attempt: int, base: float = 1, cap: float = 60) -> float:
    """Return document 004's wait with equal jitter: half of the capped wait and a random half."""
    return backoff_delay(attempt, base, cap, jitter="equal")


def full_jitter(delay: float) -> float:
    """Return a random part of ``delay``: document 001's exercise, for ``retry(jitter=full_jitter)``."""
    return random.uniform(0, delay)


def no_jitter(delay: float) -> float:
    """Return ``delay`` itself: document 001's default."""
    return delay


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """The arguments of ``retry``, checked, and the one decision that all forms of it share."""

    policy: RetryPolicy
    exceptions: tuple[type[BaseException], ...]
    jitter: Callable[[float], float]
    sleep: Sleep
    now: Callable[[], float]
    deadline: float | None
    on_retry: OnRetry | None
    function: str = "block"  # for the report

    def delay_after(self, failed: int, error: BaseException, started: float) -> float | None:
        """How long to wait after try number ``failed`` (from 1), or None: give up. Tells whoever wants to know."""
        if failed >= self.policy.max_attempts or not self._retries(error):
            return None
        capped = ceiling(self.policy, failed - 1)
        floor = error.seconds if isinstance(error, RetryAfter) else 0.0
        delay = floor + max(0.0, self.jitter(capped))
        elapsed = self.now() - started
        if self.deadline is not None and elapsed + max(capped, delay) > self.deadline:
            return None
        self._report(failed, error, delay, elapsed)
        return delay

    def _retries(self, error: BaseException) -> bool:
        if isinstance(error, _FINAL):
            return isinstance(error, tuple(kind for kind in self.exceptions if issubclass(kind, _FINAL)))
        return isinstance(error, self.exceptions) and not isinstance(error, _STOPS)

    def _report(self, failed: int, error: BaseException, delay: float, elapsed: float) -> None:
        if self.on_retry is not None:
            self.on_retry(failed, error, delay)
        report_retry(self.function, failed, self.policy.max_attempts, error, delay, elapsed)


def report_retry(
    function: str, failed: int, max_attempts: int, error: BaseException, delay: float, elapsed: float
) -> None:
    """Log a retry, and tell the observer of it. A report that fails must not become the failure that it reports."""
    words = "%s: try %d of %d failed after %.2f s: %r; next in %.2f s"
    logger.warning(words, function, failed, max_attempts, elapsed, error, delay)
    if _observer is None:
        return
    told = {
        "function": function,
        "try": failed,
        "error_type": type(error).__qualname__,
        "message": message_of(error)[:500],
        "delay_seconds": delay,
        "elapsed_seconds": elapsed,
    }
    try:
        _observer(told)
    except Exception:
        logger.exception("the retry of %s could not be reported", function)


def _plan(
    retries: int,
    base: float,
    max_delay: float,
    exceptions: tuple[type[BaseException], ...],
    jitter: Callable[[float], float],
    sleep: Sleep,
    now: Callable[[], float],
    deadline: float | None,
    on_retry: OnRetry | None,
) -> _Plan:
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries is a whole number of at least 0 (the first try is not one of them), not {retries!r}")
    if deadline is not None and not deadline >= 0:  # also refuses NaN
        raise ValueError(f"deadline is a number of seconds of at least 0, not {deadline!r}")
    kinds = exceptions if isinstance(exceptions, tuple) else (exceptions,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise ValueError(f"exceptions is a tuple of exception classes, not {exceptions!r}")
    policy = RetryPolicy(retries + 1, base=base, cap=max_delay, jitter="none")
    # The default stands for "the machine's clock": a deadline must not move when somebody sets the wall clock.
    clock = time.monotonic if now is time.time else now
    return _Plan(policy, kinds, jitter, sleep, clock, deadline, on_retry)


# --- the decorator ----------------------------------------------------------------------------------------------------


def retry(
    *,
    retries: int = 3,
    base: float = 0.2,
    max_delay: float = 2.0,
    exceptions: tuple[type[BaseException], ...] = (Exception,),
    jitter: Callable[[float], float] = no_jitter,
    sleep: Sleep = time.sleep,
    now: Callable[[], float] = time.time,
    deadline: float | None = None,
    on_retry: OnRetry | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Try a function again when it raises one of ``exceptions`` (document 001). The last error comes out unchanged.

    ``retries``: tries after the first. ``base``, ``max_delay``: the first wait and the longest one, in seconds; it
    doubles between. ``jitter`` maps the capped delay to the one that is slept. ``deadline``: seconds from the first
    call after which no further wait may end. ``on_retry(try_number, error, delay)`` is called before each wait.

    ``PermanentError``, ``NotReady`` and ``SkipTask`` are not retried unless ``exceptions`` names them, cancellation
    never; a ``RetryAfter`` is never retried sooner than it says. Raises ValueError for arguments that make no sense
    and TypeError for a generator function, which has done nothing yet when it returns.
    """
    plan = _plan(retries, base, max_delay, exceptions, jitter, sleep, now, deadline, on_retry)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        _refuse_what_cannot_be_retried(function)
        own = replace(plan, function=_name(function))
        if _is_coroutine_function(function):
            return cast(Callable[P, T], _awaiting(function, own))
        return _calling(function, own)

    return decorate


def retry_transient(
    max_attempts: int = 3,
    *,
    base: float = 1.0,
    cap: float = 60.0,
    jitter: Callable[[float], float] = full_jitter,
    sleep: Sleep = time.sleep,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Retry ``TransientError`` alone (document 004): permanent errors and bugs come out at once.

    ``max_attempts`` counts the first try. Waits between tries: the document's own sample does not.
    """
    if max_attempts < 1:
        raise ValueError(f"max_attempts is at least 1 (the first try counts too), not {max_attempts!r}")
    kinds = (TransientError,)
    return retry(retries=max_attempts - 1, base=base, max_delay=cap, exceptions=kinds, jitter=jitter, sleep=sleep)


def _calling(function: Callable[P, T], plan: _Plan) -> Callable[P, T]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        started, number = plan.now(), 1
        while True:
            try:
                return function(*args, **kwargs)
            except plan.exceptions as error:
                delay = plan.delay_after(number, error, started)
                if delay is None:
                    raise
            plan.sleep(delay)
            number += 1

    return call


def _awaiting(function: Callable[P, Any], plan: _Plan) -> Callable[P, Any]:
    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> object:
        started, number = plan.now(), 1
        while True:
            try:
                return await function(*args, **kwargs)
            except plan.exceptions as error:
                delay = plan.delay_after(number, error, started)
                if delay is None:
                    raise
            await _sleep(plan.sleep, delay)
            number += 1

    return call


async def _sleep(sleep: Sleep, delay: float) -> None:
    """A loop must not be blocked: the default becomes its own; what the caller gave may or may not be awaitable."""
    slept = asyncio.sleep(delay) if sleep is time.sleep else sleep(delay)
    if isinstance(slept, Awaitable):
        await slept


def _is_coroutine_function(function: Callable[..., object]) -> bool:
    """Also of an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _refuse_what_cannot_be_retried(function: Callable[..., object]) -> None:
    if isinstance(function, (classmethod, staticmethod)):
        raise TypeError(f"put @retry below @{type(function).__name__}, next to the function")
    if not callable(function):
        raise TypeError(f"@retry decorates a function, not {function!r}; write @retry() with its parentheses")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{_name(function)} is a generator function: calling it cannot fail, so there is nothing to retry;"
            " decorate what it calls, or use `for attempt in retrying(...)` inside it"
        )


# --- the block form ---------------------------------------------------------------------------------------------------


class Attempt:
    """One try of a block: ``with attempt:``. Swallows the error when another try follows."""

    def __init__(self, number: int, judge: Callable[[int, BaseException], bool]) -> None:
        self.number = number  # from 1
        self._judge = judge
        self.entered = False
        self.failed = False

    def __enter__(self) -> Attempt:
        self.entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.failed = error is not None
        return error is not None and self._judge(self.number, error)


class Retrying:
    """The tries of one block, to be iterated over once, with ``for`` or ``async for``."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._started = 0.0
        self._delay = 0.0  # before the next try

    def __iter__(self) -> Iterator[Attempt]:
        for attempt in self._attempts():
            if attempt.number > 1:
                self._plan.sleep(self._delay)
            yield attempt

    async def __aiter__(self) -> AsyncIterator[Attempt]:
        for attempt in self._attempts():
            if attempt.number > 1:
                await _sleep(self._plan.sleep, self._delay)
            yield attempt

    def _attempts(self) -> Iterator[Attempt]:
        self._started = self._plan.now()
        for number in range(1, self._plan.policy.max_attempts + 1):
            attempt = Attempt(number, self._goes_on)
            yield attempt
            if not attempt.entered:
                raise RuntimeError("write `with attempt:` inside the loop: without it no error is seen")
            if not attempt.failed:
                return

    def _goes_on(self, number: int, error: BaseException) -> bool:
        delay = self._plan.delay_after(number, error, self._started)
        self._delay = delay or 0.0
        return delay is not None


def retrying(
    *,
    retries: int = 3,
    base: float = 0.2,
    max_delay: float = 2.0,
    exceptions: tuple[type[BaseException], ...] = (Exception,),
    jitter: Callable[[float], float] = no_jitter,
    sleep: Sleep = time.sleep,
    now: Callable[[], float] = time.time,
    deadline: float | None = None,
    on_retry: OnRetry | None = None,
) -> Retrying:
    """Retry a block: ``for attempt in retrying(...):`` with ``with attempt:`` inside; ``async for`` awaits the waits.

    Takes what ``retry`` takes. A bare ``with`` could not run its body twice, hence the loop.
    """
    return Retrying(_plan(retries, base, max_delay, exceptions, jitter, sleep, now, deadline, on_retry))
