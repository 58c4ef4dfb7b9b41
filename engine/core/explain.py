"""Why a task is not running, in one sentence made from data: for the console, the command line and the page.

``why`` gives the sentence, ``chain`` the way from the task to what really holds it. Both read the fold and what stands
beside it (breakers, the executor, pages); nothing is guessed. Task names come in as they are: whoever shows the
sentence makes it fit for a terminal.
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
    """What a task that waits for a circuit breaker has to know of it."""

    state: str  # CLOSED OPEN HALF_OPEN FORCED_OPEN DISABLED METRICS_ONLY
    reopens_at: int | None = None  # microseconds UTC


@dataclass(frozen=True, slots=True)
class ExplainContext:
    """What stands beside a run's fold. Everything may be left out; then nothing is said of it."""

    breakers: Mapping[str, BreakerView] = field(default_factory=dict)  # by downstream
    executor_gone_at: int | None = None  # microseconds UTC; None while one lives
    page_notes: Mapping[str, str] = field(default_factory=dict)  # by cause: "page acked by ana"


_NOTHING = ExplainContext()


@dataclass(frozen=True, slots=True)
class _Case:
    fold: RunProjection
    row: TaskRow
    now: int
    around: ExplainContext

    @property
    def spec(self) -> TaskSpec:
        return spec_of(self.row)

    def of(self, name: str) -> _Case:
        return _Case(self.fold, self.fold.tasks[name], self.now, self.around)

    def since(self, at: int | None) -> str:
        return format_duration(self.now - at) if at is not None else "an unknown time"


def explain_task(fold: RunProjection, name: str, now_us: int, around: ExplainContext = _NOTHING) -> str:
    """Why this task is not running, or what it is doing, in one sentence without a full stop.

    ``now_us``: microseconds UTC by the clock of the state file's host. Raises KeyError for an unknown task.
    """
    case = _Case(fold, fold.tasks[name], now_us, around)
    sentence = _SENTENCES[case.row.state](case)
    gone = around.executor_gone_at
    if gone is not None and case.row.state is TaskState.RUNNING:
        return f"nobody runs it: its executor has been gone for {case.since(gone)}; resume the run, or decide about it"
    if gone is not None and case.row.state in MOVING:
        return f"no executor for {case.since(gone)}, so nothing moves; {sentence}"
    return sentence


def blocking_chain(
    fold: RunProjection, name: str, now_us: int, around: ExplainContext = _NOTHING
) -> tuple[tuple[str, str], ...]:
    """(task, its own sentence) from the task to what holds it, the nearest first; the task alone if nothing does."""
    links: list[str] = [name]
    while True:
        holder = _holder(_Case(fold, fold.tasks[links[-1]], now_us, around))
        if holder is None or holder in links:
            break
        links.append(holder)
    return tuple((link, explain_task(fold, link, now_us, around)) for link in links)


def unmet_parents(fold: RunProjection, name: str) -> tuple[str, ...]:
    """The parents that, by the task's rule, do not let it start yet; in the order of the flow."""
    rule = spec_of(fold.tasks[name]).rule
    rows = [fold.tasks[parent] for parent in fold.parents.get(name, ())]
    return tuple(row.name for row in rows if rule not in satisfied_rules(row.state, row.skip_cause))


def _holder(case: _Case) -> str | None:
    """The task that holds this one, or None if it is held by nothing but itself."""
    if case.row.state is TaskState.UPSTREAM_FAILED:
        cause = case.row.blocked_by
        return cause if cause in case.fold.tasks else None
    return _root_of_waiting(case) if case.row.state is TaskState.PENDING else None


# --- Waiting for parents -------------------------------------------------------------------------------------------

