"""Bounds for what an attempt reports: output that is not stored yet, and retries inside it.

However fast a task prints or retries, and however slow the disk is, the memory of the executor and the state file grow
within limits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..domain.event_payloads import AttemptRetry

HEAD_CHARACTERS = 4 * 1024 * 1024  # more between two writes is dropped, behind what came first
TAIL_CHARACTERS = 256 * 1024
FULL_RATE_COUNT = 100
INTERVAL_SECONDS = 1.0


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


class RetrySampler:
    """Passes the first FULL_RATE_COUNT retries, then one every INTERVAL_SECONDS.

    ``untold`` of a passed retry: the number of suppressed retries since the previous one.
    """

    def __init__(self) -> None:
        self._emitted = 0
        self._emitted_at = 0.0
        self._suppressed = 0
        self._latest: AttemptRetry | None = None

    def sample(self, retry: AttemptRetry, now: float) -> AttemptRetry | None:
        """Return the retry to emit; None: suppressed. ``now``: seconds on the monotonic clock."""
        if self._emitted >= FULL_RATE_COUNT and now - self._emitted_at < INTERVAL_SECONDS:
            self._suppressed += 1
            self._latest = retry
            return None
        suppressed, self._suppressed, self._latest = self._suppressed, 0, None
        self._emitted, self._emitted_at = self._emitted + 1, now
        return retry._replace(untold=suppressed) if suppressed else retry

    def flush(self) -> AttemptRetry | None:
        """Return the last retry if it was suppressed; called at the end of the attempt."""
        if self._latest is None:
            return None
        latest, self._latest = self._latest, None
        return latest._replace(untold=self._suppressed - 1) if self._suppressed > 1 else latest
