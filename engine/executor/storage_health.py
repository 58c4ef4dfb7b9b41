"""Whether the state file can be written, as the writer tells it.

While the disk refuses, nothing more is started, and what runs goes on: its results wait in memory. Who watches learns
of it at once, by an event that no file can hold; the file learns of it as soon as it can be written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..clock import Clock
from ..domain.event_payloads import StorageChange, StorageChanged
from ..domain.events import Event, EventKind
from ..statefile.changes.transitions import Journal


class StorageHealth:
    """``trouble``: why the state file cannot be written at the moment, in a sentence; None: it can.

    ``write`` writes something that nobody waits for; ``show`` hands events to whoever shows or prints the run.
    """

    def __init__(
        self,
        clock: Clock,
        write: Callable[[Callable[[Journal], None]], Any],
        show: Callable[[Sequence[Event]], None],
    ) -> None:
        self._refused: str | None = None
        self._away: str | None = None
        self._clock = clock
        self._write = write
        self._show = show

    @property
    def trouble(self) -> str | None:
        """As above; a file that has lost its name before a disk that refuses."""
        return self._away or self._refused

    def hear(self, what: str, sentence: str) -> None:
        """Take the writer's word: DEGRADED or RECOVERED of StorageChange."""
        payload = StorageChanged(what, sentence)
        if what == StorageChange.DEGRADED:
            self._refused = sentence
            self._show([Event._make((0, self._clock.now_us(), EventKind.STORAGE, *[None] * 9, payload))])
        else:
            self._refused = None
            self._write(lambda journal: _emit(journal, payload))

    def hear_of_the_file(self, sentence: str | None) -> None:
        """It has lost its name (what to do about it), or has it back: None."""
        self._away = sentence
        self.tell(
            StorageChange.DEGRADED if sentence else StorageChange.RECOVERED,
            sentence or "the state file is back in its place",
        )

    def tell(self, what: str, sentence: str) -> None:
        """Write it down; a file without its name can be written all the same."""
        payload = StorageChanged(what, sentence)
        self._write(lambda journal: _emit(journal, payload))


def _emit(journal: Journal, payload: StorageChanged) -> None:
    journal.emit(payload)
