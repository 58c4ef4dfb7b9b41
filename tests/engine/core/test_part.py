"""Which tasks a part of a flow has, and what the others hand on, against a plain closure over the edges."""

from __future__ import annotations

import random

import pytest
from redrive.engine.core.outcome import unstored_result
from redrive.engine.core.part import EarlierRun, EarlierTask, LeftOut, PartChoice, plan_part
from redrive.engine.core.spec import FlowSpec, TaskSpec, map_task
from redrive.engine.domain.states import SkipCause
from redrive.engine.errors import FlowError
from support.marks import for_each

DONE = EarlierTask("SUCCESS", None, "7")


def flow_of(edges: dict[str, str], **requires: str) -> FlowSpec:
    tasks = [
        TaskSpec(name, tuple(above.split()), requires=tuple(requires.get(name, "").split()))
        for name, above in edges.items()
    ]
    return FlowSpec("nightly", tuple(tasks))


CHAIN = flow_of({"extract": "", "load": "extract", "clean": "load", "report": "clean"}, report="clean", clean="load")


def inside(flow: FlowSpec, choice: PartChoice, earlier: EarlierRun | None = None) -> str:
    left_out = plan_part(flow, choice, earlier).left_out
    return " ".join(task.name for task in flow.tasks if task.name not in left_out)


def earlier_of(flow: FlowSpec, **tasks: EarlierTask) -> EarlierRun:
    return EarlierRun("A", {**{task.name: DONE for task in flow.tasks}, **tasks})


@for_each(
    "choice, expected",
    [
        (PartChoice(until=["load"]), "extract load"),
        (PartChoice(start_from=["load"]), "load clean report"),
        (PartChoice(start_from=["load"], until=["clean"]), "load clean"),
        (PartChoice(only=["report"]), "report"),
        (PartChoice(only=["extract"], start_from=["clean"]), "extract clean report"),
    ],
)
def test_the_tasks_of_a_part(choice: PartChoice, expected: str) -> None:
    assert inside(CHAIN, choice, earlier_of(CHAIN)) == expected


def test_any_graph_against_a_plain_closure() -> None:
    dice = random.Random(7)
    for _ in range(300):
        names = [f"t{number}" for number in range(dice.randint(1, 8))]
        edges = {
            name: " ".join(dice.sample(names[:place], dice.randint(0, min(place, 3))))
            for place, name in enumerate(names)
        }
        only, begin, until = ([name for name in names if dice.random() < 0.2] for _ in range(3))
        choice = PartChoice(only, begin, until)
        if choice.is_whole:
            continue
        above = {name: set(edges[name].split()) for name in names}
        for name in names:
            for parent in list(above[name]):
                above[name] |= above[parent]
        chosen = {
            name
            for name in names
            if (not begin or name in begin or above[name] & set(begin))
            and (not until or name in until or any(name in above[last] for last in until))
        }
        if (begin or until) and not chosen:
            with pytest.raises(FlowError, match="no task comes after"):
                plan_part(flow_of(edges), choice, None)
            continue
        expected = {*only, *(chosen if begin or until else ())}
        plan = plan_part(flow_of(edges), choice, earlier_of(flow_of(edges)))
        assert set(names) - plan.left_out.keys() == expected, (edges, choice)
        imported = {name for name, out in plan.left_out.items() if out.cause is SkipCause.IMPORTED}
        assert imported == {name for name in plan.left_out if any(name in above[one] for one in expected)}


def test_what_is_above_gets_its_result_and_what_is_below_does_not() -> None:
    left_out = plan_part(CHAIN, PartChoice(only=["clean"], results_of="A"), earlier_of(CHAIN)).left_out
    assert left_out == {
        "extract": LeftOut(SkipCause.IMPORTED, "not in this part of the flow: its result is that of run A", "7", "A"),
        "load": LeftOut(SkipCause.IMPORTED, "not in this part of the flow: its result is that of run A", "7", "A"),
        "report": LeftOut(SkipCause.PART, "not in this part of the flow"),
    }


