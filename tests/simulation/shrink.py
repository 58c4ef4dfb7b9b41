"""Shrinks a failing night: leaves out tasks, acts, crashes, refusals and clock steps while it still fails."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from .plan import Plan
from .simulate import simulate

_PARTS = ("acts", "crashes", "refusals", "clock_steps")


class Reduction(msgspec.Struct, frozen=True):
    """What is left out of the plan of a seed, as text for the command line: "tasks=t1,t2 acts=0,4"."""

    tasks: frozenset[str] = frozenset()
    acts: frozenset[str] = frozenset()
    crashes: frozenset[str] = frozenset()
    refusals: frozenset[str] = frozenset()
    clock_steps: frozenset[str] = frozenset()

    def __str__(self) -> str:
        parts = {name: getattr(self, name) for name in ("tasks", *_PARTS)}
        return " ".join(f"{name}={','.join(sorted(left))}" for name, left in parts.items() if left)

    @classmethod
    def parse(cls, text: str) -> Reduction:
        """Read what ``str`` wrote."""
        pairs = (part.split("=") for part in text.split())
        return cls(**{name: frozenset(left.split(",")) for name, left in pairs})


def reduce_plan(plan: Plan, left_out: Reduction) -> Plan:
    """Return the plan without some of its parts."""
    kept = {
        name: tuple(item for place, item in enumerate(getattr(plan, name)) if str(place) not in getattr(left_out, name))
        for name in _PARTS
    }
    return replace(plan.without_tasks(left_out.tasks), **kept)


def shrink(plan: Plan, left_out: Reduction) -> tuple[Reduction, str]:
    """Return the smallest reduction that still fails, and how it fails."""
    problem = simulate(reduce_plan(plan, left_out)).problem
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _smaller(plan, left_out):
            found = simulate(reduce_plan(plan, smaller)).problem
            if found:
                left_out, problem, is_smaller = smaller, found, True
                break
    return left_out, problem


def _smaller(plan: Plan, left_out: Reduction) -> Iterator[Reduction]:
    names = [task.name for task in plan.flow.tasks if task.name not in left_out.tasks]
    for half in [names[len(names) // 2 :]] if len(names) > 3 else []:
        yield replace(left_out, tasks=left_out.tasks | set(half))
    for part in _PARTS:
        every = frozenset(map(str, range(len(getattr(plan, part)))))
        if every - getattr(left_out, part):
            yield replace(left_out, **{part: every})
    if len(names) > 1:
        yield from (replace(left_out, tasks=left_out.tasks | {name}) for name in reversed(names))
    for part in _PARTS:
        before: frozenset[str] = getattr(left_out, part)
        for place in range(len(getattr(plan, part))):
            if str(place) not in before:
                yield replace(left_out, **{part: before | {str(place)}})
