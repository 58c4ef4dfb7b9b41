"""The words of each kind of event: a sentence for the journal, and the lines of ``--plain`` and ``redrive events``.

The sentence does not name the task, which is shown beside it. SPEC 000 defines some of the lines; others have the
sentence. ``_WORDS`` has both for each payload; the moves of a task and the changes of a run have tables of their own.
Values come from tasks and people: a caller that shows a sentence passes it through ``text/text.py`` first. Lines are
safe to print.

::

    [03:11:00] settle_M_000042 RUNNING
    [03:11:00] settle_M_000042 FAILED ZeroDivisionError settle.py:87 (fp=4a7c1d): division by zero
    [03:11:00] settle_M_000042 RETRYING attempt=1 next_retry_at=03:11:01.34
    [03:11:01] settle_M_000042 DEAD_LETTER ZeroDivisionError settle.py:87 (fp=4a7c1d): division by zero; the same ...
    [03:11:01] PAGED on-call: poison-pill on settle_M_000042 (4a7c1d)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from string import Formatter
from typing import Any, NamedTuple, TypeVar

from ...engine.core.causes import LAST_TRIES_SECONDS
from ...engine.core.flow_difference import FlowDifference, describe, join_names
from ...engine.core.outcome import reason_of_unstored
from ...engine.core.ready_queue import WORKER_POOL_PREFIX
from ...engine.core.views import BLOCKED, OUTCOME_STYLES, RUN_STYLES, STATE_STYLES, OutcomeStyle
from ...engine.domain import event_payloads as payloads
from ...engine.domain import task_options as overridden
from ...engine.domain.event_payloads import ExecutorChange, ExecutorChanged, PageChange, RunChange, RunChanged
from ...engine.domain.events import Event, EventKind
from ...engine.domain.states import NO_CAUSE, SkipCause, TaskState
from ...engine.domain.text import advised, counted, format_duration, format_seconds, place_words, shell_command
from .figures import FINGERPRINT_DIGITS, offset, wall, wall_date
from .pieces import Line, Piece, Role, plain
from .text import one_line, shorten

ERROR_CELLS = 160  # of the first line of an error
_P = TypeVar("_P", bound=payloads.Payload)


#: A template of the event and its payload, or what makes the text; some make several lines.
_Text = str | Callable[[Event, _P], str | Iterable[str]]


class _Words(NamedTuple):
    """The sentence of an event, and its lines. "": the default sentence; no line."""

    sentence: _Text[Any] = ""
    lines: _Text[Any] = ""


class _Templates(Formatter):
    """Shows "?" for None."""

    def format_field(self, value: object, format_spec: str) -> str:
        return "?" if value is None else str(value)


_TEMPLATES = _Templates()
_Key = tuple[type, str | None]


def _words(payload_type: type[_P], sentence: _Text[_P], lines: _Text[_P] = "") -> Iterator[tuple[_Key, _Words]]:
    """A row of ``_WORDS``; the type checker compares the functions with the payload type."""
    yield (payload_type, None), _Words(sentence, lines)


def _words_by(
    payload_type: type[_P], rows: Mapping[str, _Text[_P] | tuple[_Text[_P], _Text[_P]]]
) -> Iterator[tuple[_Key, _Words]]:
    """Rows by the state that a task came into, or by what changed; a sentence alone has no lines."""
    for key, words in rows.items():
        yield (payload_type, key), _Words(*words) if isinstance(words, tuple) else _Words(words)


def _words_of(event: Event) -> _Words:
    payload = event.payload
    key = event.new if isinstance(payload, payloads.TaskMoved) else getattr(payload, "what", None)
    return _WORDS.get((type(payload), key)) or _WORDS.get((type(payload), None), _Words())


def _texts(text: _Text[Any], event: Event) -> Iterable[str]:
    if isinstance(text, str):
        return [_TEMPLATES.format(text, event=event, payload=event.payload)] if text else []
    found = text(event, event.payload)
    return filter(None, [found]) if isinstance(found, str) else found


def describe_event(event: Event) -> str:
    """The sentence of an event, without task, actor and reason."""
    return next(iter(_texts(_words_of(event).sentence, event)), "") or _default_text(event)


def lines_of_event(event: Event, *, has_date: bool = False, target: str = "") -> Iterator[str]:
    """The lines of an event as plain text: see ``pieces_of_event``."""
    return map(plain, pieces_of_event(event, has_date=has_date, target=target))


def pieces_of_event(event: Event, *, has_date: bool = False, label: str = "", target: str = "") -> Iterator[Line]:
    """The lines of an event, with ``label`` before each text; none for events that only the console shows.

    ``target``: the state file that commands in the lines name; empty: the default one.
    """
    for text in _texts(_words_of(event).lines, event):
        body = one_line(text + _advice(event, target))
        clock = wall_date(event.at) if has_date else wall(event.at)
        yield [Piece(f"[{clock}] ", Role.DIM), Piece(label), *_with_state(event, body)]


#: The words of states in lines, and of what is shown before a retry.
_ROLES_OF_WORDS: Mapping[str, str] = {
    **{str(state): style.role for state, style in RUN_STYLES.items()},
    BLOCKED.word: BLOCKED.role,
    **{style.word.upper().replace(" ", "_"): style.role for style in OUTCOME_STYLES.values()},
    **{str(state): style.role for state, style in STATE_STYLES.items()},
}


_WORD_END = re.compile("[ :]")


def _with_state(event: Event, body: str) -> Line:
    """The text of a line; where a task or a run moves, the word after its name in the role of the state."""
    if isinstance(event.payload, payloads.TaskMoved):
        name = f"{one_line(event.task or '')} "
    elif isinstance(event.payload, RunChanged):
        name = f"run {one_line(event.run_id or '')} "
    else:
        return [Piece(body)]
    if not body.startswith(name):
        return [Piece(body)]
    word = _WORD_END.split(body[len(name) :], maxsplit=1)[0]
    role = _ROLES_OF_WORDS.get(word, Role.TEXT)
    return [Piece(name), Piece(word, role), Piece(body[len(name) + len(word) :])]


def _plain_sentence(event: Event, payload: payloads.Payload) -> str:
    """The subject of the event and the sentence of the journal."""
    about = event.task or (f"run {event.run_id}" if event.run_id and isinstance(payload, _OF_RUNS) else "")
    return f"{about}: {describe_event(event)}" if about else describe_event(event)


_OF_RUNS = (RunChanged, payloads.ScheduleChanged)


def event_subject(event: Event) -> str:
    """The subject of an event: a task, the number of tasks, or a part of the engine."""
    if event.task is not None:
        return event.task
    names = target_tasks(event)
    if names:
        return names[0] if len(names) == 1 else f"{len(names):,} tasks"
    if isinstance(event.payload, payloads.BreakerChanged):
        return event.payload.downstream or event.kind
    return "run" if event.kind == EventKind.OPERATOR else event.kind


def target_tasks(event: Event) -> list[str]:
    """The tasks that an operator's act named."""
    return [task for task, _, _ in target_results(event)]


