"""When the run will be done, as far as data say."""

import pytest
from redrive.console.model.board import Board
from redrive.console.model.eta import Forecaster, estimate, is_overdue, stalled_for_us
from redrive.console.model.graph.name_families import families, stem
from redrive.engine.domain.events import EventKind
from redrive.engine.statefile.list_rows import DurationStats

from .graphs import layered
from .runs import MINUTE, START, S, Story, fold_of

CHAIN = [("a", []), ("b", ["a"]), ("c", ["b"]), ("side", ["a"])]
HISTORY = {"a": 10.0, "b": 20.0, "c": 30.0, "side": 5.0}


def test_the_longest_way_that_is_left_decides():
    board = Board(fold_of(CHAIN, max_parallel=8))
    forecast = estimate(board, START, HISTORY)
    assert forecast is not None
    assert (forecast.left_us, forecast.path) == (60 * S, ("a", "b", "c"))


def test_what_ran_already_and_what_a_retry_waits_for_are_counted():
    fold = fold_of(CHAIN, max_parallel=8)
    board, story = Board(fold), Story(fold)
    board.apply([*story.start("a"), *story.after(10).succeed("a"), *story.start("b")])
    assert estimate(board, START + 15 * S, HISTORY).left_us == (15 + 30) * S
    board.apply(story.after(6).fail("b", next_retry_at=START + 30 * S))
    assert estimate(board, START + 20 * S, HISTORY).left_us == (10 + 20 + 30) * S


def test_few_slots_make_it_longer_than_the_longest_way():
    board = Board(fold_of([(f"t{n}", []) for n in range(10)], max_parallel=2))
    assert estimate(board, START, {f"t{n}": 10.0 for n in range(10)}).left_us == 50 * S


def test_the_slack_is_what_the_deadline_leaves_and_may_be_negative():
    board = Board(fold_of(CHAIN, max_parallel=8, deadline_at=START + 70 * S))
    assert estimate(board, START, HISTORY).slack_us == 10 * S
    assert estimate(board, START + 15 * S, HISTORY).slack_us == -5 * S


def test_what_a_dead_letter_holds_is_left_out_and_counted():
    fold = fold_of(CHAIN, max_parallel=8)
    board, story = Board(fold), Story(fold)
    board.apply([*story.start("a"), *story.succeed("a"), *story.start("b"), *story.fail("b", "DEAD_LETTER")])
    forecast = estimate(board, START, HISTORY)
    assert (forecast.path, forecast.held, forecast.left_us) == (("side",), 1, 5 * S)


def test_without_history_a_task_is_expected_to_take_as_long_as_its_family_did():
    fold = fold_of([("load_1", []), ("load_2", []), ("other", [])], max_parallel=8)
    board, story = Board(fold), Story(fold)
    assert estimate(board, START, {}) is None
    board.apply([*story.start("load_1"), *story.after(7).succeed("load_1", duration_us=7 * S)])
    assert estimate(board, story.at, {}).left_us == 7 * S


def test_a_finished_run_has_no_forecast():
    fold = fold_of([("a", [])])
    board, story = Board(fold), Story(fold)
    board.apply([*story.start("a"), *story.after(1).succeed("a", duration_us=S)])
    assert estimate(board, story.at, {}) is None


def test_a_large_flow_is_not_looked_through_more_often_than_every_few_seconds():
    fold = fold_of(layered(10_000, 20, seed=1))
    forecaster = Forecaster(Board(fold), dict.fromkeys(fold.tasks, 1.0))
    first = forecaster.forecast(START)
    assert first is not None
    assert forecaster.forecast(START + 2 * S) is first
    later = forecaster.forecast(START + MINUTE)
    assert later is not first
    assert forecaster.forecast(START) is not later  # a minute earlier is as far away


def test_a_forecast_of_the_past_knows_nothing_of_what_came_later():
    """However large the flow, and however short ago it was."""
    fold = fold_of(layered(10_000, 20, seed=1))
    board, story = Board(fold), Story(fold_of(layered(10_000, 20, seed=1)))
    first = next(name for name in fold.tasks if not fold.parents.get(name))
    forecaster, before = Forecaster(board, {}), board.snapshot
    later = Board(story.fold)
    later.apply([*story.start(first), *story.after(1).succeed(first, duration_us=S)])
    board.seek(later.snapshot)
    assert forecaster.forecast(START + S) is not None
    board.seek(before)
    assert forecaster.forecast(START + S) is None


def test_a_stem_is_the_name_without_its_numbers():
    assert [
        stem(name) for name in ("load_part_0001", "mProject_ID0000007", "t7", "build (linux, 3.11)", "x", "42")
    ] == [
        "load_part",
        "mProject",
        "t",
        "build",
        "x",
        "42",
    ]


def test_many_families_of_one_are_gathered_by_their_first_word():
    names = ["py_a", "py_b", "py_c", "r_a", "r_b", "curl", "zlib", "part_1", "part_2"]
    assert families(names) == ["py…", "py…", "py…", "r…", "r…", "others", "others", "part", "part"]
    assert families(["curl", "zlib"]) == ["curl", "zlib"]


@pytest.mark.parametrize(
    ("elapsed", "attempts", "overdue"),
    [(120, 9, False), (181, 9, True), (180, 9, False), (181, 2, False)],
)
def test_far_over_is_half_as_long_again_as_nearly_all_took(elapsed: int, attempts: int, overdue: bool):
    assert is_overdue(elapsed * S, DurationStats(60 * S, 120 * S, attempts)) is overdue


def test_a_task_of_seconds_is_not_overdue_after_some_more():
    assert not is_overdue(9 * S, DurationStats(S, 2 * S, 30))
    assert is_overdue(13 * S, DurationStats(S, 2 * S, 30))


def test_progress_is_missed_after_a_minute_or_three_times_what_a_part_took():
    fold = fold_of([("quick", []), ("slow", []), ("silent", [])])
    story = Story(fold)
    events = [*story.start("quick"), *story.start("slow"), *story.start("silent")]
    for name, done in (("quick", 50), ("slow", 5)):
        told = {"set": {"progress_done": done, "progress_total": 100}}
        events.append(story.after(100).tell(EventKind.TASK_CHANGED, name, data=told))
    for event in events:
        fold.apply(event)
    tasks, at = fold.tasks, story.at
    assert stalled_for_us(tasks["quick"], at - 40 * S) is None
    assert stalled_for_us(tasks["quick"], at) == 100 * S
    assert stalled_for_us(tasks["slow"], at + 119 * S) is None  # a part took it 40 seconds so far
    assert stalled_for_us(tasks["slow"], at + 121 * S) == 121 * S
    assert stalled_for_us(tasks["silent"], at + 3600 * S) is None  # it never said how far it is
