"""Decide the outcome of a run in which nothing goes on by itself: blocked, or ended, and how.

A run is blocked if nothing runs and all that is left waits for a human, by the table ``HUMAN_WAITS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..domain import states
from ..domain.states import RunState, TaskState
from ..domain.text import counted, first_names, format_clock
from ..domain.trigger_rules import STATES_OF, ParentStatus
from .deadline import passed_reason
from .projection import RunProjection, TaskRow
from .ready_queue import spec_of
from .waiting import ExplainContext, WaitReason, needs_human, pause_author, wait_of, waits_for_approval

#: A paused run in which nothing runs is BLOCKED after this time, so that a forgotten pause is paged.
PAUSE_SECONDS = 600.0


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
    may_be_held = projection.run.paused_since is not None or any(
        one.breaker.needs_operator for one in context.breakers.values()
    )
    if not may_be_held and not any(map(waits_for_approval, projection.tasks.values())):
        return ()  # asked whenever nothing runs, of 10,000 tasks as well
    found: dict[tuple[WaitReason, str | None], list[str]] = {}
    for name, row in projection.tasks.items():
        reason = wait_of(projection, name, now_us, context) if row.state in states.MOVING else None
        if reason is None or reason is WaitReason.PARENTS:
            continue
        if not needs_human(reason) or (reason is WaitReason.PAUSE and not _is_pause_over(projection, now_us)):
            return ()
        downstream = spec_of(row).downstream if reason in _OF_BREAKERS else None
        found.setdefault((reason, downstream), []).append(name)
    held: list[HeldTasks] = []
    for (reason, downstream), names in found.items():
        if reason is WaitReason.APPROVAL:
            held.insert(0, _waiting_approvals([projection.tasks[name] for name in names]))
        elif reason is WaitReason.NOTHING:
            held.append(_nothing(names))
        else:
            holder = _holder(projection, now_us, context, downstream)
            held.append(HeldTasks(reason, tuple(names), f"{_count(names)} held by {holder}", downstream))
    return tuple(held)


def _waiting_approvals(rows: Sequence[TaskRow]) -> HeldTasks:
    """The tasks that wait for an approval, with the first instant at which one fails without an answer."""
    names = tuple(row.name for row in rows)
    ends_at = min((row.expires_at for row in rows if row.expires_at is not None), default=None)
    until = "" if ends_at is None else f" until {format_clock(ends_at)}"
    if len(names) == 1:
        return HeldTasks(WaitReason.APPROVAL, names, f"{names[0]} waits for an approval{until}")
    first = f", the first{until}" if until else ""
    return HeldTasks(WaitReason.APPROVAL, names, f"{len(names)} approvals wait ({first_names(names)}){first}")


#: The waits for a breaker, which name its downstream.
_OF_BREAKERS = frozenset([WaitReason.CREDENTIAL, WaitReason.FORCED_OPEN])


def _nothing(names: Sequence[str]) -> HeldTasks:
    """Tasks that no event will ever start or end, which no rule of redrive allows."""
    lost = f"{_count(names)} unfinished with nothing left to wait for ({first_names(names)})"
    return HeldTasks(WaitReason.NOTHING, tuple(names), f"{lost}: a fault of redrive, please report it")


def _count(names: Sequence[str]) -> str:
    return "1 task is" if len(names) == 1 else f"{len(names)} tasks are"


def _is_pause_over(projection: RunProjection, now_us: int) -> bool:
    since = projection.run.paused_since
    return since is not None and now_us - since >= PAUSE_SECONDS * 1e6


def _holder(projection: RunProjection, now_us: int, context: ExplainContext, downstream: str | None) -> str:
    """Describe the breaker of a downstream; without a downstream the pause."""
    run = projection.run
    if downstream is None:
        return f"a pause since {format_clock(run.paused_since or now_us)} {pause_author(run)}"
    view = context.breakers.get(downstream)
    reason = f" ({view.breaker.why})" if view is not None and view.breaker.why else ""
    return f"the breaker of {downstream}, which only an operator can close{reason}"


class RunOutcome(msgspec.Struct, frozen=True):
    """``is_blocked``: what is left waits for a human, dead letters and ``held``; ``state`` is RUNNING then.

    ``why``: what ended the run, if it was its deadline; of a blocked run what waits.
    """

    state: RunState
    is_blocked: bool = False
    held: tuple[HeldTasks, ...] = ()
    why: str | None = None

    @property
    def asked(self) -> list[str]:
        """The tasks that wait for an approval."""
        return [name for held in self.held if held.reason is WaitReason.APPROVAL for name in held.names]


def evaluate_run(projection: RunProjection, held: tuple[HeldTasks, ...] = ()) -> RunOutcome:
    """Return the outcome of a run in which nothing goes on by itself. ``held``: ``find_held_tasks``.

    Once the deadline or an operator has ended the run, a dead letter does not keep it open, so that whoever waits for
    the run learns of its end. A run with an unresolved dead letter is never SUCCESS. A run never ends with a task that
    still moves: if nothing will move it, the run is blocked and says so, because what has not run must not pass for a
    failure.
    """
    rows, over = projection.tasks.values(), passed_reason(projection.run)
    dead = [row for row in rows if row.state is TaskState.DEAD_LETTER]
    if held or (dead and over is None):
        return _blocked(held, dead)
    unfinished = [row.name for row in rows if row.state in states.MOVING]
    if unfinished and over is None:
        return _blocked((_nothing(unfinished),), dead)
    if projection.run.abandoned_at is not None:
        return RunOutcome(RunState.ABANDONED, why=over)
    if dead or any(row.state in _FAILED and not spec_of(row).optional for row in rows):
        return RunOutcome(RunState.FAILED, why=over)
    if any(_makes_run_partial(row) for row in rows):
        return RunOutcome(RunState.PARTIAL, why=over)
    return RunOutcome(RunState.SUCCESS)


def _blocked(held: tuple[HeldTasks, ...], dead: Sequence[TaskRow]) -> RunOutcome:
    """The outcome of a run that waits for a human, with everything that waits."""
    waits = "waits" if len(dead) == 1 else "wait"
    letters = [f"{counted(len(dead), 'dead letter')} {waits} for a decision{_expiry(dead)}"] if dead else []
    return RunOutcome(RunState.RUNNING, True, held, "; ".join([*(one.why for one in held), *letters]))


def _expiry(dead: Sequence[TaskRow]) -> str:
    """Say when the first dead letter counts as failed without a decision, and who sees to it; empty: never."""
    first = min((row.expires_at for row in dead if row.expires_at is not None and row.canary is None), default=None)
    if first is None:
        return ""
    which = "it" if len(dead) == 1 else "the first"
    return f" until {format_clock(first)}: then {which} counts as failed, under redrive serve or at the next resume"


_FAILED = STATES_OF[ParentStatus.FAILED]


def _makes_run_partial(row: TaskRow) -> bool:
    by_operator = row.state is TaskState.SKIPPED and row.skip_cause == states.SkipCause.OPERATOR
    bad_rows = row.bad_rows > 0 and row.spec is not None and row.spec.strict_rows
    return by_operator or bad_rows or row.state in _FAILED
