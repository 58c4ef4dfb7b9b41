"""The command palette: type part of a name, Enter runs the selected match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.widget import Widget

from ..text.pieces import Line, Piece, Role, fit
from ..text.text import one_line, pad
from ..widgets.modal import Modal
from ..widgets.prompt import Prompt
from ..widgets.table import VirtualTable
from ..widgets.text_input import TextField

_ROWS_MAX = 12
_WORD_CELLS = 22


@dataclass(frozen=True, slots=True)
class PaletteEntry:
    """One command. ``value``: the answer; ``key``: the key with the same effect."""

    value: str
    label: str
    help: str
    key: str = ""


class PalettePrompt(Prompt):
    """Up in an empty prompt recalls earlier commands; all other arrows move in the list above."""

    @property
    def can_recall(self) -> bool:
        """Whether the prompt is empty, or shows a recalled command."""
        return len(self._history) > 1 and self.text == self._history[self._place]


class CommandPalette(Modal[str | None]):
    """Returns the value of the chosen entry, or None."""

    ASKS: ClassVar[bool] = False

    DEFAULT_CSS = """
    CommandPalette { align: center bottom; }
    CommandPalette > Vertical {
        max-width: 100%;
        border: none;
        border-top: solid ansi_default;
        padding: 0;
    }
    """

    def __init__(
        self,
        entries: Sequence[PaletteEntry],
        history: Sequence[str] = (),
        text: str = "",
        reader: Callable[[str], PaletteEntry | None] = lambda text: None,
    ) -> None:
        """``text``: the initial text. ``reader`` parses commands with free arguments."""
        super().__init__()
        self._entries = {entry.value: entry for entry in entries}
        self._parsed_entry: dict[str, PaletteEntry] = {}  # what the text means by itself
        self.table: VirtualTable[str] = VirtualTable(self._row, always_lit=True)
        self.prompt = PalettePrompt(":")
        self._history = history
        self._text = text
        self._reader = reader

    def body(self) -> Iterable[Widget]:
        """Yield the list and the prompt below it; an empty prompt matches every entry."""
        self.table.can_focus = False
        self.table.styles.height = max(min(len(self._entries), _ROWS_MAX, self.app.size.height - 6), 1)
        self._match(self._text)
        self.prompt.open(
            ":",
            self._text,
            hint="a command; arrows choose, Tab completes",
            history=self._history,
            complete=self._completions,
        )
        yield self.table
        yield self.prompt

    def first_focus(self) -> Widget:
        """The prompt."""
        return self.prompt

    def _row(self, value: str, columns: int) -> Line:
        entry = self._parsed_entry[value] if value in self._parsed_entry else self._entries[value]
        word_cells = min(_WORD_CELLS, columns // 2)
        left: Line = [Piece(f" {pad(entry.label, word_cells)} "), Piece(entry.help, Role.DIM)]
        return [*fit(left, columns - 7), Piece(f"{entry.key:>6} ", Role.KEY)]

    def _match(self, text: str) -> None:
        own = self._reader(text)
        self._parsed_entry = {} if own is None else {own.value: own}
        entries = matching(list(self._entries.values()), text) if own is None else [own]
        self.table.set_order([entry.value for entry in entries])
        self.table.move_to(0)

    def _completions(self, text: str) -> list[str]:
        return [entry.label for entry in matching(list(self._entries.values()), text)]

    def on_text_field_changed(self, message: TextField.Changed) -> None:
        """Update the list."""
        self._match(message.text)

    def on_text_field_submitted(self) -> None:
        """Run the entry under the cursor."""
        if self.table.cursor_key is not None:
            self.dismiss(self.table.cursor_key)
        else:
            self.prompt.open(":", "", hint=_no_match(self.prompt.text), history=self._history)
            self._match("")

    def on_text_field_cancelled(self) -> None:
        """Close the palette; nothing runs."""
        self.dismiss(None)

    def on_key(self, event: events.Key) -> None:
        """Move the cursor in the list by arrow keys."""
        moves = {"down": 1, "up": -1, "pagedown": 1, "pageup": -1, "ctrl+n": 1, "ctrl+p": -1}
        if event.key in moves:
            event.stop()
            self.table.move_to(self.table.cursor + moves[event.key])

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Run the entry that was clicked a second time."""
        self.dismiss(self.table.cursor_key)


def _no_match(text: str) -> str:
    """Say why a text is not a command."""
    if " -" in text:
        return "options are for the shell: redrive " + one_line(text.split(" -")[0].strip()) + " --help"
    return "no command has this name; type another word"


def matching(entries: Sequence[PaletteEntry], text: str) -> list[PaletteEntry]:
    """The entries that contain all words of ``text``, then those whose name has its letters in this order.

    Names that start with the text come first.
    """
    words = text.casefold().replace("_", " ").split()
    whole = " ".join(words)
    found = [entry for entry in entries if all(word in f"{entry.label} {entry.help}".casefold() for word in words)]
    found.sort(key=lambda entry: (entry.label != whole, not entry.label.startswith(whole)))
    return found + [entry for entry in entries if entry not in found and _has_letters(entry.label, whole)]


def _has_letters(label: str, text: str) -> bool:
    """Whether ``label`` has the letters of ``text`` in their order, as ``requeue`` has those of ``rque``."""
    letters = iter(label)
    return all(letter in letters for letter in text if letter != " ")
