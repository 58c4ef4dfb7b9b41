"""What differs between a run and the current flow, and what may be done about it without asking."""

from __future__ import annotations

import pytest
from msgspec import structs
from redrive.engine import Flow
from redrive.engine.core.flow_difference import FlowDifference, compare, describe, load_refusal
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.core.spec import FlowSpec, TaskSpec, child_spec
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import OPEN, TaskState
from support.marks import for_each

SPEC = TaskSpec("load", source="flow.py:7", code="3.11:aaaa")
EXTRA = TaskSpec("extra", code="3.11:ffff")


def run_with(state: TaskState, spec: TaskSpec = SPEC) -> RunProjection:
    rows = {spec.name: TaskRow(spec.name, state, spec=spec), "extra": TaskRow("extra", TaskState.SUCCESS, spec=EXTRA)}
    return RunProjection(RunRow("r"), rows)


def difference(state: TaskState, *specs: TaskSpec) -> FlowDifference:
    return compare(run_with(state), FlowSpec("night", (EXTRA, *specs)))


@for_each("state", TaskState)
def test_another_line_or_version_of_python_is_no_change(state: TaskState) -> None:
    assert not difference(state, structs.replace(SPEC, source="flow.py:99"))
    assert not difference(state, structs.replace(SPEC, code="3.12:bbbb"))


@for_each("state", TaskState)
@for_each(
    "change, is_other_work", [({"timeout": 5.0}, False), ({"code": "3.11:bbbb"}, True), ({"parents": ("extra",)}, True)]
)
def test_a_changed_task_applies_unless_it_has_finished(
    state: TaskState, change: dict[str, object], is_other_work: bool
) -> None:
    found = difference(state, structs.replace(SPEC, **change))
    if state is not TaskState.SUCCESS:
        assert (found.changed, found.needs_acceptance) == (("load",), False)
    else:
        assert (found.outdated, found.needs_acceptance) == ((("load",), True) if is_other_work else ((), False))
    flow = FlowSpec("night", (EXTRA, structs.replace(SPEC, **change)))
    requeued = compare(run_with(state), flow, run_again=["load"])
    assert (requeued.changed, requeued.needs_acceptance) == (("load",), False)


@for_each("state", TaskState)
def test_a_task_that_is_gone_needs_a_word_while_its_end_is_open(state: TaskState) -> None:
    found = difference(state)
    assert found.needs_acceptance is (state in OPEN) is bool(found.unfinished)
    assert bool(found.removed) is (state not in OPEN and state is not TaskState.SKIPPED)
    assert bool(load_refusal(found)) is (state is not TaskState.SKIPPED)


def test_a_rename_is_named_if_no_other_task_has_the_code() -> None:
    found = difference(TaskState.FAILED, structs.replace(SPEC, name="store"))
    assert found.renamed == (("load", "store"),)
    assert "apparently renamed; a renamed task runs again: load is store now" in list(describe(found))
    twice = difference(TaskState.FAILED, structs.replace(SPEC, name="store"), structs.replace(SPEC, name="keep"))
    assert twice.renamed == ()


def test_many_names_are_shortened() -> None:
    added = tuple(f"part_{number}" for number in range(300))
    assert list(describe(FlowDifference(added=added))) == ["added: part_0, part_1, part_2, part_3, part_4 and 295 more"]


def test_a_living_executor_does_not_take_over_other_parents() -> None:
    found = difference(TaskState.PENDING, structs.replace(SPEC, parents=("extra",)))
    assert load_refusal(found) == "other tasks come before load"
    assert load_refusal(difference(TaskState.PENDING, SPEC, TaskSpec("new"))) is None


def flow_with_map(mended: bool) -> FlowSpec:
    flow = Flow("night")
    flow.task(lambda: ["1", "x"], name="items")
    flow.map(over="items", name="load")((lambda item: len(item)) if mended else (lambda item: int(item)))
    return flow.spec()


@pytest.mark.parametrize(
    ("state", "outdated"), [("DEAD_LETTER", ()), ("PENDING", ()), ("SUCCESS", ("load[0]", "load[1]"))]
)
def test_a_map_mended_for_one_child_keeps_the_finished_ones(state: str, outdated: tuple[str, ...]) -> None:
    """Else the usual repair, mend the function and requeue the child, would want --accept-changes."""
    before, after = flow_with_map(mended=False), flow_with_map(mended=True)
    items, load = before.tasks
    states = [(items, "SUCCESS"), (load, "PENDING"), (child_spec(load, "load[0]", 0), "SUCCESS")]
    states.append((child_spec(load, "load[1]", 1), state))
    rows = {spec.name: TaskRow(spec.name, TaskState(word), spec=spec) for spec, word in states}
    found = compare(RunProjection(RunRow("r"), rows), after)
    assert (found.outdated, found.needs_acceptance) == (outdated, bool(outdated))
    assert ("load[1]" in found.changed) is (state != "SUCCESS")
