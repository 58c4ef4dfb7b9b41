"""What happened, newest last, as far as it is kept here; and the command line that does an operator's act again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ...engine.analysis.counters import is_act
from ...engine.domain.event_codec import decode, unreadable
from ...engine.domain.event_payloads import OperatorActed, Payload
from ...engine.domain.events import Event
from ...engine.domain.states import NEEDS_HUMAN
from ...engine.errors import StateFileError
from ...engine.statefile.queries import EventRow
from ..keys.actions import shell_line
from ..text.event_text import sentence, subject, targets
from .filters import Filter

KEPT_MAX = 20_000  # events; what is earlier is read again when somebody looks there
_FORGOTTEN_AT_ONCE = 2_000


def event_of(row: EventRow) -> Event:
    """An event from a row of the list JOURNAL; one whose payload cannot be read is shown all the same."""
    return Event(*row[:-1], _payload_of(row.kind, row.data))


def _payload_of(kind: str, data: object) -> Payload:
    try:
        return decode(kind, data)
    except StateFileError:
        return unreadable(data)


def command_line(event: Event, target: str) -> str | None:
    """The shell's way to do the same, safe to paste; None for what is no act, or unknown to the shell.

    ``target``: the state file or its ssh address.
    """
    payload = event.payload
    if not isinstance(payload, OperatorActed) or not is_act(event):
        return None
    return shell_line(payload.act or "", target, event.run_id, targets(event), event.reason or "", payload.options)


def is_notable(event: Event) -> bool:
    """What one looks for: somebody acted, or somebody has to."""
    return is_act(event) or (event.new is not None and event.task is not None and event.new in NEEDS_HUMAN)


class Journal:
    """The events of one run, and of the file around it.

    Attributes:
        order: the numbers of those that the filter keeps, oldest first.
        whole: whether there is nothing earlier.
        newer: how many newer ones were let go to make room for earlier ones.
        acts: how many of those known are acts.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.order: list[int] = []
        self.whole = False
        self.newer = 0
        self.acts = 0
        self.wanted = Filter()
        self._numbers: list[int] = []
        self._events: dict[int, Event] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> Event:
        return self._events[number]

    @property
    def first(self) -> int | None:
        """The number of the earliest that is known."""
        return self._numbers[0] if self._numbers else None

    @property
    def last(self) -> int:
        """The number of the latest that is known; 0 if none is."""
        return self._numbers[-1] if self._numbers else 0

    def append(self, events: Iterable[Event]) -> bool:
        """Take what has happened since. Answers whether ``order`` is another one."""
        fresh = [event for event in events if event.seq > self.last and event.run_id in (self.run_id, None)]
        if self.newer:
            self.newer += len(fresh)
            return False
        shown = len(self.order)
        self._enter(fresh)
        self._numbers += [event.seq for event in fresh]
        self.order += [event.seq for event in fresh if self._keeps(event)]
        if len(self._numbers) > KEPT_MAX:
            self._forget(self._numbers[: len(self._numbers) - KEPT_MAX + _FORGOTTEN_AT_ONCE])
            self.whole = False
            return True
        return len(self.order) != shown

    def prepend(self, events: Sequence[Event]) -> None:
        """Take what came before. When it is too much, the newest are let go."""
        earlier = [event for event in events if self.first is None or event.seq < self.first]
        self._enter(earlier)
        self._numbers[:0] = [event.seq for event in earlier]
        self.order[:0] = [event.seq for event in earlier if self._keeps(event)]
        if len(self._numbers) > KEPT_MAX:
            gone = self._numbers[KEPT_MAX:]
            self.newer += len(gone)
            self._forget(gone)

    def show_only(self, wanted: Filter) -> None:
        """Another filter; an empty one keeps everything."""
        self.wanted = wanted
        self.order = [number for number in self._numbers if self._keeps(self._events[number])]

    def next_notable(self, after: int, step: int = 1) -> int | None:
        """The next act or need for a human, by number, round and round; None if there is none."""
        count = len(self.order)
        start = bisect_left(self.order, after)
        for distance in range(1, count + 1):
            number = self.order[(start + step * distance) % count]
            if is_notable(self._events[number]):
                return number
        return None

    def _enter(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events[event.seq] = event
            self.acts += is_act(event)

    def _forget(self, numbers: Sequence[int]) -> None:
        """A stretch from either end."""
        low, high = numbers[0], numbers[-1]
        for number in numbers:
            self.acts -= is_act(self._events.pop(number))
        self._numbers = [number for number in self._numbers if not low <= number <= high]
        self.order = [number for number in self.order if not low <= number <= high]

    def _keeps(self, event: Event) -> bool:
        return not self.wanted or self.wanted.keeps(text_of(event).casefold())


def text_of(event: Event) -> str:
    """Everything of an event that a person may look for."""
    words = (event.kind, event.new, subject(event), sentence(event), event.actor, event.reason)
    return " ".join(word for word in words if word)
