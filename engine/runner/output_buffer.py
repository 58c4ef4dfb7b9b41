"""Output of attempts that is not stored yet: bounded, however fast tasks print or however slow the disk is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

HEAD_CHARACTERS = 4 * 1024 * 1024  # more between two writes is dropped, behind what came first
TAIL_CHARACTERS = 256 * 1024


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of output: ``head``, then ``dropped_bytes`` that were discarded, then ``tail``."""

    head: str = ""
    dropped_bytes: int = 0
    tail: str = ""

    def __bool__(self) -> bool:
        return bool(self.head)


class OutputBuffer:
    """Keeps the head and the tail of the appended output until it is drained."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_characters = 0
        self._tail_characters = 0
        self._dropped_bytes = 0

    @property
    def characters(self) -> int:
        return self._head_characters + self._tail_characters

    def append(self, text: str) -> None:
        """Append output; above the limits, drop the oldest output behind the head."""
        if self._head_characters < HEAD_CHARACTERS:
            self._head.append(text)
            self._head_characters += len(text)
            return
        self._tail.append(text)
        self._tail_characters += len(text)
        while self._tail_characters - len(self._tail[0]) >= TAIL_CHARACTERS:
            oldest = self._tail.popleft()
            self._tail_characters -= len(oldest)
            self._dropped_bytes += len(oldest.encode("utf-8", "replace"))

    def drain(self) -> OutputChunk:
        """Return the buffered output and clear the buffer."""
        chunk = OutputChunk("".join(self._head), self._dropped_bytes, "".join(self._tail))
        self._head.clear()
        self._tail.clear()
        self._head_characters = self._tail_characters = self._dropped_bytes = 0
        return chunk
