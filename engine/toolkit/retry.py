"""Retries inside a task: a decorator, its block form, and the waits as plain functions.

    @retry(exceptions=(TimeoutError,), jitter=full_jitter)        for attempt in retrying(retries=5):
    def fetch(page): ...                                              with attempt:
                                                                          fetch(page)

For flaky I/O that usually succeeds on the second try, and is safe to run twice. ``retries`` counts the tries after the
first, the engine's ``max_attempts`` counts all: ``retries=3`` makes up to four calls.

A failed try spends no attempt of the task: the executor sees the final result, and each retry as an event
(``set_observer``). Coroutine functions are awaited and wait with ``asyncio.sleep``.
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

from ..core.failures.classify import retry_after_seconds
from ..core.failures.facts import extract_facts, message_of
from ..core.policy import Jitter, RetryPolicy, ceiling, draw_delay
from ..errors import NotReady, PermanentError, RetryAfter, SkipTask, TaskTerminated, TransientError

P = ParamSpec("P")
T = TypeVar("T")

Exceptions = type[BaseException] | tuple[type[BaseException], ...]
Sleep = Callable[[float], object]
OnRetry = Callable[[int, BaseException, float], object]
Observer = Callable[[Mapping[str, object]], object]

logger = logging.getLogger("redrive.retry")

#: Never retried: they end the work.
_NEVER_RETRIED = (asyncio.CancelledError, GeneratorExit, TaskTerminated)

#: Not retried unless the caller names them in ``exceptions``: the task itself says that a retry is useless.
_FINAL_ERRORS = (PermanentError, NotReady, SkipTask)

_observer: Observer | None = None


def set_observer(observer: Observer | None) -> None:
    """Have each retry of this process reported to one function; None removes it. The process of an attempt uses it.

    Parameters:
        observer: called before each wait with a mapping: ``function`` (its name), ``try`` (the one that failed, from
            1), ``error_type``, ``message``, ``delay_seconds`` and ``elapsed_seconds``.
    """
    global _observer
    _observer = observer


# --- The waits ------------------------------------------------------------------------------------------------------


def backoff_delay(attempt: int, base: float = 1.0, cap: float = 300.0, jitter: Jitter = "full") -> float:
    """Return the wait in seconds before the (attempt+1)-th retry, drawn below ``min(cap, base * 2**attempt)``.

    Parameters:
        attempt: how many retries there were, from 0.
        base: seconds, the bound of the first wait, 0 or more.
        cap: seconds, the longest bound, 0 or more.
        jitter: "none", "full", "equal", "decorrelated" or "add50", as ``RetryPolicy`` describes them. A wait before
            this one is not known here, so "decorrelated" draws from ``base`` to three times that.

    Raises:
        ValueError: ``attempt`` is negative, or another argument is not what it must be.

    Example:
        >>> [backoff_delay(attempt, jitter="none") for attempt in range(5)]
        [1.0, 2.0, 4.0, 8.0, 16.0]
        >>> 0 <= backoff_delay(3) <= 8
        True
    """
    return draw_delay(RetryPolicy(base=base, cap=cap, jitter=jitter), attempt, None, random.uniform)[0]


def wait_seconds(attempt: int, base: float = 1, cap: float = 60) -> float:
    """Return the wait in seconds without jitter, ``min(cap, base * 2**attempt)``.

    Example:
        >>> [wait_seconds(attempt) for attempt in range(8)]
        [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    """
    return backoff_delay(attempt, base, cap, jitter="none")


def wait_with_full_jitter(attempt: int, base: float = 1, cap: float = 60) -> float:
    """Return the wait in seconds with full jitter: anywhere from 0 to ``wait_seconds``.

    Example:
        >>> 0 <= wait_with_full_jitter(3) <= 8
        True
    """
    return backoff_delay(attempt, base, cap, jitter="full")


def wait_with_equal_jitter(attempt: int, base: float = 1, cap: float = 60) -> float:
    """Return the wait in seconds with equal jitter: anywhere from a half of ``wait_seconds`` to all of it.

    Example:
        >>> 4 <= wait_with_equal_jitter(3) <= 8
        True
    """
    return backoff_delay(attempt, base, cap, jitter="equal")


def full_jitter(delay: float) -> float:
    """Return a random part of ``delay``, a wait in seconds of 0 or more: for ``retry(jitter=full_jitter)``.

    Example:
        >>> 0 <= full_jitter(2.0) <= 2
        True
    """
    return random.uniform(0, delay)


def no_jitter(delay: float) -> float:
    """Return ``delay`` itself, a wait in seconds: the default of ``retry``.

    Clients that failed together come back together with it.

    Example:
        >>> no_jitter(2.0)
        2.0
    """
    return delay


# --- The settings -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RetrySettings:
    """The validated arguments of ``retry``, and the decision that all its forms share."""

    policy: RetryPolicy
    exceptions: tuple[type[BaseException], ...]
    jitter: Callable[[float], float]
    sleep: Sleep
    now: Callable[[], float]
    deadline: float | None
    on_retry: OnRetry | None
    function: str = "block"  # for the report

    def delay_after(self, failed: int, error: BaseException, started: float) -> float | None:
        """Return the wait in seconds after try number ``failed`` (from 1), and report it; None: give up."""
        if failed >= self.policy.max_attempts or not self._is_retryable(error):
            return None
        capped = ceiling(self.policy, failed - 1)
        delay = _floor_seconds(error) + max(0.0, self.jitter(capped))
        elapsed = self.now() - started
        if self.deadline is not None and elapsed + max(capped, delay) > self.deadline:
            return None
        self._report(failed, error, delay, elapsed)
        return delay

    def _is_retryable(self, error: BaseException) -> bool:
        if isinstance(error, _FINAL_ERRORS):
            return isinstance(error, tuple(kind for kind in self.exceptions if issubclass(kind, _FINAL_ERRORS)))
        return isinstance(error, self.exceptions) and not isinstance(error, _NEVER_RETRIED)

    def _report(self, failed: int, error: BaseException, delay: float, elapsed: float) -> None:
        if self.on_retry is not None:
            self.on_retry(failed, error, delay)
        report_retry(self.function, failed, self.policy.max_attempts, error, delay, elapsed)


def _floor_seconds(error: BaseException) -> float:
    """Return what the other side asked to wait: the seconds of a RetryAfter, or the header of an HTTP response."""
    if isinstance(error, RetryAfter):
        return error.seconds
    return retry_after_seconds(extract_facts(error)) or 0.0


def report_retry(
    function: str, failed: int, max_attempts: int, error: BaseException, delay: float, elapsed: float
) -> None:
    """Log a retry and notify the observer. An exception of the observer is logged, not raised."""
    words = "%s: try %d of %d failed after %.2f s: %r; next in %.2f s"
    logger.warning(words, function, failed, max_attempts, elapsed, error, delay)
    if _observer is None:
        return
    report = {
        "function": function,
        "try": failed,
        "error_type": type(error).__qualname__,
        "message": message_of(error)[:500],
        "delay_seconds": delay,
        "elapsed_seconds": elapsed,
    }
    try:
        _observer(report)
    except Exception:
        logger.exception("the retry of %s could not be reported", function)


def _validate(
    retries: int,
    base: float,
    max_delay: float,
    exceptions: Exceptions,
    jitter: Callable[[float], float],
    sleep: Sleep,
    now: Callable[[], float],
    deadline: float | None,
    on_retry: OnRetry | None,
) -> _RetrySettings:
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ValueError(f"retries is a whole number of at least 0 (the first try is not one of them), not {retries!r}")
    if deadline is not None and not deadline >= 0:  # also refuses NaN
        raise ValueError(f"deadline is a number of seconds of at least 0, not {deadline!r}")
    kinds = exceptions if isinstance(exceptions, tuple) else (exceptions,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        raise ValueError(f"exceptions is a tuple of exception classes, not {exceptions!r}")
    policy = RetryPolicy(retries + 1, base=base, cap=max_delay, jitter="none")
    # time.time stands for the monotonic clock: setting the wall clock must not move a deadline.
    clock = _monotonic if now is time.time else now
    pause = _pause if sleep is time.sleep else sleep
    return _RetrySettings(policy, kinds, jitter, pause, clock, deadline, on_retry)


def _pause(seconds: float) -> None:
    """Sleep by the clock of the moment of the call, which a played night replaces."""
    time.sleep(seconds)  # the backoff itself


def _monotonic() -> float:
    return time.monotonic()


# --- The decorator ----------------------------------------------------------------------------------------------------


def retry(
    *,
    retries: int = 3,
    base: float = 0.2,
    max_delay: float = 2.0,
    exceptions: Exceptions = (Exception,),
    jitter: Callable[[float], float] = no_jitter,
    sleep: Sleep = time.sleep,
    now: Callable[[], float] = time.time,
    deadline: float | None = None,
    on_retry: OnRetry | None = None,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Call a function again when it raises one of ``exceptions``: ``@retry(...)``. The last error comes out unchanged.

    ``PermanentError``, ``NotReady`` and ``SkipTask`` are retried only where ``exceptions`` names them, cancellation
    never. A ``RetryAfter``, or an HTTP error whose response has the header ``Retry-After`` (httpx, requests, aiohttp,
    urllib), is not retried sooner than it says. A coroutine function is awaited.

    Parameters:
        retries: tries after the first: a whole number of 0 or more.
        base: seconds, the first wait, 0 or more; each further one is twice as long.
        max_delay: seconds, the longest wait, 0 or more.
        exceptions: the exception class, or a tuple of these, after which it is tried again.
        jitter: maps a wait to the one that is slept, in seconds: ``no_jitter``, ``full_jitter``, or one of your own.
        sleep: waits so many seconds; may be a coroutine function for a coroutine function.
        now: a clock in seconds. ``time.time`` stands for the monotonic clock, which nobody sets.
        deadline: seconds from the first call after which no wait may end; None: no bound.
        on_retry: called before each wait with the number of the try that failed (from 1), its error and the seconds.

    Raises:
        ValueError: an argument is not what it must be.
        TypeError: what is decorated is not a function, or is a generator function, which has done nothing yet when it
            returns.

    Example:
        >>> answers = [TimeoutError("slow"), "page 7"]
        >>> @retry(retries=2, exceptions=TimeoutError, sleep=lambda seconds: print("waits", seconds))
        ... def fetch(page: int) -> str:
        ...     answer = answers.pop(0)
        ...     if isinstance(answer, Exception):
        ...         raise answer
        ...     return answer
        >>> fetch(7)
        waits 0.2
        'page 7'
    """
    settings = _validate(retries, base, max_delay, exceptions, jitter, sleep, now, deadline, on_retry)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        _check_decoratable(function)
        own = replace(settings, function=_name(function))
        if _is_coroutine_function(function):
            return cast(Callable[P, T], _wrap_coroutine_function(function, own))
        return _wrap_function(function, own)

    return decorate


def retry_transient(
    max_attempts: int = 3,
    *,
    base: float = 1.0,
    cap: float = 60.0,
    jitter: Callable[[float], float] = full_jitter,
    sleep: Sleep = time.sleep,
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Call a function again when it raises ``TransientError``, and for no other error: ``@retry_transient()``.

    Parameters:
        max_attempts: tries in all, the first included: a whole number of at least 1.
        base, cap: seconds, the first wait and the longest one, 0 or more; it doubles between.
        jitter, sleep: as for ``retry``.

    Raises:
        ValueError: an argument is not what it must be.

    Example:
        >>> from redrive.engine import PermanentError
        >>> @retry_transient(max_attempts=5)
        ... def fetch() -> str:
        ...     raise PermanentError("404 not found")
        >>> fetch()
        Traceback (most recent call last):
        ...
        redrive.engine.errors.PermanentError: 404 not found
    """
    if max_attempts < 1:
        raise ValueError(f"max_attempts is at least 1 (the first try counts too), not {max_attempts!r}")
    kinds = (TransientError,)
    return retry(retries=max_attempts - 1, base=base, max_delay=cap, exceptions=kinds, jitter=jitter, sleep=sleep)


def _wrap_function(function: Callable[P, T], settings: _RetrySettings) -> Callable[P, T]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for attempt in Retrying(settings):
            with attempt:
                return function(*args, **kwargs)
        raise AssertionError("the last try either returns or raises")

    return call


def _wrap_coroutine_function(function: Callable[P, Any], settings: _RetrySettings) -> Callable[P, Any]:
    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> object:
        async for attempt in Retrying(settings):
            with attempt:
                return await function(*args, **kwargs)
        raise AssertionError("the last try either returns or raises")

    return call


async def _sleep(sleep: Sleep, delay: float) -> None:
    """Sleep without blocking the loop; ``sleep`` may be a coroutine function."""
    slept = asyncio.sleep(delay) if sleep is _pause else sleep(delay)
    if isinstance(slept, Awaitable):
        await slept


def _is_coroutine_function(function: Callable[..., object]) -> bool:
    """Return whether it is a coroutine function, or an object whose ``__call__`` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _check_decoratable(function: Callable[..., object]) -> None:
    if isinstance(function, (classmethod, staticmethod)):
        raise TypeError(f"put @retry below @{type(function).__name__}, next to the function")
    if not callable(function):
        raise TypeError(f"@retry decorates a function, not {function!r}; write @retry() with its parentheses")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{_name(function)} is a generator function: calling it cannot fail, so there is nothing to retry;"
            " decorate what it calls, or use `for attempt in retrying(...)` inside it"
        )


# --- The block form ---------------------------------------------------------------------------------------------------


class BlockAttempt:
    """A try of a block: ``with attempt:``. Swallows the error when another try follows."""

    def __init__(self, number: int, on_error: Callable[[int, BaseException], bool]) -> None:
        self.number = number  # from 1
        self._on_error = on_error
        self.entered = False
        self.failed = False

    def __enter__(self) -> BlockAttempt:
        self.entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.failed = error is not None
        return error is not None and self._on_error(self.number, error)


class Retrying:
    """The tries of one block, to be iterated over once, with ``for`` or ``async for``."""

    def __init__(self, settings: _RetrySettings) -> None:
        self._settings = settings
        self._started = 0.0
        self._delay = 0.0  # before the next try

    def __iter__(self) -> Iterator[BlockAttempt]:
        for attempt in self._attempts():
            if attempt.number > 1:
                self._settings.sleep(self._delay)
            yield attempt

    async def __aiter__(self) -> AsyncIterator[BlockAttempt]:
        for attempt in self._attempts():
            if attempt.number > 1:
                await _sleep(self._settings.sleep, self._delay)
            yield attempt

    def _attempts(self) -> Iterator[BlockAttempt]:
        self._started = self._settings.now()
        for number in range(1, self._settings.policy.max_attempts + 1):
            attempt = BlockAttempt(number, self._should_retry)
            yield attempt
            if not attempt.entered:
                raise RuntimeError("write `with attempt:` inside the loop: without it no error is seen")
            if not attempt.failed:
                return

    def _should_retry(self, number: int, error: BaseException) -> bool:
        delay = self._settings.delay_after(number, error, self._started)
        self._delay = delay or 0.0
        return delay is not None


def retrying(
    *,
    retries: int = 3,
    base: float = 0.2,
    max_delay: float = 2.0,
    exceptions: Exceptions = (Exception,),
    jitter: Callable[[float], float] = no_jitter,
    sleep: Sleep = time.sleep,
    now: Callable[[], float] = time.time,
    deadline: float | None = None,
    on_retry: OnRetry | None = None,
) -> Retrying:
    """Run a block again when it raises: ``for attempt in retrying(...):`` around ``with attempt:``.

    ``async for`` awaits the waits. A bare ``with`` cannot run its body twice, hence the loop.

    Parameters:
        retries, base, max_delay, exceptions, jitter, sleep, now, deadline, on_retry: as for ``retry``.

    Raises:
        ValueError: an argument is not what it must be.
        RuntimeError: the loop has no ``with attempt:``, so that it cannot see an error.

    Example:
        >>> for attempt in retrying(retries=2, sleep=lambda seconds: None):
        ...     with attempt:
        ...         print("try", attempt.number)
        ...         if attempt.number == 1:
        ...             raise TimeoutError
        try 1
        try 2
    """
    return Retrying(_validate(retries, base, max_delay, exceptions, jitter, sleep, now, deadline, on_retry))
