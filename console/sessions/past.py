"""Reads the past through a session: the events of a run, in pages, and the last runs of a flow."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from ...engine.core.projection import RunProjection
from ...engine.domain.events import Event
from ...engine.domain.rows import RunSummary
from ...engine.errors import RedriveError
from ...engine.statefile.lists import RUN_TASKS, RunTaskRow
from ..model.replay import EventWindow, ReplayIndex
from ..model.runs import RunGrid, latest_runs, run_grid
from ..model.snapshot import RunSnapshot
from .session import Session

# --- Reads the history of a run through a session, in pages of events ------------------------------------------------
#
# Users: ``redrive replay`` (``cli/listings.py``) for one instant, and time travel in the console (``time_travel.py``).


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


# --- Reads the last runs of a flow with their tasks ------------------------------------------------------------------


class RunGridReader:
    """Reads the grid of a flow; runs that have ended are read once, unless something in them was changed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ended: dict[tuple[str, int | None, tuple[tuple[str, int], ...]], Sequence[RunTaskRow]] = {}

    async def read(self, summaries: Sequence[RunSummary], dag_name: str) -> RunGrid:
        """Read the grid. ``summaries``: the runs of the file, the latest first. Raises RedriveError."""
        runs = latest_runs(summaries, dag_name)
        keys = [(one.run.run_id, one.run.ended_at, tuple(sorted(one.counts.items()))) for one in runs]
        missing = [key for key in keys if key not in self._ended]
        # all at once: each waits for a link of its own delay
        read = await asyncio.gather(*(self._session.query(RUN_TASKS, run_id=run_id) for run_id, *_ in missing))
        known = {**self._ended, **dict(zip(missing, read, strict=True))}
        self._ended = {key: known[key] for key in keys if key[1] is not None}
        return run_grid(runs, {key[0]: known[key] for key in keys})
