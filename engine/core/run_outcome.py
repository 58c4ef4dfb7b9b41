"""Decide the state of a run: running, blocked, or ended.

A run is blocked if nothing runs and all that is left waits for a human, by the table in ``waits.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from ..domain.durations import format_duration
from ..domain.states import MOVING, RunState, SkipCause, TaskState
from ..domain.trigger_rules import STATES_OF, ParentStatus
from .breaker import SHUT
from .projection import RunProjection, TaskRow
from .ready_queue import spec_of
from .waiting import BreakerView, ExplainContext, wait_of
from .waits import PAUSE_SECONDS, WaitReason, needs_human


class HeldTasks(NamedTuple):
    """Tasks that could start if a human ended their common wait. ``why``: one sentence."""

    reason: WaitReason
    names: tuple[str, ...]
    why: str
    downstream: str | None = None


def find_held_tasks(projection: RunProjection, now_us: int, context: ExplainContext) -> tuple[HeldTasks, ...]:
    """Return the tasks that wait for a human although their parents let them start, if no task waits for anything else.

    Empty: some task goes on by itself, or none is left that could start.
    """
    if projection.run.paused_since is None and not any(map(_needs_operator, context.breakers.values())):
        return ()  # asked whenever nothing runs, of 10,000 tasks as well
    found: dict[tuple[WaitReason, str | None], list[str]] = {}
    for name, row in projection.tasks.items():
        reason = wait_of(projection, name, now_us, context) if row.state in MOVING else None
        if reason is None or reason is WaitReason.PARENTS:
            continue
        if not needs_human(reason) or (reason is WaitReason.PAUSE and not _is_pause_over(projection, now_us)):
            return ()
        downstream = spec_of(row).downstream if reason in _OF_BREAKERS else None
        found.setdefault((reason, downstream), []).append(name)
    holder = partial(_holder, projection, now_us, context)
    return tuple(
        _nothing(names)
        if reason is WaitReason.NOTHING
        else HeldTasks(reason, tuple(names), f"{_count(names)} held by {holder(downstream)}", downstream)
        for (reason, downstream), names in found.items()
    )


def _needs_operator(breaker: BreakerView) -> bool:
    """Whether only an operator can close a breaker: he has opened it, or a credential was refused."""
    return breaker.state in SHUT and breaker.reopens_at is None


#: The waits for a breaker, which name its downstream.
_OF_BREAKERS = frozenset([WaitReason.CREDENTIAL, WaitReason.FORCED_OPEN])

_NAMED_MAX = 5


def _nothing(names: Sequence[str]) -> HeldTasks:
    """Tasks that no event will ever start or end, which no rule of redrive allows."""
    shown = ", ".join(names[:_NAMED_MAX]) + (", ..." if len(names) > _NAMED_MAX else "")
    why = f"{_count(names)} unfinished with nothing left to wait for ({shown}): a fault of redrive, please report it"
    return HeldTasks(WaitReason.NOTHING, tuple(names), why)


def _count(names: Sequence[str]) -> str:
    return "1 task is" if len(names) == 1 else f"{len(names)} tasks are"


def _is_pause_over(projection: RunProjection, now_us: int) -> bool:
    since = projection.run.paused_since
    return since is not None and now_us - since >= PAUSE_SECONDS * 1e6


def _holder(projection: RunProjection, now_us: int, context: ExplainContext, downstream: str | None) -> str:
    """Describe the breaker of a downstream; without a downstream the pause."""
    if downstream is None:
        run = projection.run
        lasts = format_duration(now_us - (run.paused_since or now_us))
        return f"a pause of {run.paused_by or 'an operator'}, which has lasted {lasts}"
    view = context.breakers.get(downstream)
    reason = f" ({view.why})" if view is not None and view.why else ""
    return f"the breaker of {downstream}, which only an operator can close{reason}"


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """``is_blocked``: what is left waits for a human, dead letters and ``held``; ``state`` is RUNNING then.

    ``why``: what ended the run, if it was its deadline.
    """

    state: RunState
    is_blocked: bool = False
    held: tuple[HeldTasks, ...] = ()
    why: str | None = None


def evaluate_run(
    tasks: Iterable[TaskRow], active: int, held: tuple[HeldTasks, ...] = (), over: str | None = None
) -> RunOutcome:
    """Return the outcome of a run. ``active``: ``ReadyQueue.active_count``; ``held``: ``find_held_tasks``.

    ``over``: why no task starts any more, if the deadline has passed: then a dead letter does not keep the run open, so
    that whoever waits for the run learns of its end. A run with an unresolved dead letter is never SUCCESS. A run never
    ends with a task that still moves: if nothing will move it, the run is blocked and says so, because what has not run
    must not pass for a failure.
    """
    if held:
        return RunOutcome(RunState.RUNNING, is_blocked=True, held=held)
    if active:
        return RunOutcome(RunState.RUNNING)
    rows = list(tasks)
    counts = Counter(row.state for row in rows)
    if counts[TaskState.DEAD_LETTER] and over is None:
        return RunOutcome(RunState.RUNNING, is_blocked=True)
    unfinished = [row.name for row in rows if row.state in MOVING]
    if unfinished and over is None:
        return RunOutcome(RunState.RUNNING, is_blocked=True, held=(_nothing(unfinished),))
    if counts[TaskState.DEAD_LETTER] or any(_fails_the_run(row) for row in rows):
        return RunOutcome(RunState.FAILED, why=over)
    if any(_makes_run_partial(row) for row in rows):
        return RunOutcome(RunState.PARTIAL, why=over)
    return RunOutcome(RunState.SUCCESS)


_FAILED = STATES_OF[ParentStatus.FAILED]


def _is_optional(row: TaskRow) -> bool:
    return row.spec is not None and row.spec.optional


def _fails_the_run(row: TaskRow) -> bool:
    return row.state in _FAILED and not _is_optional(row)


def _makes_run_partial(row: TaskRow) -> bool:
    by_operator = row.state is TaskState.SKIPPED and row.skip_cause == SkipCause.OPERATOR
    bad_rows = row.bad_rows > 0 and row.spec is not None and row.spec.strict_rows
    return by_operator or bad_rows or row.state in _FAILED
