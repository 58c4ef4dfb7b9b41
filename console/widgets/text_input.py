"""A one-line text field that accepts visible characters only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from textual import events
from textual.geometry import Offset
from textual.message import Message

from ..text.pieces import Line, Piece, Role
from ..text.text import cells, one_line, sanitize
from .line_view import LineView

TEXT_MAX = 1000


class TextField(LineView, can_focus=True):
    """A label and a text.

    Every key goes to the field but Tab and those that subclasses handle. A paste is one line and ends nothing.
    """

    DEFAULT_CSS = "TextField { height: 1; }"

    @dataclass
    class Changed(Message):
        """The text is another one."""

        field: TextField
        text: str

    @dataclass
    class Submitted(Message):
        """Enter."""

        field: TextField
        text: str

    @dataclass
    class Cancelled(Message):
        """Esc was pressed."""

        field: TextField

    def __init__(
        self, label: str = "", text: str = "", *, hint: str = "", characters: str = "", id: str | None = None
    ) -> None:
        """``characters``: those that the field accepts (empty: any); other keys go to the screen."""
        super().__init__(id=id)
        self._label = label
        self._hint = hint
        self._characters = characters
        self._text = one_line(text, TEXT_MAX)
        self.cursor = len(self._text)
        self._first_shown = 0  # first character that is shown

    @property
    def text(self) -> str:
        return self._text

    @text.setter
    def text(self, text: str) -> None:
        self._edit(one_line(text, TEXT_MAX), TEXT_MAX)

    def reset(self, label: str, text: str = "", hint: str = "") -> None:
        """Reset label, text and placeholder without posting a message."""
        self._label, self._hint = label, hint
        self._text = sanitize(text, TEXT_MAX)
        self.cursor = len(self._text)
        self._first_shown = 0
        self.refresh()

    def insert(self, text: str) -> None:
        """Put text at the cursor."""
        room = TEXT_MAX - len(self._text)
        text = sanitize(text, TEXT_MAX)[:room]
        self._edit(self._text[: self.cursor] + text + self._text[self.cursor :], self.cursor + len(text))

    def _edit(self, text: str, at: int) -> None:
        self.cursor = max(min(at, len(text)), 0)
        changed, self._text = text != self._text, text
        self._show_cursor()
        if changed:
            self.post_message(self.Changed(self, text))

    def _show_cursor(self) -> None:
        """Scroll the text so that the cursor is in view, and give input methods its position."""
        room = max(self.columns - cells(self._label) - 1, 1)
        self._first_shown = min(self._first_shown, self.cursor)
        while cells(self._text[self._first_shown : self.cursor]) >= room:
            self._first_shown += 1
        while self._first_shown and cells(self._text[self._first_shown - 1 :]) < room:
            self._first_shown -= 1  # it was scrolled for a narrower field, or for one not laid out yet
        if self.has_focus:
            x = cells(self._label) + cells(self._text[self._first_shown : self.cursor])
            self.app.cursor_position = self.content_region.offset + Offset(x, 0)
        self.refresh()

    # --- keys -----------------------------------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        """Edit the text, or type into it."""
        edit = _EDITS.get(event.key)
        if edit is not None:
            self._edit(*edit(self._text, self.cursor))
        elif event.key == "enter":
            self.post_message(self.Submitted(self, self._text))
        elif event.key == "escape":
            self.post_message(self.Cancelled(self))
        elif event.character is not None and event.is_printable and self._accepts(event.character):
            self.insert(event.character)
        else:
            return
        event.stop()
        event.prevent_default()

    def _accepts(self, character: str) -> bool:
        return not self._characters or character in self._characters

    def on_paste(self, event: events.Paste) -> None:
        """A paste is one line of visible text."""
        event.stop()
        self.insert(one_line(event.text, TEXT_MAX))

    def on_focus(self) -> None:
        self._show_cursor()

    def on_blur(self) -> None:
        """Show no cursor."""
        self.app.cursor_position = Offset(0, 0)

    def on_resize(self) -> None:
        """Keep the cursor in view."""
        self._show_cursor()

    # --- drawing --------------------------------------------------------------------------------------------------

    def line(self, y: int) -> Line:
        """Render label, text and cursor."""
        label = Piece(self._label, Role.KEY)
        if not self.has_focus:
            return [label, Piece(self._text or self._hint, Role.TEXT if self._text else Role.DIM)]
        under = self._text[self.cursor : self.cursor + 1] or " "
        hint = [] if self._text else [Piece(self._hint, Role.DIM)]
        return [
            label,
            Piece(self._text[self._first_shown : self.cursor]),
            Piece(under, Role.CURSOR),
            Piece(self._text[self.cursor + 1 :]),
            *hint,
        ]


def _without_word(text: str, at: int) -> tuple[str, int]:
    kept = text[:at].rstrip()
    start = kept.rfind(" ") + 1
    return text[:start] + text[at:], start


_Edit = Callable[[str, int], tuple[str, int]]
_EDITS: Mapping[str, _Edit] = {
    "left": lambda text, at: (text, at - 1),
    "right": lambda text, at: (text, at + 1),
    "home": lambda text, at: (text, 0),
    "ctrl+a": lambda text, at: (text, 0),
    "end": lambda text, at: (text, len(text)),
    "ctrl+e": lambda text, at: (text, len(text)),
    "backspace": lambda text, at: (text[: max(at - 1, 0)] + text[at:], at - 1),
    "delete": lambda text, at: (text[:at] + text[at + 1 :], at),
    "ctrl+d": lambda text, at: (text[:at] + text[at + 1 :], at),
    "ctrl+u": lambda text, at: (text[at:], 0),
    "ctrl+k": lambda text, at: (text[:at], at),
    "ctrl+w": _without_word,
}
