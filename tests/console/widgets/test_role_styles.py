"""Roles and their looks."""

from __future__ import annotations

from redrive.console.text.pieces import Piece, Role
from redrive.console.text.role_styles import NO_STYLES, RoleStyles, role_styles_of
from redrive.console.widgets.line_view import strip_of
from rich.style import Style

from .conftest import PLAIN


def test_a_role_that_a_theme_leaves_out_looks_like_text() -> None:
    assert RoleStyles({}).style(Role.HUMAN) == Style.null()


def test_what_a_row_lies_under_does_not_hide_what_stands_out_in_it() -> None:
    assert PLAIN.style(Role.TEXT, Role.CURSOR).reverse
    assert not PLAIN.style(Role.HUMAN, Role.CURSOR).reverse


def test_a_cursor_in_reverse_video_is_a_bar_of_one_colour() -> None:
    styles = {Role.RUNNING: Style(color="cyan"), Role.DIM: Style(dim=True), Role.RELATED: Style(bold=True)}
    palette = RoleStyles({**styles, Role.CURSOR: Style(reverse=True)})  # type: ignore[dict-item]
    assert palette.style(Role.RUNNING, Role.CURSOR) == palette.style(Role.DIM, Role.CURSOR) == Style(reverse=True)
    assert palette.style(Role.RELATED, Role.CURSOR) == Style(reverse=True, bold=True)


def test_the_accent_keeps_its_colour_under_the_cursor() -> None:
    palette = RoleStyles({Role.HUMAN: Style(color="magenta", reverse=True), Role.CURSOR: Style(reverse=True)})
    assert palette.style(Role.HUMAN, Role.CURSOR) == palette.style(Role.HUMAN)


def test_colour_of_a_piece_survives_a_cursor_that_is_a_ground() -> None:
    palette = RoleStyles({Role.RUNNING: Style(color="cyan"), Role.CURSOR: Style(bgcolor="blue")})
    assert palette.style(Role.RUNNING, Role.CURSOR) == Style(color="cyan", bgcolor="blue")


def test_an_app_without_a_palette_is_plain() -> None:
    assert role_styles_of(object()) is NO_STYLES


def test_a_strip_has_exactly_the_cells_that_were_asked_for() -> None:
    for columns in range(12):
        strip = strip_of([Piece("世界"), Piece("abc", Role.KEY)], columns, PLAIN)
        assert strip.cell_length == columns == sum(segment.cell_length for segment in strip)
