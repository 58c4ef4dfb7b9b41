"""Show text in the operator's pager while the console is suspended."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable

from ...engine.errors import RedriveError

_FALLBACKS = ("less", "more")


def show_in_pager(lines: Iterable[str], name: str) -> None:
    """Show lines in ``$PAGER`` and wait until it exits. Call it while the terminal is released.

    ``lines`` are visible characters only: a pager that passes sequences on has none to pass. ``name`` is seen in the
    prompts of pagers. Raises RedriveError where no pager can be started.
    """
    command = _command()
    with tempfile.TemporaryDirectory(prefix="redrive-") as folder:
        path = os.path.join(folder, _file_name(name))
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in lines)
        _wait_for([*command, path])


def _command() -> list[str]:
    try:
        chosen = shlex.split(os.environ.get("PAGER", ""))
    except ValueError as error:
        raise RedriveError(f"$PAGER cannot be understood: {error}") from None
    if chosen:
        return chosen
    for name in _FALLBACKS:
        if shutil.which(name):
            return [name]
    raise RedriveError("there is no pager: set $PAGER")


def _file_name(name: str) -> str:
    kept = "".join(character if character.isalnum() or character in "-_." else "_" for character in name[:80])
    return f"{kept.lstrip('.-') or 'log'}.txt"


def _wait_for(command: list[str]) -> None:
    """Run the pager; Ctrl-C goes to the pager alone. A Python handler, unlike SIG_IGN, is not inherited."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        subprocess.run(command, check=False)
    except OSError as error:
        raise RedriveError(f"{command[0]} cannot be started: {error.strerror}") from None
    finally:
        signal.signal(signal.SIGINT, before)
