"""The circuit breaker of one downstream: values in, new values out.

The breaker decides whether a task may call the downstream, ``retry_budget.py`` whether a retry may.

::

    CLOSED --evidence of an outage--> OPEN --reopens_at--> HALF_OPEN --most probes succeed--> CLOSED, released at a rate
       \\--credential refused--> HALF_OPEN                    \\--most probes fail--> OPEN, for twice as long
                                                              \\--refused to a second task--> OPEN without an end
    by an operator: FORCED_OPEN (no call), DISABLED (every call, none counted), METRICS_ONLY (every call, all counted)

Two findings are evidence of an outage (``evidence_of_outage``). A sudden outage shows in the latest calls, a
sustained one in the rate of the window; both need so many calls that chance does not explain them: at an error rate of
0.3 neither opens, at 0.9 the first does after about 14 calls. Both need several tasks as well: what one task meets
again and again says something about the task (``call_failures.py``).

After the breaker has closed, calls start at ``release_per_second``, and each success raises the rate, so that it
doubles each second (as the slow start of TCP, RFC 5681); a failure halves the rate.

A refused credential may be the fault of one task, whose URL is forbidden, or of the credential of all. So the refusal
of the first task holds the others while one of them probes: if it is refused as well, the breaker stays open until an
operator acts (``REFUSALS_TO_OPEN``); if it succeeds, the breaker closes. A new run may probe once more
(``probe_for_new_run``).

Each change of state begins an episode. A call belongs to the episode that admitted it, and its outcome counts only
there: calls in flight when the breaker opened can neither open it again nor close it.

Times are microseconds UTC and arguments. ``encode`` makes the row of the state file, ``decode`` reads it, ``restore``
for another executor. Calls in flight do not survive a restart, so a half-open breaker is restored as an open one that
is due for a probe.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ..domain.breakers import HOLDING_BREAKERS, SHUT_BREAKERS, breaker_after
from ..domain.event_payloads import BreakerChanged
from ..domain.rows import BreakerRow
from .call_failures import SEVERAL_TASKS
from .outcome import OUTAGE_CLASSES, FailureClass
from .retry_budget import Bucket, bucket_size, new_bucket, next_retry_at
from .spec import DownstreamSpec

_SECOND = 1_000_000

#: A window has this many slices: exact to a tenth, and its size does not depend on the load.
SLICES = 10

#: With this share of successes that needed a retry, a downstream is degraded although all calls complete.
DEGRADED_SHARE = 0.5

#: A release counts as ongoing for this long after its latest start: the state file records no end.
RELEASE_WINDOW_US = 3 * _SECOND

#: Calls a second that a success adds to a release: a rate that grows by ln 2 of itself a second doubles each second.
RELEASE_GROWTH = 0.7

#: From this share of its tasks that fail on, a downstream is failing for others as well: it is charged with a failure.
FAILING_SHARE = 0.1

#: A task waits as long as its downstream asks (Retry-After); all others no longer than this, until one of them asks.
RETRY_AFTER_SECONDS_MAX = 300.0

#: So many different tasks whose credential was refused, without a success between, open the breaker for all.
REFUSALS_TO_OPEN = 2


class BreakerState(StrEnum):
    """Whether calls pass."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"
    FORCED_OPEN = "FORCED_OPEN"
    DISABLED = "DISABLED"
    METRICS_ONLY = "METRICS_ONLY"


class DownstreamHealth(StrEnum):
    """The share of its downstream in a failed call."""

    UP = "up"  # nothing: the failure is charged to the task
    SILENT = "silent"  # a transient failure, and no other task was answered since: the task is held with growing waits
    FAILING = "failing"  # calls of others fail as well: the downstream is charged, up to a limit
    DOWN = "down"  # as well, and the breaker is not closed, or releases what it held: the downstream is charged


class CallVerdict(NamedTuple):
    """The verdict on a downstream after a call. ``silent_seconds``: since when no call has succeeded."""

    health: DownstreamHealth = DownstreamHealth.UP
    silent_seconds: float = 0.0


#: States in which calls are held; in the others every call passes.
HOLDING = frozenset(map(BreakerState, HOLDING_BREAKERS))

#: States in which no call passes, except a probe once an OPEN breaker is due.
SHUT = frozenset(map(BreakerState, SHUT_BREAKERS))


