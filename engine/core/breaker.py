"""A circuit breaker and a retry budget for one downstream: values in, new values out.

The breaker answers "may anyone call it now?", the bucket "may a retry?". First tries are never throttled: they are the
work. Two layers because they fail differently: a breaker with few samples trips early, a bucket degrades smoothly.

::

    CLOSED --too many failures--> OPEN --reopens_at--> HALF_OPEN --all probes succeed--> CLOSED, released at a rate
       \\--credential refused--> OPEN without an end      \\--a probe fails--> OPEN
    by an operator: FORCED_OPEN (nobody), DISABLED (everybody, nothing is counted), METRICS_ONLY (everybody, counted)

Each change of state begins an episode. A call knows the episode in which it was let through, and its outcome counts
only there: what was on its way when the breaker opened can neither open it again nor close it.

Times are microseconds UTC and arguments. Whoever holds the values stores them (``to_row``), so that a restart forgets
nothing; calls on their way do not survive one, so a half-open breaker is stored as an open one whose time has come.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from .outcome import FailureClass
from .spec import DownstreamSpec

#: A window is counted in this many slices: exact to a tenth, and its size does not depend on the load.
SLICES = 10

#: From this share of successes that needed a retry on, a downstream is degraded although everything completes.
DEGRADED_SHARE = 0.5

#: Only these say something about the downstream. A bad row or a bug must not close it to everybody.
COUNTED = frozenset([FailureClass.TRANSIENT, FailureClass.TIMEOUT, FailureClass.AMBIGUOUS])

_SECOND = 1_000_000


class BreakerState(StrEnum):
    """Whether calls pass."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"
    FORCED_OPEN = "FORCED_OPEN"
    DISABLED = "DISABLED"
    METRICS_ONLY = "METRICS_ONLY"


#: In these every call passes.
PASSING = frozenset([BreakerState.CLOSED, BreakerState.DISABLED, BreakerState.METRICS_ONLY])

#: In these no call passes, unless a time has come at which an OPEN one lets a probe through.
SHUT = frozenset([BreakerState.OPEN, BreakerState.FORCED_OPEN])


