"""Groups of tasks, and the options that tasks inherit from their flow and their groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.spec import Kind


@dataclass(slots=True)
class TaskGroup:
    """The tasks that are written in a block ``with flow.group("extract") as group``.

    Attributes:
        name: with the names of the groups around it: "warehouse.extract".
        tasks: the names of its tasks, as of now; ``after=group.tasks`` waits for all of them.
    """

    name: str
    tasks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GroupDefaults:
    """Where tasks are written: directly in the flow, or in a group of it."""

    defaults: Mapping[str, Any]  # option -> value, also those of the scopes around this one
    origins: Mapping[str, str]  # option -> who sets it: "the flow", "group 'extract'"
    groups: tuple[TaskGroup, ...] = ()  # from the outermost to the innermost

    @property
    def group(self) -> str | None:
        """The name of the innermost group."""
        return self.groups[-1].name if self.groups else None

    def full_name(self, name: str) -> str:
        """Return a name with the prefix of the group."""
        return f"{self.group}.{name}" if self.groups else name

    def open_group(self, name: str, defaults: Mapping[str, Any]) -> GroupDefaults:
        """Return the scope of a group in this one, whose defaults win; variables are added."""
        group = TaskGroup(self.full_name(name))
        origins = dict.fromkeys(defaults, f"group {group.name!r}")
        merged = {**self.defaults, **defaults}
        if "env" in merged:
            merged["env"] = {**self.defaults.get("env", {}), **defaults.get("env", {})}
        return GroupDefaults(merged, {**self.origins, **origins}, (*self.groups, group))

    def inherited_by(self, kind: Kind, own: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults for a task with these options of its own, None included."""
        skipped = set(own) if kind == "command" else {*own, "env"}
        return {option: value for option, value in self.defaults.items() if option not in skipped}
