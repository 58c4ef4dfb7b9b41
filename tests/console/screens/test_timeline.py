"""The timeline: every bar and mark at its instant, now as a line that walks, countdowns to the right of it."""

from __future__ import annotations

import pytest
from redrive.console.model.eta import critical_path
from redrive.console.model.time_span import Span
from redrive.console.present.timeline.axis import axis_line
from redrive.console.present.timeline.bars import bar_line, label_columns
from redrive.console.present.timeline.words import describe_attempt
from redrive.console.text.glyphs import ASCII, UTF8
from redrive.console.text.pieces import plain
from redrive.engine.core.projection import AttemptRow
from redrive.engine.domain.events import EventKind

from ..conftest import FakeSession, make_app
from ..model.runs import START, S, Story, projection_of
from .nights import Hand, at_the_console

FLOW = [("first", []), ("second", []), ("hang", []), ("third", ["first"]), ("last", ["third"])]


# --- One bar ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def story():
    projection = projection_of(FLOW)
    return Story(projection)


def apply(story, *batches):
    for batch in batches:
        for event in batch if isinstance(batch, list) else [batch]:
            story.projection.apply(event)


def drawn(story, name, now_seconds=None, per_cell=1.0, cells=24, glyphs=UTF8):
    span = Span(START, round(per_cell * S), cells)
    now = START + round(now_seconds * S) if now_seconds is not None else None
    return plain(bar_line(story.projection.tasks[name], span, now, glyphs)).rstrip()


def test_a_task_that_runs_reaches_to_now_and_shows_its_deadline_ahead(story):
    apply(story, story.start("first", timeout_us=12 * S))
    assert drawn(story, "first", 4) == "▆▆▆▆●       ▏"


def test_a_task_that_waits_for_its_turn_shows_now_alone(story):
    assert drawn(story, "first", 4) == "    │"


def test_failures_end_in_a_cross_and_backoffs_fill_the_gaps(story):
    apply(story, story.start("first"))
    apply(story, story.after(2).fail("first", "RETRYING", next_retry_at=story.at + 3 * S))
    apply(story, story.after(3).start("first"))
    apply(story, story.after(1).succeed("first"))
    assert drawn(story, "first") == "▆▆✗┄┄▆▆"


def test_a_backoff_that_goes_on_counts_down_right_of_now(story):
    apply(story, story.start("first"))
    apply(story, story.after(2).fail("first", "RETRYING", next_retry_at=START + 12 * S))
    assert drawn(story, "first", 5) == "▆▆✗┄┄┄┄┄┄┄┄┄▸ 7s"


def test_a_countdown_stays_in_view_however_far_its_end_is(story):
    apply(story, story.start("first"))
    apply(story, story.after(2).fail("first", "RETRYING", next_retry_at=START + 300 * S))
    assert drawn(story, "first", 5) == "▆▆✗┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▸ 4m55"
    assert drawn(story, "first", 22) == "▆▆✗┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▸"


def test_a_countdown_that_has_passed_says_how_long_ago(story):
    apply(story, story.start("first"))
    apply(story, story.after(2).fail("first", "RETRYING", next_retry_at=START + 3 * S))
    assert drawn(story, "first", 7) == "▆▆✗┄┄┄┄┄▸ due 4s"


def test_a_kill_shows_deadline_sigterm_grace_and_sigkill(story):
    apply(story, story.start("hang", timeout_us=5 * S))
    apply(story, _ladder(story, 5, 9))
    apply(story, story.fail("hang", "FAILED", "TimeoutError", attempt={"outcome": "timed_out"}))
    assert drawn(story, "hang") == "▆▆▆▆▆▏T┈┈K"
    assert drawn(story, "hang", per_cell=10) == "K"


def test_a_kill_under_way_shows_how_far_it_is(story):
    apply(story, story.start("hang", timeout_us=5 * S))
    story.after(5)
    apply(story, story.tell(EventKind.ATTEMPT_DEADLINE, "hang", attempt=1))
    apply(story, story.tell(EventKind.ATTEMPT_SIGTERM, "hang", attempt=1))
    assert drawn(story, "hang", 9) == "▆▆▆▆▆▏T┈┈●"


