"""The downstreams of one run by name: one breaker and one retry bucket each, and the calls in flight.

``breaker.py`` has the rules. The executor stores the rows (``store/breaker_rows.py``); a replay discards them
(``what_if.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..domain.event_payloads import BreakerChanged
from ..errors import RefusedError
from . import breaker as rules
from .breaker import Admission, Breaker, BreakerRecord, BreakerState, CallPermit, StoredBreaker
from .outcome import Outcome, OutcomeKind
from .spec import DownstreamSpec, FlowSpec
from .waiting import BreakerView

#: Actions of an operator, whose name is the last argument.
BREAKER_ACTIONS: dict[str, Callable[[Breaker, DownstreamSpec, int, str], Breaker]] = {
    "open": lambda breaker, spec, now, by: rules.force_open(breaker, f"held by {by}"),
    "close": lambda breaker, spec, now, by: rules.reset(breaker, spec, now),
    "probe": lambda breaker, spec, now, by: rules.probe_now(breaker, spec),
    "disable": lambda breaker, spec, now, by: rules.disable(breaker, f"disabled by {by}"),
}

_UNCOUNTED_OUTCOMES = frozenset([OutcomeKind.CANCELLED, OutcomeKind.LOST, OutcomeKind.DEFERRED, OutcomeKind.SKIPPED])


class DownstreamStates:
    """Admit calls and record their ends. ``on_change(name)`` is called when a breaker begins a new episode."""

    def __init__(self, flow: FlowSpec, now_us: Callable[[], int], on_change: Callable[[str], None]) -> None:
        declared = {spec.name: spec for spec in flow.downstreams}
        named = (task.downstream for task in flow.tasks if task.downstream is not None)
        self.specs = {name: declared.get(name) or DownstreamSpec(name) for name in {**declared, **dict.fromkeys(named)}}
        self._now_us = now_us
        self._on_change = on_change
        self._breakers = {name: rules.new_breaker(spec) for name, spec in self.specs.items()}
        self._buckets = {name: rules.new_bucket(spec) for name, spec in self.specs.items()}
        self._calls: dict[str, tuple[str, CallPermit]] = {}  # task -> (downstream, permission)
        self._changed_at = dict.fromkeys(self.specs, now_us())  # when the episode of each breaker began
        self._dirty: set[str] = set()

    # --- Calls -----------------------------------------------------------------------------------------------------

    def admit(self, task: str, downstream: str, is_retry: bool) -> Admission:
        """Request one start of ``task``. A permit lasts until ``record`` or ``release_calls``."""
        spec, now = self.specs[downstream], self._now_us()
        changed, admission = rules.admit(self._breakers[downstream], spec, now)
        self._replace(downstream, changed)
        if admission.call is None:
            return admission
        # A retry that the breaker refuses costs no token, nor does a probe.
        if is_retry and not admission.call.probe:
            bucket, afforded = rules.acquire_token(self._buckets[downstream], spec, now)
            self._buckets[downstream] = bucket
            self._dirty.add(downstream)
            if afforded.call is None:
                return afforded
        self._calls[task] = (downstream, admission.call)
        return admission

    def release_calls(self, tasks: Iterable[str]) -> None:
        """Return the permits of tasks that did not start."""
        for task in tasks:
            downstream, call = self._calls.pop(task, (None, None))
            if downstream is not None and call is not None:
                self._replace(downstream, rules.release_call(self._breakers[downstream], call))

    def record(self, task: str, outcome: Outcome, failures_before: int) -> None:
        """Record the end of an attempt."""
        downstream, call = self._calls.pop(task, (None, None))
        if downstream is None or call is None:
            return
        if outcome.kind in _UNCOUNTED_OUTCOMES:
            self._replace(downstream, rules.release_call(self._breakers[downstream], call))
            return
        spec = self.specs[downstream]
        failure_class = outcome.failure.failure_class if outcome.failure is not None else None
        breaker = self._breakers[downstream]
        now = self._now_us()
        self._replace(downstream, rules.record(breaker, spec, call, failure_class, now, failures_before, task))
        if failure_class is None:
            self._buckets[downstream] = rules.refund(self._buckets[downstream], spec)
        self._dirty.add(downstream)

    def is_probe(self, task: str) -> bool:
        """True if the running attempt of ``task`` is a probe of its downstream."""
        return task in self._calls and self._calls[task][1].probe

    @property
    def changed_names(self) -> tuple[str, ...]:
        """Return the downstreams whose breaker has left its initial state."""
        return tuple(
            name for name, spec in self.specs.items() if self._breakers[name].state is not rules.new_breaker(spec).state
        )

    def classification_rules(self, downstream: str | None) -> tuple[Mapping[str, object], ...]:
        """Return the classification rules of a downstream."""
        return () if downstream is None else self.specs[downstream].rules

    def is_open(self, downstream: str) -> bool:
        """True if no call passes now, not even a probe."""
        return self.needs_operator(downstream) or (
            self._breakers[downstream].state is BreakerState.OPEN and not self.is_probe_due(downstream)
        )

    def needs_operator(self, downstream: str) -> bool:
        """True if no call passes until an operator acts."""
        return self._breakers[downstream].needs_operator

    def views(self) -> dict[str, BreakerView]:
        """Return the breakers, as sentences about waiting tasks need them."""
        found = {}
        for name, breaker in self._breakers.items():
            bucket = self._buckets[name]
            reserve_at = bucket.reserve_at if bucket.tokens < 1 else None
            found[name] = BreakerView(str(breaker.state), breaker.reopens_at, reserve_at, breaker.why)
        return found

    def is_probe_due(self, downstream: str) -> bool:
        """True if the next admitted call is a probe."""
        breaker = self._breakers[downstream]
        if breaker.state is BreakerState.OPEN:
            return breaker.reopens_at is not None and breaker.reopens_at <= self._now_us()
        return breaker.state is BreakerState.HALF_OPEN and breaker.probes_free > 0

    def is_down(self, downstream: str) -> bool:
        """True if failures opened the breaker, also while it probes. False if an operator opened it."""
        return self._breakers[downstream].state in (BreakerState.OPEN, BreakerState.HALF_OPEN)

    def shift_clock(self, jump_us: int) -> None:
        """Move all instants after a jump of the wall clock, so that waits keep their length (SPEC 4.10)."""
        for name in self.specs:
            self._breakers[name] = rules.shift_breaker(self._breakers[name], jump_us)
            self._buckets[name] = rules.shift_bucket(self._buckets[name], jump_us)
            self._changed_at[name] += jump_us
            self._dirty.add(name)

    def _replace(self, downstream: str, changed: Breaker) -> None:
        before = self._breakers[downstream]
        if changed is before:
            return
        self._breakers[downstream] = changed
        self._dirty.add(downstream)
        if changed.episode != before.episode:
            self._changed_at[downstream] = self._now_us()
            self._on_change(downstream)

    # --- Operator --------------------------------------------------------------------------------------------------

    def operate(self, downstream: str, how: str, by: str = "an operator") -> str:
        """Apply an action of operator ``by``. Raises RefusedError for an unknown downstream or action."""
        if downstream not in self.specs:
            known = ", ".join(sorted(self.specs)) or "none"
            raise RefusedError(f"this flow has no downstream {downstream!r}; it has: {known}")
        if how not in BREAKER_ACTIONS:
            raise RefusedError(f"the action on a breaker is one of {', '.join(BREAKER_ACTIONS)}, not {how!r}")
        self._replace(
            downstream, BREAKER_ACTIONS[how](self._breakers[downstream], self.specs[downstream], self._now_us(), by)
        )
        return f"{downstream} is {self._breakers[downstream].state} now"

    def request_probe(self, downstream: str) -> None:
        """Admit a probe after the refused credential was renewed."""
        breaker = self._breakers.get(downstream)
        if breaker is not None and breaker.state is BreakerState.OPEN and breaker.reopens_at is None:
            self._replace(downstream, rules.probe_now(breaker, self.specs[downstream]))

    # --- Storing ---------------------------------------------------------------------------------------------------

    def load(self, rows: Iterable[BreakerRecord], *, is_new_run: bool = False) -> None:
        """Load breakers and buckets from rows of the state file.

        A new run probes once what an earlier run left open for an operator.
        """
        for row in rows:
            spec = self.specs.get(row["downstream"])
            if spec is not None:
                self._breakers[spec.name], self._buckets[spec.name] = rules.from_row(row, spec)
                self._changed_at[spec.name] = row["changed_at"]
                if is_new_run:
                    self._breakers[spec.name] = rules.probe_for_new_run(self._breakers[spec.name], spec)
                    self._dirty.add(spec.name)

    def drain_dirty_rows(self) -> dict[str, StoredBreaker]:
        """Return the changed rows by name, and mark them as stored."""
        dirty, self._dirty = self._dirty, set()
        return {name: self._row(name) for name in sorted(dirty)}

    def _row(self, name: str) -> StoredBreaker:
        return {**rules.to_row(self._breakers[name], self._buckets[name]), "changed_at": self._changed_at[name]}

    def change_event(self, name: str) -> BreakerChanged:
        """Return the payload of the event of a change."""
        breaker, spec = self._breakers[name], self.specs[name]
        calls, failures, _ = rules.totals(breaker, spec, self._now_us())
        return BreakerChanged(
            downstream=name,
            state=str(breaker.state),
            since=self._changed_at[name],
            reopens_at=breaker.reopens_at,
            why=breaker.why,
            calls=calls,
            failures=failures,
            tokens=self._buckets[name].tokens,
        )
