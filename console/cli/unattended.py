"""``redrive run --quiet``, for cron: a run in this process that nobody watches.

A quiet run is silent if it succeeds; else it prints everything that the mail should say: the lines of the tasks with
problems, with dates; each cause, with the end of the output of its first task; the commands to type.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence

from ...engine.domain.event_payloads import TaskMoved
from ...engine.domain.events import Event
from ...engine.domain.states import ENDED_BADLY, TIMED
from ...engine.domain.text import advised
from ..text.event_text import lines_of_event

LINES_MAX = 2000  # the latest ones, of tasks with problems and of the run itself

_PROBLEMS = ENDED_BADLY | TIMED


class FailureRecord:
    """The event lines of a run and of its tasks with problems. ``state``: the file, for commands in the lines."""

    def __init__(self, state: str) -> None:
        self._state = os.path.abspath(state)
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._with_problems: set[str] = set()
        self._omitted = 0

    def add(self, events: Sequence[Event]) -> None:
        """Record the lines of a batch of events."""
        for event in events:
            if event.task is not None and isinstance(event.payload, TaskMoved) and event.new in _PROBLEMS:
                self._with_problems.add(event.task)
            if event.task is None or event.task in self._with_problems:
                for text in lines_of_event(event, has_date=True, target=self._state):
                    self._omitted += len(self._lines) == LINES_MAX
                    self._lines.append(text)

    def lines(self) -> Iterator[str]:
        """The recorded lines; first, how many earlier ones were left out."""
        if self._omitted:
            yield f"... {self._omitted:,} earlier lines; {advised('events', self._state)} shows them"
        yield from self._lines
