"""The operator's preferences: theme, mouse, and the bell for new pages."""

from __future__ import annotations

from ...engine.errors import RedriveError
from ..text.pieces import Role
from . import theme
from .views import ViewConsole


class Preferences:
    """The controller of preferences; each console has one."""

    def __init__(self, console: ViewConsole) -> None:
        self._console = console

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

    def toggle_mouse(self) -> None:
        """Turn the mouse on, or leave it to the terminal."""
        is_on = self._console.toggle_mouse()
        self._console.show_message("clicks come here" if is_on else "the terminal selects text")

    def toggle_bell(self) -> None:
        """Turn the bell for new pages on or off."""
        bell = self._console.page_bell
        bell.is_on = not bell.is_on
        self._console.show_message("new pages ring the terminal" if bell.is_on else "new pages are silent here")
