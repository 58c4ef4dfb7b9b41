"""The line for ``/`` and ``:`` at the foot of the screen, with what was entered before and what it could become."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual import events

from .text_input import TextField

HISTORY_MAX = 100


class Prompt(TextField):
    """A field that remembers and completes."""

    def __init__(self, sign: str, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.sign = ""
        self._history: list[str] = []
        self._place = 0
        self._complete: Callable[[str], Sequence[str]] | None = None
        self._offers: list[str] = []
        self._offered: str | None = None
        self.start(sign)

    def start(
        self,
        sign: str,
        text: str = "",
        *,
        hint: str = "",
        history: Sequence[str] = (),
        complete: Callable[[str], Sequence[str]] | None = None,
    ) -> None:
        """Begin anew.

        Args:
            sign: what the line begins with, ``/`` or ``:``.
            text: what stands there already.
            history: what was entered before, latest last; Up and Down walk through it.
            complete: the text so far -> what it could become, best first; Tab takes them one after the other.
        """
        self.sign = sign
        self._history = [*history[-HISTORY_MAX:], text]
        self._place = len(self._history) - 1
        self._complete = complete
        self._offers = []
        self._offered = None
        self.restart(f" {sign}", text, hint)

    def on_key(self, event: events.Key) -> None:
        """Walk through the history, complete, or type."""
        if event.key == "up":
            self._recall(self._place - 1)
        elif event.key == "down":
            self._recall(self._place + 1)
        elif event.key == "tab" and self._complete is not None:
            self._take_offer(self._complete)
        else:
            return
        event.stop()
        event.prevent_default()  # else the field would handle it as well

    def _recall(self, place: int) -> None:
        if 0 <= place < len(self._history):
            if self._place == len(self._history) - 1:
                self._history[-1] = self.text
            self._place = place
            self.text = self._history[place]

    def _take_offer(self, complete: Callable[[str], Sequence[str]]) -> None:
        if self.text != self._offered or not self._offers:
            self._offers = list(complete(self.text))
        if self._offers:
            self._offered = self._offers.pop(0)
            self.text = self._offered
