"""Retry policies: how often a task is tried again, and after which delay (backoff and jitter).

``max_attempts`` counts every start, the first included; ``retry_index`` counts the delays, so that index 0 is the delay
after the first failure and its ceiling is ``base``. The exponential delay is ``base * factor ** retry_index`` up to
``cap``; the jitter draws the delay from a range around it. Random numbers are an argument (``Uniform``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec

from ..domain.task_options import MAX_ATTEMPTS
from . import option_types
from .option_types import Duration, duration, number, whole_number

Jitter = Literal["none", "full", "equal", "decorrelated", "add50"]
Uniform = Callable[[float, float], float]

#: The range of the delay, as multiples of the exponential delay. "add50" may exceed the cap: if it were cut off there,
#: all clients at the cap would wait the same. "decorrelated" depends on the previous delay instead (``draw_delay``).
JITTER_RANGES: dict[str, tuple[float, float]] = {
    "none": (1.0, 1.0),
    "full": (0.0, 1.0),
    "equal": (0.5, 1.0),
    "add50": (1.0, 1.5),
}

#: A workload that needs more starts than this needs another design (004.27).
REASONABLE_ATTEMPTS_MAX = 10


#: In ``retry_on`` they name every error, and so none.
CATCH_ALL_NAMES = frozenset(["builtins.Exception", "builtins.BaseException", "Exception", "BaseException"])

PoisonAfter = int | Literal["evidence"] | None

POISON_SECONDS = 60.0  # a restart of a service and a short maintenance are over by then

_STARTS = "the first start counts too"
_EXCEPTIONS = option_types.name_tuple("exception names", "'builtins.ConnectionError'")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The rules of retries: the number of starts, the failures that are tried again, and the waits before.

    The wait after the first failure is drawn below ``base``; each further one below ``factor`` times the last bound, up
    to ``cap``. A wait that the downstream asks for (``RetryAfter``) is added. Waits are seconds, or texts such
    as "90s", "10m".

    Parameters:
        max_attempts: starts in all, the first included: a whole number of at least 1.
        base: the bound of the first wait, 0 or more.
        cap: the longest bound of a wait, 0 or more.
        factor: a number of at least 1.
        jitter: where below the bound the wait is drawn. "full": from 0 to the bound; "equal": from half of it;
            "none": the bound itself; "decorrelated": from ``base`` to three times the wait before, at most ``cap``;
            "add50": from the bound to one and a half of it. The first four are those of Brooker, "Exponential Backoff
            And Jitter", AWS Architecture Blog, 2015: full and equal made the fewest calls there, full in less time.
        max_elapsed: no retry starts later than this after the first start; for a sensor, the bound of the whole wait.
            None: no bound.
        retry_on: names of exceptions ("TimeoutError", "mylib.Busy"), bases included: these are tried again, and no
            others. Empty: each failure as it is classified.
        never_retry: names of exceptions that are never tried again.
        poison_after: which repeated failures are poison, so that the task becomes a dead letter and its attempts are
            kept. "evidence": An error that repeats by its type (KeyError, TypeError, ZeroDivisionError, ...) is poison
            at the second identical failure in a row with nothing changed between; an error about what was read
            (KeyError, JSONDecodeError, ...) in a task with a downstream is poison only if such failures span
            ``poison_seconds``; once three siblings are poison by one failure, that failure is poison at once. A number:
            identical failures in a row (the same code at the same place) of any type that is not transient: 1 is the
            first, 2 the second, 3 suits flaky programs; 0: any failure at all, a transient one too. None: never. The
            exit code of a shell command says too little to be poison, except with 0: the command is tried until its
            attempts are spent, or until its output names a class.
        ambiguous_attempts: the number of ambiguous failures, at least 1, alike or not, that count as a permanent one.
        poison_seconds: the time from the first to the last failure that "evidence" asks for in a task with a
            downstream, 0 or more. The last attempt waits for it.

    Raises:
        OptionError: (a ValueError) a field has a wrong value; the sentence names it.

    Example:
        >>> policy = RetryPolicy(max_attempts=5, base=2, cap="10m")
        >>> [wait.ceiling for wait in planned_waits(policy)]
        [2.0, 4.0, 8.0, 16.0]
        >>> RetryPolicy(jitter="some")
        Traceback (most recent call last):
        ...
        redrive.engine.errors.OptionError: jitter is one of none, full, equal, decorrelated, add50, not 'some'
    """

    max_attempts: Annotated[int, whole_number(1, _STARTS)] = MAX_ATTEMPTS
    base: Annotated[float, duration()] = 2.0
    cap: Annotated[float, duration()] = 600.0
    factor: Annotated[float, number(1)] = 2.0
    jitter: Annotated[Jitter, option_types.choice(*get_args(Jitter))] = "full"
    max_elapsed: Annotated[float | None, option_types.optional(duration())] = None
    retry_on: Annotated[tuple[str, ...], _EXCEPTIONS] = ()  # empty: as classified
    never_retry: Annotated[tuple[str, ...], _EXCEPTIONS] = ()
    poison_after: Annotated[
        PoisonAfter,
        option_types.optional(option_types.either("evidence", whole_number(0)), "no failure counts as poison"),
    ] = "evidence"
    ambiguous_attempts: Annotated[int, whole_number(1, _STARTS)] = 3
    poison_seconds: Annotated[float, duration()] = POISON_SECONDS

    if TYPE_CHECKING:  # arguments have wider types than fields

        def __init__(
            self,
            max_attempts: int = 3,
            base: Duration = 2.0,
            cap: Duration = 600.0,
            factor: float = 2.0,
            jitter: Jitter = "full",
            max_elapsed: Duration | None = None,
            retry_on: tuple[str, ...] | list[str] = (),
            never_retry: tuple[str, ...] | list[str] = (),
            poison_after: PoisonAfter = "evidence",
            ambiguous_attempts: int = 3,
            poison_seconds: Duration = 60.0,
        ) -> None: ...

    def __post_init__(self) -> None:
        values = _values_of(self)
        types = tuple(map(type, values))
        try:
            parsed = _parse_once(values, types)
        except TypeError:  # a list
            parsed = _parse(values, types)
        for name, value, option in zip(_OPTION_TYPES, values, parsed, strict=True):
            if option is not value:
                object.__setattr__(self, name, option)


