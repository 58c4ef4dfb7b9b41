"""Reads through a session what a view shows: past events, output, evidence, and the last runs."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from ...engine.core.causes import CauseHistory
from ...engine.core.projection import RunProjection, RunSummary
from ...engine.domain.events import Event
from ...engine.errors import RedriveError
from ...engine.statefile import lists
from ...engine.statefile.lists import OUTPUT, RUN_TASKS, RunTaskRow
from ...engine.statefile.logs import LogChunk
from ..model.board import RunSnapshot
from ..model.inbox import AttemptTexts, EvidenceData
from ..model.log import LineAssembler
from ..model.replay import EventWindow, ReplayIndex
from ..model.runs import RunGrid, latest_runs, run_grid
from .session import Session

# --- Reads the history of a run through a session, in pages of events ------------------------------------------------
#
# Users: ``redrive replay`` (``cli/listings.py``) for one instant, and time travel in the console (``time_travel.py``).


READ_EVENTS = 2_000  # for each query, so that other queries need not wait long
CACHED_EVENTS_MAX = 16_000  # in the cache of ranges, which drops the least recently used


async def events_of_run(session: Session, projection: RunProjection) -> AsyncIterator[Event]:
    """The events of a run up to its projection, in pages."""
    after, is_last = 0, False
    while not is_last:
        page = await session.run_events(projection.run.run_id, after, READ_EVENTS)
        is_last = len(page) < READ_EVENTS or page[-1].seq >= projection.seq
        for event in page:
            if event.seq <= projection.seq:
                yield event
        after = page[-1].seq if page else after


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
        reel = self.index
        while reel.seq < until:
            events = await self._session.run_events(reel.run_id, reel.seq, READ_EVENTS)
            reel.extend(events)
            if len(events) < READ_EVENTS:
                break
            on_progress(reel.seq)
        if not reel.seq:
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
            self._add_to_cache(window, events)
            point = self._point(seq, events)
        return point

    def _point(self, seq: int, events: Sequence[Event]) -> HistoryPoint:
        index = bisect_right(events, seq, key=attrgetter("seq"))
        event = events[index - 1] if index and events[index - 1].seq == seq else None
        return HistoryPoint(self.index.snapshot_at(seq, events), event)

    def _add_to_cache(self, window: EventWindow, events: Sequence[Event]) -> None:
        self._cache[window] = events
        self._cache.move_to_end(window)
        while len(self._cache) > 1 and sum(map(len, self._cache.values())) > CACHED_EVENTS_MAX:
            self._cache.popitem(last=False)


# --- The output of one attempt as lines, each once; only the unfinished line is kept in memory -----------------------


PAGE_CHUNKS = 500


class OutputLine(msgspec.Struct, frozen=True):
    """A line without control characters. ``dropped_bytes``: the line stands for so much output that was dropped."""

    at: int  # microseconds UTC
    text: str = ""
    dropped_bytes: int = 0


class OutputStream:
    """Reads new output of one attempt. All reads may raise RedriveError.

    ``has_whole_lines``: however long they are; otherwise a long one becomes several.
    """

    def __init__(
        self, session: Session, run_id: str, task: str, attempt: int, *, has_whole_lines: bool = False
    ) -> None:
        self.run_id = run_id
        self.task = task
        self.attempt = attempt
        self._session = session
        self._assembler = LineAssembler(longest=None) if has_whole_lines else LineAssembler()
        self._last_id = 0
        self._last_at = 0
        self._read_bytes = 0
        self._dropped_bytes = 0  # that a line has stood for

    async def read_new(self, is_ended: bool) -> AsyncIterator[OutputLine]:
        """Yield the lines that were written since the last call. ``is_ended``: nothing is written any more."""
        # The size first: output that is written between the two reads is not mistaken for dropped output.
        size = await self._size()
        while chunks := await self._session.log(
            self.run_id, self.task, self.attempt, after=self._last_id, limit=PAGE_CHUNKS
        ):
            for chunk in chunks:
                for line in self._lines_of(chunk, size):
                    yield line
        if (missing := size - self._read_bytes - self._dropped_bytes) > 0:
            for line in self._gap(self._last_at, missing):
                yield line
        if is_ended:
            for text in self._assembler.close():
                yield OutputLine(self._last_at, text)

    async def _size(self) -> int:
        rows = await self._session.query(OUTPUT, run_id=self.run_id, task=self.task, attempt=self.attempt)
        return rows[0].output_bytes if rows else 0

    def _lines_of(self, chunk: LogChunk, size: int) -> Iterator[OutputLine]:
        """The lines that a new chunk finishes, after the gap before it."""
        length = len(_encoded(chunk))
        # What was read before it was dropped is not missing.
        missing = min(chunk.dropped, size - self._read_bytes - self._dropped_bytes - length)
        if missing > 0:
            yield from self._gap(chunk.at, missing)
        self._last_id, self._last_at = chunk.id, chunk.at
        self._read_bytes += length
        for text in self._assembler.append(chunk.text):
            yield OutputLine(chunk.at, text)

    def _gap(self, at: int, missing: int) -> Iterator[OutputLine]:
        self._dropped_bytes += missing
        for text in self._assembler.close():
            yield OutputLine(at, text)
        yield OutputLine(at, dropped_bytes=missing)


def _encoded(chunk: LogChunk) -> bytes:
    return chunk.text.encode("utf-8", "replace")


# --- Reads what a page of evidence needs besides the board -----------------------------------------------------------


TEXTS_OF = 2  # attempts whose long texts are compared
_HISTORY_ATTEMPTS = 200
_ROWS = 50


async def read_evidence(
    session: Session, run_id: str, name: str, attempts: Sequence[int], memory: CauseHistory | None = None
) -> EvidenceData:
    """Read the texts of ``attempts`` of a task, its attempts in all runs and its quarantined rows.

    ``memory``: the history of its cause, if it was read already.
    """
    texts = [AttemptTexts(attempt, await session.attempt_text(run_id, name, attempt)) for attempt in attempts]
    history = await session.query(lists.HISTORY, task=name, limit=_HISTORY_ATTEMPTS)
    rows = await session.query(lists.QUARANTINE, run_id=run_id, task=name, limit=_ROWS)
    return EvidenceData(texts, history, rows, memory)


# --- Reads the last runs of a flow with their tasks ------------------------------------------------------------------


class HistoryReader:
    """Reads the grid of a flow; runs that have ended are read once, unless something in them was changed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ended: dict[tuple[str, int | None, tuple[tuple[str, int], ...]], list[RunTaskRow]] = {}

    async def read(self, summaries: Sequence[RunSummary], dag_name: str) -> RunGrid:
        """Read the grid. ``summaries``: the runs of the file, the latest first. Raises RedriveError."""
        runs = latest_runs(summaries, dag_name)
        rows: dict[str, list[RunTaskRow]] = {}
        kept = {}
        keys = [(one.run.run_id, one.run.ended_at, tuple(sorted(one.counts.items()))) for one in runs]
        missing = [key for key in keys if key not in self._ended]
        # all at once: each waits for a link of its own delay
        read = await asyncio.gather(*(self._session.query(RUN_TASKS, run_id=run_id) for run_id, *_ in missing))
        known = {**self._ended, **{key: list(found) for key, found in zip(missing, read, strict=True)}}
        for key in keys:
            rows[key[0]] = known[key]
            if key[1] is not None:
                kept[key] = known[key]
        self._ended = kept
        return run_grid(runs, rows)
