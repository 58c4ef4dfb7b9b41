"""The specs of map tasks and of their children.

A map task gets one child for each element of the list that another task returns. ``statefile/changes/mapping.py``
creates the children in the state file, in the transaction in which that task succeeds. The map task waits for them, and
its own attempt collects their results (``runner/mapping.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from ..domain.mapping import child_name, positions
from .spec import ItemSpec, MapSpec, TaskSpec

CHILD_RULE = TaskSpec("").rule  # the default: every parent has succeeded
COLLECT_SECONDS = 300.0  # for reading at most a few thousand small results


def map_task(child: TaskSpec, over: str, max_size: int) -> TaskSpec:
    """Return the spec of a map task. ``child``: what its function and its options say, by the name of the map task."""
    return TaskSpec(
        child.name,
        child.parents,
        timeout=COLLECT_SECONDS,
        optional=child.optional,
        rule=child.rule,
        owner=child.owner,
        requires=(over,),
        group=child.group,
        source=child.source,
        map=MapSpec(over, max_size, structs.replace(child, rule=CHILD_RULE, group=child.name)),
    )


def child_spec(task: TaskSpec, index: int) -> TaskSpec:
    """Return the spec of a child of a map task."""
    assert task.map is not None
    item = ItemSpec(task.name, task.map.over, index)
    return structs.replace(task.map.child, name=child_name(task.name, index), item=item)


def work_of(task: TaskSpec) -> TaskSpec:
    """Return the spec of what a task does; of a map task, that of its children under its own name."""
    return task if task.map is None else structs.replace(task.map.child, rule=task.rule, group=task.group)


def positions_of(tasks: Sequence[TaskSpec]) -> Iterable[int]:
    """Return the position of each task of a flow; after a map task, there is room for its children."""
    if all(task.map is None for task in tasks):
        return range(len(tasks))
    return positions(None if task.map is None else task.map.max_size for task in tasks)
