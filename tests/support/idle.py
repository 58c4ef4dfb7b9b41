"""The idleness of a Textual application, by its event loop, whose clock is set ahead to the next timer."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from redrive.console.screens.console import Debouncer, Refresher
from textual.app import App
from textual.message_pump import MessagePump
from textual.pilot import Pilot
from textual.screen import Screen
from textual.worker import WorkerCancelled

_TURNS = 3  # of the loop in a row with nothing to do: what one future starts, the next turn sees
_SOON_SECONDS = 0.03  # a repaint, or the size of a window that has changed, comes after a sixtieth of a second
_AHEAD_SECONDS = 1.0  # the farthest timer to which a clock is set
_TICK_SECONDS = 0.002  # between two questions whether a batch has ended
_ROUNDS = 3  # of timers, each with those that the last one has set; what ticks for ever is no work


def is_settled(screen: Screen[Any]) -> bool:
    """Whether nothing is about to be read or shown: no timer waits for the cursor to rest, and no read is due."""
    parts = [part for widget in screen.walk_children(with_self=True) for part in vars(widget).values()]
    return not any(
        part.is_waiting if isinstance(part, Debouncer) else part._timer is not None or part._reading
        for part in parts
        if isinstance(part, (Debouncer, Refresher))
    )


async def wait_for_workers(app: App[Any]) -> None:
    """Until each has ended, or has been cancelled by a newer one of its group."""
    for worker in list(app.workers):
        with suppress(WorkerCancelled):
            await worker.wait()


async def wait_for_idle_loop(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    """In the place of ``textual._wait.wait_for_idle``, which sleeps until the process takes little processor time: for
    20 ms at the least, and for a second where the machine is busy."""
    loop: Any = asyncio.get_running_loop()
    await _wait_for_turns(loop)
    for _ in range(_ROUNDS):
        soon = _timers_within(loop, _SOON_SECONDS)
        if not soon:
            return
        _set_clock_ahead(loop, soon[-1])
        await _wait_for_turns(loop)


async def pass_time(pilot: Pilot[Any]) -> None:
    """Let the next timer be due, unless a worker has to end before."""
    loop: Any = asyncio.get_running_loop()
    timers = _timers_within(loop, _AHEAD_SECONDS)
    if timers and not list(pilot.app.workers):
        _set_clock_ahead(loop, timers[0])
        await pilot.pause()
    else:
        await pilot.pause(_TICK_SECONDS)


def _timers_within(loop: Any, seconds: float) -> list[float]:
    """When timers are due, by the clock of the loop, the first one first."""
    until = loop.time() + seconds
    return sorted(timer.when() for timer in loop._scheduled if not timer.cancelled() and timer.when() < until)


class _Clock:
    """The clock of a loop in which nothing else is left to do until a timer is due."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_seconds


def _set_clock_ahead(loop: Any, when: float) -> None:
    if not isinstance(loop.time, _Clock):
        loop.time = _Clock()
    loop.time.ahead_seconds += max(0.0, when - loop.time())


def loop_time() -> float:
    """In the place of ``textual._time.get_time``: the time by which the timers of the running loop are due."""
    loop = asyncio._get_running_loop()
    return time.monotonic() if loop is None else loop.time()


_send_to_each_widget = Pilot._wait_for_screen


async def wait_for_screen_by_the_loop(pilot: Pilot[Any]) -> bool:
    """In the place of ``Pilot._wait_for_screen``, which sends a message to each widget of the screen, several times for
    each key: half of the messages of a test. Here a widget gets one only if it waits for anything else than its next
    message, as a handler does that awaits a thread. Textual paints nothing for 50 ms after a change of the top level,
    in a batch: what a key pressed then does is painted when the batch ends."""
    loop = asyncio.get_running_loop()
    await _wait_for_turns(loop)
    app = pilot.app
    while app._batch_count and app._exception is None and not app._exit:  # an app that leaves ends no batch
        await asyncio.sleep(_TICK_SECONDS)
        await _wait_for_turns(loop)
    if app._exception is None and all(map(_awaits_message, [app, *app.screen.walk_children(with_self=True)])):
        return True
    return await _send_to_each_widget(pilot)


def _awaits_message(pump: MessagePump) -> bool:
    return bool(pump._message_queue.ready_event._waiters)


async def _wait_for_turns(loop: Any) -> None:
    idle = 0
    while idle < _TURNS:
        await asyncio.sleep(0)
        idle = 0 if loop._ready else idle + 1
