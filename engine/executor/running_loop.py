"""Runs a coroutine to its end, also for a caller whose thread runs an event loop (a notebook)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


def run_to_end(coroutine: Coroutine[object, object, T], stop: Callable[[], None]) -> T:
    """Do what ``asyncio.run`` does; if a loop runs here, in a thread with a loop of its own.

    ``stop``: called in that thread on Ctrl-C; the coroutine then has to end.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    loop = asyncio.new_event_loop()

    def run() -> T:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(coroutine)

    with ThreadPoolExecutor(1, "redrive-executor") as pool:
        ended = pool.submit(run)
        try:
            return ended.result()
        except KeyboardInterrupt:
            with suppress(RuntimeError):  # the loop ended first
                loop.call_soon_threadsafe(stop)
            raise
