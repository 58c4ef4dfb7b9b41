"""Where in somebody's flow a sentence belongs: ``revenue.py:12``, without the frames of this package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType, TracebackType

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_EXAMPLES = os.path.join(_PACKAGE, "examples") + os.sep  # flows as anybody's


def place_of_caller() -> str | None:
    """The innermost line that called into this package; None when nobody else is on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_theirs(frame):
        frame = frame.f_back
    return None if frame is None else _place(frame.f_code.co_filename, frame.f_lineno)


def place_of(trace: TracebackType | None) -> str | None:
    """The innermost line of a traceback that is not of this package or of the import system."""
    found = None
    while trace is not None:
        if _is_theirs(trace.tb_frame):
            found = _place(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _is_theirs(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    return not path.startswith("<") and (not path.startswith(_PACKAGE) or path.startswith(_EXAMPLES))


def _place(path: str, line: int) -> str:
    """As short as it can be opened by from here."""
    try:
        near = os.path.relpath(path)
    except (OSError, ValueError):  # the working directory is gone
        near = path
    return f"{path if near.startswith(os.pardir) else near}:{line}"
