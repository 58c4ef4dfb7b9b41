"""The words of the events of tasks and their attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.core.outcome import reason_of_unstored
from ...engine.core.views import OUTCOME_STYLES, StateStyle
from ...engine.domain import event_payloads as payloads
from ...engine.domain import task_options as overridden
from ...engine.domain.events import Event
from ...engine.domain.states import NO_CAUSE, SkipCause, TaskState
from ...engine.domain.text import counted, format_duration, format_seconds
from .event_words import Lines, StateLine, WordsRow, by, digits, precise_instant, words, words_by
from .figures import wall
from .text import added_message, one_line, shorten

ERROR_CELLS = 160  # of the first line of an error

#: The act that puts tasks back: its words stand for those of the state, which tell of an attempt that has ended.
UNDO = "undo"


def _ready_line(event: Event, payload: payloads.TaskMoved) -> str | StateLine:
    """The line of an approval, which says why it waits."""
    expires_at = payload.set.get("expires_at")
    until = f" until {precise_instant(expires_at)}" if expires_at is not None else ""
    return StateLine(event.task, "READY", f": {payload.why}{until}") if payload.why else ""


def _running(event: Event, payload: payloads.TaskMoved) -> str:
    return f"attempt {event.attempt} started" if event.attempt else "started"


def _running_line(event: Event, payload: payloads.TaskMoved) -> StateLine:
    return StateLine(event.task, "RUNNING", f" attempt={event.attempt}" if (event.attempt or 0) > 1 else "")


def _success(event: Event, payload: payloads.TaskMoved) -> str:
    took = payload.attempt_set.get("duration_us")
    if payload.act == "approve":
        return "approved"
    return f"succeeded after {format_duration(took)}" if took is not None else "succeeded"


def _ended_line(event: Event, payload: payloads.TaskMoved) -> StateLine:
    why = reason_of_unstored(payload.set.get("result"))
    lost = "" if why is None else f" (its result was not stored: {why})"
    return StateLine(event.task, str(event.new), f"{by(event)}{lost}{f': {payload.why}' if payload.why else ''}")


def _retrying(event: Event, payload: payloads.TaskMoved) -> str:
    who = f"attempt {event.attempt} " if event.attempt else ""
    ended = f"{who}{_outcome(payload).verb}"
    return f"{ended}{_next_attempt(event, payload)}{failure_text(payload)}{_changed_inputs(payload)}"


def _retrying_lines(event: Event, payload: payloads.TaskMoved) -> Iterator[str | StateLine]:
    yield from _advised(event, payload)
    columns = payload.set
    word = _outcome(payload).word.upper().replace(" ", "_")
    yield StateLine(event.task, word, f" {_named_failure(payload)}".rstrip())
    drawn = columns.get("delay_us")
    ceiling = columns.get("ceiling_us")
    waits = f" drew {drawn / 1e6:.2f} s of {ceiling / 1e6:g} s" if drawn is not None and ceiling is not None else ""
    changed = f" changed={','.join(payload.changed)}" if payload.changed else ""
    due, shortened = precise_instant(columns.get("next_retry_at")), _shortening_text(payload)
    rest = f" attempt={event.attempt} next_retry_at={due}{waits}{changed}{shortened}"
    yield StateLine(event.task, "RETRYING", rest)


def _changed_inputs(payload: payloads.TaskMoved) -> str:
    words = payload.changed
    return f"; the {' and the '.join(words)} changed since its last such failure" if words else ""


def _outcome(payload: payloads.TaskMoved | payloads.AttemptLate) -> StateStyle:
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
    return "rejected" if payload.act == "reject" else f"failed for good{failure_text(payload)}"


def _failed_lines(event: Event, payload: payloads.TaskMoved) -> Iterator[str | StateLine]:
    """FAILED or DEAD_LETTER."""
    if payload.act == "reject":
        yield StateLine(event.task, str(event.new), f": rejected{by(event)}")
        return
    yield from _advised(event, payload)
    between = "; " if _explanation(payload)[1] else ": "
    failure = _named_failure(payload)
    why = f"{between}{payload.why}" if payload.why and payload.explain and not failure.endswith(payload.why) else ""
    if payload.why and payload.why.startswith(failure):
        failure, why = payload.why, ""
    yield StateLine(event.task, str(event.new), f" {failure}{why}")


def _advised(event: Event, payload: payloads.TaskMoved) -> Iterator[str]:
    """The advice after a timeout: the progress until then, and a longer timeout."""
    attempt = payload.attempt_set
    if attempt.get("outcome") == "timed_out" and (diagnostic := attempt.get("diagnostic")):
        yield f"{event.task} {diagnostic}"


def _sensing(event: Event, payload: payloads.TaskMoved) -> str:
    due_at = payload.set.get("next_retry_at")
    return "not there yet" + (f"; next check in {format_duration(due_at - event.at)}" if due_at is not None else "")


def _sensing_line(event: Event, payload: payloads.TaskMoved) -> StateLine:
    checks, due = sensor_checks(payload), precise_instant(payload.set.get("next_retry_at"))
    return StateLine(event.task, "SENSING", f" next_check_at={due}{f' checks={checks}' if checks > 1 else ''}")


def sensor_checks(payload: payloads.TaskMoved) -> int:
    """The number of checks in which a sensor has found nothing yet."""
    return int(payload.set.get("deferrals") or 0)


def _skipped(event: Event, payload: payloads.TaskMoved) -> str:
    if payload.set.get("skip_cause") == SkipCause.OPERATOR:
        return "failure permitted: skipped"
    return f"skipped: {reason}" if (reason := payload.set.get("error")) else "skipped"


def _skipped_line(event: Event, payload: payloads.TaskMoved) -> StateLine:
    columns = payload.set
    reason = columns.get("error") if columns.get("skip_cause") == SkipCause.CONDITION else None
    return StateLine(event.task, "SKIPPED", f"{by(event)}{f': {reason}' if reason else ''}")


def _pending(event: Event, payload: payloads.TaskMoved) -> str:
    if payload.act == "requeue":
        overrides = overridden.describe_overrides(overridden.load_overrides(payload.set.get("overrides")))
        return f"runs again: {overrides}" if overrides else "runs again"
    return f"waits again: {payload.act}" if payload.act else "waits for its parents"


def _pending_line(event: Event, payload: payloads.TaskMoved) -> str | StateLine:
    return "" if event.old in (None, TaskState.READY) else StateLine(event.task, "PENDING", f" again{by(event)}")


def _named_failure(payload: payloads.TaskMoved) -> str:
    explain, message = _explanation(payload)
    fingerprint = payload.attempt_set.get("fingerprint_loose") or ""
    named = explain if fingerprint in NO_CAUSE else f"{explain} (fp={digits(fingerprint)})"
    return f"{named}: {message}" if message else named


def _explanation(payload: payloads.TaskMoved) -> tuple[str, str]:
    """The failure in a few words, and the first line of the error unless the words contain it."""
    attempt, explain = payload.attempt_set, payload.explain
    error = (attempt.get("error") or "").strip()
    if not explain or not error or attempt.get("outcome") == "timed_out":  # a timeout has its own lines
        return explain or payload.why or error, ""
    explain, message = one_line(explain), shorten(one_line(error.splitlines()[0]), ERROR_CELLS)
    return (message, "") if message.startswith(explain) else (explain, added_message(explain, message))


def _undone_line(event: Event, payload: payloads.TaskMoved) -> StateLine:
    return StateLine(event.task, str(event.new), f" again, undone{by(event)}")


# --- Other changes of tasks, and attempts ----------------------------------------------------------------------------


def _changed(event: Event, payload: payloads.TaskChanged) -> str:
    columns = payload.set
    if total := columns.get("progress_total"):
        return f"{columns.get('progress_done') or 0:,} of {total:,} done"
    if notice := columns.get("notice"):
        return str(notice)
    if "bad_rows" in columns:
        return f"{counted(columns['bad_rows'] or 0, 'row')} in quarantine"
    if "stale" in columns:
        return "stale: something above it runs again" if columns["stale"] else "no longer stale"
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


def _late(event: Event, payload: payloads.AttemptLate) -> str:
    return f"attempt {event.attempt} {_outcome(payload).verb} after its task had moved on: it changes nothing"


def _retry_line(event: Event, payload: payloads.AttemptRetry) -> str:
    elapsed, delay = payload.elapsed_seconds or 0.0, payload.delay_seconds or 0.0
    tries = f"try {payload.try_number} after {elapsed:.1f} s, waits {delay:.2f} s"
    more = f"; {payload.untold:,} more since the line before" if payload.untold else ""
    error = f"{payload.error_type}: {payload.message}"
    return f"{event.task} retries {payload.function} inside ({tries}): {error}{more}"


TASK_EVENTS: Sequence[WordsRow] = (
    *words_by(
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
                lambda event, payload: StateLine(
                    event.task, "UPSTREAM_FAILED", f" because of {payload.set.get('blocked_by')}"
                ),
            ),
            TaskState.SKIPPED: (_skipped, _skipped_line),
            TaskState.CANCELLED: (lambda event, payload: f"stopped{failure_text(payload)}", _ended_line),
            TaskState.PENDING: (_pending, _pending_line),
            UNDO: ("{event.new} again: undone", _undone_line),
        },
    ),
    *words(payloads.TaskChanged, _changed, _changed_line),
    *words(payloads.TaskMapped, _mapped, lambda event, payload: f"{event.task} {_mapped(event, payload)}"),
    *words(payloads.AttemptStarted, _started),
    *words(payloads.AttemptEffect, "begins its effect, at most once: key {payload.key}", Lines.SENTENCE),
    *words(payloads.AttemptExtended, _extended, Lines.SENTENCE),
    *words(payloads.AttemptDeadline, _deadline, "{event.task} timeout reached"),
    *words(payloads.AttemptStack, _stack, _stack_line),
    *words(payloads.AttemptSigterm, _sigterm, "{event.task} sending SIGTERM"),
    *words(payloads.AttemptSigkill, _sigkill, "{event.task} still alive, sending SIGKILL"),
    *words(payloads.AttemptSwept, _swept, Lines.SENTENCE),
    *words(payloads.AttemptLate, _late, Lines.SENTENCE),
    *words(payloads.AttemptLeaked, "ignores its cancel token: its slot is taken until its thread ends", Lines.SENTENCE),
    *words(payloads.AttemptSilent, _silent, Lines.SENTENCE),
    *words(payloads.AttemptReclaimed, "attempt {event.attempt} is lost: its processes are gone", Lines.SENTENCE),
    *words(payloads.AttemptRetry, "retried something inside the attempt", _retry_line),
)
