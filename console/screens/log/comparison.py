"""The differences between the output of an attempt and that of the attempt before it."""

from __future__ import annotations

import asyncio

from ...model.log_diff import compare_output
from ...present.log import diff_rows, line_text
from ...text.glyphs import Glyphs
from ...text.pieces import Piece, Role
from ...text.text import one_line
from ..text_dialog import TextDialog
from .attempt_log import AttemptLog


async def compared(earlier: AttemptLog, latest: AttemptLog, glyphs: Glyphs) -> TextDialog:
    """A dialog with the differences of two logs, of long ones those of their ends. Raises RedriveError."""
    for log in (earlier, latest):
        await log.read_end()
    before, after = ([line_text(line, glyphs) for line in log.text.lines] for log in (earlier, latest))
    found = await asyncio.to_thread(compare_output, before, after)
    part = "" if earlier.is_complete and latest.is_complete else ", the end of each"
    title = f"{one_line(latest.task)}: #{earlier.attempt} - , #{latest.attempt} +{part}"
    return TextDialog([Piece(title, Role.TITLE)], diff_rows(found, glyphs))
