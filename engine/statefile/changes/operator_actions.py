"""What an operator may do to a run, each act one transaction that either holds or changes nothing.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only. The same functions serve the live
executor, a commander who holds the lock of a dead one's file, and the agent on a far host.

``acts.py`` has what is known of each act, ``command.py`` the types of a command and of its answer. The answer is stored
with the act, so that a command which arrives twice changes nothing and is answered as the first time (SPEC 4.4 to 4.6,
4.9).
"""

import json
from typing import Any, Callable, Dict, List, Optional

from ...domain.acts import BY_NAME, refusal
from ...domain.command import DONE, REFUSED, RUNNING, Answer, Command
from ...domain.event_payloads import OperatorActed, PageChange, PageChanged, PageColumns, RunChange, RunChanged
from ...domain.overrides import in_words
from ...domain.states import RunState, TaskState
from . import abandoned, breaker_actions, canary, quarantine_actions
from .action import RememberingJournal, Seen, Work, ago, conclude, look, still_as_seen, who_asked
from .notes import note
from .page_lifecycle import rearm, resolve
from .propagation import descendants_of, hold_back, mark_stale, propagate, reconsider, unpropagate
from .requeue import end, overrides_of, renew
from .skip import skip
from .transitions import Journal
from .undo import find_act, undo

EXTENSION_SECONDS_MAX = 7 * 24 * 3600.0


def apply(journal: Journal, command: Command, is_abandoned: bool = False) -> Answer:
    """Do one act, or refuse it with the reason; the same ``id`` again is answered from memory and changes nothing.

    ``is_abandoned``: the caller holds the lock because no executor lives: what RUNNING says is not so any more.
    """
    trouble = _why_refused(command)
    if trouble:
        return Answer(False, trouble)
    earlier = find_act(journal.connection, command.id)
    if earlier is not None:
        return earlier.answer
    remembering = RememberingJournal(journal, command.act)
    remembering.actor = command.actor
    remembering.reason = command.reason or None
    remembering.command_id = command.id
    work = Work(remembering, command, is_abandoned)
    given = HANDLERS[work.act](work)
    acted = OperatorActed(work.act, work.options, given.as_json())
    if work.probes:
        acted = acted._replace(probes=work.probes)  # for the executor, who holds the breakers
    if remembering.tasks or remembering.runs:
        acted = acted._replace(was=remembering.tasks, was_run=remembering.runs, was_rows=remembering.rows)
    remembering.emit(acted, work.run_id or None)
    return given


# --- Acts on tasks -------------------------------------------------------------------------------------------------


def _requeue(work: Work) -> Answer:
    """A new generation of each target.

    ``reset_count`` (default true), ``cascade``; ``not_before`` (seconds), ``rate_per_second``: the first at once, then
    so many a second. For this generation alone: ``timeout`` (seconds), ``params``, ``max_attempts`` or ``single_shot``.
    ``new_key``: another idempotency key. ``canary``: the first alone, the others when it has succeeded.
    """
    try:
        overrides = overrides_of(work)
    except ValueError as error:
        return Answer(False, str(error))
    blocked: List[Seen] = []
    for target in work.targets:
        row = abandoned.find(work, target)
        if row is None:
            continue
        refused = refusal(work.act, row.state)
        if row.state == TaskState.UPSTREAM_FAILED:
            blocked.append(row)
        elif refused:
            work.say(row.name, REFUSED, refused)
        elif work.options.get("canary"):
            _requeue_carefully(work, row, overrides)
        else:
            _run_again(work, row, overrides)
    if work.options.get("cascade"):
        work.note(_requeue_successes_below(work), "successes below run again")
    quarantine_actions.release(work.journal, work.run_id, work.done())
    _begin_again(work)
    breaker_actions.conclude_again(work)
    for row in blocked:
        _answer_for_blocked(work, row)
    return conclude(work)


def _run_again(work: Work, row: Seen, overrides: Dict[str, Any]) -> None:
    breaker_actions.before_again(work, row)
    renew(work, row, overrides, new_key=bool(work.options.get("new_key")))
    words = ["after attempt {}".format(row.attempt) if row.attempt else "", in_words(overrides)]
    work.say(row.name, DONE, "runs again {}".format(", ".join(word for word in words if word)).strip())


def _requeue_carefully(work: Work, row: Seen, overrides: Dict[str, Any]) -> None:
    """The first runs, and is dead-lettered at once if it fails as before; the others wait for it."""
    first = next(iter(work.done()), None)
    if first is not None:
        canary.follow(work, row, first)
        return
    trouble = canary.why_no_canary(row)
    if trouble:
        work.say(row.name, REFUSED, trouble)
        return
    carefully = dict(overrides, rollout=work.journal.command_id)
    cause = canary.loose_fingerprint(work, row)
    if cause is not None:
        carefully["verifies"] = cause
    _run_again(work, row, carefully)


