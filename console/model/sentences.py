"""What happened, in one sentence each: the journal's words for every kind of event.

The task is named beside the sentence and not in it. Values come from tasks and people; whoever shows a sentence makes
it fit for a screen (``present/text.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...engine.core import overrides as overridden
from ...engine.core.events import Event, EventKind
from ...engine.core.states import SkipCause, TaskState
from ..present.durations import brief, wall


def sentence(event: Event) -> str:
    """One sentence, without the task, the actor and the reason."""
    tell = _TELLERS.get(event.kind)
    return (tell(event) if tell is not None else "") or _anything(event)


def subject(event: Event) -> str:
    """What it is about: a task, some tasks, or a part of the engine."""
    if event.task is not None:
        return event.task
    names = targets(event)
    if names:
        return names[0] if len(names) == 1 else f"{len(names):,} tasks"
    if event.kind == EventKind.BREAKER:
        return str(event.data.get("downstream") or event.kind)
    return "run" if event.kind == EventKind.OPERATOR else event.kind


def targets(event: Event) -> list[str]:
    """The tasks that an operator's act named."""
    results = (event.data.get("answer") or {}).get("results") or ()
    return [str(result[0]) for result in results] if event.kind == EventKind.OPERATOR else []


def _anything(event: Event) -> str:
    """For what has no words of its own."""
    what = event.data.get("what")
    return f"{event.kind}: {what}" if what else event.kind.replace(".", " ")


# --- Tasks -----------------------------------------------------------------------------------------------------------


def _task(event: Event) -> str:
    tell = _MOVES.get(str(event.new))
    return tell(event) if tell is not None else str(event.new).lower()


def _running(event: Event) -> str:
    return f"attempt {event.attempt} started" if event.attempt else "started"


def _success(event: Event) -> str:
    took = _attempt(event).get("duration_us")
    return f"succeeded after {brief(took)}" if took is not None else "succeeded"


def _retrying(event: Event) -> str:
    who = f"attempt {event.attempt} " if event.attempt else ""
    return f"{who}{_outcome(event)}{_again(event)}{_because(event)}{_although(event)}"


def _although(event: Event) -> str:
    words = event.data.get("changed")
    return f"; the {' and the '.join(map(str, words))} changed since it last failed so" if words else ""


def _outcome(event: Event) -> str:
    outcome = str(_attempt(event).get("outcome") or "error")
    words = {"error": "failed", "timed_out": "timed out", "lost": "was lost", "cancelled": "was stopped"}
    return words.get(outcome, outcome)


def _again(event: Event) -> str:
    """When the next attempt is due, and what was drawn of which ceiling."""
    columns = columns_of(event)
    due_at, drawn, ceiling = columns.get("next_retry_at"), columns.get("delay_us"), columns.get("ceiling_us")
    if drawn is None:
        return "" if due_at is None else f", again in {brief(due_at - event.at)}"
    return f", again in {brief(drawn)}" + (f" of {brief(ceiling)}" if ceiling is not None else "") + cut(event)


def cut(event: Event) -> str:
    """What the deadline of the run took from a wait: ``, shortened from 4m: the run is due 02:00:00``."""
    before, due_at = columns_of(event).get("shortened_us"), event.data.get("due_at")
    if before is None or due_at is None:
        return ""
    return f", shortened from {brief(before)}: the run is due {wall(due_at, None)}"


def _because(event: Event) -> str:
    attempt = _attempt(event)
    failure = event.data.get("explain") or attempt.get("explain") or attempt.get("error") or event.data.get("why")
    return f": {failure}" if failure else ""


def _failed(event: Event) -> str:
    return f"failed for good{_because(event)}"


def _dead(event: Event) -> str:
    kind = columns_of(event).get("dead_letter_kind")
    return f"needs a human{_because(event)}" + (f" ({kind})" if kind else "")


def _sensing(event: Event) -> str:
    due_at = columns_of(event).get("next_retry_at")
    return "not there yet" + (f"; next look in {brief(due_at - event.at)}" if due_at is not None else "")


def _upstream(event: Event) -> str:
    return f"cannot run: {columns_of(event).get('blocked_by') or 'a task above it'} failed"


