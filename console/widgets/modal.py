"""Base of all dialogs: frame, title, closing, and the time after which it counts as read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget

from ..text.pieces import Line
from .bars import Bar
from .bindings import bindings

READING_SECONDS = 0.3

ModalResult = TypeVar("ModalResult")


@runtime_checkable
class DialogHost(Protocol):
    """An app that guards keys."""

    def dialog_changed(self, *, refuses_all: bool) -> None:
        """A dialog opened or closed."""


class Modal(ModalScreen[ModalResult]):
    """A framed dialog. Subclasses implement ``body`` and ``first_focus``; ``cancel`` dismisses it.

    Args:
        title: the first row; None: the box has none.
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
    BINDINGS: ClassVar[list[BindingType]] = bindings("cancel")

    def __init__(self, title: Line | None = None) -> None:
        super().__init__()
        self._title = title
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


def bar_of(line: Line, *, id: str | None = None) -> Bar:
    """A bar with one line."""
    bar = Bar(id=id)
    bar.show(line)
    return bar
