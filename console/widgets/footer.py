"""The footer of a screen: key bar or prompt."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widget import Widget

from .bars import KeyBar
from .prompt import Prompt


class Footer(Widget):
    """A ``KeyBar``, replaced by a ``Prompt`` while that is open.

    The prompt is mounted from the start, so that a key typed right after ``/`` reaches it. Its messages
    (``TextField.Changed``, ``Submitted``, ``Cancelled``) reach the screen, which calls ``close_prompt``.
    """

    DEFAULT_CSS = """
    Footer { height: auto; width: 1fr; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.key_bar = KeyBar()
        self.prompt = Prompt("/")
        self.prompt.display = False
        self._focus_before_prompt: Widget | None = None

    def compose(self) -> ComposeResult:
        """Yield key bar and prompt, one of them hidden."""
        yield self.key_bar
        yield self.prompt

    @property
    def prompt_sign(self) -> str:
        """The sign of the open prompt; "" if none is open."""
        return self.prompt.sign if self.prompt.display else ""

    def open_prompt(self, sign: str, text: str = "", *, hint: str = "") -> None:
        """Open the prompt and focus it. Does nothing if it is open already."""
        if self.prompt_sign:
            return
        self._focus_before_prompt = self.screen.focused
        self.prompt.open(sign, text, hint=hint)
        self._show_prompt(asking=True)
        self.screen.set_focus(self.prompt)  # at once: the next key may be here already

    def close_prompt(self) -> None:
        """Show the key bar again and restore the focus."""
        if self.prompt_sign:
            self._show_prompt(asking=False)
            back = self._focus_before_prompt
            self.screen.set_focus(back if back is not None and back.is_attached else None)

    def _show_prompt(self, asking: bool) -> None:
        self.key_bar.display = not asking
        self.prompt.display = asking
