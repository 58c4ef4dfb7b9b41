"""A part of a flow: which tasks a run takes, and what it takes from an earlier run in place of the others.

A run of a part has every task of its flow. Those outside of the part are SKIPPED before anything starts:

    the task in the earlier run          here                                    its children
    ----------------------------------   -------------------------------------   ------------------------------------
    above the part, with a result        SKIPPED as imported, with that result   start as after a success
    above the part, branch not taken     SKIPPED by condition                    as in the earlier run
    anything else, or no earlier run     SKIPPED as not in the part              start without it, or are refused

What is below the part gets no earlier result: it would be older than what it follows from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from ..domain.states import ENDED_BADLY, OUTSIDE, SkipCause, TaskState
from ..domain.task_options import child_prefix
from ..domain.text import did_you_mean, shell_command
from ..domain.trigger_rules import ALL_DONE, Verdict, verdict
from ..errors import FlowError
from .dag import Dag
from .outcome import reason_of_unstored, unstored_reason
from .spec import FlowSpec, TaskSpec, child_spec, json_object, rule_of_edge

_CHILD = re.compile(r"(?P<task>.+?)\[(?P<element>.*)\]", re.DOTALL)


class PartChoice(msgspec.Struct, frozen=True):
    """What an operator named: ``only`` these tasks; those ``start_from`` some on, and those ``until`` some.

    Given both of the last two, the tasks between them. ``results_of``: the earlier run.
    """

    only: Sequence[str] = ()
    start_from: Sequence[str] = ()
    until: Sequence[str] = ()
    results_of: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it names no tasks, so that the run takes all of them."""
        return not (self.only or self.start_from or self.until)

    def describe(self) -> str:
        """Return the options that name it, as they are typed."""
        named = (("--only", self.only), ("--from", self.start_from), ("--until", self.until))
        words = [word for option, names in named for name in names for word in (option, name)]
        return shell_command(words if self.results_of is None else [*words, "--results-of", self.results_of])


class EarlierTask(NamedTuple):
    """A task of an earlier run. ``element``, ``element_keys``: the columns."""

    state: str
    skip_cause: str | None
    result: str | None
    element: str | None = None
    element_keys: str | None = None


class EarlierRun(msgspec.Struct, frozen=True):
    """The run whose results are taken. ``before``: of a part, the run whose results that one has taken."""

    run_id: str
    tasks: Mapping[str, EarlierTask]
    before: EarlierRun | None = None


class LeftOut(NamedTuple):
    """How a task outside of the part is skipped. ``why``: ``task.error``; ``run_id``: the run that has the result."""

    cause: SkipCause
    why: str = OUTSIDE
    result: str | None = None
    run_id: str = ""
    element_keys: str | None = None


class Part(msgspec.Struct, frozen=True):
    """The part of a flow that a run takes.

    Attributes:
        words: the options that name it, as in ``run.options``.
        left_out: the tasks outside of it.
        chosen: map tasks of which only some children run -> the names of these.
        siblings: those of these map tasks whose results the part collects -> how each other child is skipped, by its
            name, or why its result is missing.
    """

    words: str
    left_out: Mapping[str, LeftOut]
    chosen: Mapping[str, frozenset[str]] = {}
    siblings: Mapping[str, Mapping[str, LeftOut | str]] = {}


def part_of(options: str) -> str | None:
    """Return the options that named the part of the flow that a run takes; None: all of it. ``options``: of the run."""
    found = json_object(options).get("part") if '"part"' in options else None
    return found if isinstance(found, str) else None


def describe_part(options: str) -> str:
    """Return ``part of the flow: --only report``; empty for a run of all of it."""
    part = part_of(options)
    return f"part of the flow: {part}" if part else ""


def plan_part(flow: FlowSpec, choice: PartChoice, earlier: EarlierRun | None) -> Part:
    """Return the part of a flow. Raises FlowError, with one sentence, for an unknown task or a missing result."""
    return _Planner(flow, choice, earlier).plan()


