"""The whole log of an attempt in the operator's pager, while the console is suspended."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile

from textual.app import App

from ...engine.errors import RedriveError
from ..model.log import LogText
from ..present.log import line_text
from ..sessions.attempt_log import AttemptLog
from ..text.glyphs import Glyphs

_FALLBACKS = ("less", "more")


def show_in_pager(path: str) -> None:
    """Show a file in ``$PAGER`` and wait until it exits. Call it while the terminal is released.

    Ctrl-C goes to the pager alone: a Python handler, unlike SIG_IGN, is not inherited. Raises RedriveError where no
    pager can be started.
    """
    command = _command()
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        subprocess.run([*command, path], check=False)
    except OSError as error:
        raise RedriveError(f"{command[0]} cannot be started: {error.strerror}") from None
    finally:
        signal.signal(signal.SIGINT, before)


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


async def page_log(app: App[object], log: AttemptLog, glyphs: Glyphs) -> None:
    """Suspend the console while the pager shows the log. Raises RedriveError, SuspendNotSupported.

    Its lines are visible characters only: a pager that passes sequences on has none to pass.
    """
    name, text = re.sub(r"[^\w.-]", "_", f"redrive-{log.task[:80]}-{log.attempt}-", flags=re.ASCII), LogText()
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", errors="replace", prefix=name, suffix=".txt") as file:
        async for chunks in log.pages():
            text.append(chunks)
            file.writelines(f"{line_text(line, glyphs)}\n" for line in text.pop_closed_lines())
        file.writelines(f"{line_text(line, glyphs)}\n" for line in text.lines)
        file.flush()
        with app.suspend():
            show_in_pager(file.name)
