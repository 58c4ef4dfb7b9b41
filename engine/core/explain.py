"""Explain why a task is not running, in one sentence made from data: for the console, the command line and the page.

``explain_task`` returns the sentence, ``blocking_chain`` the path from a task to the task that blocks it. Both read the
projection of the run and an ``ExplainContext``. Task names come in raw: the caller makes the sentence safe for a
terminal.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..domain.states import MOVING, SkipCause, TaskState
from ..domain.trigger_rules import satisfied_rules
from .breaker import PASSING
from .durations import format_duration
from .projection import AttemptRow, RunProjection, TaskRow
from .ready_queue import spec_of
from .spec import TaskSpec


@dataclass(frozen=True, slots=True)
class BreakerView:
    """The part of a circuit breaker that explains why a task waits for it."""

    state: str  # CLOSED OPEN HALF_OPEN FORCED_OPEN DISABLED METRICS_ONLY
    reopens_at: int | None = None  # microseconds UTC


@dataclass(frozen=True, slots=True)
class ExplainContext:
    """Facts outside the projection of a run. A field that is left out does not appear in the sentences."""

    breakers: Mapping[str, BreakerView] = field(default_factory=dict)  # by downstream
    executor_gone_at: int | None = None  # microseconds UTC; None while an executor runs
    page_notes: Mapping[str, str] = field(default_factory=dict)  # by cause: "page acked by ana"


_NO_CONTEXT = ExplainContext()


@dataclass(frozen=True, slots=True)
class _TaskCase:
    projection: RunProjection
    row: TaskRow
    now: int
    context: ExplainContext

    @property
    def spec(self) -> TaskSpec:
        return spec_of(self.row)

    def for_task(self, name: str) -> _TaskCase:
        return _TaskCase(self.projection, self.projection.tasks[name], self.now, self.context)

    def since(self, at: int | None) -> str:
        return format_duration(self.now - at) if at is not None else "an unknown time"


def explain_task(projection: RunProjection, name: str, now_us: int, context: ExplainContext = _NO_CONTEXT) -> str:
    """Explain why a task is not running, or what it does, in one sentence without a full stop.

    ``now_us``: microseconds UTC by the clock of the state file's host. Raises KeyError for an unknown task.
    """
    case = _TaskCase(projection, projection.tasks[name], now_us, context)
    sentence = _SENTENCES[case.row.state](case)
    gone = context.executor_gone_at
    if gone is not None and case.row.state is TaskState.RUNNING:
        return f"nobody runs it: its executor has been gone for {case.since(gone)}; resume the run, or decide about it"
    if gone is not None and case.row.state in MOVING:
        return f"no executor for {case.since(gone)}, so nothing moves; {sentence}"
    return sentence


def blocking_chain(
    projection: RunProjection, name: str, now_us: int, context: ExplainContext = _NO_CONTEXT
) -> tuple[tuple[str, str], ...]:
    """Return (task, sentence) for the task and each task that blocks it in turn, the nearest first."""
    links: list[str] = [name]
    while True:
        holder = _blocker(_TaskCase(projection, projection.tasks[links[-1]], now_us, context))
        if holder is None or holder in links:
            break
        links.append(holder)
    return tuple((link, explain_task(projection, link, now_us, context)) for link in links)


def unmet_parents(projection: RunProjection, name: str) -> tuple[str, ...]:
    """Return the parents that do not satisfy the trigger rule of a task yet, in the order of the flow."""
    rule = spec_of(projection.tasks[name]).rule
    rows = [projection.tasks[parent] for parent in projection.parents.get(name, ())]
    return tuple(row.name for row in rows if rule not in satisfied_rules(row.state, row.skip_cause))


def _blocker(case: _TaskCase) -> str | None:
    """Return the task that blocks this one; None if no other task does."""
    if case.row.state is TaskState.UPSTREAM_FAILED:
        cause = case.row.blocked_by
        return cause if cause in case.projection.tasks else None
    return _root_blocker(case) if case.row.state is TaskState.PENDING else None


# --- Waiting for parents -------------------------------------------------------------------------------------------

#: Of several blocking tasks the sentence names the first in this order: states that need a human come first.
_BLOCKER_PRIORITY = (
    TaskState.DEAD_LETTER,
    TaskState.FAILED,
    TaskState.CANCELLED,
    TaskState.UPSTREAM_FAILED,
    TaskState.SKIPPED,
    TaskState.RETRYING,
    TaskState.SENSING,
    TaskState.READY,
    TaskState.RUNNING,
    TaskState.PENDING,
    TaskState.SUCCESS,
)
_RANK = {state: rank for rank, state in enumerate(_BLOCKER_PRIORITY)}


def _root_blocker(case: _TaskCase) -> str | None:
    """Return the ancestor that blocks most, by ``_BLOCKER_PRIORITY``; among equals the nearest."""
    best: str | None = None
    seen: set[str] = set()
    queue = deque(unmet_parents(case.projection, case.row.name))
    while queue:
        name = queue.popleft()
        if name in seen:
            continue
        seen.add(name)
        state = case.projection.tasks[name].state
        above = unmet_parents(case.projection, name) if state is TaskState.PENDING else ()
        if above:
            queue.extend(above)
            continue
        if best is None or _RANK[state] < _RANK[case.projection.tasks[best].state]:
            best = name
    return best


def _pending(case: _TaskCase) -> str:
    unmet = unmet_parents(case.projection, case.row.name)
    if not unmet:
        due = case.row.next_retry_at
        if due is not None and due > case.now:
            return f"not before its time, in {format_duration(due - case.now)}"
        return _paused(case) or "all it waits for is done; the executor takes it next"
    root = _root_blocker(case)
    sentence = f"waits for {_join_names(unmet)}"
    if root is None:
        return sentence
    standing = _state_words(case.for_task(root))
    return f"{sentence}, {standing}" if unmet == (root,) else f"{sentence}; {quoted(root)} {standing}"


def _state_words(case: _TaskCase) -> str:
    """Describe the state of a blocking task, to follow its name in a sentence."""
    row = case.row
    match row.state:
        case TaskState.DEAD_LETTER:
            note = case.context.page_notes.get(_cause(row), "")
            kind = f" ({row.dead_letter_kind})" if row.dead_letter_kind else ""
            return f"dead-lettered{kind} for {case.since(row.ended_at)}" + (f", {note}" if note else "")
        case TaskState.RUNNING:
            return f"running for {case.since(row.started_at)}"
        case TaskState.RETRYING:
            return _retrying(case)
        case TaskState.SKIPPED:
            return f"skipped by {row.skip_cause or 'somebody'}"
        case TaskState.CANCELLED:
            return "stopped by an operator"
        case _:
            return row.state.lower().replace("_", " ")


def _cause(row: TaskRow) -> str:
    latest = row.attempts.get(row.attempt)
    return (latest.fingerprint_loose if latest is not None else None) or ""


# --- Waiting for capacity --------------------------------------------------------------------------------------------


def _ready(case: _TaskCase) -> str:
    for reason in (_paused, _breaker, _pool_slots, _max_active, _run_slots):
        sentence = reason(case)
        if sentence:
            return sentence
    return "ready; the executor takes it next"


def _paused(case: _TaskCase) -> str:
    run = case.projection.run
    if run.paused_since is None:
        return ""
    return f"the run is paused by {run.paused_by or 'an operator'} for {case.since(run.paused_since)}"


def _breaker(case: _TaskCase) -> str:
    downstream = case.spec.downstream
    breaker = case.context.breakers.get(downstream) if downstream is not None else None
    if breaker is None or breaker.state in PASSING:
        return ""
    if breaker.state == "HALF_OPEN":
        return f"breaker {downstream} is letting probes through; this task waits for their answer"
    if breaker.state == "FORCED_OPEN":
        return f"breaker {downstream} is held open by an operator"
    if breaker.reopens_at is None:
        return f"breaker {downstream} is open until an operator closes it: a credential was refused"
    left = breaker.reopens_at - case.now
    when = f"lets a probe through in {format_duration(left)}" if left > 0 else "is about to let a probe through"
    return f"breaker {downstream} is open and {when}"


def _pool_slots(case: _TaskCase) -> str:
    pool = case.spec.pool
    slots = pool_sizes(case.projection).get(pool) if pool is not None else None
    if slots is None:
        return ""
    holders = [row for row in _running_rows(case.projection) if spec_of(row).pool == pool]
    used = sum(spec_of(row).pool_slots for row in holders)
    if used + case.spec.pool_slots <= slots:
        return ""
    return f"waits for pool {pool}: {used} of {slots} slots held by {_held_by(case, holders)}"


def pool_sizes(projection: RunProjection) -> dict[str, int]:
    """Return the slots of each pool that the flow declares."""
    try:
        pools = json.loads(projection.run.options).get("pools", {})
    except (ValueError, AttributeError):
        return {}
    return {str(name): int(slots) for name, slots in pools.items() if isinstance(slots, int)}


def _max_active(case: _TaskCase) -> str:
    most = case.spec.max_active
    return f"at most {most} of this name may run at once across runs, and no slot may be left" if most else ""


def _run_slots(case: _TaskCase) -> str:
    running = _running_rows(case.projection)
    most = case.projection.run.max_parallel
    if len(running) < most:
        return ""
    return f"waits for a slot: all {most} are in use, the longest by {_held_by(case, running[:1])}"


def _running_rows(projection: RunProjection) -> list[TaskRow]:
    """Return the running tasks, the longest-running first."""
    rows = [row for row in projection.tasks.values() if row.state is TaskState.RUNNING]
    return sorted(rows, key=lambda row: (row.started_at or 0, row.position))


def _held_by(case: _TaskCase, rows: list[TaskRow]) -> str:
    if not rows:
        return "nobody known"
    first = f"{quoted(rows[0].name)} for {case.since(rows[0].started_at)}"
    return first if len(rows) == 1 else f"{first} and {len(rows) - 1} more"


# --- The other states ----------------------------------------------------------------------------------------------


def _retrying(case: _TaskCase) -> str:
    row = case.row
    due = row.next_retry_at
    if due is None:
        return "to be retried; the executor takes it next"
    left = due - case.now
    when = f"due in {format_duration(left)}" if left > 0 else f"due {format_duration(-left)} ago"
    drew = ""
    if row.delay_us is not None and row.ceiling_us:
        drew = f" (drew {_seconds(row.delay_us)} of ceiling {_seconds(row.ceiling_us)}{_shortened(case)})"
    after = f", after {error_name(row)}" if error_name(row) else ""
    return f"retry {row.failures + 1}/{row.max_attempts} {when}{drew}{after}"


def _shortened(case: _TaskCase) -> str:
    row, deadline = case.row, case.projection.run.deadline_at
    if row.shortened_us is None or row.delay_us is None or deadline is None:
        return ""
    left = deadline - case.now
    due = f"is due in {format_duration(left)}" if left > 0 else f"was due {format_duration(-left)} ago"
    return f"; shortened from {_seconds(row.shortened_us)} s to {_seconds(row.delay_us)} s: the run {due}"


def _seconds(duration_us: int) -> str:
    return f"{duration_us / 1e6:.3g}"


def _sensing(case: _TaskCase) -> str:
    row = case.row
    due = row.next_retry_at
    looks = f"not there yet after {row.deferrals} look{'s' if row.deferrals != 1 else ''}"
    if due is None:
        return looks
    left = due - case.now
    return (
        f"{looks}; next look in {format_duration(left)}"
        if left > 0
        else f"{looks}; next look due {format_duration(-left)} ago"
    )


def _running(case: _TaskCase) -> str:
    row = case.row
    attempt = row.attempts.get(row.attempt)
    timeout = attempt.timeout_us if attempt is not None else None
    of = f" of {format_duration(timeout)}" if timeout else ""
    dying = _kill_progress(attempt, case)
    again = f", {row.failures + 1} of {row.max_attempts} since the requeue," if row.generation else ""
    return f"running: attempt {row.attempt}{again} for {case.since(row.started_at)}{of}{dying}"


def _kill_progress(attempt: AttemptRow | None, case: _TaskCase) -> str:
    if attempt is None or attempt.ended_at is not None:
        return ""
    if attempt.sigkill_at is not None:
        return f"; killed, waiting for pid {attempt.pid} to be gone" if attempt.pid else "; killed, not gone yet"
    if attempt.sigterm_at is not None:
        return f"; told to end {case.since(attempt.sigterm_at)} ago"
    return ""


def _success(case: _TaskCase) -> str:
    row = case.row
    stale = "; a parent was run again since, so what it made may be out of date" if row.stale else ""
    return f"finished {case.since(row.ended_at)} ago, in attempt {row.attempt}{stale}"


def _failed(case: _TaskCase) -> str:
    row = case.row
    if row.canary is not None:
        return _waits_for_canary(row.canary)
    name = error_name(row)
    last = f", the last by {name}" if name else ""
    return f"failed: {row.failures} of {row.max_attempts} attempts are spent{last}; requeue it to try again"


def _waits_for_canary(first: str) -> str:
    return f"waits for {quoted(first)}, which tries the fix: it runs again when that has succeeded"


_DEAD_LETTER = {
    "poison": "the same failure again and nothing changed between",
    "permanent": "its failure says that another try will not work",
    "auth": "its credential is refused; trying again could lock the account",
    "hang": "it hung at the same place again",
    "oom": "it ran out of memory again",
    "crash-loop": "it was lost with its executor or host too often",
    "indeterminate": "it was lost, and running it twice may do harm",
    "deadline": "it can no longer finish before the run's deadline",
    "quarantine": "too many of its rows are bad",
    "breaker": "its downstream is down and the flow asks for a decision",
}


def _dead_lettered(case: _TaskCase) -> str:
    row = case.row
    if row.canary is not None:
        return _waits_for_canary(row.canary)
    reason = _DEAD_LETTER.get(row.dead_letter_kind or "", "a human is needed")
    ends = (
        f", before it counts as failed in {format_duration(row.expires_at - case.now)}"
        if row.expires_at is not None
        else ""
    )
    return f"needs a decision for {case.since(row.ended_at)}: {reason}; requeue it after a fix, or skip it{ends}"


def _upstream_failed(case: _TaskCase) -> str:
    cause = case.row.blocked_by
    row = case.projection.tasks.get(cause) if cause is not None else None
    if row is None:
        return "stopped, because a task above it failed"
    name = error_name(row)
    return f"stopped, because {quoted(row.name)} {row.state.lower()}" + (f" by {name}" if name else "")


_SKIPPED: dict[str | None, str] = {
    SkipCause.OPERATOR: "skipped by an operator; its children go on without it",
    SkipCause.CONDITION: "skipped: the task itself decided that its branch is not taken",
    SkipCause.CASCADE: "skipped: the branch that it belongs to is not taken",
}


def _skipped(case: _TaskCase) -> str:
    sentence, row = _SKIPPED.get(case.row.skip_cause, "skipped"), case.row
    return f"{sentence}: {row.error}" if row.skip_cause == SkipCause.CONDITION and row.error else sentence


def _cancelled(case: _TaskCase) -> str:
    return f"stopped by an operator {case.since(case.row.ended_at)} ago; requeue it to run it after all"


_SENTENCES: dict[TaskState, Callable[[_TaskCase], str]] = {
    TaskState.PENDING: _pending,
    TaskState.READY: _ready,
    TaskState.RUNNING: _running,
    TaskState.SUCCESS: _success,
    TaskState.RETRYING: _retrying,
    TaskState.SENSING: _sensing,
    TaskState.FAILED: _failed,
    TaskState.DEAD_LETTER: _dead_lettered,
    TaskState.UPSTREAM_FAILED: _upstream_failed,
    TaskState.SKIPPED: _skipped,
    TaskState.CANCELLED: _cancelled,
}


# --- Words ---------------------------------------------------------------------------------------------------------


def error_name(row: TaskRow) -> str:
    """Return the short name of the latest error, ``ConnectTimeout`` for ``httpx.ConnectTimeout``; empty without one."""
    latest = row.attempts.get(row.attempt)
    return short_error(latest.error_type) if latest is not None and latest.error_type else ""


def short_error(error_type: str) -> str:
    """Shorten a qualified exception name to its last word. ``exit:3`` and ``signal:9:oom`` stay."""
    return error_type if ":" in error_type else error_type.rpartition(".")[2]


def quoted(name: str) -> str:
    """Quote the name of a task if it is empty or contains white space."""
    return f"'{name}'" if not name or any(character.isspace() for character in name) else name


def _join_names(names: tuple[str, ...]) -> str:
    if len(names) > 3:
        return f"{quoted(names[0])}, {quoted(names[1])} and {len(names) - 2} more"
    if len(names) > 1:
        return f"{', '.join(quoted(name) for name in names[:-1])} and {quoted(names[-1])}"
    return quoted(names[0])