class _Planner:
    def __init__(self, flow: FlowSpec, choice: PartChoice, earlier: EarlierRun | None) -> None:
        self._flow = flow
        self._choice = choice
        self._earlier = earlier
        self._tasks = {task.name: task for task in flow.tasks}
        self._dag = Dag((task.name, task.parents) for task in flow.tasks)
        self._chosen: dict[str, set[str]] = {}

    def plan(self) -> Part:
        inside = self._inside()
        starts = [*inside, *self._chosen]
        above = set(self._dag.ancestors(*starts))
        left_out = {name: self._leave_out(name, name in above) for name in self._tasks if name not in inside}
        siblings = {task: dict(self._siblings(task)) for task in self._chosen if task in inside}
        part = Part(
            self._choice.describe(),
            left_out,
            {task: frozenset(names) for task, names in self._chosen.items()},
            siblings,
        )
        for spec in self._specs_inside(inside):
            self._check_inputs(spec, left_out)
        return part

    def _inside(self) -> set[str]:
        """Return the tasks of the part, and note the children of map tasks that are chosen."""
        only, begin = self._resolve(self._choice.only), self._resolve(self._choice.start_from)
        until = [self._task(name) for name in self._choice.until]
        for name in (*only, *begin):
            task = self._map_of(name)
            if task is not None and task not in (*only, *begin):
                self._chosen.setdefault(task, set()).add(name)
        found = {name for name in only if name in self._tasks}
        if begin or until:
            roots = {self._map_of(name) or name for name in begin}
            below = {*roots, *self._dag.descendants(*roots)} if begin else set(self._tasks)
            above = {*until, *self._dag.ancestors(*until)} if until else set(self._tasks)
            if not below & above:
                raise FlowError(f"no task comes after {_listed(begin)} and before {_listed(until)}")
            found |= below & above
        return found

    def _resolve(self, names: Sequence[str]) -> list[str]:
        """Check names of tasks and of children of map tasks."""
        return [self._task(name) if self._map_of(name) is None else name for name in names]

    def _map_of(self, name: str) -> str | None:
        """Return the map task of which a name is that of a child; None: it is not."""
        match = _CHILD.fullmatch(name)
        if match is None or name in self._tasks:
            return None
        task = self._tasks.get(match["task"])
        return None if task is None or task.map is None else task.name

    def _task(self, name: str) -> str:
        if name in self._tasks:
            return name
        if self._map_of(name) is not None:
            raise FlowError(f"{name!r} is a child of a map task: --until takes the map task")
        meant = did_you_mean(name, self._tasks) or f"; it has: {_listed(list(self._tasks)[:10])}"
        raise FlowError(f"flow {self._flow.name!r} has no task {name!r}{meant}")

    def _leave_out(self, name: str, is_above: bool) -> LeftOut:
        if self._earlier is None or not is_above:
            return LeftOut(SkipCause.PART)
        out = _import(name, self._earlier)
        return out if out.result is None else out._replace(element_keys=self._element_keys(name, self._earlier))

    def _element_keys(self, over: str, earlier: EarlierRun) -> str | None:
        """Return what the elements of an imported list are known by, so that their children have the names of then."""
        keys = dict(json.loads(earlier.tasks[over].element_keys or "{}"))
        for task in self._flow.tasks:
            if task.map is not None and task.map.over == over and task.name not in keys:
                prefix, tasks = child_prefix(task.name), earlier.tasks.items()
                keys[task.name] = {one.element: name for name, one in tasks if one.element and name.startswith(prefix)}
        return json.dumps(keys) if keys else None

    def _siblings(self, task: str) -> Iterator[tuple[str, LeftOut | str]]:
        """Yield the children beside the chosen ones of a map task that collects their results."""
        prefix, mapping = child_prefix(task), self._tasks[task].map
        for name in () if self._earlier is None else self._earlier.tasks:
            if name.startswith(prefix) and name not in self._chosen[task]:
                assert self._earlier is not None
                yield (
                    name,
                    _import_child(name, self._earlier, is_lenient=mapping is not None and mapping.collect == ALL_DONE),
                )

    def _specs_inside(self, inside: set[str]) -> Iterator[TaskSpec]:
        yield from (self._tasks[name] for name in self._tasks if name in inside and name not in self._chosen)
        for task, names in self._chosen.items():
            yield from (child_spec(self._tasks[task], name, 0) for name in sorted(names))

    def _check_inputs(self, spec: TaskSpec, left_out: Mapping[str, LeftOut]) -> None:
        """Raise FlowError if the task cannot start without what an earlier run has not."""
        needed = {*spec.requires, *([] if spec.item is None else [spec.item.over])}
        for parent in spec.parents:
            out = left_out.get(parent)
            if out is None:
                if spec.item is not None and parent == spec.item.over:
                    raise FlowError(f"{spec.name!r} exists once {parent!r} has run: leave {parent!r} out of the part")
                continue
            is_stopped = verdict(rule_of_edge(spec, parent), TaskState.SKIPPED, out.cause) is Verdict.STOP
            if is_stopped or (parent in needed and out.cause is SkipCause.PART):
                raise FlowError(self._refusal(spec.name, parent, "success" if is_stopped else "result"))

    def _refusal(self, task: str, parent: str, what: str) -> str:
        start = f"or start with --from {shell_command([parent])}"
        if self._earlier is None:
            return f"{task!r} needs the {what} of {parent!r}, which is {OUTSIDE}: add --results-of latest, {start}"
        found = self._earlier.tasks.get(parent)
        why = "it has no such task" if found is None else _why_missing(found)
        run = f"run {self._earlier.run_id}"
        return f"{task!r} needs the {what} of {parent!r}, and {run} has none ({why}): name another run, {start}"