class WindowSlice(NamedTuple):
    """The calls that ended in one tenth of the window, or in all of it."""

    started_at: int
    successes: int = 0
    failures: int = 0
    recovered: int = 0  # successes that needed more than one try
    repeats: int = 0  # failures that are no evidence: their task had met them before

    @property
    def calls(self) -> int:
        return self.successes + self.failures


class Streak(NamedTuple):
    """The latest calls, since the last instant at which successes outweighed the failures.

    A failure is no part of it if a call that started later has succeeded meanwhile: where failures take longer than
    successes, those of many tasks end one after another at any error rate.
    """

    calls: int = 0
    failures: int = 0
    answered: int = 0  # number of the latest start that has succeeded; not stored: each executor counts anew


class Probes(NamedTuple):
    """HALF_OPEN: how many probes there are, how many may still start, and how those that ended did."""

    total: int = 0
    free: int = 0
    succeeded: int = 0
    failed: int = 0

    @property
    def running(self) -> int:
        """The probes whose answer is due."""
        return self.total - self.free - self.succeeded - self.failed


_NO_STREAK, _NO_PROBES = Streak(), Probes()


class Breaker(msgspec.Struct, frozen=True):
    """The state of the breaker of one downstream."""

    state: BreakerState = BreakerState.CLOSED
    window: tuple[WindowSlice, ...] = ()
    streak: Streak = _NO_STREAK
    reopens_at: int | None = None  # OPEN: when probes may start; None: not before an operator acts
    openings: int = 0  # OPEN and HALF_OPEN: how often it has opened since it was closed
    episode: int = 0
    probes: Probes = _NO_PROBES  # HALF_OPEN
    release_at: int | None = None  # CLOSED, with paced calls: the next one not before this
    release_rate: float = 0.0  # calls a second, with paced calls
    why: str = ""
    refused: tuple[str, ...] = ()  # tasks whose credential was refused since the last success

    @property
    def needs_operator(self) -> bool:
        """Whether no call passes until an operator acts."""
        return self.state in SHUT and self.reopens_at is None

    def is_releasing(self, now: int) -> bool:
        """Whether calls start at a rate, because the breaker has closed a short time ago."""
        is_paced = self.state is BreakerState.CLOSED and self.release_at is not None
        return is_paced and (self.release_at or 0) + RELEASE_WINDOW_US > now


class CallPermit(NamedTuple):
    """A permission to call. The caller returns it with the outcome."""

    episode: int
    probe: bool = False
    number: int = 0  # of the call, in the order of the starts


class Admission(NamedTuple):
    """The reply to a request for a call."""

    call: CallPermit | None  # None: refused for now
    retry_at: int | None = None  # when to ask again; None: after a change of state


def new_breaker(spec: DownstreamSpec) -> Breaker:
    """Return the breaker of a downstream that was never called."""
    return Breaker(BreakerState.METRICS_ONLY if spec.metrics_only else BreakerState.CLOSED)


def admit(breaker: Breaker, spec: DownstreamSpec, now: int) -> tuple[Breaker, Admission]:
    """Request one call. The caller returns the permit by ``record`` or ``release_call``."""
    if breaker.state is BreakerState.OPEN:
        breaker = _half_opened(breaker, spec, now)
    match breaker.state:
        case BreakerState.FORCED_OPEN | BreakerState.OPEN:
            return breaker, Admission(None, breaker.reopens_at)
        case BreakerState.HALF_OPEN:
            return _admit_probe(breaker)
        case BreakerState.CLOSED if breaker.release_at is not None:
            return _admit_paced(breaker, now)
        case _:
            return breaker, Admission(CallPermit(breaker.episode))


class CallEnd(msgspec.Struct, frozen=True):
    """The end of a call. ``failure_class`` None: it succeeded."""

    task: str = ""
    failure_class: FailureClass | None = None
    failures_before: int = 0  # failed tries of the task before this one
    retry_after_seconds: float | None = None  # as the downstream asks
    is_by_text: bool = False  # only the text of a program's output says what the failure is
    is_repeat: bool = False  # a failure that its task has met before: counted, and no evidence
    tasks_failing: int = SEVERAL_TASKS  # this one included, counted up to ``SEVERAL_TASKS``

    @property
    def succeeded(self) -> bool:
        return self.failure_class is None