def test_a_lost_attempt_ends_in_a_question_mark(story):
    apply(story, story.start("first"))
    apply(story, story.after(3).fail("first", "RETRYING", attempt={"outcome": "lost"}))
    apply(story, story.after(2).start("first"))
    assert drawn(story, "first", 6) == "▆▆▆?┄▆●"


def test_a_dead_letter_ends_in_its_own_sign_and_its_requeue_leaves_a_gap_without_backoff(story):
    apply(story, story.start("first"))
    apply(story, story.after(2).fail("first", "DEAD_LETTER"))
    assert drawn(story, "first", 6) == "▆▆◆   │"
    apply(story, story.after(4).move("first", "PENDING", generation=1))
    apply(story, story.start("first", generation=1))
    assert drawn(story, "first", 8) == "▆▆✗   ▆▆●"


def test_a_failure_is_not_painted_over_by_what_follows_in_its_cell(story):
    apply(story, story.start("first"))
    apply(story, story.after(2).fail("first", "RETRYING"))
    apply(story, story.after(1).start("first"))
    apply(story, story.after(1).succeed("first"))
    assert drawn(story, "first", per_cell=10) == "✗"


def test_a_dead_letter_is_not_hidden_by_the_failures_before_it_in_its_cell(story):
    apply(story, story.start("first"))
    apply(story, story.after(1).fail("first", "RETRYING"))
    apply(story, story.after(1).start("first"))
    apply(story, story.after(1).fail("first", "DEAD_LETTER"))
    assert drawn(story, "first", per_cell=10) == "◆"


def test_a_skip_is_marked_when_it_was_decided(story):
    apply(story, story.after(4).move("first", "SKIPPED", ended_at=story.at))
    assert drawn(story, "first") == "    »"


def test_bars_are_cut_at_the_edges_of_the_view(story):
    apply(story, story.start("first"))
    span = Span(START + 10 * S, S, 5)
    assert plain(bar_line(story.projection.tasks["first"], span, START + 60 * S, UTF8)) == "▆▆▆▆▆"


def test_bars_are_ascii_where_the_terminal_is(story):
    apply(story, story.start("first", timeout_us=12 * S))
    apply(story, story.after(2).fail("first", "RETRYING", next_retry_at=START + 12 * S))
    assert drawn(story, "first", 5, glyphs=ASCII).isascii()


def _ladder(story, deadline, kill):
    at = story.at
    story.at = at + deadline * S
    events = [story.tell(EventKind.ATTEMPT_DEADLINE, "hang", attempt=1)]
    events.append(story.tell(EventKind.ATTEMPT_SIGTERM, "hang", attempt=1))
    story.at = at + kill * S
    return [*events, story.tell(EventKind.ATTEMPT_SIGKILL, "hang", attempt=1)]


def test_a_kill_is_told_in_one_sentence():
    attempt = AttemptRow(
        1,
        started_at=START,
        ended_at=START + 15 * S,
        outcome="timed_out",
        timeout_us=10 * S,
        where="re.match, parser.py:87",
    )
    attempt.deadline_at = attempt.sigterm_at = START + 10 * S
    attempt.sigkill_at = START + 15 * S
    assert describe_attempt(attempt, START) == (
        "03:06:40, deadline 10s passed at 03:06:50; SIGTERM; ignored for 5s; SIGKILL at 03:06:55; "
        "it was in re.match, parser.py:87"
    )


# --- The axis ---------------------------------------------------------------------------------------------------------


def test_labels_begin_at_round_instants_and_now_is_told():
    line = plain(axis_line(Span(START, S, 60), START + 55 * S, UTF8))
    assert line.index("03:07:00") == 20
    assert line.index("03:07:15") == 35
    assert line.index("now") == 55


def test_a_label_gives_way_to_now():
    line = plain(axis_line(Span(START, S, 60), START + 22 * S, UTF8))
    assert "03:07:00" not in line
    assert line.index("now") == 22


