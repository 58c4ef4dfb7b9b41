"""The operator's preferences: theme, mouse, the bell for new pages, saved filters, and the columns of lists."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from ...engine.errors import RedriveError
from ..keys.actions import action_named
from ..keys.keymap import key_file
from ..model.lists import COLUMNS, ColumnChoice
from ..screens.console import errors_shown
from ..screens.dialogs import ChoiceOption, ColumnDialog, choose
from ..text.pieces import Role
from ..text.text import one_line
from . import theme
from .views import ViewConsole


class Preferences:
    """The controller of preferences; each console has one."""

    def __init__(self, console: ViewConsole) -> None:
        self._console = console

    def choose_theme(self) -> None:
        """Let the operator choose a theme."""
        options = [ChoiceOption(name, name, theme.theme_description(name)) for name in theme.theme_names()]
        choose(self._console, "Theme", options, self.use_theme)

    def use_theme(self, name: str) -> None:
        """Use a theme now and in later consoles."""
        message, role = f"theme {name}", Role.TEXT
        try:
            self._console.use_theme(theme.load_theme(name))
            theme.save_choice(name)
        except RedriveError as error:
            message, role = str(error), Role.WARNING
        except OSError as error:
            message, role = f"theme {name}; the choice could not be saved: {error.strerror}", Role.WARNING
        self._console.show_message(message, role)

    def save_filter(self, name: str) -> None:
        """Save the filter of the visible list under a name; without a filter, forget the name."""
        text, name = self._console.console_screen.filter_text, one_line(name)
        if not name:
            self._console.show_message("name it: save-filter slow loads", Role.WARNING)
            return
        try:
            save_filter(name, text)
        except (RedriveError, OSError) as error:
            self._console.show_message(f"the filter could not be saved: {error}", Role.WARNING)
            return
        key = self._console.keymap.label("filters")
        self._console.show_message(f"saved as {name}: {key} lists it" if text else f"{name} is forgotten")

    def choose_filter(self) -> None:
        """Let the operator choose a saved filter for the visible list."""
        with errors_shown(self._console.show_message):
            known = load_filters()
            if not known:
                self._console.show_message("no filter is saved: type one with / and then :save-filter NAME")
                return
            options = [ChoiceOption(name, one_line(name), one_line(text)) for name, text in known.items()]
            use = self._console.console_screen.use_filter
            choose(self._console, "Saved filters", options, lambda name: use(known[name]))

    def choose_columns(self) -> None:
        """Let the operator choose the columns of the visible list."""
        console, name = self._console, self._console.console_screen.PLACE.value
        shown = console.columns.shown_in(name)
        title = f"Columns of {action_named(f'view_{name}').label}"
        console.push_screen(ColumnDialog(title, COLUMNS[name], shown, console.glyphs), self._use_columns)

    def _use_columns(self, chosen: frozenset[str] | None) -> None:
        if chosen is None:
            return
        console = self._console
        console.columns.choose(console.console_screen.PLACE.value, chosen)
        console.console_screen.columns_changed()
        try:
            save_columns(console.columns)
        except OSError as error:
            console.show_message(f"the choice could not be saved: {error.strerror}", Role.WARNING)

    def toggle_mouse(self) -> None:
        """Turn the mouse on, or leave it to the terminal."""
        is_on = self._console.toggle_mouse()
        self._console.show_message("clicks come here" if is_on else "the terminal selects text")

    def toggle_bell(self) -> None:
        """Turn the bell for new pages on or off."""
        bell = self._console.page_bell
        bell.is_on = not bell.is_on
        self._console.show_message("new pages ring the terminal" if bell.is_on else "new pages are silent here")


# --- The operator's saved filters and choice of columns: a file of each in the configuration folder ------------------
#
# ``filters.toml`` has one line per filter, ``columns.toml`` one per list::
#
# "slow loads" = "load !timeout"
#
# runs = ["done", "started", "took"]


_FILTERS, _COLUMNS = "filters.toml", "columns.toml"


class SettingsFileError(RedriveError):
    """A file of settings cannot be read."""


def settings_file(name: str) -> Path:
    """The path of a file beside that of the keys."""
    return key_file().with_name(name)


def load_filters() -> dict[str, str]:
    """Name -> filter, in the order of the file. Raises SettingsFileError."""
    return {name: text for name, text in _load(_FILTERS).items() if isinstance(text, str)}


def save_filter(name: str, text: str) -> None:
    """Save a filter under a name; an empty one removes the name. Raises SettingsFileError, OSError."""
    filters = {**load_filters(), name: text}
    _save(_FILTERS, {known: saved for known, saved in filters.items() if saved})


def load_columns() -> ColumnChoice:
    """The choice of the file; without a file every list shows all columns. Raises SettingsFileError."""
    lists = {name: columns for name, columns in _load(_COLUMNS).items() if isinstance(columns, list)}
    return ColumnChoice({name: [str(column) for column in columns] for name, columns in lists.items()})


def save_columns(choice: ColumnChoice) -> None:
    """Save a choice. Raises OSError."""
    _save(_COLUMNS, choice.as_dict())


def _load(name: str) -> dict[str, object]:
    path = settings_file(name)
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsFileError(f"{path} cannot be read: {error}") from error


def _save(name: str, values: Mapping[str, object]) -> None:
    path = settings_file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{_quoted(key)} = {_quoted(value)}\n" for key, value in values.items()]
    path.write_text("".join(lines), encoding="utf-8")


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
