"""Themes: the styles of roles, one file per theme; built-in ones in ``themes``, the user's in a folder beside
``keys.toml``. A file with a mistake is rejected as a whole, with a message.

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
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
from msgspec.structs import replace
from rich.errors import StyleSyntaxError
from rich.style import Style

from ...engine.errors import RedriveError
from ..text.pieces import SGR_ROLE, Role
from ..text.role_styles import RoleStyles, mix

DEFAULT = "terminal"
THEME_VARIABLE = "REDRIVE_THEME"
ANSI_DEFAULT = "ansi_default"
_FILE_BYTES_MAX = 65536
_KEYS = frozenset({"title", "about", "background", "foreground", "roles"})

#: Roles that are not greyed while the data is stale.
_LIVE_WHEN_STALE = (Role.WARNING, Role.CURSOR, Role.KEY)


_DIMMED = frozenset({Role.DIM, Role.PENDING, Role.SKIPPED, Role.RULE, Role.STALE})


class ThemeError(RedriveError):
    """A theme file is invalid; the message is one sentence."""


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
        kept = {str(role): self.styles[role] for role in _LIVE_WHEN_STALE if role in self.styles}
        return RoleStyles(self._with_background({**{str(role): grey for role in Role}, **kept}))

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


def user_folder() -> Path:
    """The folder of the user's themes."""
    return Path(platformdirs.user_config_path("redrive", appauthor=False)) / "themes"


def theme_names(folder: Path | None = None) -> list[str]:
    """The names of all themes: built-in ones first. A theme of the user can replace a built-in one."""
    own = sorted(path.stem for path in (folder or user_folder()).glob("*.toml"))
    built_in = sorted(
        path.name.removesuffix(".toml") for path in _built_in_folder().iterdir() if path.name.endswith(".toml")
    )
    built_in.sort(key=lambda name: name != DEFAULT)
    return [*built_in, *(name for name in own if name not in built_in)]


def theme_description(name: str) -> str:
    """The description of a theme, or the problem with its file."""
    try:
        return load_theme(name).description
    except RedriveError as error:
        return str(error)


def _built_in_folder() -> Traversable:
    package, _, _ = __name__.partition(".console.")
    return resources.files(f"{package}.themes")


def load_theme(name: str, folder: Path | None = None) -> Theme:
    """Load a theme by its name. Raises ThemeError."""
    own = (folder or user_folder()) / f"{name}.toml"
    if name not in theme_names(folder):
        raise ThemeError(f"there is no theme {name!r}; there are {', '.join(theme_names(folder))}")
    source = own if own.exists() else _built_in_folder() / f"{name}.toml"
    try:
        text = source.read_bytes()[:_FILE_BYTES_MAX].decode()
        return parse_theme(name, tomllib.loads(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ThemeError) as error:
        raise ThemeError(f"{source} cannot be used: {error}") from error


def parse_theme(name: str, values: Mapping[str, Any]) -> Theme:
    """Validate the values of a theme file. Raises ThemeError with all problems."""
    problems = [f"unknown key {key!r}" for key in values.keys() - _KEYS]
    roles = values.get("roles")
    if not isinstance(roles, Mapping):
        raise ThemeError("it has no table [roles]")
    known = {str(role) for role in Role}
    problems += [f"unknown role {role!r}" for role in roles.keys() - known]
    styles: dict[str, Style] = {}
    for role in roles.keys() & known:
        try:
            styles[role] = Style.parse(str(roles[role]))
        except StyleSyntaxError as error:
            problems.append(f"{role}: {error}")
    texts = {key: values.get(key, "") for key in ("title", "about", "background", "foreground")}
    problems += [f"{key} is not a text" for key, value in texts.items() if not isinstance(value, str)]
    problems += [f"{key}: {error}" for key, error in _bad_colours(texts)]
    if problems:
        raise ThemeError("; ".join(sorted(problems)))
    colours = {key: texts[key] for key in ("background", "foreground") if texts[key]}
    return Theme(name, texts["title"] or name, texts["about"], styles, **colours)


def _bad_colours(texts: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The key and the problem of each colour that is not ``#rrggbb``, which rich and Textual read alike."""
    for key in ("background", "foreground"):
        value = texts[key]
        if value and not (isinstance(value, str) and re.fullmatch("#[0-9a-fA-F]{6}", value)):
            yield key, f"{value!r} is not a colour as #1a2b3c"


def initial_theme_name(folder: Path | None = None) -> str:
    """The first theme: of ``REDRIVE_THEME``, else the last choice, else ``DEFAULT``."""
    forced = os.environ.get(THEME_VARIABLE, "").strip()
    if forced:
        return forced
    try:
        saved = _choice_file(folder).read_text(encoding="utf-8")[:100].strip()
    except (OSError, UnicodeDecodeError):
        return DEFAULT
    return saved if saved in theme_names(folder) else DEFAULT


def save_choice(name: str, folder: Path | None = None) -> None:
    """Save the theme for later consoles. Raises OSError if it cannot be written."""
    path = _choice_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n", encoding="utf-8")


def _choice_file(folder: Path | None) -> Path:
    return (folder or user_folder()).parent / "theme"
