"""Graceful stop: start no more attempts, and wait for the running ones ("drain") or terminate them ("now")."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a supervisor of services needs the signals alone
    from .attempts import AttemptManager


def handle_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call ``stop`` on SIGTERM and SIGINT, and ignore SIGHUP, so that a run survives its terminal."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Shutdown:
    """``mode``: None, "drain" or "now"; ``on_request()`` is called at every request."""

    def __init__(self, attempts: AttemptManager, on_request: Callable[[], None]) -> None:
        self.mode: str | None = None
        self._attempts = attempts
        self._on_request = on_request

    def request(self, mode: str) -> None:
        """Stop with ``mode`` "drain" or "now"; "now" cannot be downgraded."""
        if self.mode != "now":
            self.mode = mode
            self.interrupt_attempts()
        self._on_request()

    def interrupt_attempts(self) -> None:
        """Terminate attempts in mode "now". Called after every commit, which may have launched more attempts."""
        if self.mode == "now":
            self._attempts.interrupt_all()
