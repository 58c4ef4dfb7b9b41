"""When the run will be done, as far as data say."""

from redrive.console.model.board import Board
from redrive.console.model.eta import Forecaster, critical_path, estimate
from redrive.console.model.graph.groups import stem
from redrive.console.model.overdue import is_overdue, stalled_for_us
from redrive.console.present.header import run_line
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.core.projection import AttemptRow
from redrive.engine.core.waiting import ALIVE
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile.durations import DurationStats
from support.breakers import status_of
from support.marks import for_each

from .graphs import layered
from .runs import MINUTE, START, EventBuilder, S, projection_of

CHAIN = [("a", []), ("b", ["a"]), ("c", ["b"]), ("side", ["a"])]
HISTORY = {name: DurationStats(s * S, s * S, 20) for name, s in {"a": 10, "b": 20, "c": 30, "side": 5}.items()}


def test_the_longest_way_that_is_left_decides():
    board = Board(projection_of(CHAIN, max_parallel=8))
    forecast = estimate(board, START, HISTORY)
    assert forecast is not None
    assert (forecast.left.low_us, forecast.path) == (60 * S, ("a", "b", "c"))


def test_what_ran_already_and_what_a_retry_waits_for_are_counted():
    projection = projection_of(CHAIN, max_parallel=8)
    board, builder = Board(projection), EventBuilder(projection)
    board.apply([*builder.start("a"), *builder.after(10).succeed("a"), *builder.start("b")])
    assert estimate(board, START + 15 * S, HISTORY).left.low_us == (15 + 30) * S
    board.apply(builder.after(6).fail("b", next_retry_at=START + 30 * S))
    assert estimate(board, START + 20 * S, HISTORY).left.low_us == (10 + 20 + 30) * S


def test_the_critical_path_of_a_run_that_stands_still_is_not_that_to_a_late_requeue():
    projection = projection_of([*CHAIN, ("load", [])], max_parallel=8)
    board, builder = Board(projection), EventBuilder(projection)
    board.apply([*builder.start("load"), *builder.after(1).fail("load", "DEAD_LETTER")])
    board.apply([*builder.start("a"), *builder.after(10).succeed("a")])
    board.apply([*builder.start("side"), *builder.after(45).fail("side", "FAILED")])
    board.apply([builder.after(300).move("load", "PENDING", generation=1)])
    board.apply([*builder.start("load"), *builder.after(1).fail("load", "DEAD_LETTER")])
    assert critical_path(board, None, builder.at, ALIVE) == ("a", "side")


def test_all_attempts_of_a_task_weigh_on_the_critical_path():
    projection = projection_of([("flaky", []), ("slow", []), ("report", ["flaky", "slow"])], max_parallel=8)
    board, builder = Board(projection), EventBuilder(projection)
    board.apply([*builder.start("slow"), *builder.after(60).succeed("slow")])
    for _ in range(4):
        board.apply([*builder.start("flaky"), *builder.after(30 * 60).fail("flaky", "RETRYING")])
    board.apply([*builder.start("flaky"), *builder.after(1).succeed("flaky")])
    board.apply([*builder.start("report"), *builder.after(1).fail("report", "FAILED")])
    assert critical_path(board, None, builder.at, ALIVE) == ("flaky", "report")


def test_the_critical_path_that_is_estimated_begins_with_what_has_led_to_it():
    projection = projection_of(CHAIN, max_parallel=8)
    board, builder = Board(projection), EventBuilder(projection)
    board.apply([*builder.start("a"), *builder.after(10).succeed("a")])
    forecast = estimate(board, builder.at, HISTORY)
    assert (forecast.path, critical_path(board, forecast, builder.at, ALIVE)) == (("b", "c"), ("a", "b", "c"))


def test_few_slots_make_it_longer_than_the_longest_way():
    board = Board(projection_of([(f"t{n}", []) for n in range(10)], max_parallel=2))
    assert estimate(board, START, {f"t{n}": DurationStats(10 * S, 10 * S, 1) for n in range(10)}).left.low_us == 50 * S


def test_the_slack_is_what_the_deadline_leaves_and_may_be_negative():
    board = Board(projection_of(CHAIN, max_parallel=8, deadline_at=START + 70 * S))
    assert estimate(board, START, HISTORY).slack_us == 10 * S
    assert estimate(board, START + 15 * S, HISTORY).slack_us == -5 * S


