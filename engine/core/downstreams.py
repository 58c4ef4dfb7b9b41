"""The downstreams of one run by name: one breaker and one retry bucket each, and the calls in flight.

``breaker.py`` has the rules. The executor stores the rows (``statefile/breakers.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ..domain.breakers import BREAKER_ACTS, breaker_refusal
from ..domain.event_payloads import BreakerChanged
from ..domain.rows import BreakerRow
from ..domain.states import TaskState
from ..errors import RefusedError
from . import breaker as rules
from . import causes, retry_budget
from .breaker import (
    Admission,
    Breaker,
    BreakerState,
    CallEnd,
    CallPermit,
    CallVerdict,
    DownstreamHealth,
)
from .call_failures import SEVERAL_TASKS, CallFailures, Outage
from .failures.tables import is_shape_error
from .outcome import OUTAGE_CLASSES, Failure, FailureClass, Outcome, OutcomeKind
from .policy import POISON_SECONDS
from .projection import TaskRow
from .ready_queue import ReadyQueue, downstreams_of, is_retry, spec_of
from .retry_budget import Bucket
from .spec import FlowSpec

_UNCOUNTED_OUTCOMES = frozenset([OutcomeKind.CANCELLED, OutcomeKind.LOST, OutcomeKind.DEFERRED, OutcomeKind.SKIPPED])


class DownstreamFinding(NamedTuple):
    """The finding of an executor about a downstream, for others that call it. Instants: microseconds UTC."""

    at: int
    reopens_at: int | None  # it is down, and is asked again then; None: it has answered
    why: str = ""


#: From so many tasks on that fail alike by what they read, their downstream may have answered them wrongly.
SIBLINGS_ALIKE = 3


class DownstreamStates:
    """Admit calls and record their ends. ``on_change(name)`` is called when a breaker begins a new episode."""

    def __init__(self, flow: FlowSpec, now_us: Callable[[], int], on_change: Callable[[str], None]) -> None:
        self.specs = downstreams_of(flow.downstreams, flow.tasks)
        self._now_us = now_us
        self._on_change = on_change
        self.statuses = {name: rules.new_status(spec, now_us()) for name, spec in self.specs.items()}
        self._calls: dict[str, tuple[str, CallPermit]] = {}  # task -> (downstream, permission)
        self._numbers = count(1)
        self._adapted: set[str] = set()  # downstreams whose row said another state
        self._alike: dict[str, dict[str, tuple[int, set[str]]]] = {name: {} for name in self.specs}
        self._failures = {name: CallFailures(int(spec.window_seconds * 1e6)) for name, spec in self.specs.items()}
        self._hints: dict[str, DownstreamFinding] = {}  # outages that other executors have found, and no own call yet
        self._hinted: set[str] = set()  # downstreams whose breaker changes by the finding of another executor
        self._dirty: set[str] = set()

    # --- Calls -----------------------------------------------------------------------------------------------------

    def admit(self, task: str, downstream: str, is_retry: bool) -> Admission:
        """Request one start of ``task``. A permit lasts until ``record`` or ``release_calls``.

        A retry that the breaker refuses costs no token, nor does a probe; a retry that the bucket refuses uses up no
        paced start, which is for a first try then.
        """
        spec, now = self.specs[downstream], self._now_us()
        changed, admission = rules.admit(self._breaker(downstream), spec, now)
        if is_retry and admission.call is not None and not admission.call.probe:
            bucket = self._refilled(downstream)
            retry_at = retry_budget.next_retry_at(bucket, spec)
            self._fill(downstream, bucket if retry_at is not None else retry_budget.spend_token(bucket))
            if retry_at is not None:
                return Admission(None, retry_at)
        self._replace(downstream, changed)
        if admission.call is not None:
            self._calls[task] = (downstream, admission.call._replace(number=next(self._numbers)))
            if admission.call.probe:
                self._failures[downstream].probed.add(task)
        return admission

    def would_admit(self, downstream: str) -> bool:
        """True if the breaker admits a call now; the budget of retries is not asked."""
        _, admission = rules.admit(self._breaker(downstream), self.specs[downstream], self._now_us())
        return admission.call is not None

    def release_calls(self, tasks: Iterable[str]) -> None:
        """Return the permits of tasks that did not start."""
        for task in tasks:
            downstream, call = self._calls.pop(task, (None, None))
            if downstream is not None and call is not None:
                self._replace(downstream, rules.release_call(self._breaker(downstream), call))

    def record(self, task: str, outcome: Outcome, failures_before: int, attempts_max: int) -> CallVerdict:
        """Record the end of an attempt; return how much of a failure its downstream explains.

        ``failures_before``: failed tries of the task, of ``attempts_max`` starts that it may spend.
        """
        downstream, call = self._calls.pop(task, (None, None))
        if downstream is None or call is None:
            return CallVerdict()
        if outcome.kind in _UNCOUNTED_OUTCOMES:
            self._replace(downstream, rules.release_call(self._breaker(downstream), call))
            return CallVerdict()
        spec, failure, now = self.specs[downstream], outcome.failure, self._now_us()
        retry_after_seconds = None if failure is None else failure.retry_after_seconds
        end = self._counted_end(
            downstream,
            CallEnd(
                task,
                self._class_of(downstream, task, failure),
                failures_before,
                retry_after_seconds,
                is_by_text=failure is not None and failure.is_by_text,
            ),
        )
        self._replace(downstream, rules.record(self._breaker(downstream), spec, call, end, now))
        self._confirm_hint(downstream, end)
        if end.succeeded:
            self._alike[downstream].clear()
            successes = self.statuses[downstream].totals(now).successes
            self._fill(downstream, retry_budget.refund(self.statuses[downstream].bucket, spec, successes))
        self._dirty.add(downstream)
        if call.probe and failure is not None and is_shape_error(failure):
            return CallVerdict(DownstreamHealth.DOWN)  # the maintenance page may still be there
        outage = self._failures[downstream].outage
        silent_seconds = 0.0 if outage is None else (now - outage.since) / 1e6
        return CallVerdict(self._health(downstream, call, end, attempts_max), silent_seconds)

    def _counted_end(self, downstream: str, end: CallEnd) -> CallEnd:
        """Count the end of a call among those of the other tasks; return it with its weight as evidence."""
        failures, now = self._failures[downstream], self._now_us()
        if end.failure_class is None:
            failures.add_success(end.task)
        elif end.failure_class in OUTAGE_CLASSES:
            failures.add_failure(end.task, end.failure_class, now)
            is_repeat = failures.is_repeat(end.task, end.failure_class)
            return replace(end, is_repeat=is_repeat, tasks_failing=failures.count_failing(now))
        return end

    def _class_of(self, downstream: str, task: str, failure: Failure | None) -> FailureClass | None:
        """Return what a failure is for the breaker; None: it is none.

        An error about what was read is an outage once siblings failed alike, until it has come for ``POISON_SECONDS``.
        """
        if failure is None or not is_shape_error(failure):
            return None if failure is None else failure.failure_class
        now = self._now_us()
        since, tasks = self._alike[downstream].setdefault(failure.fingerprint.loose, (now, set()))
        tasks.add(task)
        is_outage = len(tasks) >= SIBLINGS_ALIKE and now - since < POISON_SECONDS * 1e6
        return FailureClass.TRANSIENT if is_outage else failure.failure_class

    def record_retry(self, task: str) -> None:
        """Count a call that the running attempt of ``task`` has retried by itself: a failed call, and a retry."""
        downstream, call = self._calls.get(task, (None, None))
        if downstream is None or call is None:
            return
        self._fill(downstream, retry_budget.spend_token(self._refilled(downstream)))
        if not call.probe:  # the attempt as a whole is the probe
            call = call._replace(number=next(self._numbers))
            end = self._counted_end(downstream, CallEnd(task, FailureClass.TRANSIENT))
            spec, now = self.specs[downstream], self._now_us()
            self._replace(downstream, rules.record(self._breaker(downstream), spec, call, end, now))

    def _refilled(self, downstream: str) -> Bucket:
        status, now = self.statuses[downstream], self._now_us()
        return retry_budget.refill(status.bucket, status.spec, now, status.totals(now).successes)

    def _fill(self, downstream: str, bucket: Bucket) -> None:
        self.statuses[downstream] = replace(self.statuses[downstream], bucket=bucket)
        self._dirty.add(downstream)

    def _health(self, downstream: str, call: CallPermit, end: CallEnd, attempts_max: int) -> DownstreamHealth:
        """Return what a failure says of its downstream. Who asks for one attempt gets one, unless it is a probe."""
        if end.failure_class is None or end.failure_class not in OUTAGE_CLASSES:
            return DownstreamHealth.UP
        is_counted = self._breaker(downstream).state not in (BreakerState.METRICS_ONLY, BreakerState.DISABLED)
        if not is_counted or (attempts_max == 1 and not call.probe):
            return DownstreamHealth.UP
        failures = self._failures[downstream]
        if failures.do_others_fail(end.task, end.failure_class, self._now_us()):
            health = self._health_by_others(downstream, end.failure_class)
            if health is not DownstreamHealth.UP:
                return health
        is_held = end.failure_class is FailureClass.TRANSIENT and not failures.has_other_answer(end.task)
        if is_held:
            failures.is_holding = True
        return DownstreamHealth.SILENT if is_held else DownstreamHealth.UP

    def _health_by_others(self, downstream: str, failure_class: FailureClass) -> DownstreamHealth:
        """Return how it is, while calls of several tasks fail: if most do, a transient failure has no limit."""
        spec, failed_share = self.specs[downstream], self._failed_share(downstream)
        most = spec.failure_rate if failure_class is FailureClass.TRANSIENT else math.inf
        is_releasing = self._breaker(downstream).release_at is not None and failed_share(1) >= rules.FAILING_SHARE
        least = min(SEVERAL_TASKS, spec.minimum_calls)
        if self.is_down(downstream) or is_releasing or failed_share(least) >= most:
            return DownstreamHealth.DOWN
        return DownstreamHealth.FAILING if failed_share(least) >= rules.FAILING_SHARE else DownstreamHealth.UP

    def _failed_share(self, downstream: str) -> Callable[[int], float]:
        """Return the share of the tasks of the window that have failed in it, if so many tasks have called; else 0."""
        now = self._now_us()
        failed = self._failures[downstream].count_recent(now)
        found = self.statuses[downstream].totals(now)
        tasks = failed + found.successes - found.recovered
        return lambda least: failed / tasks if tasks >= max(1, least) else 0.0

    @property
    def changed_names(self) -> tuple[str, ...]:
        """Return the downstreams whose breaker has left its initial state, or the state that its row said."""
        return tuple(
            name
            for name, spec in self.specs.items()
            if name in self._adapted or self._breaker(name).state is not rules.new_breaker(spec).state
        )

    def classification_rules(self, downstream: str | None) -> tuple[Mapping[str, object], ...]:
        return () if downstream is None else self.specs[downstream].rules

    def is_open(self, downstream: str) -> bool:
        """True if no call passes now, not even a probe."""
        return self._breaker(downstream).state in rules.SHUT and not self.is_probe_due(downstream)

    def _breaker(self, downstream: str) -> Breaker:
        return self.statuses[downstream].breaker

    def is_probe_due(self, downstream: str) -> bool:
        """True if the next admitted call is a probe."""
        breaker = self._breaker(downstream)
        if breaker.state is BreakerState.OPEN:
            return breaker.reopens_at is not None and breaker.reopens_at <= self._now_us()
        return breaker.state is BreakerState.HALF_OPEN and breaker.probes.free > 0 and not breaker.probes.running

    def outage(self, downstream: str) -> Outage | None:
        """Return the failed calls since the latest success; None: there are none, or none that hold a task."""
        failures = self._failures[downstream]
        is_held = failures.is_holding or self.is_down(downstream)
        return failures.outage if is_held else None

    def is_down(self, downstream: str) -> bool:
        """True if failures opened the breaker, also while it probes. False if an operator opened it."""
        return self._breaker(downstream).state in (BreakerState.OPEN, BreakerState.HALF_OPEN)

    def has_probed(self, downstream: str, task: str) -> bool:
        """Whether a task has asked a downstream how it is since that has answered anybody."""
        return task in self._failures[downstream].probed

    def shift_clock(self, jump_us: int) -> None:
        """Move all instants after a jump of the wall clock, so that waits keep their length (SPEC 4.10)."""
        for name in self.specs:
            self.statuses[name] = rules.shift_clock(self.statuses[name], jump_us)
            self._failures[name].shift_clock(jump_us)
            self._dirty.add(name)

    def _replace(self, downstream: str, changed: Breaker) -> None:
        before = self.statuses[downstream]
        if changed is before.breaker:
            return
        self._dirty.add(downstream)
        if changed.episode == before.breaker.episode:
            self.statuses[downstream] = replace(before, breaker=changed)
        else:
            self.statuses[downstream] = rules.after_change(before, changed, self._now_us())
            self._on_change(downstream)

    # --- Other executors ---------------------------------------------------------------------------------------

    def finding(self, downstream: str) -> DownstreamFinding | None:
        """Return what other executors should know of a breaker that has just changed; None: nothing.

        A refused credential and an act of an operator concern one flow; what came from another executor is known.
        """
        breaker, now = self._breaker(downstream), self._now_us()
        if downstream in self._hinted or not self.specs[downstream].shared:
            return None
        if breaker.state is BreakerState.OPEN and breaker.reopens_at is not None and breaker.reopens_at > now:
            return DownstreamFinding(now, breaker.reopens_at, breaker.why)
        return DownstreamFinding(now, None) if breaker.state is BreakerState.CLOSED else None

    def consider(self, downstream: str, finding: DownstreamFinding) -> None:
        """Take the finding of another executor as a hint, for it may mean another system of the same name.

        An outage holds nothing here: the first call of this executor that fails confirms it, one that succeeds refutes
        it. After a recovery, a breaker that is open by an outage sends its probes at once.
        """
        breaker, now = self._breaker(downstream), self._now_us()
        if not self.specs[downstream].shared:
            return
        self._hints.pop(downstream, None)
        if finding.reopens_at is not None and finding.reopens_at > now:
            self._hints[downstream] = finding
        elif finding.reopens_at is None and breaker.state is BreakerState.OPEN and breaker.reopens_at is not None:
            self._replace_by_hint(downstream, rules.probe_now(breaker, self.specs[downstream]))

    def _confirm_hint(self, downstream: str, end: CallEnd) -> None:
        """Open a breaker whose own call has failed as another executor has found; a success refutes the finding."""
        hint, now = self._hints.get(downstream), self._now_us()
        breaker = self._breaker(downstream)
        if hint is None or not (end.succeeded or end.failure_class in OUTAGE_CLASSES):
            return
        del self._hints[downstream]
        if not end.succeeded and breaker.state is BreakerState.CLOSED and now < (hint.reopens_at or 0):
            opened = rules.open_by_hint(breaker, self.specs[downstream], now, hint.why, end)
            self._replace_by_hint(downstream, opened)

    def _replace_by_hint(self, downstream: str, changed: Breaker) -> None:
        """Change a breaker, and do not tell others what was told."""
        self._hinted.add(downstream)
        self._replace(downstream, changed)
        self._hinted.discard(downstream)

    # --- Operator --------------------------------------------------------------------------------------------------

    def operate(self, downstream: str, how: str, by: str = "an operator") -> str:
        """Apply an act of operator ``by``. Raises RefusedError for one that is unknown or in vain."""
        if downstream not in self.specs:
            known = ", ".join(sorted(self.specs)) or "none"
            raise RefusedError(f"this flow has no downstream {downstream!r}; it has: {known}")
        if how not in BREAKER_ACTS:
            raise RefusedError(f"the act on a breaker is one of {', '.join(BREAKER_ACTS)}, not {how!r}")
        refusal = breaker_refusal(downstream, how, self._breaker(downstream).state)
        if refusal is not None:
            raise RefusedError(refusal)
        self._replace(downstream, rules.after_act(self.statuses[downstream], how, by, self._now_us()))
        return f"{downstream} is {self._breaker(downstream).state} now"

    def request_probe(self, downstream: str) -> None:
        """Admit a probe after the refused credential was renewed."""
        status = self.statuses.get(downstream)
        if status is not None and status.state is BreakerState.OPEN and status.breaker.reopens_at is None:
            self._replace(downstream, rules.probe_now(status.breaker, status.spec))

    # --- Storing ---------------------------------------------------------------------------------------------------

    def load(self, rows: Iterable[BreakerRow], *, is_new_run: bool = False) -> None:
        """Load breakers and buckets from rows of the state file, which are written again as the flow declares them now.

        A new run probes once what an earlier run left open for an operator.
        """
        for row in rows:
            spec = self.specs.get(row.downstream)
            if spec is not None:
                found = rules.restore(row, spec)
                breaker = rules.probe_for_new_run(found.breaker, spec) if is_new_run else found.breaker
                self.statuses[spec.name] = replace(found, breaker=breaker)
                self._dirty.add(spec.name)
                if breaker.state != row.state:
                    self._adapted.add(spec.name)

    def drain_dirty_rows(self) -> list[BreakerRow]:
        """Return the changed rows by name, and mark them as stored."""
        dirty, self._dirty = self._dirty, set()
        return [self._row(name) for name in sorted(dirty)]

    def _row(self, name: str) -> BreakerRow:
        row, outage = rules.encode(self.statuses[name]), self.outage(name)
        found = [at for at in (row.opened_at, None if outage is None else outage.since) if at is not None]
        return row._replace(opened_at=min(found, default=None))

    def change_event(self, name: str) -> BreakerChanged:
        status = self.statuses[name]
        breaker, found = status.breaker, status.totals(self._now_us())
        return BreakerChanged(
            downstream=name,
            state=str(breaker.state),
            since=status.changed_at,
            reopens_at=breaker.reopens_at,
            why=breaker.why,
            calls=found.calls,
            failures=found.failures,
            tokens=status.bucket.tokens,
        )


# --- Decide which startable tasks have capacity, which are rejected, and which outages last too long -----------------
#
# The executor follows these rules (``executor/dispatch.py``, ``executor/watchdog.py``).


#: ``on_open`` of a downstream -> the end of a task that calls it while its breaker is open; None: the task waits.
END_WHEN_OPEN: Mapping[str, TaskState | None] = {
    "hold": None,
    "fail": TaskState.FAILED,
    "dead_letter": TaskState.DEAD_LETTER,
}


class Capacity(msgspec.Struct, frozen=True):
    """Pools and downstreams, which limit tasks besides slots. ``pools``: name -> slots.

    ``schedule_recheck(downstream, instant)`` is called if a downstream admits no call before ``instant`` (microseconds
    UTC).
    """

    ready_queue: ReadyQueue
    downstreams: DownstreamStates
    pools: Mapping[str, int]
    schedule_recheck: Callable[[str, int], None]

    def has_pool_slots(self, row: TaskRow) -> bool:
        """True if the run itself leaves slots of the pool to a task."""
        spec = spec_of(row)
        if spec.pool is None:
            return True
        return self.ready_queue.pool_used[spec.pool] + spec.pool_slots <= self.pools.get(spec.pool, 0)

    def could_call(self, row: TaskRow) -> bool:
        """True if the breaker of its downstream would admit a call now. Nothing is counted."""
        downstream = spec_of(row).downstream
        return downstream is None or self.downstreams.would_admit(downstream)

    def may_call(self, row: TaskRow) -> bool:
        """True if the breaker of its downstream admits a call, which then counts."""
        downstream = spec_of(row).downstream
        if downstream is None:
            return True
        admission = self.downstreams.admit(row.name, downstream, is_retry=is_retry(row))
        if admission.call is None and admission.retry_at is not None:
            self.schedule_recheck(downstream, admission.retry_at)
        return admission.call is not None

    def rejected(self) -> Iterator[tuple[str, str]]:
        """Yield the tasks that may not wait for their open downstream, with its ``on_open``."""
        for downstream, spec in self.downstreams.specs.items():
            if END_WHEN_OPEN[spec.on_open] is not None and self.downstreams.is_open(downstream):
                yield from ((name, spec.on_open) for name in self.ready_queue.startable_for(downstream))


class LongOutage(NamedTuple):
    """A downstream whose calls have failed for ``lasts_us`` microseconds, and the ``tasks`` that it holds."""

    downstream: str
    tasks: list[str]
    lasts_us: int


class LongOutages:
    """Finds outages of ``LONG_OUTAGE_SECONDS`` or more, each once. Shorter outages are normal.

    A call must have failed in the later half of that time: nobody knows how a downstream is that nobody asks.
    """

    def __init__(self, ready_queue: ReadyQueue, downstreams: DownstreamStates) -> None:
        self._ready_queue = ready_queue
        self._downstreams = downstreams
        self._reported: set[str] = set()

    def update(self, now_us: int) -> list[LongOutage]:
        """Return the new long outages that hold tasks. ``now_us``: microseconds UTC."""
        found, least_us = [], causes.LONG_OUTAGE_SECONDS * 1e6
        for name in self._downstreams.specs:
            outage = self._downstreams.outage(name)
            if outage is None:
                self._reported.discard(name)
            elif name not in self._reported and outage.latest - outage.asked_since >= least_us / 2:
                lasts_us = now_us - outage.asked_since
                if lasts_us >= least_us and (tasks := self._ready_queue.held_for(name)):
                    found.append(LongOutage(name, tasks, lasts_us))
                    self._reported.add(name)
        return found