class WindowSlice(NamedTuple):
    """What ended in one tenth of the window."""

    started_at: int
    successes: int = 0
    failures: int = 0
    recovered: int = 0  # of the successes: those that needed more than one try


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker of one downstream at one moment."""

    state: BreakerState = BreakerState.CLOSED
    window: tuple[WindowSlice, ...] = ()
    reopens_at: int | None = None  # OPEN: when probes may go; None: not before an operator says so
    episode: int = 0
    probes_free: int = 0  # HALF_OPEN: how many may still be sent
    probes_needed: int = 0  # HALF_OPEN: how many must still succeed
    release_at: int | None = None  # CLOSED, but what was held goes one by one: the next one not before this
    why: str = ""


@dataclass(frozen=True, slots=True)
class BreakerDetail:
    """What table ``breaker`` keeps as JSON in column ``detail``. Instants in microseconds UTC."""

    episode: int = 0
    release_at: int | None = None
    why: str = ""
    reserve_at: int = 0


class CallPermit(NamedTuple):
    """A permission to call. To be kept with the attempt and given back with its outcome."""

    episode: int
    probe: bool = False


class Admission(NamedTuple):
    """The answer to one that wants to call."""

    call: CallPermit | None  # None: not now
    retry_at: int | None = None  # when asking again may help; None: when the state changes
    why: str = ""


def new_breaker(spec: DownstreamSpec) -> Breaker:
    """Return the breaker of a downstream that was never called."""
    return Breaker(BreakerState.METRICS_ONLY if spec.metrics_only else BreakerState.CLOSED)


def admit(breaker: Breaker, spec: DownstreamSpec, now: int) -> tuple[Breaker, Admission]:
    """Ask for one call. A probe or a paced release that is granted is taken: give it back with ``record``."""
    if breaker.state is BreakerState.OPEN:
        breaker = _half_opened(breaker, spec, now)
    match breaker.state:
        case BreakerState.FORCED_OPEN | BreakerState.OPEN:
            return breaker, Admission(None, breaker.reopens_at, breaker.why)
        case BreakerState.HALF_OPEN:
            return _admit_probe(breaker)
        case BreakerState.CLOSED if breaker.release_at is not None:
            return _admit_paced(breaker, spec, now)
        case _:
            return breaker, Admission(CallPermit(breaker.episode))


def record(
    breaker: Breaker,
    spec: DownstreamSpec,
    call: CallPermit,
    failure_class: FailureClass | None,
    now: int,
    failures_before: int = 0,
) -> Breaker:
    """Tell how a call ended. ``failure_class`` None: it succeeded, after ``failures_before`` failed tries."""
    if call.episode != breaker.episode or breaker.state is BreakerState.DISABLED:
        return breaker
    metrics_only = breaker.state is BreakerState.METRICS_ONLY
    if failure_class is FailureClass.AUTH and not metrics_only:
        return _opened(breaker, None, "credential refused: waits for an operator")
    if failure_class is not None and failure_class not in COUNTED:
        return release_call(breaker, call)
    if breaker.state is BreakerState.HALF_OPEN:
        return _record_probe(breaker, spec, failure_class is None, now)
    breaker = replace(breaker, window=_counted(breaker, spec, failure_class is None, failures_before > 0, now))
    if failure_class is not None and not metrics_only and should_open(breaker, spec, now):
        calls, failures, _ = totals(breaker, spec, now)
        why = f"{failures} of {calls} calls failed in {spec.window_seconds:g} s"
        return _opened(breaker, now + _open_us(spec), why)
    return breaker


def release_call(breaker: Breaker, call: CallPermit) -> Breaker:
    """Give a call back that says nothing about the downstream: cancelled, lost, deferred, failed by its own fault."""
    if call.probe and call.episode == breaker.episode and breaker.state is BreakerState.HALF_OPEN:
        return replace(breaker, probes_free=breaker.probes_free + 1)
    return breaker


def shift_breaker(breaker: Breaker, jump_us: int) -> Breaker:
    """Return the breaker after the wall clock was moved by so much: what it waits for is as far away as before."""
    return replace(
        breaker,
        window=tuple(part._replace(started_at=part.started_at + jump_us) for part in breaker.window),
        reopens_at=None if breaker.reopens_at is None else breaker.reopens_at + jump_us,
        release_at=None if breaker.release_at is None else breaker.release_at + jump_us,
    )


# --- what an operator may do --------------------------------------------------------------------------------------


def force_open(breaker: Breaker, why: str = "held by an operator") -> Breaker:
    """Let nobody through until an operator says otherwise."""
    return replace(_opened(breaker, None, why), state=BreakerState.FORCED_OPEN)


def disable(breaker: Breaker, why: str = "") -> Breaker:
    """Let everybody through and count nothing."""
    return Breaker(BreakerState.DISABLED, episode=breaker.episode + 1, why=why)


def reset(breaker: Breaker, spec: DownstreamSpec, now: int) -> Breaker:
    """Close it by hand. What was held is released at the rate all the same."""
    if spec.metrics_only:
        return Breaker(BreakerState.METRICS_ONLY, episode=breaker.episode + 1)
    return _closed(breaker, spec, now)


def probe_now(breaker: Breaker, spec: DownstreamSpec) -> Breaker:
    """Ask the downstream at once: its credential was renewed, or somebody knows that it is back."""
    probes = max(1, spec.probes)
    return replace(_changed(breaker, BreakerState.HALF_OPEN, breaker.why), probes_free=probes, probes_needed=probes)


# --- what the console shows ---------------------------------------------------------------------------------------


def totals(breaker: Breaker, spec: DownstreamSpec, now: int) -> tuple[int, int, int]:
    """Return calls, failures and recovered successes in the window that ends now."""
    window = _current(breaker.window, spec, now)
    failures = sum(part.failures for part in window)
    return (
        failures + sum(part.successes for part in window),
        failures,
        sum(part.recovered for part in window),
    )


def should_open(breaker: Breaker, spec: DownstreamSpec, now: int) -> bool:
    """Tell whether the window says "open". A rate means nothing below ``minimum_calls``."""
    calls, failures, _ = totals(breaker, spec, now)
    return calls >= max(1, spec.minimum_calls) and failures > 0 and failures / calls >= spec.failure_rate


def is_degraded(breaker: Breaker, spec: DownstreamSpec, now: int) -> bool:
    """Tell whether most successes needed a retry: the warning before the outage (document 004)."""
    calls, failures, recovered = totals(breaker, spec, now)
    successes = calls - failures
    return successes >= max(1, spec.minimum_calls) and recovered / successes >= DEGRADED_SHARE


class ProbeCandidate(NamedTuple):
    """A task that waits for the downstream and could be the probe."""

    name: str
    idempotent: bool = True
    seconds: float | None = None  # expected duration, by history


def choose_probe(candidates: Iterable[ProbeCandidate]) -> ProbeCandidate | None:
    """Return the cheapest idempotent task. With none, the cheapest of all: or the breaker would never close."""
    return min(
        candidates,
        key=lambda one: (not one.idempotent, one.seconds is None, one.seconds or 0.0, one.name),
        default=None,
    )


# --- the retry bucket ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many retries the downstream still affords. Successes refill it slowly, retries cost one each."""

    tokens: float
    reserve_at: int = 0  # when an empty bucket lets the next one through all the same