def record(breaker: Breaker, spec: DownstreamSpec, call: CallPermit, end: CallEnd, now: int) -> Breaker:
    if end.failure_class is FailureClass.AUTH and _confirms_refusal(breaker, call):
        return _refused(breaker, call, end)
    if call.episode != breaker.episode or breaker.state is BreakerState.DISABLED:
        return breaker
    metrics_only = breaker.state is BreakerState.METRICS_ONLY
    if end.failure_class is FailureClass.AUTH and not metrics_only:
        return _refused(breaker, call, end)
    if not end.succeeded and end.failure_class not in OUTAGE_CLASSES:
        return release_call(breaker, call)
    if breaker.state is BreakerState.HALF_OPEN:
        return _record_probe(breaker, spec, end, now)
    breaker = _paced_by(_counted(breaker, spec, call, end, now), spec, end, now)
    if end.succeeded or metrics_only:
        return breaker
    is_of_several = end.tasks_failing >= min(SEVERAL_TASKS, spec.minimum_calls)
    if is_of_several and (why := evidence_of_outage(breaker, spec, now)):
        return _opened(breaker, spec, now, why, end.retry_after_seconds)
    return breaker


def _confirms_refusal(breaker: Breaker, call: CallPermit) -> bool:
    """Whether a call was admitted before the first refusal, which the breaker still examines."""
    examines = breaker.state is BreakerState.HALF_OPEN and len(breaker.refused) == 1
    return examines and call.episode == breaker.episode - 1


def _refused(breaker: Breaker, call: CallPermit, end: CallEnd) -> Breaker:
    """Apply the refusal of a task's credential: the first one is examined by a probe, a second one opens.

    One that only a text says holds nobody by itself: a text quotes and counts.
    """
    task = end.task
    refused = breaker.refused if task in breaker.refused else (*breaker.refused, task)
    if len(refused) >= REFUSALS_TO_OPEN:
        why = f"credential refused to {refused[0]} and {refused[-1]}: waits for an operator"
        return replace(_shut(breaker, why), refused=refused)
    if end.is_by_text:
        return replace(release_call(breaker, call), refused=refused)
    why = f"credential refused to {task}: one other task asks whether it is refused as well"
    return replace(_half_open(breaker, 1, why), refused=refused)


def release_call(breaker: Breaker, call: CallPermit) -> Breaker:
    """Return the permit of an uncounted call: cancelled, lost, deferred, or failed by the task itself."""
    if call.probe and call.episode == breaker.episode and breaker.state is BreakerState.HALF_OPEN:
        return replace(breaker, probes=breaker.probes._replace(free=breaker.probes.free + 1))
    return breaker


# --- actions of an operator ---------------------------------------------------------------------------------------


def after_act(status: BreakerStatus, how: str, by: str, now: int) -> Breaker:
    """Return what an act of operator ``by`` makes of a breaker, by its row. ``how``: of ``BREAKER_ACTS``."""
    stored = decode(breaker_after(encode(status), how, by, now), status.spec).breaker
    return replace(_half_opened(stored, status.spec, now), episode=status.breaker.episode + 1)


def probe_now(breaker: Breaker, spec: DownstreamSpec) -> Breaker:
    """Admit probes at once: the credential was renewed, or an operator knows that the downstream is back."""
    return _half_open(breaker, max(1, spec.probes), breaker.why)


def open_by_hint(breaker: Breaker, spec: DownstreamSpec, now: int, hint: str, end: CallEnd) -> Breaker:
    """Open the breaker after one failed call of its own that confirms what another executor has found."""
    return _opened(breaker, spec, now, f"a call of {end.task} failed, and {hint}", end.retry_after_seconds)


def probe_for_new_run(breaker: Breaker, spec: DownstreamSpec) -> Breaker:
    """Let a new run ask once whether a refused credential is accepted now. What an operator holds open stays so."""
    if breaker.state is BreakerState.OPEN and breaker.reopens_at is None:
        return _half_open(breaker, 1, breaker.why)
    return breaker


# --- statistics ---------------------------------------------------------------------------------------------------


def totals(breaker: Breaker, spec: DownstreamSpec, now: int) -> WindowSlice:
    """Count the calls in the window that ends now."""
    window = _current(breaker.window, spec, now)
    return WindowSlice(
        now,
        successes=sum(part.successes for part in window),
        failures=sum(part.failures for part in window),
        recovered=sum(part.recovered for part in window),
        repeats=sum(part.repeats for part in window),
    )


