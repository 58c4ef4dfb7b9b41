"""What a map task and its children call: the children the function with one element, the map task ``collect``."""

from __future__ import annotations

from functools import partial

from ..core.results import is_unstored_reason
from ..core.spec import MapSpec, TaskSpec
from ..domain.mapping import child_name
from ..errors import PermanentError
from .call import CONTEXT_NAME, CallPlan
from .context import Context, Missing


def collecting_plan(task: TaskSpec, mapping: MapSpec) -> CallPlan:
    """Return how to collect the results of the children of a map task."""
    return CallPlan(partial(_collect, task.name, mapping), ((CONTEXT_NAME, False),), False)


def _collect(task: str, mapping: MapSpec, ctx: Context) -> object:
    """Return the results of the children in the order of the list; None where there is none.

    Raises PermanentError if there is no list, or one that is too long.
    """
    items = ctx.inputs[mapping.over]
    if isinstance(items, Missing):
        raise PermanentError(f"task {task!r} maps over the result of {mapping.over!r}, and there is none: {items.why}")
    if not isinstance(items, list | tuple):
        kind = type(items).__name__
        raise PermanentError(f"task {task!r} maps over the result of {mapping.over!r}, which is not a list: {kind}")
    if len(items) > mapping.max_size:
        raise PermanentError(
            f"{mapping.over!r} returned a list of {len(items)}, and {task!r} maps over at most {mapping.max_size}: "
            "return fewer, or raise max_size, then requeue"
        )
    return [_result_of(ctx, child_name(task, index)) for index in range(len(items))]


def _result_of(ctx: Context, child: str) -> object:
    """Return the result of a child; a Missing, which cannot be stored either, if its result could not be stored."""
    result = ctx.inputs[child]
    return None if isinstance(result, Missing) and not is_unstored_reason(result.why) else result
