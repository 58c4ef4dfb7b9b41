"""Stacks as the executor reads them: those that a process writes (``own_stack.py``), and those of faulthandler."""

from __future__ import annotations

import os
import re
from pathlib import PurePath

from ..core.failures import fingerprint
from ..core.failures.hang import StackSummary

_HEAD = re.compile(r"^(?:Current thread|Thread) 0x(?P<ident>[0-9a-fA-F]+)", re.MULTILINE)
_CRASH = re.compile(r"^Fatal Python error: .*?^Current thread 0x(?P<ident>[0-9a-fA-F]+)", re.MULTILINE | re.DOTALL)
_LIBRARY = re.compile(r"python3\.\d+t?|site-packages|dist-packages|")  # no package, but where packages lie
_FRAME = re.compile(r'^\s+File "(?P<path>.*)", line \d+ in ')


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
