"""The labels left of the bars of the timeline: a state, a name, and the columns that the operator has chosen."""

from __future__ import annotations

from collections.abc import Collection

from ....engine.domain.states import TaskState
from ...keys.actions import ScreenName
from ...model.board import Board
from ...model.timeline_rows import RowKey, TimelineRows
from ...present.task_names import TaskNames
from ...present.timeline.bars import FOLD_INDENT, TOOK_CELLS, duration_text, label_line
from ...present.timeline.group_bars import (
    group_duration_text,
    group_label_columns,
    group_label_line,
    has_duration_column,
)
from ...text.pieces import Line, Piece, Role
from ..console import Console


class TimelineLabels:
    """The labels of the rows of one board. ``critical``: the tasks of the critical path, if it is shown."""

    def __init__(self, console: Console, board: Board, rows: TimelineRows) -> None:
        self.critical: Collection[str] = ()
        self._console = console
        self._board = board
        self._rows = rows
        self._names = TaskNames(board.projection.tasks)
        self._titles = TaskNames((group.title for group in rows.groups), prefix="")

    @property
    def columns(self) -> int:
        """The width of the labels in cells."""
        return group_label_columns(self._rows.groups, self._names, self._titles, self._console.size.width, self._shown)

    @property
    def _shown(self) -> Collection[str]:
        return self._console.columns.shown_in(ScreenName.TIMELINE.value)

    @property
    def _has_duration_column(self) -> bool:
        return has_duration_column(self._console.size.width, self._shown)

    def ticks(self, key: RowKey) -> bool:
        """Whether the label shows a running time, which has to be redrawn each second."""
        return isinstance(key, str) and self._has_duration_column and self._board.row(key).state is TaskState.RUNNING

    def heading(self, title: str, columns: int, role: Role) -> Line:
        """A title above the names, and that of the column beside them."""
        took = "took ".rjust(TOOK_CELLS + 1) if self._has_duration_column else ""
        room = columns - len(took)
        return [Piece(title[: room - 1].ljust(room), role), Piece(took, Role.DIM)]

    def line(self, key: RowKey, columns: int, *, is_cursor: bool, is_filtered: bool) -> Line:
        """The label of a row. ``is_filtered``: matches are listed without groups."""
        glyphs, role = self._console.glyphs, Role.CURSOR if is_cursor else Role.TEXT
        if isinstance(key, str):
            row, is_critical = self._board.row(key), key in self.critical and not is_cursor
            took = duration_text(row, self._until_us) if self._has_duration_column else ""
            indent = 0 if is_filtered else self._indent(key)
            return label_line(row, columns, glyphs, Role.CRITICAL if is_critical else role, self._names, indent, took)
        group, is_open = self._rows.group(key), self._rows.shows_tasks(key)
        took = group_duration_text(self._rows.activity(key)) if self._has_duration_column else ""
        return group_label_line(
            group, columns, glyphs, self._titles, is_open=is_open, role=role, shown=self._shown, took=took
        )

    @property
    def _until_us(self) -> int:
        """Until when an attempt without an end can have run."""
        now_us, gone_at = self._console.live.now_us, self._console.runner.gone_at
        return now_us if gone_at is None else min(now_us, gone_at)

    def _indent(self, name: str) -> int:
        """How far a task stands to the right: below its group, or beside groups."""
        if not self._rows.groups:
            return 0
        return FOLD_INDENT if self._rows.group_of(name) is None else 2 * FOLD_INDENT
