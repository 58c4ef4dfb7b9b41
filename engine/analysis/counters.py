"""What a run came to by any of its events: calls, ends that a human had to look at, pages. Counted, not kept.

The rows of a run tell how it stands; what was mended since, they have forgotten. Events have not.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass

from ..domain.event_payloads import OperatorActed, OperatorNotice, PageChange, PageChanged
from ..domain.events import Event, EventKind
from ..domain.states import TaskState

_PAGED = frozenset([PageChange.OPENED, PageChange.FOLDED])
_VISITS = frozenset([OperatorNotice.ATTACH, OperatorNotice.DETACH])


def is_act(event: Event) -> bool:
    """Whether it is the record of an operator's act itself, and not one of its consequences."""
    return isinstance(event.payload, OperatorActed) and event.payload.what not in _VISITS


@dataclass(frozen=True, slots=True)
class Counts:
    """Up to some event. ``causes``: of the pages that were opened, or counted up, by then."""

    calls: int = 0
    failed: int = 0
    dead_letters: int = 0
    pages: int = 0
    causes: frozenset[str] = frozenset()
    acts: int = 0


class Tally:
    """Takes the events of one run in order, and answers for each of them what had been by then."""

    def __init__(self) -> None:
        self._moves: dict[str | None, array[int]] = {state: array("q") for state in _COUNTED}
        self._acts = array("q")
        self._pages: dict[int, tuple[int, str]] = {}  # by number: its first event here, and its cause

    def take(self, event: Event) -> None:
        """The next event."""
        payload = event.payload
        if event.kind == EventKind.TASK and event.new in self._moves:
            self._moves[event.new].append(event.seq)
        elif isinstance(payload, PageChanged) and payload.what in _PAGED and payload.id is not None:
            self._pages.setdefault(payload.id, (event.seq, str(payload.cause)))
        if is_act(event):
            self._acts.append(event.seq)

    def at(self, seq: int) -> Counts:
        """What had been by the event ``seq``."""
        calls, failed, dead_letters = (bisect_right(self._moves[state], seq) for state in _COUNTED)
        pages = [cause for first, cause in self._pages.values() if first <= seq]
        return Counts(calls, failed, dead_letters, len(pages), frozenset(pages), bisect_right(self._acts, seq))


_COUNTED = (str(TaskState.RUNNING), str(TaskState.FAILED), str(TaskState.DEAD_LETTER))
