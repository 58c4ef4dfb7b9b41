"""Attempts of kind "command": the forked process executes ``/bin/sh -c LINE``."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

SHELL = "/bin/sh"


def exec_shell(line: str, folder: str | None) -> NoReturn:
    """Replace this process by the shell. Raises OSError if the folder or the shell cannot be used."""
    if folder is not None:
        os.chdir(folder)
    _reset_ignored_signals()
    words: list[str | bytes] = [SHELL, "-c", line.encode("utf-8", "surrogateescape")]  # UTF-8 in every locale
    os.execve(SHELL, words, os.environb)


def _reset_ignored_signals() -> None:
    """Restore the default action of ignored signals: exec keeps them ignored.

    Python ignores SIGPIPE, so ``yes | head -1`` would never end; nohup ignores SIGHUP, and ``&`` of a shell SIGQUIT.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