def evidence_of_outage(breaker: Breaker, spec: DownstreamSpec, now: int) -> str:
    """Return why the calls so far open the breaker, in words; empty if they do not.

    Both rules need ``minimum_calls`` failures where no call succeeds, and more the more calls do:

    - The rate of the window is above ``failure_rate`` by more than chance explains: a one-sided score test (Wilson
      1927) whose level is that of ``minimum_calls`` failures in a row.
    - The failures of the latest calls outweigh the successes, of which each weighs ``1 / (1 - failure_rate)``: a
      cumulative sum (Page, "Continuous inspection schemes", 1954). Old successes do not hide a sudden outage from it.
    """
    found = totals(breaker, spec, now)
    if _is_significant(found.calls - found.repeats, found.failures - found.repeats, spec):
        return f"{found.failures} of {found.calls} calls failed in {spec.window_seconds:g} s"
    if _excess(breaker.streak, spec) >= max(1, spec.minimum_calls):
        return f"{breaker.streak.failures} of the last {breaker.streak.calls} calls failed"
    return ""


def _is_significant(calls: int, failures: int, spec: DownstreamSpec) -> bool:
    """Whether so many failures are above ``failure_rate`` by more than chance explains."""
    minimum, successes = max(1, spec.minimum_calls), calls - failures
    if calls < minimum or failures == 0:
        return False
    if spec.failure_rate >= 1:
        return successes == 0
    beyond = calls - successes / (1 - spec.failure_rate)  # calls, less those that the allowed rate explains
    return beyond > 0 and beyond * beyond >= minimum * calls


def _excess(streak: Streak, spec: DownstreamSpec) -> float:
    """Return the failures of the latest calls beyond what their successes outweigh."""
    successes = streak.calls - streak.failures
    if successes == 0:
        return streak.failures
    return 0.0 if spec.failure_rate >= 1 else streak.failures - successes / (1 - spec.failure_rate)


class ProbeCandidate(NamedTuple):
    """A task that waits for the downstream and could be the probe."""

    task: str
    idempotent: bool = True
    seconds: float | None = None  # expected duration, by history
    has_probed: bool = False  # in this outage


def choose_probe(candidates: Iterable[ProbeCandidate]) -> ProbeCandidate | None:
    """Return the cheapest idempotent task; without one, the cheapest of all, or the breaker would never close.

    Those come first that have not probed yet: one task that fails by itself would hold all others for ever.
    """
    return min(
        candidates,
        key=lambda one: (not one.idempotent, one.has_probed, one.seconds is None, one.seconds or 0.0, one.task),
        default=None,
    )


# --- the breaker of one downstream, in an executor, in its row, and on a screen ------------------------------------


class BreakerStatus(msgspec.Struct, frozen=True):
    """The breaker of one downstream with its budget. Instants: microseconds UTC.

    Attributes:
        changed_at: since when the breaker is in its state; None before the first call.
        opened_at: since when calls are held, whatever probes have found; None: they pass.
        held: the tasks that it keeps from starting; running: calls in progress. Both as far as they were counted.
    """

    spec: DownstreamSpec
    breaker: Breaker
    bucket: Bucket
    changed_at: int | None = None
    opened_at: int | None = None
    held: tuple[str, ...] = ()
    running: int = 0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def state(self) -> BreakerState:
        return self.breaker.state

    @property
    def since(self) -> int | None:
        """Since when calls are held; else since when it is in its state."""
        return self.opened_at or self.changed_at

    @property
    def reserve_at(self) -> int | None:
        """The instant at which an exhausted budget lets the next retry start; None: at once."""
        return next_retry_at(self.bucket, self.spec)

    @property
    def tokens(self) -> float:
        """The retries left, of a bucket of the size that the flow declares."""
        return min(self.bucket.tokens, bucket_size(self.spec))

    @property
    def why(self) -> str:
        """The reason of the state, or of the hold of tasks by a closed breaker, in one sentence; may be empty."""
        if self.breaker.why or not self.held or self.state is not BreakerState.CLOSED:
            return self.breaker.why
        return (
            f"released at {self.breaker.release_rate:.3g}/s" if self.breaker.release_at else "the retry budget is spent"
        )

    @property
    def is_blocking(self) -> bool:
        """Whether no call passes."""
        return self.state in SHUT

    @property
    def needs_human(self) -> bool:
        """Whether it needs the attention of a human."""
        return self.is_blocking

    @property
    def is_idle(self) -> bool:
        """Whether all calls pass and no task is held."""
        return self.state in (BreakerState.CLOSED, BreakerState.METRICS_ONLY) and not self.held

    def totals(self, now: int) -> WindowSlice:
        """Count the calls in the window that ends now."""
        return totals(self.breaker, self.spec, now)

    def would_open(self, now: int) -> bool:
        """Whether a breaker that only counts would be open."""
        is_counting = self.state is BreakerState.METRICS_ONLY
        return is_counting and bool(evidence_of_outage(self.breaker, self.spec, now))

    def is_degraded(self, now: int) -> bool:
        """Whether calls complete, but most of them only when retried: a warning before an outage."""
        found = self.totals(now)
        is_known = found.successes >= max(1, self.spec.minimum_calls)
        return is_known and found.recovered / found.successes >= DEGRADED_SHARE


