"""Check a flow before it runs: each rule reads the spec and yields findings (SPEC 003.37, 4.14).

``Flow.spec`` has refused cycles, unknown parents, duplicate names and flows that cannot start. ``tasks.py`` checks
the functions of the tasks and their source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise

import msgspec
from msgspec.structs import replace

from ..core.advice import DurationQuantiles, PastByTask, advise_memory, advise_timeout, duration_stats
from ..core.dag import Dag
from ..core.flow_difference import NAMES_SHOWN, join_names
from ..core.policy import (
    RetryPolicy,
    mean_wait_seconds,
    policy_warnings,
    worst_case_elapsed_seconds,
    worst_case_wait_seconds,
)
from ..core.schedule import Schedule
from ..core.spec import FlowSpec, TaskSpec, is_clean_up, work_of
from ..domain.states import APPROVAL, END
from ..domain.text import counted, format_seconds
from ..domain.trigger_rules import ALL_DONE
from ..flow.source import Finding, environment_of, open_schedule
from .isolated import ProcessCost

PROCESS_SECONDS_MIN = 0.002  # of a fork that is dear; one of a flow with few imports takes 0.6 ms
TIMES_COMPARED = 100  # logical times of a schedule, for the shortest interval
CALL_SECONDS_MAX = 60.0  # a longer task is a batch: its first wait may be shorter than the task


@dataclass(frozen=True)
class FlowContext:
    """A flow, its graph, and the durations of earlier runs."""

    flow: FlowSpec
    observed: PastByTask
    cost: ProcessCost | None

    @cached_property
    def dag(self) -> Dag:
        return Dag((task.name, task.parents) for task in self.flow.tasks)

    def took(self, name: str) -> DurationQuantiles | None:
        """Return the durations of a task in earlier runs."""
        return duration_stats(self.observed.get(name, ()))


def check_spec(flow: FlowSpec, observed: PastByTask | None = None, cost: ProcessCost | None = None) -> list[Finding]:
    """Check a spec: findings of the flow first, then task by task in the order of the flow. Raises FlowError.

    ``cost``: of a process with what the flow imports.
    """
    flow = replace(flow, tasks=tuple(map(work_of, flow.tasks)))
    context = FlowContext(flow, observed or {}, cost)
    findings = [finding for rule in FLOW_RULES for finding in rule(context)]
    findings += [finding for task in flow.tasks for rule in TASK_RULES for finding in rule(task, context)]
    return findings


# --- The flow as a whole --------------------------------------------------------------------------------------------


def _orphans(context: FlowContext) -> Iterator[Finding]:
    for name in context.dag.orphans:
        yield Finding("note", "orphan", "no task comes before it or after it", name)


def _unconnected(context: FlowContext) -> Iterator[Finding]:
    """Components besides the largest one: an edge may be missing."""
    parts = [part for part in context.dag.components if len(part) > 1]
    main = max(parts, key=len, default=())
    for part in parts:
        if part is not main:
            message = f"{join_names(part)} are connected to each other, and to no other task"
            yield Finding("note", "unconnected", message, part[0])


def _downstreams(context: FlowContext) -> Iterator[Finding]:
    used = {task.downstream for task in context.flow.tasks if task.downstream is not None}
    declared = {spec.name for spec in context.flow.downstreams}
    for name in sorted(used - declared):
        yield Finding("note", "downstream", f"downstream {name!r} is not declared: it gets the usual breaker")
    for name in sorted(declared - used):
        yield Finding("warning", "downstream", f"downstream {name!r} is declared and no task names it")


def _held_by_dead_letters(context: FlowContext) -> Iterator[Finding]:
    """A cleanup that waits for a human: in other schedulers such a task runs after any failure."""
    if context.flow.dead_letter_ttl is not None:
        return
    until = " until the deadline" if _ends_by_deadline(context.flow) else ""
    for task in context.flow.tasks:
        if task.rule == ALL_DONE and task.parents:
            message = (
                f"waits{until}, in spite of its rule all_done, while a task above is a dead letter:"
                " dead_letter_ttl ends that"
            )
            yield Finding("note", "held-by-dead-letters", message, task.name)


def _clean_ups(context: FlowContext) -> Iterator[Finding]:
    """Tasks that do not run after the deadline, although a parent does."""
    if not _ends_by_deadline(context.flow):
        return
    clean_ups = {task.name for task in context.flow.tasks if is_clean_up(task)}
    for task in context.flow.tasks:
        if task.name not in clean_ups and task.parents and clean_ups.issuperset(task.parents):
            message = f"does not run after the deadline, although {task.parents[0]} does: its rule is not all_done"
            yield Finding("note", "clean-up", message, task.name)


def _ends_by_deadline(flow: FlowSpec) -> bool:
    return flow.deadline_seconds is not None and flow.deadline_action == END


def _pages(context: FlowContext) -> Iterator[Finding]:
    if not context.flow.pages:
        yield Finding("note", "pages", "no pages: flow.page(...) names no sender")


def _secrets(context: FlowContext) -> Iterator[Finding]:
    for name in context.flow.secrets:
        if name not in context.flow.params and not environment_of(context.flow).get(name):
            yield Finding("warning", "secret", f"the variable {name}, a secret of the flow, is not set here")


def _process_cost(context: FlowContext) -> Iterator[Finding]:
    """Tasks that usually take less than the fork of their process."""
    cost = context.cost
    if cost is None or cost.seconds < PROCESS_SECONDS_MIN:
        return
    forked = (task.name for task in context.flow.tasks if task.kind == "python" and task.isolation == "process")
    seen = {name: context.took(name) for name in forked}
    short = [name for name, past in seen.items() if past is not None and past.p50 < cost.seconds]
    if short:
        imports = f" with what the flow imports ({', '.join(cost.packages)})" if cost.packages else ""
        message = (
            f"{join_names(short)}: shorter than the fork of a process{imports}, {cost.seconds * 1000:.1f} ms of a"
            ' processor by trial; isolation="worker" forks one for many attempts'
        )
        yield Finding("note", "process-cost", message)


def _unused_env(context: FlowContext) -> Iterator[Finding]:
    if context.flow.unused_env_sentence:
        yield Finding("warning", "env", context.flow.unused_env_sentence)


def _schedule(context: FlowContext) -> Iterator[Finding]:
    """A state file has one run at a time: a run that is longer than the interval delays the next one."""
    spec = context.flow.schedule
    if spec is None:
        return
    gap = _shortest_gap_seconds(open_schedule(spec, context.flow.name))
    if spec.splay_seconds >= gap:
        message = f"its splay of {spec.splay_seconds:g} s is no shorter than the {gap:g} s between two runs"
        yield Finding("warning", "splay", message)
    deadline = context.flow.deadline_seconds
    if deadline is not None and deadline > gap:
        message = (
            f"a run may take until its deadline of {deadline:g} s, and the next one is due after {gap:g} s: it waits"
        )
        yield Finding("warning", "overlap", message)
    if spec.start_within_seconds is None and "; by " not in spec.expression:
        yield Finding("note", "start", "no page when a scheduled run does not start: give start_within")


def _shortest_gap_seconds(schedule: Schedule) -> float:
    times = list(islice(schedule.after(0), TIMES_COMPARED))
    return min((later - earlier for earlier, later in pairwise(times)), default=0) / 1e6


def worst_case_seconds(task: TaskSpec, observed: DurationQuantiles | None = None) -> float | None:
    """Return the longest time from the first start to the last failure (SPEC 4.14); None without a bound.

    A task without a timeout counts with its p99, if known.
    """
    if task.kind == "sensor":
        patience = task.retry.max_elapsed
        return None if patience is None else patience + (task.timeout or 0.0)
    if task.kind == APPROVAL:
        return task.timeout
    timeout = task.timeout if task.timeout is not None or observed is None else observed.p99
    worst = worst_case_elapsed_seconds(task.retry, timeout, task.grace_seconds if task.timeout is not None else 0.0)
    return worst if math.isfinite(worst) else None


def worst_case_sum(task: TaskSpec, observed: DurationQuantiles | None = None) -> str:
    """Show the worst case as arithmetic: ``3 x (30 + 5) + 6 = 111 s``."""
    worst = worst_case_seconds(task, observed)
    if worst is None:
        return "without a bound"
    if task.kind in ("sensor", APPROVAL) or task.timeout is None:
        return f"{worst:g} s"
    grace = f" + {task.grace_seconds:g}" if task.grace_seconds else ""
    whole = f"{task.retry.max_attempts} x ({task.timeout:g}{grace}) + {worst_case_wait_seconds(task.retry):g}"
    cut = " at most" if task.retry.max_elapsed is not None else ""
    return f"{whole} = {worst:g} s{cut}"


def _deadline(context: FlowContext) -> Iterator[Finding]:
    deadline = context.flow.deadline_seconds
    if deadline is None:
        return
    tasks = {task.name: task for task in context.flow.tasks}
    weights = {name: worst_case_seconds(task, context.took(name)) for name, task in tasks.items()}
    path = context.dag.critical_path({name: weight or 0.0 for name, weight in weights.items()})
    total = sum(weights[name] or 0.0 for name in path)
    waits = sum(worst_case_wait_seconds(tasks[name].retry) for name in path)
    means = sum(mean_wait_seconds(tasks[name].retry) for name in path)
    unbounded = [name for name in path if weights[name] is None]
    text = f"at the worst {format_seconds(total)} along {_join_path(path)}"
    text += f", of it {format_seconds(waits)} waiting to retry ({format_seconds(means)} on average)"
    if unbounded:
        text += f"; not counted, because nothing bounds them: {join_names(unbounded)}"
    if total > deadline:
        message = f"{text}: {format_seconds(total - deadline)} over the deadline of {format_seconds(deadline)}"
        yield Finding("warning", "deadline", message)
    else:
        left = format_seconds(deadline - total)
        yield Finding("note", "deadline", f"{text}: {left} before the deadline of {format_seconds(deadline)}")


# --- Task by task ---------------------------------------------------------------------------------------------------


def _no_timeout(task: TaskSpec, context: FlowContext) -> Iterator[Finding]:
    if task.timeout is None and task.kind != APPROVAL:
        yield Finding("warning", "no-timeout", "no timeout: a hang holds its slot until an operator notices", task.name)


def _tight_timeout(task: TaskSpec, context: FlowContext) -> Iterator[Finding]:
    seen = context.took(task.name)
    if seen is None or task.timeout is None:
        return
    advice = advise_timeout(context.observed[task.name], task.timeout)
    suggested = f"; {advice}" if advice is not None else ""
    took = f"p50 {seen.p50:.3g} s, p99 {seen.p99:.3g} s in {counted(seen.count, 'attempt')}"
    if task.timeout < seen.p99:
        message = f"its timeout of {task.timeout:g} s is under what it takes: {took}"
        yield Finding("warning", "tight-timeout", f"{message}; leave room for slower days{suggested}", task.name)
    elif seen.killed and suggested:
        message = f"its timeout of {task.timeout:g} s has killed it {_count_text(seen.killed)}, and it takes {took}"
        yield Finding("warning", "tight-timeout", f"{message}{suggested}", task.name)


def _count_text(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _policy(task: TaskSpec, context: FlowContext) -> Iterator[Finding]:
    seen = context.took(task.name)
    call_seconds = None if seen is None or seen.p50 > CALL_SECONDS_MAX else seen.p50
    for concern in policy_warnings(task.retry, call_seconds):
        yield Finding("warning", "policy", concern, task.name)


def _sensor(task: TaskSpec, context: FlowContext) -> Iterator[Finding]:
    if task.kind == "sensor" and task.retry.max_elapsed is None:
        message = "waits without a bound: set one by retry=RetryPolicy(max_elapsed=...)"
        yield Finding("warning", "sensor-patience", message, task.name)


def _unsafe_retry(task: TaskSpec, context: FlowContext) -> Iterator[Finding]:
    if not task.idempotent and task.retry.max_attempts > 1 and task.retry != RetryPolicy():
        yield Finding("warning", "not-idempotent", "is not idempotent: its retries will not be used", task.name)


def _thread_timeout(task: TaskSpec, context: FlowContext) -> Iterator[Finding]:
    if task.isolation == "thread" and task.timeout is not None:
        message = (
            "in a thread a timeout can only ask: a hang that does not look at ctx.cancelled keeps its slot until the "
            "process that it shares with others can be killed"
        )
        yield Finding("warning", "thread-timeout", message, task.name)


def _memory(task: TaskSpec, context: FlowContext) -> Iterator[Finding]:
    """A limit of memory that is close, or one that a large task should have."""
    advice = advise_memory(context.observed.get(task.name, ()), task.memory)
    if advice is not None:
        yield Finding("note" if task.memory is None else "warning", "memory", advice, task.name)


def _join_path(names: tuple[str, ...]) -> str:
    if len(names) > 2 * NAMES_SHOWN:
        middle = f"... {len(names) - 2 * NAMES_SHOWN} more ..."
        names = (*names[:NAMES_SHOWN], middle, *names[-NAMES_SHOWN:])
    return " -> ".join(names)


TASK_RULES: tuple[Callable[[TaskSpec, FlowContext], Iterator[Finding]], ...] = (
    _no_timeout,
    _tight_timeout,
    _policy,
    _sensor,
    _unsafe_retry,
    _thread_timeout,
    _memory,
)
FLOW_RULES: tuple[Callable[[FlowContext], Iterator[Finding]], ...] = (
    _deadline,
    _schedule,
    _unconnected,
    _orphans,
    _downstreams,
    _held_by_dead_letters,
    _clean_ups,
    _pages,
    _secrets,
    _unused_env,
    _process_cost,
)


# --- The checklist --------------------------------------------------------------------------------------------------


class ChecklistItem(msgspec.Struct, frozen=True):
    """A line of the checklist. ``passes`` None: only the author of the task knows."""

    passes: bool | None
    text: str


def checklist(task: TaskSpec) -> tuple[ChecklistItem, ...]:
    """Return the checklist for one task (001.21)."""
    policy = task.retry
    bound = "" if policy.max_elapsed is None else f", within {policy.max_elapsed:g} s"
    broad = any(name.rpartition(".")[2] in ("Exception", "BaseException") for name in policy.retry_on)
    named = f"only {', '.join(policy.retry_on)}" if policy.retry_on else "as they are classified"
    again = (
        ChecklistItem(None, "counts as idempotent, and may run twice: idempotent=False says that it must not")
        if task.idempotent
        else ChecklistItem(True, "not idempotent: never run twice without an operator")
    )
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
        again,
        ChecklistItem(None, "tests for success after a retry, for the filter, for the deadline"),
    )
