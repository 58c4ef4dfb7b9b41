"""The failure of the attempt whose output is shown, below the output."""

from __future__ import annotations

from collections.abc import Callable

from ....engine.core.projection import AttemptRow
from ....engine.domain.states import FAILED_OUTCOMES
from ....engine.statefile.changes.log_rows import AttemptText
from ...present.log import failure_lines
from ...widgets.bars import Bar
from ...widgets.split import has_room_for_strip
from ..base import ConsoleScreen, run_latest

_FRAME_ROWS = 6  # header, tabs, two rules, heading, keys
_Key = tuple[str, str, int]  # run, task, attempt


class FailureBar(Bar):
    """The error of a failed attempt with the end of its traceback; no row for any other attempt."""

    def __init__(self, screen: ConsoleScreen, on_read: Callable[[], None]) -> None:
        super().__init__(0, id="failure")
        self._log_screen = screen
        self._on_read = on_read
        self._key: _Key | None = None
        self._texts: AttemptText | None = None  # None until they have been read

    def show_attempt(self, run_id: str, task: str, attempt: AttemptRow | None, log_lines: int) -> None:
        """Show the failure in the rows that ``log_lines`` leave free, at least in a third of the screen."""
        if attempt is None or attempt.outcome not in FAILED_OUTCOMES:
            self._key = None
            self.set_row_count(0)
            return
        key = run_id, task, attempt.attempt
        if key != self._key:
            self._key, self._texts = key, None
            run_latest(self._log_screen, self._read, "failure", shows_errors=False)
        size = self.app.size
        free = max(size.height // 3, size.height - _FRAME_ROWS - max(log_lines, 1))
        free = free if has_room_for_strip(size.height) else 1
        lines = failure_lines(attempt, self._texts, size.width, free, self._log_screen.console.glyphs)
        self.set_row_count(len(lines))
        self.show_lines(lines)

    async def _read(self) -> None:
        key = self._key
        if key is None:
            return
        texts = await self._log_screen.console.live.session.attempt_text(*key)
        if key == self._key:
            self._texts = texts
            self._on_read()
