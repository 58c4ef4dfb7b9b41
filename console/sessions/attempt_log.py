"""The log of one attempt, read through a session: a window of it in memory, at first its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ...engine.statefile.lists import OUTPUT
from ...engine.statefile.logs import READ_CHARACTERS_MAX, LogChunk
from ..model.log import LogText
from .session import Session

WINDOW_CHUNKS = 64  # the end of a log, to begin with
PAGE_CHUNKS = 500
WINDOW_CHARACTERS_MAX = 2 * READ_CHARACTERS_MAX  # a larger window gives way to one around the place in view
_PAGES_MAX = 20  # per poll; the next poll reads further pages


class AttemptLog:
    """The log of one attempt. All reads may raise RedriveError.

    Attributes:
        text: the lines of the window.
        is_started: whether anything has been read.
        is_complete: whether the window begins with the first output that is kept.
        is_at_end: whether the window ended, when it was read last, with the latest output.
        is_finished: whether its end was read after the attempt had ended: there will be no more of it.
        output_bytes, dropped_bytes: as the engine counts them; None as long as it was not asked.
        until_us: what was written later (microseconds UTC) is left out; None: nothing is.
    """

    def __init__(self, session: Session, run_id: str, task: str, attempt: int, until: int | None = None) -> None:
        self.task = task
        self.attempt = attempt
        self.text = LogText()
        self.is_started = False
        self.is_complete = False
        self.is_at_end = True
        self.is_finished = False
        self.output_bytes: int | None = None
        self.dropped_bytes: int | None = None
        self.until_us = until
        self._session = session
        self.run_id = run_id

    @property
    def is_whole(self) -> bool:
        """Whether the window is all of the log."""
        return self.is_complete and self.is_at_end

    def can_advance_to(self, until: int | None) -> bool:
        """Move the limit to a later time. False if it is earlier or the present: the log must be read again."""
        if (until is None) != (self.until_us is None) or (until or 0) < (self.until_us or 0):
            return False
        if until != self.until_us:
            self.until_us, self.is_finished = until, False
        return True

    async def read_new(self) -> None:
        """Read new output, or the end of the log at first."""
        if not self.is_started:
            await self.read_end()
            return
        text = self.text
        for _ in range(_PAGES_MAX if self.is_at_end else 0):
            chunks, is_last = await self._read(PAGE_CHUNKS, after=text.last_id)
            if text is not self.text:
                return
            if chunks and text.characters > WINDOW_CHARACTERS_MAX:
                await self.read_end()
                return
            text.append(chunks)
            if is_last:
                break
        await self._read_sizes()

    async def has_grown(self) -> bool:
        """Whether there is output since the last read: far cheaper to ask than to read it."""
        before = self.output_bytes
        await self._read_sizes()
        return self.output_bytes != before

    async def read_end(self) -> None:
        """Make the end of the log the window."""
        if self.until_us is None:
            chunks, is_first = await self._read(WINDOW_CHUNKS, after=-1)
        else:
            chunks, is_first = await self._read(WINDOW_CHUNKS, before=await self._first_id_after_limit(self.until_us))
        await self._replace(chunks, is_complete=is_first, is_at_end=True)

    async def read_start(self) -> None:
        """Make the start of the log the window."""
        chunks, is_last = await self._read(PAGE_CHUNKS)
        await self._replace(chunks, is_complete=True, is_at_end=is_last)

    async def read_around(self, chunk_id: int) -> None:
        """Make the output before and after a chunk the window."""
        earlier, is_first = await self._read(PAGE_CHUNKS, before=chunk_id)
        later, is_last = await self._read(PAGE_CHUNKS, after=chunk_id - 1)
        await self._replace([*earlier, *later], is_complete=is_first, is_at_end=is_last)

    async def read_earlier(self) -> int:
        """Extend the window to the front, or move it there. Returns how many lines were added at its start."""
        read = await self._read_adjacent(before=self.text.first_id)
        if read is None:
            return 0
        chunks, self.is_complete = read
        return self.text.prepend(chunks)

    async def read_later(self) -> None:
        """Extend the window to the end, or move it there."""
        read = await self._read_adjacent(after=self.text.last_id)
        if read is not None:
            chunks, self.is_at_end = read
            self.text.append(chunks)

    async def read_whole(self) -> int:
        """Extend the window to the start of the log; of a long log, move it there. Returns as ``read_earlier``."""
        added, text = 0, self.text
        while not self.is_complete and text.characters <= WINDOW_CHARACTERS_MAX:
            added += await self.read_earlier()
            if text is not self.text:
                return 0
        if self.is_complete:
            return added
        await self.read_start()
        return 0

    async def find(self, pattern: str, step: int, start: int) -> int | None:
        """The chunk with the first match after the chunk ``start``, with a ``step`` of -1 the last one before it."""
        place: int | None = start
        while place is not None:
            after, before = (place, None) if step > 0 else (0, place)
            found, place = await self._session.find_in_log(
                self.run_id, self.task, self.attempt, pattern, after=after, before=before
            )
            if found is not None:
                return found
        return None

    async def pages(self) -> AsyncIterator[Sequence[LogChunk]]:
        """Yield the whole log, page by page."""
        after, is_last = 0, False
        while not is_last:
            chunks, is_last = await self._read(PAGE_CHUNKS, after=after)
            if not chunks:
                return
            yield chunks
            after = chunks[-1].id

    async def _replace(self, chunks: Sequence[LogChunk], *, is_complete: bool, is_at_end: bool) -> None:
        await self._read_sizes()
        self.text = LogText()
        self.text.append(chunks)
        self.is_started, self.is_complete, self.is_at_end = True, is_complete, is_at_end

    async def _read_adjacent(self, *, after: int = 0, before: int | None = None) -> tuple[list[LogChunk], bool] | None:
        """Return as ``_read``; None if the window is another one now, as one that was too large to be extended."""
        text = self.text
        if text.characters > WINDOW_CHARACTERS_MAX:
            await self.read_around(after if before is None else before)
            return None
        read = await self._read(PAGE_CHUNKS, after=after, before=before)
        return read if text is self.text else None

    async def _first_id_after_limit(self, until_us: int) -> int:
        """The id of the first chunk that was written after an instant, by bisection; one more than the last without."""
        chunks = await self._session.log(self.run_id, self.task, self.attempt, after=-1, limit=1)
        low, high = 0, chunks[-1].id + 1 if chunks else 1
        while low < high - 1:
            middle = (low + high) // 2
            (chunk,) = await self._session.log(self.run_id, self.task, self.attempt, after=middle - 1, limit=1)
            if chunk.at <= until_us:
                low = chunk.id
            else:
                high = middle
        return high

    async def _read(self, limit: int, *, after: int = 0, before: int | None = None) -> tuple[list[LogChunk], bool]:
        """Return chunks, and whether there are no more in this direction."""
        chunks = await self._session.log(self.run_id, self.task, self.attempt, after=after, limit=limit, before=before)
        size = sum(len(chunk.text) for chunk in chunks)
        shown = [chunk for chunk in chunks if self.until_us is None or chunk.at <= self.until_us]
        is_last = len(chunks) < limit and size < READ_CHARACTERS_MAX
        return shown, is_last or len(shown) < len(chunks)

    async def _read_sizes(self) -> None:
        rows = await self._session.rows(OUTPUT, run_id=self.run_id, task=self.task, attempt=self.attempt)
        if rows:
            self.output_bytes = rows[0].output_bytes if self.until_us is None else None
            self.dropped_bytes = rows[0].output_dropped_bytes
