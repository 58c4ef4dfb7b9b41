"""What the roles of pieces look like: one file per theme, ours in ``themes``, the operator's own in a folder beside
``keys.toml``. A file is checked against one schema; what is wrong with it is said and nothing of it is used.

A theme file::

    title = "Dark"
    about = "Light text on a dark ground of its own."
    background = "#16181d"      # of everything; left out: the terminal's own
    foreground = "#c8ccd4"

    [roles]
    running = "cyan"            # words as rich has them: colours by name or number, bold, dim, reverse, underline
    human = "bold white on magenta"
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import platformdirs
from rich.errors import StyleSyntaxError
from rich.style import Style

from ...engine.errors import RedriveError
from ..text.pieces import Role
from ..widgets.role_styles import Palette, mix

DEFAULT = "terminal"
VARIABLE = "REDRIVE_THEME"
ANSI_DEFAULT = "ansi_default"
_FILE_BYTES_MAX = 65536
_KEYS = frozenset({"title", "about", "background", "foreground", "roles"})

#: What stays as it is when everything else is greyed because the picture is old.
_SEEN_WHEN_STALE = (Role.WARNING, Role.CURSOR, Role.KEY)


_DIMMED = frozenset({Role.DIM, Role.PENDING, Role.SKIPPED, Role.RULE, Role.STALE})


class ThemeError(RedriveError):
    """A theme file cannot be used. One sentence."""


@dataclass(frozen=True, slots=True)
class Theme:
    """One theme. ``background`` and ``foreground`` are colours of Textual's style sheets."""

    name: str
    title: str
    about: str
    styles: Mapping[str, Style]
    background: str = ANSI_DEFAULT
    foreground: str = ANSI_DEFAULT

    def palette(self) -> Palette:
        """For a picture that is true."""
        return _ThemedPalette(self._on_ground(self.styles), self.styles)

    def stale_palette(self) -> Palette:
        """For a picture that is old: everything greyed, but what says so."""
        grey = self.styles.get(Role.STALE, Style(dim=True))
        kept = {str(role): self.styles[role] for role in _SEEN_WHEN_STALE if role in self.styles}
        return Palette(self._on_ground({**{str(role): grey for role in Role}, **kept}))

    def without_colours(self) -> Theme:
        """For terminals that get none: what is left of it."""
        return Theme(self.name, self.title, self.about, {role: one.without_color for role, one in self.styles.items()})

    def _on_ground(self, styles: Mapping[str, Style]) -> dict[str, Style]:
        ground = Style(
            color=None if self.foreground == ANSI_DEFAULT else self.foreground,
            bgcolor=None if self.background == ANSI_DEFAULT else self.background,
        )
        return {role: ground + styles.get(role, Style.null()) for role in Role}


class _ThemedPalette(Palette):
    """A cursor that is a ground of its own leaves colours to what lies on it: to all but what is dimmed, which would be
    hard to read there. What needs a human keeps its own ground under it."""

    def __init__(self, styles: Mapping[str, Style], overs: Mapping[str, Style]) -> None:
        super().__init__(styles)
        self._overs = overs

    def mixed(self, role: str, over: str | None) -> Style:
        under = super().mixed(role, None)
        if over is None or (role == Role.HUMAN and under.bgcolor is not None and not under.reverse):
            return under
        lies_over = self._overs.get(over, Style.null())
        if over == Role.CURSOR and role in _DIMMED and not lies_over.reverse:
            under = super().mixed(Role.TEXT, None)
        return mix(under, lies_over)


def user_folder() -> Path:
    """Where the operator's own themes are."""
    return Path(platformdirs.user_config_path("redrive", appauthor=False)) / "themes"


def names(folder: Path | None = None) -> list[str]:
    """Every theme there is: ours first, then the operator's own; one of theirs may replace one of ours."""
    own = sorted(path.stem for path in (folder or user_folder()).glob("*.toml"))
    built_in = sorted(path.name.removesuffix(".toml") for path in _built_in_folder().iterdir() if path.name.endswith(".toml"))
    built_in.sort(key=lambda name: name != DEFAULT)
    return [*built_in, *(name for name in own if name not in built_in)]


def about(name: str) -> str:
    """What a theme says of itself, or what is wrong with its file."""
    try:
        return load_theme(name).about
    except RedriveError as error:
        return str(error)


def _built_in_folder() -> Traversable:
    package, _, _ = __name__.partition(".console.")
    return resources.files(f"{package}.themes")


def load_theme(name: str, folder: Path | None = None) -> Theme:
    """Read a theme by its name. Raises ThemeError."""
    own = (folder or user_folder()) / f"{name}.toml"
    if name not in names(folder):
        raise ThemeError(f"there is no theme {name!r}; there are {', '.join(names(folder))}")
    source = own if own.exists() else _built_in_folder() / f"{name}.toml"
    try:
        text = source.read_bytes()[:_FILE_BYTES_MAX].decode()
        return read_theme(name, tomllib.loads(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ThemeError) as error:
        raise ThemeError(f"{source} cannot be used: {error}") from error


def read_theme(name: str, values: Mapping[str, Any]) -> Theme:
    """Check the values of a theme file. Raises ThemeError with everything that is wrong."""
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
    grounds = {key: texts[key] for key in ("background", "foreground") if texts[key]}
    return Theme(name, texts["title"] or name, texts["about"], styles, **grounds)


def _bad_colours(texts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Grounds are colours as ``#rrggbb``, which mean the same to everybody who draws."""
    for key in ("background", "foreground"):
        value = texts[key]
        digits = value[1:] if isinstance(value, str) else ""
        if value and not (len(digits) == 6 and value[0] == "#" and set(digits.lower()) <= set("0123456789abcdef")):
            yield key, f"{value!r} is not a colour as #1a2b3c"


def chosen_name(folder: Path | None = None) -> str:
    """The theme to begin with: by ``REDRIVE_THEME``, else the one that was chosen last, else the terminal's own."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked:
        return asked
    try:
        remembered = _memory(folder).read_text(encoding="utf-8")[:100].strip()
    except (OSError, UnicodeDecodeError):
        return DEFAULT
    return remembered if remembered in names(folder) else DEFAULT


def remember(name: str, folder: Path | None = None) -> None:
    """Begin with this one next time. Raises OSError if it cannot be written down."""
    path = _memory(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n", encoding="utf-8")


def _memory(folder: Path | None) -> Path:
    return (folder or user_folder()).parent / "theme"
