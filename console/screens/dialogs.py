"""The dialogs that choose: an option, columns, a command; and the one with lines to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from textual import events
from textual.app import App
from textual.widget import Widget

from ..keys.actions import Action
from ..keys.keymap import key_label, keys_of
from ..model.lists import parse_filter
from ..text.pieces import Line, Piece, Role, fit, plain, wrap
from ..text.text import one_line, pad
from ..widgets.bars import Bar, TextField, bindings
from ..widgets.dialog import Modal, ask, bar_of
from ..widgets.table import VirtualTable
from ..widgets.text_view import LinesView

# --- A dialog with a list of options: Enter chooses the selected one, Esc none ---------------------------------------


_ROWS_MAX = 16


class ChoiceOption(msgspec.Struct, frozen=True):
    """``label``: its name; ``help``: its effect; ``value``: the answer; ``key``: the key with the same effect."""

    value: str
    label: str
    help: str = ""
    key: str = ""


class ChoiceDialog(Modal[str]):
    """Returns the value of the chosen option, or None."""

    guarded_keys = frozenset({"enter"})

    def __init__(self, title: str, options: Sequence[ChoiceOption], warning: str = "") -> None:
        super().__init__(title)
        self._warning = warning
        self._options = list(options)
        self._word_cells = max((len(option.label) for option in options), default=0)
        self.table: VirtualTable[int] = VirtualTable(self._row)

    def body(self) -> Iterable[Widget]:
        """Yield the options, the first under the cursor."""
        self.table.styles.height = min(len(self._options), _ROWS_MAX)
        self.table.set_order(range(len(self._options)))
        if self._warning:
            yield bar_of([Piece(self._warning, Role.WARNING)])
        yield Bar()
        yield self.table
        yield Bar()
        yield bar_of([Piece("Enter", Role.KEY), Piece(" chooses  "), Piece("Esc", Role.KEY), Piece(" goes back")])

    def first_focus(self) -> Widget:
        return self.table

    def _row(self, place: int, columns: int) -> Line:
        option = self._options[place]
        return [Piece(f" {pad(option.label, self._word_cells)}  "), Piece(option.help, Role.DIM)]

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        message.stop()  # the table below has rows of another kind
        if self.was_readable(message.time):
            self.dismiss(self._options[self.table.cursor].value)


def choose(
    app: App[Any], title: str, options: Sequence[ChoiceOption], act: Callable[[str], object], warning: str = ""
) -> None:
    """Let the operator choose an option, the first by default, and call ``act`` with its value."""
    ask(app, ChoiceDialog(title, options, warning), act)


# --- A dialog with scrollable, searchable lines ----------------------------------------------------------------------


_FRAME_ROWS = 5
_COLUMNS_MAX = 92
_FRAME_COLUMNS = 5
_FOOT: Line = [Piece("/", Role.KEY), Piece(" search  "), Piece("Esc", Role.KEY), Piece(" back")]


_KEYS_CELLS = 9


def help_lines(actions: Iterable[Action], columns: int) -> Iterator[Line]:
    """Each action with its keys and its sentence."""
    for action in actions:
        keys = " ".join(key_label(key) for key in keys_of(action.name))
        name = Piece(f"{action.name.replace('_', ' ')}: ", Role.DIM)
        line = [Piece(f"  {pad(keys, _KEYS_CELLS)} ", Role.KEY), name, Piece(action.help)]
        yield from wrap(line, columns, _KEYS_CELLS + 3)


#: Cells of a line -> lines that fit.
LinesWithin = Callable[[int], Sequence[Line]]


class TextDialog(Modal[None]):
    """A title and lines; ``/`` shows only those that match.

    ``lines``: if they depend on the width, a function that returns them, which is called again when the size changes.
    """

    DEFAULT_CSS = f"""
    TextDialog > Vertical {{ max-width: {_COLUMNS_MAX}; }}
    """

    ASKS: ClassVar[bool] = False
    BINDINGS = bindings("close_reading", "search")

    def __init__(self, title: str | Line, lines: Sequence[Line] | LinesWithin, *, wrap: bool = False) -> None:
        super().__init__(title)
        self._lines_within: LinesWithin = lines if callable(lines) else lambda columns: lines
        self._all_lines: Sequence[Line] = ()
        self.view = LinesView(wrap=wrap)
        self.field = TextField(" /", hint="words to search for")
        self.field.display = False
        self.foot = bar_of(_FOOT, id="foot")

    def body(self) -> Iterable[Widget]:
        """Yield the lines and the search field."""
        self._fit()
        yield self.view
        yield self.field
        yield self.foot

    def _fit(self) -> None:
        self._all_lines = self._lines_within(min(self.app.size.width, _COLUMNS_MAX) - _FRAME_COLUMNS)
        self.view.lines = self._matching_lines()
        self.view.styles.height = max(min(len(self._all_lines), self.app.size.height - _FRAME_ROWS), 1)

    def on_resize(self) -> None:
        """Show as many lines as the terminal has room for now, each as wide as it may be."""
        self._fit()
        self.view.lines_changed()

    def first_focus(self) -> Widget:
        """The lines, so that keys scroll."""
        return self.view

    def on_lines_view_position_changed(self) -> None:
        """Say how many lines are below the last visible one."""
        below = len(self.view.lines) - self.view.span[1]
        self.foot.show(_FOOT, [Piece(f"{below} more below ", Role.DIM)] if below > 0 else [])

    def open_search_input(self) -> None:
        self.field.display = True
        self.field.focus()

    def on_text_field_changed(self) -> None:
        """Show only lines that match."""
        self.view.set_lines(self._matching_lines())

    def _matching_lines(self) -> Sequence[Line]:
        wanted = parse_filter(self.field.text)
        return [line for line in self._all_lines if wanted.matches(plain(line).casefold())]

    def on_text_field_submitted(self) -> None:
        """Focus the lines that match; the words stay visible, because other lines are left out."""
        self.field.display = bool(self.field.text)
        self.view.focus()

    def on_text_field_cancelled(self) -> None:
        """Show all lines again."""
        self.field.text = ""
        self.on_text_field_submitted()


# --- The command palette: type part of a name, Enter runs the selected match -----------------------------------------


_MATCHES_MAX = 12
_LABEL_CELLS = 12  # a longer one moves its sentence to the right


class CommandPalette(Modal[str]):
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
        entries: Sequence[ChoiceOption],
        text: str = "",
        reader: Callable[[str], ChoiceOption | None] = lambda text: None,
    ) -> None:
        """``text``: the initial text. ``reader`` parses commands with free arguments."""
        super().__init__()
        self._entries = {entry.value: entry for entry in entries}
        self._parsed_entry: dict[str, ChoiceOption] = {}  # what the text means by itself
        self.table: VirtualTable[str] = VirtualTable(self._row, always_lit=True)
        self.prompt = TextField()
        self._text = text
        self._reader = reader

    def body(self) -> Iterable[Widget]:
        """Yield the list and the prompt below it; an empty prompt matches every entry."""
        self.table.can_focus = False
        self.table.styles.height = max(min(len(self._entries), _MATCHES_MAX, self.app.size.height - 6), 1)
        self._match(self._text)
        self.prompt.reset(" :", self._text, "a command; arrows choose")
        yield self.table
        yield self.prompt

    def first_focus(self) -> Widget:
        return self.prompt

    def _row(self, value: str, columns: int) -> Line:
        entry = self._parsed_entry[value] if value in self._parsed_entry else self._entries[value]
        left: Line = [Piece(f" {entry.label:<{_LABEL_CELLS}}  "), Piece(entry.help, Role.DIM)]
        key = f" {entry.key} "
        return [*fit(left, columns - len(key)), Piece(key, Role.KEY)]

    def _match(self, text: str) -> None:
        own = self._reader(text)
        self._parsed_entry = {} if own is None else {own.value: own}
        entries = matching(list(self._entries.values()), text) if own is None else [own]
        self.table.set_order([entry.value for entry in entries])
        self.table.move_to(0)

    def on_text_field_changed(self, message: TextField.Changed) -> None:
        self._match(message.text)

    def on_text_field_submitted(self) -> None:
        """Run the entry under the cursor."""
        if self.table.cursor_key is not None:
            self.dismiss(self.table.cursor_key)
        else:
            self.prompt.reset(" :", hint=_no_match(self.prompt.text))
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


def matching(entries: Sequence[ChoiceOption], text: str) -> list[ChoiceOption]:
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