@pytest.mark.parametrize(("per_cell", "label"), [(60, "03:20"), (3600, "04-25"), (0.01, "03:06:40.2")])
def test_labels_are_as_fine_as_the_step(per_cell, label):
    assert label in plain(axis_line(Span(START, round(per_cell * S), 60), None, UTF8))


def test_names_get_a_third_of_the_screen_at_most():
    assert label_columns(["extract_orders"], 80) == 18
    assert label_columns(["x" * 90], 80) == 26
    assert label_columns(["a"], 80) == 12


# --- On the screen ----------------------------------------------------------------------------------------------------


@pytest.fixture
def night(clock):
    """One is done, one waits, one runs, two have not begun; ten seconds in."""
    projection = projection_of(FLOW)
    story = Story(projection)
    apply(story, story.start("second"), story.after(1).start("first"))
    apply(story, story.after(2).succeed("first", duration_us=2 * S), story.start("third", timeout_us=60 * S))
    apply(story, story.after(3).fail("second", "RETRYING", failures=1, next_retry_at=START + 15 * S))
    clock.now = START + 10 * S
    session = FakeSession(projection)
    session.story = story
    return session


def names(hand):
    return list(hand.app.screen.timeline.order)


async def test_rows_are_ordered_by_start_or_by_path(night, clock):
    async with at_the_console(night, clock, "3") as hand:
        assert names(hand) == ["second", "first", "third", "hang", "last"]
        assert "by start" in hand.lines[3]
        await hand.press("e")
        assert names(hand) == ["third", "second", "first", "hang", "last"]
        assert "by longest" in hand.lines[3]
        await hand.press("e")
        assert names(hand) == list(hand.app.live.board.dag.order)
        assert "by path" in hand.lines[3]
        await hand.press("e")
        assert names(hand) == ["second", "third", "first", "hang", "last"]
        assert "by problem" in hand.lines[3]
        await hand.press("e")
        assert "by start" in hand.lines[3]


async def test_a_task_that_begins_joins_those_that_have(night, clock):
    async with at_the_console(night, clock, "3") as hand:
        await hand.tell(night, night.story.start("hang"))
        assert names(hand) == ["second", "first", "third", "hang", "last"]
        await hand.tell(night, night.story.start("last"))
        assert names(hand)[-1] == "last"
        assert "●" in hand.find("hang")


async def test_the_whole_run_is_in_view_with_room_for_a_countdown(night, clock):
    async with at_the_console(night, clock, "3") as hand:
        assert hand.find("second").endswith("▸ 5s")
        for _ in range(40):
            clock.now += S
            hand.app.tick(clock.now)
        await hand.settle()
        span = hand.app.screen.timeline.span
        assert span.start <= START
        assert span.cell(clock.now) < span.cells - 8


async def test_zoom_and_pan_leave_the_whole_and_esc_returns(night, clock):
    async with at_the_console(night, clock, "3") as hand:
        whole = hand.app.screen.timeline.span
        await hand.press("equals_sign")
        assert hand.app.screen.timeline.span.per_cell < whole.per_cell
        await hand.press("minus", "minus")
        assert hand.app.screen.timeline.span.per_cell > whole.per_cell
        await hand.press("l")
        assert not hand.app.screen.timeline.is_following
        panned = hand.app.screen.timeline.span
        await hand.press("h")
        assert hand.app.screen.timeline.span.start < panned.start
        await hand.press("escape")
        assert hand.app.screen.timeline.span == whole


async def test_zoom_keeps_now_where_it_is(night, clock):
    async with at_the_console(night, clock, "3") as hand:
        await hand.press("g")  # a task that waits moves with now
        before = hand.app.screen.timeline.span.cell(clock.now)
        await hand.press("equals_sign")
        assert abs(hand.app.screen.timeline.span.cell(clock.now) - before) <= 1
        assert hand.lines[3].index("now") == hand.app.screen.timeline.label_columns + before


