"""A circuit breaker and a retry budget for one downstream: values in, new values out.

The breaker decides whether a task may call the downstream, the bucket whether a retry may. First tries are never
throttled. Two layers, because a breaker with few samples opens early, and a bucket throttles gradually.

::

    CLOSED --too many failures--> OPEN --reopens_at--> HALF_OPEN --all probes succeed--> CLOSED, released at a rate
       \\--credential refused--> HALF_OPEN                \\--a probe fails--> OPEN
                                                          \\--refused to a second task--> OPEN without an end
    by an operator: FORCED_OPEN (no call), DISABLED (every call, none counted), METRICS_ONLY (every call, all counted)

A refused credential may be the fault of one task, whose URL is forbidden, or of the credential of all. So the refusal
of the first task holds the others while one of them probes: if it is refused as well, the breaker stays open until an
operator acts (``REFUSALS_TO_OPEN``); if it succeeds, the breaker closes. A new run may probe once more
(``probe_for_new_run``).

Each change of state begins an episode. A call belongs to the episode that admitted it, and its outcome counts only
there: calls in flight when the breaker opened can neither open it again nor close it.

Times are microseconds UTC and arguments. The values are stored by ``to_row`` and restored by ``from_row``. Calls in
flight do not survive a restart, so a half-open breaker is restored as an open one that is due for a probe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypedDict

from .outcome import OUTAGE_CLASSES, FailureClass
from .spec import DownstreamSpec

#: A window has this many slices: exact to a tenth, and its size does not depend on the load.
SLICES = 10

#: With this share of successes that needed a retry, a downstream is degraded although all calls complete.
DEGRADED_SHARE = 0.5

#: So many different tasks whose credential was refused, without a success between, open the breaker for all.
REFUSALS_TO_OPEN = 2

_SECOND = 1_000_000


class BreakerState(StrEnum):
    """Whether calls pass."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"
    FORCED_OPEN = "FORCED_OPEN"
    DISABLED = "DISABLED"
    METRICS_ONLY = "METRICS_ONLY"


#: States in which every call passes.
PASSING = frozenset([BreakerState.CLOSED, BreakerState.DISABLED, BreakerState.METRICS_ONLY])

#: States in which no call passes, except a probe once an OPEN breaker is due.
SHUT = frozenset([BreakerState.OPEN, BreakerState.FORCED_OPEN])


class WindowSlice(NamedTuple):
    """The calls that ended in one tenth of the window."""

    started_at: int
    successes: int = 0
    failures: int = 0
    recovered: int = 0  # successes that needed more than one try


@dataclass(frozen=True, slots=True)
class Breaker:
    """The state of the breaker of one downstream."""

    state: BreakerState = BreakerState.CLOSED
    window: tuple[WindowSlice, ...] = ()
    reopens_at: int | None = None  # OPEN: when probes may start; None: not before an operator acts
    episode: int = 0
    probes_free: int = 0  # HALF_OPEN: probes that may still start
    probes_needed: int = 0  # HALF_OPEN: probes that must still succeed
    release_at: int | None = None  # CLOSED, with paced calls: the next one not before this
    why: str = ""
    refused: tuple[str, ...] = ()  # tasks whose credential was refused since the last success

    @property
    def needs_operator(self) -> bool:
        """Whether no call passes until an operator acts."""
        return self.state in SHUT and self.reopens_at is None


@dataclass(frozen=True, slots=True)
class BreakerDetail:
    """Column ``detail`` of table ``breaker``, as JSON. Instants are microseconds UTC."""

    episode: int = 0
    release_at: int | None = None
    why: str = ""
    reserve_at: int = 0
    refused: tuple[str, ...] = ()


class BreakerColumns(TypedDict):
    """Columns of table ``breaker`` that hold a breaker and its bucket; ``window`` and ``detail`` are JSON."""

    state: str
    reopens_at: int | None
    window: str
    tokens: float | None
    detail: str


class StoredBreaker(BreakerColumns):
    """A row of table ``breaker`` without its key. ``changed_at``: microseconds UTC."""

    changed_at: int


class BreakerRecord(StoredBreaker):
    """A row of table ``breaker``."""

    downstream: str


