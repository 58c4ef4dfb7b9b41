"""Confirmation dialog for large, costly or final actions. Cancel is the default.

The focus starts on Cancel; the accept key differs from the key that opened the dialog; an answer that comes faster
than a person can read is ignored. Many targets are shown as an exact list and confirmed by typing their number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import msgspec
from textual import events
from textual.app import App, ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget

from ..keys.keymap import key_label
from ..text.pieces import Line, Piece, Role, join, line_of, width, wrap
from .bars import Bar, TextField, bindings
from .line_view import LineView
from .text_view import LinesView

# --- Base of all dialogs: frame, title, closing, and the time after which it counts as read --------------------------


READING_SECONDS = 0.3

ModalResult = TypeVar("ModalResult")


@runtime_checkable
class DialogHost(Protocol):
    """An app that guards keys."""

    def dialog_changed(self, *, refuses_all: bool) -> None:
        """A dialog opened or closed."""


class Modal(ModalScreen[ModalResult | None]):
    """A framed dialog. Subclasses implement ``body`` and ``first_focus``; ``cancel`` dismisses it.

    Args:
        title: the first row; empty: the box has none.
    """

    DEFAULT_CSS = """
    Modal { align: center middle; background: transparent !important; }
    Modal > Vertical {
        width: 100%;
        max-width: 76;
        height: auto;
        max-height: 100%;
        border: round ansi_default;
        background: ansi_default;
        padding: 0 1;
    }
    """

    ASKS: ClassVar[bool] = True  # an answer given twice must not reach what is below
    BINDINGS = bindings("cancel")

    def __init__(self, title: str | Line = "") -> None:
        super().__init__()
        self._title = line_of(title, Role.TITLE) if title else None
        self._shown_at = float("inf")

    @abstractmethod
    def body(self) -> Iterable[Widget]:
        """The widgets below the title."""

    @abstractmethod
    def first_focus(self) -> Widget:
        """The widget that gets the keys first."""

    def compose(self) -> ComposeResult:
        """Yield title and body in the frame."""
        with Vertical():
            if self._title is not None:
                yield bar_of(self._title)
            yield from self.body()

    def on_mount(self) -> None:
        """Focus the first widget."""
        self.first_focus().focus()
        if self.ASKS:
            self._notify_app(refuses_all=False)

    def dismiss(self, result: ModalResult | None = None) -> AwaitComplete:
        """Close the box."""
        self._notify_app(refuses_all=self.ASKS)
        return super().dismiss(result)

    def _notify_app(self, *, refuses_all: bool) -> None:
        if isinstance(self.app, DialogHost):
            self.app.dialog_changed(refuses_all=refuses_all)

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Start the time in which the dialog counts as unread."""
        self._shown_at = event.time

    def was_readable(self, at: float) -> bool:
        """Whether the box was shown long enough before ``at`` (seconds, as of an event) for a person to read it."""
        return self.app.is_headless or at - self._shown_at >= READING_SECONDS

    def cancel(self) -> None:
        """Close the box; nothing is done."""
        self.dismiss(None)


def ask(app: App[Any], box: Modal[ModalResult], act: Callable[[ModalResult], object]) -> None:
    """Show a box over what is visible, and call ``act`` with its answer, if there is one."""

    def closed(answer: ModalResult | None) -> None:
        if answer is not None:
            act(answer)

    app.push_screen(box, closed)


def bar_of(line: Line, *, id: str | None = None) -> Bar:
    bar = Bar(id=id)
    bar.show(line)
    return bar


# --- Confirmation ----------------------------------------------------------------------------------------------------


_PREVIEW_ROWS_MAX = 10
_FRAME_ROWS = 8
_FRAME_COLUMNS = 4
DIALOG_COLUMNS, WIDEST_COLUMNS = 76, 140  # of a dialog: a list of long names takes more
_MEASURED_MAX = 1_000  # lines of a list
_CHOICES_APART = 2  # cells
_NUMBER_CHARACTERS = "0123456789,"


class PromptField(msgspec.Struct, frozen=True):
    """A line to type in a question.

    Attributes:
        label: before the line.
        hint: in it, while it is empty.
        text: at first; what must be typed elsewhere comes before what may stay.
        characters: the only ones; the keys of the answers then work in its line, too. Empty: any.
        problem: text -> why it is invalid, or None; asked also for the empty text.
    """

    label: str
    hint: str = ""
    text: str = ""
    characters: str = ""
    problem: Callable[[str], str | None] = lambda text: None


