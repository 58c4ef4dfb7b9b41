"""The list of the inbox: causes and their tasks, with marks that belong to tasks and not to rows.

Marking a closed cause marks all of its tasks; opening it shows them marked, and any of them can be unmarked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from ..model.inbox import InboxRow
from ..text.pieces import Line, Piece, Role
from ..widgets.table import EmptyTableKeyPressed, MarkRangeToggled, VirtualTable


class InboxSource(Protocol):
    """The data of the table."""

    def tasks_of(self, row: InboxRow) -> Sequence[str]:
        """The tasks that a row stands for."""

    def all_tasks(self) -> Sequence[str]:
        """The tasks that match the filter, in the order shown."""

    def empty_line(self) -> Line:
        """The message of an empty list."""


class InboxTable(VirtualTable[InboxRow]):
    """See the module."""

    def __init__(self, row: Callable[[InboxRow, int], Line], source: InboxSource, mark_sign: str) -> None:
        super().__init__(row, id="inbox")
        self._source = source
        self._sign = mark_sign
        self._marked: set[str] = set()
        self._marked_before_range: set[str] = set()

    # --- Marks ----------------------------------------------------------------------------------------------------

    @property
    def marked(self) -> list[str]:
        """The marked tasks, in the order shown."""
        return [name for name in self._source.all_tasks() if name in self._marked] if self._marked else []

    @property
    def marked_count(self) -> int:
        """The number of marked tasks."""
        return len(self._marked)

    def mark_tasks(self, names: Iterable[str]) -> None:
        """Mark these and no others."""
        self._marked = set(names)
        self._anchor = None
        self._marks_changed()

    def unmark_task(self, name: str) -> None:
        """Remove one mark. Posts no message: thousands may be removed at once."""
        if name in self._marked:
            self._marked.discard(name)
            self.refresh()

    def retain_marks_of(self, names: Iterable[str]) -> None:
        """Remove the marks of tasks that are not in ``names``."""
        kept = self._marked.intersection(names)
        if len(kept) != len(self._marked):
            self._marked = kept
            self._marks_changed()

    def mark(self) -> None:
        """Mark or unmark the task, or all tasks of the cause, and go on to the next row."""
        key = self.cursor_key
        if key is not None:
            names = self._source.tasks_of(key)
            self._marked = self._marked.difference(names) if self._are_all_marked(names) else self._marked.union(names)
            self._marks_changed()
            self.move_to(self.cursor + 1)
        else:
            self.post_message(EmptyTableKeyPressed())

    def mark_range(self) -> None:
        """Begin a range at the cursor, or end it."""
        if not self.order:
            self.post_message(EmptyTableKeyPressed())
            return
        self._anchor = self.cursor if self._anchor is None else None
        self._marked_before_range = set(self._marked)
        if self._anchor is not None:
            self._mark_range_to(self.cursor)
        self.post_message(MarkRangeToggled(is_begun=self._anchor is not None))

    def mark_all(self) -> None:
        """Mark all that match; if all are marked, none."""
        everything = self._source.all_tasks()
        if not everything:
            self.post_message(EmptyTableKeyPressed())
        self.mark_tasks(() if self._are_all_marked(everything) else everything)

    def _mark_range_to(self, place: int) -> None:
        anchor = place if self._anchor is None else self._anchor
        rows = self.order[min(anchor, place) : max(anchor, place) + 1]
        self._marked = self._marked_before_range.union(*(self._source.tasks_of(row) for row in rows))
        self._marks_changed()

    def _are_all_marked(self, names: Sequence[str]) -> bool:
        return bool(names) and self._marked.issuperset(names)

    def _marks_changed(self) -> None:
        self.refresh()
        self.post_message(self.RowMarksChanged())

    # --- Drawing --------------------------------------------------------------------------------------------------

    def line(self, y: int) -> Line:
        """The row behind its mark; where a part of a cause is marked, a faint one."""
        place = self.first_visible + y
        if place >= len(self.order):
            return self._source.empty_line() if y == 1 and not self.order else []
        key = self.order[place]
        sign, role = " ", Role.TEXT
        if self._marked:
            names = self._source.tasks_of(key)
            if not self._marked.isdisjoint(names):
                sign, role = self._sign, Role.MARK if self._are_all_marked(names) else Role.DIM
        return [Piece(sign, role), *self._row(key, self.columns - 1)]

    def row_role(self, y: int) -> str | None:
        """The cursor's row, and those that are marked as a whole."""
        place = self.first_visible + y
        known = super().row_role(y)
        if known is not None or place >= len(self.order) or not self._marked:
            return known
        return Role.MARK if self._are_all_marked(self._source.tasks_of(self.order[place])) else None