def _skipped(event: Event) -> str:
    columns = columns_of(event)
    if columns.get("skip_cause") == SkipCause.OPERATOR:
        return "failure permitted: skipped"
    return f"skipped: {said}" if (said := columns.get("error")) else "skipped"


def _pending(event: Event) -> str:
    act = event.data.get("act")
    if act == "requeue":
        overrides = overridden.read(columns_of(event).get("overrides"))
        return f"runs again: {overridden.in_words(overrides)}" if overridden.in_words(overrides) else "runs again"
    return f"waits again: {act}" if act else "waits for its parents"


_MOVES: dict[str, Callable[[Event], str]] = {
    TaskState.READY: lambda event: "ready to run",
    TaskState.RUNNING: _running,
    TaskState.SUCCESS: _success,
    TaskState.RETRYING: _retrying,
    TaskState.FAILED: _failed,
    TaskState.DEAD_LETTER: _dead,
    TaskState.SENSING: _sensing,
    TaskState.UPSTREAM_FAILED: _upstream,
    TaskState.SKIPPED: _skipped,
    TaskState.CANCELLED: lambda event: f"stopped{_because(event)}",
    TaskState.PENDING: _pending,
}


def _changed(event: Event) -> str:
    columns = columns_of(event)
    if columns.get("progress_total"):
        return f"{columns.get('progress_done', 0):,} of {columns['progress_total']:,} done"
    if columns.get("stale"):
        return "stale: something above it runs again"
    if "canary" in columns:
        first = columns["canary"]
        return f"follows when {first} has succeeded" if first else "waits for no other task to succeed first"
    if columns.get("cancel_requested_at"):
        return "its end is asked for"
    if columns.get("next_retry_at"):
        return f"next attempt at {wall(columns['next_retry_at'], None)}"
    return f"changed: {', '.join(columns)}" if columns else ""


# --- Attempts --------------------------------------------------------------------------------------------------------


def _started(event: Event) -> str:
    pid = event.data.get("pid") or _attempt(event).get("pid")
    host = _attempt(event).get("host")  # told where it is another one than the executor's
    where = f" on {host}" if host else ""
    return f"process {pid}{where} runs attempt {event.attempt}" if pid else f"attempt {event.attempt} has a process"


def _deadline(event: Event) -> str:
    allowed = event.data.get("timeout")
    return f"timeout of {brief(round(allowed * 1e6))} passed" if allowed else "timeout passed"


def _extended(event: Event) -> str:
    more, allowed = event.data.get("seconds"), _attempt(event).get("timeout_us")
    in_all = f": {brief(allowed)} in all" if allowed is not None else ""
    return f"given {brief(round(more * 1e6))} more{in_all}" if more is not None else "given more time"


def _stack(event: Event) -> str:
    hang, where = event.data.get("hang"), event.data.get("where")
    return str(hang) if hang else f"it was in {where}" if where else ""


def _sigterm(event: Event) -> str:
    grace = event.data.get("grace_seconds")
    return "SIGTERM sent" + (f"; {grace:g} s to end" if grace is not None else "")


def _sigkill(event: Event) -> str:
    count = len(event.data.get("pids") or ())
    return "SIGKILL sent" + (f" to {count} processes" if count > 1 else "")


def _swept(event: Event) -> str:
    count = len(event.data.get("pids") or ())
    return f"{count} process{'' if count == 1 else 'es'} left behind, killed"


def _silent(event: Event) -> str:
    return f"no heartbeat for {event.data.get('silent_seconds', '?')} s; its process: {event.data.get('process', '?')}"


# --- Beside the tasks ------------------------------------------------------------------------------------------------


def _run(event: Event) -> str:
    what = str(event.data.get("what") or "")
    if what == "created":
        return f"run began: {event.data.get('tasks', '?')} tasks"
    if what == "ended":
        return f"run ended: {str(event.new).lower()}"
    if what == "flow-changed":
        added, changed = event.data.get("added") or (), event.data.get("changed") or ()
        return f"the flow changed: {len(added)} tasks added, {len(changed)} changed"
    if what == "params":
        return f"parameters: {_params_said(event)}"
    return {
        "blocked": "blocked: what is left waits for a human",
        "unblocked": "no longer blocked",
        "paused": "paused: nothing new starts",
        "unpaused": "goes on after a pause",
        "reopened": "open again",
        "opened": "taken up by an executor",
        "options": "pools, downstreams, pages or the dead_letter_ttl of the flow changed",
    }.get(what, "")


