"""A task that is a shell line: the forked attempt becomes ``/bin/sh -c LINE``."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

SHELL = "/bin/sh"

#: Python ignores these two, and an ignored signal stays ignored across exec: ``yes | head -1`` would never end.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def become(line: str, folder: str | None) -> NoReturn:
    """Replace this process by the shell. Raises OSError when the folder or the shell cannot be used."""
    if folder is not None:
        os.chdir(folder)
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    words: list[str | bytes] = [SHELL, "-c", line.encode("utf-8", "surrogateescape")]  # UTF-8 in every locale
    os.execve(SHELL, words, os.environb)