@for_each(
    "task, expected",
    [
        (EarlierTask("SUCCESS", None, None), (SkipCause.IMPORTED, "null")),  # it returned None
        (EarlierTask("SKIPPED", "operator", '{"rows": 0}'), (SkipCause.IMPORTED, '{"rows": 0}')),  # a substitute
        (EarlierTask("SKIPPED", "condition", None), (SkipCause.CONDITION, None)),
        (EarlierTask("SKIPPED", "cascade", None), (SkipCause.CONDITION, None)),
        (EarlierTask("SKIPPED", "operator", None), (SkipCause.PART, None)),
        (EarlierTask("FAILED", None, None), (SkipCause.PART, None)),
    ],
)
def test_what_an_earlier_run_hands_on(task: EarlierTask, expected: tuple[SkipCause, str | None]) -> None:
    flow = flow_of({"a": "", "b": "a"})
    out = plan_part(flow, PartChoice(only=["b"]), earlier_of(flow, a=task)).left_out["a"]
    assert (out.cause, out.result) == expected


@pytest.mark.parametrize(
    ("earlier", "sentence"),
    [
        (
            None,
            "'report' needs the result of 'clean', which is not in this part of the flow: add --results-of latest,"
            " or start with --from clean",
        ),
        (
            {"clean": EarlierTask("FAILED", None, None)},
            "'report' needs the result of 'clean', and run A has none (FAILED): name another run,"
            " or start with --from clean",
        ),
        (
            {"clean": EarlierTask("SUCCESS", None, unstored_result("it is a Frame"))},
            "'report' needs the result of 'clean', and run A has none (its result was not stored: it is a Frame):"
            " name another run, or start with --from clean",
        ),
    ],
)
def test_a_missing_result_is_refused(earlier: dict[str, EarlierTask] | None, sentence: str) -> None:
    known = None if earlier is None else earlier_of(CHAIN, **earlier)
    with pytest.raises(FlowError) as refused:
        plan_part(CHAIN, PartChoice(only=["report"]), known)
    assert str(refused.value) == sentence


def test_a_task_that_only_comes_after_another_starts_without_it() -> None:
    flow = flow_of({"a": "", "b": "a"})
    assert inside(flow, PartChoice(only=["b"])) == "b"
    strict = FlowSpec("f", (TaskSpec("a"), TaskSpec("b", ("a",), rule="all_success_strict")))
    with pytest.raises(FlowError, match="'b' needs the success of 'a'"):
        plan_part(strict, PartChoice(only=["b"]), None)
    assert inside(strict, PartChoice(only=["b"]), earlier_of(strict)) == "b"


def test_names_are_checked() -> None:
    with pytest.raises(FlowError, match="flow 'nightly' has no task 'reprt'; did you mean 'report'\\?"):
        plan_part(CHAIN, PartChoice(only=["reprt"]), None)
    with pytest.raises(FlowError, match="no task comes after 'clean' and before 'load'"):
        plan_part(CHAIN, PartChoice(start_from=["clean"], until=["load"]), None)


MAPPED = FlowSpec(
    "mapped",
    (
        TaskSpec("orders"),
        map_task(TaskSpec("load", ("orders",)), "orders", 10),
        TaskSpec("total", ("load",), requires=("load",)),
    ),
)


def test_a_map_task_is_a_part_with_all_its_children() -> None:
    keys = '{"load": ["a", "b"]}'
    part = plan_part(MAPPED, PartChoice(only=["load"]), earlier_of(MAPPED, orders=DONE._replace(element_keys=keys)))
    assert set(part.left_out) == {"orders", "total"} and part.left_out["orders"].element_keys == keys
    with pytest.raises(FlowError, match="'load\\[1\\]' is a child of a map task: name 'load', or requeue the child"):
        plan_part(MAPPED, PartChoice(only=["load[1]"]), earlier_of(MAPPED))


def test_the_options_are_said_as_they_are_typed() -> None:
    assert PartChoice(["a b"], ["c"], ["d"], "A").describe() == "--only 'a b' --from c --until d --results-of A"
