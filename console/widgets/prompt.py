"""The prompt for ``/`` and ``:`` in the footer, with history and completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events

from .text_input import TextField

HISTORY_MAX = 100
_RECALL_STEPS = {"up": -1, "down": 1}


class Prompt(TextField):
    """A text field with history and completion."""

    def __init__(self, sign: str) -> None:
        super().__init__()
        self.sign = ""
        self._history: list[str] = []
        self._place = 0
        self._complete: Callable[[str], Sequence[str]] | None = None
        self._completions: list[str] = []
        self._last_completion: str | None = None
        self.open(sign)

    def open(
        self,
        sign: str,
        text: str = "",
        *,
        hint: str = "",
        history: Sequence[str] = (),
        complete: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        """Reset the prompt.

        Args:
            sign: the prompt sign, ``/`` or ``:``.
            text: the initial text.
            history: earlier entries, latest last; Up and Down select them.
            complete: text -> completions, best first; Tab cycles through them.
        """
        self.sign = sign
        self._history = [*history[-HISTORY_MAX:], text]
        self._place = len(self._history) - 1
        self._complete = complete
        self._completions = []
        self._last_completion = None
        self.reset(f" {sign}", text, hint)

    def on_key(self, event: events.Key) -> None:
        """Recall an earlier entry, complete, or type."""
        if event.key in _RECALL_STEPS and self.can_recall:
            self._recall(self._place + _RECALL_STEPS[event.key])
        elif event.key == "tab" and self._complete is not None:
            self._complete_next(self._complete)
        else:
            return
        event.stop()
        event.prevent_default()  # else the field would handle it as well

    @property
    def can_recall(self) -> bool:
        """Whether Up and Down walk through the history: always, except in a prompt with a list."""
        return True

    def _recall(self, place: int) -> None:
        if 0 <= place < len(self._history):
            if self._place == len(self._history) - 1:
                self._history[-1] = self.text
            self._place = place
            self.text = self._history[place]

    def _complete_next(self, complete: Callable[[str], Sequence[str]]) -> None:
        if self.text != self._last_completion or not self._completions:
            self._completions = list(complete(self.text))
        if self._completions:
            self._last_completion = self._completions.pop(0)
            self.text = self._last_completion
