"""A task that is a shell line: the forked attempt becomes ``/bin/sh -c LINE``."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

SHELL = "/bin/sh"


def become(line: str, folder: str | None) -> NoReturn:
    """Replace this process by the shell. Raises OSError when the folder or the shell cannot be used."""
    if folder is not None:
        os.chdir(folder)
    _reset_ignored_signals()
    words: list[str | bytes] = [SHELL, "-c", line.encode("utf-8", "surrogateescape")]  # UTF-8 in every locale
    os.execve(SHELL, words, os.environb)


def _reset_ignored_signals() -> None:
    """Let each signal do what it does by default, as an ignored one stays ignored across exec.

    Python ignores SIGPIPE, and ``yes | head -1`` would never end; nohup ignores SIGHUP, a shell's ``&`` SIGQUIT.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
