"""Themes: each is complete and readable; the choice of one is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from redrive.console.app import theme
from redrive.console.text.pieces import Role
from rich.color import ColorSystem
from rich.style import Style

FULL = [name for name in theme.theme_names() if name != theme.DEFAULT]
LEAST_CONTRAST = 4.5  # WCAG 2.2, AA; for what is dimmed on purpose, 3
PALE = {7, 15}  # of the greys of sixteen colours
DIMMED = {Role.DIM, Role.RULE, Role.PENDING, Role.STALE, Role.SKIPPED}


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDRIVE_THEME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_the_default_is_the_terminals_own_and_comes_first():
    assert theme.theme_names()[0] == theme.initial_theme_name() == "terminal"
    assert {"dark", "light", "high-contrast", "colour-blind"} <= set(theme.theme_names())


@pytest.mark.parametrize("name", theme.theme_names())
def test_every_theme_of_ours_gives_every_role_a_style(name: str):
    found = theme.load_theme(name)
    assert found.title
    assert found.description
    assert set(found.styles) == {str(role) for role in Role} - {Role.TEXT}


def test_the_default_uses_sixteen_colours_and_no_ground_of_its_own():
    found = theme.load_theme("terminal")
    assert found.background == found.foreground == theme.ANSI_DEFAULT
    numbers = [style.color.number for style in found.styles.values() if style.color is not None]
    assert all(number is not None and number < 16 for number in numbers)


def test_without_colours_what_needs_a_human_and_the_cursor_still_stand_out():
    found = theme.load_theme("terminal")
    plain = {role: style.without_color for role, style in found.styles.items()}
    assert plain["human"].reverse
    assert plain["cursor"].reverse
    assert not any(plain[role].reverse for role in plain if role not in ("human", "cursor"))


@pytest.mark.parametrize("name", FULL)
def test_text_can_be_read_on_its_ground(name: str):
    palette = theme.load_theme(name).palette()
    for role in Role:
        style = palette.style(role)
        assert style.color is not None
        assert style.bgcolor is not None
        least = 3.0 if role in DIMMED else LEAST_CONTRAST
        if role is not Role.RULE:
            assert contrast(style) >= least, f"{role}: {contrast(style):.1f}"


@pytest.mark.parametrize("name", FULL)
def test_text_is_not_as_pale_as_its_ground_in_sixteen_colours(name: str):
    palette = theme.load_theme(name).palette()
    for role in {*Role} - {Role.RULE}:
        text, ground = (
            None if colour is None else colour.downgrade(ColorSystem.STANDARD).number
            for colour in (palette.style(role).color, palette.style(role).bgcolor)
        )
        assert text != ground and not {text, ground} <= PALE, role


@pytest.mark.parametrize("name", FULL)
def test_the_one_accent_the_cursor_and_progress_alone_have_a_ground_of_their_own(name: str):
    styles = theme.load_theme(name).styles
    assert {role for role, style in styles.items() if style.bgcolor is not None} == {"human", "cursor", "progress"}


@pytest.mark.parametrize("name", FULL)
def test_what_needs_a_human_stands_out_under_the_cursor_too(name: str):
    palette = theme.load_theme(name).palette()
    assert palette.style(Role.HUMAN, Role.CURSOR) == palette.style(Role.HUMAN)


@pytest.mark.parametrize("name", FULL)
def test_everything_can_be_read_under_the_cursor_and_states_keep_their_colours(name: str):
    palette = theme.load_theme(name).palette()
    for role in Role:
        least = 3.0 if role is Role.DONE else LEAST_CONTRAST  # which fills bars
        assert contrast(palette.style(role, Role.CURSOR)) >= least, role
    if name != "high-contrast":
        assert palette.style(Role.RUNNING, Role.CURSOR).color == palette.style(Role.RUNNING).color


@pytest.mark.parametrize("name", FULL)
def test_the_row_of_the_cursor_stands_out_from_the_ground(name: str):
    found = theme.load_theme(name)
    under = found.palette().style(Role.TEXT, Role.CURSOR).bgcolor
    assert contrast(Style(color=under, bgcolor=found.background)) >= 1.4


def test_a_stale_palette_greys_all_but_what_says_so():
    found = theme.load_theme("dark")
    stale = found.stale_palette()
    assert stale.style(Role.HUMAN) == stale.style(Role.RUNNING) == stale.style(Role.TEXT)
    assert stale.style(Role.WARNING) == found.palette().style(Role.WARNING)


def test_a_theme_that_there_is_not_is_named_with_those_that_there_are():
    for name in ("hope", "../themes/dark"):
        with pytest.raises(theme.ThemeError, match=r"there is no theme .* terminal, colour-blind"):
            theme.load_theme(name)


def test_the_last_choice_is_stored_and_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch):
    theme.save_choice("light")
    assert theme.initial_theme_name() == "light"
    monkeypatch.setenv("REDRIVE_THEME", "dark")
    assert theme.initial_theme_name() == "dark"


def test_a_choice_that_is_no_longer_there_is_forgotten():
    theme.save_choice("gone")
    assert theme.initial_theme_name() == theme.DEFAULT


def contrast(style: Style) -> float:
    """Of the text against its ground, as WCAG has it."""
    assert style.color is not None
    assert style.bgcolor is not None
    light, dark = sorted(map(luminance, (style.color, style.bgcolor)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color) -> float:
    parts = [part / 255 for part in color.get_truecolor()]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
