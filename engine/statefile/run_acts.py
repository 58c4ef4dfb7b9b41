"""The acts of operators on a run, its pages and its causes: pause, abandon, acknowledge, snooze, note.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Optional, Sequence

from ..domain.acts import BY_NAME, NOTE_CHARACTERS_MAX, REFUSED, Answer, Target, act_refusal
from ..domain.event_payloads import NoteWritten, PageChange, PageChanged, PageColumns, RunChange, RunChanged, RunColumns
from ..domain.states import ABANDONED, ABOUT_TO_START, MOVING, OPEN, RunState, TaskState, cut_off_cause
from ..domain.text import counted
from .action import ActionContext, TaskSnapshot, ago, read_task, text_of_note
from .clean_ups import bound_clean_ups, is_clean_up
from .lists import CHANGED_EFFECTS, UNACKNOWLEDGED, dag_name_of, query
from .requeue import end_generation, resolve_target
from .sql import IS_APPROVAL, in_list, run_columns
from .transitions import resolve, resolve_cause

# --- The act ``abandon``: ends an unfinished run that nobody will resume ---------------------------------------------


_OPEN_TASKS = "SELECT name, state, generation FROM task WHERE run_id = ? AND state IN " + in_list(OPEN)


def abandon_run(context: ActionContext) -> Answer:
    """Cancel every task that has not ended, and end the run. Refused, without a change, while a task runs.

    Clean-ups stay and run first; a second time, they are cancelled as well.
    """
    connection, run_id = context.connection, context.run_id
    (abandoned_at,) = run_columns(connection, run_id, "abandoned_at")
    targets = [Target(*row) for row in connection.execute(_OPEN_TASKS + " ORDER BY position", (run_id,)).fetchall()]
    for target in targets:
        row = resolve_target(context, target)
        if row is not None and row.state == TaskState.RUNNING:
            context.set_result(row.name, REFUSED, "it runs: stop the executor of the run, or cancel the task")
    if context.results:
        names = ", ".join(sorted(context.results))
        return Answer(False, f"the run goes on: {names}", tuple(context.results.values()))
    rows = [row for row in (read_task(connection, run_id, target.task) for target in targets) if row is not None]
    stay = [row for row in rows if abandoned_at is None and row.state in MOVING and is_clean_up(row.read_spec())]
    for row in rows:
        if row.state in OPEN and row not in stay:
            end_generation(context.transaction, run_id, row, TaskState.CANCELLED)
            resolve(context.transaction, run_id, row.name)
    if stay:
        return _leave_to_clean_ups(context, len(rows) - len(stay), stay)
    ended = RunChanged(
        RunChange.ENDED, {"state": str(RunState.ABANDONED), "ended_at": context.transaction.at, "blocked_since": None}
    )
    context.transaction.change_run(run_id, ended, old=str(RunState.RUNNING), new=str(RunState.ABANDONED))
    resolve_cause(context.transaction, cut_off_cause(run_id))
    return Answer(True, "run {} is abandoned: {} cancelled".format(run_id, counted(len(targets), "task")))


def _leave_to_clean_ups(context: ActionContext, cancelled: int, stay: Sequence[TaskSnapshot]) -> Answer:
    """End the run as soon as its clean-ups have ended, which an executor runs."""
    transaction, run_id = context.transaction, context.run_id
    bound_clean_ups(transaction, run_id, stay)
    who = f"{stay[0].name} cleans up" if len(stay) == 1 else "{} clean up".format(counted(len(stay), "task"))
    columns: RunColumns = {"abandoned_at": transaction.at, "blocked_since": None, "paused_since": None}
    transaction.change_run(run_id, RunChanged(RunChange.ABANDONED, columns, why=f"{ABANDONED}: {who}"))
    resolve_cause(transaction, cut_off_cause(run_id))
    answer = "run {} is abandoned: {} cancelled; {} first".format(run_id, counted(cancelled, "task"), who)
    how = ", which the next executor starts" if context.is_abandoned else ""
    return Answer(True, f"{answer}{how}; abandon it again to end it at once")


# --- The act ``ack-run``: an operator takes note of how a run has ended, so that it is no longer listed --------------


_BAD_ENDS_OF_FLOW = (
    "SELECT run_id FROM run WHERE dag_name = ? AND ended_at IS NOT NULL AND " + UNACKNOWLEDGED + " ORDER BY rowid"
)


def acknowledge_run(context: ActionContext) -> Answer:
    """Acknowledge the end of the run; ``whole_flow``: of every run of its flow that needs it."""
    columns = "dag_name, state, acknowledged_at, acknowledged_by"
    dag_name, state, acknowledged_at, by = run_columns(context.connection, context.run_id, columns)
    unseen = [run_id for (run_id,) in context.connection.execute(_BAD_ENDS_OF_FLOW, (dag_name,)).fetchall()]
    unseen += [
        row.run_id
        for row in query(context.connection, CHANGED_EFFECTS, {})
        if row.flow == dag_name and row.run_id not in unseen and _has_ended(context, row.run_id)
    ]
    chosen = unseen if context.options.get("whole_flow") else [one for one in unseen if one == context.run_id]
    for run_id in chosen:
        noted: RunColumns = {
            "acknowledged_at": context.transaction.at,
            "acknowledged_by": context.transaction.author.actor,
        }
        context.transaction.change_run(run_id, RunChanged(RunChange.ACKNOWLEDGED, noted))
    if not chosen and acknowledged_at is not None:
        when = ago(context.transaction.at - acknowledged_at)
        return Answer(False, "already acknowledged by {} {}".format(by or "an operator", when))
    if not chosen:
        return Answer(False, f"there is nothing to acknowledge: {state}")
    return Answer(True, "{} acknowledged".format(counted(len(chosen), "run")))


def _has_ended(context: ActionContext, run_id: str) -> bool:
    row = run_columns(context.connection, run_id, "ended_at")
    return row is not None and row[0] is not None


# --- Notes of operators on a cause, for the next operator who handles it, in this run or a later one -----------------
#
# A note is an event only and is never changed; the latest is shown first. ``causes.py`` reads the notes.


DOWNSTREAM_CHARACTERS_MAX = 200


def add_note(context: ActionContext) -> Answer:
    """Write the option ``text`` on the cause with the loose ``fingerprint``; for ``downstream`` only, if given."""
    fingerprint, downstream = context.options.get("fingerprint"), context.options.get("downstream")
    text = text_of_note(context.options.get("text"))
    # The event of the note has the text, so the event of the act leaves it out.
    context.options = {name: value for name, value in context.options.items() if name != "text"}
    refused = _note_refusal(context, fingerprint, downstream, text)
    if refused:
        return Answer(False, refused)
    flow = dag_name_of(context.connection, context.run_id)
    context.transaction.emit(NoteWritten(str(fingerprint), downstream, text, flow), context.run_id)
    return Answer(True, "noted")


def _note_refusal(context: ActionContext, fingerprint: object, downstream: object, text: str) -> Optional[str]:
    connection = context.connection
    if not text:
        return "say what to remember: the note is empty"
    if len(text) > NOTE_CHARACTERS_MAX:
        return f"a note has at most {NOTE_CHARACTERS_MAX} characters, this one has {len(text)}"
    if downstream is not None and not (
        isinstance(downstream, str) and 0 < len(downstream) <= DOWNSTREAM_CHARACTERS_MAX
    ):
        return f"a downstream is a name of 1 to {DOWNSTREAM_CHARACTERS_MAX} characters"
    if run_columns(connection, context.run_id, "1") is None:
        return "there is no such run"
    sql = "SELECT 1 FROM attempt WHERE fingerprint_loose = ? LIMIT 1"
    if not isinstance(fingerprint, str) or connection.execute(sql, (fingerprint,)).fetchone() is None:
        return "nothing in this state file failed with that fingerprint"
    return None


# --- The acts ``pause`` and ``unpause`` ------------------------------------------------------------------------------


def pause(context: ActionContext) -> Answer:
    """Start no task until ``unpause``; running tasks continue."""
    since, by = run_columns(context.connection, context.run_id, "paused_since, paused_by")
    if since is not None:
        return Answer(False, "already paused {} by {}".format(ago(context.transaction.at - since), by or "an operator"))
    author, at = context.transaction.author, context.transaction.at
    by = f'{author.actor}: "{text_of_note(author.reason)}"' if author.reason else author.actor
    context.transaction.change_run(context.run_id, RunChanged(RunChange.PAUSED, {"paused_since": at, "paused_by": by}))
    return Answer(True, "paused: running tasks continue, nothing new starts")


#: An approval that somebody is asked for waits for the answer, whatever is paused.
_HAS_HELD = (
    f"SELECT 1 FROM task WHERE run_id = ? AND (state IN {in_list(ABOUT_TO_START)}"
    f" AND NOT ({IS_APPROVAL} AND started_at IS NOT NULL) OR state = 'PENDING' AND next_retry_at IS NOT NULL) LIMIT 1"
)


def unpause(context: ActionContext) -> Answer:
    """Undo ``pause``; a run in which it held no task stays blocked by what else needs a human."""
    if run_columns(context.connection, context.run_id, "paused_since")[0] is None:
        return Answer(False, "the run is not paused")
    columns: RunColumns = {"paused_since": None, "paused_by": None}
    if context.connection.execute(_HAS_HELD, (context.run_id,)).fetchone() is not None:
        columns["blocked_since"] = None
    context.transaction.change_run(context.run_id, RunChanged(RunChange.UNPAUSED, columns))
    return Answer(True, "unpaused")


# --- The acts ``ack`` and ``snooze``: on pages -----------------------------------------------------------------------


SNOOZE_SECONDS = 3600.0


def acknowledge_pages(context: ActionContext) -> Answer:
    columns: PageColumns = {
        "state": PageChange.ACKED,
        "acked_by": context.transaction.author.actor,
        "snoozed_until": None,
    }
    return _change_pages(context, columns)


def snooze_pages(context: ActionContext) -> Answer:
    """Silence pages for ``seconds`` (default SNOOZE_SECONDS)."""
    seconds = context.options.get("seconds")
    until = context.transaction.at + int((SNOOZE_SECONDS if seconds is None else seconds) * 1000000)
    columns: PageColumns = {"state": PageChange.SNOOZED, "snoozed_until": until}
    return _change_pages(context, columns)


def _change_pages(context: ActionContext, columns: PageColumns) -> Answer:
    """Change the pages in the options ``pages`` (ids) or ``cause``, or the pages of the targets."""
    connection = context.connection
    wanted = set(context.options.get("pages") or ())
    tasks = {target[0] for target in context.targets}
    changed, refused = 0, "there is no such open page"
    for page, cause, run_id, task, state in connection.execute(
        "SELECT id, cause, run_id, task, state FROM page ORDER BY state <> 'resolved', id"
    ).fetchall():
        named = page in wanted or cause == context.options.get("cause") or (run_id == context.run_id and task in tasks)
        if named and act_refusal(context.act, state):
            refused = act_refusal(context.act, state) or ""
        elif named:
            context.transaction.change_page(page, columns)
            context.transaction.emit(PageChanged(columns["state"], page, cause, page=columns), run_id, task)
            changed += 1
    return Answer(changed > 0, f"{changed} {BY_NAME[context.act].past}" if changed else refused)