def new_status(spec: DownstreamSpec, changed_at: int | None = None) -> BreakerStatus:
    """Return the breaker of a downstream that was never called."""
    return BreakerStatus(spec, new_breaker(spec), new_bucket(spec), changed_at)


_STORED = ("episode", "release_at", "why", "refused", "release_rate", "openings")  # fields in the column ``detail``


def encode(status: BreakerStatus) -> BreakerRow:
    breaker, bucket = status.breaker, status.bucket
    detail = {name: getattr(breaker, name) for name in _STORED}
    detail |= {"refilled_at": bucket.refilled_at, "streak": breaker.streak[:2]}
    stored = (str(breaker.state), breaker.reopens_at, breaker.window, bucket.tokens, detail)
    return BreakerRow(status.name, *stored, status.changed_at or 0, status.opened_at)


def decode(row: BreakerRow, spec: DownstreamSpec) -> BreakerStatus:
    """Return what a row says of a downstream as the flow declares it now: for the executor and for all who show it.

    A damaged detail counts as empty.
    """
    columns = {"state": row.state, "window": row.window or (), "reopens_at": row.reopens_at}
    try:
        stored = msgspec.convert({**row.detail, **columns}, Breaker)
        refilled_at = msgspec.convert(row.detail.get("refilled_at", 0), int)
    except (msgspec.ValidationError, TypeError, AttributeError):
        stored, refilled_at = msgspec.convert({**columns, "window": ()}, Breaker), 0
    is_open = stored.state is BreakerState.OPEN
    release_at = stored.release_at if spec.release_per_second > 0 else None
    breaker = replace(
        stored,
        reopens_at=stored.reopens_at if is_open else None,
        openings=stored.openings if is_open or stored.state is BreakerState.HALF_OPEN else 0,
        release_at=release_at,
        release_rate=0.0 if release_at is None else max(spec.release_per_second, stored.release_rate),
    )
    bucket = Bucket(bucket_size(spec) if row.tokens is None else row.tokens, refilled_at)
    return _dated(BreakerStatus(spec, _as_declared(breaker, spec), bucket, row.changed_at), row.since)


def _as_declared(breaker: Breaker, spec: DownstreamSpec) -> Breaker:
    """Return the breaker of a flow that counts alone now, or does so no longer: the reason of its state is gone."""
    by_failures = (BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN)
    if spec.metrics_only and breaker.state in by_failures:
        return Breaker(BreakerState.METRICS_ONLY, breaker.window, breaker.streak, episode=breaker.episode)
    if not spec.metrics_only and breaker.state is BreakerState.METRICS_ONLY:
        return replace(breaker, state=BreakerState.CLOSED, why="")
    return breaker


def _dated(status: BreakerStatus, held_since: int | None) -> BreakerStatus:
    """Return a status that holds calls since an instant, unless they pass."""
    return replace(status, opened_at=held_since if status.state in HOLDING else None)


def restore(row: BreakerRow, spec: DownstreamSpec) -> BreakerStatus:
    """Return the breaker of a row for another executor: a half-open one becomes an open one that is due for a probe."""
    found = decode(row, spec)
    breaker = replace(found.breaker, episode=found.breaker.episode + 1)
    if breaker.state is BreakerState.HALF_OPEN:
        breaker = replace(breaker, state=BreakerState.OPEN, reopens_at=0)
    return replace(found, breaker=breaker)


