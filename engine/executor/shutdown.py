"""Stopping in order: start nothing more, and wait for what runs ("drain") or end it as well ("now")."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from .attempts import AttemptDesk


def handle_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """SIGTERM and SIGINT stop in order; the terminal going away means nothing to a run."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Shutdown:
    """``how``: None while nobody has asked; ``on_asked()`` is called whenever somebody does."""

    def __init__(self, desk: AttemptDesk, on_asked: Callable[[], None]) -> None:
        self.how: str | None = None
        self._desk = desk
        self._on_asked = on_asked

    def ask(self, how: str) -> None:
        """ "drain", or "now", which is never taken back."""
        if self.how != "now":
            self.how = how
            self.end_what_runs()
        self._on_asked()

    def end_what_runs(self) -> None:
        """End the attempts if that is wanted; again after every launch, for a claim may have been under way."""
        if self.how == "now":
            self._desk.interrupt_all()
