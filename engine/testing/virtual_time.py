"""Virtual time: an event loop whose time passes only while it would wait, its clock, and a writer without a thread."""

from __future__ import annotations

import asyncio
import random
import selectors
import sqlite3
from collections.abc import Callable
from typing import Any, Protocol

from ..store.one_thread import OnDone


class Crash(SystemExit):
    """The executor dies at this instant. SystemExit is what an event loop lets pass through its callbacks."""


class Stuck(Exception):
    """Nothing is ready and no timer is armed: the loop would wait for ever."""


class Elapsed(Protocol):
    """Holds the seconds that have passed."""

    seconds: float


class _TimeSelector(selectors.BaseSelector):
    """Keeps the registered descriptors, which are never ready, and passes the time that it is told to wait."""

    def __init__(self, time: Elapsed) -> None:
        self._time = time
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, -1, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is ready, and no timer is armed")
        if timeout > 0:
            self._time.seconds += timeout
        return []

    def get_map(self) -> Any:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to its next timer. It has one thread: work for another one is done at once."""

    def __init__(self, elapsed: Elapsed, on_error: Callable[[dict[str, Any]], None]) -> None:
        self._elapsed = elapsed
        self._on_error = on_error
        self._unix_servers: list[asyncio.Server] = []
        self._is_abandoned = False
        super().__init__(_TimeSelector(elapsed))

    def time(self) -> float:
        return self._elapsed.seconds

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def create_unix_server(self, *args: Any, **options: Any) -> asyncio.Server:
        server = await super().create_unix_server(*args, **options)
        self._unix_servers.append(server)
        return server

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._is_abandoned:
            super().call_exception_handler(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(context)

    def abandon(self) -> None:
        """Drop what an executor that died left in the loop: no line of it runs on."""
        self._is_abandoned = True
        for server in self._unix_servers:
            server.close()
        for task in asyncio.all_tasks(self):
            coroutine: Any = task.get_coro()
            for _ in range(50):
                try:
                    coroutine.close()
                    break
                except BaseException:  # a finally block that awaits, or that misses its loop
                    continue


class VirtualClock:
    """The clock of a night, which its loops advance one after another. ``step`` sets the wall clock."""

    def __init__(self, seed: object, start_us: int) -> None:
        self._start_us = start_us
        self.seconds = 0.0  # since the night began, on no wall clock
        self._stepped_us = 0
        self._dice = random.Random(f"{seed}:clock")

    def monotonic(self) -> float:
        return self.seconds

    def now_us(self) -> int:
        return self._start_us + self._stepped_us + round(self.seconds * 1e6)

    def uniform(self, low: float, high: float) -> float:
        return self._dice.uniform(low, high)

    def step(self, seconds: float) -> None:
        self._stepped_us += round(seconds * 1e6)


class PlayedWriter:
    """Runs the work of a writer at once, as its thread would, and reports each batch after ``delay_seconds()``.

    ``refuses()``: the disk is full at this batch. ``before_batch``, ``after_batch`` may end the executor.
    """

    def __init__(self) -> None:
        self.refuses: Callable[[], bool] = lambda: False
        self.before_batch: Callable[[], None] = _do_nothing
        self.after_batch: Callable[[], None] = _do_nothing
        self.delay_seconds: Callable[[], float] = lambda: 0.0
        self._loop: VirtualLoop | None = None

    def start(self, work: Callable[[], object], on_done: OnDone, *, is_batch: bool = False) -> None:
        """See ``WorkThread``."""
        if self._loop is None:
            return
        if not is_batch:
            on_done(*_done(work))
            return
        self.before_batch()
        done = (None, _disk_full()) if self.refuses() else _done(work)
        self.after_batch()
        self._loop.call_later(self.delay_seconds(), on_done, *done)

    def use(self, loop: VirtualLoop | None) -> None:
        """Work in a loop from now on. None: the executor is dead, and nothing is done any more."""
        self._loop = loop

    def close(self) -> None:
        """There is no thread."""


def _do_nothing() -> None:
    pass


def _disk_full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def _done(work: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Do the work, and return its result or its exception."""
    try:
        return work(), None
    except Exception as error:
        return None, error
