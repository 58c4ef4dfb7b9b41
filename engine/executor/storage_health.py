"""Whether the state file can be written, as reported by the writer.

While writes fail, no more tasks start; running attempts continue and their results wait in memory. Listeners get a
DEGRADED event at once, which cannot be stored; the RECOVERED event is stored once writes succeed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from ..clock import Clock
from ..domain.event_changes import StorageChange
from ..domain.event_payloads import StorageChanged
from ..domain.events import Event, EventKind
from ..errors import StorageError
from ..statefile.changes.transitions import Transaction


class StorageHealth:
    """``write`` queues a write whose result no caller awaits; ``notify`` passes events to the listeners of the run."""

    def __init__(
        self,
        clock: Clock,
        write: Callable[[Callable[[Transaction], object]], object],
        notify: Callable[[Sequence[Event]], None],
    ) -> None:
        self._write_problem: str | None = None
        self._file_problem: str | None = None
        self._clock = clock
        self._write = write
        self._notify = notify

    @property
    def problem(self) -> str | None:
        """Why the state file cannot be written, in one sentence; None: it can be. A missing file comes first."""
        return self._file_problem or self._write_problem

    def on_writer_change(self, what: str, sentence: str) -> None:
        """Handle DEGRADED or RECOVERED of StorageChange, as reported by the writer."""
        payload = StorageChanged(what, sentence)
        if what == StorageChange.DEGRADED:
            self._write_problem = sentence
            self._notify([Event._make((0, self._clock.now_us(), EventKind.STORAGE, *[None] * 9, payload))])
        else:
            self._write_problem = None
            with suppress(StorageError):  # the writer is closing, and its last try has succeeded
                self._write(lambda transaction: transaction.emit(payload))

    def on_file_change(self, sentence: str | None) -> None:
        """Handle a missing state file (``sentence``: what to do), or a restored one (None)."""
        self._file_problem = sentence
        self.emit(
            StorageChange.DEGRADED if sentence else StorageChange.RECOVERED,
            sentence or "the state file is back in its place",
        )

    def emit(self, what: str, sentence: str) -> None:
        """Write an event; a missing file can still be written through its open descriptor."""
        payload = StorageChanged(what, sentence)
        self._write(lambda transaction: transaction.emit(payload))
