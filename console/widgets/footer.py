"""The foot of the screen: keys, a message, or a prompt, whichever is wanted now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.app import ComposeResult
from textual.widget import Widget

from .bars import KeyBar
from .prompt import Prompt


class Foot(Widget):
    """A ``KeyBar`` until something is asked for in a ``Prompt``, and afterwards again.

    The prompt is there from the start, so that the key behind ``/`` is typed into it however fast it comes. Its
    messages (``TextField.Edited``, ``Entered``, ``GivenUp``) reach the screen; ``close`` is the screen's to call.
    """

    DEFAULT_CSS = """
    Foot { height: auto; width: 1fr; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.keys = KeyBar()
        self.prompt = Prompt("/")
        self.prompt.display = False
        self._came_from: Widget | None = None

    def compose(self) -> ComposeResult:
        """Both, one of them hidden."""
        yield self.keys
        yield self.prompt

    @property
    def asking(self) -> str:
        """The sign of the open prompt; "" if none is open."""
        return self.prompt.sign if self.prompt.display else ""

    def ask(
        self,
        sign: str,
        text: str = "",
        *,
        hint: str = "",
        history: Sequence[str] = (),
        complete: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        """Open the prompt and give it the keys. While it is open nothing happens."""
        if self.asking:
            return
        self._came_from = self.screen.focused
        self.prompt.start(sign, text, hint=hint, history=history, complete=complete)
        self._switch(asking=True)
        self.screen.set_focus(self.prompt)  # at once: the next key may be here already

    def close(self) -> None:
        """Show the keys again, and give the focus back to where it was."""
        if self.asking:
            self._switch(asking=False)
            back = self._came_from
            self.screen.set_focus(back if back is not None and back.is_attached else None)

    def _switch(self, asking: bool) -> None:
        self.keys.display = not asking
        self.prompt.display = asking
