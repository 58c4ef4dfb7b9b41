"""Fixed rows: header, tabs, rules, key bar, and the field of one line that takes the place of a bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Offset
from textual.message import Message
from textual.widget import Widget

from ..keys.actions import BY_NAME, ScreenName, actions_of
from ..keys.keymap import key_name, key_of_label
from ..text.glyphs import ASCII, UTF8
from ..text.pieces import Line, Piece, Role, fit, join, two_sided, width, wrap_within
from ..text.text import cells, one_line, sanitize
from .line_view import LineView

_MESSAGE_ROWS_MAX = 4
_LIT_SIGNS = frozenset([UTF8.rule_lit, ASCII.rule_lit])
_DRAWN_SIGNS = {one.rule for one in (UTF8, ASCII)}.union(
    *((one.rule_stale, one.rule_past, one.tee_down, *one.lines) for one in (UTF8, ASCII))
) - {" "}


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


class _Ruled(LineView):
    """A line of one sign, with marks at some of its cells."""

    def __init__(self, sign: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._sign = sign
        self._marks: dict[int, str] = {}
        self._role = Role.RULE

    def show(self, sign: str, marks: dict[int, str] | None = None, role: Role = Role.RULE) -> None:
        """Set the sign (dashed if the data is stale) and the marks: cell -> sign."""
        shown = (sign, marks or {}, role)
        if shown != (self._sign, self._marks, self._role):
            self._sign, self._marks, self._role = shown
            self.refresh()


class Rule(_Ruled):
    """A line across, with marks where something hangs from it."""

    DEFAULT_CSS = "Rule { height: 1; }"

    def line(self, y: int) -> Line:
        """The rule over its whole width."""
        signs = (self._marks.get(x, self._sign) for x in range(self.columns))
        return [Piece("".join(part), role) for role, part in groupby(signs, self._role_of)]

    def _role_of(self, sign: str) -> Role:
        """Words are read, and dark enough for that on a light ground; what is drawn is not."""
        if sign in _LIT_SIGNS:
            return Role.STRONG
        return self._role if sign in _DRAWN_SIGNS else Role.DIM


KeyHint = tuple[str, str]  # key as it is written, word
_HELP: KeyHint = ("?", "keys")  # stays visible if not all fit


class KeyBar(LineView):
    """Key hints, most important first. A message replaces them until it is cleared, in as many rows as it needs."""

    DEFAULT_CSS = "KeyBar { height: 1; }"

    def __init__(self) -> None:
        super().__init__()
        self._hints: Sequence[KeyHint] = ()
        self._locked: str | None = None
        self._message: Line | None = None
        self._has_seconds = False  # of its own, for which the message stays
        self.about: str | None = None  # the task that the message explains
        self._rows: list[Line] = []  # of the message
        self._message_number = 0

    def show(self, hints: Sequence[KeyHint], locked: str | None = None) -> None:
        """Show these keys, and that of help if there are any; ``locked``: why keys that change the run do nothing."""
        if (hints, locked) != (self._hints, self._locked):
            self._hints, self._locked = hints, locked
            self.refresh()

    def show_message(
        self, message: Line, seconds: float | None = None, about: str | None = None, *, yields: bool = False
    ) -> None:
        """Show a message instead, for ``seconds`` or until the next message. ``about``: the task that it explains.

        ``yields``: it is shown again and again, and waits for the seconds of a message that does not yield.
        """
        if yields and self._message is not None and self._has_seconds:
            return
        self._message, self.about, self._has_seconds = message, about, seconds is not None and not yields
        self._message_number += 1
        self._wrap_message()
        if seconds is not None:
            self.set_timer(seconds, partial(self._end_message, self._message_number))

    def update_message(self, message: Line) -> None:
        """Show the same message with what is true now."""
        self._message = message
        self._wrap_message()

    def clear_message(self) -> None:
        """Show the keys again."""
        if self._message is not None:
            self._message = self.about = None
            self._wrap_message()

    def _wrap_message(self) -> None:
        message, columns = self._message, self.columns
        self._rows = wrap_within([Piece(" "), *message], columns - 1, _MESSAGE_ROWS_MAX, 1) if message else []
        height = max(len(self._rows), 1) if columns else 1
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height
        self.refresh()

    def on_resize(self) -> None:
        """A message may need more rows, or fewer."""
        if self._message is not None:
            self._wrap_message()

    def _end_message(self, number: int) -> None:
        if number == self._message_number:
            self.clear_message()

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
        last = _hint(_HELP)
        reason = _within(self._locked or "", self.columns - width(last) - 4)
        locked: Line = [Piece(reason, Role.WARNING)] if reason else []
        room = self.columns - 2 - width(last) - (width(locked) + 2 if locked else 0)
        shown: list[KeyHint] = []
        for hint in self._hints:
            size = width(_hint(hint)) + 2
            if hint != _HELP and size <= room:
                room -= size
                shown.append(hint)
        return locked, [*shown, _HELP] if self._hints or locked else shown


_CLAUSE = " · "


def _within(reason: str, columns: int) -> str:
    """The reason without as many of its last clauses as have no room: what leads to help stays visible."""
    while cells(reason) > columns and _CLAUSE in reason:
        reason = reason.rpartition(_CLAUSE)[0]
    return reason


def _label_at(labels: str, x: int) -> str:
    """The label in column ``x`` of labels with spaces between; right of them all the last one."""
    return labels[: max(x, 0) + 1].split(" ")[-1] if x < len(labels) and labels[x] != " " else labels.split(" ")[-1]


def _hint(hint: KeyHint) -> Line:
    key, word = hint
    return [Piece(key, Role.KEY), Piece(f" {word}")]


# --- Textual's bindings of keys, made from the table of actions ------------------------------------------------------


#: Moves that every list understands.
PAGING = ("down", "up", "top", "bottom", "page_down", "page_up", "half_page_down", "half_page_up")


def bindings(*names: str) -> list[BindingType]:
    """For ``BINDINGS``: the keys of an action make the call of its row (``ConsoleBase.action_handle``).

    Actions without a key are left out.
    """
    return [
        Binding(
            ",".join(map(key_name, action.keys)),
            f"app.handle({action.name!r})",
            action.label,
            show=False,
        )
        for action in map(BY_NAME.__getitem__, names)
        if action.keys
    ]


def bindings_of(place: ScreenName) -> list[BindingType]:
    """The bindings of everything that can be done in a place."""
    return bindings(*(action.name for action in actions_of(place)))


# --- Where the details of the selected row stand, and the divider ----------------------------------------------------


STRIP_ROWS = 4
TALL_SCREEN_ROWS = 50  # from this height on, lists open by themselves what fits
_STRIP_SCREEN_ROWS = 20


class DetailShare(NamedTuple):
    """The share of the details beside the list of a view: per cent of the screen, at least and at most some cells.

    ``from_columns``: the width of the screen from which on they stand there.
    """

    percent: int = 40
    min_cells: int = 46
    max_cells: int = 90
    from_columns: int = 118


SHARE = DetailShare()  # of most views


class DetailRoom(NamedTuple):
    """The room of details: ``columns`` beside the list or ``rows`` below it; neither: they are a page of their own."""

    columns: int = 0
    rows: int = 0


def detail_room(columns: int, rows: int, share: DetailShare = SHARE) -> DetailRoom:
    """Return the room of the details on a screen of this size; every view with a list asks here."""
    if columns >= share.from_columns:
        return DetailRoom(columns=max(min(columns * share.percent // 100, share.max_cells), share.min_cells))
    return DetailRoom(rows=max(rows // 5, STRIP_ROWS) if has_room_for_strip(rows) else 0)


def has_room_for_strip(rows: int) -> bool:
    """Whether a screen so high has room for a strip."""
    return rows >= _STRIP_SCREEN_ROWS


class Divider(_Ruled):
    """The line between two panes."""

    DEFAULT_CSS = "Divider { width: 1; }"

    def show_marks(self, marks: dict[int, str]) -> None:
        """Set where rules end at the line: row -> sign."""
        self.show(self._sign, marks)

    def line(self, y: int) -> Line:
        return [Piece(self._marks.get(y, self._sign), Role.RULE)]


# --- A text field of one line, which accepts visible characters only --------------------------------------------------


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
        self._characters = characters
        self.reset(label, one_line(text, TEXT_MAX), hint)

    @property
    def text(self) -> str:
        return self._text

    @text.setter
    def text(self, text: str) -> None:
        self._edit(one_line(text, TEXT_MAX), TEXT_MAX)

    def reset(self, label: str, text: str = "", hint: str = "") -> None:
        """Set label, text and placeholder without posting a message."""
        self._label, self._hint = label, hint
        self._text = sanitize(text, TEXT_MAX)
        self.cursor = len(self._text)
        self._first_shown = 0  # first character that is shown
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
    start = text[:at].rstrip().rfind(" ") + 1
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
