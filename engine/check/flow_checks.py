"""What can be known about a flow before it runs: each rule looks at the spec and finds things (SPEC 003.37, 4.14).

Cycles, unknown parents, double names and what could never start never come this far: ``Flow.spec`` refuses them. What
only the functions themselves can tell is in ``functions.py``, what their source tells in ``source.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise

from ..core.advice import advise_timeout
from ..core.dag import Dag
from ..core.policy import (
    RetryPolicy,
    mean_wait_seconds,
    policy_warnings,
    worst_case_elapsed_seconds,
    worst_case_wait_seconds,
)
from ..core.schedule import Schedule
from ..core.spec import FlowSpec, TaskSpec
from ..flow.finding import Finding
from ..flow.flow import Flow
from ..flow.time_zones import open_schedule
from ..store.history import DurationStats
from .functions import check_functions
from .source import check_source

MAX_ACTIVE_OF_A_LOCK = 1
TASKS_NAMED = 5
TIMES_COMPARED = 100  # of a schedule, for the shortest time between two of them
CALL_SECONDS_MAX = 60.0  # what takes longer is a batch: its first wait need not be longer than it


@dataclass(frozen=True, slots=True)
class FlowContext:
    """A flow and what is known of it beside."""

    flow: FlowSpec
    observed: Mapping[str, DurationStats] = field(default_factory=dict)
    dag: Dag = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dag", Dag((task.name, task.parents) for task in self.flow.tasks))


def check_flow(flow: Flow, observed: Mapping[str, DurationStats] | None = None) -> list[Finding]:
    """All that spec, functions and source tell. ``observed``: what earlier runs say. Raises FlowError."""
    spec = flow.spec()
    return [*check_spec(spec, observed), *check_functions(spec, flow.functions), *check_source(spec)]


def check_spec(flow: FlowSpec, observed: Mapping[str, DurationStats] | None = None) -> list[Finding]:
    """All findings, those of the flow first, then task by task in the order of the flow. Raises FlowError."""
    case = FlowContext(flow, observed or {})
    findings = [finding for rule in FLOW_RULES for finding in rule(case)]
    findings += [finding for task in flow.tasks for rule in TASK_RULES for finding in rule(task, case)]
    return findings


# --- The flow as a whole --------------------------------------------------------------------------------------------


def _orphans(case: FlowContext) -> Iterator[Finding]:
    for name in case.dag.orphans:
        yield Finding("note", "orphan", "stands alone: nothing comes before it or after it", name)


def _unconnected(case: FlowContext) -> Iterator[Finding]:
    """Parts that hang together in themselves and with nothing else: perhaps an edge was forgotten."""
    parts = [part for part in case.dag.components if len(part) > 1]
    main = max(parts, key=len, default=())
    for part in parts:
        if part is not main:
            message = f"{_listed(part)} hang together, and with none of the other tasks"
            yield Finding("note", "unconnected", message, part[0])


def _downstreams(case: FlowContext) -> Iterator[Finding]:
    used = {task.downstream for task in case.flow.tasks if task.downstream is not None}
    declared = {spec.name for spec in case.flow.downstreams}
    for name in sorted(used - declared):
        yield Finding("note", "downstream", f"downstream {name!r} is not declared: it gets the usual breaker")
    for name in sorted(declared - used):
        yield Finding("warning", "downstream", f"downstream {name!r} is declared and no task names it")


def _pages(case: FlowContext) -> Iterator[Finding]:
    if not case.flow.pages:
        yield Finding("note", "pages", "nobody is paged: flow.page(...) names no sender")


def _schedule(case: FlowContext) -> Iterator[Finding]:
    """One state file has one run at a time: what does not fit between two logical times comes late."""
    spec = case.flow.schedule
    if spec is None:
        return
    gap = _shortest_gap_seconds(open_schedule(spec, case.flow.name))
    if spec.splay_seconds >= gap:
        message = f"its splay of {spec.splay_seconds:g} s is no shorter than the {gap:g} s between two runs"
        yield Finding("warning", "splay", message)
    deadline = case.flow.deadline_seconds
    if deadline is not None and deadline > gap:
        message = (
            f"a run may take until its deadline of {deadline:g} s, and the next one is due after {gap:g} s: it waits"
        )
        yield Finding("warning", "overlap", message)
    if spec.start_within_seconds is None:
        yield Finding("note", "start", "nobody is told when a scheduled run does not start: give start_within")


def _shortest_gap_seconds(schedule: Schedule) -> float:
    times = list(islice(schedule.recurrence.after(0), TIMES_COMPARED))
    return min((later - earlier for earlier, later in pairwise(times)), default=0) / 1e6


def worst_case_seconds(task: TaskSpec, observed: DurationStats | None = None) -> float | None:
    """From the first start to giving up, with the exact sum of the waits (SPEC 4.14); None where nothing bounds it.

    A task without a timeout is taken to need its p99, where that is known.
    """
    if task.kind == "sensor":
        patience = task.retry.max_elapsed
        return None if patience is None else patience + (task.timeout or 0.0)
    timeout = task.timeout if task.timeout is not None or observed is None else observed.p99
    worst = worst_case_elapsed_seconds(task.retry, timeout, task.grace_seconds if task.timeout is not None else 0.0)
    return worst if math.isfinite(worst) else None


def worst_case_sum(task: TaskSpec, observed: DurationStats | None = None) -> str:
    """The worst case as arithmetic: ``3 x (30 + 5) + 6 = 111 s``."""
    worst = worst_case_seconds(task, observed)
    if worst is None:
        return "without a bound"
    if task.kind == "sensor" or task.timeout is None:
        return f"{worst:g} s"
    grace = f" + {task.grace_seconds:g}" if task.grace_seconds else ""
    whole = f"{task.retry.max_attempts} x ({task.timeout:g}{grace}) + {worst_case_wait_seconds(task.retry):g}"
    cut = " at most" if task.retry.max_elapsed is not None else ""
    return f"{whole} = {worst:g} s{cut}"


def _deadline(case: FlowContext) -> Iterator[Finding]:
    deadline = case.flow.deadline_seconds
    if deadline is None:
        return
    tasks = {task.name: task for task in case.flow.tasks}
    weights = {name: worst_case_seconds(task, case.observed.get(name)) for name, task in tasks.items()}
    path = case.dag.critical_path({name: weight or 0.0 for name, weight in weights.items()})
    total = sum(weights[name] or 0.0 for name in path)
    waits = sum(worst_case_wait_seconds(tasks[name].retry) for name in path)
    means = sum(mean_wait_seconds(tasks[name].retry) for name in path)
    unbounded = [name for name in path if weights[name] is None]
    text = f"at the worst {total:g} s along {_path(path)}, of it {waits:g} s waiting to retry ({means:g} s on average)"
    if unbounded:
        text += f"; not counted, because nothing bounds them: {_listed(unbounded)}"
    if total > deadline:
        message = f"{text}: {total - deadline:g} s over the deadline of {deadline:g} s"
        yield Finding("warning", "deadline", message)
    else:
        yield Finding("note", "deadline", f"{text}: {deadline - total:g} s before the deadline of {deadline:g} s")


# --- Task by task ---------------------------------------------------------------------------------------------------


def _no_timeout(task: TaskSpec, case: FlowContext) -> Iterator[Finding]:
    if task.timeout is None:
        yield Finding("warning", "no-timeout", "no timeout: a hang holds its slot until somebody notices", task.name)


def _tight_timeout(task: TaskSpec, case: FlowContext) -> Iterator[Finding]:
    seen = case.observed.get(task.name)
    if seen is None or task.timeout is None:
        return
    advice = advise_timeout(seen.past, task.timeout)
    suggested = f"; {advice.reason}" if advice is not None and advice.timeout is not None else ""
    killed = sum(not one.succeeded for one in seen.past)
    took = f"p50 {seen.p50:.3g} s, p99 {seen.p99:.3g} s in {_times(seen.count)}"
    if task.timeout < seen.p99:
        message = f"its timeout of {task.timeout:g} s is under what it takes: {took}"
        yield Finding("warning", "tight-timeout", f"{message}; budget for the season too{suggested}", task.name)
    elif killed and suggested:
        message = f"its timeout of {task.timeout:g} s has killed it {_often(killed)}, and it takes {took}"
        yield Finding("warning", "tight-timeout", f"{message}{suggested}", task.name)


def _often(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _policy(task: TaskSpec, case: FlowContext) -> Iterator[Finding]:
    seen = case.observed.get(task.name)
    is_call = seen is not None and seen.p50 <= CALL_SECONDS_MAX
    for concern in policy_warnings(task.retry, seen.p50 if seen is not None and is_call else None):
        yield Finding("warning", "policy", concern, task.name)


def _sensor(task: TaskSpec, case: FlowContext) -> Iterator[Finding]:
    if task.kind != "sensor":
        return
    if task.max_active == MAX_ACTIVE_OF_A_LOCK:
        message = "a sensor with max_active=1 is a lock across all runs; leave it out"
        yield Finding("warning", "sensor-lock", message, task.name)
    if task.retry.max_elapsed is None:
        message = "looks for ever: bound the wait by retry=RetryPolicy(max_elapsed=...)"
        yield Finding("warning", "sensor-patience", message, task.name)
    if task.timeout is not None and task.timeout > task.recheck_seconds + 60:
        message = f"one look may take {task.timeout:g} s and comes every {task.recheck_seconds:g} s"
        yield Finding("note", "sensor-timeout", f"{message}: {task.recheck_seconds + 60:g} s is usual", task.name)


def _long_lock(task: TaskSpec, case: FlowContext) -> Iterator[Finding]:
    if task.kind != "sensor" and task.max_active == MAX_ACTIVE_OF_A_LOCK and task.timeout is None:
        message = "max_active=1 without a timeout: one that hangs blocks every later run"
        yield Finding("warning", "lock", message, task.name)


def _unsafe_retry(task: TaskSpec, case: FlowContext) -> Iterator[Finding]:
    if not task.idempotent and task.retry.max_attempts > 1 and task.retry != RetryPolicy():
        yield Finding("warning", "not-idempotent", "is not idempotent: its retries will not be used", task.name)


def _thread_timeout(task: TaskSpec, case: FlowContext) -> Iterator[Finding]:
    if task.isolation == "thread" and task.timeout is not None:
        message = (
            "in a thread a timeout can only ask: a hang that does not look at ctx.cancelled keeps its slot until the "
            "process that it shares with others can be killed"
        )
        yield Finding("warning", "thread-timeout", message, task.name)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    shown = ", ".join(names[:TASKS_NAMED])
    return shown if len(names) <= TASKS_NAMED else f"{shown} and {len(names) - TASKS_NAMED} more"


def _path(names: tuple[str, ...]) -> str:
    if len(names) > 2 * TASKS_NAMED:
        middle = f"... {len(names) - 2 * TASKS_NAMED} more ..."
        names = (*names[:TASKS_NAMED], middle, *names[-TASKS_NAMED:])
    return " -> ".join(names)


def _times(count: int) -> str:
    return f"{count} attempt{'' if count == 1 else 's'}"


TASK_RULES: tuple[Callable[[TaskSpec, FlowContext], Iterator[Finding]], ...] = (
    _no_timeout,
    _tight_timeout,
    _policy,
    _sensor,
    _long_lock,
    _unsafe_retry,
    _thread_timeout,
)
FLOW_RULES: tuple[Callable[[FlowContext], Iterator[Finding]], ...] = (
    _deadline,
    _schedule,
    _unconnected,
    _orphans,
    _downstreams,
    _pages,
)


# --- Document 001's checklist ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    """One line of the checklist. ``holds`` None: nobody but its author can say."""

    passes: bool | None
    text: str


def checklist(task: TaskSpec) -> tuple[ChecklistItem, ...]:
    """Document 001's quick checklist for one task (001.21)."""
    policy = task.retry
    bound = "" if policy.max_elapsed is None else f", within {policy.max_elapsed:g} s"
    broad = any(name.rpartition(".")[2] in ("Exception", "BaseException") for name in policy.retry_on)
    named = f"only {', '.join(policy.retry_on)}" if policy.retry_on else "as they are classified"
    again = "declared idempotent" if task.idempotent else "not idempotent: never run twice without an operator"
    return (
        ChecklistItem(True, f"bounded: {policy.max_attempts} starts{bound}"),
        ChecklistItem(
            task.timeout is not None,
            "each start has a timeout" if task.timeout is not None else "a start has no timeout",
        ),
        ChecklistItem(not broad, f"errors that are retried: {named}"),
        ChecklistItem(
            policy.jitter != "none",
            f"waits grow from {policy.base:g} s to {policy.cap:g} s with {policy.jitter} jitter",
        ),
        ChecklistItem(True, again),
        ChecklistItem(None, "tests for success after a retry, for the filter, for the deadline"),
    )