class Question(msgspec.Struct, frozen=True):
    """A question.

    Attributes:
        title: one line.
        facts: what will happen and what will not, in a few lines.
        preview: the exact list of what is acted on, however long.
        accept: the word for yes, as "requeue 1,247".
        trigger: the key that led here; must be another one.
        reason: whether a reason is asked for, and whether an empty one is refused.
        type_exactly: what must be typed before yes is possible: a number, a run's name.
        values: what else is typed.
        alternative: key and label of a second way to accept, for which ``type_exactly`` need not be typed.
        enter_accepts: whether Enter in the last line accepts; else it goes on to the answers, with Cancel chosen.
    """

    title: str | Line
    accept: str
    trigger: str | None = None
    facts: Sequence[str | Line] = ()
    preview: Sequence[Line] = ()
    reason: Literal["none", "optional", "required"] = "none"
    type_exactly: str | None = None
    values: Sequence[PromptField] = ()
    alternative: tuple[str, str] | None = None
    enter_accepts: bool = True

    @property
    def yes_key(self) -> str:
        """The key that says yes: not the one that led here."""
        return "o" if self.trigger == "a" else "a"

    def __post_init__(self) -> None:
        if self.alternative is not None and self.alternative[0] in (self.trigger, self.yes_key):
            raise ValueError(f"{self.alternative[0]!r} asks and answers, or one key says two things")


class Reply(msgspec.Struct, frozen=True):
    """Yes. ``values``: the texts of ``Question.values``, without blanks at their ends."""

    reason: str = ""
    values: Sequence[str] = ()
    is_alternative: bool = False


class Choices(LineView, can_focus=True):
    """Cancel, accept and optionally a second accept, side by side; Cancel is selected first.

    ``yes``: the key and the words of each.
    """

    DEFAULT_CSS = "Choices { height: 1; }"

    BINDINGS = bindings("previous_answer", "next_answer")

    @dataclass
    class Chosen(Message):
        """Enter, or the key of a yes. ``place``: 0 is no."""

        place: int

    def __init__(self, *yes: tuple[str, str]) -> None:
        super().__init__()
        self._yes = yes
        self._place = 0

    def move_answer(self, step: int) -> None:
        """Select the answer on the left (-1) or right (1)."""
        self._choose(min(max(self._place + step, 0), len(self._yes)))

    def _choose(self, place: int) -> None:
        self._place = place
        self.refresh()

    def on_key(self, event: events.Key) -> None:
        """Enter chooses the marked option."""
        places = {key: place for place, (key, _) in enumerate(self._yes, 1)}
        place = places.get(event.key, self._place if event.key == "enter" else None)
        if place is not None:
            event.stop()
            self.post_message(self.Chosen(place))

    def on_click(self, event: events.Click) -> None:
        """A click moves; only a second one chooses."""
        place, end = 0, 0
        for number, pieces in enumerate(self._text_lines()):
            if event.x >= end:
                place = number
            end += width(pieces) + _CHOICES_APART
        if event.chain > 1 and place == self._place:
            self.post_message(self.Chosen(place))
        self._choose(place)

    def line(self, y: int) -> Line:
        """Render all words, the chosen one as under a cursor."""
        return join(self._text_lines(), " " * _CHOICES_APART)

    def _text_lines(self) -> Iterator[Line]:
        chosen = Role.CURSOR if self.has_focus else Role.STRONG
        yield [Piece("[ Cancel ]", Role.TEXT if self._place else chosen)]
        for place, (key, words) in enumerate(self._yes, 1):
            role = chosen if place == self._place else Role.TEXT
            label = Piece(key_label(key), chosen if place == self._place else Role.KEY)
            yield [Piece("[ ", role), label, Piece(f" {words} ]", role)]


