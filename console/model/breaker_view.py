"""The status of a circuit breaker and its retry budget: state, held tasks, allowed actions.

The rules are those of ``engine/core/breaker.py``, applied to the rows of the state file. A task is held if it could
start but for the breaker, or, where it is a retry, but for the budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from ...engine.core import breaker as rules
from ...engine.core.breaker import PASSING, SHUT, Breaker, BreakerDetail, BreakerState, Streak, WindowSlice
from ...engine.core.declared_flow import declared_downstreams
from ...engine.core.projection import TaskRow
from ...engine.core.ready_queue import is_retry, spec_of
from ...engine.core.spec import DownstreamSpec
from ...engine.core.waiting import unmet_parents
from ...engine.domain.states import TIMED, TaskState
from ...engine.json_types import Json
from ...engine.statefile.list_rows import BreakerRow
from .board import Board


@dataclass(frozen=True, slots=True)
class BreakerStatus:
    """The breaker of one downstream with its budget. ``held``: names of tasks; ``running``: calls in progress.

    ``since``: start of the state in microseconds UTC, None before the first call.
    """

    spec: DownstreamSpec
    breaker: Breaker = field(default_factory=Breaker)
    tokens: float = 0.0
    reserve_at: int = 0  # microseconds UTC: the next retry of an exhausted budget
    since: int | None = None
    held: tuple[str, ...] = ()
    running: int = 0

    @property
    def name(self) -> str:
        """The name of the downstream."""
        return self.spec.name

    @property
    def state(self) -> BreakerState:
        """The state of the breaker."""
        return self.breaker.state

    @property
    def why(self) -> str:
        """The reason of the state, or of the hold of tasks by a closed breaker, in one sentence; may be empty."""
        if self.breaker.why or not self.held or self.state is not BreakerState.CLOSED:
            return self.breaker.why
        return rules.describe_release(self.breaker) if self.breaker.release_at else "the retry budget is spent"

    @property
    def is_blocking(self) -> bool:
        """Whether no call passes."""
        return self.state in SHUT

    @property
    def needs_human(self) -> bool:
        """Whether the breaker needs attention: it blocks calls."""
        return self.is_blocking

    @property
    def is_idle(self) -> bool:
        """Whether all calls pass and no task is held."""
        return self.state in (BreakerState.CLOSED, BreakerState.METRICS_ONLY) and not self.held

    @property
    def is_budget_exhausted(self) -> bool:
        """Whether retries wait for the budget."""
        return self.tokens < 1

    def totals(self, now_us: int) -> tuple[int, int]:
        """Return calls and failures in the window that ends now."""
        calls, failures, _ = rules.totals(self.breaker, self.spec, now_us)
        return calls, failures

    def would_open(self, now_us: int) -> bool:
        """Whether a breaker that only counts would be open."""
        is_counting = self.state is BreakerState.METRICS_ONLY
        return is_counting and bool(rules.evidence_of_outage(self.breaker, self.spec, now_us))

    def is_degraded(self, now_us: int) -> bool:
        """Whether calls complete, but most of them only when retried."""
        return rules.is_degraded(self.breaker, self.spec, now_us)


def downstream_specs(board: Board) -> dict[str, DownstreamSpec]:
    """Return the downstreams of a run, as its flow declares them or its tasks name them."""
    declared = {spec.name: spec for spec in declared_downstreams(board.projection.run.options)}
    named = (spec_of(row).downstream for row in board.projection.tasks.values())
    names = dict.fromkeys([*declared, *(name for name in named if name is not None)])
    return {name: declared.get(name) or DownstreamSpec(name) for name in names}


def callers_of(board: Board) -> dict[str, tuple[str, ...]]:
    """Return the tasks of each downstream, in the order of the flow."""
    found: dict[str, list[str]] = {}
    for name, row in board.projection.tasks.items():
        downstream = spec_of(row).downstream
        if downstream is not None:
            found.setdefault(downstream, []).append(name)
    return {downstream: tuple(names) for downstream, names in found.items()}


def breaker_status(spec: DownstreamSpec, row: BreakerRow | None) -> BreakerStatus:
    """Return the status from a row of the list BREAKERS; None stands for a downstream without calls."""
    if row is None:
        return BreakerStatus(spec, rules.new_breaker(spec), rules.new_bucket(spec).tokens)
    detail = _parse_detail(row.detail)
    breaker = Breaker(
        state=BreakerState(row.state),
        window=tuple(WindowSlice(*part) for part in row.window or ()),
        streak=Streak(*detail.streak),
        reopens_at=row.reopens_at,
        episode=detail.episode,
        release_at=detail.release_at,
        release_rate=detail.release_rate,
        why=detail.why,
        refused=detail.refused,
    )
    full = rules.new_bucket(spec).tokens
    tokens = full if row.tokens is None else min(float(row.tokens), full)
    return BreakerStatus(spec, breaker, tokens, detail.reserve_at, row.changed_at)


def _parse_detail(detail: Json) -> BreakerDetail:
    """Parse a detail; a damaged one counts as empty."""
    try:
        return msgspec.convert(detail, BreakerDetail)
    except msgspec.ValidationError:
        return BreakerDetail()


def with_held_tasks(board: Board, status: BreakerStatus, callers: Iterable[str], now_us: int) -> BreakerStatus:
    """Return ``status`` with the tasks that it holds now and the number of calls in progress."""
    calls = [row for row in map(board.row, board.active) if spec_of(row).downstream == status.name]
    running = sum(1 for row in calls if row.state is TaskState.RUNNING)
    held: tuple[str, ...] = ()
    if _holds_all(status, now_us) or _holds_retries(status, now_us):
        holds_all = _holds_all(status, now_us)
        rows = (row for row in map(board.row, callers) if holds_all or is_retry(row))
        held = tuple(row.name for row in rows if _could_start(board, row, now_us))
    return status if (held, running) == (status.held, status.running) else replace(status, held=held, running=running)


def _holds_all(status: BreakerStatus, now_us: int) -> bool:
    """Whether every call has to wait."""
    breaker = status.breaker
    if breaker.state not in PASSING:
        return status.spec.on_open == "hold" or not status.is_blocking
    return breaker.is_releasing(now_us)


def _holds_retries(status: BreakerStatus, now_us: int) -> bool:
    """Whether a retry has to wait for the budget."""
    return status.is_budget_exhausted and status.reserve_at > now_us


def blocking_downstream(board: Board, name: str, now_us: int) -> str | None:
    """Return the downstream whose breaker keeps a task from starting; None if none does."""
    row = board.row(name)
    downstream = spec_of(row).downstream
    view = board.snapshot.breakers.get(downstream) if downstream is not None else None
    is_held = view is not None and view.state not in PASSING and _could_start(board, row, now_us)
    return downstream if is_held else None


def _could_start(board: Board, row: TaskRow, now_us: int) -> bool:
    due = row.next_retry_at is None or row.next_retry_at <= now_us
    if row.state is TaskState.PENDING:
        return due and not unmet_parents(board.projection, row.name)
    return row.state is TaskState.READY or (row.state in TIMED and due)


# --- Allowed actions ------------------------------------------------------------------------------------------------


def refusal(status: BreakerStatus, how: str) -> str | None:
    """Return in one sentence why an action on a breaker is refused; None if it is allowed."""
    state = status.state
    if how == "open" and state is BreakerState.FORCED_OPEN:
        return f"{status.name} is held open already"
    if how == "close" and state in (BreakerState.CLOSED, BreakerState.METRICS_ONLY):
        return f"{status.name} lets every call through already"
    if how == "disable" and state is BreakerState.DISABLED:
        return f"{status.name} is disabled already"
    if how == "probe" and state is BreakerState.HALF_OPEN:
        return f"{status.name} is being probed already"
    if how == "probe" and state in PASSING:
        return f"{status.name} lets every call through: there is nothing to probe"
    return None
