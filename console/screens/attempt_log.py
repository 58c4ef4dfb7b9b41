"""The log of one attempt, read from its end; earlier parts on demand."""

from __future__ import annotations

from ...engine.statefile.list_rows import OUTPUT
from ..model.log import POLL_BYTES_MAX, LogText
from ..sessions.session import LogChunk, Session

WINDOW_CHUNKS = 64  # the end of a log, to begin with
PAGE_CHUNKS = 500
_PAGES_MAX = 20  # per poll; the next poll reads further pages


class AttemptLog:
    """The log of one attempt. All reads may raise RedriveError.

    Attributes:
        text: the lines read so far.
        whole: whether everything from the beginning on has been read.
        over: whether its end was read after the attempt had ended: there will be no more of it.
        written, dropped: bytes, as the engine counts them; None as long as it was not asked.
        until: what was written later (microseconds UTC) is left out; None: nothing is.
    """

    def __init__(self, session: Session, run_id: str, task: str, attempt: int, until: int | None = None) -> None:
        self.task = task
        self.attempt = attempt
        self.text = LogText()
        self.is_started = False
        self.is_complete = False
        self.is_finished = False
        self.output_bytes: int | None = None
        self.dropped_bytes: int | None = None
        self.until_us = until
        self._session = session
        self.run_id = run_id
        self._window_chunks = 0  # size of the last window

    def can_advance_to(self, until: int | None) -> bool:
        """Move the limit to a later time. False if it is earlier or the present: the log must be read again."""
        if (until is None) != (self.until_us is None) or (until or 0) < (self.until_us or 0):
            return False
        if until != self.until_us:
            self.until_us, self.is_finished = until, False
        return True

    async def read_new(self) -> int:
        """Read new output, or the end of the log at first. Returns the first changed line."""
        if not self.is_started:
            return await self._read_end()
        first = len(self.text.lines)
        for _ in range(_PAGES_MAX):
            chunks = await self._read(self.text.last_id, PAGE_CHUNKS)
            if not chunks:
                break
            await self._read_sizes()
            size = sum(len(chunk.text) for chunk in chunks)
            burst = bool(self.dropped_bytes) and chunks[0].tail and size > POLL_BYTES_MAX
            first = min(first, self.text.append(chunks, burst))
            if len(chunks) < PAGE_CHUNKS:
                break
        return first

    async def _read_end(self) -> int:
        if self.until_us is not None:
            return await self._read_all_before_limit()
        chunks = await self._read(-1, WINDOW_CHUNKS)
        await self._read_sizes()
        self.is_started = True
        self._window_chunks = len(chunks)
        self.is_complete = len(chunks) < WINDOW_CHUNKS
        return self.text.append(chunks)

    async def _read_all_before_limit(self) -> int:
        """Read from the start up to the limit, whose position in the log is unknown."""
        await self._read_sizes()
        self.is_started = self.is_complete = True
        while chunks := await self._read(self.text.last_id, PAGE_CHUNKS):
            self.text.append(chunks)
            if len(chunks) < PAGE_CHUNKS:
                break
        return 0

    async def read_earlier(self) -> int:
        """Double the window. Returns how many lines were added at the start."""
        limit = max(self._window_chunks, WINDOW_CHUNKS) * 2
        chunks = await self._read(-1, limit)
        await self._read_sizes()
        self._window_chunks = limit
        self.is_complete = len(chunks) < limit
        return self.text.prepend(chunks)

    async def read_to_start(self) -> int:
        """Everything before what is known. Answers as ``earlier`` does."""
        found: list[LogChunk] = []
        after = 0
        while not self.is_complete:
            chunks = await self._read(after, PAGE_CHUNKS)
            found += chunks
            if len(chunks) < PAGE_CHUNKS or chunks[-1].id >= self.text.first_id:
                break
            after = chunks[-1].id
        await self._read_sizes()
        self.is_complete = True
        return self.text.prepend(found)

    async def _read(self, after: int, limit: int) -> list[LogChunk]:
        chunks = await self._session.log(self.run_id, self.task, self.attempt, after=after, limit=limit)
        return [chunk for chunk in chunks if self.until_us is None or chunk.at <= self.until_us]

    async def _read_sizes(self) -> None:
        rows = await self._session.query(OUTPUT, run_id=self.run_id, task=self.task, attempt=self.attempt)
        if rows:
            self.output_bytes = rows[0].output_bytes if self.until_us is None else None
            self.dropped_bytes = rows[0].output_dropped_bytes
            self.text.has_dropped = bool(self.dropped_bytes)
