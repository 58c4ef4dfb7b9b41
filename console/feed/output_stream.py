"""The output of one attempt as lines, each once; only the unfinished line is kept in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...engine.statefile.list_rows import OUTPUT
from ..model.log import LineAssembler
from ..sessions.session import LogChunk, Session

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

    async def read_new(self, is_ended: bool) -> list[OutputLine]:
        """The lines that were written since the last call. ``is_ended``: nothing is written any more."""
        # The size first: output that is written between the two reads is not mistaken for dropped output.
        size = await self._size()
        chunks = await self._chunks()
        missing = size - self._read_bytes - sum(len(_encoded(chunk)) for chunk in chunks) - self._dropped_bytes
        lines = list(self._lines_of(chunks, max(missing, 0)))
        if is_ended:
            lines += [OutputLine(self._last_at, text) for text in self._assembler.close()]
        return lines

    async def _size(self) -> int:
        rows = await self._session.query(OUTPUT, run_id=self.run_id, task=self.task, attempt=self.attempt)
        return rows[0].output_bytes if rows else 0

    async def _chunks(self) -> list[LogChunk]:
        found: list[LogChunk] = []
        after = self._last_id
        while page := await self._session.log(self.run_id, self.task, self.attempt, after=after, limit=PAGE_CHUNKS):
            found += page
            after = page[-1].id
        return found

    def _lines_of(self, chunks: Sequence[LogChunk], missing: int) -> Iterator[OutputLine]:
        """Lines of new chunks. The missing output lies before the chunks that tell of it, or after all chunks."""
        for chunk in chunks:
            if chunk.dropped and missing:
                # What was read before it was dropped is not missing.
                gap = min(chunk.dropped, missing)
                yield from self._gap(chunk.at, gap)
                missing -= gap
            self._last_id, self._last_at = chunk.id, chunk.at
            self._read_bytes += len(_encoded(chunk))
            for text in self._assembler.append(chunk.text):
                yield OutputLine(chunk.at, text)
        if missing:
            yield from self._gap(self._last_at, missing)

    def _gap(self, at: int, missing: int) -> Iterator[OutputLine]:
        self._dropped_bytes += missing
        for text in self._assembler.close():
            yield OutputLine(at, text)
        yield OutputLine(at, dropped_bytes=missing)


def _encoded(chunk: LogChunk) -> bytes:
    return chunk.text.encode("utf-8", "replace")