def _import(name: str, earlier: EarlierRun) -> LeftOut:
    task, run = earlier.tasks.get(name), f"run {earlier.run_id}"
    if task is None or reason_of_unstored(task.result) is not None:
        return LeftOut(SkipCause.PART)
    if task.state == TaskState.SUCCESS or (task.state == TaskState.SKIPPED and task.result is not None):
        result = "null" if task.result is None else task.result
        return LeftOut(SkipCause.IMPORTED, f"{OUTSIDE}: its result is that of {run}", result, earlier.run_id)
    if task.state == TaskState.SKIPPED and task.skip_cause in (SkipCause.CONDITION, SkipCause.CASCADE):
        return LeftOut(SkipCause.CONDITION, f"{OUTSIDE}: {run} has not taken its branch")
    return LeftOut(SkipCause.PART)


def _import_child(name: str, earlier: EarlierRun, *, is_lenient: bool) -> LeftOut | str:
    """Return how a child is skipped, or why its result is missing. ``is_lenient``: the map task wants no success.

    A part without the child has left it as it was in the run before.
    """
    task = earlier.tasks[name]
    if task.skip_cause == SkipCause.PART and earlier.before is not None and name in earlier.before.tasks:
        return _import_child(name, earlier.before, is_lenient=is_lenient)
    out, run = _import(name, earlier), f"run {earlier.run_id}"
    if out.cause is not SkipCause.PART:
        return out
    is_skipped = task.skip_cause == SkipCause.OPERATOR and task.state == TaskState.SKIPPED and task.result is None
    if is_skipped or (is_lenient and task.state in ENDED_BADLY | {TaskState.UPSTREAM_FAILED}):
        return LeftOut(SkipCause.OPERATOR, f"{OUTSIDE}: it was {task.state} in {run}")
    return f"and {run} has none ({_why_missing(task)})"


def _why_missing(task: EarlierTask) -> str:
    why = reason_of_unstored(task.result)
    return unstored_reason(why) if why is not None else task.state


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def left_out_of(part: Part, task: str, name: str) -> LeftOut | None:
    """Return how a child of a map task is skipped; None: it runs. ``task``: a key of ``part.chosen``.

    Raises FlowError if the map task collects its result, and no run has it.
    """
    if name in part.chosen[task]:
        return None
    if task not in part.siblings:
        return LeftOut(SkipCause.PART)
    out = part.siblings[task].get(name, "which is not in the earlier run: add --results-of latest")
    if isinstance(out, str):
        why = f"{out}: name another run, or start with --from {shell_command([task])}"
        raise FlowError(f"{task!r} needs the result of {name!r}, {why}")
    return out