class WindowTotals(NamedTuple):
    """Calls in the window that ends now; ``recovered``: successes that needed more than one try."""

    calls: int
    failures: int
    recovered: int


class CallPermit(NamedTuple):
    """A permission to call. The caller returns it with the outcome."""

    episode: int
    probe: bool = False


class Admission(NamedTuple):
    """The reply to a request for a call."""

    call: CallPermit | None  # None: refused for now
    retry_at: int | None = None  # when to ask again; None: after a change of state
    why: str = ""


def new_breaker(spec: DownstreamSpec) -> Breaker:
    """Return the breaker of a downstream that was never called."""
    return Breaker(BreakerState.METRICS_ONLY if spec.metrics_only else BreakerState.CLOSED)


def admit(breaker: Breaker, spec: DownstreamSpec, now: int) -> tuple[Breaker, Admission]:
    """Request one call. The caller returns the permit by ``record`` or ``release_call``."""
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
    task: str = "",
) -> Breaker:
    """Record the end of a call of ``task``.

    ``failure_class`` None: it succeeded, after ``failures_before`` failed tries.
    """
    if failure_class is FailureClass.AUTH and _confirms_refusal(breaker, call):
        return _refused(breaker, task)
    if call.episode != breaker.episode or breaker.state is BreakerState.DISABLED:
        return breaker
    metrics_only = breaker.state is BreakerState.METRICS_ONLY
    if failure_class is FailureClass.AUTH and not metrics_only:
        return _refused(breaker, task)
    if failure_class is not None and failure_class not in OUTAGE_CLASSES:
        return release_call(breaker, call)
    if breaker.state is BreakerState.HALF_OPEN:
        return _record_probe(breaker, spec, failure_class is None, now)
    breaker = replace(breaker, window=_counted(breaker, spec, failure_class is None, failures_before > 0, now))
    if failure_class is not None and not metrics_only and should_open(breaker, spec, now):
        calls, failures, _ = totals(breaker, spec, now)
        why = f"{failures} of {calls} calls failed in {spec.window_seconds:g} s"
        return _opened(breaker, now + _open_us(spec), why)
    return breaker


def _confirms_refusal(breaker: Breaker, call: CallPermit) -> bool:
    """Whether a call was admitted before the first refusal, which the breaker still examines."""
    examines = breaker.state is BreakerState.HALF_OPEN and len(breaker.refused) == 1
    return examines and call.episode == breaker.episode - 1


def _refused(breaker: Breaker, task: str) -> Breaker:
    """Apply the refusal of a task's credential: the first one is examined by a probe, a second one opens."""
    refused = breaker.refused if task in breaker.refused else (*breaker.refused, task)
    if len(refused) >= REFUSALS_TO_OPEN:
        why = f"credential refused to {refused[0]} and {refused[-1]}: waits for an operator"
        return replace(_opened(breaker, None, why), refused=refused)
    why = f"credential refused to {task}: one other task asks whether it is refused as well"
    return replace(_changed(breaker, BreakerState.HALF_OPEN, why), probes_free=1, probes_needed=1, refused=refused)


def release_call(breaker: Breaker, call: CallPermit) -> Breaker:
    """Return the permit of an uncounted call: cancelled, lost, deferred, or failed by the task itself."""
    if call.probe and call.episode == breaker.episode and breaker.state is BreakerState.HALF_OPEN:
        return replace(breaker, probes_free=breaker.probes_free + 1)
    return breaker


def shift_breaker(breaker: Breaker, jump_us: int) -> Breaker:
    """Move all instants by ``jump_us`` after a jump of the wall clock."""
    return replace(
        breaker,
        window=tuple(part._replace(started_at=part.started_at + jump_us) for part in breaker.window),
        reopens_at=None if breaker.reopens_at is None else breaker.reopens_at + jump_us,
        release_at=None if breaker.release_at is None else breaker.release_at + jump_us,
    )


# --- actions of an operator ---------------------------------------------------------------------------------------


def force_open(breaker: Breaker, why: str = "held by an operator") -> Breaker:
    """Let no call pass until an operator acts."""
    return replace(_opened(breaker, None, why), state=BreakerState.FORCED_OPEN)


