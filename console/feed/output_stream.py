"""The output of one attempt as lines, each once; only the unfinished line is kept in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from ...engine.statefile.changes.log_rows import LogChunk
from ...engine.statefile.list_rows import OUTPUT
from ..model.log import LineAssembler
from ..sessions.session import Session

PAGE_CHUNKS = 500


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line without control characters. ``dropped_bytes``: the line stands for so much output that was dropped."""

    at: int  # microseconds UTC
    text: str = ""
    dropped_bytes: int = 0


class OutputStream:
    """Reads new output of one attempt. All reads may raise RedriveError."""

    def __init__(self, session: Session, run_id: str, task: str, attempt: int) -> None:
        self.run_id = run_id
        self.task = task
        self.attempt = attempt
        self._session = session
        self._assembler = LineAssembler()
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
