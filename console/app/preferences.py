"""What the operator prefers of the console itself: its theme, who has the mouse, whether new pages ring."""

from __future__ import annotations

from typing import Protocol

from ...engine.errors import RedriveError
from ..screens.choice_dialog import Option
from ..screens.console import ConsoleHost
from ..terminal.bell import Bell
from ..text.pieces import Role
from . import theme
from .operator import Acts


class Appearance(ConsoleHost, Protocol):
    """What only this controller asks of the app."""

    bell_of_pages: Bell

    def use_theme(self, look: theme.Theme) -> None:
        """Other colours from now on."""

    def toggle_mouse(self) -> bool:
        """Whether clicks come to the console from now on."""


class Preferences:
    """One for each console."""

    def __init__(self, console: Appearance, acts: Acts) -> None:
        self._console = console
        self._acts = acts

    def choose_theme(self) -> None:
        """Pick a theme."""
        options = [Option(name, name, theme.about(name)) for name in theme.names()]
        self._acts.choose("Theme", options, self.use_theme)

    def use_theme(self, name: str) -> None:
        """Use it from now on, and the next time."""
        message, role = f"theme {name}", Role.TEXT
        try:
            self._console.use_theme(theme.load_theme(name))
            theme.remember(name)
        except RedriveError as error:
            message, role = str(error), Role.WARNING
        except OSError as error:
            message, role = f"theme {name}; it could not be remembered: {error.strerror}", Role.WARNING
        self._console.show_message(message, role)

    def toggle_mouse(self) -> None:
        """Take the mouse, or leave it to the terminal."""
        on = self._console.toggle_mouse()
        self._console.show_message("clicks come here" if on else "the terminal selects text")

    def toggle_bell(self) -> None:
        """Ring for new pages from now on, or keep quiet."""
        bell = self._console.bell_of_pages
        bell.is_on = not bell.is_on
        self._console.show_message("new pages ring the terminal" if bell.is_on else "new pages are silent here")
