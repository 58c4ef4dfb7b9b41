"""A list of any length, of which only the visible rows exist: cursor, marks, and an order that may change under the
reader without taking the row from under the cursor."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from textual import events
from textual.actions import SkipAction
from textual.message import Message

from ..model.lists import places_after
from ..text.pieces import Line, Piece, Role
from .bars import PAGING, bindings
from .line_view import WheelView

Key = TypeVar("Key", bound=Hashable)


class EmptyTableKeyPressed(Message):
    """A key for a row was pressed in a table without rows."""


class VirtualTable(WheelView, Generic[Key], can_focus=True):
    """Rows by key, in an order.

    Args:
        row: the pieces of a row, for a width; asked for whenever the row is painted.
        mark_sign: shown in front of marked rows; None if rows cannot be marked. Takes the first of two cells.
        always_lit: the cursor is set off also while keys go elsewhere, which act on its row.
        nothing: the line in place of rows if there are none.
    """

    UNMARKED = Role.MARK  # of the blank before a row without a mark
    BINDINGS = bindings(*PAGING, "open", "mark", "mark_all")

    class CursorMoved(Message):
        """The cursor is on another row."""

    @dataclass
    class RowOpened(Message):
        """Enter, or a second click, on a row."""

        key: Hashable

    class RowMarksChanged(Message):
        """The marked rows have changed."""

    def __init__(
        self,
        row: Callable[[Key, int], Line],
        *,
        mark_sign: str | None = None,
        always_lit: bool = False,
        nothing: Callable[[], Line] = list,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self._row = row
        self._mark_sign = mark_sign
        self._always_lit = always_lit
        self._nothing = nothing
        self.order: Sequence[Key] = ()  # first to last
        self._place_by_key: dict[Key, int] | None = {}
        self.cursor = 0  # its place; ``move_to`` changes it
        self.first_visible = 0  # place
        self._is_laid_out = False
        self._marks: set[Any] = set()

    # --- what is in it --------------------------------------------------------------------------------------------

    @property
    def cursor_key(self) -> Key | None:
        """The row under the cursor; None if there are no rows."""
        return self.order[self.cursor] if self.order else None

    def set_order(self, order: Sequence[Key]) -> None:
        """Show these rows. The cursor stays on its row, and that row where it was on the screen; if the row is gone the
        cursor stays at its place. Marks of removed rows are dropped: no act touches a row that is not shown."""
        before = self.cursor_key
        height_of_cursor = self.cursor - self.first_visible
        self.order = order
        self._place_by_key = None
        place = self.place_of(before) if before is not None else None
        self.cursor = self._clamp(self.cursor if place is None else place)
        self.first_visible = self.cursor - height_of_cursor
        self._scroll_into_view()
        self.refresh()
        self.retain_marks()
        if self.cursor_key != before:
            self.post_message(self.CursorMoved())

    def place_of(self, key: Key) -> int | None:
        """The place of a row; None if it is not in the table."""
        if self._place_by_key is None:
            self._place_by_key = {key: place for place, key in enumerate(self.order)}
        return self._place_by_key.get(key)

    def rows_changed(self, keys: Iterable[Key]) -> None:
        """Repaint the visible ones of these rows."""
        changed = keys if isinstance(keys, set | frozenset | dict) else set(keys)
        for y, key in enumerate(self.in_view()):
            if key in changed:
                self.refresh_rows(y)

    def in_view(self) -> Sequence[Key]:
        return self.order[self.first_visible : self.first_visible + self.rows]

    # --- moving ---------------------------------------------------------------------------------------------------

    def move_to(self, place: int) -> None:
        """Move the cursor to a place, clamped to the list; from far away into the middle of the view."""
        is_near = -1 <= place - self.first_visible <= self.rows
        self._move_cursor_and_top(place, self.first_visible if is_near else place - self.rows // 2)

    def _move_cursor_and_top(self, place: int, top: int) -> None:
        """Move cursor and view to these places, as far as they exist and fit together."""
        before, top_before = self.cursor, self.first_visible
        self.cursor, self.first_visible = self._clamp(place), top
        self._scroll_into_view()
        if self.first_visible != top_before:
            self.refresh()
        elif self.cursor != before:
            self.refresh_rows(before - self.first_visible)
            self.refresh_rows(self.cursor - self.first_visible)
        if self.cursor != before:
            self.post_message(self.CursorMoved())

    def move_to_key(self, key: Key) -> bool:
        """Put the cursor on a row. False if it is not in the order."""
        place = self.place_of(key)
        if place is not None:
            self.move_to(place)
        return place is not None

    def move_to_next(self, step: int, is_wanted: Callable[[Key], bool]) -> bool:
        """Move to the next row that is wanted, or the one before, past the end from the other one; False: none is."""
        for place in places_after(len(self.order), self.cursor, step):
            if is_wanted(self.order[place]):
                self.move_to(place)
                return True
        return False

    def scroll_rows(self, rows: int) -> None:
        """Move the view, and the cursor only as far as it would leave the view."""
        top = max(min(self.first_visible + rows, len(self.order) - self.rows), 0)
        self._move_cursor_and_top(max(min(self.cursor, top + self.rows - 1), top), top)

    def _clamp(self, place: int) -> int:
        return max(min(place, len(self.order) - 1), 0)

    def _scroll_into_view(self) -> None:
        rows = self.rows
        if not rows:
            return  # not laid out yet
        self.first_visible = max(min(self.first_visible, len(self.order) - rows), 0)
        self.first_visible = max(min(self.first_visible, self.cursor), self.cursor - rows + 1)

    def move_rows(self, rows: int) -> None:
        """Move ``rows`` rows down."""
        self.move_to(self.cursor + rows)

    def move_to_edge(self, direction: int) -> None:
        """Move to the first row, or with 1 to the last."""
        self.move_to(0 if direction < 0 else len(self.order) - 1)

    def move_pages(self, pages: float) -> None:
        """Move view and cursor ``pages`` down together, so that the cursor keeps its height."""
        rows = int(self.rows * abs(pages)) * (1 if pages > 0 else -1)
        self._move_cursor_and_top(self.cursor + rows, self.first_visible + rows)

    def drill_in(self) -> None:
        """Open the row under the cursor."""
        if self.order:
            self.post_message(self.RowOpened(self.order[self.cursor]))
        else:
            self.post_message(EmptyTableKeyPressed())

    # --- marking --------------------------------------------------------------------------------------------------

    def items_of(self, key: Key) -> Sequence[Any]:
        """Return the items that a row stands for, to which marks belong: several for the row of a group."""
        return (key,)

    def all_items(self) -> Sequence[Any]:
        """Return all that can be marked, in the order shown."""
        return self.order

    @property
    def marks(self) -> list[Any]:
        """The marked items, in the order shown."""
        return [item for item in self.all_items() if item in self._marks] if self._marks else []

    def mark(self) -> None:
        """Mark or unmark what is under the cursor, and go on to the next row."""
        if self._can_mark():
            items = self.items_of(self.order[self.cursor])
            self._marks = self._marks.difference(items) if self._are_marked(items) else self._marks.union(items)
            self._marks_changed()
            self.move_to(self.cursor + 1)

    def mark_all(self) -> None:
        """Mark everything; if everything is marked, nothing."""
        if self._mark_sign is None:
            raise SkipAction  # the key means something else on the screen
        if self._can_mark():
            items = self.all_items()
            self.set_marks(() if self._are_marked(items) else items)

    def _can_mark(self) -> bool:
        """Whether there is anything to mark; an empty table says so."""
        if self._mark_sign is not None and not self.order:
            self.post_message(EmptyTableKeyPressed())
        return self._mark_sign is not None and bool(self.order)

    def set_marks(self, items: Iterable[Any]) -> None:
        """Mark these and no others."""
        self._marks = set(items).intersection(self.all_items())
        self._marks_changed()

    def unmark(self, item: Any) -> None:
        """Remove one mark. Posts no message: thousands may be removed at once."""
        if item in self._marks:
            self._marks.discard(item)
            self.refresh()

    def retain_marks(self) -> None:
        """Remove the marks of what is not listed any more."""
        listed = self._marks.intersection(self.all_items()) if self._marks else self._marks
        if len(listed) != len(self._marks):
            self._marks = listed
            self._marks_changed()

    def _are_marked(self, items: Sequence[Any]) -> bool:
        return bool(items) and self._marks.issuperset(items)

    def _marks_changed(self) -> None:
        self.refresh()
        self.post_message(self.RowMarksChanged())

    @property
    def hidden_rows(self) -> tuple[int, int]:
        """The number of rows above the viewport, and below it."""
        return self.first_visible, max(len(self.order) - self.first_visible - self.rows, 0)

    # --- drawing --------------------------------------------------------------------------------------------------

    def line(self, y: int) -> Line:
        """The row of the view's line ``y``, behind its mark."""
        place = self.first_visible + y
        if not self.order and y == min(1, self.rows - 1):
            return self._nothing()
        if place >= len(self.order):
            return []
        key = self.order[place]
        if self._mark_sign is None:
            return self._row(key, self.columns)
        items, sign, role = self.items_of(key), " ", self.UNMARKED
        if not self._marks.isdisjoint(items):  # of a group perhaps a part
            sign, role = self._mark_sign, Role.MARK if self._are_marked(items) else Role.DIM
        return [Piece(sign, role), *self._row(key, self.columns - 1)]

    def row_role(self, y: int) -> str | None:
        """The cursor's row, and marked ones."""
        place = self.first_visible + y
        if place >= len(self.order):
            return None
        if place == self.cursor:
            return Role.CURSOR if self.has_focus or self._always_lit else Role.STRONG
        return Role.MARK if self._marks and self._are_marked(self.items_of(self.order[place])) else None

    def on_resize(self) -> None:
        """The cursor stays in view; at first it is in the middle, unless the first page holds it."""
        if not self._is_laid_out:
            self._is_laid_out = self.rows > 0
            self.first_visible = self.cursor - self.rows // 2 if self.cursor >= self.rows else 0
        self._scroll_into_view()
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """A click moves the cursor, a second one opens."""
        place = self.first_visible + event.y
        if place < len(self.order):
            self.move_to(place)
            if event.chain > 1:
                self.drill_in()

    def move_by_wheel(self, rows: int, *, is_shifted: bool) -> None:
        self.scroll_rows(rows)