def disable(breaker: Breaker, why: str = "") -> Breaker:
    """Let all calls pass and count none."""
    return Breaker(BreakerState.DISABLED, episode=breaker.episode + 1, why=why)


def reset(breaker: Breaker, spec: DownstreamSpec, now: int) -> Breaker:
    """Close the breaker. Waiting calls are released at the rate of the downstream."""
    if spec.metrics_only:
        return Breaker(BreakerState.METRICS_ONLY, episode=breaker.episode + 1)
    return _closed(breaker, spec, now)


def probe_now(breaker: Breaker, spec: DownstreamSpec) -> Breaker:
    """Admit probes at once: the credential was renewed, or an operator knows that the downstream is back."""
    probes = max(1, spec.probes)
    return replace(_changed(breaker, BreakerState.HALF_OPEN, breaker.why), probes_free=probes, probes_needed=probes)


def probe_for_new_run(breaker: Breaker, spec: DownstreamSpec) -> Breaker:
    """Let a new run ask once whether a refused credential is accepted now. What an operator holds open stays so."""
    if breaker.state is BreakerState.OPEN and breaker.reopens_at is None:
        return replace(probe_now(breaker, spec), probes_free=1, probes_needed=1)
    return breaker


# --- statistics ---------------------------------------------------------------------------------------------------


def totals(breaker: Breaker, spec: DownstreamSpec, now: int) -> WindowTotals:
    """Count the calls in the window that ends now."""
    window = _current(breaker.window, spec, now)
    failures = sum(part.failures for part in window)
    successes = sum(part.successes for part in window)
    return WindowTotals(failures + successes, failures, sum(part.recovered for part in window))


def should_open(breaker: Breaker, spec: DownstreamSpec, now: int) -> bool:
    """True if the failure rate of the window opens the breaker. Below ``minimum_calls`` it never does."""
    calls, failures, _ = totals(breaker, spec, now)
    return calls >= max(1, spec.minimum_calls) and failures > 0 and failures / calls >= spec.failure_rate


def is_degraded(breaker: Breaker, spec: DownstreamSpec, now: int) -> bool:
    """True if most successes needed a retry: a warning before an outage."""
    calls, failures, recovered = totals(breaker, spec, now)
    successes = calls - failures
    return successes >= max(1, spec.minimum_calls) and recovered / successes >= DEGRADED_SHARE


class ProbeCandidate(NamedTuple):
    """A task that waits for the downstream and could be the probe."""

    name: str
    idempotent: bool = True
    seconds: float | None = None  # expected duration, by history


def choose_probe(candidates: Iterable[ProbeCandidate]) -> ProbeCandidate | None:
    """Return the cheapest idempotent task; without one, the cheapest of all, or the breaker would never close."""
    return min(
        candidates,
        key=lambda one: (not one.idempotent, one.seconds is None, one.seconds or 0.0, one.name),
        default=None,
    )


# --- the retry bucket ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bucket:
    """The retry budget of a downstream. A retry costs one token, a success refills a fraction."""

    tokens: float
    reserve_at: int = 0  # when an empty bucket admits the next retry


def new_bucket(spec: DownstreamSpec) -> Bucket:
    """Return a full bucket."""
    return Bucket(spec.bucket_capacity)


def acquire_token(bucket: Bucket, spec: DownstreamSpec, now: int) -> tuple[Bucket, Admission]:
    """Request one retry. An empty bucket admits one every ``open_seconds``.

    Without that reserve, a run with only retries left would have no success that refills the bucket.
    """
    next_reserve = now + _open_us(spec)
    if bucket.tokens >= 1:
        return Bucket(bucket.tokens - 1, next_reserve), Admission(CallPermit(0))
    reserve_at = min(bucket.reserve_at, next_reserve)  # limits the wait after a clock that was ahead
    if now >= reserve_at:
        return Bucket(bucket.tokens, next_reserve), Admission(CallPermit(0), why="on the reserve")
    return replace(bucket, reserve_at=reserve_at), Admission(None, reserve_at, "the retry budget is spent")