async def test_the_view_stands_still_on_f_and_follows_again(night, clock):
    async with at_the_console(night, clock, "3", "f") as hand:
        before = hand.app.screen.timeline.span
        clock.now += 600 * S
        hand.app.tick(clock.now)
        assert hand.app.screen.timeline.span == before
        await hand.press("f")
        assert hand.app.screen.timeline.span.cell(clock.now) < hand.app.screen.timeline.span.cells


async def test_a_second_paints_the_cells_of_now_and_of_countdowns_alone(night, clock, monkeypatch):
    async with at_the_console(night, clock, "3") as hand:
        painted = []
        timeline = hand.app.screen.timeline
        monkeypatch.setattr(timeline, "refresh", lambda *regions, **_: painted.extend(regions))
        clock.now += S
        hand.app.tick(clock.now)
        assert painted
        assert all(region.x >= timeline.label_columns for region in painted)
        assert sum(region.width for region in painted) < timeline.columns


async def test_the_selected_row_is_told_in_words(night, clock):
    async with at_the_console(night, clock, "3", "g") as hand:
        assert "second  ↻ retry in  5s" in hand.text
        assert "#1  03:06:40, failed after 6s: ValueError settle.py:87 in settle" in hand.text
        assert hand.app.selected == "second"


async def test_enter_shows_the_time_of_the_task_and_then_its_details(night, clock):
    async with at_the_console(night, clock, "3", "g", "j", "enter") as hand:
        span, first = hand.app.screen.timeline.span, hand.app.live.board.row("first").attempts[1]
        assert 0 <= span.cell(first.started_at) < span.cell(first.ended_at) < span.cells
        assert span.cell(first.ended_at) - span.cell(first.started_at) > span.cells // 2
        await hand.press("enter")
        assert "Attempts" in hand.text
        await hand.press("escape", "0")
        assert hand.app.screen.timeline.shows_whole_run


async def test_zoom_keeps_the_selected_task_in_its_place(night, clock):
    async with at_the_console(night, clock, "3", "g", "j") as hand:
        first = hand.app.live.board.row("first").attempts[1]
        middle = (first.started_at + first.ended_at) // 2
        place = hand.app.screen.timeline.span.cell(middle)
        await hand.press("equals_sign", "equals_sign", "equals_sign")
        hand.app.tick(clock.now)
        assert abs(hand.app.screen.timeline.span.cell(middle) - place) <= 1


async def test_a_run_that_waits_for_a_human_shows_its_night_and_the_length_of_the_wait(night, clock):
    story = night.story
    apply(story, story.fail("third", "DEAD_LETTER"), story.fail("second", "DEAD_LETTER"))
    clock.now = story.at + 38 * 60 * S
    async with at_the_console(night, clock, "3") as hand:
        span = hand.app.screen.timeline.span
        assert span.cell(story.at) - span.cell(START) > span.cells // 3
        assert " 38m00 " in hand.lines[3] and "now" in hand.lines[3]
        clock.now += 4 * 60 * S
        hand.app.tick(clock.now)
        await hand.settle()
        assert " 42m00 " in hand.lines[3]


async def test_a_finished_run_still_has_its_critical_path(night, clock):
    story = night.story
    apply(story, story.fail("second", "FAILED"))
    apply(story, story.after(2).succeed("third"), story.start("last"), story.after(1).succeed("last"))
    night.projection.run.ended_at = clock.now = story.at
    async with at_the_console(night, clock, "3", "c") as hand:
        assert hand.app.screen._critical == {"first", "third", "last"}
        assert "3 tasks decide the end" in hand.lines[-1]


async def test_the_filter_keeps_names_and_states(night, clock):
    async with at_the_console(night, clock, "3", "slash") as hand:
        await hand.type("retry")
        assert names(hand) == ["second"]
        await hand.press("escape")
        assert len(names(hand)) == 5


async def test_n_goes_to_the_next_problem(night, clock):
    async with at_the_console(night, clock, "3", "n") as hand:
        assert "nothing needs a human" in hand.lines[-1]
        await hand.tell(night, night.story.fail("third", "DEAD_LETTER"))
        await hand.press("n")
        assert hand.app.selected == "third"