def target_results(event: Event) -> list[list[str]]:
    """The result of an operator's act: task, word and sentence for each target."""
    payload = event.payload
    return (payload.answer.get("results") or []) if isinstance(payload, payloads.OperatorActed) else []


def _default_text(event: Event) -> str:
    """The text for an event without words of its own."""
    what = getattr(event.payload, "what", None)
    if event.kind == EventKind.TASK:
        return str(event.new).lower()
    return f"{event.kind}: {what}" if what else event.kind.replace(".", " ")


# --- The moves of a task ---------------------------------------------------------------------------------------------


def _ready_line(event: Event, payload: payloads.TaskMoved) -> str:
    """The line of an approval, which says why it waits."""
    expires_at = payload.set.get("expires_at")
    until = f" until {_instant(expires_at)}" if expires_at is not None else ""
    return f"{event.task} READY: {payload.why}{until}" if payload.why else ""


def _running(event: Event, payload: payloads.TaskMoved) -> str:
    return f"attempt {event.attempt} started" if event.attempt else "started"


def _running_line(event: Event, payload: payloads.TaskMoved) -> str:
    return f"{event.task} RUNNING" + (f" attempt={event.attempt}" if (event.attempt or 0) > 1 else "")


def _success(event: Event, payload: payloads.TaskMoved) -> str:
    took = payload.attempt_set.get("duration_us")
    if payload.act == "approve":
        return f"approved{_by(event)}"
    return f"succeeded after {format_duration(took)}" if took is not None else "succeeded"


def _ended_line(event: Event, payload: payloads.TaskMoved) -> str:
    why = reason_of_unstored(payload.set.get("result"))
    lost = "" if why is None else f" (its result was not stored: {why})"
    return f"{event.task} {event.new}{_by(event)}{lost}{f': {payload.why}' if payload.why else ''}"


def _retrying(event: Event, payload: payloads.TaskMoved) -> str:
    who = f"attempt {event.attempt} " if event.attempt else ""
    ended = f"{who}{_outcome(payload).verb}"
    return f"{ended}{_next_attempt(event, payload)}{failure_text(payload)}{_changed_inputs(payload)}"


