"""The events of a run, read through a session in pages, and the run as of any of them."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from ...engine.core.projection import RunProjection
from ...engine.domain.events import Event
from ...engine.errors import RedriveError
from ..model.replay import EventWindow, ReplayIndex
from ..model.snapshot import RunSnapshot
from .session import Session

READ_EVENTS = 2_000  # for each query, so that other queries need not wait long
CACHED_WINDOWS_MAX = 4  # in the cache, which drops the least recently used


class HistoryPoint(NamedTuple):
    """A snapshot of the run, and the event before it; None if that event belongs to another run."""

    snapshot: RunSnapshot
    event: Event | None


class EventHistory:
    """The events of one run, as far as they were read. ``projection``: any snapshot of the run."""

    def __init__(self, session: Session, projection: RunProjection) -> None:
        self.index = ReplayIndex(projection)
        self._session = session
        self._cache: OrderedDict[EventWindow, Sequence[Event]] = OrderedDict()

    async def load(self, until: int, on_progress: Callable[[int], None] = lambda seq: None) -> None:
        """Read events up to number ``until``; ``on_progress`` gets the last number of each page but the last.

        Raises RedriveError if the file no longer has the start of the run, and the errors of the session.
        """
        index = self.index
        while index.seq < until:
            events = await self._session.run_events(index.run_id, index.seq, READ_EVENTS)
            index.extend(events)
            if len(events) < READ_EVENTS:
                break
            on_progress(index.seq)
        if not index.seq:
            raise RedriveError("the file no longer has the events of this run: the past cannot be shown")

    def cached_point(self, seq: int) -> HistoryPoint | None:
        """The point after the event ``seq``; None if its events are not in the cache."""
        window = self.index.window_for(seq)
        events = self._cache.get(window)
        if events is None or not (len(events) == window.limit or (events and events[-1].seq >= seq)):
            return None
        self._cache.move_to_end(window)
        return self._point(seq, events)

    async def point_at(self, seq: int) -> HistoryPoint:
        """The point after the event ``seq``, which ``load`` must have passed already."""
        point = self.cached_point(seq)
        if point is None:
            window = self.index.window_for(seq)
            events = await self._session.run_events(self.index.run_id, window.after, window.limit)
            self._cache[window] = events
            while len(self._cache) > CACHED_WINDOWS_MAX:
                self._cache.popitem(last=False)
            point = self._point(seq, events)
        return point

    def _point(self, seq: int, events: Sequence[Event]) -> HistoryPoint:
        index = bisect_right(events, seq, key=attrgetter("seq"))
        event = events[index - 1] if index and events[index - 1].seq == seq else None
        return HistoryPoint(self.index.snapshot_at(seq, events), event)