def _params_said(event: Event) -> str:
    data = event.data
    said = [f"{name} was {old}, is {new}" for name, (old, new) in (data.get("changed") or {}).items()]
    said += [f"{name}={value} is new" for name, value in (data.get("added") or {}).items()]
    said += [f"{name}={value} is gone from the flow" for name, value in (data.get("removed") or {}).items()]
    return ", ".join(said)


def _executor(event: Event) -> str:
    tell = _OF_EXECUTOR.get(str(event.data.get("what")))
    return "" if tell is None else tell(event)


def _executor_started(event: Event) -> str:
    host, warnings = event.data.get("host"), event.data.get("warnings") or ()
    where = f" on {host}, process {event.data.get('pid')}" if host else ""
    doubts = "".join(f"; warning: {warning}" for warning in warnings)
    return f"started{where}{doubts}{_printed('the import', event)}"


def _zygote_died(event: Event) -> str:
    pid, how = event.data.get("pid"), event.data.get("how")
    return f"process {pid}, which forks the attempts, died ({how}): what it ran counts as lost{_printed('it', event)}"


def _threads_killed(event: Event) -> str:
    leaked, lost = event.data.get("leaked") or (), event.data.get("lost") or ()
    said = f"process {event.data.get('pid')} killed: {', '.join(leaked)} ignored the cancel token"
    return said + (f"; {', '.join(lost)} ran in it too and will run again" if lost else "")


def _printed(who: str, event: Event) -> str:
    """The last line of what a process wrote: of a traceback, the error."""
    lines = str(event.data.get("printed") or "").strip().splitlines()
    return f"; {who} printed: {lines[-1]}" if lines else ""


_OF_EXECUTOR: dict[str, Callable[[Event], str]] = {
    "started": _executor_started,
    "stopped": lambda event: "stopped",
    "lost": lambda event: "is gone: what it ran counts as lost",
    "zygote-died": _zygote_died,
    "threads-killed": _threads_killed,
}


def _breaker(event: Event) -> str:
    data = event.data
    said = f"breaker {str(data.get('state') or '?').replace('_', ' ').lower()}"
    reopens_at = data.get("reopens_at")
    return (
        said
        + (f": {data['why']}" if data.get("why") else "")
        + (f"; tried again at {wall(reopens_at, None)}" if reopens_at else "")
    )


def _page(event: Event) -> str:
    data = event.data
    title = f": {data['title']}" if data.get("title") else ""
    return {
        "opened": f"page opened{title}",
        "folded": f"one more for the open page, {data.get('count')} in all",
        "woken": "page no longer snoozed",
        "sent": "page sent in a digest" if data.get("how") == "digest" else "page sent",
        "send-failed": f"page not sent by {data.get('sender')}: {data.get('error')}",
        "bell": "terminals were rung",
        "acked": "page acknowledged",
        "snoozed": "page snoozed",
        "resolved": "page resolved",
    }.get(str(data.get("what")), "")


def _quarantine(event: Event) -> str:
    count = event.data.get("count")
    rows = f"{count} row{'' if count == 1 else 's'}" if count is not None else "rows"
    what = str(event.data.get("what") or "")
    said = {"held": "held in quarantine", "provisional": "set aside so far"}.get(what, what.replace("-", " "))
    return f"{rows} {said}"


def _canary(event: Event) -> str:
    count = len(event.data.get("tasks") or ())
    others = f"{count:,} other{'' if count == 1 else 's'}"
    return {
        "released": f"it works: {others} of its cause may run",
        "not-fixed": f"the fix did not fix it: {others} held",
        "failed": f"it went first and failed otherwise: {others} held",
    }.get(str(event.data.get("what")), "")