def _requeue_rows(work: Work) -> Answer:
    """A new generation of each target over rows of its own that were set aside: ``rows`` or ``groups`` of them, as for
    ``rows.chosen``; ``cascade`` and ``not_before`` as for ``requeue``."""
    found = quarantine_actions.chosen(work)
    for target in work.targets:
        row = still_as_seen(work, target) if target[0] in found else None
        if row is None:
            continue
        refused = refusal(work.act, row.state)
        if refused:
            work.say(row.name, REFUSED, refused)
            continue
        renew(work, row, new_key=True)  # who knew the key has seen all of its rows
        quarantine_actions.send_back(work, row.name, found[row.name], row.generation + 1)
        work.say(row.name, DONE, "runs again over {} of its rows".format(len(found[row.name])))
    quarantine_actions.refuse_unheld(work, found)
    if work.options.get("cascade"):
        work.note(_requeue_successes_below(work), "successes below run again")
    _begin_again(work)
    return conclude(work)


def _begin_again(work: Work) -> None:
    """What follows for others from new generations."""
    run_id, journal, again = work.run_id, work.journal, work.done()
    rearm(journal, run_id, again)
    work.note(unpropagate(journal, run_id, again), "unblocked")
    work.note(hold_back(journal, run_id, again), "wait for it again")
    work.note(mark_stale(journal, run_id, again), "ran before it and are stale now")
    for name in again:
        if reconsider(journal, run_id, name) == TaskState.UPSTREAM_FAILED:
            work.say(name, DONE, "but a task above it has failed: requeue that as well")


def _requeue_successes_below(work: Work) -> List[str]:
    names: List[str] = []
    for root in work.done():
        for name in descendants_of(work.journal.connection, work.run_id, root):
            row = look(work.journal.connection, work.run_id, name)
            if row is not None and row.state == TaskState.SUCCESS:
                renew(work, row)
                work.say(name, DONE, "runs again because {} does".format(root))
                names.append(name)
    return names


def _answer_for_blocked(work: Work, row: Seen) -> None:
    """A target that never ran: it comes back when its cause does, and only then."""
    now = look(work.journal.connection, work.run_id, row.name)
    assert now is not None
    if now.state == TaskState.UPSTREAM_FAILED:
        work.say(row.name, REFUSED, "blocked by {}: requeue or skip that".format(now.blocked_by or "a task above it"))
    else:
        work.say(row.name, DONE, "unblocked")


def _cancel(work: Work) -> Answer:
    """Stop what does not run yet. Of one that runs the end is asked for and the answer is "running": its executor ends
    the attempt. What a dead executor left running has ended."""
    stopped: List[str] = []
    for target in work.targets:
        row = abandoned.find(work, target)
        if row is None:
            continue
        refused = refusal(work.act, row.state)
        if row.state == TaskState.RUNNING:
            _ask_for_its_end(work, row)
        elif refused:
            work.say(row.name, REFUSED, refused)
        else:
            end(work, row, TaskState.CANCELLED)
            stopped += propagate(work.journal, work.run_id, row.name)
            resolve(work.journal, work.run_id, row.name)
            work.say(row.name, DONE, "cancelled")
    work.note(stopped, "below stopped with it")
    return conclude(work)


def _ask_for_its_end(work: Work, row: Seen) -> None:
    asked = who_asked(work.journal.connection, work.run_id, row.name)
    if asked is None:
        work.journal.ask(work.run_id, row.name, {"cancel_requested_at": work.journal.at}, row.attempt)
        work.say(row.name, RUNNING, "ending it: SIGTERM, grace, SIGKILL")
    else:
        since = ago(work.journal.at - asked.at)
        work.say(row.name, RUNNING, "it is being ended: {} asked for it {}".format(asked.actor, since))


def _extend(work: Work) -> Answer:
    """Give running attempts ``seconds`` more before their timeout. The answer is "running": their executor can do that,
    and tells it when it did."""
    seconds = work.options.get("seconds")
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= EXTENSION_SECONDS_MAX:
        return Answer(False, "say how many seconds more: above 0, and no more than a week")
    for target in work.targets:
        row = still_as_seen(work, target)
        if row is None:
            continue
        obstacle = _why_not_extended(work, row)
        if obstacle:
            work.say(row.name, REFUSED, obstacle)
        else:
            work.say(row.name, RUNNING, "it runs: its executor moves its deadline")
    return conclude(work)


def _why_not_extended(work: Work, row: Seen) -> Optional[str]:
    if row.state != TaskState.RUNNING:
        return "it does not run"
    if work.is_abandoned:
        return "its executor is dead: nothing of it runs any more"
    if row.cancel_requested_at is not None:
        return "somebody has asked for its end"
    key = (work.run_id, row.name, row.attempt)
    sql = "SELECT timeout_us FROM attempt WHERE run_id = ? AND name = ? AND attempt = ?"
    found = work.journal.connection.execute(sql, key).fetchone()
    return "it has no timeout" if found is None or found[0] is None else None


