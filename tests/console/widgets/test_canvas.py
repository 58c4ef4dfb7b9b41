"""The window on a drawing asks for the cells that are in it, and for no others."""

from __future__ import annotations

from redrive.console.screens.graph_view import Canvas
from redrive.console.text.pieces import Line, Piece
from textual.geometry import Region


class Drawing(Canvas):
    """Every cell says where it is; what is asked for and what is clicked is recorded."""

    def __init__(self, columns: int = 1000, rows: int = 500) -> None:
        super().__init__()
        self.asked: list[tuple[int, int, int]] = []
        self.clicked: list[tuple[int, int, int]] = []
        self.set_extent(columns, rows)

    def drawn_row(self, y: int, x0: int, x1: int) -> Line:
        self.asked.append((y, x0, x1))
        return [Piece(f"{y:03},{x0:03}".ljust(x1 - x0, "."))]

    def click_cell(self, x: int, y: int, chain: int) -> None:
        self.clicked.append((x, y, chain))


async def test_only_the_viewport_is_asked_for(stage) -> None:
    drawing = Drawing()
    async with stage(drawing) as app:
        assert app.lines[0].startswith("000,000...")
        assert set(drawing.asked) == {(y, 0, 40) for y in range(10)}


async def test_scrolling_goes_as_far_as_the_drawing(stage) -> None:
    widget = Drawing()
    async with stage(widget) as app:
        widget.scroll_by(5, 7)
        assert widget.origin == (5, 7)
        await app.pilot.pause()
        assert app.lines[0].startswith("007,005")
        widget.scroll_by(10_000, 10_000)
        assert widget.origin == (960, 490)
        widget.scroll_by(-10_000, -10_000)
        assert widget.origin == (0, 0)


async def test_a_changed_cell_is_painted_alone_and_only_if_it_is_in_view(stage, painted) -> None:
    widget = Drawing()
    async with stage(widget) as app:
        widget.scroll_to_cell(100, 50)
        await app.pilot.pause()
        painted(widget)
        widget.refresh_drawing_cells(110, 55, 3)
        widget.refresh_drawing_cells(99, 50, 2)
        widget.refresh_drawing_cells(0, 0, 50, 2)
        assert painted(widget) == [Region(0, 0, 1, 1), Region(10, 5, 3, 1)]


async def test_showing_a_cell_scrolls_no_further_than_needed(stage) -> None:
    widget = Drawing()
    async with stage(widget):
        widget.scroll_into_view(10, 5)
        assert widget.origin == (0, 0)
        widget.scroll_into_view(45, 12, columns=3)
        assert widget.origin == (10, 4)
        widget.scroll_into_view(12, 6)
        assert widget.origin == (10, 4)
        widget.scroll_into_view(5, 2)
        assert widget.origin == (3, 1)


async def test_a_drawing_smaller_than_the_window_is_not_asked_beyond_its_end(stage) -> None:
    drawing = Drawing(20, 3)
    async with stage(drawing) as app:
        assert {y for y, _, _ in drawing.asked} == {0, 1, 2}
        assert app.lines[3] == ""


async def test_a_click_reports_the_cell_of_the_drawing(stage) -> None:
    widget = Drawing()
    async with stage(widget) as app:
        widget.scroll_to_cell(100, 50)
        await app.pilot.click(widget, offset=(7, 3))
        await app.pilot.pause()
        assert widget.clicked == [(107, 53, 1)]


async def test_a_larger_window_shows_more_of_the_end(stage) -> None:
    widget = Drawing()
    async with stage(widget) as app:
        widget.scroll_to_cell(10_000, 10_000)
        await app.pilot.resize_terminal(60, 20)
        await app.pilot.pause()
        assert widget.origin == (940, 480)
