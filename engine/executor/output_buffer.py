"""What attempts printed and the file does not hold yet: bounded, however fast they print or slow the disk is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..statefile.changes import logs

HEAD_CHARACTERS = 2 * logs.HEAD_BYTES  # all of it while it is short, and the head of the log in any case
TAIL_CHARACTERS = logs.TAIL_BYTES  # more than the log would keep


@dataclass(frozen=True, slots=True)
class Printed:
    """A piece of output: ``text``, then ``dropped`` bytes that nobody kept, then ``rest``."""

    text: str = ""
    dropped: int = 0
    rest: str = ""

    def __bool__(self) -> bool:
        return bool(self.text)


class Unwritten:
    """Keeps the first and the last of what is added until it is taken."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._head_characters = 0
        self._tail_characters = 0
        self._dropped = 0

    @property
    def characters(self) -> int:
        """How much there is to be taken."""
        return self._head_characters + self._tail_characters

    def add(self, text: str) -> None:
        """Take more output; what is too much goes from between the first and the last."""
        if self._head_characters < HEAD_CHARACTERS:
            self._head.append(text)
            self._head_characters += len(text)
            return
        self._tail.append(text)
        self._tail_characters += len(text)
        while self._tail_characters - len(self._tail[0]) >= TAIL_CHARACTERS:
            oldest = self._tail.popleft()
            self._tail_characters -= len(oldest)
            self._dropped += len(oldest.encode("utf-8", "replace"))

    def take(self) -> Printed:
        """All that is there, once."""
        printed = Printed("".join(self._head), self._dropped, "".join(self._tail))
        self._head.clear()
        self._tail.clear()
        self._head_characters = self._tail_characters = self._dropped = 0
        return printed
