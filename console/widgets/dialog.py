"""A question before something that is many, costly or final. Doing nothing is always the easier answer.

The focus begins on Cancel; the key that says yes is another one than the key that asked; an answer that comes sooner
than a person can read is not taken. More than a few targets are shown as the exact list and confirmed by their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget

from ..keys import key_label
from ..present.pieces import Line, Piece, Role
from ..present.text import cells
from .bars import Bar
from .field import TextField
from .line import LineView
from .lines import LinesView

READING_SECONDS = 0.3
_PREVIEW_ROWS_MAX = 10
_FRAME_ROWS = 8


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Attributes:
        title: one line.
        facts: what will happen and what will not, in a few lines.
        preview: the exact list of what is acted on, however long.
        accept: the word for yes, as "requeue 1,247".
        accept_key: says yes; as Textual names keys.
        trigger: the key that led here; must be another one.
        reason: None if no reason is asked for, else the hint in its field.
        reason_needed: an empty reason is none.
        type_exactly: what must be typed before yes is possible: a number, a run's name.
        cancel: the word for no.
    """

    title: Line
    accept: str
    accept_key: str = "a"
    trigger: str | None = None
    facts: Sequence[Line] = ()
    preview: Sequence[Line] = ()
    reason: str | None = None
    reason_needed: bool = False
    type_exactly: str | None = None
    cancel: str = "Cancel"

    def __post_init__(self) -> None:
        if self.accept_key == self.trigger:
            raise ValueError(f"{self.accept_key!r} asks and answers: give the question another accept_key")


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer."""

    accepted: bool
    reason: str = ""


class Choices(LineView, can_focus=True):
    """No and yes, side by side; no is chosen until somebody moves."""

    DEFAULT_CSS = """
    Choices { height: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "choose(False)", show=False),
        Binding("right,l", "choose(True)", show=False),
    ]

    class Chosen(Message):
        """Enter, or the key of yes."""

        def __init__(self, yes: bool) -> None:
            super().__init__()
            self.yes = yes

    def __init__(self, no: str, yes: str, yes_key: str) -> None:
        super().__init__()
        self._no = no
        self._yes = yes
        self._yes_key = yes_key
        self._on_yes = False

    def action_choose(self, yes: bool) -> None:
        """Move."""
        self._on_yes = yes
        self.refresh()

    def on_key(self, event: events.Key) -> None:
        """Enter takes what is chosen."""
        if event.key in ("enter", self._yes_key):
            event.stop()
            self.post_message(self.Chosen(self._on_yes or event.key == self._yes_key))

    def on_click(self, event: events.Click) -> None:
        """A click moves; only a second one takes."""
        on_yes = event.x >= cells(self._no) + 6
        if event.chain > 1 and on_yes == self._on_yes:
            self.post_message(self.Chosen(on_yes))
        self.action_choose(on_yes)

    def on_focus(self) -> None:
        """Show that keys go here."""
        self.refresh()

    def on_blur(self) -> None:
        """Show that keys go elsewhere."""
        self.refresh()

    def line(self, y: int) -> Line:
        """Both words, the chosen one as under a cursor."""
        chosen = Role.CURSOR if self.has_focus else Role.STRONG
        no, yes = (Role.TEXT, chosen) if self._on_yes else (chosen, Role.TEXT)
        key = Piece(key_label(self._yes_key), chosen if self._on_yes else Role.KEY)
        return [Piece(f"[ {self._no} ]", no), Piece("  "), Piece("[ ", yes), key, Piece(f" {self._yes} ]", yes)]


class Dialog(ModalScreen[Reply]):
    """Asks a ``Question``; is dismissed with a ``Reply``."""

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        background: transparent !important;
    }
    Dialog > Vertical {
        width: 100%;
        max-width: 76;
        height: auto;
        max-height: 100%;
        border: round ansi_default;
        background: ansi_default;
        padding: 0 1;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", show=False)]

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question
        self.guarded_keys = frozenset({question.accept_key, "enter"})
        self._shown_at = float("inf")
        self._choices = Choices(question.cancel, question.accept, question.accept_key)
        self._hint = Bar()
        self._position = Bar()
        self._reason = TextField("Reason: ", hint=question.reason or "")
        self._typed = TextField(f"Type {question.type_exactly} to go on: ")

    def compose(self) -> ComposeResult:
        """Title, facts, list, fields, and the two answers."""
        question = self.question
        title = Bar()
        title.show(question.title)
        with Vertical():
            yield title
            yield from self._texts()
            yield Bar()
            yield from self._fields()
            yield self._hint
            yield self._choices

    def _texts(self) -> Sequence[Widget]:
        found: list[Widget] = []
        if self.question.facts:
            facts = LinesView(self.question.facts, wrap=True)
            facts.can_focus = False
            facts.styles.height = len(self.question.facts)
            found.append(facts)
        if self.question.preview:
            room = self.app.size.height - _FRAME_ROWS - len(self.question.facts) - len(self._fields())
            preview = LinesView(self.question.preview, id="preview")
            preview.styles.height = max(min(len(self.question.preview), _PREVIEW_ROWS_MAX, room), 1)
            found += [Bar(), preview, self._position]
        return found

    def _fields(self) -> list[TextField]:
        reason = [self._reason] if self.question.reason is not None else []
        return reason + ([self._typed] if self.question.type_exactly is not None else [])

    def on_mount(self) -> None:
        """The focus is where nothing happens by itself."""
        first: LineView = next(iter([*self._fields(), self._choices]))
        first.focus()

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """From now on the question can be read."""
        self._shown_at = event.time

    def on_lines_view_moved(self, message: LinesView.Moved) -> None:
        """Say how much of the list is in view."""
        first, last = message.view.span
        count = len(self.question.preview)
        if message.view.id == "preview" and last - first < count:
            self._position.show([Piece(f"{first + 1} to {last} of {count:,}; Tab and PgDn show the rest", Role.DIM)])

    def action_cancel(self) -> None:
        """No."""
        self.dismiss(Reply(False))

    def on_text_field_given_up(self) -> None:
        """Esc in a field."""
        self.action_cancel()

    def on_text_field_edited(self) -> None:
        """What was missing may be there now."""
        self._hint.show([])

    def on_text_field_entered(self, message: TextField.Entered) -> None:
        """On to the next field; after the last one, yes."""
        fields = self._fields()
        place = fields.index(message.field)
        if place + 1 < len(fields):
            fields[place + 1].focus()
        else:
            self._accept(message.time)

    def on_choices_chosen(self, message: Choices.Chosen) -> None:
        """One of the two words."""
        if message.yes:
            self._accept(message.time)
        else:
            self.action_cancel()

    def _accept(self, at: float) -> None:
        if not self.app.is_headless and at - self._shown_at < READING_SECONDS:
            return
        missing = self._missing()
        if missing is None:
            self.dismiss(Reply(True, self._reason.text.strip()))
        else:
            self._hint.show([Piece(missing, Role.WARNING)])

    def _missing(self) -> str | None:
        question = self.question
        if question.reason_needed and not self._reason.text.strip():
            return "A reason is needed: it goes into the journal."
        if question.type_exactly is not None and self._typed.text.strip().replace(",", "") != question.type_exactly:
            return f"Type {question.type_exactly}, or press Esc."
        return None