def test_what_a_dead_letter_holds_is_left_out_and_counted():
    projection = projection_of(CHAIN, max_parallel=8)
    board, builder = Board(projection), EventBuilder(projection)
    board.apply([*builder.start("a"), *builder.succeed("a"), *builder.start("b"), *builder.fail("b", "DEAD_LETTER")])
    forecast = estimate(board, START, HISTORY)
    assert (forecast.path, forecast.held, forecast.left.low_us) == (("side",), 1, 5 * S)


def test_without_history_a_task_is_expected_to_take_as_long_as_its_family_did():
    projection = projection_of([(f"load_{n}", []) for n in range(1, 6)], max_parallel=8)
    board, builder = Board(projection), EventBuilder(projection)
    assert estimate(board, START, {}) is None
    for number, seconds in enumerate((5, 7, 9), 1):
        assert estimate(board, builder.at, {}) is None, "silent while fewer than three durations are known"
        board.apply(
            [*builder.start(f"load_{number}"), *builder.after(7).succeed(f"load_{number}", duration_us=seconds * S)]
        )
    assert estimate(board, builder.at, {}).left == (7 * S, 9 * S)


def test_a_requeue_with_a_rate_takes_as_long_as_its_rate_says():
    projection = projection_of([(f"load_{n}", []) for n in range(1080)], max_parallel=8)
    board = Board(projection)
    for number, row in enumerate(projection.tasks.values()):
        row.next_retry_at = START + number * S // 5
    history = dict.fromkeys(projection.tasks, DurationStats(S // 10, S // 5, 20))
    low, high = estimate(board, START, history).left
    assert (low, high) == (215_800_000 + S // 10, 215_800_000 + S // 5)


def test_the_band_goes_from_the_usual_to_the_slow_durations():
    board = Board(projection_of(CHAIN, max_parallel=8, deadline_at=START + 70 * S))
    history = {name: one._replace(p95_us=2 * one.p50_us) for name, one in HISTORY.items()}
    forecast = estimate(board, START, history)
    assert forecast.left == (60 * S, 120 * S)
    assert forecast.slack_us == 0, "neither in time nor late for certain"
    board.projection.run = board.projection.run._replace(paused_since=START)
    assert estimate(board, START, history) is None, "nothing starts in a paused run"


def test_a_held_breaker_blocks_the_run_as_a_dead_letter_does():
    projection = projection_of(CHAIN, {"b": {"downstream": "api"}}, max_parallel=8)
    board = Board(projection)
    board.snapshot.breakers["api"] = status_of("FORCED_OPEN")
    projection.tasks["a"].state, projection.tasks["b"].state = TaskState.SUCCESS, TaskState.READY
    forecast = estimate(board, START, HISTORY)
    assert (forecast.path, forecast.held, forecast.is_blocked_then) == (("side",), 2, True)
    words = plain(run_line(board, "x.db", forecast, START, 120, UTF8))
    assert "eta 5s then blocked: 2 held" in words


def test_nobody_knows_when_an_outage_ends():
    projection = projection_of([("get", []), ("sum", ["get"])], {"get": {"downstream": "api"}})
    projection.tasks["get"].state = TaskState.READY
    board = Board(projection)
    assert estimate(board, START, HISTORY) is not None
    board.snapshot.breakers["api"] = status_of("OPEN", START + 10 * S)
    assert estimate(board, START, HISTORY) is None


def test_a_task_that_runs_far_longer_than_expected_ends_the_forecast():
    projection = projection_of([*((f"part_{number}", []) for number in range(4)), ("load", [])])
    for number in range(4):
        row = projection.tasks[f"part_{number}"]
        row.state, row.attempt = TaskState.SUCCESS, 1
        row.attempts[1] = AttemptRow(1, started_at=START, ended_at=START + S, outcome="success", duration_us=S)
    load = projection.tasks["load"]
    load.state, load.attempt, load.started_at = TaskState.RUNNING, 1, START
    board = Board(projection)
    assert estimate(board, START + 5 * S, {}) is not None
    assert estimate(board, START + 60 * S, {}) is None, "it was: eta 0s"


@for_each("slots", [2, 3])
def test_there_is_no_forecast_for_what_waits_while_such_tasks_hold_all_slots(slots):
    projection = projection_of([(f"part_{number}", []) for number in range(9)], max_parallel=slots)
    board, builder = Board(projection), EventBuilder(projection)
    for number in range(4):
        board.apply([*builder.start(f"part_{number}"), *builder.succeed(f"part_{number}", duration_us=S)])
    board.apply([*builder.start("part_4"), *builder.start("part_5")])
    assert (estimate(board, builder.at + MINUTE, {}) is None) == (slots == 2), "it was: eta 2s"


def test_a_finished_run_has_no_forecast():
    projection = projection_of([("a", [])])
    board, builder = Board(projection), EventBuilder(projection)
    board.apply([*builder.start("a"), *builder.after(1).succeed("a", duration_us=S)])
    assert estimate(board, builder.at, {}) is None


def test_a_large_flow_is_not_scanned_more_often_than_every_few_seconds():
    projection = projection_of(layered(10_000, 20, seed=1))
    forecaster = Forecaster(Board(projection), dict.fromkeys(projection.tasks, DurationStats(S, S, 1)))
    first = forecaster.forecast(START)
    assert first is not None
    assert forecaster.forecast(START + 2 * S) is first
    later = forecaster.forecast(START + MINUTE)
    assert later is not first
    assert forecaster.forecast(START) is not later  # a minute earlier is as far away


def test_a_forecast_of_the_past_knows_nothing_of_what_came_later():
    """However large the flow, and however short ago it was."""
    projection = projection_of(layered(10_000, 20, seed=1))
    board, builder = Board(projection), EventBuilder(projection_of(layered(10_000, 20, seed=1)))
    roots = [name for name in projection.tasks if not projection.parents.get(name)][:3]
    forecaster, before = Forecaster(board, {}), board.snapshot
    later = Board(builder.projection)
    for root in roots:
        later.apply([*builder.start(root), *builder.succeed(root, duration_us=S)])
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


@for_each("elapsed, attempts, overdue", [(120, 9, False), (181, 9, True), (180, 9, False), (181, 2, False)])
def test_far_over_is_half_as_long_again_as_nearly_all_took(elapsed: int, attempts: int, overdue: bool):
    assert is_overdue(elapsed * S, DurationStats(60 * S, 120 * S, attempts)) is overdue


def test_a_task_of_seconds_is_not_overdue_after_some_more():
    assert not is_overdue(9 * S, DurationStats(S, 2 * S, 30))
    assert is_overdue(13 * S, DurationStats(S, 2 * S, 30))


def test_progress_is_missed_after_a_minute_or_three_times_what_a_part_took():
    projection = projection_of([("quick", []), ("slow", []), ("silent", [])])
    builder = EventBuilder(projection)
    events = [*builder.start("quick"), *builder.start("slow"), *builder.start("silent")]
    for name, done in (("quick", 50), ("slow", 5)):
        data = {"set": {"progress_done": done, "progress_total": 100}}
        events.append(builder.after(100).event(EventKind.TASK_CHANGED, name, data=data))
    for event in events:
        projection.apply(event)
    tasks, at = projection.tasks, builder.at
    assert stalled_for_us(tasks["quick"], at - 40 * S) is None
    assert stalled_for_us(tasks["quick"], at) == 100 * S
    assert stalled_for_us(tasks["slow"], at + 119 * S) is None  # a part took it 40 seconds so far
    assert stalled_for_us(tasks["slow"], at + 121 * S) == 121 * S
    assert stalled_for_us(tasks["silent"], at + 3600 * S) is None  # it never said how far it is


def test_the_slack_stays_in_a_narrow_header_when_the_end_has_no_room():
    projection = projection_of(CHAIN, max_parallel=8, deadline_at=START + 30 * MINUTE)
    board, builder = Board(projection), EventBuilder(projection)
    board.apply([*builder.start("a"), *builder.succeed("a"), *builder.start("b"), *builder.fail("b", "DEAD_LETTER")])
    forecast = estimate(board, START, HISTORY)
    assert "eta 5s then blocked" in plain(run_line(board, "x.db", forecast, START, 120, UTF8))
    narrow = plain(run_line(board, "nightly.db", forecast, START, 80, UTF8))
    assert "eta" not in narrow and "slack 29m55" in narrow
