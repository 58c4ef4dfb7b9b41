"""Rows on one axis of time: zoom and pan keep what is looked at, and now walks before the picture jumps."""

from __future__ import annotations

from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from redrive.console.model.time_axis import PAUSE_CELLS, SECOND, STEPS, Pause, Span
from redrive.console.model.timeline import HangRow, RowKey
from redrive.console.screens.timeline_bars import TimelineView
from redrive.console.text.pieces import Line, Piece
from textual.geometry import Region

HOUR = 3600 * SECOND


class Host:
    """The screen of the rows: no groups, bars up to the first minute, and the middle of the span as its instant."""

    view: TimelineView

    def label(self, key: RowKey, columns: int) -> Line:
        return [Piece(str(key))]

    def bar(self, key: RowKey | HangRow, span: Span) -> Line:
        return [Piece("#" * max(min(span.cell(60 * SECOND), span.cells), 0))]

    def cursor_instant(self) -> int:
        return self.view.span.instant(self.view.span.cells // 2)

    def show_all(self) -> None:
        self.view.show_whole_run(*self.view._run_span[:2], live=False)

    def on_zoom_end(self) -> None:
        pass

    def toggle_group(self) -> bool:
        return False

    def fold_group(self, opens: bool) -> bool:
        return False


def timeline() -> TimelineView:
    host = Host()
    host.view = view = TimelineView(host)
    view.label_columns = 10
    view.set_order(["extract", "a-name-that-is-long", "load"])
    return view


def zoomed_in(view: TimelineView, end: int) -> None:
    """Show a part of a run that goes on, and follow it."""
    view.show_whole_run(0, end, live=True)
    view.fit_period(0, end)
    view.is_following = True


async def test_labels_stay_in_their_column(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.show_whole_run(0, 100 * SECOND, live=False)
        await app.pilot.pause()
        assert view.span == Span(0, 3_375_000, 30)
        assert app.lines[0] == "extract   " + "#" * 17
        assert app.lines[1] == "a-name-t… " + "#" * 17


async def test_fit_shows_all_by_the_finest_step(stage) -> None:
    view = timeline()
    async with stage(view):
        for length in (SECOND, 50 * SECOND, 3 * HOUR, 40 * HOUR):
            view.show_whole_run(7 * SECOND, 7 * SECOND + length, live=False)
            assert view.span.start <= 7 * SECOND
            assert view.span.end >= 7 * SECOND + length - view.span.per_cell
            assert view.span.per_cell * 25 <= max(length, 30 * STEPS[0]) * 1.25


async def test_zoom_keeps_the_middle(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.show_whole_run(0, 100 * SECOND, live=False)
        await app.press("=")
        assert view.span.per_cell == 2 * SECOND
        middle = (view.span.start + view.span.end) / 2
        assert abs(middle - 50 * SECOND) <= 2 * SECOND
        await app.press("-")
        assert view.span == Span(0, 3_375_000, 30), "the whole run is the longest span"


async def test_zoom_ends_at_the_last_steps(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.show_whole_run(0, SECOND, live=False)
        view.fit_period(0, 30 * SECOND)
        await app.press(*["minus"] * 30)
        assert view.shows_whole_run and view.span.end < 2 * SECOND
        await app.press(*["equals_sign"] * 30)
        assert view.span.per_cell == STEPS[0]


async def test_a_long_pause_takes_nine_cells(stage) -> None:
    view = timeline()
    async with stage(view):
        view.set_pauses([Pause(10 * SECOND, 10 * SECOND + HOUR)])
        view.show_whole_run(0, 20 * SECOND + HOUR, live=False)
        span = view.span
        assert span.per_cell == SECOND * 31 // 32
        assert span.cell(10 * SECOND) == 10
        assert span.cell(10 * SECOND + HOUR) == 10 + PAUSE_CELLS
        assert span.end - HOUR == (30 - PAUSE_CELLS) * span.per_cell


async def test_a_busy_pause_takes_half_of_the_width_and_bars_stay_while_it_grows(stage, painted) -> None:
    view = timeline()
    async with stage(view):
        for minutes in range(1, 60):
            view.set_pauses([Pause(10 * SECOND, minutes * 60 * SECOND, is_busy=True)])
            view.extend_to(0, minutes * 60 * SECOND)
            assert painted(view) == [] or minutes <= 2, "the axis grew, the bars did not move"
        assert (view.span.cell(0), view.span.cell(10 * SECOND)) == (0, 5)
        view.set_pauses([Pause(10 * SECOND, 10 * SECOND + HOUR, is_busy=True)])
        view.show_whole_run(0, 20 * SECOND + HOUR, live=False)
        assert view.span.cell(10 * SECOND + HOUR) - view.span.cell(10 * SECOND) == 30 // 2


async def test_a_wait_at_the_end_fills_what_the_bars_leave(stage) -> None:
    view = timeline()
    async with stage(view):
        view.set_pauses([Pause(SECOND // 10, HOUR)])
        view.show_whole_run(0, HOUR, live=True, is_due=False)
        span = view.span
        assert (span.cell(SECOND // 10), span.cell(HOUR)) == (10, 29)
        assert abs(span.cell(span.instant(20)) - 20) <= 1


@given(
    bounds=st.lists(st.integers(0, 10**6), unique=True, max_size=8).map(sorted),
    start=st.integers(0, 10**6),
    per_cell=st.integers(1, 10**4),
)
def test_instants_and_cells_are_inverse(bounds: list[int], start: int, per_cell: int) -> None:
    pauses = tuple(map(Pause, bounds[::2], bounds[1::2], cycle((False, True))))
    span = Span(start, per_cell, 50, pauses)
    cells = [span.cell(span.instant(cell)) for cell in range(-20, 70)]
    assert all(abs(cell - place) <= 1 for place, cell in enumerate(cells, start=-20))
    instants = [span.instant(cell) for cell in range(-20, 70)]
    assert instants == sorted(instants)


async def test_pan_ends_following(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.show_whole_run(0, 100 * SECOND, live=False)
        await app.press("l")
        assert view.span.start == 23_625_000
        assert not view.is_following
        await app.press("h")
        assert view.span.start == 0


async def test_now_walks_through_the_view_and_only_then_it_jumps(stage, painted) -> None:
    view = timeline()
    async with stage(view) as app:
        zoomed_in(view, 60 * SECOND)
        await app.pilot.pause()
        spans = [view.span]
        for second in range(60, 300):
            painted(view)
            view.extend_to(0, second * SECOND)
            repaint = painted(view) != []
            assert repaint == (view.span != spans[-1])
            if repaint:
                spans.append(view.span)
            assert view.span.start <= second * SECOND < view.span.end
        assert 2 < len(spans) < 40


async def test_a_view_that_stands_still_stays(stage) -> None:
    view = timeline()
    async with stage(view):
        zoomed_in(view, 60 * SECOND)
        view.is_following = False
        span = view.span
        view.extend_to(0, 10 * HOUR)
        assert view.span == span
        view.is_following = True
        view.extend_to(0, 10 * HOUR)
        assert view.span.start <= 10 * HOUR < view.span.end


async def test_a_row_can_be_painted_alone(stage, painted) -> None:
    view = timeline()
    async with stage(view):
        painted(view)
        view.rows_changed(["load"])
        assert painted(view) == [Region(0, 2, 40, 1)]


async def test_every_change_of_the_span_is_reported(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        before = len(app.messages_of(TimelineView.SpanChanged))
        await app.press("l", "=")
        assert len(app.messages_of(TimelineView.SpanChanged)) == before + 2


async def test_a_wider_terminal_shows_more_time_from_the_same_instant(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.fit_period(0, 100 * SECOND)
        before = view.span
        await app.pilot.resize_terminal(70, 10)
        await app.pilot.pause()
        assert view.span == replace(before, cells=60)


async def test_a_wider_terminal_shows_a_whole_run_in_finer_steps(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.show_whole_run(0, 100 * SECOND, live=False)
        await app.pilot.resize_terminal(70, 10)
        await app.pilot.pause()
        assert view.span == Span(0, 1_687_500, 60)
