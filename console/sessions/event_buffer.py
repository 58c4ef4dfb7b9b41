"""A buffer of event batches between the connection and the screen."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from ...engine.domain.events import Event

Batch = Sequence[Event]


class EventBuffer:
    """Batches of events after ``since``, in order, each event once. The sender limits the number of waiting batches.

    An empty batch follows a heartbeat, but only when all earlier batches were consumed: it marks the end of the
    events that exist.
    """

    def __init__(self, since: int) -> None:
        self.received = since
        self._head: int | None = None  # the latest event when following started; None until known
        self._batches: deque[Batch] = deque()
        self._has_heartbeat = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def start(self, head: int) -> None:
        """Handle the start of the stream. ``head``: the latest event; if it is older than ours, a reset follows."""
        if head >= self.received:
            self._head = head
            self.tick()

    def append(self, batch: Batch) -> None:
        """Append a batch. Events that were received before a reconnection are dropped."""
        if batch and batch[0].seq <= self.received:
            batch = [event for event in batch if event.seq > self.received]
        if batch:
            self.received = batch[-1].seq
            self._batches.append(batch)
            self._changed.set()

    def tick(self) -> None:
        """Handle a heartbeat: wake the consumer, which polls the status."""
        self._has_heartbeat = True
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """End the stream with an error; waiting batches are discarded."""
        self._error = self._error or error
        self._changed.set()

    async def batches(self, acknowledge: Callable[[int], None]) -> AsyncIterator[Batch]:
        """Yield batches without end; when the next one is requested, ``acknowledge`` gets the last seq of a batch."""
        while True:
            while not self._error and not self._batches and not self._is_empty_batch_due():
                self._changed.clear()
                await self._changed.wait()
            if self._error:
                raise self._error
            if not self._batches:
                self._has_heartbeat = False
                yield ()
                continue
            batch = self._batches.popleft()
            yield batch
            acknowledge(batch[-1].seq)

    def _is_empty_batch_due(self) -> bool:
        return self._has_heartbeat and self._head is not None and self.received >= self._head
