"""What can be known about a flow before it runs: each rule looks at the spec and finds things (SPEC 003.37, 4.14).

Cycles, unknown parents and double names never come this far: ``Flow.spec`` refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from .core.dag import Dag
from .core.policy import RetryPolicy, concerns, worst_case_wait_seconds
from .core.spec import FlowSpec, TaskSpec

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to know. ``task`` is None for the flow as a whole."""

    level: Level
    rule: str
    message: str
    task: str | None = None


def check_spec(flow: FlowSpec) -> list[Finding]:
    """All findings, those of the flow first, then task by task in the order of the flow."""
    findings = [finding for rule in FLOW_RULES for finding in rule(flow)]
    findings += [finding for task in flow.tasks for rule in TASK_RULES for finding in rule(task)]
    return findings


def worst_case_seconds(task: TaskSpec) -> float | None:
    """n * (timeout + grace) + the exact sum of the ceilings (SPEC 4.14); None where a task has no timeout."""
    if task.timeout is None:
        return None
    attempts = task.retry.max_attempts
    return attempts * (task.timeout + task.grace_seconds) + worst_case_wait_seconds(task.retry)


def _no_timeout(task: TaskSpec) -> Iterator[Finding]:
    if task.timeout is None:
        yield Finding("warning", "no-timeout", "no timeout: a hang holds its slot until somebody notices", task.name)


def _policy(task: TaskSpec) -> Iterator[Finding]:
    for concern in concerns(task.retry):
        yield Finding("warning", "policy", concern, task.name)


def _long_singleton(task: TaskSpec) -> Iterator[Finding]:
    if task.kind == "sensor" and task.max_active == 1:
        message = "a sensor with max_active=1 is a lock across all runs; leave it out"
        yield Finding("warning", "sensor-lock", message, task.name)


def _unsafe_retry(task: TaskSpec) -> Iterator[Finding]:
    if not task.idempotent and task.retry.max_attempts > 1 and task.retry != RetryPolicy():
        yield Finding("warning", "not-idempotent", "is not idempotent: its retries will not be used", task.name)


def _orphans(flow: FlowSpec) -> Iterator[Finding]:
    for name in Dag((task.name, task.parents) for task in flow.tasks).orphans:
        yield Finding("note", "orphan", "stands alone: nothing comes before it or after it", name)


def _deadline(flow: FlowSpec) -> Iterator[Finding]:
    if flow.deadline_seconds is None:
        return
    by_name = {task.name: task for task in flow.tasks}
    dag = Dag((task.name, task.parents) for task in flow.tasks)
    weights = {name: worst_case_seconds(task) or 0.0 for name, task in by_name.items()}
    path = dag.critical_path(weights)
    total = sum(weights[name] for name in path)
    unknown = sum(1 for name in path if by_name[name].timeout is None)
    waits = sum(worst_case_wait_seconds(by_name[name].retry) for name in path)
    text = f"at the worst {total:g} s along {' -> '.join(path)} ({waits:g} s of it waiting to retry; half on average)"
    text += f", {unknown} of these tasks without a timeout not counted" if unknown else ""
    if total > flow.deadline_seconds:
        yield Finding("warning", "deadline", f"{text}: over the deadline of {flow.deadline_seconds:g} s")
    else:
        yield Finding("note", "deadline", f"{text}: within the deadline of {flow.deadline_seconds:g} s")


TASK_RULES: tuple[Callable[[TaskSpec], Iterator[Finding]], ...] = (
    _no_timeout,
    _policy,
    _long_singleton,
    _unsafe_retry,
)
FLOW_RULES: tuple[Callable[[FlowSpec], Iterator[Finding]], ...] = (_deadline, _orphans)
