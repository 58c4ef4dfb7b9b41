"""Explain why a task is not running, in one sentence made from data: for the console, the command line and the page.

``explain_task`` returns the sentence for the reason that ``waiting.py`` finds, ``blocking_chain`` the path from a task
to the task that blocks it. Task names come in raw: the caller makes the sentence safe for a terminal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from heapq import nsmallest
from typing import NamedTuple

from ..domain import states
from ..domain.states import SkipCause, TaskState
from ..domain.text import counted, first_names, format_duration, format_left, shell_word
from . import waiting
from .outcome import FailureMode
from .projection import AttemptRow, RunProjection, TaskRow, state_text
from .ready_queue import is_approval, unended_above, worker_pool
from .waiting import RunnerKind, TaskCase, WaitReason, quoted


def explain_task(
    projection: RunProjection, name: str, now_us: int, context: waiting.ExplainContext = waiting.NO_CONTEXT
) -> str:
    """Explain why a task is not running, or what it does, in one sentence without a full stop.

    ``now_us``: microseconds UTC by the clock of the state file's host. Raises KeyError for an unknown task.
    """
    return _sentence(TaskCase(projection, projection.tasks[name], now_us, context))


def _sentence(case: TaskCase) -> str:
    sentence = _explain(case)
    return f"{sentence}; {case.row.notice}" if case.row.notice and case.row.state in states.MOVING else sentence


_UNSAVED = "attempt has ended; the outcome is in memory until the state file can be written"


def _explain(case: TaskCase) -> str:
    if case.is_unsaved:
        return f"its {_UNSAVED}"
    reason = case.reason
    if reason is None:
        return _ENDED[case.row.state].sentence(case)
    if not waiting.needs_human(reason) and not case.context.runner.is_alive:
        sentence = _WAITS[reason].unattended(case)
        return sentence if _is_held_by_human(case, reason) else f"{sentence}; {case.context.runner.absence}"
    return _WAITS[reason].sentence(case)


def fact_of(case: TaskCase) -> str:
    """Return why a task is in its state, in the few words that follow the word of the state; empty if that says all."""
    row, reason = case.row, case.reason
    if case.is_unsaved:
        return "its end waits for the disk"
    if row.state in states.MOVING and not case.context.runner.is_alive and reason not in _WITHOUT_EXECUTOR:
        is_interrupted = row.state is TaskState.RUNNING
        return _executor_loss(case) if is_interrupted else "queued, no executor runs it"
    return (_ENDED[row.state] if reason is None else _WAITS[reason]).fact(case)


def blocking_chain(
    projection: RunProjection, name: str, now_us: int, context: waiting.ExplainContext = waiting.NO_CONTEXT
) -> tuple[tuple[str, str], ...]:
    """Return (task, sentence) for the task and each task that blocks it in turn, the nearest first.

    Of several tasks that hold it until a human decides, all that its sentence names are there.
    """
    links = [TaskCase(projection, projection.tasks[name], now_us, context)]
    while True:
        case, known = links[-1], [link.row.name for link in links]
        found = case.holders()[: waiting.HOLDERS_MAX - 1] or (case.blocker(),)
        new = [case.for_task(holder) for holder in found if holder is not None and holder not in known]
        if not new:
            return tuple((link.row.name, _sentence(link)) for link in links)
        links += new


# --- Waiting for parents -------------------------------------------------------------------------------------------


def _waits_for_parents(case: TaskCase) -> str:
    unmet, holders = waiting.unmet_parents(case.projection, case.row.name), case.holders()
    root = case.root_blocker()
    sentence = f"waits for {first_names(unmet, 2, quoted) if len(unmet) > 3 else waiting.join_names(unmet)}"
    if len(holders) > 1:
        held = waiting.describe_holders(holders)
        return held if set(unmet) == set(holders) else f"{sentence}; {held}"
    if root is None:
        return sentence
    blocker = case.for_task(root)
    if unmet == (root,):
        return f"{sentence}, {_state_text(blocker)}"
    if clause := _state_clause(blocker):
        return f"{sentence}; held by {quoted(root)}, {clause}"
    return f"{sentence}; {quoted(root)} {_state_text(blocker)}"


def _after(case: TaskCase) -> str:
    """The parents that a task waits for, and who holds it until a human decides; that alone if it says the same."""
    unmet, holders = waiting.unmet_parents(case.projection, case.row.name), case.holders()
    after = f"after {unmet[0] if len(unmet) == 1 else counted(len(unmet), 'task')}" if unmet else ""
    is_said = bool(holders) and (len(unmet) == 1 or set(unmet) <= set(holders))
    held = waiting.describe_holders(holders)
    return held if is_said else ", ".join(filter(None, (after, held)))


def _waits_for_nothing(case: TaskCase) -> str:
    """The sentence for a state that no rule of redrive makes: a parent has ended, and nobody told the task."""
    root = case.root_blocker()
    assert root is not None, "the reason has found an unmet parent"
    standing = _state_text(case.for_task(root))
    return f"waits for {quoted(root)}, {standing}, which will not end the wait: a fault of redrive; requeue or skip it"


def _is_held_by_human(case: TaskCase, reason: WaitReason) -> bool:
    """Whether an executor alone would not change what the task waits for."""
    root = case.root_blocker() if reason is WaitReason.PARENTS else None
    row = None if root is None else case.projection.tasks[root]
    return row is not None and (row.state in states.NEEDS_HUMAN or waiting.is_undecided(row))


def _not_before(case: TaskCase) -> str:
    return f"not before its time, {_in_or_ago(case, case.row.next_retry_at)}"


def _state_text(case: TaskCase) -> str:
    """Describe the state of a blocking task, to follow its name in a sentence."""
    row = case.row
    if clause := _state_clause(case):
        return clause
    match row.state:
        case TaskState.DEAD_LETTER:
            cause = row.latest.fingerprint_loose if row.latest is not None else None
            note = case.context.page_notes.get(cause or "", "")
            kind = f" ({row.dead_letter_kind})" if row.dead_letter_kind else ""
            return f"dead-lettered{kind} for {case.since(row.ended_at)}" + (f", {note}" if note else "")
        case TaskState.RUNNING:
            return f"running for {case.since(row.started_at)}"
        case TaskState.RETRYING if case.context.runner.is_alive and case.reason in waiting.BREAKER_WAITS:
            return f"held by the breaker of {case.spec.downstream}"
        case TaskState.RETRYING:
            return _retrying(case) if case.context.runner.is_alive else _queued_for_retry(case)
        case _ if row.is_ended_by_deadline:
            return "ended by the deadline of the run"
        case TaskState.CANCELLED:
            return "stopped by an operator"
        case _:
            return state_text(row)


def _state_clause(case: TaskCase) -> str:
    """The state of a blocking task where only a relative clause says it; else empty."""
    if waiting.waits_for_approval(case.row):
        return "which waits for an approval"
    if case.row.state is not TaskState.RUNNING:
        return ""
    if case.is_unsaved:
        return f"whose {_UNSAVED}"
    return "" if case.context.runner.is_alive else f"whose {_executor_loss(case)}"


# --- Waiting for capacity --------------------------------------------------------------------------------------------


def _dispatched_next(case: TaskCase) -> str:
    is_pending = case.row.state is TaskState.PENDING
    above = unended_above(case.projection, case.row.name) if is_pending else None
    if above is not None:
        return f"waits for {quoted(above)}, which has not ended: a clean-up of a run that is over starts after it"
    return f"{'all it waits for is done' if is_pending else 'ready'}; the executor starts it next"


def _paused(case: TaskCase) -> str:
    run = case.projection.run
    return f"the run is paused for {case.since(run.paused_since)} {waiting.pause_author(run)}"


def _probed(case: TaskCase) -> str:
    return f"breaker {case.spec.downstream} is letting probes through; this task waits for their answer"


def _refused(case: TaskCase) -> str:
    return f"{_open_breaker(case)} until an operator closes it: a credential was refused"


def _down(case: TaskCase) -> str:
    breaker = case.breaker_against()
    assert breaker is not None and breaker.reopens_at is not None
    if breaker.reopens_at > case.now:
        when = f"lets a probe through in {format_left(breaker.reopens_at - case.now)}"
    elif case.has_no_slot():
        when = "lets a probe through once a slot is free"
    else:
        when = "is about to let a probe through"
    return f"{_open_breaker(case)} and {when}"


def _open_breaker(case: TaskCase) -> str:
    return f"breaker {case.spec.downstream} is open"


def _held_breaker(case: TaskCase) -> str:
    return f"breaker {case.spec.downstream} is held open by an operator"


def _budget_spent(case: TaskCase) -> str:
    left = format_left((case.reserve_at() or case.now) - case.now)
    return f"the retry budget of {case.spec.downstream} is spent; the next retry starts in {left}"


def _released(case: TaskCase) -> str:
    breaker = case.release_against()
    assert breaker is not None
    name = case.spec.downstream
    return f"{name} is back; its tasks start at {breaker.release_rate:.3g} a second, more each second they succeed"


def _pool_full(case: TaskCase) -> str:
    use = case.pool_use()
    assert use is not None
    slots, used, holders = use
    return f"waits for pool {case.spec.pool}: {used} of {slots} slots held by {_held_by(case, holders)}"


def _machine_pool_full(case: TaskCase) -> str:
    pool = case.spec.pool or ""
    return f"waits for pool {pool} of this machine, held by {case.pool_waits.pools[pool]}"


def _pool_use(case: TaskCase) -> str:
    use = case.pool_use()
    return f"waits for pool {case.spec.pool}, {use[1]}/{use[0]} used" if use is not None else ""


def _machine_pool_holder(case: TaskCase) -> str:
    return f"waits for pool {case.spec.pool}, held by {case.pool_waits.pools.get(case.spec.pool or '')}"


def _worker(case: TaskCase) -> str:
    return f"waits for a Dask worker: {case.pool_waits.workers.get(worker_pool(case.spec) or '')}"


def _slots_used(case: TaskCase) -> str:
    longest = nsmallest(1, case.running_rows(), key=waiting.by_start)
    most = case.projection.run.max_parallel
    return f"waits for a slot: all {most} are in use, the longest by {_held_by(case, longest)}"


def _held_by(case: TaskCase, rows: list[TaskRow]) -> str:
    if not rows:
        return "an unknown task"
    first = f"{quoted(rows[0].name)} for {case.since(rows[0].started_at)}"
    return first if len(rows) == 1 else f"{first} and {len(rows) - 1} more"


# --- The other states ----------------------------------------------------------------------------------------------


def _in_or_ago(case: TaskCase, at: int | None) -> str:
    left = (at or case.now) - case.now
    return f"in {format_left(left)}" if left > 0 else f"{format_duration(-left)} ago"


def _retrying(case: TaskCase) -> str:
    row = case.row
    if row.next_retry_at is None:
        return "to be retried; the executor starts it next"
    drew = ""
    if row.delay_us is not None and row.ceiling_us:
        drew = f" (drew {format_duration(row.delay_us)} of ceiling {format_duration(row.ceiling_us)}{_shortened(case)})"
    slow = "; its timeout is too short: extend it while it runs" if row.failure_mode == FailureMode.SLOW else ""
    due = f"due {_in_or_ago(case, row.next_retry_at)}"
    return f"{_next_attempt(row)} {due}{drew}{_after_error(row)}{_charged(case)}{slow}"


def _next_attempt(row: TaskRow) -> str:
    return f"retry {row.failures + 1}/{row.max_attempts}"


def _after_error(row: TaskRow) -> str:
    return f", after {error_name(row)}" if error_name(row) else ""


def _charged(case: TaskCase) -> str:
    """Return how many failures spend no attempt, because the downstream is charged with them."""
    refusals, downstream = case.row.refusals, case.spec.downstream
    return f"; {refusals} more charged to {downstream}" if refusals and downstream is not None else ""


def _queued_for_retry(case: TaskCase) -> str:
    return f"queued for {_next_attempt(case.row)}{_after_error(case.row)}"


def _interrupted(case: TaskCase) -> str:
    gone_at = case.context.runner.gone_at
    return f"its {_executor_loss(case)}" + (f" {case.since(gone_at)} ago" if gone_at is not None else "")


def _executor_loss(case: TaskCase) -> str:
    return "executor was last seen" if case.context.runner.kind is RunnerKind.UNSEEN else "executor ended"


def _shortened(case: TaskCase) -> str:
    row, deadline = case.row, case.projection.run.deadline_at
    if row.shortened_us is None or row.delay_us is None or deadline is None:
        return ""
    due = f"{'is' if deadline > case.now else 'was'} due {_in_or_ago(case, deadline)}"
    return f"; shortened from {format_duration(row.shortened_us)} to {format_duration(row.delay_us)}: the run {due}"


def _sensing(case: TaskCase) -> str:
    due_at = case.row.next_retry_at
    if due_at is None:
        return _count_checks(case)
    is_due = " due" if due_at <= case.now else ""
    return f"{_count_checks(case)}; next check{is_due} {_in_or_ago(case, due_at)}"


def _count_checks(case: TaskCase) -> str:
    said = f": {case.row.error}" if case.row.error else ""
    return f"not there yet after {counted(case.row.deferrals, 'check')}{said}"


def _latest_check(case: TaskCase) -> str:
    """What the latest check said, which a short row cuts last, and the number of checks."""
    return ", ".join(filter(None, (case.row.error, counted(case.row.deferrals, "check"))))


def _running(case: TaskCase) -> str:
    row = case.row
    attempt = row.latest
    timeout = attempt.timeout_us if attempt is not None else None
    if case.spec.isolation == "dask" and attempt is not None and attempt.pid is None:
        return f"its process starts on a Dask worker, for {case.since(row.started_at)}: attempt {row.attempt}"
    of = f" of {format_duration(timeout)}" if timeout else ""
    dying = _kill_progress(attempt, case)
    again = f", {row.failures + 1} of {row.max_attempts} since the requeue," if row.generation else ""
    return f"attempt {row.attempt}{again} runs for {case.since(row.started_at)}{of}{dying}"


def _kill_progress(attempt: AttemptRow | None, case: TaskCase) -> str:
    if attempt is None or attempt.ended_at is not None:
        return ""
    if attempt.sigkill_at is not None:
        return f"; killed, waiting for pid {attempt.pid} to be gone" if attempt.pid else "; killed, not gone yet"
    if attempt.sigterm_at is not None:
        return f"; SIGTERM sent {case.since(attempt.sigterm_at)} ago"
    return ""


def _success(case: TaskCase) -> str:
    row = case.row
    stale = "; a parent was run again since, so what it made may be out of date" if row.stale else ""
    if is_approval(row) and not row.attempt:
        return f"approved {case.since(row.ended_at)} ago{approver(row)}{stale}"
    return f"finished {case.since(row.ended_at)} ago, in attempt {row.attempt}{stale}"


def approver(row: TaskRow) -> str:
    """`` by ana@db1: the numbers fit``, of an approval that was approved."""
    found = json.loads(row.result or "{}")
    return f" by {found.get('approved_by')}: {found.get('reason')}" if isinstance(found, dict) and found else ""


def _failed(case: TaskCase) -> str:
    row = case.row
    if row.failure_class in (states.REJECTED, states.UNANSWERED):
        return f"{row.error}; requeue it to be asked again"
    name = error_name(row)
    last = f", the last by {name}" if name else ""
    return f"{row.failures} of {row.max_attempts} attempts are spent{last}; requeue it to try again"


def _waits_for_approval(case: TaskCase) -> str:
    row = case.row
    ends_at = row.expires_at
    if ends_at is not None and ends_at <= case.now:  # no executor was there to fail it
        again = f"requeue {shell_word(row.name)} to be asked again"
        return f"{states.describe_unanswered(ends_at)}: the next executor fails it; {again}"
    ends = "" if ends_at is None else f"; without an answer it fails in {format_left(ends_at - case.now)}"
    answer = case.context.runner.answers or f"approve or reject {shell_word(row.name)}"
    return f"waits for an approval for {case.since(row.started_at)}: {answer}{ends}"


def _waits_for_canary(case: TaskCase) -> str:
    return f"{_follows_canary(case)}: it runs again when that has succeeded"


def _follows_canary(case: TaskCase) -> str:
    return f"waits for {quoted(case.row.canary or '')}, which tries the fix"


_DEAD_LETTER = {
    "poison": "the same failure again and nothing changed between",
    "permanent": "its failure says that another try will not work",
    "auth": "its credential is refused; trying again could lock the account",
    "hang": "it hung at the same place again",
    "timeout": "its timeout is too short (requeue it with --timeout)",
    "oom": "it needs more memory than it may hold",
    "crash-loop": "it was lost with its executor or host too often",
    "deadline": "it can no longer finish before the run's deadline",
    "quarantine": "too many of its rows are bad",
    "breaker": "its downstream is down and the flow asks for a decision",
}


def _dead_lettered(case: TaskCase) -> str:
    row = case.row
    reason = _poisoned_at_once(case) or _DEAD_LETTER.get(row.dead_letter_kind or "", "a human is needed")
    ends = (
        f", before it counts as failed in {format_left(row.expires_at - case.now)}"
        if row.expires_at is not None and case.context.runner.is_alive
        else ""
    )
    advice = f"{reason}; requeue it after a fix, or skip it"
    if states.may_have_happened(row.state, row.dead_letter_kind):
        key = states.effect_key(case.projection.run.run_id, row.name, row.key_generation) if case.spec.effect else None
        advice = f"{states.describe_doubts([(quoted(row.name), key)])}; skip it if it did, else requeue it"
    return f"needs a decision for {case.since(row.ended_at)}: {advice}{ends}"


def _poisoned_at_once(case: TaskCase) -> str | None:
    """Return why one failure was enough; None: it is no poison, or there were several."""
    if case.row.dead_letter_kind != states.DeadLetterKind.POISON or case.row.failures != 1:
        return None
    asked = case.spec.retry.poison_after
    return "siblings are poison by the same failure" if asked == "evidence" else f"poison_after={asked}"


def _upstream_failed(case: TaskCase) -> str:
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


def _skipped(case: TaskCase) -> str:
    sentence, row = _SKIPPED.get(case.row.skip_cause, "skipped"), case.row
    return f"{sentence}: {row.error}" if row.skip_cause == SkipCause.CONDITION and row.error else sentence


def _cancelled(case: TaskCase) -> str:
    return f"stopped by an operator {case.since(case.row.ended_at)} ago; requeue it to run it after all"


def _ended_by_deadline(case: TaskCase) -> str:
    return f"ended: {case.row.error}; postpone the deadline of the run, or requeue the task alone"


def _failure(case: TaskCase) -> str:
    """The latest failure of a task, as its attempt or the engine says it."""
    row, attempt = case.row, case.row.latest
    return (attempt.explain if attempt is not None else None) or row.error or row.dead_letter_kind or ""


class _Words(NamedTuple):
    """The texts about a wait, or about an end.

    ``fact``: in a few words; ``unattended``: the sentence while no executor runs, where a promise would be wrong.
    """

    sentence: Callable[[TaskCase], str]
    fact: Callable[[TaskCase], str] = lambda case: ""
    unattended: Callable[[TaskCase], str] = lambda case: "queued"


_WAITS: Mapping[WaitReason, _Words] = {
    WaitReason.PARENTS: _Words(_waits_for_parents, _after, _waits_for_parents),
    WaitReason.NOT_BEFORE: _Words(_not_before),
    WaitReason.RETRY: _Words(_retrying, unattended=_queued_for_retry),
    WaitReason.SENSOR: _Words(_sensing, _latest_check, _count_checks),
    WaitReason.ATTEMPT: _Words(_running, unattended=_interrupted),
    WaitReason.DISPATCH: _Words(_dispatched_next),
    WaitReason.SLOT: _Words(_slots_used, lambda case: f"waits for a slot, {case.projection.run.max_parallel} in use"),
    WaitReason.POOL: _Words(_pool_full, _pool_use),
    WaitReason.MACHINE_POOL: _Words(_machine_pool_full, _machine_pool_holder),
    WaitReason.WORKER: _Words(_worker, _worker),
    WaitReason.RETRY_BUDGET: _Words(_budget_spent, lambda case: f"the retry budget of {case.spec.downstream} is spent"),
    WaitReason.RELEASE: _Words(_released, lambda case: f"{case.spec.downstream} is back, its tasks start one by one"),
    WaitReason.OUTAGE: _Words(_down, _open_breaker, _open_breaker),
    WaitReason.PROBE: _Words(_probed, _open_breaker, _open_breaker),
    WaitReason.CREDENTIAL: _Words(_refused, _open_breaker),
    WaitReason.FORCED_OPEN: _Words(_held_breaker, _held_breaker),
    WaitReason.PAUSE: _Words(_paused, lambda case: "the run is paused"),
    WaitReason.DECISION: _Words(_dead_lettered, _failure),
    WaitReason.APPROVAL: _Words(_waits_for_approval, lambda case: "waits for an approval"),
    WaitReason.CANARY: _Words(_waits_for_canary, _failure, _follows_canary),
    WaitReason.DEADLINE: _Words(_ended_by_deadline),
    WaitReason.NOTHING: _Words(_waits_for_nothing, lambda case: "waits for nothing: a fault of redrive"),
}

#: The states in which a task waits for nothing.
_ENDED: Mapping[TaskState, _Words] = {
    TaskState.SUCCESS: _Words(_success),
    TaskState.FAILED: _Words(_failed, _failure),
    TaskState.UPSTREAM_FAILED: _Words(
        _upstream_failed, lambda case: f"because of {case.row.blocked_by or 'a task above'}"
    ),
    TaskState.SKIPPED: _Words(_skipped),
    TaskState.CANCELLED: _Words(_cancelled),
}

#: Waits that an executor alone would not end: their fact comes before its absence.
_WITHOUT_EXECUTOR = frozenset([WaitReason.PARENTS, *filter(waiting.needs_human, WaitReason)])


# --- Words ---------------------------------------------------------------------------------------------------------


def error_name(row: TaskRow) -> str:
    """Return the short name of the latest error, ``ConnectTimeout`` for ``httpx.ConnectTimeout``; empty without one."""
    latest = row.latest
    if latest is None or not latest.error_type:
        return ""
    kind, _, code = latest.error_type.partition(":")
    return f"exit status {code}" if kind == "exit" else short_error(latest.error_type)


def short_error(error_type: str) -> str:
    """Shorten a qualified exception name to its last word. ``exit:3`` and ``signal:9:oom`` stay."""
    return error_type if ":" in error_type else error_type.rpartition(".")[2]
