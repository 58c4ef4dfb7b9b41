"""The line of user code that an error belongs to, as ``revenue.py:12``; frames of this package are skipped."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from types import FrameType, TracebackType

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_EXAMPLES = os.path.join(_PACKAGE, "examples") + os.sep  # treated as user code


def caller_location() -> str | None:
    """Return the innermost line of user code on the stack; None if there is only engine code."""
    place = caller_place()
    return None if place is None else location_of(place)


Place = tuple[str, int]  # path and line


def caller_place() -> Place | None:
    """Return what ``location_of`` makes the location of: each task of a large flow has a place, and few are shown."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def location_of_traceback(trace: TracebackType | None) -> str | None:
    """Return the innermost line of user code in a traceback; None if there is none."""
    found = None
    while trace is not None:
        if _is_user_code(trace.tb_frame.f_code.co_filename):
            found = location_of((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return found


@lru_cache(maxsize=64)
def _is_user_code(path: str) -> bool:
    return not path.startswith("<") and (not path.startswith(_PACKAGE) or path.startswith(_EXAMPLES))


def location_of(place: Place) -> str:
    """Return the path relative to the working directory if the file is below it, else as it is."""
    path, line = place
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone
        relative = path
    return f"{path if relative.startswith(os.pardir) else relative}:{line}"
