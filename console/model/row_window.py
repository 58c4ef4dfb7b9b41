"""A window of a long list of quarantined rows: reads the visible pages, and caches the pages used last.

A row is identified by its index: quarantined rows are never deleted, so the index of a row never changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ...engine.statefile.list_rows import QuarantineRow

PAGE_ROWS = 100  # rows that are read at a time
PAGES_MAX = 30  # in the cache


class RowWindow:
    """``total``: the number of rows in the list."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._pages: OrderedDict[int, Sequence[QuarantineRow]] = OrderedDict()
        self._stale_pages: set[int] = set()  # pages whose rows may have changed

    def row(self, index: int) -> QuarantineRow | None:
        """Return the row at an index, None if it has not been read."""
        page = self._pages.get(index // PAGE_ROWS, ())
        return page[index % PAGE_ROWS] if index % PAGE_ROWS < len(page) else None

    def store(self, page: int, rows: Sequence[QuarantineRow]) -> None:
        """Store the rows that were read from the index ``page * PAGE_ROWS`` on."""
        self._pages[page] = rows
        self._pages.move_to_end(page)
        self._stale_pages.discard(page)
        while len(self._pages) > PAGES_MAX:
            self._stale_pages.discard(self._pages.popitem(last=False)[0])

    def invalidate(self, total: int) -> None:
        """Mark all pages as stale; their rows are shown until they were read again."""
        self.total = total
        self._stale_pages = set(self._pages)

    def missing(self, first: int, last: int) -> list[int]:
        """Return the pages to be read for the indices from ``first`` to before ``last``."""
        last = min(last, self.total)
        if first >= last:
            return []
        pages = range(first // PAGE_ROWS, (last - 1) // PAGE_ROWS + 1)
        return [page for page in pages if page not in self._pages or page in self._stale_pages]
