"""The operator acts on a run: each is one transaction that is either applied or changes nothing.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only. The same functions serve the live
executor, a command client that holds the lock of a dead executor, and the agent on another host.

``acts.py`` describes each act, ``command.py`` has the types of a command and its answer. The answer is stored with the
act: a command that arrives twice changes nothing the second time and gets the first answer (SPEC 4.4 to 4.6, 4.9).

What a requeue does to the tasks below: see ``_update_dependents``.
"""

import json
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ...domain.act_options import option_type_refusal
from ...domain.acts import BY_NAME, act_refusal
from ...domain.command import DONE, REFUSED, RUNNING, Answer, Command, storage_refusal
from ...domain.event_changes import PageChange, RunChange
from ...domain.event_columns import PageColumns
from ...domain.event_payloads import OperatorActed, PageChanged, RunChanged
from ...domain.liveness import HAPPENED, describe_repetition, effect_key
from ...domain.overrides import Overrides, describe
from ...domain.states import RunState, TaskState
from . import abandoned, breaker_actions, canary, quarantine_actions
from .abandon_run import abandon_run
from .action import (
    ActionContext,
    RecordingTransaction,
    TaskSnapshot,
    ago,
    check_target,
    find_cancel_request,
    summarize,
)
from .late_run import let_go_on, postpone
from .notes import add_note
from .page_lifecycle import rearm, resolve, update_page
from .propagation import descendants_of, hold_children, mark_stale, propagate, reevaluate, unpropagate
from .pruning import prune
from .requeue import end_generation, overrides_from_options, start_generation
from .skip import skip
from .transitions import Transaction
from .undo import find_act, undo

EXTENSION_SECONDS_MAX = 7 * 24 * 3600.0
SNOOZE_SECONDS = 3600.0


def apply(transaction: Transaction, command: Command, is_abandoned: bool = False) -> Answer:
    """Apply one act, or refuse it with the reason. The same ``id`` again changes nothing and gets the stored answer.

    ``is_abandoned``: the caller holds the lock because no executor lives, so that RUNNING tasks are lost.
    """
    refused = unread_refusal(command)
    if refused is None and command.act not in HANDLERS:
        refused = "only a living executor can {}, and none is alive".format(BY_NAME[command.act].verb)
    if refused:
        return Answer(False, refused)
    earlier = find_act(transaction.connection, command.id)
    if earlier is not None:
        return earlier.answer
    recording = RecordingTransaction(transaction, command)
    context = ActionContext(recording, command, is_abandoned)
    answer = HANDLERS[context.act](context)
    acted = OperatorActed(context.act, context.options, answer.as_json())
    if context.notes:
        acted = acted._replace(notes=context.notes)
    if context.probes:
        acted = acted._replace(probes=context.probes)  # for the executor, which owns the breakers
    if recording.tasks or recording.runs:
        acted = acted._replace(was=recording.tasks, was_run=recording.runs, was_rows=recording.rows)
    recording.emit(acted, context.run_id or None)
    return answer


# --- Acts on tasks -------------------------------------------------------------------------------------------------


def _requeue(context: ActionContext) -> Answer:
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
    for row in abandoned.resolve_targets(context):
        refused = act_refusal(context.act, row.state)
        if row.state == TaskState.UPSTREAM_FAILED:
            blocked.append(row)
        elif refused or _repeat_refusal(context, row):
            context.set_result(row.name, REFUSED, refused or _repeat_refusal(context, row) or "")
        elif context.options.get("canary"):
            _requeue_as_canary(context, row, overrides)
        else:
            _run_again(context, row, overrides)
    if context.options.get("cascade"):
        context.add_consequence(_requeue_successes_below(context), "successful below, to run again")
    quarantine_actions.release_requeued(context.transaction, context.run_id, context.done_names())
    _update_dependents(context)
    breaker_actions.arm_probes(context)
    for row in blocked:
        _answer_for_blocked(context, row)
    return summarize(context)


def _run_again(context: ActionContext, row: TaskSnapshot, overrides: Overrides) -> None:
    breaker_actions.check_breaker(context, row)
    start_generation(context, row, overrides, new_key=bool(context.options.get("new_key")))
    if row.state == TaskState.SUCCESS and _is_effect(context, row):
        _note_repetition(context, row)
    words = ["after attempt {}".format(row.attempt) if row.attempt else "", describe(overrides)]
    context.set_result(row.name, DONE, "runs again {}".format(", ".join(word for word in words if word)).strip())


