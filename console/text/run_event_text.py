"""Describes the events of runs and executors in one sentence each, for the journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from ...engine.core.flow_difference import FlowDifference, describe, join_names
from ...engine.domain.event_changes import ExecutorChange, RunChange
from ...engine.domain.event_payloads import ExecutorChanged, RunChanged
from ...engine.domain.events import Event
from .payload_table import PayloadTable, payload_row


def _run(event: Event, payload: RunChanged) -> str:
    what = payload.what
    if what == RunChange.CREATED:
        return f"run began: {'?' if payload.tasks is None else payload.tasks} tasks"
    if what == RunChange.ENDED:
        return f"run ended: {str(event.new).lower()}{f' ({payload.why})' if payload.why else ''}"
    if what == RunChange.CUT_OFF:
        return f"cut off: {payload.why}"
    if what in (RunChange.DEADLINE, RunChange.POSTPONED):
        return payload.why or ""
    if what == RunChange.FLOW_CHANGED:
        return f"the flow changed: {'; '.join(describe(_flow_difference(payload)))}"
    if what in _CODE_SENTENCES:
        return _CODE_SENTENCES[what](payload)
    if what == RunChange.POOL_WAITS:
        return _pool_waits(payload)
    if what == RunChange.PARAMS:
        return f"parameters: {_describe_params(payload)}"
    return _RUN_SENTENCES.get(what, "")


def _pool_waits(payload: RunChanged) -> str:
    """Name the pools of the machine that tasks wait for."""
    try:
        waits = json.loads(payload.set.get("pool_waits") or "{}")
        sentence = "; ".join(f"pool {pool} of this machine is held by {holders}" for pool, holders in waits.items())
    except (ValueError, AttributeError):
        return ""
    return sentence or "has slots in the pools of this machine again"


_RUN_SENTENCES = {
    RunChange.BLOCKED: "blocked: what is left waits for a human",
    RunChange.UNBLOCKED: "no longer blocked",
    RunChange.PAUSED: "paused: nothing new starts",
    RunChange.UNPAUSED: "unpaused: tasks start again",
    RunChange.CLOCK: "the start of its pause moved with the clock",
    RunChange.REOPENED: "open again",
    RunChange.OPENED: "opened by an executor",
    RunChange.OPTIONS: "pools, downstreams, pages, deadline_action or dead_letter_ttl of the flow changed",
}


def _flow_difference(payload: RunChanged) -> FlowDifference:
    return FlowDifference(
        added=tuple(payload.added),
        changed=tuple(payload.changed),
        outdated=tuple(payload.outdated),
        removed=tuple(payload.removed),
        unfinished=tuple(payload.skipped),
    )


def _code_changed(payload: RunChanged) -> str:
    if not payload.files:
        return "the code on the disk is again the code that the executor loaded"
    return f"{join_names(payload.files)} changed since the executor loaded it: a requeue or redrive reload loads it"


def _code_loaded(payload: RunChanged) -> str:
    return "; ".join([f"loaded {join_names(payload.files) or 'the flow'} again", *describe(_flow_difference(payload))])


def _flow_refused(payload: RunChanged) -> str:
    return f"not resumed: {payload.why or '?'}"


def _code_refused(payload: RunChanged) -> str:
    return f"{join_names(payload.files)} changed but cannot be used, the old code stays: {payload.why or '?'}"


_CODE_SENTENCES: Mapping[str, Callable[[RunChanged], str]] = {
    RunChange.CODE_CHANGED: _code_changed,
    RunChange.CODE_LOADED: _code_loaded,
    RunChange.CODE_REFUSED: _code_refused,
    RunChange.FLOW_REFUSED: _flow_refused,
}


def _describe_params(payload: RunChanged) -> str:
    parts = [f"{name} was {old}, is {new}" for name, (old, new) in payload.params_changed.items()]
    parts += [f"{name}={value} is new" for name, value in payload.params_added.items()]
    parts += [f"{name}={value} is gone from the flow" for name, value in payload.params_removed.items()]
    return ", ".join(parts)


def _executor(event: Event, payload: ExecutorChanged) -> str:
    describe = _EXECUTOR_SENTENCES.get(payload.what)
    return "" if describe is None else describe(payload)


def _executor_started(payload: ExecutorChanged) -> str:
    where = f" on {payload.host}, process {payload.pid}" if payload.host else ""
    doubts = "".join(f"; warning: {warning}" for warning in payload.warnings)
    return f"started{where}{doubts}{_last_output_line('the import', payload)}"


def _zygote_died(payload: ExecutorChanged) -> str:
    died = f"process {payload.pid}, which forks the attempts, died ({payload.how})"
    return f"{died}: what it ran counts as lost{_last_output_line('it', payload)}"


def _threads_killed(payload: ExecutorChanged) -> str:
    sentence = f"process {payload.pid} killed: {', '.join(payload.leaked)} ignored the cancel token"
    return sentence + (f"; {', '.join(payload.lost)} ran in it too and will run again" if payload.lost else "")


def _last_output_line(who: str, payload: ExecutorChanged) -> str:
    """The last line of the output of a process; of a traceback, the error."""
    lines = (payload.printed or "").strip().splitlines()
    return f"; {who} printed: {lines[-1]}" if lines else ""


_EXECUTOR_SENTENCES: dict[str, Callable[[ExecutorChanged], str]] = {
    ExecutorChange.STARTED: _executor_started,
    ExecutorChange.STOPPED: lambda payload: "stopped",
    ExecutorChange.LOST: lambda payload: "is gone: what it ran counts as lost",
    ExecutorChange.ZYGOTE_DIED: _zygote_died,
    ExecutorChange.THREADS_KILLED: _threads_killed,
    ExecutorChange.WORKER_RETIRED: lambda payload: f"worker {payload.pid} ends and is replaced: {payload.how}",
    ExecutorChange.PING_FAILED: lambda payload: payload.printed or "",
}


RUN_SENTENCES: PayloadTable[str] = dict([payload_row(RunChanged, _run), payload_row(ExecutorChanged, _executor)])
