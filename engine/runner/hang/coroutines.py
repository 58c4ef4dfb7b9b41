"""Stacks of the coroutines of an attempt: a dump of its threads shows only the event loop that waits for them.

They are written to the stack pipe in the format of faulthandler, after its dump. This is Python code, so it runs only
while the loop waits; if a step of a coroutine blocks, its frames are in the stack of the thread.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
from collections.abc import Iterator
from types import FrameType

from .. import process

TASKS_MAX = 16
FRAMES_MAX = 32

_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")


def dump_coroutines_on_signal(stack_fd: int) -> None:
    """Extend the handler of the stack signal: also dump coroutines."""
    faulthandler.unregister(process.STACK_SIGNAL)
    signal.signal(process.STACK_SIGNAL, lambda number, frame: _write(stack_fd))
    faulthandler.register(process.STACK_SIGNAL, file=stack_fd, all_threads=True, chain=True)


def _write(stack_fd: int) -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return  # before the first step, or after the last
    if asyncio.current_task(loop) is not None:
        return
    text = "".join(_dump(task) for task in sorted(asyncio.all_tasks(loop), key=_rank)[:TASKS_MAX])
    try:
        os.write(stack_fd, text.encode("utf-8", "backslashreplace"))
    except OSError:
        return  # the task closed the descriptor


def _rank(task: asyncio.Task[object]) -> tuple[bool, int, str]:
    """Sort tasks that wait for other tasks last, else by creation."""
    name = task.get_name()
    return _waits_for_others(task), len(name), name


def _waits_for_others(task: asyncio.Task[object]) -> bool:
    innermost = next(_frames(task), None)
    if innermost is None:
        return False
    code = innermost.f_code
    is_wait = code.co_name in ("wait", "_wait", "wait_for") and code.co_filename.endswith("asyncio/tasks.py")
    waiter = getattr(task, "_fut_waiter", None)
    is_gathering = isinstance(waiter, asyncio.Future) and type(waiter) is not asyncio.Future
    return is_wait or is_gathering or code.co_filename.endswith("asyncio/taskgroups.py")


def _dump(task: asyncio.Task[object]) -> str:
    lines = [
        f'  File "{frame.f_code.co_filename}", line {frame.f_lineno} in {frame.f_code.co_name}\n'
        for frame in _frames(task)
    ]
    return f"Coroutine {task.get_name()!r} (most recent call first):\n{''.join(lines)}" if lines else ""


def _frames(task: asyncio.Task[object]) -> Iterator[FrameType]:
    """Yield the frames of a task, innermost first."""
    found: list[FrameType] = []
    awaited: object = task.get_coro()
    while awaited is not None and len(found) < FRAMES_MAX:
        frame = next((one for name in _FRAMES if (one := getattr(awaited, name, None)) is not None), None)
        if frame is None:
            break
        found.append(frame)
        awaited = next((one for name in _AWAITED if (one := getattr(awaited, name, None)) is not None), None)
    return reversed(found)
