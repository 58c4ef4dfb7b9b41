"""Rows on one axis of time: zoom and pan keep what is looked at, and now walks before the picture jumps."""

from __future__ import annotations

from redrive.console.text.pieces import Line, Piece
from redrive.console.widgets.timeline import SECOND, STEPS, Span, TimelineView
from textual.geometry import Region

HOUR = 3600 * SECOND


def timeline() -> TimelineView[str]:
    def bar(key: str, span: Span) -> Line:
        return [Piece("#" * max(min(span.cell(60 * SECOND), span.cells), 0))]

    view = TimelineView(lambda key, columns: [Piece(key)], bar, label_columns=10)
    view.set_order(["extract", "a-name-that-is-long", "load"])
    return view


async def test_labels_stay_in_their_column(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.set_extent(0, 100 * SECOND)
        view.fit()
        await app.pilot.pause()
        assert view.span == Span(0, 5 * SECOND, 30)
        assert app.lines[0] == "extract   " + "#" * 12
        assert app.lines[1] == "a-name-t… " + "#" * 12


async def test_fit_shows_all_by_the_finest_step(stage) -> None:
    view = timeline()
    async with stage(view):
        for length in (SECOND, 50 * SECOND, 3 * HOUR, 40 * HOUR):
            view.set_extent(7 * SECOND, 7 * SECOND + length)
            view.fit()
            assert view.span.start <= 7 * SECOND
            assert view.span.end >= 7 * SECOND + length - view.span.per_cell
            assert view.span.per_cell in STEPS


async def test_zoom_keeps_the_middle(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.is_following = False
        view.set_extent(0, 100 * SECOND)
        view.fit()
        await app.press("=")
        assert view.span.per_cell == 2 * SECOND
        middle = (view.span.start + view.span.end) / 2
        assert abs(middle - 75 * SECOND) <= 2 * SECOND
        await app.press("-", "-")
        assert view.span.per_cell == 10 * SECOND


async def test_zoom_ends_at_the_last_steps(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        await app.press(*["minus"] * 30)
        assert view.span.per_cell == STEPS[-1]
        await app.press(*["equals_sign"] * 30)
        assert view.span.per_cell == STEPS[0]


async def test_pan_ends_following(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.set_extent(0, 100 * SECOND)
        view.fit()
        await app.press("l")
        assert view.span.start == 35 * SECOND
        assert not view.is_following
        await app.press("h")
        assert view.span.start == 0


async def test_now_walks_through_the_view_and_only_then_it_jumps(stage, painted) -> None:
    view = timeline()
    async with stage(view) as app:
        view.set_extent(0, 60 * SECOND)
        view.fit()
        await app.pilot.pause()
        spans = [view.span]
        for second in range(60, 300):
            painted(view)
            view.set_now(second * SECOND)
            repaint = painted(view) != []
            assert repaint == (view.span != spans[-1])
            if repaint:
                spans.append(view.span)
            assert view.span.start <= second * SECOND < view.span.end
        assert 2 < len(spans) < 25


async def test_a_view_that_stands_still_stays(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.set_extent(0, 60 * SECOND)
        view.fit()
        await app.press("f")
        span = view.span
        view.set_now(10 * HOUR)
        assert view.span == span
        await app.press("f")
        assert view.span.start <= 10 * HOUR < view.span.end


async def test_a_row_can_be_painted_alone(stage, painted) -> None:
    view = timeline()
    async with stage(view):
        painted(view)
        view.row_changed("load")
        assert painted(view) == [Region(0, 2, 40, 1)]


async def test_every_change_of_the_span_is_told(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        await app.press("l", "=")
        assert app.heard(TimelineView.SpanChanged)[-1].span == view.span


async def test_a_wider_terminal_shows_more_time_from_the_same_instant(stage) -> None:
    view = timeline()
    async with stage(view) as app:
        view.set_extent(0, 100 * SECOND)
        view.fit()
        await app.pilot.resize_terminal(70, 10)
        await app.pilot.pause()
        assert view.span == Span(0, 5 * SECOND, 60)
