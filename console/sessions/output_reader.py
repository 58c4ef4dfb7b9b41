"""The output of one attempt as lines, each once; only the unfinished line is kept in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from ...engine.statefile.lists import OUTPUT
from ...engine.statefile.logs import LogChunk
from ..model.log import LineAssembler
from .session import Session, log_query, rows_query

#: Of a log that is printed: a page costs a round trip; and its end, where that is enough.
_PAGE = {"limit": 50_000, "most": 2 * 1024 * 1024}
_END = {"after": -1, "limit": 500}


class OutputLine(msgspec.Struct, frozen=True):
    """A line of output. ``dropped_bytes``: the number of bytes that were dropped, for which it stands."""

    at: int  # microseconds UTC
    text: str = ""
    dropped_bytes: int = 0


class OutputReader:
    """Reads new output of one attempt. All reads may raise RedriveError.

    ``assembler``: None: lines of which a long one becomes several. ``tail``: at least so many lines at the end are
    wanted; None: all.
    """

    def __init__(
        self,
        session: Session,
        run_id: str,
        task: str,
        attempt: int,
        assembler: LineAssembler | None = None,
        *,
        tail: int | None = None,
    ) -> None:
        self.run_id = run_id
        self.task = task
        self.attempt = attempt
        self._session = session
        self._tail = tail
        self._assembler = assembler or LineAssembler()
        self._last_id = 0
        self._last_at = 0
        self._read_bytes = 0
        self._dropped_bytes = 0  # that a line has stood for

    def prefetch(self) -> None:
        """Ask what ``read_new`` reads first: of several streams in one round trip."""
        size = rows_query(OUTPUT, run_id=self.run_id, task=self.task, attempt=self.attempt)
        first = {"after": 0, **_PAGE} if self._tail is None else _END
        self._session.prefetch([size, log_query(self.run_id, self.task, self.attempt, **first)])

    async def read_new(self, is_ended: bool) -> AsyncIterator[OutputLine]:
        """Yield the lines that were written since the last call. ``is_ended``: nothing is written any more."""
        # The size first: output that is written between the two reads is not mistaken for dropped output.
        size, last_id = await self._size()
        chunks = await self._end(size)
        while chunks or (
            (last_id is None or self._last_id < last_id)
            and (chunks := await self._session.log(self.run_id, self.task, self.attempt, after=self._last_id, **_PAGE))
        ):
            for chunk in chunks:
                for line in self._lines_of(chunk, size):
                    yield line
            chunks = ()
        if (missing := size - self._read_bytes - self._dropped_bytes) > 0:
            for line in self._gap(self._last_at, missing):
                yield line
        if is_ended:
            for text in self._assembler.close():
                yield OutputLine(self._last_at, text)

    async def _end(self, size: int) -> Sequence[LogChunk]:
        """The first time, the last chunks: nothing if they have not all lines that are wanted."""
        tail, self._tail = self._tail, None
        chunks = () if tail is None else await self._session.log(self.run_id, self.task, self.attempt, **_END)
        if tail is None or sum(chunk.text.count("\n") for chunk in chunks) <= tail:
            return ()
        self._read_bytes = max(size - sum(len(_encoded(chunk)) + chunk.dropped for chunk in chunks), 0)
        return chunks

    async def _size(self) -> tuple[int, int | None]:
        rows = await self._session.rows(OUTPUT, run_id=self.run_id, task=self.task, attempt=self.attempt)
        return (rows[0].output_bytes, rows[0].last_id) if rows else (0, None)

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
