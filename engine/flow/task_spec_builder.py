"""Builds the ``TaskSpec`` of each ``TaskDef`` of a flow.

Most tasks of a large flow are written in a loop and differ in name, function and parents alone: what follows from their
other options is computed once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from types import MethodType
from typing import Any, NamedTuple

from msgspec.structs import astuple

from ..core.dag import distinct
from ..core.mapping import map_task
from ..core.option_types import is_text
from ..core.spec import TaskSpec
from ..domain.mapping import child_prefix
from ..errors import FlowError
from .introspect import code_digest, definition_site, required_parents
from .options import TASK, After
from .task_def import TaskDef, check_consistency, normalize_fields

OPTION_SETS_MAX = 8  # the latest sets of options that are kept

_OWN_FIELDS = 3  # the first fields of a TaskDef: its name, function and parents
_CONVERTED = ("name", "parents", "retry", "command", "idempotent", "requires")
_COPIED = tuple(name for name in TaskSpec.__struct_fields__ if name in TASK and name not in _CONVERTED)
_DEFAULTS = dict(zip(TaskSpec.__struct_fields__[1:], TaskSpec.__struct_defaults__, strict=True))


class _CheckedOptions(NamedTuple):
    """Options of a TaskDef that were found right, and the arguments of its TaskSpec that follow from them."""

    has_function: bool
    options: tuple[object, ...]
    arguments: Mapping[str, Any]


class TaskSpecBuilder:
    """Builds the specs of one flow.

    ``names``: the tasks by the identity of their functions; ``declared``: the names of all tasks; ``group_of``: the
    group of a task.
    """

    def __init__(
        self,
        pools: Mapping[str, int],
        names: Mapping[tuple[int, int], str],
        declared: Collection[str],
        group_of: Mapping[str, str],
    ) -> None:
        self._pools = pools
        self._names = names
        self._declared = declared
        self._group_of = group_of
        self._known: deque[_CheckedOptions] = deque(maxlen=OPTION_SETS_MAX)

    def build(self, task: TaskDef) -> TaskSpec:
        """Return the spec of a task, whose fields user code may have changed. Raises FlowError."""
        arguments = self._arguments(task)
        parents = self._parents(task)
        spec = TaskSpec(
            task.name,
            parents,
            requires=self._requires(task, parents),
            group=self._group_of.get(task.name),
            source=definition_site(task.fn),
            code=code_digest(task.fn),
            **arguments,
        )
        if task.map_over is None:
            return spec
        self._check_names_of_children(task.name)
        return map_task(spec, parents[0], task.max_size)

    def _arguments(self, task: TaskDef) -> Mapping[str, Any]:
        """Check a task and return the arguments of its spec, except those that follow from its name and parents."""
        has_function, options = callable(task.fn), astuple(task)[_OWN_FIELDS:]
        if is_text(task.name) and type(task.parents) is list:
            for known in self._known:
                if known.has_function is has_function and known.options == options:
                    return known.arguments
        normalize_fields(task)
        check_consistency(task, self._pools)
        self._known.appendleft(_CheckedOptions(has_function, astuple(task)[_OWN_FIELDS:], _arguments_of(task)))
        return self._known[0].arguments

    def _parents(self, task: TaskDef) -> tuple[str, ...]:
        written = task.parents if task.map_over is None else (task.map_over, *task.parents)
        return distinct(tuple([one if type(one) is str else self._name_of(task, one) for one in written]))

    def _requires(self, task: TaskDef, parents: tuple[str, ...]) -> tuple[str, ...]:
        if task.requires is None:
            return required_parents(task.fn, parents)
        names = tuple(dict.fromkeys(self._name_of(task, parent) for parent in task.requires))
        unrelated = [name for name in names if name not in parents]
        if unrelated:
            why = f"requires the result of {unrelated[0]!r}, which it does not come after"
            raise FlowError(f"task {task.name!r} {why}", task=task.name)
        return names

    def _name_of(self, task: TaskDef, parent: After) -> str:
        if isinstance(parent, str):
            return parent
        name = self._names.get(identity_of(parent))
        if name is None:
            called = getattr(parent, "__name__", repr(parent))
            why = f"which is not a task of this flow; say flow.task({called}) first"
            if called in self._declared:
                why = f"a function that is not the one of task {called!r}; name that task: after={called!r}"
            raise FlowError(f"task {task.name!r} comes after {called!r}, {why}", task=task.name)
        return name

    def _check_names_of_children(self, task: str) -> None:
        taken = next((name for name in self._declared if name.startswith(child_prefix(task))), None)
        if taken is not None:
            raise FlowError(f"task {taken!r} has the name of a child of the map task {task!r}: rename it", task=taken)


def _arguments_of(task: TaskDef) -> Mapping[str, Any]:
    """Return the arguments of a TaskSpec that follow from the options of a task, without those of the default."""
    found = {name: getattr(task, name) for name in _COPIED}
    found |= {
        "command": task.command_line(),
        "command_options": task.command_options(),
        "retry": task.policy(),
        "timeout": task.timeout_seconds,
        "idempotent": task.idempotent and not task.effect,
    }
    return {name: value for name, value in found.items() if value is not _DEFAULTS[name]}


def identity_of(function: Callable[..., object]) -> tuple[int, int]:
    """Return the identity of a function. A method is a new object each time that it is read from its object."""
    if isinstance(function, MethodType):
        return id(function.__self__), id(function.__func__)
    return 0, id(function)
