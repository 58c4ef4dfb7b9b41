"""Rows of a list of any length, of which only what is looked at is read and only what was looked at lately is kept.

Rows are known by their place: quarantined rows are never removed, so a place stands for the same row for ever.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ...engine.statefile.queries import QuarantineRow

PAGE_ROWS = 100  # what is read at a time
PAGES_MAX = 30  # what is kept


class RowWindow:
    """``total``: how many rows there are."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._pages: OrderedDict[int, Sequence[QuarantineRow]] = OrderedDict()
        self._old: set[int] = set()  # pages whose rows may be other ones by now

    def row(self, place: int) -> QuarantineRow | None:
        """The row at a place, None if it has not been read."""
        page = self._pages.get(place // PAGE_ROWS, ())
        return page[place % PAGE_ROWS] if place % PAGE_ROWS < len(page) else None

    def put(self, page: int, rows: Sequence[QuarantineRow]) -> None:
        """What was read from the place ``page * PAGE_ROWS`` on."""
        self._pages[page] = rows
        self._pages.move_to_end(page)
        self._old.discard(page)
        while len(self._pages) > PAGES_MAX:
            self._old.discard(self._pages.popitem(last=False)[0])

    def outdate(self, total: int) -> None:
        """Something has become of rows: what is kept is shown until it was read again."""
        self.total = total
        self._old = set(self._pages)

    def missing(self, first: int, last: int) -> list[int]:
        """The pages to be read for the places from ``first`` to before ``last``."""
        last = min(last, self.total)
        if first >= last:
            return []
        wanted = range(first // PAGE_ROWS, (last - 1) // PAGE_ROWS + 1)
        return [page for page in wanted if page not in self._pages or page in self._old]