def shift_clock(status: BreakerStatus, jump_us: int) -> BreakerStatus:
    """Move all instants by ``jump_us`` after a jump of the wall clock."""

    def moved(at: int | None) -> int | None:
        return at and at + jump_us

    breaker, refilled_at = status.breaker, moved(status.bucket.refilled_at) or 0
    window = tuple(part._replace(started_at=part.started_at + jump_us) for part in breaker.window)
    instants = {"reopens_at": moved(breaker.reopens_at), "release_at": moved(breaker.release_at)}
    return replace(
        status,
        breaker=replace(breaker, window=window, **instants),
        bucket=replace(status.bucket, refilled_at=refilled_at),
        changed_at=moved(status.changed_at),
        opened_at=moved(status.opened_at),
    )


def after_change(status: BreakerStatus, changed: Breaker, at: int | None) -> BreakerStatus:
    """Return the status with another breaker, whose state began ``at``."""
    return _dated(replace(status, breaker=changed, changed_at=at), status.opened_at or at)


def after_event(status: BreakerStatus, event: BreakerChanged) -> BreakerStatus:
    """Return what a console knows after the event of a change: no calls; a breaker that has closed now releases."""
    changed = replace(status.breaker, state=BreakerState(event.state), reopens_at=event.reopens_at, why=event.why or "")
    if event.since != status.changed_at:
        is_paced = changed.state is BreakerState.CLOSED and event.since is not None
        rate = status.spec.release_per_second if is_paced else 0.0
        changed = replace(changed, release_at=event.since if rate else None, release_rate=rate)
    return after_change(status, changed, event.since)


# --- transitions --------------------------------------------------------------------------------------------------


def _changed(breaker: Breaker, state: BreakerState, why: str, window: tuple[WindowSlice, ...] = ()) -> Breaker:
    return Breaker(
        state, window, openings=breaker.openings, episode=breaker.episode + 1, why=why, refused=breaker.refused
    )


def _shut(breaker: Breaker, why: str) -> Breaker:
    """Open the breaker until an operator acts."""
    return _changed(breaker, BreakerState.OPEN, why, breaker.window)


def _opened(breaker: Breaker, spec: DownstreamSpec, now: int, why: str, retry_after_seconds: float | None) -> Breaker:
    reopens_at = now + _open_us(spec, breaker.openings, retry_after_seconds)
    return replace(_shut(breaker, why), reopens_at=reopens_at, openings=breaker.openings + 1)


def _half_open(breaker: Breaker, probes: int, why: str) -> Breaker:
    return replace(_changed(breaker, BreakerState.HALF_OPEN, why), probes=Probes(probes, probes))


def _half_opened(breaker: Breaker, spec: DownstreamSpec, now: int) -> Breaker:
    """Half-open the breaker if it is due. A clock that was set back does not lengthen the wait."""
    if breaker.reopens_at is None:
        return breaker
    longest = max(_open_us(spec, breaker.openings), int(RETRY_AFTER_SECONDS_MAX * _SECOND))
    reopens_at = min(breaker.reopens_at, now + longest)
    return probe_now(breaker, spec) if now >= reopens_at else replace(breaker, reopens_at=reopens_at)


def _closed(breaker: Breaker, spec: DownstreamSpec, now: int) -> Breaker:
    paced = spec.release_per_second > 0
    return replace(
        _changed(breaker, BreakerState.CLOSED, ""),
        openings=0,
        release_at=now if paced else None,
        release_rate=spec.release_per_second if paced else 0.0,
        refused=(),
    )


def _admit_probe(breaker: Breaker) -> tuple[Breaker, Admission]:
    """Admit one probe at a time: an outage costs few calls, and a second one asks only if the first has failed."""
    if breaker.probes.free < 1 or breaker.probes.running:
        return breaker, Admission(None)
    probes = breaker.probes._replace(free=breaker.probes.free - 1)
    return replace(breaker, probes=probes), Admission(CallPermit(breaker.episode, probe=True))