def new_bucket(spec: DownstreamSpec) -> Bucket:
    """Return a full bucket."""
    return Bucket(spec.bucket_capacity)


def acquire_token(bucket: Bucket, spec: DownstreamSpec, now: int) -> tuple[Bucket, Admission]:
    """Ask for one retry. An empty bucket still lets one through every ``open_seconds``.

    That reserve keeps the bucket alive: when all that is left are retries, no success would ever refill it.
    """
    next_reserve = now + _open_us(spec)
    if bucket.tokens >= 1:
        return Bucket(bucket.tokens - 1, next_reserve), Admission(CallPermit(0))
    reserve_at = min(bucket.reserve_at, next_reserve)  # a clock that was ahead must not hold it for years
    if now >= reserve_at:
        return Bucket(bucket.tokens, next_reserve), Admission(CallPermit(0), why="on the reserve")
    return replace(bucket, reserve_at=reserve_at), Admission(None, reserve_at, "the retry budget is spent")


def shift_bucket(bucket: Bucket, jump_us: int) -> Bucket:
    """Return the bucket after the wall clock was moved by so much."""
    return replace(bucket, reserve_at=bucket.reserve_at + jump_us) if bucket.reserve_at else bucket


def refund(bucket: Bucket, spec: DownstreamSpec) -> Bucket:
    """Put back a success's share."""
    return replace(bucket, tokens=min(spec.bucket_capacity, bucket.tokens + spec.bucket_refund))


# --- as a row of the state file -----------------------------------------------------------------------------------


def to_row(breaker: Breaker, bucket: Bucket) -> dict[str, object]:
    """Return the columns of table ``breaker``, without the name and the instant."""
    detail = asdict(BreakerDetail(breaker.episode, breaker.release_at, breaker.why, bucket.reserve_at))
    return {
        "state": str(breaker.state),
        "reopens_at": breaker.reopens_at,
        "window": json.dumps(breaker.window, separators=(",", ":")),
        "tokens": bucket.tokens,
        "detail": json.dumps(detail, separators=(",", ":")),
    }


def from_row(row: Mapping[str, Any], spec: DownstreamSpec) -> tuple[Breaker, Bucket]:
    """Read what ``to_row`` wrote. A half-open breaker comes back open and ready to be probed."""
    detail = json.loads(row["detail"])
    state, reopens_at = BreakerState(row["state"]), row["reopens_at"]
    if state is BreakerState.HALF_OPEN:
        state, reopens_at = BreakerState.OPEN, 0
    if spec.metrics_only and state in (BreakerState.CLOSED, BreakerState.OPEN):
        state = BreakerState.METRICS_ONLY
    if not spec.metrics_only and state is BreakerState.METRICS_ONLY:
        state = BreakerState.CLOSED
    breaker = Breaker(
        state=state,
        window=tuple(WindowSlice(*part) for part in json.loads(row["window"])),
        reopens_at=reopens_at if state is BreakerState.OPEN else None,
        episode=detail.get("episode", 0) + 1,
        release_at=detail.get("release_at"),
        why=detail.get("why", ""),
    )
    tokens = spec.bucket_capacity if row["tokens"] is None else min(row["tokens"], spec.bucket_capacity)
    return breaker, Bucket(tokens, detail.get("reserve_at", 0))


