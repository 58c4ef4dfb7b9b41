"""What a run came to, by any of its events."""

from __future__ import annotations

from typing import Any

from redrive.engine.core.projection import EventCounter, RunCounts
from redrive.engine.domain.event_codec import decode
from redrive.engine.domain.events import Event, EventKind


def event(seq: int, kind: str = EventKind.TASK, new: str | None = None, **data: Any) -> Event:
    return Event(seq, seq, kind, "r", "t", None, new, None, None, None, None, None, decode(kind, data))


def test_counts_are_those_up_to_an_event() -> None:
    tally = EventCounter()
    events = [
        event(1, new="RUNNING"),
        event(2, new="DEAD_LETTER"),
        event(3, EventKind.PAGE, what="opened", id=7, cause="bug"),
        event(4, EventKind.PAGE, what="folded", id=7, cause="bug"),
        event(5, EventKind.OPERATOR, act="requeue"),
        event(6, new="RUNNING"),
        event(7, new="FAILED"),
        event(8, EventKind.PAGE, what="opened", id=8, cause="bank"),
        event(9, EventKind.PAGE, what="acked", id=9, cause="old"),
    ]
    for one in events:
        tally.add(one)
    assert tally.counts_at(0) == RunCounts()
    assert tally.counts_at(4) == RunCounts(1, 0, 1, 1, frozenset(["bug"]), 0)
    assert tally.counts_at(99) == RunCounts(2, 1, 1, 2, frozenset(["bug", "bank"]), 1)


def test_an_observer_counts_as_no_act() -> None:
    tally = EventCounter()
    tally.add(event(1, EventKind.OPERATOR, what="attach"))
    assert tally.counts_at(1).acts == 0
