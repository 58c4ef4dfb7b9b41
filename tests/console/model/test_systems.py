"""What stands between tasks and the world, as values: what is held, what comes first, what may be done."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redrive.console.model.board import Board
from redrive.console.model.lists import parse_filter
from redrive.console.model.systems import (
    BadgeCounts,
    Section,
    Systems,
    SystemsRow,
    blocking_downstream,
    sender_names,
)
from redrive.engine.core.breaker import BreakerState, BreakerStatus
from redrive.engine.domain.breakers import breaker_refusal
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.rows import PageRow
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile.lists import BREAKERS, PAGE_HEADS, QUARANTINE_GROUPS, GroupKey, Listing, Row
from support.marks import for_each

from ..conftest import FakeSession, StillClock, build_row
from ..screens.outages import OPTIONS, QUOTES, breaker_row, outage, row_of_group, row_of_page
from .runs import START, S, projection_of

NOW = START + 42 * S


def listed(listing: Listing[Row], session: FakeSession) -> list[Row]:
    return [build_row(listing.row, row) for row in session.lists[listing.name]]


def downstreams_of(clock: StillClock) -> Systems:
    """As the screen has them."""
    session = outage(clock)
    downstreams = Systems(Board(session.projection))
    downstreams.load_breakers(listed(BREAKERS, session), clock.now)
    downstreams.load_pages(listed(PAGE_HEADS, session))
    downstreams.load_row_groups(listed(QUARANTINE_GROUPS, session))
    return downstreams


def alone(spec: dict[str, Any], row: dict[str, Any], **tasks: dict[str, Any]) -> BreakerStatus:
    """One downstream, ``api``; ``tasks``: columns of those that call it."""
    options = json.dumps({"downstreams": [{"name": "api", **spec}]})
    projection = projection_of(
        [("above", []), *((name, columns.pop("parents", [])) for name, columns in tasks.items())],
        {name: {"downstream": "api"} for name in tasks},
        options=options,
    )
    for name, columns in tasks.items():
        for column, value in columns.items():
            setattr(projection.tasks[name], column, value)
    downstreams = Systems(Board(projection))
    downstreams.load_breakers([breaker_row("api", **row)], NOW)
    return downstreams.breakers["api"]


READY = {"state": TaskState.READY}
DUE = {"state": TaskState.RETRYING, "next_retry_at": NOW - S, "failures": 1}
LATER = {"state": TaskState.RETRYING, "next_retry_at": NOW + 2 * S, "failures": 1}

# --- Who is held ----------------------------------------------------------------------------------------------------


def test_a_breaker_holds_whoever_could_start_and_nobody_else():
    """A task is promoted in the commit that starts it: one that only waits for its breaker may be PENDING."""
    tasks = {
        "ready": dict(READY),
        "due": dict(DUE),
        "met": {},
        "later": dict(LATER),
        "unmet": {"parents": ["above"]},
        "runs": {"state": TaskState.RUNNING},
        "done": {"state": TaskState.SUCCESS},
    }
    guard = alone({}, {"state": "OPEN", "reopens_at": NOW + S}, **tasks)  # type: ignore[arg-type]
    assert ("ready", "due", "met") == guard.held
    assert 1 == guard.running


@pytest.mark.parametrize("state", ["CLOSED", "DISABLED", "METRICS_ONLY"])
def test_a_breaker_that_lets_calls_through_holds_nobody(state):
    assert () == alone({}, {"state": state}, ready=dict(READY), due=dict(DUE)).held


def test_a_flow_that_wants_no_waiting_is_held_by_nothing():
    shut = {"state": "OPEN", "reopens_at": NOW + S}
    assert () == alone({"on_open": "fail"}, shut, ready=dict(READY)).held
    assert ("ready",) == alone({"on_open": "fail"}, {"state": "HALF_OPEN"}, ready=dict(READY)).held


def test_what_is_released_one_by_one_is_held_until_it_goes():
    released = {"state": "CLOSED", "detail": {"release_at": NOW - S}}
    assert ("ready",) == alone({}, released, ready=dict(READY)).held
    long_ago = {"state": "CLOSED", "detail": {"release_at": NOW - 60 * S}}
    assert () == alone({}, long_ago, ready=dict(READY)).held


def test_a_spent_budget_holds_retries_and_never_first_tries():
    spent = {"state": "CLOSED", "tokens": 0.4, "detail": {"refilled_at": NOW}}
    assert ("due",) == alone({}, spent, ready=dict(READY), due=dict(DUE)).held
    reserve = {"state": "CLOSED", "tokens": 0.4, "detail": {"refilled_at": NOW - S}}
    assert () == alone({}, reserve, due=dict(DUE)).held


def test_what_has_left_the_window_counts_no_more(clock):
    guard = downstreams_of(clock).breakers["rates-api"]
    assert (1, 6, 0, 0) == guard.totals(clock.now)[1:]
    assert (0, 0, 0, 0) == guard.totals(clock.now + 60 * S)[1:]


def test_the_board_alone_knows_who_holds_a_task(clock):
    board = Board(outage(clock).projection)
    board.update_lists([breaker_row("rates-api", "OPEN", reopens_at=clock.now + S)])
    assert "rates-api" == blocking_downstream(board, QUOTES[4], clock.now)
    assert blocking_downstream(board, "settle", clock.now) is None
    board.update_lists([breaker_row("rates-api", "CLOSED")])
    assert blocking_downstream(board, QUOTES[4], clock.now) is None


# --- What may be done -----------------------------------------------------------------------------------------------


@for_each(
    "state, refused",
    [
        ("CLOSED", {"close", "probe"}),
        ("OPEN", set()),
        ("HALF_OPEN", {"probe"}),
        ("FORCED_OPEN", {"open"}),
        ("DISABLED", {"disable", "probe"}),
        ("METRICS_ONLY", {"close", "probe"}),
    ],
)
def test_what_would_do_nothing_is_refused_with_the_reason(state, refused):
    """Probing one that is closed would even hold its calls."""
    guard = alone({}, {"state": state})
    assert refused == {how for how in ("open", "close", "probe", "disable") if breaker_refusal("api", how, guard.state)}


# --- The list -------------------------------------------------------------------------------------------------------


def test_what_wants_a_human_comes_first_and_what_is_quiet_last(clock):
    downstreams = downstreams_of(clock)
    keys = [(row.section.value, row.key) for row in downstreams.rows() if not row.is_head and not row.hidden]
    assert [
        ("breakers", "rates-api"),
        ("breakers", "mail"),
        ("breakers", "payments-api"),
        ("pages", 2),
        ("pages", 1),
        ("pages", 4),
        ("pages", 3),
        ("rows", GroupKey("import_customers", "c0ffee")),
    ] == keys
    assert ["rates-api", 2, 1, GroupKey("import_customers", "c0ffee")] == [
        row.key for row in downstreams.items_needing_human()
    ]


def test_a_breaker_of_another_flow_is_none_of_this_run(clock):
    assert "not-of-this-flow" not in downstreams_of(clock).breakers


def test_an_opened_breaker_shows_whom_it_holds_twenty_at_first(clock):
    options = json.dumps({"downstreams": [{"name": "api"}]})
    names = [f"call_{number:02}" for number in range(50)]
    board = Board(
        projection_of([(name, []) for name in names], {name: {"downstream": "api"} for name in names}, options=options)
    )
    downstreams = Systems(board)
    downstreams.load_breakers([breaker_row("api", "FORCED_OPEN")], NOW)
    breaker = SystemsRow(Section.BREAKERS, "api")
    downstreams.toggle(breaker)
    rows = [row for row in downstreams.rows() if row.key == "api"]
    assert names[:20] == [row.task for row in rows[1:21]]
    assert [30] == [row.hidden for row in rows[21:]]
    downstreams.toggle(rows[21])
    assert names == [row.task for row in downstreams.rows() if row.task]
    downstreams.toggle(breaker)
    assert [] == [row for row in downstreams.rows() if row.task]


def test_what_is_dealt_with_waits_behind_one_row(clock):
    downstreams = downstreams_of(clock)
    more = next(row for row in downstreams.rows() if row.section is Section.PAGES and row.hidden)
    assert 1 == more.hidden
    downstreams.toggle(more)
    assert 5 in [row.key for row in downstreams.rows()]


def test_a_filter_matches_quiet_rows_too(clock):
    downstreams = downstreams_of(clock)
    downstreams.filter = parse_filter("permanent")
    assert [5] == [row.key for row in downstreams.rows() if not row.is_head]
    downstreams.filter = parse_filter("country")
    assert [GroupKey("import_customers", "c0ffee")] == [row.key for row in downstreams.rows() if not row.is_head]


def test_what_is_urgent_comes_first_in_each_section_and_what_is_idle_last(clock):
    downstreams = downstreams_of(clock)
    groups = [row_of_group("a_few", "held", 2, "x"), row_of_group("many", "held", 9, "y", fingerprint="beef")]
    downstreams.load_row_groups([build_row(QUARANTINE_GROUPS.row, row) for row in groups])
    pages = [
        row_of_page(1, "b is late", counted=7),
        row_of_page(2, "a is dead", counted=2),
        row_of_page(3, "0 is over", counted=99, state="resolved"),
    ]
    downstreams.load_pages([build_row(PAGE_HEADS.row, row) for row in pages])
    keys = [row.key for row in downstreams.rows() if row.section is not Section.BREAKERS and row.key]
    assert keys == [2, 1, GroupKey("many", "beef"), GroupKey("a_few", "c0ffee")]


def test_a_page_that_its_sender_refused_is_counted_as_soon_as_it_is_listed(clock):
    downstreams = downstreams_of(clock)
    count = BadgeCounts(downstreams.board)
    before = count.count
    unsent = row_of_page(4, "c is dead", cause="cause-4", sent_at=None, send_error="exit status 7")
    downstreams.load_pages([build_row(PAGE_HEADS.row, unsent)])
    assert count.count == before + 1


def test_another_picture_of_the_same_run_keeps_what_was_read_and_opened(clock):
    downstreams = downstreams_of(clock)
    downstreams.toggle(SystemsRow(Section.BREAKERS, "rates-api"))
    again = downstreams.with_board(Board(outage(clock).projection))
    assert again.rows() == downstreams.rows()


def test_rows_of_another_run_are_not_kept(clock):
    projection = outage(clock).projection
    projection.run = projection.run._replace(run_id="night-8")
    other = downstreams_of(clock).with_board(Board(projection))
    assert {} == other.groups and Section.ROWS not in other.loaded_sections and other.pages


def test_another_moment_shows_breakers_as_they_were(clock):
    downstreams = downstreams_of(clock)
    downstreams.board.update_lists([breaker_row("rates-api", "HALF_OPEN")])
    downstreams.load_snapshot(clock.now)
    assert BreakerState.HALF_OPEN is downstreams.breakers["rates-api"].state
    assert set(QUOTES) == set(downstreams.breakers["rates-api"].held)
    assert {} == downstreams.pages == downstreams.groups


def test_a_sender_is_named_without_its_secrets():
    assert ("bell", "command") == sender_names(json.dumps(OPTIONS))
    assert () == sender_names("{}") == sender_names("nonsense") == sender_names('{"pages": [7]}')


# --- For the tab ----------------------------------------------------------------------------------------------------


def test_the_tab_counts_open_breakers_refused_pages_and_tasks_with_held_rows(clock):
    session = outage(clock)
    board = Board(session.projection)
    pages = listed(PAGE_HEADS, session)
    board.update_lists(listed(BREAKERS, session), pages)
    attention = BadgeCounts(board)
    assert 3 == attention.count, "one breaker of this flow, the page that was not sent, one task"
    builder = session.builder
    events = [
        builder.event(EventKind.BREAKER, data={"downstream": "rates-api", "state": "CLOSED"}),
        builder.event(EventKind.PAGE, "settle", data={"what": "acked", "cause": "cause-1"}, actor="ana@ops-1"),
        builder.event(EventKind.TASK_CHANGED, "import_customers", data={"set": {"bad_rows": 0}}),
        builder.event(EventKind.TASK_CHANGED, "fetch_orders", data={"set": {"bad_rows": 7}}),
    ]
    attention.update(board.apply(events).tasks)
    assert 1 == attention.count
    attention.update(
        board.apply([builder.event(EventKind.TASK_CHANGED, "fetch_orders", data={"set": {"bad_rows": 0}})]).tasks
    )
    assert 0 == attention.count


def test_a_page_that_was_acknowledged_while_the_line_was_down_is_open_no_more(clock):
    session = outage(clock)
    board = Board(session.projection)
    board.update_lists(pages=[build_row(PageRow, row_of_page(1, "poison", cause="c", send_error="bell: no"))])
    assert 1 == BadgeCounts(board).count - BadgeCounts(Board(session.projection)).count
    again = Board(session.projection, board)
    again.update_lists(pages=[build_row(PageRow, row_of_page(1, "poison", cause="c", state="acked", acked_by="ana"))])
    assert 0 == BadgeCounts(again).count - BadgeCounts(Board(session.projection)).count
