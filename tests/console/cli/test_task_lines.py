"""The lines of ``redrive tasks`` and ``redrive replay``: what they say beside the state."""

from __future__ import annotations

from redrive.console.cli.listings import task_lines
from redrive.engine.core.projection import RunProjection
from redrive.engine.domain.states import TaskState

from ..model.runs import START, S, fold_of


def lines_of(fold: RunProjection, now_us: int | None = None) -> dict[str, str]:
    """The line of each task, with single spaces."""
    return {line.split()[0]: " ".join(line.split()) for line in task_lines(fold, False, now_us=now_us)[1:]}


def test_a_wait_is_told_as_of_the_instant_that_is_shown() -> None:
    fold = fold_of([("a", [])])
    row = fold.tasks["a"]
    row.state, row.next_retry_at, row.error = TaskState.RETRYING, START + 30 * S, "503"
    assert "retry 1/3 due in 10s" in lines_of(fold, START + 20 * S)["a"]
    assert "retry 1/3 due 10s ago" in lines_of(fold, START + 40 * S)["a"]


def test_a_task_that_ran_before_its_parent_did_again_is_stale() -> None:
    fold = fold_of([("a", []), ("b", ["a"])])
    for row in fold.tasks.values():
        row.state = TaskState.SUCCESS
    fold.tasks["b"].stale = 1
    lines = lines_of(fold)
    assert lines["b"].endswith("stale: a parent ran again") and "stale" not in lines["a"]


def test_a_skipped_task_of_a_later_generation_has_no_empty_count() -> None:
    fold = fold_of([("a", [])])
    row = fold.tasks["a"]
    row.state, row.attempt, row.generation = TaskState.SKIPPED, 2, 1
    assert lines_of(fold)["a"] == "a SKIPPED attempt 2"
