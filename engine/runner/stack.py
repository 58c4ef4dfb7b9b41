"""Stacks as text: what an attempt adds to the dumps of faulthandler, and how the executor reads both.

A dump of threads shows only the event loop that waits for coroutines. So the attempt writes their stacks behind it, in
the same format. That is Python code, so it runs only while the loop waits; if a step of a coroutine blocks, its frames
are in the stack of the thread.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import re
import signal
from collections.abc import Iterator
from pathlib import PurePath
from types import FrameType

from ..core.failures import fingerprint
from ..core.failures.hang import StackSummary
from . import process

TASKS_MAX = 16
FRAMES_MAX = 32

_COROUTINE_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")
_HEAD = re.compile(r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-fA-F]+)", re.MULTILINE)
_CRASH = re.compile(r"^Fatal Python error: .*?^Current thread 0x(?P<ident>[0-9a-fA-F]+)", re.MULTILINE | re.DOTALL)
_LIBRARY = re.compile(r"python3\.\d+t?|site-packages|dist-packages|")  # no package, but where packages lie
_FRAME = re.compile(r'^\s+File "(?P<path>.*)", line \d+ in ')


# --- In the executor --------------------------------------------------------------------------------------------------


def _place(frame: fingerprint.StackFrame, project_root: str | None) -> str:
    path = frame.path
    if project_root is not None and path.startswith(project_root + os.sep):
        path = path[len(project_root) + 1 :]
    return f"{path}:{frame.line} in {frame.function}"


def frames(dump: str, project_root: str | None) -> StackSummary:
    """Return the innermost user frame, the library call made there, and the position of another thread."""
    innermost = fingerprint.innermost_of_stack(dump)
    if innermost is None:
        return StackSummary()
    threads = fingerprint.threads_of_stack(dump)
    here = next(thread for thread in threads if innermost in thread)
    above = here[: here.index(innermost)]
    others = [frame for thread in threads if thread is not here for frame in thread[:1]]
    elsewhere = next((frame for frame in others if not fingerprint.is_machinery(frame.path)), None)
    return StackSummary(
        where=_place(innermost, project_root),
        call=_name(above[-1]) if above else "",
        elsewhere=None if elsewhere is None else _place(elsewhere, project_root),
    )


def _name(frame: fingerprint.StackFrame) -> str:
    """``re.match`` of "re/__init__.py in match", ``threading.join`` of "threading.py in join"."""
    path = PurePath(frame.path)
    return f"{path.stem if _LIBRARY.fullmatch(path.parent.name) else path.parent.name}.{frame.function}"


def without_engine(dump: str) -> str:
    """The dump without the frames through which the engine called the task, unless there are no others."""
    lines = list(map(fingerprint.decode_frame, dump.splitlines()))
    own = [line for line in lines if not _is_engine_frame(line)]
    shown = own if any(map(_FRAME.match, own)) else lines
    return "".join(f"{line}\n" for line in shown)


def _is_engine_frame(line: str) -> bool:
    frame = _FRAME.match(line)
    return frame is not None and (frame["path"] == "<frozen runpy>" or fingerprint.is_engine_path(frame["path"]))


def of_thread(dump: str, ident: int) -> str:
    """Return the part of a dump that shows one thread; the whole dump if the thread is not in it."""
    heads = list(_HEAD.finditer(dump))
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        if int(head["ident"], 16) == ident:
            return dump[head.start() : following.start() if following else len(dump)].rstrip() + "\n"
    return dump


def crashed_thread(dump: str) -> int | None:
    """Return the thread that was running when the process crashed; None if the dump shows no crash."""
    crash = _CRASH.search(dump)
    return None if crash is None else int(crash["ident"], 16)


# --- In an attempt ----------------------------------------------------------------------------------------------------


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
    innermost = next(_frames_of(task), None)
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
        for frame in _frames_of(task)
    ]
    return f"Coroutine {task.get_name()!r} (most recent call first):\n{''.join(lines)}" if lines else ""


def _frames_of(task: asyncio.Task[object]) -> Iterator[FrameType]:
    """Yield the frames of a task, innermost first."""
    found: list[FrameType] = []
    awaited: object = task.get_coro()
    while awaited is not None and len(found) < FRAMES_MAX:
        frame = next((one for name in _COROUTINE_FRAMES if (one := getattr(awaited, name, None)) is not None), None)
        if frame is None:
            break
        found.append(frame)
        awaited = next((one for name in _AWAITED if (one := getattr(awaited, name, None)) is not None), None)
    return reversed(found)
