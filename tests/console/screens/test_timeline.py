"""The timeline: every bar and mark at its instant, now as a line that walks, countdowns to the right of it."""

from __future__ import annotations

import json

import pytest
from redrive.console.model.board import Board
from redrive.console.model.eta import critical_path
from redrive.console.model.time_axis import Span
from redrive.console.model.timeline import HangRow, TimelineRows
from redrive.console.present.tasks import RunContext, TaskNames
from redrive.console.present.timeline import BarContext, axis_line, bar_line, fit_label_columns, hang_line, wait_words
from redrive.console.present.timeline_text import bar_entries, bar_legend, describe_attempt, task_lines
from redrive.console.text.glyphs import ASCII, UTF8
from redrive.console.text.pieces import Role, plain, width
from redrive.engine.core.projection import AttemptRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.core.views import attempt_view, task_view
from redrive.engine.core.waiting import ALIVE, RunnerKind, RunnerStatus
from redrive.engine.domain.event_codec import encode
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.statefile.logs import AttemptText, LogChunk
from support.marks import parametrize_mostly_long

from ..conftest import FakeSession, make_app
from ..model.runs import START, EventBuilder, S, projection_of
from .outages import outage
from .screen_driver import open_console, pressing

FLOW = [("first", []), ("second", []), ("hang", []), ("third", ["first"]), ("last", ["third"])]


# --- One bar ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def builder():
    projection = projection_of(FLOW)
    return EventBuilder(projection)


def apply(builder, *batches):
    for batch in batches:
        for event in batch if isinstance(batch, list) else [batch]:
            builder.projection.apply(event)


def drawn(builder, name, now_seconds=None, per_cell=1.0, cells=24, glyphs=UTF8):
    span = Span(START, round(per_cell * S), cells)
    now = START + round(now_seconds * S) if now_seconds is not None else None
    return plain(
        bar_line(
            builder.projection.tasks[name],
            BarContext(span, now, glyphs),
            due_at=builder.projection.tasks[name].next_retry_at,
        )
    ).rstrip()


def test_a_task_that_runs_reaches_to_now_and_shows_its_deadline_ahead(builder):
    apply(builder, builder.start("first", timeout_us=12 * S))
    assert drawn(builder, "first", 4) == "▆▆▆▆●       ▏"


def test_a_task_that_waits_for_its_turn_shows_now_alone(builder):
    assert drawn(builder, "first", 4) == "    │"


def test_failures_end_in_a_cross_and_backoffs_fill_the_gaps(builder):
    apply(builder, builder.start("first"))
    apply(builder, builder.after(2).fail("first", "RETRYING", next_retry_at=builder.at + 3 * S))
    apply(builder, builder.after(3).start("first"))
    apply(builder, builder.after(1).succeed("first"))
    assert drawn(builder, "first") == "▆▆✗┄┄▆▆"


def test_a_backoff_that_goes_on_counts_down_right_of_now(builder):
    apply(builder, builder.start("first"))
    apply(builder, builder.after(2).fail("first", "RETRYING", next_retry_at=START + 12 * S))
    assert drawn(builder, "first", 5) == "▆▆✗┄┄┄┄┄┄┄┄┄▸ 7s"


def test_a_countdown_stays_in_view_however_far_its_end_is(builder):
    apply(builder, builder.start("first"))
    apply(builder, builder.after(2).fail("first", "RETRYING", next_retry_at=START + 300 * S))
    assert drawn(builder, "first", 5) == "▆▆✗┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▸ 4m55"
    assert drawn(builder, "first", 22) == "▆▆✗┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄▸"


def test_a_countdown_that_has_passed_says_how_long_ago(builder):
    apply(builder, builder.start("first"))
    apply(builder, builder.after(2).fail("first", "RETRYING", next_retry_at=START + 3 * S))
    assert drawn(builder, "first", 7) == "▆▆✗┄┄┄┄┄▸ due 4s"


def test_a_kill_shows_deadline_sigterm_grace_and_sigkill(builder):
    apply(builder, builder.start("hang", timeout_us=5 * S))
    apply(builder, _ladder(builder, 5, 9))
    apply(builder, builder.fail("hang", "FAILED", "TimeoutError", attempt={"outcome": "timed_out"}))
    assert drawn(builder, "hang") == "▆▆▆▆▆▏T┈┈K"
    assert drawn(builder, "hang", per_cell=10) == "K"


