"""The whole log of an attempt in the operator's pager."""

from __future__ import annotations

import tempfile

from textual.app import App

from ...model.log import LogText
from ...present.log import line_text
from ...terminal.pager import show_in_pager
from ...text.glyphs import Glyphs
from .attempt_log import AttemptLog


async def page_log(app: App[object], log: AttemptLog, glyphs: Glyphs) -> None:
    """Suspend the console while the pager shows the log. Raises RedriveError, SuspendNotSupported."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        text = LogText()
        async for chunks in log.pages():
            text.append(chunks)
            file.writelines(f"{line_text(line, glyphs)}\n" for line in text.pop_closed_lines())
        file.writelines(f"{line_text(line, glyphs)}\n" for line in text.lines)
        file.seek(0)
        with app.suspend():
            show_in_pager((line.rstrip("\n") for line in file), f"{log.task}-{log.attempt}")