async def test_acts_mean_the_selected_task(night, clock):
    async with at_the_console(night, clock, "3", "g", "b"):
        (command,) = night.commands
        assert (command.act, command.targets[0][0]) == ("hurry", "second")


async def test_a_run_that_is_over_has_no_now(night, clock):
    projection = night.projection
    projection.run.ended_at = clock.now
    async with at_the_console(night, clock, "3") as hand:
        assert "now" not in hand.lines[3]
        before = hand.text
        clock.now += 60 * S
        hand.app.tick(clock.now)
        await hand.settle()
        assert hand.text == before


async def test_the_critical_path_is_set_off_on_c(night, clock):
    async with at_the_console(night, clock, "3", "c") as hand:
        assert hand.app.screen._critical == frozenset(critical_path(hand.app.live.board, hand.app.live.forecast))
        await hand.press("c")
        assert not hand.app.screen._critical


# --- Pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 15)], ids=lambda size: "x".join(map(str, size)))
def test_picture(size, clock, snap_compare):
    app = make_app(_eventful(clock), clock)

    async def look(pilot):
        await Hand(app, pilot).press("3", "g", "j", "j")

    assert snap_compare(app, terminal_size=size, run_before=look)


def _eventful(clock):
    """A retry that heals, a kill, a dead letter, a sensor, a lost attempt, a countdown: a minute of them."""
    flow = [("extract_orders", []), ("extract_payments", []), ("hang_forever", []), ("partner_file", [])]
    flow += [("clean_orders", ["extract_orders"]), ("settle", ["extract_orders"]), ("report", ["settle"])]
    projection = projection_of(flow)
    projection.run.run_id, projection.run.dag_name = "run-2026-04-25", "revenue"
    story = Story(projection)
    for name in ("extract_orders", "extract_payments"):
        apply(story, story.start(name, timeout_us=120 * S))
    apply(story, story.start("partner_file"))
    hang = story.start("hang_forever", timeout_us=20 * S)
    apply(story, hang)
    tellings = [
        (
            2,
            lambda: story.move(
                "partner_file", "SENSING", {"outcome": "deferred", "ended_at": story.at}, next_retry_at=START + 40 * S
            ),
        ),
        (6, lambda: story.fail("extract_payments", "RETRYING", "ConnectTimeout", failures=1)),
        (10, lambda: story.start("extract_payments", timeout_us=120 * S)),
        (12, lambda: story.succeed("extract_orders", duration_us=12 * S)),
        (12, lambda: [*story.start("clean_orders", timeout_us=60 * S), *story.start("settle")]),
        (15, lambda: story.fail("settle", "RETRYING", "ZeroDivisionError", failures=1)),
        (16, lambda: story.fail("extract_payments", "RETRYING", "ConnectTimeout", failures=2)),
        (19, lambda: story.start("settle")),
        (20, lambda: story.tell(EventKind.ATTEMPT_DEADLINE, "hang_forever", attempt=1)),
        (20, lambda: story.tell(EventKind.ATTEMPT_SIGTERM, "hang_forever", attempt=1)),
        (22, lambda: story.fail("settle", "DEAD_LETTER", "ZeroDivisionError", failures=2, dead_letter_kind="poison")),
        (25, lambda: story.tell(EventKind.ATTEMPT_SIGKILL, "hang_forever", attempt=1)),
        (25, lambda: story.fail("hang_forever", "FAILED", "TimeoutError", failures=1, attempt=_hung())),
        (26, lambda: story.start("extract_payments", timeout_us=120 * S)),
        (
            30,
            lambda: story.fail(
                "extract_payments", "RETRYING", "ConnectTimeout", failures=3, next_retry_at=START + 48 * S
            ),
        ),
    ]
    for second, tell in tellings:
        story.at = START + second * S
        told = tell()
        apply(story, told if isinstance(told, list) else [told])
    clock.now = START + 34 * S
    return FakeSession(projection)


def _hung():
    return {"outcome": "timed_out", "where": "re.match, parser.py:87", "error": "task exceeded 20 s"}