def test_no_work_is_drawn_between_the_kill_and_the_end_of_what_was_killed(builder):
    apply(builder, builder.start("hang", timeout_us=5 * S))
    apply(builder, _ladder(builder, 5, 9))
    apply(builder, builder.after(2).fail("hang", "FAILED", "TimeoutError", attempt={"outcome": "timed_out"}))
    assert drawn(builder, "hang") == "▆▆▆▆▆▏T┈┈K┈┈"


def test_below_a_killed_attempt_stands_where_it_hung(builder):
    """From its start on where there is room, else up to its end; only of what was killed."""
    apply(builder, builder.start("hang", timeout_us=5 * S))
    assert [*TimelineRows(Board(builder.projection)).with_hangs()][:1] == ["hang"]
    apply(builder, _ladder(builder, 5, 9))
    error = "task exceeded 5 s: asleep at demo.py:63"
    apply(builder, builder.fail("hang", "FAILED", "TimeoutError", attempt={"outcome": "timed_out", "error": error}))
    rows = TimelineRows(Board(builder.projection))
    assert [*rows.with_hangs()][:2] == ["hang", HangRow("hang")] and HangRow("hang") not in rows.rows()
    row = builder.projection.tasks["hang"]
    wide, narrow = (plain(hang_line(row, BarContext(Span(START, S, cells), None, UTF8))) for cells in (40, 12))
    assert wide.rstrip() == "╰ asleep at demo.py:63" and narrow == "asleep at… ╯"
    busy = plain(hang_line(row, BarContext(Span(START, S // 10, 80), None, UTF8), [0, 9, 4]))
    assert "▁▁▁▁▁▁██████████▄▄▄▄▄▄▄▄▄▄" in busy, "the last three seconds before its timeout"
    late = Span(START - 25 * S, S, 36)
    assert plain(hang_line(row, BarContext(late, None, UTF8))) == "             asleep at demo.py:63 ╯ "


@pytest.mark.parametrize("glyphs", [UTF8, ASCII], ids=["utf8", "ascii"])
def test_the_legend_names_the_signs_that_are_there_and_no_others(builder, glyphs):
    def legend(name: str, start: int = START, before: str = "") -> list[str]:
        bar = bar_line(builder.projection.tasks[name], BarContext(Span(start, S, 60), None, glyphs), name=before)
        return [
            entry.split(" ", 1)[1] for entry in plain(bar_legend([bar], glyphs, 200)[0]).strip().split("  ") if entry
        ]

    assert legend("hang") == []
    apply(builder, builder.start("hang", timeout_us=5 * S))
    apply(builder, _ladder(builder, 5, 9))
    apply(builder, builder.fail("hang", "FAILED", "TimeoutError", attempt={"outcome": "timed_out"}))
    assert legend("hang") == ["ran", "timeout", "SIGTERM", "grace", "SIGKILL"]
    assert legend("hang", START - 45 * S, before="TxK") == legend("hang"), "a name before a bar is no sign"


def test_each_killed_attempt_says_below_its_bar_where_it_hung_as_far_as_there_is_room(builder):
    row = builder.projection.tasks["hang"]
    error = "task exceeded 15s: blocked in recv at demo.py:63 in hang, 0 % CPU for the last 15s"
    for number, start in ((1, START), (2, START + 34 * S)):
        row.attempts[number] = AttemptRow(
            number, 0, start, start + 31 * S, outcome="timed_out", error=error, where="demo.py:63 in hang",
            sigterm_at=start + 15 * S,
        )  # fmt: skip
    lines = [plain(hang_line(row, BarContext(Span(START, S, cells), None, UTF8))).rstrip() for cells in (68, 80, 130)]
    assert lines[0] == "╰ it was in demo.py:63 in hang ╯  ╰ it was in demo.py:63 in hang ╯"
    assert lines[1] == "╰ it was in demo.py:63 in hang ╯  ╰ blocked in recv at demo.py:63 in hang"
    assert lines[2].endswith(f"╰ {error.partition(': ')[2]}"), "the latest has the room after it"


def test_a_kill_under_way_shows_how_far_it_is(builder):
    apply(builder, builder.start("hang", timeout_us=5 * S))
    builder.after(5)
    apply(builder, builder.event(EventKind.ATTEMPT_DEADLINE, "hang", attempt=1))
    apply(builder, builder.event(EventKind.ATTEMPT_SIGTERM, "hang", attempt=1))
    assert drawn(builder, "hang", 9) == "▆▆▆▆▆▏T┈┈●"


def test_a_lost_attempt_ends_in_a_question_mark(builder):
    apply(builder, builder.start("first"))
    apply(builder, builder.after(3).fail("first", "RETRYING", attempt={"outcome": "lost"}))
    apply(builder, builder.after(2).start("first"))
    assert drawn(builder, "first", 6) == "▆▆▆?┄▆●"


def test_an_attempt_whose_executor_died_ends_as_cut_off_and_not_as_running(builder):
    apply(builder, builder.start("first"))
    span, dead = Span(START, S, 24), RunnerStatus(RunnerKind.GONE, ExecutorState(gone_at=START + 4 * S))
    line = bar_line(builder.projection.tasks["first"], BarContext(span, START + 20 * S, UTF8, dead))
    assert plain(line) == "▆▆▆▆○" + " " * 15 + "│" + " " * 3
    assert Role.RUNNING not in {piece.role for piece in line}


def test_a_dead_letter_ends_in_its_own_sign_and_its_requeue_leaves_a_gap_without_backoff(builder):
    apply(builder, builder.start("first"))
    apply(builder, builder.after(2).fail("first", "DEAD_LETTER"))
    assert drawn(builder, "first", 6) == "▆▆◆   │"
    apply(builder, builder.after(4).move("first", "PENDING", generation=1))
    apply(builder, builder.start("first", generation=1))
    assert drawn(builder, "first", 8) == "▆▆✗   ▆▆●"


def test_a_failure_is_not_painted_over_by_what_follows_in_its_cell(builder):
    apply(builder, builder.start("first"))
    apply(builder, builder.after(2).fail("first", "RETRYING"))
    apply(builder, builder.after(1).start("first"))
    apply(builder, builder.after(1).succeed("first"))
    assert drawn(builder, "first", per_cell=10) == "✗"


def test_a_dead_letter_is_not_hidden_by_the_failures_before_it_in_its_cell(builder):
    apply(builder, builder.start("first"))
    apply(builder, builder.after(1).fail("first", "RETRYING"))
    apply(builder, builder.after(1).start("first"))
    apply(builder, builder.after(1).fail("first", "DEAD_LETTER"))
    assert drawn(builder, "first", per_cell=10) == "◆"


def test_a_skip_is_marked_when_it_was_decided(builder):
    apply(builder, builder.after(4).move("first", "SKIPPED", ended_at=builder.at))
    assert drawn(builder, "first") == "    »"


def test_bars_are_cut_at_the_edges_of_the_view(builder):
    apply(builder, builder.start("first"))
    span = Span(START + 10 * S, S, 5)
    assert plain(bar_line(builder.projection.tasks["first"], BarContext(span, START + 60 * S, UTF8))) == "▆▆▆▆▆"


def test_bars_are_ascii_where_the_terminal_is(builder):
    apply(builder, builder.start("first", timeout_us=12 * S))
    apply(builder, builder.after(2).fail("first", "RETRYING", next_retry_at=START + 12 * S))
    assert drawn(builder, "first", 5, glyphs=ASCII).isascii()


def _ladder(builder, deadline, kill):
    at = builder.at
    builder.at = at + deadline * S
    events = [builder.event(EventKind.ATTEMPT_DEADLINE, "hang", attempt=1)]
    events.append(builder.event(EventKind.ATTEMPT_SIGTERM, "hang", attempt=1))
    builder.at = at + kill * S
    return [*events, builder.event(EventKind.ATTEMPT_SIGKILL, "hang", attempt=1)]


def test_a_kill_is_reported_in_one_sentence():
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
    assert describe_attempt(attempt, attempt_view(attempt, START, ALIVE)) == (
        "03:06:40, timeout 10s passed at 03:06:50; it was in re.match, parser.py:87; "
        "SIGTERM; ignored for 5s; SIGKILL at 03:06:55"
    )


def test_where_it_hung_has_room_before_the_steps_of_the_kill_and_a_cut_is_marked(builder):
    place = "asleep at demo.py:63 in fetch_calendar, 0 % CPU for 9s"
    apply(builder, builder.start("hang"), builder.after(12).fail("hang", attempt={"outcome": "timed_out"}))
    attempt = builder.projection.tasks["hang"].attempts[1]
    attempt.deadline_at = attempt.sigterm_at = START + 9 * S
    attempt.sigkill_at, attempt.error = START + 12 * S, f"task exceeded 9s: {place}"
    apply(builder, builder.start("hang"), builder.after(2).succeed("hang"))
    context = RunContext(Board(builder.projection), builder.at, UTF8)
    row = builder.projection.tasks["hang"]
    shown = [plain(line).rstrip() for line in task_lines(row, context, 80, 4)]
    assert place in " ".join(" ".join(shown).split())
    assert shown[-1].endswith("SIGKILL at …")
    assert "…" not in plain(task_lines(row, context, 80, 5)[-1])


# --- The axis ---------------------------------------------------------------------------------------------------------


def test_labels_begin_at_round_instants_and_now_is_reported():
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
    assert fit_label_columns(14, 80) == 18
    assert fit_label_columns(90, 80) == 26
    assert fit_label_columns(1, 80) == 12


# --- On the screen ----------------------------------------------------------------------------------------------------


@pytest.fixture
def session(clock):
    """One is done, one waits, one runs, two have not begun; ten seconds in."""
    projection = projection_of(FLOW)
    builder = EventBuilder(projection)
    apply(builder, builder.start("second"), builder.after(1).start("first"))
    apply(builder, builder.after(2).succeed("first", duration_us=2 * S), builder.start("third", timeout_us=60 * S))
    apply(builder, builder.after(3).fail("second", "RETRYING", failures=1, next_retry_at=START + 15 * S))
    clock.now = START + 10 * S
    session = FakeSession(projection)
    session.builder = builder
    return session


def names(driver):
    return list(driver.app.screen.timeline.order)


async def test_rows_follow_each_other_as_they_began(session, clock):
    async with open_console(session, clock, "3") as driver:
        assert names(driver) == ["second", "first", "third", "hang", "last"]
        assert " task " in driver.lines[3]
        # a task that begins joins those that have
        await driver.emit(session, session.builder.start("hang"))
        assert names(driver) == ["second", "first", "third", "hang", "last"]
        await driver.emit(session, session.builder.start("last"))
        assert names(driver)[-1] == "last"
        assert "●" in driver.find("hang")


async def test_the_whole_run_is_in_view_with_room_for_a_countdown(session, clock):
    async with open_console(session, clock, "3") as driver:
        timeline = driver.app.screen.timeline
        assert driver.find("second").endswith("▸ 5s")
        for _ in range(40):
            clock.now += S
            driver.app.tick(clock.now)
        await driver.settle()
        assert timeline.span.start <= START
        assert timeline.span.cell(clock.now) < timeline.span.cells - 8
        await driver.press("f")  # the view stands still, and follows again
        before = timeline.span
        clock.now += 600 * S
        driver.app.tick(clock.now)
        assert timeline.span == before
        await driver.press("f")
        assert timeline.span.cell(clock.now) < timeline.span.cells


async def test_zoom_and_pan_leave_the_whole_and_esc_returns(session, clock):
    async with open_console(session, clock, "3") as driver:
        timeline, first = driver.app.screen.timeline, driver.app.live.board.row("first").attempts[1]
        whole = timeline.span
        await driver.press("equals_sign")
        assert timeline.span.per_cell < whole.per_cell
        await driver.press("minus", "minus")
        assert timeline.span == whole and "the whole run is shown" in driver.text
        await driver.press("equals_sign", "l")
        assert not timeline.is_following
        panned = timeline.span
        await driver.press("h")
        assert timeline.span.start < panned.start
        await driver.press("escape")
        assert timeline.span == whole
        await driver.press("g")  # a task that waits moves with now
        before = timeline.span.cell(clock.now)
        await driver.press("equals_sign")
        assert abs(timeline.span.cell(clock.now) - before) <= 1, "zoom keeps now where it is"
        assert driver.lines[3].index("now") == timeline.label_columns + before
        await driver.press("escape", "j")
        middle = (first.started_at + first.ended_at) // 2
        place = timeline.span.cell(middle)
        await driver.press("equals_sign", "equals_sign", "equals_sign")
        driver.app.tick(clock.now)
        assert abs(timeline.span.cell(middle) - place) <= 1, "zoom keeps the selected task in its place"
        await driver.press("escape", "enter")
        assert 0 <= timeline.span.cell(first.started_at) < timeline.span.cell(first.ended_at) < timeline.span.cells
        shown_cells = timeline.span.cell(first.ended_at) - timeline.span.cell(first.started_at)
        assert shown_cells > timeline.span.cells // 2, "Enter shows the time of the task, and then its details"
        await driver.press("enter")
        assert "Followed by" in driver.text
        await driver.press("escape", "0")
        assert timeline.shows_whole_run


async def test_a_second_paints_the_cells_of_now_and_of_countdowns_alone(session, clock, monkeypatch):
    async with open_console(session, clock, "3") as driver:
        painted = []
        timeline = driver.app.screen.timeline
        monkeypatch.setattr(timeline, "refresh", lambda *regions, **_: painted.extend(regions))
        clock.now += S
        driver.app.tick(clock.now)
        assert painted
        assert all(region.x >= timeline.label_columns for region in painted)
        assert sum(region.width for region in painted) < timeline.columns


async def test_the_selected_row_is_reported_in_words_and_acts_mean_it(session, clock):
    async with open_console(session, clock, "3", "g") as driver:
        assert "second  ↻ retry in  5s" in driver.text
        assert "#1  03:06:40, failed after 6s: ValueError settle.py:87 in settle" in driver.text
        assert driver.app.selected == "second"
        await driver.press("b")
        (command,) = session.commands
        assert (command.act, command.targets[0][0]) == ("hurry", "second")
        await driver.press("slash")
        await driver.type("retry")
        assert names(driver) == ["second"], "the filter keeps names and states"
        await driver.press("escape")
        assert len(names(driver)) == 5
        await driver.press("c")
        live = driver.app.live
        assert driver.app.screen.labels.critical == {*critical_path(live.board, live.forecast, live.now_us, ALIVE)}
        await driver.press("c")
        assert not driver.app.screen.labels.critical


async def test_a_run_that_waits_for_a_human_shows_its_work_and_the_length_of_the_wait(session, clock):
    builder = session.builder
    apply(builder, builder.fail("third", "DEAD_LETTER"), builder.fail("second", "DEAD_LETTER"))
    clock.now = builder.at + 38 * 60 * S
    async with open_console(session, clock, "3") as driver:
        span = driver.app.screen.timeline.span
        assert span.cell(builder.at) - span.cell(START) > span.cells // 3
        assert " 38m00 " in driver.lines[3] and "now" in driver.lines[3]
        clock.now += 4 * 60 * S
        driver.app.tick(clock.now)
        await driver.settle()
        assert " 42m00 " in driver.lines[3]


async def test_a_finished_run_still_has_its_critical_path(session, clock):
    builder = session.builder
    apply(builder, builder.fail("second", "FAILED"))
    apply(builder, builder.after(2).succeed("third"), builder.start("last"), builder.after(1).succeed("last"))
    clock.now = builder.at
    session.projection.run = session.projection.run._replace(ended_at=builder.at)
    async with open_console(session, clock, "3", "c") as driver:
        assert driver.app.screen.labels.critical == {"first", "third", "last"}
        assert "critical path: 3 tasks" in driver.lines[-1]


async def test_the_time_of_several_attempts_is_said_with_their_number(session, clock):
    builder = session.builder
    apply(builder, builder.fail("third"), builder.start("third"), builder.after(9).fail("third", "DEAD_LETTER"))
    clock.now = builder.at
    async with open_console(session, clock, "3", "c", size=(120, 40)) as driver:
        assert ", the longest third 12s in 2 attempts" in driver.lines[-1]


async def test_n_goes_to_the_next_problem(session, clock):
    async with open_console(session, clock, "3", "n") as driver:
        assert "nothing needs a human" in driver.lines[-1]
        await driver.emit(session, session.builder.fail("third", "DEAD_LETTER"))
        await driver.press("n")
        assert driver.app.selected == "third"


async def test_a_run_that_is_over_has_no_now(session, clock):
    projection = session.projection
    projection.run = projection.run._replace(ended_at=clock.now)
    async with open_console(session, clock, "3") as driver:
        assert "now" not in driver.lines[3]
        before = driver.text
        clock.now += 60 * S
        driver.app.tick(clock.now)
        await driver.settle()
        assert driver.text == before


# --- Pictures ---------------------------------------------------------------------------------------------------------


@parametrize_mostly_long("size", [(80, 24), (120, 40), (40, 15)], ids=lambda size: "x".join(map(str, size)), quick=1)
def test_picture(size, clock, snap_compare):
    app = make_app(_eventful(clock), clock)
    assert snap_compare(app, terminal_size=size, run_before=pressing(app, "3", "g", "j", "j"))


def _eventful(clock):
    """A retry that heals, a kill, a dead letter, a sensor, a lost attempt, a countdown: a minute of them."""
    flow = [("extract_orders", []), ("extract_payments", []), ("hang_forever", []), ("partner_file", [])]
    flow += [("clean_orders", ["extract_orders"]), ("settle", ["extract_orders"]), ("report", ["settle"])]
    projection = projection_of(flow)
    projection.run = projection.run._replace(run_id="run-2026-04-25", dag_name="revenue")
    builder = EventBuilder(projection)
    for name in ("extract_orders", "extract_payments"):
        apply(builder, builder.start(name, timeout_us=120 * S))
    apply(builder, builder.start("partner_file"))
    hang = builder.start("hang_forever", timeout_us=20 * S)
    apply(builder, hang)
    tellings = [
        (
            2,
            lambda: builder.move(
                "partner_file", "SENSING", {"outcome": "deferred", "ended_at": builder.at}, next_retry_at=START + 40 * S
            ),
        ),
        (6, lambda: builder.fail("extract_payments", "RETRYING", "ConnectTimeout", failures=1)),
        (10, lambda: builder.start("extract_payments", timeout_us=120 * S)),
        (12, lambda: builder.succeed("extract_orders", duration_us=12 * S)),
        (12, lambda: [*builder.start("clean_orders", timeout_us=60 * S), *builder.start("settle")]),
        (15, lambda: builder.fail("settle", "RETRYING", "ZeroDivisionError", failures=1)),
        (16, lambda: builder.fail("extract_payments", "RETRYING", "ConnectTimeout", failures=2)),
        (19, lambda: builder.start("settle")),
        (20, lambda: builder.event(EventKind.ATTEMPT_DEADLINE, "hang_forever", attempt=1)),
        (20, lambda: builder.event(EventKind.ATTEMPT_SIGTERM, "hang_forever", attempt=1)),
        (22, lambda: builder.fail("settle", "DEAD_LETTER", "ZeroDivisionError", failures=2, dead_letter_kind="poison")),
        (25, lambda: builder.event(EventKind.ATTEMPT_SIGKILL, "hang_forever", attempt=1)),
        (25, lambda: builder.fail("hang_forever", "FAILED", "TimeoutError", failures=1, attempt=_hung())),
        (26, lambda: builder.start("extract_payments", timeout_us=120 * S)),
        (
            30,
            lambda: builder.fail(
                "extract_payments", "RETRYING", "ConnectTimeout", failures=3, next_retry_at=START + 48 * S
            ),
        ),
    ]
    for second, emit in tellings:
        builder.at = START + second * S
        emitted = emit()
        apply(builder, emitted if isinstance(emitted, list) else [emitted])
    clock.now = START + 34 * S
    return FakeSession(projection)


def _hung():
    return {"outcome": "timed_out", "where": "re.match, parser.py:87", "error": "task exceeded 20 s"}


# --- Below the bars ---------------------------------------------------------------------------------------------------


async def test_the_axis_breaks_when_the_executor_dies_before_the_eyes(revenue, clock):
    async with open_console(revenue, clock, "3", size=(120, 40)) as driver:
        clock.now += 2 * S
        revenue.set_status(executor=ExecutorState(gone_at=clock.now))
        await driver.settle()
        clock.now += 480 * S
        driver.app.tick(clock.now)
        await driver.settle()
        (axis,) = [line for line in driver.lines if line.startswith(" task ")]
        assert "┄ 8m00 ┄" in axis
        row = driver.find("○ clean_orders")
        assert row.count("▆") > 40, "29 s of work are not a few cells of nine minutes"


async def test_free_rows_below_the_bars_show_the_details_of_the_selected_task(revenue, clock):
    revenue.texts = {("clean_refunds", 2): AttemptText(traceback="Traceback\n  settle.py, line 87\n")}
    async with open_console(revenue, clock, "3", "n", size=(200, 55)) as driver:
        assert "holds 3 tasks and the run's end" in driver.text
        assert "settle.py, line 87" in driver.text
        await driver.press("tab")
        assert driver.app.screen.detail.has_focus and driver.lines[-1].startswith(" Tab list")
        await driver.press("escape")
        assert driver.app.screen.timeline.has_focus
        await driver.press("tab")
        await driver.pilot.resize_terminal(80, 24)
        await driver.settle()
        assert driver.app.screen.timeline.has_focus, "the details have no room any more"
    async with open_console(revenue, clock, "3", "n") as driver:
        assert "holds 3 tasks" not in driver.text


async def test_a_breaker_that_opened_has_a_band_below_the_bars(clock):
    session = outage(clock)
    opened = {"downstream": "rates-api", "state": "OPEN", "reopens_at": clock.now}
    session.lists["events_of_kind"] = [
        event_row(session.builder.event(EventKind.BREAKER, data=opened), clock.now - 30 * S)
    ]
    async with open_console(session, clock, "3", size=(120, 40)) as driver:
        band = driver.find(" breaker rates-api ")
        columns = driver.app.screen.timeline.label_columns
        span = driver.app.screen.timeline.span
        assert band[columns:].index("▆") == span.cell(clock.now - 30 * S) and band.endswith("▆ open")
        session.builder.at = clock.now
        half = session.builder.event(EventKind.BREAKER, data={"downstream": "rates-api", "state": "HALF_OPEN"})
        closed = session.builder.after(4).event(EventKind.BREAKER, data={"downstream": "rates-api", "state": "CLOSED"})
        clock.now += 6 * S
        await driver.emit(session, half, closed)
        band = driver.find(" breaker rates-api ")
        assert "▆░" in band and "open" not in band
        assert "payments-api" not in driver.text, "it was closed all the time"


def event_row(event, at):
    """A row of the table of events."""
    return {**event._asdict(), "at": at, "data": json.dumps(encode(event.payload))}


async def test_free_rows_show_how_long_earlier_attempts_took_beside_the_timeout(revenue, clock):
    revenue.projection.tasks["clean_orders"].spec = TaskSpec("clean_orders", timeout=300.0)
    past = [("success", 100), ("timed_out", 300), ("success", 120), ("running", None), ("lost", 9)]
    revenue.lists["history"] = [{"outcome": outcome, "duration_us": lasts and lasts * S} for outcome, lasts in past]
    async with open_console(revenue, clock, "3", size=(200, 55)) as driver:
        driver.app.screen.timeline.move_to_key("clean_orders")
        await driver.settle()
        assert driver.text.count("In each attempt · at most 5m00 · timeout 5m00 (1.0 times that)") == 1
        assert driver.find("5m00 ┄").endswith("5m00 ┄┄┄┄┄███┄┄┄┄┄┄┄┄"), "the second of three reached it; one runs"


async def test_a_click_beside_the_order_above_the_names_does_nothing(revenue, clock):
    async with open_console(revenue, clock, "3", size=(120, 40)) as driver:
        screen, before = driver.app.screen, driver.text
        await driver.pilot.click(screen.axis, offset=(screen.timeline.label_columns - 1, 0))
        await driver.settle()
        assert driver.text == before


# --- The axis of a run in which nothing is due ------------------------------------------------------------------------


@parametrize_mostly_long("size", [(120, 40), (200, 50)], ids=["120x40", "200x50"])
@pytest.mark.parametrize("is_open_before", [True, False], ids=["watched", "opened later"])
async def test_the_axis_of_a_blocked_run_ends_at_now(clock, size, is_open_before):
    projection = projection_of([(f"t{number}", []) for number in range(8)])
    builder = EventBuilder(projection)
    session = FakeSession(projection)
    events = [event for name in projection.tasks for event in builder.start(name)]
    builder.after(8)
    events += [
        event for name in projection.tasks for event in builder.fail(name, "DEAD_LETTER", "ValueError", failures=1)
    ]
    ended_at, clock.now = builder.at, START
    if not is_open_before:
        for event in events:
            projection.apply(event)
    async with open_console(session, clock, "3", size=size) as driver:
        if is_open_before:
            await driver.emit(session, events)
        for seconds in (1, 5, 20, 60, 300, 301):
            clock.now = ended_at + seconds * S
            driver.app.tick(clock.now)
            await driver.settle()
        span = driver.app.screen.timeline.span
        assert span.cells * 3 // 4 <= span.cell(clock.now) < span.cells
        assert span.cell(ended_at) >= span.cells // 2  # what happened has most of the width


async def test_the_time_beside_a_name_is_of_its_latest_attempt(session, clock):
    builder = session.builder
    apply(builder, builder.after(9).fail("hang"), builder.start("hang"), builder.after(9).fail("hang", "DEAD_LETTER"))
    apply(builder, builder.after(10).succeed("third"), builder.fail("second", "FAILED"))
    apply(builder, builder.start("last"), builder.after(12).succeed("last"))
    clock.now = builder.at
    async with open_console(session, clock, "3", size=(200, 55)) as driver:
        columns = driver.app.screen.timeline.label_columns
        title = driver.find(" took ")
        assert title.index("took ") + len("took ") == columns
        assert driver.find(" hang ")[:columns].split()[-1] == "9s"


def test_a_long_wait_is_a_line_that_says_for_what(builder):
    apply(builder, builder.start("first"), builder.after(3).fail("first", "DEAD_LETTER"))
    row, now = builder.projection.tasks["first"], builder.after(30).at
    wait = wait_words(row, task_view(builder.projection, "first", now))
    assert (
        plain(bar_line(row, BarContext(Span(START, S, 34), now, UTF8), wait=wait))
        == "▆▆▆◆┄ waits for you ┄┄┄┄┄┄┄┄┄┄┄┄┄│"
    )
    pending = builder.projection.tasks["last"]
    assert not wait_words(pending, task_view(builder.projection, "last", now)), "it waits for others, and says so there"
    paused = bar_line(pending, BarContext(Span(START, S, 60), now, UTF8), name="last", wait="the run is paused")
    assert "last" not in plain(paused), "its label is beside it: nothing has run before"


def test_the_legend_of_a_narrow_pane_goes_on_in_a_second_row():
    painted = bar_entries(UTF8)
    rows = bar_legend(painted, UTF8, 59, 2, has_groups=True)
    shown = " ".join(" ".join(map(plain, rows)).split())
    assert len(rows) == 2 and all(width(row) <= 59 for row in rows)
    assert all(word in shown for word in ("SIGTERM", "grace", "SIGKILL", "dead letter")), shown


def test_the_selected_task_is_named_as_its_row_names_it(builder):
    """Without what all begin with, which took the room of the message."""
    names = [f"NFCORE_VIRALRECON.ILLUMINA.{step}" for step in ("ASSEMBLY_UNICYCLER", "FASTQC")]
    context = RunContext(
        Board(projection_of([(name, []) for name in names])),
        START,
        UTF8,
        names=TaskNames(names, "NFCORE_VIRALRECON.ILLUMINA."),
    )
    assert plain(task_lines(context.board.row(names[0]), context, 80, 2)[0]).startswith(" ASSEMBLY_UNICYCLER  ")


async def test_a_run_of_one_task_at_a_time_has_its_log_where_a_chart_would_repeat_the_bars(clock):
    session = FakeSession(projection_of([("copy", []), ("check", ["copy"])]))
    for event in session.builder.start("copy", timeout_us=300 * S):
        session.projection.apply(event)
    clock.now = session.builder.at
    session.logs["copy", 1] = [LogChunk(1, clock.now, "copied block 1\n")]
    async with open_console(session, clock, "3", size=(80, 24)) as driver:
        driver.app.screen.timeline.move_to_key("copy")
        await driver.settle()
        await driver.app.screen._read_texts()
        assert "copied block 1" in driver.text and "running  1" not in driver.text
        assert driver.find("#1").split()[:1] == ["#1"]
