"""A window of a long list: only visible pages are read, and only those used last stay in the cache."""

from __future__ import annotations

from redrive.console.model.systems import PAGE_ROWS, PAGES_MAX, RowWindow
from redrive.engine.statefile.lists import QuarantineRow

TOTAL = 100_000


def row_at(place: int) -> QuarantineRow:
    return QuarantineRow(place, "run-1", "load", 1, 0, f"key-{place}", None, None, None, "held", 0)


def page_of(page: int) -> list[QuarantineRow]:
    return [row_at(place) for place in range(page * PAGE_ROWS, (page + 1) * PAGE_ROWS)]


def test_what_is_in_view_is_asked_for_by_the_page():
    window = RowWindow(TOTAL)
    assert [0] == window.missing(0, 20)
    assert [0, 1] == window.missing(PAGE_ROWS - 5, PAGE_ROWS + 5)
    assert [TOTAL // PAGE_ROWS - 1] == window.missing(TOTAL - 3, TOTAL + 17)
    assert [] == RowWindow(0).missing(0, 20)


def test_a_row_is_known_by_its_place_once_its_page_was_read():
    window = RowWindow(TOTAL)
    assert window.row(701) is None
    window.store(7, page_of(7))
    assert row_at(701) == window.row(701)
    assert [] == window.missing(700, 720)


def test_a_page_that_came_short_lacks_its_rows():
    window = RowWindow(PAGE_ROWS)
    window.store(0, page_of(0)[:3])
    assert window.row(3) is None


def test_what_may_be_another_one_is_shown_until_it_was_read_again():
    window = RowWindow(TOTAL)
    window.store(0, page_of(0))
    window.invalidate(TOTAL + 1)
    assert row_at(5) == window.row(5)
    assert [0] == window.missing(0, 20)
    window.store(0, page_of(0))
    assert [] == window.missing(0, 20)


def test_who_walks_through_all_of_them_keeps_the_latest_alone():
    window = RowWindow(TOTAL)
    for page in range(TOTAL // PAGE_ROWS):
        window.store(page, page_of(page))
    assert window.row(0) is None
    kept = [place for place in range(0, TOTAL, PAGE_ROWS) if window.row(place) is not None]
    assert PAGES_MAX == len(kept) and kept[-1] == TOTAL - PAGE_ROWS