def _requeue_as_canary(context: ActionContext, row: TaskSnapshot, overrides: Overrides) -> None:
    """Requeue the first target as a canary, which becomes a dead letter if it fails as before; hold the others."""
    first = next(iter(context.done_names()), None)
    if first is not None:
        canary.hold_for_canary(context, row, first)
        return
    refused = canary.canary_refusal(row)
    if refused:
        context.set_result(row.name, REFUSED, refused)
        return
    canary_overrides = overrides.copy()
    canary_overrides["rollout"] = context.transaction.author.command_id or ""
    cause = canary.loose_fingerprint(context, row)
    if cause is not None:
        canary_overrides["verifies"] = cause
    _run_again(context, row, canary_overrides)


def _requeue_rows(context: ActionContext) -> Answer:
    """Start a new generation of each target over some of its quarantined rows.

    Options: ``rows`` or ``groups``, as for ``quarantine_actions.select_rows``; ``cascade``, ``not_before``, ``new_key``
    and ``same_key`` as for ``requeue``.
    """
    if _has_two_keys(context):
        return Answer(False, _TWO_KEYS)
    found = quarantine_actions.select_rows(context)
    for target in context.targets:
        row = check_target(context, target) if target[0] in found else None
        if row is None:
            continue
        refused = act_refusal(context.act, row.state)
        if refused:
            context.set_result(row.name, REFUSED, refused)
            continue
        start_generation(context, row, new_key=True)  # the system that knows the old key has seen all rows
        quarantine_actions.requeue_rows(context, row.name, found[row.name], row.generation + 1)
        context.set_result(row.name, DONE, "runs again over {} of its rows".format(len(found[row.name])))
    quarantine_actions.refuse_unheld(context, found)
    if context.options.get("cascade"):
        context.add_consequence(_requeue_successes_below(context), "successful below, to run again")
    _update_dependents(context)
    return summarize(context)


def _update_dependents(context: ActionContext) -> None:
    """What new generations of tasks mean for the tasks below them:

    - UPSTREAM_FAILED or skipped by cascade: PENDING again, unless another parent still stops them;
    - READY, RETRYING or SENSING: PENDING, they wait for the parent again;
    - RUNNING or SUCCESS: unchanged, but flagged as stale, because they used the old result;
    - CANCELLED by the deadline of the run: they run again.
    """
    run_id, transaction, again = context.run_id, context.transaction, context.done_names()
    rearm(transaction, run_id, again)
    let_go_on(context)
    context.add_consequence(unpropagate(transaction, run_id, again), "unblocked")
    context.add_consequence(hold_children(transaction, run_id, again), "waiting for it again")
    context.add_consequence(mark_stale(transaction, run_id, again), "ran before it, now stale")
    for name in again:
        if reevaluate(transaction, run_id, name) == TaskState.UPSTREAM_FAILED:
            context.set_result(name, DONE, "but a task above it has failed: requeue that as well")


def _requeue_successes_below(context: ActionContext) -> List[str]:
    """Requeue the successful descendants. An effect that has happened stays, unless the act says with which key."""
    names: List[str] = []
    new_key = bool(context.options.get("new_key"))
    left: Dict[str, str] = {}
    for root in context.done_names():
        for name in descendants_of(context.connection, context.run_id, root):
            row = context.read_task(name)
            if row is None or row.state != TaskState.SUCCESS:
                continue
            is_effect = _is_effect(context, row)
            if is_effect and _repeat_refusal(context, row):
                left[name] = "{}: {}; it stays as it is".format(name, HAPPENED)
                continue
            start_generation(context, row, new_key=new_key and is_effect)
            context.set_result(name, DONE, "runs again because {} does".format(root))
            if is_effect:
                _note_repetition(context, row)
            names.append(name)
    context.notes += ["{} (--same-key or --new-key runs it again)".format(sentence) for sentence in left.values()]
    return names


# --- Effects that have happened ------------------------------------------------------------------------------------

_TWO_KEYS = "an effect is repeated with the same key or with a new one: give one of --same-key and --new-key"


def _has_two_keys(context: ActionContext) -> bool:
    return bool(context.options.get("new_key") and context.options.get("same_key"))


def _is_effect(context: ActionContext, row: TaskSnapshot) -> bool:
    sql = "SELECT spec FROM task WHERE run_id = ? AND name = ?"
    (spec,) = context.connection.execute(sql, (context.run_id, row.name)).fetchone()
    return bool(json.loads(spec).get("effect"))


def _repeat_refusal(context: ActionContext, row: TaskSnapshot) -> Optional[str]:
    """Why an effect that has happened is not repeated; None if it may be: a payment is not made twice by the way."""
    if row.state != TaskState.SUCCESS or context.options.get("same_key") or context.options.get("new_key"):
        return None
    if not _is_effect(context, row):
        return None
    return describe_repetition(effect_key(context.run_id, row.name, row.key_generation))