_OPTION_TYPES = option_types.table_of(RetryPolicy)
_values_of = attrgetter(*_OPTION_TYPES)


def _parse(values: tuple[object, ...], types: tuple[type, ...]) -> tuple[object, ...]:
    """Return the options of a policy in the engine's form. Raises OptionError. ``types`` distinguishes True from 1."""
    return tuple(map(option_types.parse_option, _OPTION_TYPES, _OPTION_TYPES.values(), values))


_parse_once = lru_cache(maxsize=256)(_parse)  # each task is read with a policy of its own, and few of them differ


def fixed_policy(delay_seconds: float = 30.0, max_attempts: int = 3) -> RetryPolicy:
    """Return a policy with a constant delay, to compare others with."""
    return RetryPolicy(max_attempts, base=delay_seconds, cap=delay_seconds, factor=1.0, jitter="none")


def ceiling(policy: RetryPolicy, retry_index: int) -> float:
    """Return the exponential delay in seconds of the retry after failure ``retry_index`` (0: the first).

    Raises ValueError for a negative index. A large index gives the cap.
    """
    if retry_index < 0:
        raise ValueError(f"retry_index counts from 0, not {retry_index}")
    if policy.base == 0:
        return 0.0
    try:
        return min(float(policy.cap), policy.base * float(policy.factor) ** retry_index)
    except OverflowError:
        return float(policy.cap)


def bounds(policy: RetryPolicy, retry_index: int) -> tuple[float, float]:
    """Return the shortest and the longest delay in seconds that ``draw_delay`` can return at this index."""
    if policy.jitter != "decorrelated":
        low, high = JITTER_RANGES[policy.jitter]
        exponential = ceiling(policy, retry_index)
        return low * exponential, high * exponential
    tripling = RetryPolicy(base=policy.base, cap=policy.cap, factor=3.0)  # at most three times the delay before
    return min(policy.base, policy.cap), ceiling(tripling, retry_index + 1)


def draw_delay(
    policy: RetryPolicy, retry_index: int, previous_delay: float | None, uniform: Uniform
) -> tuple[float, float]:
    """Draw one delay. Returns it and the longest possible one, in seconds.

    ``previous_delay`` is the delay drawn before this one (None: there was none); only "decorrelated" uses it.
    ``uniform(low, high)`` returns a random number.
    """
    if policy.jitter == "decorrelated":
        previous = max(policy.base, policy.base if previous_delay is None else previous_delay)
        low, high = min(policy.base, policy.cap), 3 * previous
        return min(policy.cap, uniform(low, high)), min(policy.cap, high)
    low, high = bounds(policy, retry_index)
    return (high if low == high else uniform(low, high)), high


def add_retry_after(floor_seconds: float | None, delay: float, longest: float) -> tuple[float, float]:
    """Add the wait that a downstream asked for (Retry-After) to a drawn delay and to its ceiling.

    The sum, not the larger of both: clients that got the same Retry-After must not return in the same second.
    """
    if floor_seconds is None or floor_seconds <= 0:
        return delay, longest
    return floor_seconds + delay, floor_seconds + longest


