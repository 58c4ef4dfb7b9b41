"""Themes: the styles of roles, one file of ``themes`` per theme; the tests check each file.

A theme file::

    title = "Dark"
    about = "Light text on a dark background of its own."
    background = "#16181d"      # of the whole screen; default: the terminal's own
    foreground = "#c8ccd4"

    [roles]
    running = "cyan"            # as in rich: colours by name or number, bold, dim, reverse, underline
    human = "bold white on magenta"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
import platformdirs
from msgspec.structs import replace
from rich.style import Style

from ...engine.errors import RedriveError
from ..text.pieces import SGR_ROLE, Role
from ..text.role_styles import RoleStyles, mix

DEFAULT = "terminal"
THEME_VARIABLE = "REDRIVE_THEME"
ANSI_DEFAULT = "ansi_default"

#: Roles that are not greyed while the data is stale.
_LIVE_WHEN_STALE = (Role.WARNING, Role.CURSOR, Role.KEY)


_DIMMED = frozenset({Role.DIM, Role.PENDING, Role.SKIPPED, Role.RULE, Role.STALE})


class ThemeError(RedriveError):
    """There is no theme of a name."""


class Theme(msgspec.Struct, frozen=True):
    """A theme. ``background`` and ``foreground`` are colours as in Textual's style sheets."""

    name: str
    title: str
    description: str
    styles: Mapping[str, Style]
    background: str = ANSI_DEFAULT
    foreground: str = ANSI_DEFAULT
    has_colours: bool = True

    def palette(self) -> RoleStyles:
        """The palette while the data is live."""
        return _ThemedPalette(self._with_background(self.styles), self.styles, self.has_colours)

    def stale_palette(self) -> RoleStyles:
        """The palette while the data is stale: grey, except for warnings, the cursor and keys."""
        grey = self.styles.get(Role.STALE, Style(dim=True))
        live = {str(role): self.styles[role] for role in _LIVE_WHEN_STALE if role in self.styles}
        return RoleStyles(self._with_background({**{str(role): grey for role in Role}, **live}))

    def without_colours(self) -> Theme:
        """The theme for terminals without colours."""
        styles = {role: one.without_color for role, one in self.styles.items()}
        return replace(self, styles=styles, background=ANSI_DEFAULT, foreground=ANSI_DEFAULT, has_colours=False)

    def _with_background(self, styles: Mapping[str, Style]) -> dict[str, Style]:
        ground = Style(
            color=None if self.foreground == ANSI_DEFAULT else self.foreground,
            bgcolor=None if self.background == ANSI_DEFAULT else self.background,
        )
        return {role: ground + styles.get(role, Style.null()) for role in Role}


class _ThemedPalette(RoleStyles):
    """A palette in which text under the cursor keeps its colours, except for dimmed text, which would be hard to read.

    Text of the role ``human`` also keeps its own background.
    """

    def __init__(self, styles: Mapping[str, Style], overs: Mapping[str, Style], has_colours: bool) -> None:
        super().__init__(styles)
        self._overs = overs
        self._has_colours = has_colours

    def _own_style(self, role: str) -> Style:
        style = Style.parse(role.removeprefix(SGR_ROLE))
        return super()._own_style(role) + (style if self._has_colours else style.without_color)

    def mix(self, role: str, over: str | None) -> Style:
        under = super().mix(role, None)
        if over is None or (role == Role.HUMAN and under.bgcolor is not None and not under.reverse):
            return under
        lies_over = self._overs.get(over, Style.null())
        if over == Role.CURSOR and role in _DIMMED and not lies_over.reverse:
            under = super().mix(Role.TEXT, None)
        return mix(under, lies_over)


def theme_names() -> list[str]:
    """The names of all themes, the default first."""
    names = sorted(file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml"))
    return sorted(names, key=lambda name: name != DEFAULT)


def _folder() -> Traversable:
    package, _, _ = __name__.partition(".console.")
    return resources.files(f"{package}.themes")


def load_theme(name: str) -> Theme:
    """Load a theme by its name. Raises ThemeError."""
    if name not in theme_names():
        raise ThemeError(f"there is no theme {name!r}; there are {', '.join(theme_names())}")
    values = tomllib.loads((_folder() / f"{name}.toml").read_text("utf-8"))
    styles = {role: Style.parse(style) for role, style in values.pop("roles").items()}
    return Theme(name, values.pop("title"), values.pop("about"), styles, **values)


def initial_theme_name() -> str:
    """The first theme: of ``REDRIVE_THEME``, else the last choice, else ``DEFAULT``."""
    forced = os.environ.get(THEME_VARIABLE, "").strip()
    if forced:
        return forced
    try:
        saved = _choice_file().read_text(encoding="utf-8")[:100].strip()
    except (OSError, UnicodeDecodeError):
        return DEFAULT
    return saved if saved in theme_names() else DEFAULT


def save_choice(name: str) -> None:
    """Save the theme for later consoles. Raises OSError if it cannot be written."""
    path = _choice_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n", encoding="utf-8")


def _choice_file() -> Path:
    return Path(platformdirs.user_config_path("redrive", appauthor=False)) / "theme"
