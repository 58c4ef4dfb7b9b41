"""The log of one attempt as far as it has been read: its end first, more on demand. Nothing is read unasked."""

from __future__ import annotations

from ...engine.statefile.queries import OUTPUT
from ..model.log import BURST_BYTES, LogText
from ..sessions.session import LogChunk, Session

WINDOW_CHUNKS = 64  # the end of a log, to begin with
PAGE_CHUNKS = 500
_PAGES_MAX = 20  # of one look; what is more comes with the next


class AttemptLog:
    """One attempt's. All reading may raise RedriveError.

    Attributes:
        text: what has been read.
        whole: whether everything from the beginning on has been read.
        over: whether its end was read after the attempt had ended: there will be no more of it.
        written, dropped: bytes, as the engine counts them; None as long as it was not asked.
        until: what was written later (microseconds UTC) is left out; None: nothing is.
    """

    def __init__(self, session: Session, run_id: str, task: str, attempt: int, until: int | None = None) -> None:
        self.task = task
        self.attempt = attempt
        self.text = LogText()
        self.begun = False
        self.whole = False
        self.over = False
        self.written: int | None = None
        self.dropped: int | None = None
        self.until = until
        self._session = session
        self.run_id = run_id
        self._chunks = 0  # of the window that was read last

    def reaches(self, until: int | None) -> bool:
        """Move on to a later moment. False: it is an earlier one, or the present, and this has lines that are not."""
        if (until is None) != (self.until is None) or (until or 0) < (self.until or 0):
            return False
        if until != self.until:
            self.until, self.over = until, False
        return True

    async def go_on(self) -> int:
        """What is new; the first time, the end. Answers with the first line that is not as before."""
        if not self.begun:
            return await self._begin()
        first = len(self.text.lines)
        for _ in range(_PAGES_MAX):
            chunks = await self._read(self.text.last_id, PAGE_CHUNKS)
            if not chunks:
                break
            await self._measure()
            size = sum(len(chunk.text) for chunk in chunks)
            burst = bool(self.dropped) and chunks[0].tail and size > BURST_BYTES
            first = min(first, self.text.append(chunks, burst))
            if len(chunks) < PAGE_CHUNKS:
                break
        return first

    async def _begin(self) -> int:
        if self.until is not None:
            return await self._begin_before()
        chunks = await self._read(-1, WINDOW_CHUNKS)
        await self._measure()
        self.begun = True
        self._chunks = len(chunks)
        self.whole = len(chunks) < WINDOW_CHUNKS
        return self.text.append(chunks)

    async def _begin_before(self) -> int:
        """From the beginning: where the moment lies in it is not known, and its end would tell of later."""
        await self._measure()
        self.begun = self.whole = True
        while chunks := await self._read(self.text.last_id, PAGE_CHUNKS):
            self.text.append(chunks)
            if len(chunks) < PAGE_CHUNKS:
                break
        return 0

    async def earlier(self) -> int:
        """Twice as much as before. Answers with how many lines stand in front of those that were known."""
        limit = max(self._chunks, WINDOW_CHUNKS) * 2
        chunks = await self._read(-1, limit)
        await self._measure()
        self._chunks = limit
        self.whole = len(chunks) < limit
        return self.text.prepend(chunks)

    async def rest(self) -> int:
        """Everything before what is known. Answers as ``earlier`` does."""
        found: list[LogChunk] = []
        after = 0
        while not self.whole:
            chunks = await self._read(after, PAGE_CHUNKS)
            found += chunks
            if len(chunks) < PAGE_CHUNKS or chunks[-1].id >= self.text.first_id:
                break
            after = chunks[-1].id
        await self._measure()
        self.whole = True
        return self.text.prepend(found)

    async def _read(self, after: int, limit: int) -> list[LogChunk]:
        chunks = await self._session.log(self.run_id, self.task, self.attempt, after=after, limit=limit)
        return [chunk for chunk in chunks if self.until is None or chunk.at <= self.until]

    async def _measure(self) -> None:
        rows = await self._session.query(OUTPUT, run_id=self.run_id, task=self.task, attempt=self.attempt)
        if rows:
            self.written = rows[0].output_bytes if self.until is None else None
            self.dropped = rows[0].output_dropped_bytes
            self.text.dropped = bool(self.dropped)
