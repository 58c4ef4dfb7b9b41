"""Writes the stacks of this process, when the executor asks for them by a signal.

A process must not end because it is looked at. Reading the frames of Python code that runs can crash the interpreter
(CPython issues 116008, 123967, 140815: 3.13.0 at every fifth signal), so they are read between two instructions: by a
handler in Python, which holds the GIL. It does not run while the main thread is in C code that handles no signals.
Then the executor sends ``C_STACK_SIGNAL`` to that one thread, and only when it ends the attempt anyway.

The stacks are in the format of faulthandler. Behind those of the threads are those of the coroutines for which the
event loop of the main thread waits; while a step of one blocks, its frames are in the stack of the thread.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

from . import process

if TYPE_CHECKING:
    from asyncio import Task

THREADS_MAX = 100
FRAMES_MAX = 100
COROUTINES_MAX = 16

_COROUTINE_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")


def write_on_signal(stack_fd: int) -> None:
    """Write the stacks of all threads at ``STACK_SIGNAL``, and that of the thread which gets ``C_STACK_SIGNAL``."""
    signal.signal(process.STACK_SIGNAL, lambda number, frame: write(stack_fd, frame))
    faulthandler.register(process.C_STACK_SIGNAL, file=stack_fd, all_threads=False, chain=False)


def write(stack_fd: int, here: FrameType | None) -> None:
    """Write the stacks of all threads, first this one, which stands at ``here``, and of its coroutines.

    Called between any two instructions of a task: it imports nothing, and raises no error.
    """
    try:
        text = _threads(here) + _coroutines(sys.modules.get("asyncio"))
        os.write(stack_fd, text.encode("ascii", "backslashreplace"))
    except Exception:  # no memory, no stack left, or the task closed the descriptor
        return


def _threads(here: FrameType | None) -> str:
    innermost = sys._current_frames()
    own = _thread.get_ident()
    innermost.pop(own, None)
    stacks = [_stack(f"Current thread 0x{own:016x}", _callers(here))]
    stacks += [_stack(f"Thread 0x{ident:016x}", _callers(top)) for ident, top in islice(innermost.items(), THREADS_MAX)]
    return "\n".join(stacks)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _stack(head: str, frames: Iterator[FrameType]) -> str:
    return "".join([f"{head} (most recent call first):\n", *map(_line, islice(frames, FRAMES_MAX))])


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f'  File "{_printable(code.co_filename)}", line {frame.f_lineno or 0} in {_printable(code.co_name)}\n'


def _printable(name: str) -> str:
    """Escape a line break, which would begin another frame; what is not ASCII is escaped when it is written."""
    return name if name.isprintable() else name.encode("unicode_escape").decode()


def _coroutines(asyncio: ModuleType | None) -> str:
    """Return the stacks of the coroutines for which the event loop of this thread waits, if it has one."""
    try:
        loop = asyncio.get_running_loop() if asyncio is not None else None
    except RuntimeError:  # before the first step, or after the last
        return ""
    if asyncio is None or asyncio.current_task(loop) is not None:
        return ""
    tasks = sorted(asyncio.all_tasks(loop), key=_rank)[:COROUTINES_MAX]
    stacks = [(task.get_name(), list(_frames_of(task))) for task in tasks]
    return "".join(_stack(f"Coroutine {name!r}", iter(frames)) for name, frames in stacks if frames)


def _rank(task: Task[object]) -> tuple[bool, int, str]:
    """Sort tasks that wait for other tasks last, else by creation."""
    name = task.get_name()
    return _waits_for_others(task), len(name), name


def _waits_for_others(task: Task[object]) -> bool:
    innermost = next(_frames_of(task), None)
    if innermost is None:
        return False
    code, future = innermost.f_code, sys.modules["asyncio"].Future
    is_wait = code.co_name in ("wait", "_wait", "wait_for") and code.co_filename.endswith("asyncio/tasks.py")
    waiter = getattr(task, "_fut_waiter", None)
    is_gathering = isinstance(waiter, future) and type(waiter) is not future
    return is_wait or is_gathering or code.co_filename.endswith("asyncio/taskgroups.py")


def _frames_of(task: Task[object]) -> Iterator[FrameType]:
    """Return the frames of a task, innermost first."""
    found: list[FrameType] = []
    awaited: object = task.get_coro()
    while awaited is not None and len(found) < FRAMES_MAX:
        frame = next((one for name in _COROUTINE_FRAMES if (one := getattr(awaited, name, None)) is not None), None)
        if frame is None:
            break
        found.append(frame)
        awaited = next((one for name in _AWAITED if (one := getattr(awaited, name, None)) is not None), None)
    return reversed(found)