def shift_bucket(bucket: Bucket, jump_us: int) -> Bucket:
    """Move the instant of the bucket by ``jump_us`` after a jump of the wall clock."""
    return replace(bucket, reserve_at=bucket.reserve_at + jump_us) if bucket.reserve_at else bucket


def refund(bucket: Bucket, spec: DownstreamSpec) -> Bucket:
    """Add the tokens of one success."""
    return replace(bucket, tokens=min(spec.bucket_capacity, bucket.tokens + spec.bucket_refund))


# --- as a row of the state file -----------------------------------------------------------------------------------


def to_row(breaker: Breaker, bucket: Bucket) -> BreakerColumns:
    """Return the columns of table ``breaker``."""
    detail = asdict(BreakerDetail(breaker.episode, breaker.release_at, breaker.why, bucket.reserve_at, breaker.refused))
    return {
        "state": str(breaker.state),
        "reopens_at": breaker.reopens_at,
        "window": json.dumps(breaker.window, separators=(",", ":")),
        "tokens": bucket.tokens,
        "detail": json.dumps(detail, separators=(",", ":")),
    }


def from_row(row: BreakerColumns, spec: DownstreamSpec) -> tuple[Breaker, Bucket]:
    """Restore the values that ``to_row`` stored. A half-open breaker becomes an open one that is due for a probe."""
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
        release_at=detail.get("release_at") if spec.release_per_second > 0 else None,
        why=detail.get("why", ""),
        refused=tuple(detail.get("refused", ())),
    )
    tokens = spec.bucket_capacity if row["tokens"] is None else min(row["tokens"], spec.bucket_capacity)
    return breaker, Bucket(tokens, detail.get("reserve_at", 0))


# --- transitions --------------------------------------------------------------------------------------------------


def _changed(breaker: Breaker, state: BreakerState, why: str, window: tuple[WindowSlice, ...] = ()) -> Breaker:
    return Breaker(state, window, episode=breaker.episode + 1, why=why, refused=breaker.refused)


def _opened(breaker: Breaker, reopens_at: int | None, why: str) -> Breaker:
    return replace(_changed(breaker, BreakerState.OPEN, why, breaker.window), reopens_at=reopens_at)


def _half_opened(breaker: Breaker, spec: DownstreamSpec, now: int) -> Breaker:
    """Half-open the breaker if it is due. A clock that was set back does not lengthen the wait."""
    if breaker.reopens_at is None:
        return breaker
    reopens_at = min(breaker.reopens_at, now + _open_us(spec))
    return probe_now(breaker, spec) if now >= reopens_at else replace(breaker, reopens_at=reopens_at)


def _closed(breaker: Breaker, spec: DownstreamSpec, now: int) -> Breaker:
    paced = spec.release_per_second > 0
    return replace(_changed(breaker, BreakerState.CLOSED, ""), release_at=now if paced else None, refused=())


def _admit_probe(breaker: Breaker) -> tuple[Breaker, Admission]:
    if breaker.probes_free < 1:
        return breaker, Admission(None, None, "a probe is on its way")
    return replace(breaker, probes_free=breaker.probes_free - 1), Admission(CallPermit(breaker.episode, probe=True))


def _admit_paced(breaker: Breaker, spec: DownstreamSpec, now: int) -> tuple[Breaker, Admission]:
    """Admit calls at a rate, so that they do not arrive all at once. Pacing ends once a permitted call is not used."""
    assert breaker.release_at is not None
    interval = int(_SECOND / spec.release_per_second)
    release_at = min(breaker.release_at, now + interval)  # limits the wait after a clock that was ahead
    if now < release_at:
        return replace(breaker, release_at=release_at), Admission(
            None, release_at, f"released at {spec.release_per_second:g}/s"
        )
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
    """Drop slices that are too old, and slices in the future of a clock that was set back."""
    oldest = now - int(spec.window_seconds * _SECOND)
    return tuple(part for part in window if oldest < part.started_at + _slice_us(spec) and part.started_at <= now)


def _slice_us(spec: DownstreamSpec) -> int:
    return max(1, int(spec.window_seconds * _SECOND) // SLICES)


def _open_us(spec: DownstreamSpec) -> int:
    return int(spec.open_seconds * _SECOND)
