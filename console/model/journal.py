"""The events of a run in memory, oldest first; and the command line that repeats an operator's command."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ...engine.analysis.counters import is_operator_act
from ...engine.domain.event_codec import decode, unreadable
from ...engine.domain.event_payloads import OperatorActed, Payload
from ...engine.domain.events import Event
from ...engine.domain.states import NEEDS_HUMAN
from ...engine.errors import StateFileError
from ...engine.statefile.list_rows import EventRow
from ..keys.shell_lines import shell_line
from ..text.event_text import describe_event, event_subject, target_tasks
from .filters import Filter
from .replay import problem_of

IS_PROBLEM = "is:problem"  # a filter that leaves failures, hangs, open breakers and acts
EVENTS_MAX = 20_000  # earlier events are read again when the user scrolls there
_DROPPED_AT_ONCE = 2_000


def event_of(row: EventRow) -> Event:
    """Return the event of a row of the list JOURNAL; an unreadable payload is kept as it is."""
    return Event(*row[:-1], _payload_of(row.kind, row.data))


def _payload_of(kind: str, data: object) -> Payload:
    try:
        return decode(kind, data)
    except StateFileError:
        return unreadable(data)


def command_line(event: Event, target: str) -> str | None:
    """Return the shell command that repeats an operator's command, safe to paste; None if there is none.

    ``target``: the state file or its ssh address.
    """
    payload = event.payload
    if not isinstance(payload, OperatorActed) or not is_operator_act(event):
        return None
    return shell_line(payload.act or "", target, event.run_id, target_tasks(event), event.reason or "", payload.options)


def is_notable(event: Event) -> bool:
    """Whether an operator acted, or a task came to need a human."""
    return is_operator_act(event) or (event.new is not None and event.task is not None and event.new in NEEDS_HUMAN)


class EventJournal:
    """The events of one run, and those of the state file without a run.

    Attributes:
        order: the numbers of the events that match the filter, oldest first.
        is_complete: whether the first event of the run is loaded.
        newer_dropped: how many newer events were dropped to make room for earlier ones.
        acts: how many of the loaded events are operators' commands.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.order: list[int] = []
        self.is_complete = False
        self.newer_dropped = 0
        self.acts = 0
        self.filter = Filter()
        self._numbers: list[int] = []
        self._events: dict[int, Event] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Event:
        return self._events[number]

    @property
    def first(self) -> int | None:
        """The number of the earliest loaded event."""
        return self._numbers[0] if self._numbers else None

    @property
    def last(self) -> int:
        """The number of the latest loaded event; 0 if there is none."""
        return self._numbers[-1] if self._numbers else 0

    def append(self, events: Iterable[Event]) -> bool:
        """Append newer events. Returns whether ``order`` changed."""
        new = [event for event in events if event.seq > self.last and event.run_id in (self.run_id, None)]
        if self.newer_dropped:
            self.newer_dropped += len(new)
            return False
        shown = len(self.order)
        self._add(new)
        self._numbers += [event.seq for event in new]
        self.order += [event.seq for event in new if self._matches(event)]
        if len(self._numbers) > EVENTS_MAX:
            self._remove(self._numbers[: len(self._numbers) - EVENTS_MAX + _DROPPED_AT_ONCE])
            self.is_complete = False
            return True
        return len(self.order) != shown

    def prepend(self, events: Sequence[Event]) -> None:
        """Prepend earlier events; above EVENTS_MAX the newest are dropped."""
        earlier = [event for event in events if self.first is None or event.seq < self.first]
        self._add(earlier)
        self._numbers[:0] = [event.seq for event in earlier]
        self.order[:0] = [event.seq for event in earlier if self._matches(event)]
        if len(self._numbers) > EVENTS_MAX:
            gone = self._numbers[EVENTS_MAX:]
            self.newer_dropped += len(gone)
            self._remove(gone)

    def set_filter(self, filter: Filter) -> None:
        """Set the filter; an empty one matches every event."""
        self.filter = filter
        self.order = [number for number in self._numbers if self._matches(self._events[number])]

    def next_notable(self, after: int, step: int = 1) -> int | None:
        """Return the number of the next notable event, cyclically; None if there is none."""
        count = len(self.order)
        start = bisect_left(self.order, after)
        for distance in range(1, count + 1):
            number = self.order[(start + step * distance) % count]
            if is_notable(self._events[number]):
                return number
        return None

    def _add(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events[event.seq] = event
            self.acts += is_operator_act(event)

    def _remove(self, numbers: Sequence[int]) -> None:
        """Remove consecutive events at either end."""
        low, high = numbers[0], numbers[-1]
        for number in numbers:
            self.acts -= is_operator_act(self._events.pop(number))
        self._numbers = [number for number in self._numbers if not low <= number <= high]
        self.order = [number for number in self.order if not low <= number <= high]

    def _matches(self, event: Event) -> bool:
        return not self.filter or self.filter.matches(text_of(event).casefold())


def text_of(event: Event) -> str:
    """Return the text of an event that filters search."""
    problem = IS_PROBLEM if problem_of(event) is not None else ""
    words = (event.kind, event.new, event_subject(event), describe_event(event), event.actor, event.reason, problem)
    return " ".join(word for word in words if word)