def _admit_paced(breaker: Breaker, now: int) -> tuple[Breaker, Admission]:
    """Admit calls at a rate, so that they do not arrive all at once. Pacing ends once a permitted call is not used."""
    assert breaker.release_at is not None
    interval = int(_SECOND / breaker.release_rate)
    longest = max(interval, int(RETRY_AFTER_SECONDS_MAX * _SECOND))
    release_at = min(breaker.release_at, now + longest)  # limits the wait after a clock that was ahead
    if now < release_at:
        return replace(breaker, release_at=release_at), Admission(None, release_at)
    if now - release_at > max(interval, _SECOND):
        return replace(breaker, release_at=None, release_rate=0.0), Admission(CallPermit(breaker.episode))
    return replace(breaker, release_at=now + interval), Admission(CallPermit(breaker.episode))


def _paced_by(breaker: Breaker, spec: DownstreamSpec, end: CallEnd, now: int) -> Breaker:
    """Adapt the rate of paced calls: a success raises it, a failure halves it."""
    if breaker.release_at is None:
        return breaker
    if end.succeeded:
        return replace(breaker, release_rate=breaker.release_rate + RELEASE_GROWTH)
    asked_us = int(min(end.retry_after_seconds or 0.0, RETRY_AFTER_SECONDS_MAX) * _SECOND)
    rate = max(spec.release_per_second, breaker.release_rate / 2)
    return replace(breaker, release_rate=rate, release_at=max(breaker.release_at, now + asked_us))


def _record_probe(breaker: Breaker, spec: DownstreamSpec, end: CallEnd, now: int) -> Breaker:
    """Close the breaker once most of the probes so far have succeeded; open it once most of all have failed."""
    probes = breaker.probes._replace(
        succeeded=breaker.probes.succeeded + end.succeeded, failed=breaker.probes.failed + (not end.succeeded)
    )
    if probes.succeeded > probes.failed:
        return _closed(breaker, spec, now)
    if probes.failed * 2 >= probes.total:
        why = "the probe failed" if probes.total == 1 else f"{probes.failed} of {probes.total} probes failed"
        return _opened(breaker, spec, now, why, end.retry_after_seconds)
    return replace(breaker, probes=probes)


def _counted(breaker: Breaker, spec: DownstreamSpec, call: CallPermit, end: CallEnd, now: int) -> Breaker:
    """Count a call in the window and in the streak."""
    width = _slice_us(spec)
    started_at = now - now % width
    window = _current(breaker.window, spec, now)
    last = window[-1] if window and window[-1].started_at == started_at else WindowSlice(started_at)
    earlier = tuple(part for part in window if part.started_at != started_at)
    added = WindowSlice(
        started_at,
        last.successes + end.succeeded,
        last.failures + (not end.succeeded),
        last.recovered + (end.succeeded and end.failures_before > 0),
        last.repeats + (not end.succeeded and end.is_repeat),
    )
    before = breaker.streak if window else Streak()  # a downstream that nobody called for a window starts anew
    refused = () if end.succeeded else breaker.refused
    return replace(breaker, window=(*earlier, added), streak=_continued(before, spec, call, end), refused=refused)


def _continued(streak: Streak, spec: DownstreamSpec, call: CallPermit, end: CallEnd) -> Streak:
    if not end.succeeded and (end.is_repeat or call.number < streak.answered):
        return streak
    answered = max(streak.answered, call.number) if end.succeeded else streak.answered
    longer = Streak(streak.calls + 1, streak.failures + (not end.succeeded), answered)
    return longer if _excess(longer, spec) > 0 else Streak(answered=answered)


def _current(window: tuple[WindowSlice, ...], spec: DownstreamSpec, now: int) -> tuple[WindowSlice, ...]:
    """Drop slices that are too old, and slices in the future of a clock that was set back."""
    oldest = now - int(spec.window_seconds * _SECOND)
    return tuple(part for part in window if oldest < part.started_at + _slice_us(spec) and part.started_at <= now)


def _slice_us(spec: DownstreamSpec) -> int:
    return max(1, int(spec.window_seconds * _SECOND) // SLICES)


def _open_us(spec: DownstreamSpec, openings: int, retry_after_seconds: float | None = None) -> int:
    """Return how long the breaker stays open: twice as long at each opening, and not less than the downstream asks."""
    longest = max(spec.open_seconds, spec.open_seconds_max)
    own = min(longest, spec.open_seconds * 2.0 ** min(openings, 60))
    return int(max(own, min(retry_after_seconds or 0.0, RETRY_AFTER_SECONDS_MAX)) * _SECOND)
