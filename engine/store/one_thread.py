"""A thread that does one piece of work after another, and calls back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from ..errors import StorageError

T = TypeVar("T")
OnDone = Callable[[Any, BaseException | None], None]  # the result, or the exception


class WorkThread(Protocol):
    """What runs the work of a writer: a thread, or in a played night the caller."""

    def start(self, work: Callable[[], object], on_done: OnDone, *, is_batch: bool = False) -> None:
        """Do ``work`` after all that was started before, and call ``on_done`` in the same thread.

        ``is_batch``: the work is a transaction of the writer.
        """

    def close(self) -> None:
        """End after all that was started."""


class OneThread:
    """A ``WorkThread`` without futures, locks and conditions: with ``ThreadPoolExecutor`` a commit costs 5 % more.

    The thread runs already when the constructor returns: once tasks run, the machine may have no thread left. Raises
    StorageError if it has none now.
    """

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], object], OnDone] | None] = SimpleQueue()
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except RuntimeError as error:
            raise StorageError(
                f"the state file cannot be written: {error}; raise the limit of memory or processes"
            ) from None

    def start(self, work: Callable[[], object], on_done: OnDone, *, is_batch: bool = False) -> None:
        """See ``WorkThread``."""
        self._queue.put((work, on_done))

    def close(self) -> None:
        """See ``WorkThread``."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            _do(*item)
            del item  # what it holds may be large


def _do(work: Callable[[], object], on_done: OnDone) -> None:
    try:
        result = work()
    except BaseException as error:
        on_done(None, error)
    else:
        on_done(result, None)


def call_in_loop(
    loop: asyncio.AbstractEventLoop, callback: OnDone, result: object, error: BaseException | None
) -> None:
    """Call ``callback(result, error)`` in the loop, from another thread; if it is closed, nobody waits for the call."""
    try:
        loop.call_soon_threadsafe(callback, result, error)
    except RuntimeError:
        if not loop.is_closed():
            raise


def run_in(thread: WorkThread, work: Callable[[], T], loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
    """Do ``work`` in the thread; the future has its result."""
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T, error: BaseException | None) -> None:
        if future.done():  # cancelled
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    thread.start(work, lambda result, error: call_in_loop(loop, settle, result, error))
    return future
