"""The operator's preferences: theme, mouse, the bell for new pages, saved filters, and the columns of lists."""

from __future__ import annotations

from typing import Protocol

from ...engine.errors import RedriveError
from ..keys.actions import action_named
from ..model.columns import COLUMNS
from ..screens.base import ConsoleScreen
from ..screens.choice_dialog import ChoiceOption
from ..screens.column_dialog import ColumnDialog
from ..screens.console import ConsoleHost, errors_shown
from ..terminal.bell import TerminalBell
from ..text.pieces import Role
from ..text.text import one_line
from . import settings_files, theme
from .operator import OperatorActions


class Appearance(ConsoleHost, Protocol):
    """The app as this controller uses it."""

    page_bell: TerminalBell

    @property
    def console_screen(self) -> ConsoleScreen:
        """The visible screen, or the screen below a dialog."""

    def use_theme(self, look: theme.Theme) -> None:
        """Use another theme."""

    def toggle_mouse(self) -> bool:
        """Turn the mouse on or off. Return whether it is on."""


class Preferences:
    """The controller of preferences; each console has one."""

    def __init__(self, console: Appearance, actions: OperatorActions) -> None:
        self._console = console
        self._actions = actions

    def choose_theme(self) -> None:
        """Let the operator choose a theme."""
        options = [ChoiceOption(name, name, theme.theme_description(name)) for name in theme.theme_names()]
        self._actions.choose("Theme", options, self.use_theme)

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
            settings_files.save_filter(name, text)
        except (RedriveError, OSError) as error:
            self._console.show_message(f"the filter could not be saved: {error}", Role.WARNING)
            return
        key = self._console.keymap.label("filters")
        self._console.show_message(f"saved as {name}: {key} lists it" if text else f"{name} is forgotten")

    def choose_filter(self) -> None:
        """Let the operator choose a saved filter for the visible list."""
        with errors_shown(self._console):
            known = settings_files.load_filters()
            if not known:
                self._console.show_message("no filter is saved: type one with / and then :save-filter NAME")
                return
            options = [ChoiceOption(name, one_line(name), one_line(text)) for name, text in known.items()]
            use = self._console.console_screen.use_filter
            self._actions.choose("Saved filters", options, lambda name: use(known[name]))

    def choose_columns(self) -> None:
        """Let the operator choose the columns of the visible list."""
        console, name = self._console, self._console.screen_name.value
        shown = console.columns.shown_in(name)
        title = f"Columns of {action_named(f'view_{name}').label}"
        console.push_screen(ColumnDialog(title, COLUMNS[name], shown, console.glyphs), self._use_columns)

    def _use_columns(self, chosen: frozenset[str] | None) -> None:
        if chosen is None:
            return
        console = self._console
        console.columns.choose(console.screen_name.value, chosen)
        console.console_screen.columns_changed()
        try:
            settings_files.save_columns(console.columns)
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