#: Which of several things that a task waits for is named: what never goes on by itself first.
_HOLDS = (
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
_RANK = {state: rank for rank, state in enumerate(_HOLDS)}


def _root_of_waiting(case: _Case) -> str | None:
    """Of all that a task waits for, also through other waiting tasks, what holds hardest; among equals the nearest."""
    best: str | None = None
    seen: set[str] = set()
    queue = deque(unmet_parents(case.fold, case.row.name))
    while queue:
        name = queue.popleft()
        if name in seen:
            continue
        seen.add(name)
        state = case.fold.tasks[name].state
        above = unmet_parents(case.fold, name) if state is TaskState.PENDING else ()
        if above:
            queue.extend(above)
            continue
        if best is None or _RANK[state] < _RANK[case.fold.tasks[best].state]:
            best = name
    return best


def _pending(case: _Case) -> str:
    unmet = unmet_parents(case.fold, case.row.name)
    if not unmet:
        due = case.row.next_retry_at
        if due is not None and due > case.now:
            return f"not before its time, in {format_duration(due - case.now)}"
        return _paused(case) or "all it waits for is done; the executor takes it next"
    root = _root_of_waiting(case)
    sentence = f"waits for {_listed(unmet)}"
    if root is None:
        return sentence
    standing = _standing(case.of(root))
    return f"{sentence}, {standing}" if unmet == (root,) else f"{sentence}; {quoted(root)} {standing}"


def _standing(case: _Case) -> str:
    """What the task that holds another one is at, to follow its name."""
    row = case.row
    match row.state:
        case TaskState.DEAD_LETTER:
            note = case.around.page_notes.get(_cause(row), "")
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


# --- Waiting for room ----------------------------------------------------------------------------------------------


def _ready(case: _Case) -> str:
    for reason in (_paused, _breaker, _pool, _singleton, _slot):
        sentence = reason(case)
        if sentence:
            return sentence
    return "ready; the executor takes it next"


def _paused(case: _Case) -> str:
    run = case.fold.run
    if run.paused_since is None:
        return ""
    return f"the run is paused by {run.paused_by or 'an operator'} for {case.since(run.paused_since)}"


def _breaker(case: _Case) -> str:
    downstream = case.spec.downstream
    breaker = case.around.breakers.get(downstream) if downstream is not None else None
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


def _pool(case: _Case) -> str:
    pool = case.spec.pool
    slots = pool_sizes(case.fold).get(pool) if pool is not None else None
    if slots is None:
        return ""
    holders = [row for row in _running(case.fold) if spec_of(row).pool == pool]
    used = sum(spec_of(row).pool_slots for row in holders)
    if used + case.spec.pool_slots <= slots:
        return ""
    return f"waits for pool {pool}: {used} of {slots} slots held by {_held_by(case, holders)}"


def pool_sizes(fold: RunProjection) -> dict[str, int]:
    """The slots of each pool, as the flow declares them."""
    try:
        pools = json.loads(fold.run.options).get("pools", {})
    except (ValueError, AttributeError):
        return {}
    return {str(name): int(slots) for name, slots in pools.items() if isinstance(slots, int)}


def _singleton(case: _Case) -> str:
    most = case.spec.max_active
    return f"at most {most} of this name may run at once across runs, and no slot may be left" if most else ""


def _slot(case: _Case) -> str:
    running = _running(case.fold)
    most = case.fold.run.max_parallel
    if len(running) < most:
        return ""
    return f"waits for a slot: all {most} are in use, the longest by {_held_by(case, running[:1])}"


def _running(fold: RunProjection) -> list[TaskRow]:
    """The longest-running first."""
    rows = [row for row in fold.tasks.values() if row.state is TaskState.RUNNING]
    return sorted(rows, key=lambda row: (row.started_at or 0, row.position))


def _held_by(case: _Case, rows: list[TaskRow]) -> str:
    if not rows:
        return "nobody known"
    first = f"{quoted(rows[0].name)} for {case.since(rows[0].started_at)}"
    return first if len(rows) == 1 else f"{first} and {len(rows) - 1} more"


# --- The other states ----------------------------------------------------------------------------------------------


def _retrying(case: _Case) -> str:
    row = case.row
    due = row.next_retry_at
    if due is None:
        return "to be retried; the executor takes it next"
    left = due - case.now
    when = f"due in {format_duration(left)}" if left > 0 else f"due {format_duration(-left)} ago"
    drew = ""
    if row.delay_us is not None and row.ceiling_us:
        drew = f" (drew {_seconds(row.delay_us)} of ceiling {_seconds(row.ceiling_us)}{_cut(case)})"
    after = f", after {error_name(row)}" if error_name(row) else ""
    return f"retry {row.failures + 1}/{row.max_attempts} {when}{drew}{after}"


def _cut(case: _Case) -> str:
    row, deadline = case.row, case.fold.run.deadline_at
    if row.shortened_us is None or row.delay_us is None or deadline is None:
        return ""
    left = deadline - case.now
    due = f"is due in {format_duration(left)}" if left > 0 else f"was due {format_duration(-left)} ago"
    return f"; shortened from {_seconds(row.shortened_us)} s to {_seconds(row.delay_us)} s: the run {due}"


def _seconds(duration_us: int) -> str:
    return f"{duration_us / 1e6:.3g}"


def _sensing(case: _Case) -> str:
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


def _is_running(case: _Case) -> str:
    row = case.row
    attempt = row.attempts.get(row.attempt)
    timeout = attempt.timeout_us if attempt is not None else None
    of = f" of {format_duration(timeout)}" if timeout else ""
    dying = _dying(attempt, case)
    again = f", {row.failures + 1} of {row.max_attempts} since the requeue," if row.generation else ""
    return f"running: attempt {row.attempt}{again} for {case.since(row.started_at)}{of}{dying}"


def _dying(attempt: AttemptRow | None, case: _Case) -> str:
    if attempt is None or attempt.ended_at is not None:
        return ""
    if attempt.sigkill_at is not None:
        return f"; killed, waiting for pid {attempt.pid} to be gone" if attempt.pid else "; killed, not gone yet"
    if attempt.sigterm_at is not None:
        return f"; told to end {case.since(attempt.sigterm_at)} ago"
    return ""


def _success(case: _Case) -> str:
    row = case.row
    stale = "; a parent was run again since, so what it made may be out of date" if row.stale else ""
    return f"finished {case.since(row.ended_at)} ago, in attempt {row.attempt}{stale}"


def _failed(case: _Case) -> str:
    row = case.row
    if row.canary is not None:
        return _follows(row.canary)
    name = error_name(row)
    last = f", the last by {name}" if name else ""
    return f"failed: {row.failures} of {row.max_attempts} attempts are spent{last}; requeue it to try again"


def _follows(first: str) -> str:
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


def _dead(case: _Case) -> str:
    row = case.row
    if row.canary is not None:
        return _follows(row.canary)
    reason = _DEAD_LETTER.get(row.dead_letter_kind or "", "a human is needed")
    ends = (
        f", before it counts as failed in {format_duration(row.expires_at - case.now)}"
        if row.expires_at is not None
        else ""
    )
    return f"needs a decision for {case.since(row.ended_at)}: {reason}; requeue it after a fix, or skip it{ends}"


def _upstream_failed(case: _Case) -> str:
    cause = case.row.blocked_by
    row = case.fold.tasks.get(cause) if cause is not None else None
    if row is None:
        return "stopped, because a task above it failed"
    name = error_name(row)
    return f"stopped, because {quoted(row.name)} {row.state.lower()}" + (f" by {name}" if name else "")


_SKIPPED: dict[str | None, str] = {
    SkipCause.OPERATOR: "skipped by an operator; its children go on without it",
    SkipCause.CONDITION: "skipped: the task itself decided that its branch is not taken",
    SkipCause.CASCADE: "skipped: the branch that it belongs to is not taken",
}


def _skipped(case: _Case) -> str:
    sentence, row = _SKIPPED.get(case.row.skip_cause, "skipped"), case.row
    return f"{sentence}: {row.error}" if row.skip_cause == SkipCause.CONDITION and row.error else sentence


def _cancelled(case: _Case) -> str:
    return f"stopped by an operator {case.since(case.row.ended_at)} ago; requeue it to run it after all"


_SENTENCES: dict[TaskState, Callable[[_Case], str]] = {
    TaskState.PENDING: _pending,
    TaskState.READY: _ready,
    TaskState.RUNNING: _is_running,
    TaskState.SUCCESS: _success,
    TaskState.RETRYING: _retrying,
    TaskState.SENSING: _sensing,
    TaskState.FAILED: _failed,
    TaskState.DEAD_LETTER: _dead,
    TaskState.UPSTREAM_FAILED: _upstream_failed,
    TaskState.SKIPPED: _skipped,
    TaskState.CANCELLED: _cancelled,
}


# --- Words ---------------------------------------------------------------------------------------------------------


def error_name(row: TaskRow) -> str:
    """The short name of a task's latest error, ``ConnectTimeout`` for ``httpx.ConnectTimeout``; empty without one."""
    latest = row.attempts.get(row.attempt)
    return short_error(latest.error_type) if latest is not None and latest.error_type else ""


def short_error(error_type: str) -> str:
    """The last word of a qualified exception name; ``exit:3`` and ``signal:9:oom`` stay."""
    return error_type if ":" in error_type else error_type.rpartition(".")[2]


def quoted(name: str) -> str:
    """A task's name in a sentence: in quotes if it would fall apart otherwise."""
    return f"'{name}'" if not name or any(character.isspace() for character in name) else name


def _listed(names: tuple[str, ...]) -> str:
    if len(names) > 3:
        return f"{quoted(names[0])}, {quoted(names[1])} and {len(names) - 2} more"
    if len(names) > 1:
        return f"{', '.join(quoted(name) for name in names[:-1])} and {quoted(names[-1])}"
    return quoted(names[0])
