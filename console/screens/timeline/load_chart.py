"""How many tasks ran at once, as a chart below the bars of the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ...model.group_activity import GroupActivity
from ...model.time_span import Span
from ...present.timeline.load import load_lines
from ...text.glyphs import Glyphs
from ...widgets.bars import Bar

_ROWS_MIN, _ROWS_MAX = 3, 6
_PART = 3  # of many free rows the chart takes this part


class LoadChart(Bar):
    """The chart; hidden where it has no room."""

    def __init__(self) -> None:
        super().__init__(id="load")
        self.display = False

    def fit_rows(self, rows: int) -> int:
        """Use as many of the free rows as the chart needs; none if they are too few. Returns how many it uses."""
        rows = min(rows, max(_ROWS_MAX, rows // _PART))
        self.display = rows >= _ROWS_MIN
        if not self.display:
            return 0
        self.set_row_count(rows)
        return rows

    def show_activity(
        self,
        activity: GroupActivity,
        span: Span,
        borders: Sequence[int],
        now_us: int | None,
        label_columns: int,
        glyphs: Glyphs,
    ) -> None:
        """Show the tasks that ran in each cell of ``span``. ``borders``: the instants between its cells."""
        past = min(max(span.cell(now_us if now_us is not None else span.end) + 1, 0), span.cells)
        middles = [(start + end) // 2 for start, end in pairwise(borders[: past + 1])]
        if now_us is not None and middles:
            middles[-1] = min(middles[-1], now_us)
        self.show_lines(load_lines(activity.running_at(middles), span, now_us, label_columns, self.row_count, glyphs))
