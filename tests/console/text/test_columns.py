"""A list is one table of columns: what has room on a screen, and the same on the screen, in a shell and as JSON."""

from __future__ import annotations

from typing import NamedTuple

from redrive.console.text.columns import (
    FILL,
    Column,
    Columns,
    Width,
    json_value,
    longest_cells,
    measured,
    row_line,
    screen_row,
    screen_titles,
    shell_rows,
    that_fit,
)
from redrive.console.text.pieces import Piece, Role, plain, table, width
from support.marks import for_each


class Ship(NamedTuple):
    name: str
    crew: int
    cargo: str = ""
    home: str | None = None


SHIPS: Columns[Ship, int] = (
    Column("name", "NAME", lambda ship, year: ship.name, width=Width(6, 12, is_name=True)),
    Column("crew", "CREW", lambda ship, year: ship.crew, width=Width(4, rank=1, is_right=True)),
    Column("home", None, lambda ship, year: ship.home),
    Column(
        "age",
        "AGE",
        words=lambda ship, year: Piece(f"{year} years", Role.DIM),
        screen=lambda ship, year: [Piece("+"), Piece(str(year), Role.DIM)],
        width=Width(3, rank=2),
    ),
    Column("cargo", "CARGO", lambda ship, year: ship.cargo, width=Width(4, FILL, gap=2)),
)


def fitted(size: int, *widths: Width) -> list[int]:
    """The cells of each column that has room; a column is full of its number."""
    text = plain(row_line(size, *((width, str(place) * 99) for place, width in enumerate(widths)), more=""))
    return [text.count(str(place)) for place, _ in enumerate(widths)]


NAME, FIGURE, BAR, REST = Width(6, 12), Width(4, rank=1), Width(3, rank=2), Width(4, FILL, gap=2)


def test_what_is_left_goes_to_the_columns_that_can_use_it_and_then_to_the_rest():
    assert fitted(22, NAME, FIGURE, BAR, REST) == [6, 4, 3, 4]
    assert fitted(25, NAME, FIGURE, BAR, REST) == [9, 4, 3, 4]
    assert fitted(40, NAME, FIGURE, BAR, REST) == [12, 4, 3, 16]


def test_the_highest_rank_is_left_out_first_and_columns_without_a_rank_stay():
    assert fitted(21, NAME, FIGURE, BAR, REST) == [9, 4, 0, 4]
    assert fitted(16, NAME, FIGURE, BAR, REST) == [9, 0, 0, 4]
    assert fitted(9, NAME, FIGURE, BAR, REST) == [6, 0, 0, 0]


def test_a_spare_column_is_left_out_before_another_gets_less_than_it_can_use():
    spare = BAR._replace(is_spare=True)
    assert fitted(27, NAME, FIGURE, spare, REST) == [12, 4, 0, 7]
    assert fitted(28, NAME, FIGURE, spare, REST) == [12, 4, 3, 4]


@for_each("size", range(60))
def test_a_row_is_never_wider_than_the_screen_also_with_wide_characters(size):
    row = Ship("日本丸という名前の船", 123456, "小麦とトウモロコシ" * 5)
    assert width(screen_row(SHIPS, row, 7, size)) <= size


def test_a_name_loses_its_middle_and_a_text_its_end():
    shown = plain(screen_row(SHIPS, Ship("the-ship-of-theseus", 5, "tin and copper"), 7, 30))
    assert shown == " the-sh…eseus    5 +7   tin a…"


def test_a_column_is_as_wide_as_the_longest_of_its_texts():
    ship = Ship("the-ship", 5, "tin and copper")
    shown = plain(screen_row(measured(SHIPS, [ship, ship._replace(name="argo")], 7), ship, 7, 30))
    assert shown == " the-ship    5 +7   tin and c…"
    assert measured(SHIPS, [ship], 7)[-1].width == SHIPS[-1].width, "what fills the row is not measured"


def test_a_column_that_no_row_fills_is_left_out_if_it_may_go():
    columns: Columns[Ship, int] = [
        Column("a", "NAME", lambda ship, year: None, width=NAME),
        Column("b", "LAST RUNS", lambda ship, year: ship.home, width=Width(9, 14, rank=1)),
        Column("c", width=REST),
    ]
    ship = Ship("argo", 5)
    assert [one.name for one in measured(columns, [ship], 7)] == ["a", "c"]
    shown = measured(columns, [ship, ship._replace(home="ir")], 7)
    assert shown[1].width == Width(4, 2, rank=1), "its title has room"


def test_what_a_cut_would_leave_of_the_last_piece_is_left_out_if_it_says_nothing():
    cell = [Piece("tin and copper"), Piece(" from the north")]
    assert plain(row_line(24, (Width(17, gap=0), cell))) == "tin and copper"
    assert plain(row_line(24, (Width(18, gap=0), cell))) == "tin and copper fr…"
    assert plain(row_line(28, (Width(28, gap=0), cell))) == "tin and copper from the nor…"


def test_a_text_of_anybody_is_made_safe_and_pieces_are_shown_as_they_are():
    assert "\x1b" not in plain(screen_row(SHIPS, Ship("a\x1b[31m", 1, "b\nc"), 7, 40))
    assert Piece("7", Role.DIM) in screen_row(SHIPS, Ship("a", 1), 7, 40)


def test_parts_of_a_line_have_room_by_their_rank_and_those_without_a_rank_stay():
    parts = (0, [Piece("run")]), (2, [Piece(" of 12")]), (1, [Piece(" failed")]), (3, [Piece(" x")])

    def shown(size: int) -> str:
        return "".join(map(plain, that_fit(size, *parts)))

    assert shown(18) == "run of 12 failed x"
    assert shown(15) == "run failed x"
    assert shown(2) == "run"


def test_titles_stand_above_their_columns():
    titles, row = plain(screen_titles(SHIPS, 40)), plain(screen_row(SHIPS, Ship("argo", 50, "fleece"), 7, 40))
    assert titles == " NAME         CREW AGE  CARGO"
    assert titles.index("CARGO") == row.index("fleece")
    assert titles.index("CREW") + 4 == row.index("50") + 2


def test_the_shell_has_the_columns_with_a_title_in_words():
    assert shell_rows(SHIPS, [Ship("argo", 50, "fleece", "iolcus")], 7) == [
        ["NAME", "CREW", "AGE", "CARGO"],
        ["argo", "50", Piece("7 years", Role.DIM), "fleece"],
    ]


@for_each(
    "size, expected",
    [
        (80, "NAME  CREW  AGE  CARGO|argo  50  7 years  a fleece of gold"),
        (33, "NAME  CREW  AGE  CARGO|argo  50  7 years  a fleece of…"),
        (24, "NAME  CREW  CARGO|argo  50  a fleece of…"),
        (14, "NAME  CARGO|argo  a fleec…"),
    ],
)
def test_a_terminal_gets_the_columns_that_have_room(size: int, expected: str):
    rows = shell_rows(SHIPS, [Ship("argo", 50, "a fleece of gold")], 7, size)
    assert all(width(line) <= size for line in table(rows))
    assert "|".join("  ".join(_texts(row)) for row in rows) == expected


def _texts(row):
    return [cell if isinstance(cell, str) else cell.text for cell in row]


def test_json_has_the_columns_with_a_value_as_they_are():
    assert json_value(SHIPS, Ship("argo", 50), 7) == {"name": "argo", "crew": 50, "home": None, "cargo": ""}


def test_the_longest_name_is_measured_in_cells():
    assert longest_cells(["argo", "日本丸"]) == 6
    assert longest_cells([]) == 0