def _hurry(work: Work) -> Answer:
    """Do not wait for the instant of a retry, of a sensor's next look, or of a not-before."""
    for target in work.targets:
        row = still_as_seen(work, target)
        if row is None:
            continue
        is_pending = row.state == TaskState.PENDING
        if refusal(work.act, row.state) or (is_pending and row.next_retry_at is None):
            work.say(row.name, REFUSED, "it waits for no instant")
        elif is_pending:
            work.journal.change(work.run_id, row.name, {"next_retry_at": None})
            work.say(row.name, DONE, "starts as soon as its parents allow it")
        else:
            work.journal.move(
                work.run_id, row.name, row.state, TaskState.READY, row.generation, set={"next_retry_at": None}
            )
            work.say(row.name, DONE, "starts as soon as there is a slot")
    return conclude(work)


# --- Acts on the run and its pages ---------------------------------------------------------------------------------


def _pause(work: Work) -> Answer:
    """Start nothing new until ``unpause``; what runs goes on."""
    run = _run_pause(work)
    if run is None:
        return Answer(False, "there is no such run")
    state, since, by = run
    if state != RunState.RUNNING:
        return Answer(False, "the run has ended: {}".format(state))
    if since is not None:
        return Answer(False, "already paused by {} {}".format(by or "somebody", ago(work.journal.at - since)))
    paused = RunChanged(RunChange.PAUSED, {"paused_since": work.journal.at, "paused_by": work.journal.actor})
    work.journal.change_run(work.run_id, paused)
    return Answer(True, "paused: what runs goes on, nothing new starts")


def _unpause(work: Work) -> Answer:
    """Undo ``pause``."""
    run = _run_pause(work)
    if run is None or run[1] is None:
        return Answer(False, "the run is not paused")
    unpaused = RunChanged(RunChange.UNPAUSED, {"paused_since": None, "paused_by": None})
    work.journal.change_run(work.run_id, unpaused)
    return Answer(True, "unpaused")


def _run_pause(work: Work) -> Any:
    return work.journal.connection.execute(
        "SELECT state, paused_since, paused_by FROM run WHERE run_id = ?", (work.run_id,)
    ).fetchone()


def _ack(work: Work) -> Answer:
    """Say that somebody looks after these pages."""
    columns: PageColumns = {"state": PageChange.ACKED, "acked_by": work.journal.actor, "snoozed_until": None}
    return _change_pages(work, columns, "acknowledged", ("open", "snoozed"))


def _snooze(work: Work) -> Answer:
    """Hear nothing of these pages for ``seconds`` (default an hour)."""
    until = work.journal.at + int(float(work.options.get("seconds", 3600)) * 1000000)
    columns: PageColumns = {"state": PageChange.SNOOZED, "snoozed_until": until}
    return _change_pages(work, columns, "snoozed", ("open", "acked", "snoozed"))


def _change_pages(work: Work, columns: PageColumns, verb: str, states: Any) -> Answer:
    """Pages are named by ``pages`` (ids) or ``cause`` in the options, or else by their tasks."""
    connection = work.journal.connection
    wanted = set(work.options.get("pages") or ())
    tasks = {target[0] for target in work.targets}
    changed = []
    for page, cause, run_id, task, state in connection.execute(
        "SELECT id, cause, run_id, task, state FROM page WHERE state <> 'resolved' ORDER BY id"
    ).fetchall():
        named = page in wanted or cause == work.options.get("cause") or (run_id == work.run_id and task in tasks)
        if named and state in states:
            sql = "UPDATE page SET {}, updated_at = ? WHERE id = ?".format(", ".join(c + " = ?" for c in columns))
            connection.execute(sql, list(columns.values()) + [work.journal.at, page])
            work.journal.emit(PageChanged(columns["state"], page, cause, page=columns), run_id, task)
            changed.append(page)
    return Answer(bool(changed), "{} {}".format(len(changed), verb) if changed else "there is no such open page")


# --- Answers -------------------------------------------------------------------------------------------------------


#: The acts that a transaction on the state file can apply, by the names of ``acts.py``.
HANDLERS: Dict[str, Callable[[Work], Answer]] = {
    "requeue": _requeue,
    "requeue-rows": _requeue_rows,
    "discard-rows": quarantine_actions.discard_rows,
    "skip": skip,
    "cancel": _cancel,
    "extend": _extend,
    "hurry": _hurry,
    "pause": _pause,
    "unpause": _unpause,
    "undo": undo,
    "ack": _ack,
    "snooze": _snooze,
    "note": note,
    "breaker": breaker_actions.set_by_hand,
}


def _why_refused(command: Command) -> Optional[str]:
    act = BY_NAME.get(command.act)
    if act is None:
        return "there is no act {!r}".format(command.act)
    if act.name not in HANDLERS:
        return "only a living executor can {}, and none is alive".format(act.verb)
    if not command.id or not command.actor:
        return "a command carries an id and who sends it"
    if act.needs_reason and not command.reason.strip():
        return "say why: the reason is kept with the act"
    try:
        json.dumps(command.as_json(), ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError):
        return "a command is text that can be stored: no lone surrogates, no objects"
    return None
