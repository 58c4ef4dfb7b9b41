"""Checks before a run that each function can be called with the arguments that its task will have.

``redrive check`` reports a finding; a run refuses the flow with the same message, instead of ending with a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..core.spec import FlowSpec, TaskSpec
from ..errors import FlowError
from ..flow.finding import Finding
from ..flow.introspect import parameter_of
from .call import CONTEXT_NAME, CallPlan


def check_calls(flow: FlowSpec, plans: Mapping[str, CallPlan]) -> Iterator[Finding]:
    """Yield the errors, task by task in the order of the flow."""
    for task in flow.tasks:
        plan = plans.get(task.name)
        if plan is None:
            continue
        if plan.is_generator:
            message = "is a generator: its body would never run; remove the yield"
            yield Finding("error", "generator", message, task.name)
        if plan.parameters or plan.positional_only is not None or task.map is not None:
            yield from _parameters(task, plan, flow)


def require_callable(flow: FlowSpec, plans: Mapping[str, CallPlan]) -> None:
    """Raise FlowError with the first error."""
    for finding in check_calls(flow, plans):
        task = next(task for task in flow.tasks if task.name == finding.task)
        raise FlowError(f"task {task.name!r} {finding.message}", task=task.name).at(task.source)


def _parameters(task: TaskSpec, plan: CallPlan, flow: FlowSpec) -> Iterator[Finding]:
    """Match parameters by name, as ``runner/call.py`` does at run time."""
    if plan.positional_only is not None:
        message = f"takes its argument {plan.positional_only!r} by position only, and arguments are given by name"
        yield Finding("error", "parameters", message, task.name)
    if task.map is not None and plan.item_parameter is None:
        message = "is called with each element of a list, and takes no argument for it: def f(item)"
        yield Finding("error", "parameters", message, task.name)
    needed = [name for name, may_be_left_out in plan.parameters if not may_be_left_out]
    if not needed:
        return
    known = {CONTEXT_NAME, *flow.params, *task.params, *map(parameter_of, task.parents)}
    if task.map is not None:
        known.add(plan.item_parameter or CONTEXT_NAME)
    for name in needed:
        if name not in known:
            message = f"asks for an argument {name!r}, which is neither {CONTEXT_NAME!r}, nor a task it comes after, "
            message += f"nor a parameter of the flow{_suggestion(name, known)}"
            yield Finding("error", "parameters", message, task.name)


def _suggestion(wrong: str, names: set[str]) -> str:
    plain = wrong.casefold().replace("_", "")
    meant = sorted(name for name in names if name.casefold().replace("_", "") == plain)
    return f"; did you mean {meant[0]!r}?" if meant else ""
