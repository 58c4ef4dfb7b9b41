"""The lines of ``redrive tasks`` and ``redrive replay``: what they say beside the state."""

from __future__ import annotations

import json

from msgspec import structs
from redrive.console.cli.listings import TasksContext, task_lines
from redrive.console.cli.output import plain_text
from redrive.engine.core.explain import explain_task
from redrive.engine.core.projection import RunProjection
from redrive.engine.core.ready_queue import spec_of
from redrive.engine.core.spec import ItemSpec, TaskSpec
from redrive.engine.domain.elements import GONE
from redrive.engine.domain.states import SkipCause, TaskState

from ..model.runs import START, S, projection_of


def lines_of(projection: RunProjection, now_us: int = START) -> dict[str, str]:
    """The line of each task, with single spaces."""
    about = TasksContext(projection, lambda name: explain_task(projection, name, now_us))
    _, *lines = (plain_text(line) for line in task_lines(projection, False, {}, about=about))
    return {line.split()[0]: " ".join(line.split()) for line in lines}


def test_a_wait_is_reported_as_of_the_instant_that_is_shown() -> None:
    projection = projection_of([("a", [])])
    row = projection.tasks["a"]
    row.state, row.next_retry_at, row.error = TaskState.RETRYING, START + 30 * S, "503"
    assert "retry 1/3 due in 10s" in lines_of(projection, START + 20 * S)["a"]
    assert "retry 1/3 due 10s ago" in lines_of(projection, START + 40 * S)["a"]


def test_a_task_that_ran_before_its_parent_did_again_is_stale() -> None:
    projection = projection_of([("a", []), ("b", ["a"])])
    for row in projection.tasks.values():
        row.state = TaskState.SUCCESS
    projection.tasks["b"].stale = 1
    lines = lines_of(projection)
    assert lines["b"].endswith("stale: a parent ran again") and "stale" not in lines["a"]
    item = ItemSpec(task="loads", over="a", index=GONE)
    projection.tasks["b"].spec = structs.replace(spec_of(projection.tasks["b"]), item=item)
    assert lines_of(projection)["b"].endswith("stale: the list has no such element any more")


def test_a_skipped_task_of_a_later_generation_has_no_empty_count() -> None:
    projection = projection_of([("a", [])])
    row = projection.tasks["a"]
    row.state, row.attempt, row.generation = TaskState.SKIPPED, 2, 1
    assert lines_of(projection)["a"] == "a SKIPPED attempt 2"


def test_the_json_of_a_task_names_its_owner() -> None:
    projection = projection_of([("a", []), ("b", [])])
    projection.tasks["a"].spec = TaskSpec("a", owner="billing")
    values = [json.loads(str(line)) for line in task_lines(projection, True, {})]
    assert [value["owner_note"] for value in values] == ["billing", None]


def test_the_json_of_a_task_that_waits_says_why() -> None:
    projection = projection_of([("a", []), ("b", ["a"]), ("c", [])])
    projection.tasks["a"].state, projection.tasks["c"].state = TaskState.RUNNING, TaskState.SUCCESS
    values = [json.loads(str(line)) for line in task_lines(projection, True, {})]
    assert [value["why"] for value in values] == [None, explain_task(projection, "b", 0), None]


def test_a_task_that_skips_itself_has_tried_once_and_one_that_is_left_out_has_not() -> None:
    projection = projection_of([("itself", []), ("below", ["itself"])])
    itself, below = projection.tasks.values()
    itself.state, itself.attempt, itself.skip_cause = TaskState.SKIPPED, 1, SkipCause.CONDITION
    below.state, below.skip_cause = TaskState.SKIPPED, SkipCause.CASCADE
    lines = lines_of(projection)
    assert lines["itself"].startswith("itself SKIPPED 1/3") and lines["below"].startswith("below SKIPPED 0/3")
