"""Engine, board, list, shell, badge and inbox say the same of one page, whatever its row says."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import redrive.engine.store
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.board import Board
from redrive.console.model.snapshot import OPEN_NOTES
from redrive.console.model.systems import BadgeCounts, Section, Systems, SystemsRow
from redrive.console.present.states import RowContext
from redrive.console.present.systems import PAGE_COLUMNS, page_row
from redrive.console.present.tasks import RunContext
from redrive.console.text.columns import json_value, shell_rows
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.core.causes import plan_sending
from redrive.engine.domain.rows import PageRow
from redrive.engine.statefile.lists import NEED_ROWS, PAGES, NeedKind, query
from redrive.engine.statefile.needs import needs_of
from redrive.engine.statefile.state_files import FileRow

from .runs import projection_of

NOW = 1_700_000_000_000_000
PAST = st.integers(NOW - 10**9, NOW)
SCHEMA = (Path(redrive.engine.store.__file__).parent / "schema.sql").read_text()
ROWS = st.builds(
    PageRow,
    id=st.just(1),
    cause=st.just("cause"),
    episode=st.integers(1, 3),
    run_id=st.none() | st.just("run-1"),
    task=st.none() | st.just("load"),
    severity=st.sampled_from(["critical", "high", "normal"]),
    title=st.just("load failed"),
    body=st.just({}),
    counted=st.integers(1, 9),
    sent_count=st.integers(0, 9),
    state=st.sampled_from(["open", "acked", "snoozed", "resolved"]),
    rearmed=st.integers(0, 1),
    created_at=PAST,
    updated_at=PAST,
    sent_at=st.none() | PAST,
    send_error=st.none() | st.just("webhook: 500"),
    snoozed_until=st.none() | st.integers(NOW, NOW + 10**9),
    acked_by=st.none() | st.just("ana@ops-1"),
    told_by=st.none() | st.just("ledger"),
)


def stored(row: PageRow) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA)
    columns = {"count" if name == "counted" else name: value for name, value in row._asdict().items()} | {"body": "{}"}
    sql = f"INSERT INTO page ({', '.join(columns)}) VALUES ({','.join('?' * len(columns))})"
    connection.execute(sql, list(columns.values()))
    return connection


@given(ROWS)
def test_all_say_the_same_of_a_page(row):
    with stored(row) as connection:
        (read,) = query(connection, PAGES, {})
        unsent = query(connection, NEED_ROWS, {})
    assert read == row
    board = Board(projection_of([("load", [])]))
    board.update_lists(pages=[read])
    systems = Systems(board)
    systems.load_pages([read])
    item = SystemsRow(Section.PAGES, 1)
    is_open = row.state == "open"
    assert (item in systems.items_needing_human()) == is_open
    assert bool(BadgeCounts(board).count) == row.is_unsent, "the inbox counts what the others are about"
    assert (board.snapshot.page_notes["cause"] in OPEN_NOTES) == is_open
    value, (titles, cells) = (
        json_value(PAGE_COLUMNS, read, RowContext(NOW, UTF8)),
        shell_rows(PAGE_COLUMNS, [read], RowContext(NOW, UTF8)),
    )
    said = {str(title): str(getattr(cell, "text", cell)) for title, cell in zip(titles, cells, strict=True)}
    assert value == {"count" if name == "counted" else name: field for name, field in row._asdict().items()}
    assert said["STATE"].startswith(row.state) and (said["TITLE"], said["SEVERITY"]) == (row.title, row.severity)
    assert (said["ID"], said["COUNT"]) == ("1", str(row.counted))
    assert said["SENT"].startswith("failed") == (row.send_error is not None) >= row.is_unsent
    screen = plain(page_row(read, RunContext(board, NOW, UTF8), 120))
    assert f" {row.severity} " in screen and row.title in screen and ("not sent" in screen) == row.is_unsent
    assert row.is_unsent or row.state in screen or "until" in screen  # of a silence that has just ended
    kinds = [need.kind for need in needs_of([FileRow("f", listed=unsent)], NOW)]
    assert (kinds == [NeedKind.PAGER]) == row.is_unsent
    plan = plan_sending([read], [], None, NOW)
    assert bool(plan.single or plan.digest) <= is_open