def _note_repetition(context: ActionContext, row: TaskSnapshot) -> None:
    now = context.read_task(row.name)
    assert now is not None
    key = effect_key(context.run_id, row.name, now.key_generation)
    if context.options.get("new_key"):
        context.notes.append("{}: {} runs again with the new key {}".format(row.name, HAPPENED, key))
    else:
        how = "{}: {} runs again with its key {}; --new-key gives it a new one"
        context.notes.append(how.format(row.name, HAPPENED, key))


def _answer_for_blocked(context: ActionContext, row: TaskSnapshot) -> None:
    """Answer for an UPSTREAM_FAILED target: it returns together with its cause only."""
    now = context.read_task(row.name)
    assert now is not None
    if now.state == TaskState.UPSTREAM_FAILED:
        context.set_result(
            row.name, REFUSED, "blocked by {}: requeue or skip that".format(now.blocked_by or "a task above it")
        )
    else:
        context.set_result(row.name, DONE, "unblocked")


def _cancel(context: ActionContext) -> Answer:
    """Cancel targets that do not run. For a running one record the request; its executor ends the attempt."""
    stopped: List[str] = []
    for row in abandoned.resolve_targets(context):
        refused = act_refusal(context.act, row.state)
        if row.state == TaskState.RUNNING:
            _request_cancel(context, row)
        elif refused:
            context.set_result(row.name, REFUSED, refused)
        else:
            end_generation(context, row, TaskState.CANCELLED)
            context.set_result(row.name, DONE, "cancelled")
    for name in context.done_names():  # after all targets: the end of one must not stop another before its turn
        stopped += propagate(context.transaction, context.run_id, name)
        resolve(context.transaction, context.run_id, name)
    context.add_consequence(stopped, "below stopped with it")
    return summarize(context)


def _request_cancel(context: ActionContext, row: TaskSnapshot) -> None:
    asked = find_cancel_request(context.connection, context.run_id, row.name)
    if asked is None:
        context.transaction.change_unrecorded(
            context.run_id, row.name, {"cancel_requested_at": context.transaction.at}, row.attempt
        )
        context.set_result(row.name, RUNNING, "ending it: SIGTERM, grace, SIGKILL")
    else:
        since = ago(context.transaction.at - asked.at)
        context.set_result(row.name, RUNNING, "it is being ended: {} asked for it {}".format(asked.author.actor, since))


def _extend(context: ActionContext) -> Answer:
    """Give running attempts ``seconds`` more before their timeout. Their executor moves the deadline and emits it."""
    seconds = context.options.get("seconds")
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= EXTENSION_SECONDS_MAX:
        return Answer(False, "say how many seconds more: above 0, and no more than a week")
    for target in context.targets:
        row = check_target(context, target)
        if row is None:
            continue
        obstacle = _extension_refusal(context, row)
        if obstacle:
            context.set_result(row.name, REFUSED, obstacle)
        else:
            context.set_result(row.name, RUNNING, "it runs: its executor moves its deadline")
    return summarize(context)


def _extension_refusal(context: ActionContext, row: TaskSnapshot) -> Optional[str]:
    if row.state != TaskState.RUNNING:
        return "it does not run"
    if context.is_abandoned:
        return "its executor is dead: nothing of it runs any more"
    if row.cancel_requested_at is not None:
        return "an operator has asked for its end"
    key = (context.run_id, row.name, row.attempt)
    sql = "SELECT timeout_us FROM attempt WHERE run_id = ? AND name = ? AND attempt = ?"
    found = context.connection.execute(sql, key).fetchone()
    return "it has no timeout" if found is None or found[0] is None else None


def _hurry(context: ActionContext) -> Answer:
    """Do not wait for the next retry, the next check of a sensor, or a not-before."""
    for target in context.targets:
        row = check_target(context, target)
        if row is None:
            continue
        is_pending = row.state == TaskState.PENDING
        if act_refusal(context.act, row.state) or (is_pending and row.next_retry_at is None):
            context.set_result(row.name, REFUSED, "it waits for no instant")
        elif is_pending:
            context.transaction.change(context.run_id, row.name, {"next_retry_at": None})
            context.set_result(row.name, DONE, "starts as soon as its parents allow it")
        else:
            context.transaction.move(
                context.run_id, row.name, row.state, TaskState.READY, row.generation, set={"next_retry_at": None}
            )
            context.set_result(row.name, DONE, "starts as soon as there is a slot")
    let_go_on(context)
    return summarize(context)


