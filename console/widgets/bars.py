"""Fixed rows: header, tabs, rules, key bar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget

from ..keys.actions import BY_NAME, ScreenName, action_named, actions_of
from ..keys.keymap import key_name, key_of_label
from ..text.pieces import Line, Piece, Role, fit, join, two_sided, width, wrap
from .line_view import LineView
from .text_input import TextField

_MESSAGE_ROWS_MAX = 4


class Bar(LineView):
    """Rows with a left and a right side, repainted only if they changed."""

    @dataclass
    class CellClicked(Message):
        """A click on a cell of a row. ``on_right``: on the right side of the row."""

        bar: Bar
        x: int
        row: int
        on_right: bool

    DEFAULT_CSS = "Bar { height: auto; }"

    def __init__(self, rows: int = 1, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._sides: list[tuple[Line, Line]] = [([], [])] * rows
        self.styles.height = rows

    @property
    def row_count(self) -> int:
        return len(self._sides)

    def set_row_count(self, rows: int) -> None:
        """Change the number of rows; new rows are empty."""
        if rows != len(self._sides):
            self._sides = [*self._sides[:rows], *([([], [])] * (rows - len(self._sides)))]
            self.styles.height = rows
            self.refresh()

    def show(self, left: Line, right: Line | None = None, row: int = 0) -> None:
        """Set both sides of a row. If they do not fit, the right side is cut."""
        sides = (left, right or [])
        if self._sides[row] != sides:
            self._sides[row] = sides
            self.refresh_rows(row)

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Set the left sides of all rows; rows without a line are empty."""
        for row in range(self.row_count):
            self.show(lines[row] if row < len(lines) else [], row=row)

    def line(self, y: int) -> Line:
        """Render both sides, cut to the width."""
        if y >= len(self._sides):
            return []  # has fewer rows since the last layout
        left, right = self._sides[y]
        return two_sided(left, right, self.columns) if right else fit(left, self.columns)

    def on_click(self, event: events.Click) -> None:
        """Post the clicked cell."""
        right = width(self._sides[event.y][1])
        self.post_message(self.CellClicked(self, event.x, event.y, on_right=event.x >= self.columns - right))


