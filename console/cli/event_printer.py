"""Events as lines on stdout, while they are committed. Whatever becomes of stdout, the run goes on."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from ...engine.domain.event_payloads import RunChange, RunChanged
from ...engine.domain.events import Event
from . import event_lines


class Printer:
    """Prints what ``take`` is given, until the reader has gone or nothing more can be written.

    ``stream``: None if the process was started without a stdout.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.told_the_end = False  # a line that says how the run stands was the last of its kind
        self._stream = stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of tasks need not fit the locale of cron

    def take(self, events: Sequence[Event]) -> None:
        """Print a batch at once."""
        for event in events:
            if isinstance(event.payload, RunChanged):
                self.told_the_end = event.payload.what in (RunChange.ENDED, RunChange.BLOCKED)
        self.write("".join(f"{line}\n" for event in events for line in event_lines.lines(event)))

    def write(self, text: str) -> None:
        """Print it now. Never raises for the sake of stdout."""
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except BrokenPipeError:  # `| head` has seen enough
            self._give_up()
        except OSError as error:
            self._give_up()
            _complain(f"cannot print any more ({error.strerror}); the run goes on, redrive events shows it")

    def _give_up(self) -> None:
        """Nothing more is printed, and the interpreter's own flush at exit does not fail either."""
        stream, self._stream = self._stream, None
        if stream is not None:
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, stream.fileno())
            os.close(silence)


def _complain(sentence: str) -> None:
    if sys.stderr is not None:
        print(f"redrive: {sentence}", file=sys.stderr)
