"""What waits between the line that events come on and the screen that takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from ...engine.domain.events import Event

Batch = Sequence[Event]


class Feed:
    """Batches after ``since``, in order, none twice; how many may wait is the sender's to bound.

    An empty batch comes after signs of life, but only when everything told so far was taken: who waits for the end of
    what there is can stop at one.
    """

    def __init__(self, since: int) -> None:
        self.received = since
        self._head: int | None = None  # of the file when the feed began; None until it is known
        self._batches: deque[Batch] = deque()
        self._has_ticked = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    def begin(self, head: int) -> None:
        """The other side has begun to send; there are events up to ``head``. Fewer than we have: it will say why."""
        if head >= self.received:
            self._head = head
            self.tick()

    def put(self, batch: Batch) -> None:
        """Add what came. What was received before (after a resumed connection) is dropped."""
        if batch and batch[0].seq <= self.received:
            batch = [event for event in batch if event.seq > self.received]
        if batch:
            self.received = batch[-1].seq
            self._batches.append(batch)
            self._news.set()

    def tick(self) -> None:
        """A sign of life: lets the other end look at the status again."""
        self._has_ticked = True
        self._news.set()

    def fail(self, error: Exception) -> None:
        """End the feed: what waits is no longer worth taking."""
        self._error = self._error or error
        self._news.set()

    async def batches(self, taken: Callable[[int], None]) -> AsyncIterator[Batch]:
        """Give batches for ever; ``taken`` is told the last seq of each when the next one is asked for."""
        while True:
            while not self._error and not self._batches and not self._is_idle_tick_due():
                self._news.clear()
                await self._news.wait()
            if self._error:
                raise self._error
            if not self._batches:
                self._has_ticked = False
                yield ()
                continue
            batch = self._batches.popleft()
            yield batch
            taken(batch[-1].seq)

    def _is_idle_tick_due(self) -> bool:
        return self._has_ticked and self._head is not None and self.received >= self._head
