"""The list: only what is seen exists, and the row under the cursor stays where it is."""

from __future__ import annotations

from redrive.console.text.pieces import Line, Piece, Role
from redrive.console.widgets.table import VirtualTable
from textual.geometry import Region


def row(key: str, width: int) -> Line:
    return [Piece("● ", Role.RUNNING), Piece(key)]


def table(count: int = 100, mark_sign: str | None = None) -> VirtualTable[str]:
    found = VirtualTable(row, mark_sign=mark_sign)
    found.set_order(names(count))
    return found


def names(count: int, start: int = 0) -> list[str]:
    return [f"task-{number}" for number in range(start, start + count)]


async def test_only_rows_in_view_are_ever_made(stage) -> None:
    asked: list[str] = []

    def counted(key: str, width: int) -> Line:
        asked.append(key)
        return [Piece(key)]

    widget = VirtualTable(counted)
    widget.set_order(names(1_000_000))
    async with stage(widget) as app:
        assert app.lines[9] == "task-9"
        await app.press("G")
        assert app.lines[9] == "task-999999"
    assert len(asked) < 100


async def test_moving_repaints_two_rows(stage, painted) -> None:
    async with stage(table()) as app:
        painted(app.shown[0])
        app.shown[0].move_rows(1)
        assert painted(app.shown[0]) == [Region(0, 0, 40, 1), Region(0, 1, 40, 1)]


async def test_keys_move_the_cursor(stage) -> None:
    widget = table()
    async with stage(widget) as app:
        for keys, place in (
            (["j", "j", "down"], 3),
            (["k"], 2),
            (["pagedown"], 12),
            (["ctrl+d"], 17),
            (["ctrl+u"], 12),
            (["pageup"], 2),
            (["G"], 99),
            (["j"], 99),
            (["g"], 0),
            (["up"], 0),
        ):
            await app.press(*keys)
            assert widget.cursor == place, keys
        assert app.messages_of(VirtualTable.CursorMoved) and widget.cursor_key == "task-0"


async def test_a_page_moves_view_and_cursor_together(stage) -> None:
    widget = table()
    async with stage(widget) as app:
        await app.press("j", "j", "pagedown")
        assert (widget.cursor, widget.first_visible) == (12, 10)
        assert app.lines[0] == "● task-10"
        assert app.lines[9] == "● task-19"


async def test_a_changed_row_is_painted_only_if_it_is_in_view(stage, painted) -> None:
    widget = table()
    async with stage(widget):
        painted(widget)
        widget.rows_changed(["task-50", "nobody"])
        assert painted(widget) == []
        widget.rows_changed(["task-5"])
        assert painted(widget) == [Region(0, 5, 40, 1)]
        widget.rows_changed({"task-1", "task-77"})
        assert painted(widget) == [Region(0, 1, 40, 1)]


async def test_a_new_order_leaves_the_row_under_the_cursor_where_it_is(stage) -> None:
    widget = table()
    async with stage(widget) as app:
        widget.move_to(30)
        height = widget.cursor - widget.first_visible
        widget.set_order(names(20, start=1000) + names(100))
        assert widget.cursor_key == "task-30"
        assert widget.cursor - widget.first_visible == height
        await app.pilot.pause()
        assert app.lines[height] == "● task-30"


async def test_when_the_row_under_the_cursor_is_gone_its_place_is_kept(stage) -> None:
    widget = table()
    async with stage(widget) as app:
        widget.move_to(5)
        widget.set_order([name for name in names(100) if name != "task-5"])
        await app.pilot.pause()
        assert widget.cursor_key == "task-6"
        assert app.messages_of(VirtualTable.CursorMoved) and widget.cursor_key == "task-6"


async def test_an_empty_list_is_no_problem(stage) -> None:
    widget = table(0)
    async with stage(widget) as app:
        await app.press("j", "k", "G", "enter", "space", "a", "pagedown")
        assert widget.cursor_key is None
        assert app.messages_of(VirtualTable.RowOpened) == []
        widget.set_order(names(3))
        assert widget.cursor_key == "task-0"


async def test_enter_opens_and_so_does_a_second_click(stage) -> None:
    widget = table()
    async with stage(widget) as app:
        await app.press("j", "enter")
        await app.pilot.click(widget, offset=(3, 4), times=2)
        await app.pilot.pause()
        assert [message.key for message in app.messages_of(VirtualTable.RowOpened)] == ["task-1", "task-4"]


async def test_space_marks_and_goes_on(stage) -> None:
    widget = table(mark_sign="▪")
    async with stage(widget) as app:
        await app.press("space", "j", "space")
        assert widget.marks == ["task-0", "task-2"]
        assert app.lines[:3] == ["▪● task-0", " ● task-1", "▪● task-2"]
        await app.press("g", "space")
        assert widget.marks == ["task-2"]


async def test_all_are_marked_and_unmarked_by_one_key(stage) -> None:
    widget = table(50, mark_sign="▪")
    async with stage(widget) as app:
        await app.press("a")
        assert widget.marks == names(50)
        await app.press("a")
        assert widget.marks == []


async def test_marks_of_rows_that_are_not_shown_any_more_are_forgotten(stage) -> None:
    widget = table(10, mark_sign="▪")
    async with stage(widget):
        widget.set_marks(["task-1", "task-2"])
        widget.set_order(["task-2", "task-3"])
        widget.set_order(names(10))
        assert widget.marks == ["task-2"]


async def test_a_row_that_was_dealt_with_is_unmarked_alone(stage) -> None:
    widget = table(10, mark_sign="▪")
    async with stage(widget):
        widget.set_marks(["task-1", "task-2"])
        widget.unmark("task-1")
        assert widget.marks == ["task-2"]


async def test_rows_without_marks_cannot_be_marked(stage) -> None:
    widget = table(10)
    async with stage(widget) as app:
        await app.press("space", "a")
        assert widget.marks == []


async def test_the_wheel_moves_the_view_and_takes_the_cursor_along_only_at_the_edge(stage) -> None:
    widget = table()
    async with stage(widget):
        widget.move_to(8)
        widget.scroll_rows(3)
        assert (widget.first_visible, widget.cursor) == (3, 8)
        widget.scroll_rows(30)
        assert (widget.first_visible, widget.cursor) == (33, 33)
        widget.scroll_rows(-1000)
        assert (widget.first_visible, widget.cursor) == (0, 9)


async def test_the_cursor_stays_in_view_when_the_terminal_shrinks(stage) -> None:
    widget = table()
    async with stage(widget) as app:
        widget.move_to(9)
        await app.pilot.resize_terminal(40, 4)
        await app.pilot.pause()
        assert widget.first_visible == 6
        assert app.lines[3] == "● task-9"


async def test_the_cursor_is_seen_without_colour_and_shows_where_keys_go(stage) -> None:
    widget, other = table(5), table(5)
    async with stage(widget, other, size=(20, 10)) as app:
        assert "reverse" in app.styles_of(0)[0][1]
        other.focus()
        await app.pilot.pause()
        assert "reverse" not in app.styles_of(0)[0][1]
        assert "reverse" in app.styles_of(5)[0][1]


async def test_a_row_that_is_too_long_is_cut_with_a_sign(stage) -> None:
    widget = VirtualTable(lambda key, width: [Piece("x" * 100)])
    widget.set_order(["one"])
    async with stage(widget, size=(10, 2)) as app:
        assert app.lines[0] == "x" * 9 + "…"
