"""Native frames of a process that hangs, from ``py-spy`` where it is on the PATH.

faulthandler shows the line of Python that called C code, also of C code that holds the GIL, but not what that code
does; and nothing of a program that is no task of Python. py-spy stops the process for a moment with ptrace. Where that
is not permitted, where it fails or takes too long, there are no native frames, and nothing else changes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import PurePath

from ..core.failures.fingerprint import is_engine_path
from ..core.failures.hang import NativeFrame, NativeStack
from .autopsy import LINE_CHARACTERS, Subject, flat, processes_of

NATIVE_SECONDS = 1.5  # before the other inspection: py-spy reads the symbols of all libraries
OUTPUT_BYTES_MAX = 4_000_000
FRAMES_MAX = 24


def find_py_spy() -> str | None:
    """The path of ``py-spy``; None without one."""
    return shutil.which("py-spy")


async def native_stack(program: str, subject: Subject, until: float) -> NativeStack | None:
    """The stack of the first Python process of an attempt, read by ``until`` (monotonic); None if that fails."""
    pid = next((pid for pid in processes_of(subject) if _is_python(pid)), None)
    if pid is None or time.monotonic() >= until:
        return None
    output = await _output_of([program, "dump", "--pid", str(pid), "--native", "--json"], pid, until)
    try:
        return None if output is None else _parse(json.loads(output), pid, subject.thread or pid)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # of another version


def _is_python(pid: int) -> bool:
    try:
        return PurePath(os.readlink(f"/proc/{pid}/exe")).name.startswith("python")
    except OSError:
        return False


async def _output_of(command: list[str], pid: int, until: float) -> bytes | None:
    """What a command prints; None if it fails or is not over in time."""
    try:
        spy = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=OUTPUT_BYTES_MAX,
        )
    except OSError:
        return None
    try:
        output, _ = await asyncio.wait_for(spy.communicate(), until - time.monotonic())
    except TimeoutError:
        return None
    finally:
        if spy.returncode is None:
            _give_up(spy, pid)
            await spy.wait()
    return output if spy.returncode == 0 else None


def _give_up(spy: asyncio.subprocess.Process, pid: int) -> None:
    """End py-spy. Its end releases the process that it had stopped, except just after its first signal."""
    with suppress(OSError):
        spy.kill()
    with suppress(OSError):
        os.kill(pid, signal.SIGCONT)


def _parse(threads: list[dict[str, object]], pid: int, thread: int) -> NativeStack | None:
    """The stack of one thread, from the JSON of ``py-spy dump``."""
    found = next((one for one in threads if one["os_thread_id"] == thread), None)
    frames = found["frames"] if found is not None else None
    if not isinstance(frames, list):
        return None
    shown = (_frame(frame) for frame in frames)
    return NativeStack(pid, tuple(frame for frame in shown if frame is not None)[:FRAMES_MAX])


def _frame(values: dict[str, object]) -> NativeFrame | None:
    """A frame; None for a native one without a name, and for one of the engine."""
    name, module = str(values["name"]), values["module"]
    if module is None:
        if is_engine_path(str(values["filename"])) or values["filename"] == "<frozen runpy>":
            return None
        return NativeFrame(_short(name), _short(f"{values['filename']}:{values['line']}"), is_native=False)
    return None if name.startswith("0x") else NativeFrame(_short(name), _short(str(module)), is_native=True)


def _short(text: str) -> str:
    return flat(text)[:LINE_CHARACTERS]