class Dialog(Modal[Reply]):
    """Asks a ``Question``; is dismissed with a ``Reply``, or with None for no."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.title)
        self.question = question
        yes = [
            (question.yes_key, question.accept),
            *([question.alternative] if question.alternative is not None else []),
        ]
        self.guarded_keys = frozenset({"enter", *(key for key, _ in yes)})
        self._choices = Choices(*yes)
        self._hint = Bar()
        self._position = Bar()
        self._values = [
            TextField(one.label, one.text, hint=one.hint, characters=one.characters) for one in question.values
        ]
        self._reason = TextField("Reason: ", hint="why; it goes into the journal")
        digits = _NUMBER_CHARACTERS if (question.type_exactly or "").isdigit() else ""
        self._typed = TextField(f"Type {question.type_exactly} to go on: ", characters=digits)
        self._fields = self._asked_fields()

    def _asked_fields(self) -> dict[TextField, Callable[[str], str | None]]:
        """The lines in their order, each with what is wrong with a text in it."""
        question = self.question
        values = {field: one.problem for field, one in zip(self._values, question.values, strict=True)}
        others = {self._reason: self._reason_problem} if question.reason != "none" else {}
        if question.type_exactly is not None:
            others[self._typed] = self._typed_problem
        return {**others, **values} if any(one.text for one in question.values) else {**values, **others}

    def _reason_problem(self, text: str) -> str | None:
        is_missing = self.question.reason == "required" and not text
        return "A reason is needed: it goes into the journal." if is_missing else None

    def _typed_problem(self, text: str) -> str | None:
        wanted = self.question.type_exactly
        return None if text.replace(",", "") == wanted else f"Type {wanted}, or press Esc."

    def body(self) -> Iterable[Widget]:
        """Yield facts, list, fields and the two answers."""
        yield from self._text_widgets()
        yield Bar()
        yield from self._fields
        yield self._hint
        yield self._choices

    def on_mount(self) -> None:
        """Take the width that the list needs, as far as the terminal has it."""
        needed = max(map(width, self.question.preview[:_MEASURED_MAX]), default=0) + _FRAME_COLUMNS
        box = self.query_one(Vertical)
        box.styles.max_width = max(DIALOG_COLUMNS, min(needed, WIDEST_COLUMNS))

    def first_focus(self) -> Widget:
        """The first field, else Cancel."""
        return next(iter([*self._fields, self._choices]))

    def _text_widgets(self) -> Sequence[Widget]:
        found: list[Widget] = []
        room = self.app.size.height - _FRAME_ROWS - len(self._fields)
        columns = min(self.app.size.width, DIALOG_COLUMNS) - _FRAME_COLUMNS - 1
        if lines := [line for fact in self.question.facts for line in wrap(line_of(fact), columns)]:
            facts = LinesView(lines)
            facts.can_focus = False
            facts.styles.height = shown = max(min(len(lines), room - 1), 1)  # the answers stay in view
            room -= shown
            found.append(facts)
        if self.question.preview:
            preview = LinesView(self.question.preview, id="preview")
            preview.styles.height = max(min(len(self.question.preview), _PREVIEW_ROWS_MAX, room), 1)
            found += [Bar(), preview, self._position]
        return found

    def on_lines_view_position_changed(self, message: LinesView.PositionChanged) -> None:
        """Say how much of the list is in view."""
        first, last = message.view.span
        count = len(self.question.preview)
        if message.view.id == "preview" and last - first < count:
            self._position.show([Piece(f"{first + 1} to {last} of {count:,}; Tab and PgDn show the rest", Role.DIM)])

    def on_text_field_cancelled(self) -> None:
        """Close the dialog: Esc was pressed in a field."""
        self.cancel()

    def on_text_field_changed(self) -> None:
        """Check again whether the answer yes is possible."""
        self._hint.show([])

    def on_text_field_submitted(self, message: TextField.Submitted) -> None:
        """Go on to the next field, unless this one is wrong; after the last one accept, or go on to the answers."""
        fields = [*self._fields]
        after = fields[fields.index(message.field) + 1 :]
        goes_on = bool(after) and self.question.enter_accepts
        wrong = self._first_wrong([message.field] if goes_on else fields)
        if wrong is not None:
            wrong.focus()
        elif goes_on:
            after[0].focus()
        elif self.question.enter_accepts:
            self._accept(message.time)
        else:
            self._choices.focus()

    def _first_wrong(self, fields: Iterable[TextField]) -> TextField | None:
        """The first of these fields whose text is invalid, and say why."""
        for field in fields:
            problem = self._fields[field](field.text.strip())
            if problem is not None:
                self._hint.show([Piece(problem, Role.WARNING)])
                return field
        return None

    def on_choices_chosen(self, message: Choices.Chosen) -> None:
        """Answer with the word that was chosen."""
        if message.place:
            self._accept(message.time, is_alternative=message.place > 1)
        else:
            self.cancel()

    def _accept(self, at: float, *, is_alternative: bool = False) -> None:
        needed = [field for field in self._fields if field is not self._typed or not is_alternative]
        if self.was_readable(at) and self._first_wrong(needed) is None:
            values = tuple(field.text.strip() for field in self._values)
            self.dismiss(Reply(self._reason.text.strip(), values, is_alternative))

    def on_key(self, event: events.Key) -> None:
        """A key of an answer that the focused field does not take."""
        if event.key != "enter":
            self._choices.on_key(event)
