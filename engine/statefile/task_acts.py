"""The acts of operators on tasks: requeue, skip, approve, reject, cancel, extend, hurry.

What a requeue does to the tasks below: see ``_update_dependents``.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
from collections import deque
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from ..domain import states
from ..domain.acts import BY_NAME, DONE, REFUSED, RUNNING, Answer, Target
from ..domain.elements import FOLLOWING, describe_following
from ..domain.event_payloads import RowsChange, TaskColumns
from ..domain.task_options import Overrides, describe_overrides
from ..domain.text import format_clock, format_duration
from ..domain.trigger_rules import ParentStatus, rules_with
from . import quarantine, requeue
from .action import (
    ActionContext,
    TaskSnapshot,
    ago,
    check_target,
    read_known_task,
    refusal_of,
    repeated_key,
    summarize,
    who_cancelled,
)
from .breakers import arm_probes, check_breaker
from .map_tasks import RemappedTask, expand_below, followers
from .requeue import (
    end_generation,
    late_tasks,
    overrides_from_options,
    resolve_target,
    restart_cancelled,
    start_generation,
)
from .sql import chunks, in_list, marks
from .transitions import (
    children_of,
    descendants_of,
    hold_children,
    mark_stale,
    propagate,
    rearm,
    reevaluate,
    resolve,
    unpropagate,
)

ReadTarget = Callable[[ActionContext, Target], Optional[TaskSnapshot]]


def changeable(context: ActionContext, read: ReadTarget = resolve_target) -> Iterator[TaskSnapshot]:
    """Yield the targets that the act may change, one by one, for it may change the next; the others are refused.

    ``read``: returns a target that is as the operator saw it.
    """
    for target in context.targets:
        row = read(context, target)
        refused = None if row is None else refusal_of(context, row)
        if row is not None and refused:
            context.set_result(row.name, REFUSED, refused)
        elif row is not None:
            yield row


# --- The acts ``requeue`` and ``requeue-rows`` -----------------------------------------------------------------------


def requeue_tasks(context: ActionContext) -> Answer:
    """Start a new generation of each target.

    Options: ``reset_count`` (default true); ``cascade``: successful descendants run again as well; ``not_before``:
    seconds to wait; ``rate_per_second``: starts per second after the first. For this generation only: ``timeout``
    (seconds), ``params``, ``max_attempts`` or ``single_shot``. ``new_key``: a new idempotency key; ``same_key``: an
    effect that has happened is repeated with its key. ``canary``: run the first target, and requeue the others after it
    has succeeded.
    """
    try:
        overrides = overrides_from_options(context)
    except ValueError as error:
        return Answer(False, str(error))
    if _has_two_keys(context):
        return Answer(False, _TWO_KEYS)
    blocked: List[TaskSnapshot] = []
    rows: List[TaskSnapshot] = []
    for target in context.targets:
        row = resolve_target(context, target)
        if row is None:
            continue
        rows.append(row)
        refused = refusal_of(context, row)
        if row.state == states.TaskState.UPSTREAM_FAILED:
            blocked.append(row)
        elif refused:
            context.set_result(row.name, REFUSED, refused)
        elif context.options.get("canary"):
            _requeue_as_canary(context, row, overrides)
        else:
            _run_again(context, row, overrides)
    _note_doubts(context, rows)
    _run_below_again(context)
    quarantine.release_requeued(context.transaction, context.run_id, context.done_names())
    arm_probes(context)
    for row in blocked:
        _answer_for_blocked(context, row)
    return summarize(context)


def _run_again(context: ActionContext, row: TaskSnapshot, overrides: Overrides) -> None:
    check_breaker(context, row)
    start_generation(context, row, overrides, new_key=bool(context.options.get("new_key")))
    if row.state == states.TaskState.SUCCESS and _is_effect(row):
        _note_repetition(context, row)
    words = [f"after attempt {row.attempt}" if row.attempt else "", describe_overrides(overrides)]
    context.set_result(row.name, DONE, "runs again {}".format(", ".join(word for word in words if word)).strip())


def _requeue_as_canary(context: ActionContext, row: TaskSnapshot, overrides: Overrides) -> None:
    """Requeue the first target as a canary, which becomes a dead letter if it fails as before; hold the others."""
    first = next(iter(context.done_names()), None)
    if first is not None:
        requeue.hold_for_canary(context, row, first)
        return
    refused = requeue.canary_refusal(row)
    if refused:
        context.set_result(row.name, REFUSED, refused)
        return
    canary_overrides = overrides.copy()
    canary_overrides["rollout"] = context.transaction.author.command_id or ""
    cause = requeue.loose_fingerprint(context, row)
    if cause is not None:
        canary_overrides["verifies"] = cause
    _run_again(context, row, canary_overrides)


def requeue_rows(context: ActionContext) -> Answer:
    """Start a new generation of each target over some of its quarantined rows.

    Options: ``rows`` or ``groups``, as for ``quarantine.select_rows``; ``cascade``, ``not_before``, ``new_key``
    and ``same_key`` as for ``requeue``.
    """
    if _has_two_keys(context):
        return Answer(False, _TWO_KEYS)
    found = quarantine.select_rows(context)
    for row in changeable(context, lambda context, one: check_target(context, one) if one.task in found else None):
        start_generation(context, row, new_key=True)  # the system that knows the old key has seen all rows
        quarantine.mark_rows(context, row.name, found[row.name], RowsChange.REQUEUED, row.generation + 1)
        context.set_result(row.name, DONE, f"runs again over {len(found[row.name])} of its rows")
    quarantine.refuse_unheld(context, found)
    _run_below_again(context)
    return summarize(context)


def _run_below_again(context: ActionContext) -> None:
    """Apply the new generations to map tasks and to the tasks below them, also those that succeeded."""
    wait_seconds = context.options.get("not_before")
    if wait_seconds and context.done_names():
        wait_us = int(wait_seconds * 1000000)
        clock = format_clock(context.transaction.at + wait_us)
        context.notes.append(f"starts not before {clock}, in {format_duration(wait_us)}")
    if context.options.get("cascade"):
        context.add_consequence(_requeue_successes_below(context), "successful below, to run again")
    maps = _follow_lists(context)
    _update_dependents(context)
    _note_lists(context, maps)


def _update_dependents(context: ActionContext) -> None:
    """Apply new generations of tasks to the tasks below them:

    - UPSTREAM_FAILED or skipped by cascade: PENDING again, unless another parent still stops them;
    - READY, RETRYING or SENSING: PENDING, they wait for the parent again;
    - RUNNING or SUCCESS: unchanged, but flagged as stale, because they used the old result;
    - CANCELLED by the deadline of the run: they run again.
    """
    run_id, transaction, again = context.run_id, context.transaction, context.done_names()
    rearm(transaction, run_id, again)
    restart_cancelled(context)
    context.add_consequence(unpropagate(transaction, run_id, again), "unblocked")
    context.add_consequence(hold_children(transaction, run_id, again), "waiting for it again")
    context.add_consequence(mark_stale(transaction, run_id, again), "ran before it, now stale")
    for name in again:
        if reevaluate(transaction, run_id, name) == states.TaskState.UPSTREAM_FAILED:
            now = context.read_task(name)
            context.set_result(name, DONE, f"but {states.describe_blocked(now and now.blocked_by)}")


def _requeue_successes_below(context: ActionContext) -> List[str]:
    """Requeue the successful tasks below those that run again, each only if a task directly above it runs again.

    An effect that has happened stays, unless the act says with which key.
    """
    names: List[str] = []
    stay: Dict[str, str] = {}
    late = late_tasks(context)
    queue = deque((root, root) for root in context.done_names())
    found = {root for root, _ in queue}
    while queue:
        above, root = queue.popleft()
        for name in [child.name for child in children_of(context.connection, context.run_id, above)]:
            row = context.read_task(name)
            if row is None or row.is_gone or name in found:
                continue
            if repeated_key(context, row):
                stay[name] = f"{name}: {states.HAPPENED}; it stays as it is"
                continue
            if row.state == states.TaskState.SUCCESS:
                _requeue_success(context, row, root)
                names.append(name)
            elif not (_follows_its_parents(row) or name in late):
                continue
            found.add(name)
            queue.append((name, root))
    context.notes += [f"{sentence} (--same-key or --new-key runs it again)" for sentence in stay.values()]
    return names


def _requeue_success(context: ActionContext, row: TaskSnapshot, root: str) -> None:
    is_effect = _is_effect(row)
    start_generation(context, row, new_key=bool(context.options.get("new_key")) and is_effect)
    context.set_result(row.name, DONE, f"runs again because {root} does")
    if is_effect:
        _note_repetition(context, row)


def _follows_its_parents(row: TaskSnapshot) -> bool:
    """Whether the state of a task follows from those above it: it has neither ended by itself nor by an operator."""
    is_cascade = row.state == states.TaskState.SKIPPED and row.skip_cause == states.SkipCause.CASCADE
    return is_cascade or row.state in states.MOVING or row.state == states.TaskState.UPSTREAM_FAILED


def _follow_lists(context: ActionContext) -> List[RemappedTask]:
    """Run the map tasks again whose lists are made again: they and their children are one thing with the list."""
    found: Dict[str, RemappedTask] = {}
    for name in context.done_names():
        found.update((one.name, one) for one in followers(context.connection, context.run_id, name))
    for one in found.values():
        row = context.read_task(one.name)
        if row is not None and row.state in FOLLOWING:
            requeue.run_again(context.transaction, context.run_id, row.name, row.state, row.generation)
            context.set_result(row.name, DONE, "runs again because its list does")
    return list(found.values())


def _note_lists(context: ActionContext, maps: Sequence[RemappedTask]) -> None:
    """Note what follows the lists by itself, and what stays as it is of the old list; of a cascade, effects alone."""
    is_cascade = context.options.get("cascade")
    is_effect_repeated = bool(context.options.get("same_key") or context.options.get("new_key"))
    for one in maps:
        effects = 0 if is_effect_repeated and is_cascade else one.effects
        if not is_cascade:
            later = _count_successes_below(context, one.name, with_effects=is_effect_repeated)
            context.notes.append(describe_following(one.name, effects, later))
        elif effects:
            context.notes.append(describe_following(one.name, effects, 0))


def _count_successes_below(context: ActionContext, name: str, *, with_effects: bool) -> int:
    sql = "SELECT spec FROM task WHERE run_id = ? AND state = 'SUCCESS' AND name IN ({})"
    found = 0
    for names in chunks(descendants_of(context.connection, context.run_id, name)):
        specs = context.connection.execute(sql.format(marks(names)), [context.run_id] + names)
        found += sum(with_effects or not json.loads(spec).get("effect") for (spec,) in specs)
    return found


# --- Effects that have happened ------------------------------------------------------------------------------------

_TWO_KEYS = "an effect is repeated with the same key or with a new one: give one of --same-key and --new-key"


def _has_two_keys(context: ActionContext) -> bool:
    return bool(context.options.get("new_key") and context.options.get("same_key"))


def _is_effect(row: TaskSnapshot) -> bool:
    return bool(row.read_spec().get("effect"))


def _note_repetition(context: ActionContext, row: TaskSnapshot) -> None:
    now = read_known_task(context.connection, context.run_id, row.name)
    key = states.effect_key(context.run_id, row.name, now.key_generation)
    if context.options.get("new_key"):
        context.notes.append(f"{row.name}: {states.HAPPENED} runs again with the new key {key}")
    else:
        how = "{}: {} runs again with its key {}; --new-key gives it a new one"
        context.notes.append(how.format(row.name, states.HAPPENED, key))


def _note_doubts(context: ActionContext, rows: Sequence[TaskSnapshot]) -> None:
    """Note which of the requeued tasks may have happened."""
    doubts: List[Tuple[str, Optional[str]]] = []
    for row in rows:
        is_doubtful = states.may_have_happened(row.state, row.dead_letter_kind)
        if is_doubtful and context.results[row.name].outcome != REFUSED:
            key = states.effect_key(context.run_id, row.name, row.key_generation) if _is_effect(row) else None
            doubts.append((row.name, key))
    if doubts:
        context.notes.append(states.describe_doubts(doubts))


def _answer_for_blocked(context: ActionContext, row: TaskSnapshot) -> None:
    """Answer for an UPSTREAM_FAILED target: it returns together with its cause only."""
    now = read_known_task(context.connection, context.run_id, row.name)
    if now.state == states.TaskState.UPSTREAM_FAILED:
        context.set_result(row.name, REFUSED, states.describe_blocked(now.blocked_by))
    else:
        context.set_result(row.name, DONE, "unblocked")


# --- The acts ``cancel``, ``extend``, ``hurry`` ----------------------------------------------------------------------


EXTENSION_SECONDS_MAX = 7 * 24 * 3600.0


def cancel(context: ActionContext) -> Answer:
    """Cancel targets that do not run. For a running one record the request; its executor ends the attempt."""
    for row in changeable(context):
        if row.state == states.TaskState.RUNNING:
            _request_cancel(context, row)
        else:
            end_generation(context.transaction, context.run_id, row, states.TaskState.CANCELLED)
            context.set_result(row.name, DONE, "cancelled")
    _stop_below(context)
    return summarize(context)


def _stop_below(context: ActionContext) -> None:
    """Stop what cannot start below the changed targets: after all of them, for the end of one must not stop another
    before its turn."""
    stopped: List[str] = []
    for name in context.done_names():
        resolve(context.transaction, context.run_id, name)
        stopped += propagate(context.transaction, context.run_id, name)
    context.add_consequence(stopped, "below stopped with it")


def _request_cancel(context: ActionContext, row: TaskSnapshot) -> None:
    author = who_cancelled(context.connection, context.run_id, row.name)
    if author is None:
        requested = {"cancel_requested_at": context.transaction.at}
        context.transaction.change(context.run_id, row.name, requested, row.attempt)
        fence = requeue.fence_of(row.read_spec())
        at_last = "; {:.0f} s from now at the latest, if its Dask worker does not answer"
        limit = "" if fence is None else at_last.format(fence)
        context.set_result(row.name, RUNNING, "ending it: SIGTERM, grace, SIGKILL" + limit)
    else:
        since = ago(context.transaction.at - (row.cancel_requested_at or 0))
        context.set_result(row.name, RUNNING, f"it is being ended: {author.actor} asked for it {since}")


def extend(context: ActionContext) -> Answer:
    """Give running attempts ``seconds`` more before their timeout. Their executor moves the deadline and emits it."""
    seconds = context.options.get("seconds")
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= EXTENSION_SECONDS_MAX:
        return Answer(False, "say how many seconds more: above 0, and no more than a week")
    for row in changeable(context, check_target):
        context.set_result(row.name, RUNNING, "it runs: its executor moves its deadline")
    return summarize(context)


def hurry(context: ActionContext) -> Answer:
    """Do not wait for the next retry, the next check of a sensor, or a not-before."""
    for row in changeable(context, check_target):
        if row.state == states.TaskState.PENDING:
            context.transaction.change(context.run_id, row.name, {"next_retry_at": None})
            context.set_result(row.name, DONE, "starts as soon as its parents allow it")
        else:
            context.transaction.move(
                context.run_id, row.name, row.state, states.TaskState.READY, row.generation, set={"next_retry_at": None}
            )
            context.set_result(row.name, DONE, "starts as soon as there is a slot")
    restart_cancelled(context)
    return summarize(context)


# --- The act ``skip``: an operator permits that a task is missing, and its children start without it -----------------


SUBSTITUTE_CHARACTERS_MAX = 64 * 1024  # a person types it


#: SQL: children that would start without the result of a parent.
CHILDREN_NEEDING_RESULT = (
    "SELECT task.name, task.spec FROM edge INDEXED BY idx_edge_parent"
    " CROSS JOIN task ON task.run_id = edge.run_id AND task.name = edge.child"
    " WHERE edge.run_id = ? AND edge.parent = ?"
    " AND coalesce(edge.rule, task.rule) IN " + in_list(rules_with(ParentStatus.PERMITTED)) + ""
    " AND task.state NOT IN " + in_list(states.NEEDS_NO_RESULT) + " ORDER BY task.position, task.name"
)


def skip(context: ActionContext) -> Answer:
    """Skip the targets. ``substitute``: a JSON value that the children receive instead of the result.

    Without a substitute, a task whose result a child requires is not skipped (SPEC 4.6).
    """
    columns: TaskColumns = {"skip_cause": str(states.SkipCause.OPERATOR), "blocked_by": None}
    if "substitute" in context.options:
        substitute = json.dumps(context.options["substitute"], ensure_ascii=False)
        columns["result"] = substitute
        if len(substitute) > SUBSTITUTE_CHARACTERS_MAX:
            return Answer(False, f"a substitute has at most {SUBSTITUTE_CHARACTERS_MAX} characters of JSON")
    together = {target[0] for target in context.targets}
    for row in changeable(context):
        needed_by = None if "result" in columns else _needed_by(context, row.name, together)
        if needed_by is not None:
            sentence = f"{needed_by} needs its result: give a substitute, or skip both"
            context.set_result(row.name, REFUSED, sentence)
        else:
            end_generation(context.transaction, context.run_id, row, states.TaskState.SKIPPED, columns)
            context.set_result(row.name, DONE, "skipped")
    skipped = context.done_names()
    stopped: List[str] = []
    for name in skipped:
        resolve(context.transaction, context.run_id, name)
        stopped += propagate(context.transaction, context.run_id, name)
        expand_below(context.transaction, context.run_id, name)
    context.add_consequence(stopped, "stopped: they accept nothing but its success")
    restart_cancelled(context)
    context.add_consequence(unpropagate(context.transaction, context.run_id, skipped), "unblocked")
    return summarize(context)


def _needed_by(context: ActionContext, name: str, together: Set[str]) -> Optional[str]:
    """A child that would start without the result of ``name`` but requires it; None if there is none."""
    for child, spec in context.connection.execute(CHILDREN_NEEDING_RESULT, (context.run_id, name)):
        if child not in together and name in (json.loads(spec).get("requires") or ()):
            return str(child)
    return None


# --- The acts ``approve`` and ``reject``: an operator answers an approval --------------------------------------------


def approve(context: ActionContext) -> Answer:
    """Make the approvals a success, whose result says who has approved and why."""
    author = context.transaction.author
    result = json.dumps({"approved_by": author.actor, "reason": author.reason}, ensure_ascii=False)
    return _answer_approvals(context, states.TaskState.SUCCESS, {"result": result})


def reject(context: ActionContext) -> Answer:
    """Make the approvals a failure, which is not tried again: what depends on them does not run."""
    author = context.transaction.author
    why = f"rejected by {author.actor}: {author.reason}"
    return _answer_approvals(context, states.TaskState.FAILED, {"error": why, "failure_class": states.REJECTED})


def _answer_approvals(context: ActionContext, state: states.TaskState, columns: TaskColumns) -> Answer:
    for row in changeable(context):
        end_generation(context.transaction, context.run_id, row, state, columns)
        context.set_result(row.name, DONE, BY_NAME[context.act].past)
    _stop_below(context)
    restart_cancelled(context)
    return summarize(context)