class Rule(LineView):
    """A line across, with marks where something hangs from it."""

    DEFAULT_CSS = "Rule { height: 1; }"

    def __init__(self, sign: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._sign = sign
        self._marks: dict[int, str] = {}
        self._role = Role.RULE

    def show(self, sign: str, marks: dict[int, str] | None = None, role: Role = Role.RULE) -> None:
        """Set the sign (dashed if the data is stale) and the marks: column -> sign."""
        shown = (sign, marks or {}, role)
        if shown != (self._sign, self._marks, self._role):
            self._sign, self._marks, self._role = shown
            self.refresh()

    def line(self, y: int) -> Line:
        """The rule over its whole width."""
        signs = (self._marks.get(x, self._sign) for x in range(self.columns))
        return [Piece("".join(signs), self._role)]


KeyHint = tuple[str, str]  # key as it is written, word


class KeyBar(LineView):
    """Key hints, most important first. A message replaces them until it is cleared and takes as many rows as it needs.

    Args:
        more: the hint that stays visible if not all fit (help).
    """

    DEFAULT_CSS = "KeyBar { height: 1; }"

    def __init__(self, more: KeyHint = ("?", "keys")) -> None:
        super().__init__()
        self._more = more
        self._hints: Sequence[KeyHint] = ()
        self._locked: str | None = None
        self._message: Line | None = None
        self._rows: list[Line] = []  # of the message
        self._message_number = 0

    def show(self, hints: Sequence[KeyHint], locked: str | None = None) -> None:
        """Show these keys; ``locked``: why the keys that change the run are disabled now."""
        if (hints, locked) != (self._hints, self._locked):
            self._hints, self._locked = hints, locked
            self.refresh()

    def show_message(self, message: Line, seconds: float | None = None) -> None:
        """Show a message instead, for ``seconds`` or until the next message."""
        self._message = message
        self._message_number += 1
        self._wrap_message()
        if seconds is not None:
            self.set_timer(seconds, self._clear_if(self._message_number))

    def clear_message(self) -> None:
        """Show the keys again."""
        if self._message is not None:
            self._message = None
            self._wrap_message()

    def _wrap_message(self) -> None:
        message, columns = self._message, self.columns
        self._rows = wrap([Piece(" "), *message], columns - 1, indent=1)[:_MESSAGE_ROWS_MAX] if message else []
        height = max(len(self._rows), 1) if columns else 1
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height
        self.refresh()

    def on_resize(self) -> None:
        """A message may need more rows, or fewer."""
        if self._message is not None:
            self._wrap_message()

    def _clear_if(self, number: int) -> Callable[[], None]:
        def clear() -> None:
            if number == self._message_number:
                self.clear_message()

        return clear

    def line(self, y: int) -> Line:
        """The message, or as many keys as fit."""
        if self._message is not None:
            return fit(self._rows[y], self.columns) if y < len(self._rows) else []
        locked, shown = self._parts()
        return [Piece(" "), *join([locked, *map(_hint, shown)])]

    def on_click(self, event: events.Click) -> None:
        """A click on a hint presses its key; of two keys, the one under the mouse."""
        at, (locked, shown) = 1, self._parts()
        if self._message is not None:
            return
        at += width(locked) + 2 if locked else 0
        for hint in shown:
            if at <= event.x < at + width(_hint(hint)):
                self.app.simulate_key(key_of_label(_label_at(hint[0], event.x - at)))
                return
            at += width(_hint(hint)) + 2

    def _parts(self) -> tuple[Line, list[KeyHint]]:
        """The reason why keys are locked, and the hints that fit."""
        locked: Line = [Piece(self._locked, Role.WARNING)] if self._locked else []
        last = _hint(self._more)
        room = self.columns - 2 - width(last) - (width(locked) + 2 if locked else 0)
        shown: list[KeyHint] = []
        for hint in self._hints:
            size = width(_hint(hint)) + 2
            if hint != self._more and size <= room:
                room -= size
                shown.append(hint)
        return locked, [*shown, self._more]


def _label_at(labels: str, x: int) -> str:
    """The label in column ``x`` of labels with spaces between; right of them all the last one."""
    return labels[: max(x, 0) + 1].split(" ")[-1] if x < len(labels) and labels[x] != " " else labels.split(" ")[-1]


def _hint(hint: KeyHint) -> Line:
    key, word = hint
    return [Piece(key, Role.KEY), Piece(f" {word}")]


# --- Bindings of keys ------------------------------------------------------------------------------------------------
#
# Textual's bindings, made from the table of actions; ids are names of actions, so ``App.set_keymap`` can move them.


#: Moves that every list understands.
PAGING = ("down", "up", "top", "bottom", "page_down", "page_up", "half_page_down", "half_page_up")


def bindings(*names: str) -> list[BindingType]:
    """For ``BINDINGS``: the keys of an action make the call of its row (``ConsoleBase.action_handle``).

    Actions without a key are left out; those on fixed keys have no id.
    """
    return [
        Binding(
            ",".join(map(key_name, action.keys)),
            f"app.handle({action.name!r})",
            action.label,
            show=False,
            id=action.name if action.name in BY_NAME else None,
        )
        for action in map(action_named, names)
        if action.keys
    ]


def bindings_of(place: ScreenName) -> list[BindingType]:
    """The bindings of everything that can be done in a place."""
    return bindings(*(action.name for action in actions_of(place)))


# --- Split layout: when a screen has room for a detail pane or for a strip, and the divider --------------------------


DETAIL_PANE_MIN_COLUMNS = 118  # from this width on, the details of the selected row stand beside the list
STRIP_ROWS = 4
TALL_SCREEN_ROWS = 50  # from this height on, lists open by themselves what fits
_STRIP_SCREEN_ROWS = 20


def has_room_for_detail_pane(columns: int) -> bool:
    """Whether a second pane stands beside the first."""
    return columns >= DETAIL_PANE_MIN_COLUMNS


def has_room_for_strip(rows: int) -> bool:
    """Whether a screen so high has room for a strip."""
    return rows >= _STRIP_SCREEN_ROWS


class Divider(LineView):
    """The line between two panes."""

    DEFAULT_CSS = "Divider { width: 1; }"

    def __init__(self, sign: str) -> None:
        super().__init__()
        self._sign = sign

    def line(self, y: int) -> Line:
        return [Piece(self._sign, Role.RULE)]


# --- The footer of a screen: key bar or prompt -----------------------------------------------------------------------


class Footer(Widget):
    """A ``KeyBar``, replaced by a prompt while that is open. ``sign``: of the prompt that was opened last.

    The prompt is mounted from the start, so that a key typed right after ``/`` reaches it. Its messages
    (``TextField.Changed``, ``Submitted``, ``Cancelled``) reach the screen, which calls ``close_prompt``.
    """

    DEFAULT_CSS = "Footer { height: auto; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.key_bar = KeyBar()
        self.prompt = TextField()
        self.prompt.display = False
        self.sign = ""
        self._focus_before_prompt: Widget | None = None

    def compose(self) -> ComposeResult:
        """Yield key bar and prompt, one of them hidden."""
        yield self.key_bar
        yield self.prompt

    def open_prompt(self, sign: str, text: str = "", *, hint: str = "") -> None:
        """Open the prompt and focus it. Does nothing if it is open already."""
        if self.prompt.display:
            return
        self._focus_before_prompt = self.screen.focused
        self.sign = sign
        self.prompt.reset(f" {sign}", text, hint)
        self._show_prompt(asking=True)
        self.screen.set_focus(self.prompt)  # at once: the next key may be here already

    def close_prompt(self) -> None:
        """Show the key bar again and restore the focus."""
        if self.prompt.display:
            self._show_prompt(asking=False)
            back = self._focus_before_prompt
            self.screen.set_focus(back if back is not None and back.is_attached else None)

    def _show_prompt(self, asking: bool) -> None:
        self.key_bar.display = not asking
        self.prompt.display = asking
