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

EVENTS_MAX = 2000  # the latest ones, of tasks with problems and of the run itself

_PROBLEMS = ENDED_BADLY | TIMED


class FailureRecord:
    """The events of a run and of its tasks with problems. ``state``: the file, for commands in their lines."""

    def __init__(self, state: str) -> None:
        self._state = os.path.abspath(state)
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self._with_problems: set[str] = set()
        self._omitted = 0

    def add(self, events: Sequence[Event]) -> None:
        """Record a batch of events."""
        for event in events:
            if event.task is not None and isinstance(event.payload, TaskMoved) and event.new in _PROBLEMS:
                self._with_problems.add(event.task)
            if event.task is None or event.task in self._with_problems:
                self._omitted += len(self._events) == EVENTS_MAX
                self._events.append(event)

    def lines(self) -> Iterator[str]:
        """The lines of the recorded events; first, how many earlier events were left out."""
        from ..text.event_text import lines_of_event  # here: most runs succeed, and have no use for its imports

        if self._omitted:
            yield f"... {self._omitted:,} earlier events; {advised('events', self._state)} shows them"
        for event in self._events:
            yield from lines_of_event(event, has_date=True, target=self._state)
