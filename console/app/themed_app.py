"""The colours of the app: its theme, greyed while the data is stale."""

from __future__ import annotations

from ..keys.keymap import KeyMap
from ..terminal.capabilities import Colours, TerminalCapabilities
from ..terminal.tty import Tty
from .base_app import ConsoleBase
from .theme import DEFAULT, Theme, load_theme


class ThemedConsole(ConsoleBase):
    """An app that paints with the colours of a theme."""

    CSS = """
    ConsoleScreen, LineView { background: $ground; color: $ink; }
    Modal > Vertical { background: $ground; border: round $ink; }
    CommandPalette > Vertical { border: none; border-top: solid $ink; }
    """

    def __init__(self, tty: Tty, keymap: KeyMap, theme: Theme) -> None:
        self._console_theme = self._for_terminal(theme, tty.capabilities)
        super().__init__(tty, keymap, self._console_theme.palette())
        self._is_greyed = False

    def use_theme(self, theme: Theme) -> None:
        """Use another theme."""
        self._console_theme = theme = self._for_terminal(theme, self.capabilities)
        self.palette = theme.stale_palette() if self._is_greyed else theme.palette()
        self.refresh_css(animate=False)
        for stack in self._screen_stacks.values():
            for screen in stack:
                screen.refresh()

    @staticmethod
    def _for_terminal(theme: Theme, terminal: TerminalCapabilities) -> Theme:
        """The theme itself, or the default theme without colours: other themes need a background colour."""
        return theme if terminal.colours is not Colours.NONE else load_theme(DEFAULT).without_colours()

    def get_css_variables(self) -> dict[str, str]:
        """The colours of Textual's own backgrounds."""
        ground = {"ground": self._console_theme.background, "ink": self._console_theme.foreground}
        return {**super().get_css_variables(), **ground}

    def show_greyed(self, is_greyed: bool) -> None:
        """Grey the colours, or show them again."""
        if is_greyed != self._is_greyed:
            self._is_greyed = is_greyed
            self.palette = self._console_theme.stale_palette() if is_greyed else self._console_theme.palette()
