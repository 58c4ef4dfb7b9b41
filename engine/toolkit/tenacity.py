"""Converts retry policies of the library tenacity to ``RetryPolicy``.

tenacity counts starts as ``max_attempts`` does, and its waits are formulas with named attributes, so they are read from
the objects without importing the library. A part without an exact equivalent is refused, and the error says what to
write instead: an approximation would silently change a tuned policy. Subclasses are refused as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.durations import LONGEST_SECONDS
from ..core.policy import RetryPolicy

if TYPE_CHECKING:
    from tenacity import stop_after_delay, stop_any, wait_exponential, wait_fixed, wait_random

_Fields = dict[str, Any]  # keyword arguments of RetryPolicy


def from_tenacity(retrying: object = None, *, wait: object = None, stop: object = None) -> RetryPolicy:
    """Return the ``RetryPolicy`` that ``tenacity.retry(wait=..., stop=...)`` describes, in seconds as there.

    Which failures are tried again is not taken over: that stays with the classes of this engine.

    Parameters:
        retrying: a ``Retrying`` or ``AsyncRetrying`` of tenacity, as a decorated function has it (``call.retry``).
        wait: instead of its wait: wait_none, wait_fixed, wait_random, wait_exponential or wait_random_exponential.
            Without any: no wait, as in tenacity.
        stop: instead of its stop: stop_after_attempt, stop_before_delay, or several joined by ``|``.

    Raises:
        ValueError: a part has no equal here, or nothing bounds the number of starts.

    Example:
        >>> import tenacity
        >>> policy = from_tenacity(wait=tenacity.wait_random_exponential(max=60), stop=tenacity.stop_after_attempt(5))
        >>> policy.max_attempts, policy.cap, policy.jitter
        (5, 60.0, 'full')
    """
    wait = getattr(retrying, "wait", None) if wait is None else wait
    stop = getattr(retrying, "stop", None) if stop is None else stop
    fields = {"base": 0.0, "cap": 0.0, "jitter": "none"} if wait is None else _convert(wait, _WAIT_CONVERTERS)
    bounds = {} if stop is None else _convert(stop, _STOP_CONVERTERS)
    if "max_attempts" not in bounds:
        raise ValueError("nothing bounds the number of starts: add stop_after_attempt(...)")
    return RetryPolicy(**fields, **bounds)


def _convert(part: object, table: dict[str, Callable[[Any], _Fields]]) -> _Fields:
    kind = type(part)
    name = kind.__name__ if kind.__module__.partition(".")[0] == "tenacity" else ""
    if name not in table:
        known = ", ".join(one for one in table if not one.startswith("_"))
        raise ValueError(f"{kind.__qualname__} has no equal here (there is one for {known}): write a RetryPolicy")
    return table[name](part)


def _fixed(wait: wait_fixed) -> _Fields:
    return {"base": wait.wait_fixed, "cap": wait.wait_fixed, "factor": 1.0, "jitter": "none"}


def _random(wait: wait_random) -> _Fields:
    low, high = wait.wait_random_min, wait.wait_random_max
    for jitter, share in (("full", 0.0), ("equal", 0.5), ("none", 1.0)):
        if low == share * high:
            return {"base": high, "cap": high, "factor": 1.0, "jitter": jitter}
    raise ValueError(f"wait_random({low:g}, {high:g}): the shortest wait is none, half or all of the longest here")


def _exponential(wait: wait_exponential) -> _Fields:
    return {**_exponential_fields(wait), "jitter": "none"}


def _random_exponential(wait: wait_exponential) -> _Fields:
    if wait.min > 0:
        raise ValueError("wait_random_exponential with a min: full jitter begins at 0 here; leave the min out")
    return {**_exponential_fields(wait), "jitter": "full"}


def _exponential_fields(wait: wait_exponential) -> _Fields:
    if wait.min > min(wait.multiplier, wait.max):
        raise ValueError(f"{type(wait).__name__}: a min of {wait.min:g} s over the first wait: make it the multiplier")
    return {"base": wait.multiplier, "cap": _cap(wait.max), "factor": wait.exp_base}


def _cap(seconds: float) -> float:
    """Reduce tenacity's default of sys.maxsize / 2 seconds; infinity stays, and RetryPolicy refuses it."""
    return min(seconds, LONGEST_SECONDS) if math.isfinite(seconds) else seconds


def _after_delay(stop: stop_after_delay) -> _Fields:
    raise ValueError(f"stop_after_delay({stop.max_delay:g}) lets one more start after that: take stop_before_delay")


def _any(stop: stop_any) -> _Fields:
    """Combine several bounds: of each kind the smallest applies."""
    fields: _Fields = {}
    for one in stop.stops:
        for name, value in _convert(one, _STOP_CONVERTERS).items():
            fields[name] = min(value, fields.get(name, value))
    return fields


_WAIT_CONVERTERS: dict[str, Callable[[Any], _Fields]] = {
    "wait_none": _fixed,
    "wait_fixed": _fixed,
    "wait_random": _random,
    "wait_exponential": _exponential,
    "wait_random_exponential": _random_exponential,
}

_STOP_CONVERTERS: dict[str, Callable[[Any], _Fields]] = {
    "stop_after_attempt": lambda stop: {"max_attempts": stop.max_attempt_number},
    "stop_before_delay": lambda stop: {"max_elapsed": stop.max_delay},
    "stop_any": _any,
    "_stop_never": lambda _: {},
    "stop_after_delay": _after_delay,
}
