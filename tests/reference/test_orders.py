"""One state for one set of outcomes: whatever order parents, siblings and children end in, the run ends the same.

The engine of ``sequences.py`` runs each flow once for each order in which its tasks can end.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redrive.engine.core.outcome import Outcome, OutcomeKind
from redrive.engine.domain.trigger_rules import RULES
from support.marks import parametrize_mostly_long, scaled

from .operators import Scripted
from .sequences import Engine, outcome_of
from .sequences import Sequence as Night

#: How a parent may end: what its attempt does, or what an operator does to it.
OUTCOMES = ("ok", "skip", "transient", "permanent", "by operator", "cancel", "stopped")
ENDS = {
    "ok": "SUCCESS",
    "skip": "SKIPPED as a branch",
    "transient": "FAILED",
    "permanent": "DEAD_LETTER",
    "by operator": "SKIPPED by an operator",
    "cancel": "CANCELLED",
    "stopped": "UPSTREAM_FAILED",
}

#: rule -> the outcomes of which one stops the task; those of which one skips it, when all parents have ended.
STOPS: Mapping[str, set[str]] = {
    "all_success": {"transient", "cancel", "stopped"},
    "all_success_strict": {"transient", "cancel", "stopped", "by operator"},
    "none_failed": {"transient", "cancel", "stopped"},
    "all_done": set(),
}


def verdict(rule: str, outcomes: Sequence[str]) -> str:
    """What the parents make of a task with this rule, by the manual (page states); "SUCCESS": it has run."""
    if STOPS[rule] & {*outcomes}:
        return ENDS["stopped"]
    if "permanent" in outcomes:
        return "PENDING"
    is_skipped = {*outcomes} == {"skip"} if rule == "none_failed" else rule != "all_done" and "skip" in outcomes
    return ENDS["skip"] if is_skipped else "SUCCESS"


class OrderedRun:
    """A run whose tasks end, or are ended by an operator, in a given order."""

    def __init__(self, tasks: Sequence[Scripted], outcomes: Mapping[str, str]) -> None:
        self._tasks = {task.name: task for task in tasks}
        self._outcomes = outcomes
        self._engine = Engine(Night(0, tuple(tasks), (), slots=len(tasks) + 9))

    def run(self, order: Sequence[str]) -> dict[str, str]:
        """End the tasks of ``order`` one after another, then all others; return the states."""
        self._start()
        for name in order:
            self._end(name)
            self._start()
        while self._engine.running:
            self._end(min(self._engine.running))
            self._start()
        self._engine.check_memory()
        return self._engine.states()

    def _start(self) -> None:
        while self._engine.start_some() is not None:
            pass

    def _end(self, name: str) -> None:
        outcome = self._outcomes.get(name, "ok")
        if outcome in ("by operator", "cancel") and name not in self._engine.running:
            self._engine.send({"cancel": "cancel"}.get(outcome, "skip"), [name], {})
        elif name in self._engine.running:
            script = self._tasks.get(name, Scripted(name, ("ok",)))
            is_cancelled = outcome == "cancel"
            ended = Outcome(OutcomeKind.CANCELLED) if is_cancelled else outcome_of(outcome, script, 1)
            self._engine.end(name, ended)


def flow_of(outcomes: Sequence[str], rule: str) -> tuple[list[Scripted], dict[str, str]]:
    """Return a task below parents that end so, with one task of each rule below it; and what each task does.

    ``gate`` keeps those waiting that an operator skips, ``above`` stops one.
    """
    tasks, found = [Scripted("gate", ("ok",))], {"gate": "ok"}
    for number, outcome in enumerate(outcomes):
        name, above = f"p{number}", f"above{number}"
        if outcome == "stopped":
            tasks += [Scripted(above, ("transient",), max_attempts=1), Scripted(name, ("ok",), (above,))]
            found[above] = "transient"
        else:
            tasks.append(Scripted(name, (outcome,), ("gate",) * (outcome == "by operator"), max_attempts=1))
            found[name] = outcome
    parents = tuple(f"p{number}" for number in range(len(outcomes)))
    tasks.append(Scripted("child", ("ok",), parents, rule))
    tasks += [Scripted(f"below_{one}", ("ok",), ("child",), one) for one in RULES]
    return tasks, found


def endings(found: Mapping[str, str]) -> list[str]:
    """The tasks whose ends can be permuted: ``gate`` is last, so that the operator finds its children waiting."""
    return [name for name in found if name != "gate"]


def sets_of(count: int) -> Iterator[tuple[str, ...]]:
    return itertools.combinations_with_replacement(OUTCOMES, count)


@parametrize_mostly_long("rule", RULES, quick=2)
@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_a_set_of_outcomes_has_one_state(rule: str, count: int) -> None:
    for outcomes in sets_of(count):
        tasks, found = flow_of(outcomes, rule)
        expected = verdict(rule, outcomes)
        names = endings(found)
        for order in itertools.permutations(names):
            states = OrderedRun(tasks, found).run([*order, "gate"])
            assert states["child"] == expected, (outcomes, order)
            known = {ENDS[outcome]: outcome for outcome in OUTCOMES}
            below = {one: states[f"below_{one}"] for one in RULES}
            above = known.get(states["child"])
            if above is not None:
                assert below == {one: verdict(one, (above,)) for one in RULES}, (outcomes, order)


@parametrize_mostly_long("collect", RULES, daily=2)
@parametrize_mostly_long("rule", RULES)
def test_a_map_task_has_one_state_for_a_set_of_ends_of_its_children(rule: str, collect: str) -> None:
    for outcomes in itertools.combinations_with_replacement(("ok", "skip", "transient", "permanent"), 3):
        tasks = [
            Scripted("list", ("ok",), lists=((1, 2, 3),)),
            Scripted("load", ("ok",), rule=rule, max_attempts=1, over="list", collect=collect),
            Scripted("report", ("ok",), ("load",)),
        ]
        found = {f"load[{number}]": outcome for number, outcome in enumerate(outcomes)}
        for order in itertools.permutations(found):
            states = OrderedRun(tasks, found).run(["list", *order])
            assert states["load"] == collected(collect, outcomes), (outcomes, order)


def collected(collect: str, outcomes: Sequence[str]) -> str:
    """What its children make of a map task, by the manual (page flow)."""
    if collect != "all_done" and "transient" in outcomes:
        return ENDS["stopped"]
    if "permanent" in outcomes:
        return "PENDING"
    return ENDS["skip"] if {*outcomes} == {"skip"} and collect != "all_done" else "SUCCESS"


@given(st.integers(0, 10**9))
@settings(max_examples=scaled(20), deadline=None)
def test_a_random_graph_ends_in_one_state_in_any_order(seed: int) -> None:
    dice = random.Random(seed)
    tasks: list[Scripted] = []
    found: dict[str, str] = {}
    for number in range(dice.randint(4, 9)):
        earlier = [task.name for task in tasks]
        name = f"t{number}"
        found[name] = dice.choice(("ok", "ok", "skip", "transient", "permanent"))
        parents = tuple(dice.sample(earlier, min(len(earlier), dice.choice((0, 1, 2, 3, 4)))))
        tasks.append(Scripted(name, (found[name],), parents, dice.choice(RULES), 1, optional=dice.random() < 0.3))
    ends = set()
    for _ in range(6):
        order = dice.sample([*found], len(found)) * len(found)  # a task that does not run yet ends in a later round
        ends.add(tuple(sorted(OrderedRun(tasks, found).run(order).items())))
    assert len(ends) == 1