class PlannedWait(msgspec.Struct, frozen=True):
    """A delay of a policy, in seconds. The totals include this delay and all before it."""

    retry_index: int
    ceiling: float  # the exponential delay, before jitter
    shortest: float
    mean: float
    longest: float
    longest_total: float
    mean_total: float


def planned_waits(policy: RetryPolicy) -> Iterator[PlannedWait]:
    """Yield all delays that a policy grants."""
    longest_total = mean_total = 0.0
    for index in range(policy.max_attempts - 1):
        shortest, longest = bounds(policy, index)
        mean = (shortest + longest) / 2
        longest_total += longest
        mean_total += mean
        yield PlannedWait(index, ceiling(policy, index), shortest, mean, longest, longest_total, mean_total)


def worst_case_wait_seconds(policy: RetryPolicy) -> float:
    """Return the sum of the longest waits between all starts that the policy grants: 6 s for base 2 and three starts.

    Starts times cap would be two hundred times that.
    """
    return _sum_of_waits(policy, lambda index: bounds(policy, index)[1])


def mean_wait_seconds(policy: RetryPolicy) -> float:
    """Return the sum of the mean waits: half the worst case under full jitter; too high for "decorrelated"."""
    return _sum_of_waits(policy, lambda index: sum(bounds(policy, index)) / 2)


def worst_case_elapsed_seconds(policy: RetryPolicy, timeout: float | None, grace_seconds: float = 0.0) -> float:
    """Return the longest time from the first start to giving up: every start runs to its kill, every wait is longest.

    ``timeout`` None: a start has no bound, and the result is infinite.
    """
    if timeout is None:
        return math.inf
    one_start = timeout + grace_seconds
    total = policy.max_attempts * one_start + worst_case_wait_seconds(policy)
    if policy.max_elapsed is None:
        return total
    # A start before the bound may still run its whole time.
    return min(total, policy.max_elapsed + one_start)


def policy_warnings(policy: RetryPolicy, round_trip_seconds: float | None = None) -> tuple[str, ...]:
    """Return warnings about a valid policy, one sentence each.

    ``round_trip_seconds`` is the median observed duration of one start, if any is known.
    """
    found = []
    if policy.max_attempts > REASONABLE_ATTEMPTS_MAX:
        found.append(f"{policy.max_attempts} starts: what needs more than {REASONABLE_ATTEMPTS_MAX} needs a redesign")
    if policy.max_attempts > 1:
        if policy.jitter == "none":
            found.append("no jitter: tasks that failed together will retry together")
        if policy.base == 0:
            found.append("base 0: retries without a wait hammer what has just failed")
        elif round_trip_seconds is not None and policy.base < round_trip_seconds:
            found.append(f"base {policy.base:g} s is shorter than one round trip ({round_trip_seconds:g} s)")
    broad = CATCH_ALL_NAMES.intersection(policy.retry_on)
    if broad:
        found.append(f"retry_on {sorted(broad)[0]}: name the errors that can heal instead")
    return tuple(found)


def _sum_of_waits(policy: RetryPolicy, wait: Callable[[int], float]) -> float:
    """Add delays until they stop growing, then multiply: a policy may grant a million starts."""
    total, retries = 0.0, policy.max_attempts - 1
    for index in range(retries):
        if bounds(policy, index) == bounds(policy, index + 1):
            return total + wait(index) * (retries - index)
        total += wait(index)
    return total


# --- Settings of sends, from the environment -------------------------------------------------------------------------


#: 002.18 to 002.22: setting -> the variable after ``REDRIVE_``, or after ``DIGITALKIN_`` where that is not set.
_SEND_VARIABLES: Mapping[str, tuple[str, option_types.OptionType[float]]] = {
    "retries": ("SIGNAL_SEND_RETRIES", whole_number(0)),
    "backoff_ms": ("SIGNAL_SEND_BACKOFF_MS", number(0)),
    "timeout_seconds": ("GRPC_TIMEOUT", number(0)),
    "batch_size_max": ("SIGNAL_MAX_BATCH_SIZE", whole_number(1)),
    "flush_interval_seconds": ("SIGNAL_FLUSH_INTERVAL", number(0)),
}


def send_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that variables give. Raises OptionError, which names the variable."""
    found = {name: send_setting(environment, name) for name in _SEND_VARIABLES}
    return {name: value for name, value in found.items() if value is not None}


def send_setting(environment: Mapping[str, str], name: str) -> Any:
    """Return one setting that a variable gives; None if none does. Raises OptionError, which names the variable."""
    suffix, option_type = _SEND_VARIABLES[name]
    for variable in (f"REDRIVE_{suffix}", f"DIGITALKIN_{suffix}"):
        if text := environment.get(variable, "").strip():
            return option_types.parse_option(variable, option_type, option_types.read_number(text))
    return None
