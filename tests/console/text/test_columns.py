"""A list is one table of columns: what has room on a screen, and the same on the screen, in a shell and as JSON."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from redrive.console.text.columns import (
    FILL,
    Column,
    Columns,
    fit,
    json_value,
    longest_cells,
    screen_line,
    screen_titles,
    shell_rows,
)
from redrive.console.text.pieces import Piece, Role, plain, width


class Ship(NamedTuple):
    name: str
    crew: int
    cargo: str = ""
    home: str | None = None


SHIPS: Columns[Ship, int] = (
    Column("name", "NAME", lambda ship, year: ship.name, least=6, most=12, is_name=True),
    Column("crew", "CREW", lambda ship, year: ship.crew, least=4, rank=1, is_right=True),
    Column("home", None, lambda ship, year: ship.home),
    Column(
        "age",
        "AGE",
        words=lambda ship, year: Piece(f"{year} years", Role.DIM),
        screen=lambda ship, year: [Piece("+"), Piece(str(year), Role.DIM)],
        least=3,
        rank=2,
    ),
    Column("cargo", "CARGO", lambda ship, year: ship.cargo, least=4, most=FILL, gap=2),
)


def sizes(size: int, **longest: int) -> dict[str, int]:
    return {column.name: cells for column, cells in fit(SHIPS, size, longest or None)}


def test_what_is_left_goes_to_the_columns_that_can_use_it_and_then_to_the_rest():
    assert sizes(22) == {"name": 6, "crew": 4, "age": 3, "cargo": 4}
    assert sizes(25) == {"name": 9, "crew": 4, "age": 3, "cargo": 4}
    assert sizes(40) == {"name": 12, "crew": 4, "age": 3, "cargo": 16}


def test_no_column_of_names_is_wider_than_the_longest_name():
    assert sizes(40, name=8) == {"name": 8, "crew": 4, "age": 3, "cargo": 20}
    assert sizes(40, name=2)["name"] == 6


def test_the_highest_rank_is_left_out_first_and_columns_without_a_rank_stay():
    assert list(sizes(21)) == ["name", "crew", "cargo"]
    assert list(sizes(17)) == ["name", "cargo"]
    assert sizes(9) == {"name": 6, "cargo": 0}


@pytest.mark.parametrize("size", range(13, 60))
def test_a_row_is_exactly_as_wide_as_the_screen_also_with_wide_characters(size):
    row = Ship("日本丸という名前の船", 123456, "小麦とトウモロコシ" * 5)
    assert width(screen_line(fit(SHIPS, size), row, 7)) == size


def test_a_name_loses_its_middle_and_a_text_its_end():
    shown = plain(screen_line(fit(SHIPS, 30), Ship("the-ship-of-theseus", 5, "tin and copper"), 7))
    assert shown == " the-sh…eseus    5 +7   tin a…"


def test_a_text_of_anybody_is_made_safe_and_pieces_are_shown_as_they_are():
    assert "\x1b" not in plain(screen_line(fit(SHIPS, 40), Ship("a\x1b[31m", 1, "b\nc"), 7))
    assert Piece("7", Role.DIM) in screen_line(fit(SHIPS, 40), Ship("a", 1), 7)


def test_titles_stand_above_their_columns():
    fitted = fit(SHIPS, 40)
    titles, row = plain(screen_titles(fitted)), plain(screen_line(fitted, Ship("argo", 50, "fleece"), 7))
    assert titles == " NAME         CREW AGE  CARGO"
    assert titles.index("CARGO") == row.index("fleece")
    assert titles.index("CREW") + 4 == row.index("50") + 2


def test_the_shell_has_the_columns_with_a_title_in_words():
    assert shell_rows(SHIPS, [Ship("argo", 50, "fleece", "iolcus")], 7) == [
        ["NAME", "CREW", "AGE", "CARGO"],
        ["argo", "50", Piece("7 years", Role.DIM), "fleece"],
    ]


def test_json_has_the_columns_with_a_value_as_they_are():
    assert json_value(SHIPS, Ship("argo", 50), 7) == {"name": "argo", "crew": 50, "home": None, "cargo": ""}


def test_the_longest_name_is_measured_in_cells():
    assert longest_cells(["argo", "日本丸"]) == 6
    assert longest_cells([]) == 0
