"""The words of the events of runs and executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...engine.core.flow_difference import FlowDifference, describe, join_names
from ...engine.core.views import BLOCKED
from ...engine.core.waiting import pool_waits
from ...engine.domain.event_payloads import ExecutorChange, ExecutorChanged, RunChange, RunChanged
from ...engine.domain.events import Event
from .event_words import Lines, StateLine, WordsRow, by, words_by


def _changed_by(event: Event, payload: RunChanged) -> StateLine:
    return StateLine(f"run {event.run_id}", payload.what.upper(), by(event))


def _ended_run(event: Event, payload: RunChanged) -> str:
    return f"run ended: {str(event.new).lower()}{f' ({payload.why})' if payload.why else ''}"


def _ended_run_line(event: Event, payload: RunChanged) -> StateLine:
    return StateLine(f"run {event.run_id}", str(event.new), f"{by(event)}{f': {payload.why}' if payload.why else ''}")


def _pool_waits(event: Event, payload: RunChanged) -> str:
    """Name the pools of the machine and the Dask workers that tasks wait for."""
    waits = pool_waits(payload.set.get("pool_waits"))
    sentences = [f"pool {pool} of this machine is held by {why}" for pool, why in waits.pools.items()]
    sentences += [
        f"tasks wait for a Dask worker{f' ({needs})' if needs else ''}: {why}" for needs, why in waits.workers.items()
    ]
    return "; ".join(sentences) or "no task waits for a pool of this machine or a Dask worker any more"


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
    return f"its end is {'' if payload.set.get('acknowledged_by') else 'no longer '}acknowledged"


def _code_refused(event: Event, payload: RunChanged) -> str:
    return f"{join_names(payload.files)} changed but cannot be used, the old code stays: {payload.why or '?'}"


def _describe_params(payload: RunChanged) -> str:
    parts = [f"{name} was {old}, is {new}" for name, (old, new) in payload.params_changed.items()]
    parts += [f"{name}={value} is new" for name, value in payload.params_added.items()]
    parts += [f"{name}={value} is gone from the flow" for name, value in payload.params_removed.items()]
    return ", ".join(parts)


def blocked_line(run_id: str | None, why: str | None) -> StateLine:
    """The line of a run that nothing can go on in."""
    return StateLine(f"run {run_id}", BLOCKED.word, f": {why or 'dead letters wait for a human'}")


def _blocked_line(event: Event, payload: RunChanged) -> StateLine:
    is_undone = event.actor is not None and payload.why is None
    return _changed_by(event, payload) if is_undone else blocked_line(event.run_id, payload.why)


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
    yield _zygote_died(event, payload)


RUN_EVENTS: Sequence[WordsRow] = (
    *words_by(
        RunChanged,
        {
            RunChange.CREATED: "run began: {payload.tasks} tasks",
            RunChange.ENDED: (_ended_run, _ended_run_line),
            RunChange.CUT_OFF: ("cut off: {payload.why}", "run {event.run_id} was CUT OFF: {payload.why}"),
            RunChange.BLOCKED: (
                lambda event, payload: f"blocked: {payload.why or 'what is left waits for a human'}",
                _blocked_line,
            ),
            RunChange.UNBLOCKED: ("no longer blocked", _changed_by),
            RunChange.PAUSED: ("paused: nothing new starts", _changed_by),
            RunChange.UNPAUSED: ("unpaused: tasks start again", _changed_by),
            RunChange.REOPENED: ("open again", _changed_by),
            RunChange.DEADLINE: (_reason, Lines.SENTENCE),
            RunChange.ABANDONED: (_reason, Lines.SENTENCE),
            RunChange.POSTPONED: (_reason, Lines.SENTENCE),
            RunChange.ACKNOWLEDGED: (_acknowledged, Lines.SENTENCE),
            RunChange.FLOW_CHANGED: (_flow_changed, Lines.SENTENCE),
            RunChange.FLOW_REFUSED: ("not resumed: {payload.why}", Lines.SENTENCE),
            RunChange.CODE_CHANGED: (_code_changed, Lines.SENTENCE),
            RunChange.CODE_LOADED: (_code_loaded, Lines.SENTENCE),
            RunChange.CODE_REFUSED: (_code_refused, Lines.SENTENCE),
            RunChange.POOL_WAITS: (_pool_waits, Lines.SENTENCE),
            RunChange.PARAMS: lambda event, payload: f"parameters: {_describe_params(payload)}",
            RunChange.CLOCK: "the start of its pause moved with the clock",
            RunChange.OPENED: "opened by an executor",
            RunChange.OPTIONS: "pools, downstreams, pages, deadline_action or dead_letter_ttl of the flow changed",
        },
    ),
    *words_by(
        ExecutorChanged,
        {
            ExecutorChange.STARTED: (_executor_started, _printed_at_start),
            ExecutorChange.STOPPED: "stopped",
            ExecutorChange.LOST: _executor_lost,
            ExecutorChange.ZYGOTE_DIED: (_zygote_died, _printed_at_death),
            ExecutorChange.THREADS_KILLED: (_threads_killed, Lines.SENTENCE),
            ExecutorChange.WORKER_RETIRED: (
                "worker {payload.pid} ends and is replaced: {payload.how}",
                Lines.SENTENCE,
            ),
            ExecutorChange.CLUSTER_CHANGED: (lambda event, payload: payload.how or "", Lines.SENTENCE),
            ExecutorChange.PING_FAILED: (lambda event, payload: payload.printed or "", Lines.SENTENCE),
        },
    ),
)
