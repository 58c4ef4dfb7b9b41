"""Virtual time: an event loop that jumps to its next timer, its clock, and a writer thread that can crash."""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from redrive.engine.store.one_thread import OnDone

START_US = 1_790_000_000_000_000  # 2026-09-21 in microseconds UTC
LATER_STARTS_US = (2_147_483_617_000_000, 4_102_444_770_000_000)  # half a minute before 2**31 seconds, and before 2100


class Crash(SystemExit):
    """The executor dies at this instant. SystemExit is what an event loop lets pass through its callbacks."""


class Stuck(Exception):
    """Nothing is ready and no timer is armed: the loop would wait for ever."""


class _NoDescriptors(selectors.BaseSelector):
    """Keeps the list of registered descriptors, which are never ready."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, -1, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def get_map(self) -> Any:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while it would wait, and then jumps to the next timer."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]  # TimerHandle, with its private fields
    _clock_resolution: float
    _timer_cancelled_count: int

    def __init__(self, now: float, on_error: Callable[[dict[str, Any]], None]) -> None:
        self._on_error = on_error
        self.now = now
        super().__init__(_NoDescriptors())

    def _run_once(self) -> None:
        """Do what asyncio's loop does, but wait for nothing: this method runs 400 times a night."""
        scheduled, ready = self._scheduled, self._ready
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if not ready:
            if not scheduled:
                raise Stuck("nothing is ready, and no timer is armed")
            self.now += max(0.0, scheduled[0]._when - self.now)
        end = self.now + self._clock_resolution
        while scheduled and scheduled[0]._when < end:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def time(self) -> float:
        return self.now

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self._on_error(context)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)  # there is one thread, and no one to be woken


class VirtualClock:
    """The clock of a night, over the loops of all of its executors. ``step`` sets the wall clock."""

    def __init__(self, seed: int, start_us: int = START_US) -> None:
        self._start_us = start_us
        self.seconds = 0.0  # while no loop runs
        self.loop: VirtualLoop | None = None
        self._stepped_us = 0
        self._dice = random.Random(f"{seed}:clock")

    def monotonic(self) -> float:
        return self.seconds if self.loop is None else self.loop.now

    def now_us(self) -> int:
        return self._start_us + self._stepped_us + round(self.monotonic() * 1e6)

    def uniform(self, low: float, high: float) -> float:
        return self._dice.uniform(low, high)

    def step(self, seconds: float) -> None:
        self._stepped_us += round(seconds * 1e6)


class WriterThread:
    """Runs the batches of the writer at once, and reports each after a drawn delay.

    It counts the batches of a night: at those of ``crashes`` the executor dies, before the COMMIT or after it; those of
    ``refusals`` find the disk full.
    """

    def __init__(self, crashes: Iterable[tuple[int, bool]], refusals: Iterable[int], dice: random.Random) -> None:
        self.loop: VirtualLoop | None = None
        self.batches = 0
        self.after_commit: Callable[[sqlite3.Connection], None] = lambda connection: None
        self.is_dead = False
        self._crashes = dict(crashes)
        self._refusals = set(refusals)
        self._dice = dice
        self._connection: sqlite3.Connection | None = None

    def start(self, work: Callable[[], object], on_done: OnDone) -> None:
        if self.is_dead:
            return
        if not isinstance(work, partial) or work.func.__name__ != "_write":
            on_done(*_done(work))
            return
        self._connection = work.func.__self__._connection  # type: ignore[attr-defined]
        self.batches += 1
        is_committed = self._crashes.get(self.batches)
        if is_committed is False:
            raise Crash(f"before commit {self.batches}")
        if self.batches in self._refusals:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            done: tuple[object, BaseException | None] = None, error
        else:
            done = _done(work)
            self.after_commit(self._connection)
        if is_committed:
            raise Crash(f"after commit {self.batches}")
        assert self.loop is not None
        self.loop.call_later(self._dice.choice((0.0, 0.0, 0.001, 0.02)), on_done, *done)

    def drop(self) -> None:
        """Die: run nothing any more, and lose the file descriptors."""
        self.is_dead = True
        if self._connection is not None:
            self._connection.close()  # an open transaction is lost

    def restart(self, loop: VirtualLoop) -> None:
        self.loop, self.is_dead, self._connection = loop, False, None

    def close(self) -> None:
        """There is no thread."""


def _done(work: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Do the work, and return its result or its exception."""
    try:
        return work(), None
    except Exception as error:
        return None, error
