"""One circuit breaker and one retry budget as somebody looks at them: their state, what they hold, what may be done.

The rules are the engine's own (``engine/core/breaker.py``), asked of what the state file says. Who is held is read from
the board: a task that could start, were it not for the breaker, or for the budget where it is a retry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from ...engine.core import breaker as rules
from ...engine.core.breaker import PASSING, SHUT, Breaker, BreakerState, Detail, Slice
from ...engine.core.declared_flow import declared_downstreams
from ...engine.core.explain import unmet_parents
from ...engine.core.projection import TaskRow
from ...engine.core.ready_queue import spec_of
from ...engine.core.spec import DownstreamSpec
from ...engine.domain.states import TIMED, TaskState
from ...engine.json_types import Json
from ...engine.statefile.queries import BreakerRow
from .board import Board

#: So long after the last start at its rate a release goes on, as far as the file can tell.
RELEASED_US = 3_000_000


@dataclass(frozen=True, slots=True)
class Guard:
    """The breaker of one downstream with its budget. ``held``: names of tasks; ``running``: calls on their way.

    ``since``: microseconds UTC when the state began, None for one that nobody has called yet.
    """

    spec: DownstreamSpec
    breaker: Breaker = field(default_factory=Breaker)
    tokens: float = 0.0
    reserve_at: int = 0  # microseconds UTC: a retry goes then although the budget is spent
    since: int | None = None
    held: tuple[str, ...] = ()
    running: int = 0

    @property
    def name(self) -> str:
        """The downstream."""
        return self.spec.name

    @property
    def state(self) -> BreakerState:
        """Of the breaker."""
        return self.breaker.state

    @property
    def why(self) -> str:
        """Why it is in this state, in one sentence; may be empty."""
        return self.breaker.why

    @property
    def is_shut(self) -> bool:
        """Nobody gets through."""
        return self.state in SHUT

    @property
    def wants_human(self) -> bool:
        """Somebody should know of it, or it is he who has to open it again."""
        return self.is_shut

    @property
    def is_quiet(self) -> bool:
        """Nothing to look at: everybody gets through, and nobody waits."""
        return self.state in (BreakerState.CLOSED, BreakerState.METRICS_ONLY) and not self.held

    @property
    def is_spent(self) -> bool:
        """Retries wait: the budget is used up."""
        return self.tokens < 1

    def totals(self, now_us: int) -> tuple[int, int]:
        """Calls and failures in the window that ends now."""
        calls, failures, _ = rules.totals(self.breaker, self.spec, now_us)
        return calls, failures

    def would_open(self, now_us: int) -> bool:
        """It is only counted, and the count says "open"."""
        return self.state is BreakerState.METRICS_ONLY and rules.trips(self.breaker, self.spec, now_us)

    def is_degraded(self, now_us: int) -> bool:
        """Everything completes, but most of it only at a second try."""
        return rules.degraded(self.breaker, self.spec, now_us)


def specs_of(board: Board) -> dict[str, DownstreamSpec]:
    """The downstreams of a run, as its flow declares them or its tasks name them."""
    declared = {spec.name: spec for spec in declared_downstreams(board.fold.run.options)}
    named = (spec_of(row).downstream for row in board.fold.tasks.values())
    names = dict.fromkeys([*declared, *(name for name in named if name is not None)])
    return {name: declared.get(name) or DownstreamSpec(name) for name in names}


def callers_of(board: Board) -> dict[str, tuple[str, ...]]:
    """The tasks of each downstream, in the order of the flow."""
    found: dict[str, list[str]] = {}
    for name, row in board.fold.tasks.items():
        downstream = spec_of(row).downstream
        if downstream is not None:
            found.setdefault(downstream, []).append(name)
    return {downstream: tuple(names) for downstream, names in found.items()}


def guard_of(spec: DownstreamSpec, row: BreakerRow | None) -> Guard:
    """What a row of the list BREAKERS says; without one nobody has called yet."""
    if row is None:
        return Guard(spec, rules.new_breaker(spec), spec.bucket_capacity)
    detail = _detail_of(row.detail)
    breaker = Breaker(
        state=BreakerState(row.state),
        window=tuple(Slice(*part) for part in row.window or ()),
        reopens_at=row.reopens_at,
        episode=detail.episode,
        release_at=detail.release_at,
        why=detail.why,
    )
    tokens = spec.bucket_capacity if row.tokens is None else min(float(row.tokens), spec.bucket_capacity)
    return Guard(spec, breaker, tokens, detail.reserve_at, row.changed_at)


def _detail_of(detail: Json) -> Detail:
    """What a damaged one says is not known."""
    try:
        return msgspec.convert(detail, Detail)
    except msgspec.ValidationError:
        return Detail()


def held_by(board: Board, guard: Guard, callers: Iterable[str], now_us: int) -> Guard:
    """The same guard with who waits for it now, and how many calls are on their way."""
    calls = [row for row in map(board.row, board.ticking) if spec_of(row).downstream == guard.name]
    running = sum(1 for row in calls if row.state is TaskState.RUNNING)
    held: tuple[str, ...] = ()
    if _holds_all(guard, now_us) or _holds_retries(guard, now_us):
        everybody = _holds_all(guard, now_us)
        rows = (row for row in map(board.row, callers) if everybody or row.failures)
        held = tuple(row.name for row in rows if _could_start(board, row, now_us))
    return guard if (held, running) == (guard.held, guard.running) else replace(guard, held=held, running=running)


def _holds_all(guard: Guard, now_us: int) -> bool:
    """Whether any call would have to wait."""
    breaker = guard.breaker
    if breaker.state not in PASSING:
        return guard.spec.on_open == "hold" or not guard.is_shut
    is_released = breaker.state is BreakerState.CLOSED and breaker.release_at is not None
    return is_released and (breaker.release_at or 0) + RELEASED_US > now_us


def _holds_retries(guard: Guard, now_us: int) -> bool:
    """Whether a retry would have to wait for the budget."""
    return guard.is_spent and guard.reserve_at > now_us


def holder_of(board: Board, name: str, now_us: int) -> str | None:
    """The downstream whose breaker keeps a task from starting, as far as the board knows; None if none does."""
    row = board.row(name)
    downstream = spec_of(row).downstream
    view = board.moment.breakers.get(downstream) if downstream is not None else None
    is_held = view is not None and view.state not in PASSING and _could_start(board, row, now_us)
    return downstream if is_held else None


def _could_start(board: Board, row: TaskRow, now_us: int) -> bool:
    due = row.next_retry_at is None or row.next_retry_at <= now_us
    if row.state is TaskState.PENDING:
        return due and not unmet_parents(board.fold, row.name)
    return row.state is TaskState.READY or (row.state in TIMED and due)


# --- What may be done -----------------------------------------------------------------------------------------------


def why_not(guard: Guard, how: str) -> str | None:
    """Why an act on a breaker would do nothing good, in one sentence; None if it may be done."""
    state = guard.state
    if how == "open" and state is BreakerState.FORCED_OPEN:
        return f"{guard.name} is held open already"
    if how == "close" and state in (BreakerState.CLOSED, BreakerState.METRICS_ONLY):
        return f"{guard.name} lets every call through already"
    if how == "disable" and state is BreakerState.DISABLED:
        return f"{guard.name} is disabled already"
    if how == "probe" and state is BreakerState.HALF_OPEN:
        return f"{guard.name} is being probed already"
    if how == "probe" and state in PASSING:
        return f"{guard.name} lets every call through: there is nothing to probe"
    return None
