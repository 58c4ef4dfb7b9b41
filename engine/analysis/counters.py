"""Counts calls, failures, dead letters and pages of a run from its events.

The rows of a run hold only its present state; a failure that was mended since is gone from them, but not from the
events.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass

from ..domain.event_changes import OperatorNotice, PageChange
from ..domain.event_payloads import OperatorActed, PageChanged
from ..domain.events import Event, EventKind
from ..domain.states import TaskState

_PAGE_RAISED = frozenset([PageChange.OPENED, PageChange.FOLDED])
_CONSOLE_NOTICES = frozenset([OperatorNotice.ATTACH, OperatorNotice.DETACH])


def is_operator_act(event: Event) -> bool:
    """Whether the event records an act of an operator, not a consequence of one."""
    return isinstance(event.payload, OperatorActed) and event.payload.what not in _CONSOLE_NOTICES


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Counts up to some event. ``causes``: of the pages that were opened or repeated by then."""

    calls: int = 0
    failed: int = 0
    dead_letters: int = 0
    pages: int = 0
    causes: frozenset[str] = frozenset()
    acts: int = 0


class EventCounter:
    """Counts the events of one run, added in order, and returns the counts at any of them."""

    def __init__(self) -> None:
        self._moves: dict[str | None, array[int]] = {state: array("q") for state in _COUNTED}
        self._acts = array("q")
        self._pages: dict[int, tuple[int, str]] = {}  # page id -> (seq of its first event, cause)

    def add(self, event: Event) -> None:
        payload = event.payload
        if event.kind == EventKind.TASK and event.new in self._moves:
            self._moves[event.new].append(event.seq)
        elif isinstance(payload, PageChanged) and payload.what in _PAGE_RAISED and payload.id is not None:
            self._pages.setdefault(payload.id, (event.seq, str(payload.cause)))
        if is_operator_act(event):
            self._acts.append(event.seq)

    def counts_at(self, seq: int) -> RunCounts:
        """Return the counts up to and including the event ``seq``."""
        calls, failed, dead_letters = (bisect_right(self._moves[state], seq) for state in _COUNTED)
        pages = [cause for first, cause in self._pages.values() if first <= seq]
        return RunCounts(calls, failed, dead_letters, len(pages), frozenset(pages), bisect_right(self._acts, seq))


_COUNTED = (str(TaskState.RUNNING), str(TaskState.FAILED), str(TaskState.DEAD_LETTER))
