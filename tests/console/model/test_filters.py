"""Filters: words and states of tasks, and the key that goes through the states."""

from __future__ import annotations

from redrive.console.model.lists import STATE_WORDS, next_state_filter, parse_filter, parse_task_filter
from redrive.engine.domain.states import TaskState
from support.marks import for_each


@for_each(
    "typed, matching",
    [
        ("is:problem", {TaskState.DEAD_LETTER, TaskState.FAILED, TaskState.UPSTREAM_FAILED}),
        ("is:running", {TaskState.RUNNING}),
        ("is:waiting", {TaskState.READY, TaskState.RETRYING, TaskState.SENSING}),
        ("is:running is:problem", {TaskState.RUNNING, *STATE_WORDS["problem"][0]}),
        ("load", set(TaskState)),
        ("other is:running", set()),
    ],
)
def test_words_of_states_match_tasks_in_these_states(typed: str, matching: set[TaskState]) -> None:
    wanted = parse_task_filter(typed)
    assert {state for state in TaskState if wanted.matches_task("load_failed", state)} == matching


def test_a_name_with_the_word_of_a_state_is_no_state() -> None:
    assert not parse_task_filter("is:problem").matches_task("failed_orders", TaskState.SUCCESS)


def test_elsewhere_such_a_word_is_a_word() -> None:
    assert parse_filter("is:running").required == ("is:running",)


def test_the_key_goes_through_the_states_and_keeps_the_other_words() -> None:
    typed, seen = "load !x", []
    for _ in range(4):
        typed = next_state_filter(typed)
        seen.append(typed)
    assert seen == ["is:problem load !x", "is:running load !x", "is:waiting load !x", "load !x"]