def _note(event: Event) -> str:
    return f"on {event.data.get('fingerprint')}: {event.data.get('text')}"


def _storage(event: Event) -> str:
    return f"storage {event.data.get('what')}: {event.data.get('sentence', '')}"


def _clock(event: Event) -> str:
    return f"the clock moved by {event.data.get('moved_us', 0) / 1e6:+.1f} s"


def of_schedule(event: Event) -> str:
    """What has become of a schedule. Logical times by the clocks of its zone."""
    data = event.data
    flow, what = data.get("flow"), str(data.get("what") or "")
    if what in ("begun", "changed"):
        return f"schedule of {flow} {'begins' if what == 'begun' else 'is now'}: {_expression(data)}"
    if what == "missed":
        more = "" if data.get("is_all") else " or more"
        count, first, last = data.get("count"), _minute(data.get("first")), _minute(data.get("last"))
        when = f"the one of {last}" if count == 1 else f"{count}{more}, from {first} to {last}"
        return f"runs of {flow} given up (misfire {data.get('misfire')}): {when}"
    if what == "late-start":
        count = data.get("count", 1)
        others = f", nor {count - 1} before it" if count > 1 else ""
        return f"{flow} of {_minute(data.get('last'))} has not started as promised{others}"
    if what == "late-end":
        return f"not ended by {wall(int(data.get('due_at') or 0), None)}, when it was due"
    return ""


def _expression(data: Mapping[str, Any]) -> str:
    return f"{data.get('expression')} {data.get('timezone')}"


def _minute(text: Any) -> str:
    """``2026-11-21 02:00`` of an instant in ISO 8601."""
    return str(text)[:16].replace("T", " ")


def _operator(event: Event) -> str:
    data, what = event.data, event.data.get("what")
    if what in ("attach", "detach"):
        return "opened a console" if what == "attach" else "left the console"
    if what == "breaker":
        return f"breaker {data.get('downstream')}: {data.get('how')}"
    message = (data.get("answer") or {}).get("message")
    return f"{data.get('act')}: {message}" if message else str(data.get("act") or "")


_TELLERS: dict[str, Callable[[Event], str]] = {
    EventKind.TASK: _task,
    EventKind.TASK_CHANGED: _changed,
    EventKind.RUN: _run,
    EventKind.ATTEMPT_STARTED: _started,
    EventKind.ATTEMPT_EFFECT: lambda event: f"begins its effect, at most once: key {event.data.get('key')}",
    EventKind.ATTEMPT_EXTENDED: _extended,
    EventKind.ATTEMPT_DEADLINE: _deadline,
    EventKind.ATTEMPT_STACK: _stack,
    EventKind.ATTEMPT_SIGTERM: _sigterm,
    EventKind.ATTEMPT_SIGKILL: _sigkill,
    EventKind.ATTEMPT_SWEPT: _swept,
    EventKind.ATTEMPT_LATE: lambda event: f"attempt {event.attempt} ended late: it changes nothing",
    EventKind.ATTEMPT_LEAKED: lambda event: "ignores its cancel token: its slot is taken until its thread ends",
    EventKind.ATTEMPT_SILENT: _silent,
    EventKind.ATTEMPT_RECLAIMED: lambda event: f"attempt {event.attempt} is lost: nothing of it runs any more",
    EventKind.ATTEMPT_RETRY: lambda event: "retried something inside the attempt",
    EventKind.EXECUTOR: _executor,
    EventKind.BREAKER: _breaker,
    EventKind.PAGE: _page,
    EventKind.QUARANTINE: _quarantine,
    EventKind.CANARY: _canary,
    EventKind.NOTE: _note,
    EventKind.STORAGE: _storage,
    EventKind.CLOCK: _clock,
    EventKind.SCHEDULE: of_schedule,
    EventKind.OPERATOR: _operator,
}


def columns_of(event: Event) -> Mapping[str, Any]:
    """The columns of the task, or of the run, that it has set."""
    columns: Mapping[str, Any] = event.data.get("set") or {}
    return columns


def _attempt(event: Event) -> Mapping[str, Any]:
    attempt: Mapping[str, Any] = event.data.get("attempt") or {}
    return attempt