def _retrying_lines(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    yield from _advised(event, payload)
    columns = payload.set
    word = _outcome(payload).word.upper().replace(" ", "_")
    yield f"{event.task} {word} {_named_failure(payload)}".rstrip()
    drawn = columns.get("delay_us")
    ceiling = columns.get("ceiling_us")
    waits = f" drew {drawn / 1e6:.2f} s of {ceiling / 1e6:g} s" if drawn is not None and ceiling is not None else ""
    changed = f" changed={','.join(payload.changed)}" if payload.changed else ""
    due, shortened = _instant(columns.get("next_retry_at")), _shortening_text(payload)
    yield f"{event.task} RETRYING attempt={event.attempt} next_retry_at={due}{waits}{changed}{shortened}"


def _changed_inputs(payload: payloads.TaskMoved) -> str:
    words = payload.changed
    return f"; the {' and the '.join(words)} changed since its last such failure" if words else ""


def _outcome(payload: payloads.TaskMoved) -> OutcomeStyle:
    """The end of the attempt before the next one. A later version may know more outcomes: they read as failures."""
    return OUTCOME_STYLES.get(payload.attempt_set.get("outcome") or "", OUTCOME_STYLES["error"])


def _next_attempt(event: Event, payload: payloads.TaskMoved) -> str:
    """The delay of the next attempt: the one that was drawn, and its ceiling."""
    columns = payload.set
    due_at, drawn, ceiling = columns.get("next_retry_at"), columns.get("delay_us"), columns.get("ceiling_us")
    if drawn is None:
        return "" if due_at is None else f", again in {format_duration(due_at - event.at)}"
    return (
        f", again in {format_duration(drawn)}"
        + (f" of {format_duration(ceiling)}" if ceiling is not None else "")
        + _shortening_text(payload)
    )


def _shortening_text(payload: payloads.TaskMoved) -> str:
    """A delay shortened by the deadline of the run: ``, shortened from 4m: the run is due 02:00:00``."""
    before = payload.set.get("shortened_us")
    if before is None or payload.due_at is None:
        return ""
    return f", shortened from {format_duration(before)}: the run is due {wall(payload.due_at)}"


def failure_text(payload: payloads.TaskMoved) -> str:
    """The failure of an attempt, behind a colon; empty without one."""
    attempt: payloads.AttemptColumns = payload.attempt_set
    failure = payload.explain or attempt.get("explain") or attempt.get("error") or payload.why
    return f": {failure}" if failure else ""


def _dead_letter(event: Event, payload: payloads.TaskMoved) -> str:
    kind = payload.set.get("dead_letter_kind")
    return f"needs a human{failure_text(payload)}" + (f" ({kind})" if kind else "")


def _failed(event: Event, payload: payloads.TaskMoved) -> str:
    return f"rejected{_by(event)}" if payload.act == "reject" else f"failed for good{failure_text(payload)}"


def _failed_lines(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    """FAILED or DEAD_LETTER."""
    if payload.act == "reject":
        yield f"{event.task} {event.new}: rejected{_by(event)}"
        return
    yield from _advised(event, payload)
    between = "; " if _explanation(payload)[1] else ": "
    failure = _named_failure(payload)
    why = f"{between}{payload.why}" if payload.why and payload.explain and not failure.endswith(payload.why) else ""
    if payload.why and payload.why.startswith(failure):
        failure, why = payload.why, ""
    yield f"{event.task} {event.new} {failure}{why}"


def _advised(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    """The advice after a timeout: the progress until then, and a longer timeout."""
    attempt = payload.attempt_set
    if attempt.get("outcome") == "timed_out" and (diagnostic := attempt.get("diagnostic")):
        yield f"{event.task} {diagnostic}"


def _sensing(event: Event, payload: payloads.TaskMoved) -> str:
    due_at = payload.set.get("next_retry_at")
    return "not there yet" + (f"; next check in {format_duration(due_at - event.at)}" if due_at is not None else "")


def _sensing_line(event: Event, payload: payloads.TaskMoved) -> str:
    checks, due = sensor_checks(payload), _instant(payload.set.get("next_retry_at"))
    return f"{event.task} SENSING next_check_at={due}" + (f" checks={checks}" if checks > 1 else "")


def sensor_checks(payload: payloads.TaskMoved) -> int:
    """The number of checks in which a sensor has found nothing yet."""
    return int(payload.set.get("deferrals") or 0)


def _skipped(event: Event, payload: payloads.TaskMoved) -> str:
    if payload.set.get("skip_cause") == SkipCause.OPERATOR:
        return "failure permitted: skipped"
    return f"skipped: {reason}" if (reason := payload.set.get("error")) else "skipped"


def _skipped_line(event: Event, payload: payloads.TaskMoved) -> str:
    columns = payload.set
    reason = columns.get("error") if columns.get("skip_cause") == SkipCause.CONDITION else None
    return f"{event.task} SKIPPED{_by(event)}{f': {reason}' if reason else ''}"


def _pending(event: Event, payload: payloads.TaskMoved) -> str:
    if payload.act == "requeue":
        overrides = overridden.describe_overrides(overridden.load_overrides(payload.set.get("overrides")))
        return f"runs again: {overrides}" if overrides else "runs again"
    return f"waits again: {payload.act}" if payload.act else "waits for its parents"


def _pending_line(event: Event, payload: payloads.TaskMoved) -> str:
    return "" if event.old in (None, TaskState.READY) else f"{event.task} PENDING again{_by(event)}"


def _named_failure(payload: payloads.TaskMoved) -> str:
    explain, message = _explanation(payload)
    fingerprint = payload.attempt_set.get("fingerprint_loose") or ""
    named = explain if fingerprint in NO_CAUSE else f"{explain} (fp={_digits(fingerprint)})"
    return f"{named}: {message}" if message else named


def _explanation(payload: payloads.TaskMoved) -> tuple[str, str]:
    """The failure in a few words, and the first line of the error unless the words contain it."""
    attempt, explain = payload.attempt_set, payload.explain
    error = (attempt.get("error") or "").strip()
    if not explain or not error or attempt.get("outcome") == "timed_out":  # a timeout has its own lines
        return explain or payload.why or error, ""
    message = shorten(one_line(error.splitlines()[0]), ERROR_CELLS)
    known = " ".join(explain.partition("<")[0].split())  # of a command, the error with <n> for numbers
    if " ".join(message.split()).startswith(known):
        return message, ""
    return explain, "" if explain.endswith(message) else message


def _by(event: Event) -> str:
    if not event.actor:
        return ""
    return f" by {event.actor}" + (f": {event.reason}" if event.reason else "")


# --- Other changes of tasks, and attempts ----------------------------------------------------------------------------


def _changed(event: Event, payload: payloads.TaskChanged) -> str:
    columns = payload.set
    if total := columns.get("progress_total"):
        return f"{columns.get('progress_done') or 0:,} of {total:,} done"
    if notice := columns.get("notice"):
        return str(notice)
    if columns.get("stale"):
        return "stale: something above it runs again"
    if "canary" in columns:
        first = columns["canary"]
        return f"runs after {first} has succeeded" if first else "no longer waits for another task"
    if columns.get("cancel_requested_at"):
        return f"is ended: {payload.why}" if payload.why else "cancel requested"
    if due_at := columns.get("next_retry_at"):
        return f"next attempt at {wall(due_at)}"
    return f"changed: {', '.join(columns)}" if columns else ""


def _changed_line(event: Event, payload: payloads.TaskChanged) -> str:
    notice, late = payload.set.get("notice"), "" if payload.set.get("stale") else "LATE: "
    return f"{event.task} {late}{notice}" if notice else ""


def _mapped(event: Event, payload: payloads.TaskMapped) -> str:
    came, gone = payload.came, payload.gone
    words = [f"has {len(came):,} more {'child' if len(came) == 1 else 'children'}"] if came else []
    words += [f"{counted(len(gone), 'element')} {'is' if len(gone) == 1 else 'are'} gone"] if gone else []
    stayed = len(payload.names) - len(payload.came)
    words += [f"{stayed:,} {'stays' if stayed == 1 else 'stay'}"] if words and stayed else []
    if payload.why:
        return f"has no children yet, for a list of {payload.size:,}: {payload.why}"
    return f"{', '.join(words) or 'has its children in another order'}, for a list of {payload.size:,}"


def _started(event: Event, payload: payloads.AttemptStarted) -> str:
    pid = payload.attempt_set.get("pid")
    host = payload.attempt_set.get("host")  # set only if it is not the executor's host
    where = f" on {host}" if host else ""
    return f"process {pid}{where} runs attempt {event.attempt}" if pid else f"attempt {event.attempt} has a process"


def _deadline(event: Event, payload: payloads.AttemptDeadline) -> str:
    allowed = payload.timeout
    return f"timeout of {format_seconds(allowed)} passed" if allowed else "timeout passed"


def _extended(event: Event, payload: payloads.AttemptExtended) -> str:
    allowed = payload.attempt_set.get("timeout_us")
    in_all = f": {format_duration(allowed)} in all" if allowed is not None else ""
    return f"given {format_seconds(payload.seconds)} more{in_all}" if payload.seconds else "given more time"


def _stack(event: Event, payload: payloads.AttemptStack) -> str:
    return payload.hang or (f"it was in {payload.where}" if payload.where else "")


def _stack_line(event: Event, payload: payloads.AttemptStack) -> str:
    found = _stack(event, payload)
    return f"{event.task} at its end: {found}" if found else ""


def _sigterm(event: Event, payload: payloads.AttemptSigterm) -> str:
    grace = payload.grace_seconds
    return "SIGTERM sent" + (f"; {format_seconds(grace)} to end" if grace is not None else "")


def _sigkill(event: Event, payload: payloads.AttemptSigkill) -> str:
    count = len(payload.pids)
    return "SIGKILL sent" + (f" to {count} processes" if count > 1 else "")


def _swept(event: Event, payload: payloads.AttemptSwept) -> str:
    count = len(payload.pids)
    return f"{count} process{'' if count == 1 else 'es'} left behind, killed"


def _silent(event: Event, payload: payloads.AttemptSilent) -> str:
    lasts = "?" if payload.silent_seconds is None else format_seconds(payload.silent_seconds)
    return f"no heartbeat for {lasts}; its process: {payload.process or '?'}"


def _retry_line(event: Event, payload: payloads.AttemptRetry) -> str:
    elapsed, delay = payload.elapsed_seconds or 0.0, payload.delay_seconds or 0.0
    tries = f"try {payload.try_number} after {elapsed:.1f} s, waits {delay:.2f} s"
    more = f"; {payload.untold:,} more since the line before" if payload.untold else ""
    error = f"{payload.error_type}: {payload.message}"
    return f"{event.task} retries {payload.function} inside ({tries}): {error}{more}"


# --- Runs and executors ----------------------------------------------------------------------------------------------


def _changed_by(event: Event, payload: RunChanged) -> str:
    return f"run {event.run_id} {payload.what.upper()}{_by(event)}"


def _ended_run(event: Event, payload: RunChanged) -> str:
    return f"run ended: {str(event.new).lower()}{f' ({payload.why})' if payload.why else ''}"


def _ended_run_line(event: Event, payload: RunChanged) -> str:
    return f"run {event.run_id} {event.new}{_by(event)}{f': {payload.why}' if payload.why else ''}"


def _pool_waits(event: Event, payload: RunChanged) -> str:
    """Name the pools of the machine that tasks wait for."""
    try:
        waits = json.loads(payload.set.get("pool_waits") or "{}")
        sentence = "; ".join(starmap(_pool_wait, waits.items()))
    except (ValueError, AttributeError):
        return ""
    return sentence or "no task waits for a pool of this machine or a Dask worker any more"


def _pool_wait(pool: str, why: str) -> str:
    if pool.startswith(WORKER_POOL_PREFIX):
        needs = pool.removeprefix(WORKER_POOL_PREFIX)
        return f"tasks wait for a Dask worker{f' ({needs})' if needs else ''}: {why}"
    return f"pool {pool} of this machine is held by {why}"


def _flow_difference(payload: RunChanged) -> FlowDifference:
    return FlowDifference(
        added=tuple(payload.added),
        changed=tuple(payload.changed),
        outdated=tuple(payload.outdated),
        removed=tuple(payload.removed),
        unfinished=tuple(payload.skipped),
    )


def _code_changed(event: Event, payload: RunChanged) -> str:
    if not payload.files:
        return "the code on the disk is again the code that the executor loaded"
    return f"{join_names(payload.files)} changed since the executor loaded it: a requeue or a reload loads it"


def _code_loaded(event: Event, payload: RunChanged) -> str:
    return "; ".join([f"loaded {join_names(payload.files) or 'the flow'} again", *describe(_flow_difference(payload))])


def _acknowledged(event: Event, payload: RunChanged) -> str:
    by = payload.set.get("acknowledged_by")
    return f"its end is acknowledged by {by}" if by else "its end is no longer acknowledged"


def _code_refused(event: Event, payload: RunChanged) -> str:
    return f"{join_names(payload.files)} changed but cannot be used, the old code stays: {payload.why or '?'}"


def _describe_params(payload: RunChanged) -> str:
    parts = [f"{name} was {old}, is {new}" for name, (old, new) in payload.params_changed.items()]
    parts += [f"{name}={value} is new" for name, value in payload.params_added.items()]
    parts += [f"{name}={value} is gone from the flow" for name, value in payload.params_removed.items()]
    return ", ".join(parts)


_ASKED_MAX = 3  # approvals that a command names


def _blocked_text(run_id: str | None, why: str | None) -> str:
    return f"run {run_id} BLOCKED: {why or 'dead letters wait for a human'}"


def _unblocking_commands(asked: Sequence[str], place: Sequence[str]) -> str:
    """The commands that end the wait of a blocked run, in brackets. ``place``: the words that name it."""
    approve = ["redrive", "approve", *place, "--reason", "...", "--", *asked]
    commands = [*([approve] if 0 < len(asked) <= _ASKED_MAX else []), ["redrive", "inbox", *place]]
    return f" ({'; '.join(map(shell_command, commands))})"


def blocked_line(run_id: str, why: str, asked: Sequence[str], target: str) -> str:
    """The line of a run that was blocked before, as that of the event; it may not be the latest run of ``target``."""
    return one_line(f"{_blocked_text(run_id, why)}{_unblocking_commands(asked, place_words(target, run_id))}")


#: The list that has more of what an event names.
_LISTINGS: Mapping[str, str] = {payloads.PageChange.UNSENT: "systems pages", payloads.RowsChange.HELD: "systems rows"}


def _advice(event: Event, target: str) -> str:
    """The commands that end the wait of a run, as they are typed."""
    payload = event.payload
    if isinstance(payload, (payloads.PageChanged, payloads.RowsChanged)):
        listing = _LISTINGS.get(payload.what)
        return f" ({advised(listing, target, event.run_id)})" if listing and target else ""
    if not isinstance(payload, RunChanged):
        return ""
    if payload.what == RunChange.BLOCKED:
        return _unblocking_commands(payload.asked, [target] if target else [])
    if payload.what != RunChange.CUT_OFF:
        return ""
    resume, abandon = (advised(act, target, event.run_id) for act in ("resume", "abandon"))
    return f"; {resume} goes on with it, {abandon} ends it"


def _reason(event: Event, payload: RunChanged) -> str:
    return payload.why or ""


def _flow_changed(event: Event, payload: RunChanged) -> str:
    return f"the flow changed: {'; '.join(describe(_flow_difference(payload)))}"


def _executor_started(event: Event, payload: ExecutorChanged) -> str:
    where = f" on {payload.host}, process {payload.pid}" if payload.host else ""
    doubts = "".join(f"; warning: {warning}" for warning in payload.warnings)
    return f"started{where}{doubts}{_last_output_line('the import', payload)}"


def _executor_lost(event: Event, payload: ExecutorChanged) -> str:
    who = "" if payload.pid is None else f"process {payload.pid} "
    return f"{who}is gone: what it ran counts as lost"


def _zygote_died(event: Event, payload: ExecutorChanged) -> str:
    died = f"process {payload.pid}, which forks the attempts, died ({payload.how})"
    return f"{died}: what it ran counts as lost{_last_output_line('it', payload)}"


def _threads_killed(event: Event, payload: ExecutorChanged) -> str:
    sentence = f"process {payload.pid} killed: {', '.join(payload.leaked)} ignored the cancel token"
    return sentence + (f"; {', '.join(payload.lost)} ran in it too and will run again" if payload.lost else "")


def _last_output_line(who: str, payload: ExecutorChanged) -> str:
    """The last line of the output of a process; of a traceback, the error."""
    lines = (payload.printed or "").strip().splitlines()
    return f"; {who} printed: {lines[-1]}" if lines else ""


def _printed_at_start(event: Event, payload: ExecutorChanged) -> Iterator[str]:
    """Warnings and output of the flow's import."""
    yield from (f"warning: {warning}" for warning in payload.warnings)
    yield from (f"the import printed: {line}" for line in (payload.printed or "").splitlines())


def _printed_at_death(event: Event, payload: ExecutorChanged) -> Iterator[str]:
    lines = (payload.printed or "").splitlines()[:-1]  # the sentence has the last line
    yield from (f"process {payload.pid} printed: {line}" for line in lines)
    yield describe_event(event)


# --- Breakers, pages, rows, schedules, acts --------------------------------------------------------------------------


def _breaker(event: Event, payload: payloads.BreakerChanged) -> str:
    why = f": {payload.why}" if payload.why else ""
    again = f"; tried again at {wall(payload.reopens_at)}" if payload.reopens_at else ""
    return f"breaker {(payload.state or '?').replace('_', ' ').lower()}{why}{again}"


#: Who sends a page that its executor could not send: ``store/pages.py: STALE_AFTER_US``.
UNSENT_UNTIL = "the next run, resume or serve on this state file sends it, within 24 h"


_SENT = {"digest": "page sent in a digest", "joined": "sent with the page of flow {}, which has the same cause"}


def _page_opened(event: Event, payload: payloads.PageChanged) -> str:
    return f"page opened{f': {payload.title}' if payload.title else ''}{f'; {payload.why}' if payload.why else ''}"


def _page_opened_line(event: Event, payload: payloads.PageChanged) -> str:
    task = f" on {event.task}" if event.task is not None else ""
    return f"no page is sent about {payload.title}{task}: {payload.why}" if payload.why else ""


def _page_sent(event: Event, payload: payloads.PageChanged) -> str:
    return _SENT.get(payload.how or "", "page sent").format(payload.sender)


def _page_sent_line(event: Event, payload: payloads.PageChanged) -> str:
    fingerprint = f" ({_digits(payload.fingerprint)})" if payload.fingerprint else ""
    by = f", with the page of flow {payload.sender}" if payload.how == "joined" else ""
    return f"PAGED on-call{by}: {payload.title}{fingerprint}"


def _page_unsent(event: Event, payload: payloads.PageChanged) -> str:
    return f"{payload.error or 'no time was left'}; {UNSENT_UNTIL}"


def _page_unsent_line(event: Event, payload: payloads.PageChanged) -> str:
    return f"page {payload.id} NOT SENT: {_page_unsent(event, payload)}"


def _page_refused_line(event: Event, payload: payloads.PageChanged) -> str:
    until = f"until {LAST_TRIES_SECONDS:g} s after the end of the run"
    line = f"page {payload.id} not sent by {payload.sender}, tried again {until}: {payload.error}"
    return line if payload.tries == 1 else ""


def _rows(event: Event, payload: payloads.RowsChanged) -> str:
    rows = counted(payload.rows, "row") if payload.rows is not None else "rows"
    return f"{rows} {_ROW_WORDS.get(payload.what, payload.what.replace('-', ' '))}"


_ROW_WORDS = {
    payloads.RowsChange.HELD: "held in quarantine",
    payloads.RowsChange.PROVISIONAL: "set aside so far",
    payloads.RowsChange.DROPPED: "dropped with the attempt that failed",
}


def _rows_line(event: Event, payload: payloads.RowsChanged) -> str:
    is_held = payload.what == payloads.RowsChange.HELD and payload.rows
    return _plain_sentence(event, payload) if is_held else ""


def _canary(sentence: str) -> Callable[[Event, payloads.CanaryEnded], str]:
    return lambda event, payload: sentence.format(counted(len(payload.tasks), "other"))


def _schedule(event: Event, payload: payloads.ScheduleChanged) -> str:
    """A change of a schedule. Logical times are in its time zone."""
    flow, what, last = payload.flow, payload.what, _minute(payload.last)
    if what in (payloads.ScheduleChange.BEGUN, payloads.ScheduleChange.CHANGED):
        verb = "begins" if what == payloads.ScheduleChange.BEGUN else "is now"
        return f"schedule of {flow} {verb}: {payload.expression} {payload.timezone}"
    if what == payloads.ScheduleChange.MISSED:
        more = "" if payload.is_all else " or more"
        span = f"{payload.runs}{more}, from {_minute(payload.first)} to {last}"
        when = f"the one of {last}" if payload.runs == 1 else span
        why = "skipped by an operator" if payload.misfire is None else f"given up (misfire {payload.misfire})"
        return f"runs of {flow} {why}: {when}"
    if what == payloads.ScheduleChange.LATE_START:
        others = f", nor {payload.runs - 1} before it" if payload.runs and payload.runs > 1 else ""
        return f"{flow} of {last} has not started as promised{others}"
    if what == payloads.ScheduleChange.TAKEN_BACK:
        started = f", except {counted(payload.runs, 'run')}" if payload.runs else ""
        return f"{flow}: what was decided until {last}, ahead of the clock, is undecided again{started}"
    if what == payloads.ScheduleChange.LATE_END:
        return f"not ended by {wall(payload.due_at or 0)}, when it was due"
    return ""


def _minute(text: str | None) -> str:
    """Shorten an instant in ISO 8601 to ``2026-11-21 02:00``."""
    return str(text)[:16].replace("T", " ")


def _operator(event: Event, payload: payloads.OperatorActed) -> str:
    message = payload.answer.get("message")
    return f"{payload.act}: {message}" if message else payload.act or payload.what or ""


def _digits(fingerprint: str | None) -> str:
    return fingerprint[:FINGERPRINT_DIGITS] if fingerprint else "-"


def _instant(at: int | None) -> str:
    return "-" if at is None else f"{wall(at)}.{at % 1_000_000 // 10_000:02}"


# --- Every kind of event ---------------------------------------------------------------------------------------------

_WORDS: Mapping[_Key, _Words] = dict(
    [
        *_words_by(
            payloads.TaskMoved,
            {
                TaskState.READY: (lambda event, payload: payload.why or "ready to run", _ready_line),
                TaskState.RUNNING: (_running, _running_line),
                TaskState.SUCCESS: (_success, _ended_line),
                TaskState.RETRYING: (_retrying, _retrying_lines),
                TaskState.FAILED: (_failed, _failed_lines),
                TaskState.DEAD_LETTER: (_dead_letter, _failed_lines),
                TaskState.SENSING: (_sensing, _sensing_line),
                TaskState.UPSTREAM_FAILED: (
                    lambda event, payload: f"cannot run: {payload.set.get('blocked_by') or 'a task above it'} failed",
                    lambda event, payload: f"{event.task} UPSTREAM_FAILED because of {payload.set.get('blocked_by')}",
                ),
                TaskState.SKIPPED: (_skipped, _skipped_line),
                TaskState.CANCELLED: (lambda event, payload: f"stopped{failure_text(payload)}", _ended_line),
                TaskState.PENDING: (_pending, _pending_line),
            },
        ),
        *_words(payloads.TaskChanged, _changed, _changed_line),
        *_words(payloads.TaskMapped, _mapped, lambda event, payload: f"{event.task} {_mapped(event, payload)}"),
        *_words(payloads.AttemptStarted, _started),
        *_words(payloads.AttemptEffect, "begins its effect, at most once: key {payload.key}", _plain_sentence),
        *_words(payloads.AttemptExtended, _extended),
        *_words(payloads.AttemptDeadline, _deadline, "{event.task} timeout reached"),
        *_words(payloads.AttemptStack, _stack, _stack_line),
        *_words(payloads.AttemptSigterm, _sigterm, "{event.task} sending SIGTERM"),
        *_words(payloads.AttemptSigkill, _sigkill, "{event.task} still alive, sending SIGKILL"),
        *_words(payloads.AttemptSwept, _swept, _plain_sentence),
        *_words(payloads.AttemptLate, "attempt {event.attempt} ended late: it changes nothing", _plain_sentence),
        *_words(
            payloads.AttemptLeaked, "ignores its cancel token: its slot is taken until its thread ends", _plain_sentence
        ),
        *_words(payloads.AttemptSilent, _silent, _plain_sentence),
        *_words(payloads.AttemptReclaimed, "attempt {event.attempt} is lost: its processes are gone", _plain_sentence),
        *_words(payloads.AttemptRetry, "retried something inside the attempt", _retry_line),
        *_words_by(
            RunChanged,
            {
                RunChange.CREATED: "run began: {payload.tasks} tasks",
                RunChange.ENDED: (_ended_run, _ended_run_line),
                RunChange.CUT_OFF: ("cut off: {payload.why}", "run {event.run_id} was CUT OFF: {payload.why}"),
                RunChange.BLOCKED: (
                    lambda event, payload: f"blocked: {payload.why or 'what is left waits for a human'}",
                    lambda event, payload: _blocked_text(event.run_id, payload.why),
                ),
                RunChange.UNBLOCKED: ("no longer blocked", _changed_by),
                RunChange.PAUSED: ("paused: nothing new starts", _changed_by),
                RunChange.UNPAUSED: ("unpaused: tasks start again", _changed_by),
                RunChange.REOPENED: ("open again", _changed_by),
                RunChange.DEADLINE: (_reason, _plain_sentence),
                RunChange.ABANDONED: (_reason, _plain_sentence),
                RunChange.POSTPONED: (_reason, _plain_sentence),
                RunChange.ACKNOWLEDGED: (_acknowledged, _plain_sentence),
                RunChange.FLOW_CHANGED: (_flow_changed, _plain_sentence),
                RunChange.FLOW_REFUSED: ("not resumed: {payload.why}", _plain_sentence),
                RunChange.CODE_CHANGED: (_code_changed, _plain_sentence),
                RunChange.CODE_LOADED: (_code_loaded, _plain_sentence),
                RunChange.CODE_REFUSED: (_code_refused, _plain_sentence),
                RunChange.POOL_WAITS: (_pool_waits, _plain_sentence),
                RunChange.PARAMS: lambda event, payload: f"parameters: {_describe_params(payload)}",
                RunChange.CLOCK: "the start of its pause moved with the clock",
                RunChange.OPENED: "opened by an executor",
                RunChange.OPTIONS: "pools, downstreams, pages, deadline_action or dead_letter_ttl of the flow changed",
            },
        ),
        *_words_by(
            ExecutorChanged,
            {
                ExecutorChange.STARTED: (_executor_started, _printed_at_start),
                ExecutorChange.STOPPED: "stopped",
                ExecutorChange.LOST: _executor_lost,
                ExecutorChange.ZYGOTE_DIED: (_zygote_died, _printed_at_death),
                ExecutorChange.THREADS_KILLED: (_threads_killed, _plain_sentence),
                ExecutorChange.WORKER_RETIRED: (
                    "worker {payload.pid} ends and is replaced: {payload.how}",
                    _plain_sentence,
                ),
                ExecutorChange.CLUSTER_CHANGED: (lambda event, payload: payload.how or "", _plain_sentence),
                ExecutorChange.PING_FAILED: (lambda event, payload: payload.printed or "", _plain_sentence),
            },
        ),
        *_words(
            payloads.BreakerChanged,
            _breaker,
            lambda event, payload: f"downstream {payload.downstream}: {_breaker(event, payload)}",
        ),
        *_words_by(
            payloads.PageChanged,
            {
                PageChange.OPENED: (_page_opened, _page_opened_line),
                PageChange.FOLDED: "the open page counts one more failure, {payload.occurrences} in all",
                PageChange.WOKEN: "page no longer snoozed",
                PageChange.SENT: (_page_sent, _page_sent_line),
                PageChange.SEND_FAILED: ("page not sent by {payload.sender}: {payload.error}", _page_refused_line),
                PageChange.UNSENT: (_page_unsent, _page_unsent_line),
                PageChange.BELL: "the terminal bell has rung",
                PageChange.ACKED: "page acknowledged",
                PageChange.SNOOZED: "page snoozed",
                PageChange.RESOLVED: "page resolved",
                PageChange.REOPENED: "page as before the act that was undone",
            },
        ),
        *_words(payloads.RowsChanged, _rows, _rows_line),
        *_words_by(
            payloads.CanaryEnded,
            {
                payloads.CanaryEnd.RELEASED: _canary("it succeeded: {} of its cause may run"),
                payloads.CanaryEnd.NOT_FIXED: _canary("the fix did not help: {} held"),
                payloads.CanaryEnd.FAILED: _canary("it failed with another error: {} held"),
            },
        ),
        *_words(payloads.NoteWritten, "on {payload.fingerprint}: {payload.text}"),
        *_words(payloads.StorageChanged, "storage {payload.what}: {payload.sentence}", _plain_sentence),
        *_words(
            payloads.ClockMoved,
            lambda event, payload: f"the clock moved by {offset(payload.moved_us)}",
            _plain_sentence,
        ),
        *_words(payloads.ScheduleChanged, _schedule, _plain_sentence),
        *_words_by(
            payloads.OperatorActed,
            {
                payloads.OperatorNotice.BREAKER: "breaker {payload.downstream}: {payload.how}",
            },
        ),
        *_words(payloads.OperatorActed, _operator),
    ]
)


# --- What a fingerprint is made of, in words -------------------------------------------------------------------------


def detail_text(fingerprint_detail: str, dot: str = "·") -> str:
    """``type httpx.HTTPStatusError · place fetch.py:get · status 404``. ``fingerprint_detail``: JSON of an attempt."""
    detail = json.loads(fingerprint_detail) if fingerprint_detail else {}
    return f" {dot} ".join(" ".join(field).rstrip() for field in detail.get("fields") or ())