# --- the moves ----------------------------------------------------------------------------------------------------


def _changed(breaker: Breaker, state: BreakerState, why: str, window: tuple[WindowSlice, ...] = ()) -> Breaker:
    return Breaker(state, window, episode=breaker.episode + 1, why=why)


def _opened(breaker: Breaker, reopens_at: int | None, why: str) -> Breaker:
    return replace(_changed(breaker, BreakerState.OPEN, why, breaker.window), reopens_at=reopens_at)


def _half_opened(breaker: Breaker, spec: DownstreamSpec, now: int) -> Breaker:
    """When its time has come. A clock that was set back must not hold it longer than it was meant to."""
    if breaker.reopens_at is None:
        return breaker
    reopens_at = min(breaker.reopens_at, now + _open_us(spec))
    return probe_now(breaker, spec) if now >= reopens_at else replace(breaker, reopens_at=reopens_at)


def _closed(breaker: Breaker, spec: DownstreamSpec, now: int) -> Breaker:
    paced = spec.release_per_second > 0
    return replace(_changed(breaker, BreakerState.CLOSED, ""), release_at=now if paced else None)


def _admit_probe(breaker: Breaker) -> tuple[Breaker, Admission]:
    if breaker.probes_free < 1:
        return breaker, Admission(None, None, "a probe is on its way")
    return replace(breaker, probes_free=breaker.probes_free - 1), Admission(CallPermit(breaker.episode, probe=True))


def _admit_paced(breaker: Breaker, spec: DownstreamSpec, now: int) -> tuple[Breaker, Admission]:
    """One by one, or the breaker itself would make the herd. Over when nobody came although somebody could have."""
    assert breaker.release_at is not None
    interval = int(_SECOND / spec.release_per_second)
    release_at = min(breaker.release_at, now + interval)
    if now < release_at:
        return breaker, Admission(None, release_at, f"released at {spec.release_per_second:g}/s")
    idle = now - release_at > max(interval, _SECOND)
    return replace(breaker, release_at=None if idle else now + interval), Admission(CallPermit(breaker.episode))


def _record_probe(breaker: Breaker, spec: DownstreamSpec, succeeded: bool, now: int) -> Breaker:
    if not succeeded:
        return _opened(breaker, now + _open_us(spec), "the probe failed")
    if breaker.probes_needed > 1:
        return replace(breaker, probes_needed=breaker.probes_needed - 1)
    return _closed(breaker, spec, now)


def _counted(
    breaker: Breaker, spec: DownstreamSpec, succeeded: bool, recovered: bool, now: int
) -> tuple[WindowSlice, ...]:
    width = _slice_us(spec)
    started_at = now - now % width
    window = _current(breaker.window, spec, now)
    last = window[-1] if window and window[-1].started_at == started_at else WindowSlice(started_at)
    earlier = tuple(part for part in window if part.started_at != started_at)
    added = WindowSlice(
        started_at,
        last.successes + succeeded,
        last.failures + (not succeeded),
        last.recovered + (succeeded and recovered),
    )
    return (*earlier, added)


def _current(window: tuple[WindowSlice, ...], spec: DownstreamSpec, now: int) -> tuple[WindowSlice, ...]:
    """Without what is too old; without what lies ahead, too: the clock was set back."""
    oldest = now - int(spec.window_seconds * _SECOND)
    return tuple(part for part in window if oldest < part.started_at + _slice_us(spec) and part.started_at <= now)


def _slice_us(spec: DownstreamSpec) -> int:
    return max(1, int(spec.window_seconds * _SECOND) // SLICES)


def _open_us(spec: DownstreamSpec) -> int:
    return int(spec.open_seconds * _SECOND)