# --- Acts on the run and its pages ---------------------------------------------------------------------------------


def _pause(context: ActionContext) -> Answer:
    """Start no task until ``unpause``; running tasks continue."""
    run = _run_pause(context)
    if run is None:
        return Answer(False, "there is no such run")
    state, since, by = run
    if state != RunState.RUNNING:
        return Answer(False, "the run has ended: {}".format(state))
    if since is not None:
        return Answer(False, "already paused by {} {}".format(by or "an operator", ago(context.transaction.at - since)))
    paused = RunChanged(
        RunChange.PAUSED, {"paused_since": context.transaction.at, "paused_by": context.transaction.author.actor}
    )
    context.transaction.change_run(context.run_id, paused)
    return Answer(True, "paused: running tasks continue, nothing new starts")


def _unpause(context: ActionContext) -> Answer:
    """Undo ``pause``."""
    run = _run_pause(context)
    if run is None or run[1] is None:
        return Answer(False, "the run is not paused")
    unpaused = RunChanged(RunChange.UNPAUSED, {"paused_since": None, "paused_by": None, "blocked_since": None})
    context.transaction.change_run(context.run_id, unpaused)
    return Answer(True, "unpaused")


def _run_pause(context: ActionContext) -> Optional[Tuple[str, Optional[int], Optional[str]]]:
    row: Optional[Tuple[str, Optional[int], Optional[str]]] = context.connection.execute(
        "SELECT state, paused_since, paused_by FROM run WHERE run_id = ?", (context.run_id,)
    ).fetchone()
    return row


def _ack(context: ActionContext) -> Answer:
    """Acknowledge pages."""
    columns: PageColumns = {
        "state": PageChange.ACKED,
        "acked_by": context.transaction.author.actor,
        "snoozed_until": None,
    }
    return _change_pages(context, columns, "acknowledged", ("open", "snoozed"))


def _snooze(context: ActionContext) -> Answer:
    """Silence pages for ``seconds`` (default SNOOZE_SECONDS)."""
    seconds = context.options.get("seconds")
    until = context.transaction.at + int((SNOOZE_SECONDS if seconds is None else seconds) * 1000000)
    columns: PageColumns = {"state": PageChange.SNOOZED, "snoozed_until": until}
    return _change_pages(context, columns, "snoozed", ("open", "acked", "snoozed"))


def _change_pages(context: ActionContext, columns: PageColumns, verb: str, states: Sequence[str]) -> Answer:
    """Change the pages in the options ``pages`` (ids) or ``cause``, or the pages of the targets."""
    connection = context.connection
    wanted = set(context.options.get("pages") or ())
    tasks = {target[0] for target in context.targets}
    changed = []
    for page, cause, run_id, task, state in connection.execute(
        "SELECT id, cause, run_id, task, state FROM page WHERE state <> 'resolved' ORDER BY id"
    ).fetchall():
        named = page in wanted or cause == context.options.get("cause") or (run_id == context.run_id and task in tasks)
        if named and state in states:
            update_page(context.transaction, page, columns)
            context.transaction.emit(PageChanged(columns["state"], page, cause, page=columns), run_id, task)
            changed.append(page)
    return Answer(bool(changed), "{} {}".format(len(changed), verb) if changed else "there is no such open page")


# --- Dispatch ------------------------------------------------------------------------------------------------------


#: The acts that a transaction on the state file can apply, by the names of ``acts.py``.
HANDLERS: Dict[str, Callable[[ActionContext], Answer]] = {
    "requeue": _requeue,
    "requeue-rows": _requeue_rows,
    "discard-rows": quarantine_actions.discard_rows,
    "skip": skip,
    "cancel": _cancel,
    "extend": _extend,
    "hurry": _hurry,
    "pause": _pause,
    "unpause": _unpause,
    "postpone": postpone,
    "abandon": abandon_run,
    "undo": undo,
    "ack": _ack,
    "snooze": _snooze,
    "note": add_note,
    "prune": prune,
    "breaker": breaker_actions.set_breaker,
}


def unread_refusal(command: Command) -> Optional[str]:
    """Why a command is refused without reading the state file; None if it is complete."""
    act = BY_NAME.get(command.act)
    if act is None:
        return "there is no act {!r}".format(command.act[:60])
    if not command.id or not command.actor:
        return "a command carries an id and who sends it"
    if act.needs_reason and not command.reason.strip():
        return "say why: the reason is kept with the act"
    return storage_refusal(command) or option_type_refusal(command.options)
