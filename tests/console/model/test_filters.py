"""Filters: words of names and of states."""

from __future__ import annotations

from redrive.console.model.lists import parse_filter, searched_text
from redrive.engine.core.projection import TaskRow
from redrive.engine.domain.states import TaskState
from support.marks import for_each


@for_each(
    "typed, matching",
    [
        ("running", {TaskState.RUNNING}),
        ("load !dead", set(TaskState) - {TaskState.DEAD_LETTER}),
        ("other running", set()),
        ("ok", {TaskState.SUCCESS}),
    ],
)
def test_words_match_the_name_and_the_state_of_a_task(typed: str, matching: set[TaskState]) -> None:
    wanted = parse_filter(typed)
    rows = [TaskRow("load", state=state) for state in TaskState]
    assert {row.state for row in rows if wanted.matches(searched_text(row))} == matching
