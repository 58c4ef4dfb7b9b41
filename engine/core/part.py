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

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from ..domain.states import OUTSIDE, SkipCause, TaskState
from ..domain.text import did_you_mean, shell_command
from ..domain.trigger_rules import Verdict, verdict
from ..errors import FlowError
from .dag import Dag
from .outcome import reason_of_unstored, unstored_reason
from .spec import FlowSpec, TaskSpec, json_object, rule_of_edge


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
    """A task of an earlier run. ``element_keys``: the column."""

    state: str
    skip_cause: str | None
    result: str | None
    element_keys: str | None = None


class EarlierRun(msgspec.Struct, frozen=True):
    """The run whose results are taken."""

    run_id: str
    tasks: Mapping[str, EarlierTask]


class LeftOut(NamedTuple):
    """How a task outside of the part is skipped. ``why``: ``task.error``; ``run_id``: the run that has the result."""

    cause: SkipCause
    why: str = OUTSIDE
    result: str | None = None
    run_id: str = ""
    element_keys: str | None = None


class Part(msgspec.Struct, frozen=True):
    """The part of a flow that a run takes.

    ``words``: the options that name it, as in ``run.options``; ``left_out``: the tasks outside of it.
    """

    words: str
    left_out: Mapping[str, LeftOut]


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

    def plan(self) -> Part:
        inside = self._inside()
        above = set(self._dag.ancestors(*inside))
        left_out = {name: self._leave_out(name, name in above) for name in self._tasks if name not in inside}
        for spec in self._flow.tasks:
            if spec.name in inside:
                self._check_inputs(spec, left_out)
        return Part(self._choice.describe(), left_out)

    def _inside(self) -> set[str]:
        """Return the tasks of the part."""
        choice = self._choice
        only, begin, until = (list(map(self._task, names)) for names in (choice.only, choice.start_from, choice.until))
        found = set(only)
        if begin or until:
            below = {*begin, *self._dag.descendants(*begin)} if begin else set(self._tasks)
            above = {*until, *self._dag.ancestors(*until)} if until else set(self._tasks)
            if not below & above:
                raise FlowError(f"no task comes after {_listed(begin)} and before {_listed(until)}")
            found |= below & above
        return found

    def _task(self, name: str) -> str:
        if name in self._tasks:
            return name
        task = self._tasks.get(name.partition("[")[0])
        if task is not None and task.map is not None:
            raise FlowError(f"{name!r} is a child of a map task: name {task.name!r}, or requeue the child in its run")
        meant = did_you_mean(name, self._tasks) or f"; it has: {_listed(list(self._tasks)[:10])}"
        raise FlowError(f"flow {self._flow.name!r} has no task {name!r}{meant}")

    def _leave_out(self, name: str, is_above: bool) -> LeftOut:
        return LeftOut(SkipCause.PART) if self._earlier is None or not is_above else _import(name, self._earlier)

    def _check_inputs(self, spec: TaskSpec, left_out: Mapping[str, LeftOut]) -> None:
        """Raise FlowError if the task cannot start without what an earlier run has not."""
        for parent in spec.parents:
            out = left_out.get(parent)
            if out is None:
                continue
            is_stopped = verdict(rule_of_edge(spec, parent), TaskState.SKIPPED, out.cause) is Verdict.STOP
            if is_stopped or (parent in spec.requires and out.cause is SkipCause.PART):
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
        why = f"{OUTSIDE}: its result is that of {run}"
        return LeftOut(SkipCause.IMPORTED, why, result, earlier.run_id, task.element_keys)
    if task.state == TaskState.SKIPPED and task.skip_cause in (SkipCause.CONDITION, SkipCause.CASCADE):
        return LeftOut(SkipCause.CONDITION, f"{OUTSIDE}: {run} has not taken its branch")
    return LeftOut(SkipCause.PART)


def _why_missing(task: EarlierTask) -> str:
    why = reason_of_unstored(task.result)
    return unstored_reason(why) if why is not None else task.state


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
