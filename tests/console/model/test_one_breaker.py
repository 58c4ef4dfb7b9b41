"""Engine, board, list, shell, JSON, metric and inbox say the same of one breaker, whatever its row and its flow say."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import redrive.engine.store
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.board import Board
from redrive.console.model.systems import BadgeCounts, Systems
from redrive.console.present.states import RowContext
from redrive.console.present.systems import BREAKER_COLUMNS, breaker_style
from redrive.console.text.columns import json_value, screen_row, shell_rows
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.core.breaker import SHUT, BreakerState, BreakerStatus, decode, encode
from redrive.engine.core.downstreams import DownstreamStates
from redrive.engine.core.spec import DownstreamSpec, FlowSpec, TaskSpec
from redrive.engine.core.waiting import BREAKER_WAITS, ExplainContext, wait_of
from redrive.engine.domain.acts import Command
from redrive.engine.domain.breakers import BREAKER_ACTS, HOLDING_BREAKERS
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.rows import BreakerRow
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import RefusedError
from redrive.engine.statefile.breakers import store_breakers
from redrive.engine.statefile.lists import BREAKERS, OPEN_BREAKERS, query
from redrive.engine.statefile.operator_actions import apply
from redrive.engine.statefile.transitions import Transaction

from .runs import projection_of

NOW = 1_700_000_000_000_000
INSTANTS = st.integers(NOW - 10**9, NOW + 10**9)
PAST = st.integers(NOW - 10**9, NOW)
DECLARED = {
    "metrics_only": st.booleans(),
    "on_open": st.sampled_from(["hold", "fail", "dead_letter"]),
    "release_per_second": st.sampled_from([0.0, 5.0]),
    "bucket_capacity": st.sampled_from([0.0, 1.0, 10.0]),
    "minimum_calls": st.sampled_from([1, 10]),
    "failure_rate": st.sampled_from([0.1, 0.5, 1.0]),
    "window_seconds": st.sampled_from([1.0, 60.0]),
}
SPECS = st.fixed_dictionaries({}, optional=DECLARED)
DETAILS = st.fixed_dictionaries(
    {"episode": st.integers(0, 9)},
    optional={
        "why": st.text(max_size=9),
        "release_at": st.none() | INSTANTS,
        "release_rate": st.floats(0, 50) | st.just(1e-313),
        "openings": st.integers(0, 9),
        "refused": st.lists(st.sampled_from("ab"), max_size=2),
        "refilled_at": PAST,
        "streak": st.tuples(st.integers(0, 9), st.integers(0, 9)).map(list),
    },
)
ROWS = st.builds(
    BreakerRow,
    st.just("api"),
    st.sampled_from([str(state) for state in BreakerState]),
    st.none() | INSTANTS,
    st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=5), max_size=3),
    st.none() | st.floats(0, 20),
    DETAILS | st.sampled_from([{}, {"why": 3}]),
    PAST,
    st.none() | PAST,
)
ACTS = st.lists(st.sampled_from(sorted(BREAKER_ACTS)), max_size=2)
_NO_COLUMNS: tuple[None, None, None, None, None, None, None, None] = (None,) * 8
SCHEMA = (Path(redrive.engine.store.__file__).parent / "schema.sql").read_text()


class Executor:
    """The breakers of a flow that has loaded a row, with the table that it writes and the events that it emits."""

    def __init__(self, row: BreakerRow, declared: dict[str, Any], is_new_run: bool) -> None:
        flow = FlowSpec("f", (TaskSpec("t", downstream="api"),), downstreams=(DownstreamSpec("api", **declared),))
        self.events: list[Event] = []
        self.now = NOW
        self.states = DownstreamStates(flow, lambda: self.now, self._emit)
        self.states.load([row], is_new_run=is_new_run)
        for name in self.states.changed_names:
            self._emit(name)

    def _emit(self, name: str) -> None:
        seq = len(self.events) + 1
        self.events.append(Event(seq, NOW, EventKind.BREAKER, "run-1", *_NO_COLUMNS, self.states.change_event(name)))

    @property
    def status(self) -> BreakerStatus:
        return self.states.statuses["api"]

    def table(self) -> sqlite3.Connection:
        return table_of(self.states.drain_dirty_rows())


def table_of(rows: Sequence[BreakerRow]) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.executescript(SCHEMA)
    store_breakers(connection, rows)
    return connection


def board_of(declared: dict[str, Any], rows: Sequence[BreakerRow]) -> Board:
    options = json.dumps({"downstreams": [{"name": "api", **declared}]})
    specs = {name: {"downstream": "api"} for name in ("first", "again")}
    projection = projection_of([("first", []), ("again", [])], specs, options=options, max_parallel=9)
    projection.tasks["first"].state = TaskState.READY
    again = projection.tasks["again"]
    again.state, again.failures, again.next_retry_at = TaskState.RETRYING, 1, NOW - 1
    board = Board(projection)
    board.update_lists(rows)
    return board


def said(status: BreakerStatus, now: int) -> tuple[object, ...]:
    return status.state, status.breaker.reopens_at, status.breaker.why, status.since, status.breaker.is_releasing(now)


@given(ROWS, SPECS, st.booleans(), ACTS)
def test_all_say_the_same_of_a_breaker(row, declared, is_new_run, acts):
    executor = Executor(row, declared, is_new_run)
    attached = board_of(declared, [row])  # a console that has read the row before
    for act in acts:
        executor.now += 1
        with suppress(RefusedError):  # a probe of a breaker that lets calls pass
            executor.states.operate("api", act, "ana")
    now = executor.now
    attached.apply(executor.events)
    with executor.table() as connection:
        rows, open_rows = query(connection, BREAKERS, {}), query(connection, OPEN_BREAKERS, {})
    board, engine = board_of(declared, rows), executor.status
    systems = Systems(board)
    systems.load_breakers(rows, now)
    shown = systems.breakers["api"]
    assert said(engine, now) == said(shown, now) == said(attached.snapshot.breakers_of_run()["api"], now)

    context = ExplainContext(executor.states.statuses)
    for name in ("first", "again"):
        reason = wait_of(board.projection, name, now, context)
        assert board.waits([name], now) == attached.waits([name], now) == {name: reason}
        is_held = reason in BREAKER_WAITS and not (shown.is_blocking and shown.spec.on_open != "hold")
        assert (name in shown.held) == is_held
    assert executor.states.would_admit("api") or wait_of(board.projection, "first", now, context) in BREAKER_WAITS
    assert not executor.states.is_open("api") or not executor.states.would_admit("api")

    row_context = RowContext(now, UTF8)
    value, (titles, row) = (
        json_value(BREAKER_COLUMNS, shown, row_context),
        shell_rows(BREAKER_COLUMNS, [shown], row_context),
    )
    cells = {str(title): str(getattr(cell, "text", cell)) for title, cell in zip(titles, row, strict=True)}
    assert (value["state"], value["reopens_at"], value["changed_at"]) == (
        engine.state,
        said(engine, now)[1],
        engine.since,
    )
    assert (cells["STATE"], cells["WHY"]) == (engine.state, value["why"])
    assert cells["FAILED"] == f"{value['failures']} of {value['calls']}"
    assert cells["RETRIES"] == f"{engine.tokens:g} of {value['bucket_capacity']:g} left"
    assert cells["HELD"] == str(len(shown.held)) and value["held"] == shown.held
    screen = plain(screen_row(BREAKER_COLUMNS, shown, row_context, 200))
    assert f" {breaker_style(shown).word} " in screen and (f" holds {len(shown.held)} " in screen) == bool(shown.held)
    assert ("prob" in screen) == (bool(cells["REOPENS"]) or shown.state is BreakerState.HALF_OPEN)
    assert str(value["why"]).startswith(engine.breaker.why)
    assert BadgeCounts(board).count == (engine.state in SHUT)
    assert [(one.state, one.since) for one in open_rows if one.state in HOLDING_BREAKERS] == (
        [(engine.state, engine.since)] if engine.state in HOLDING_BREAKERS else []
    )


def loaded(connection: sqlite3.Connection, declared: dict[str, Any]) -> tuple[object, ...]:
    """What the next executor makes of a table."""
    (row,) = query(connection, BREAKERS, {})
    executor = Executor(row, declared, False)
    executor.now = NOW + 9
    status, is_due = executor.status, executor.states.is_probe_due("api")
    reopens_at = None if is_due else status.breaker.reopens_at
    breaker = msgspec.structs.replace(status.breaker, episode=0, reopens_at=reopens_at)
    return breaker, is_due, status.changed_at, status.opened_at, status.bucket


@given(ROWS, SPECS, st.sampled_from(sorted(BREAKER_ACTS)))
def test_an_act_without_an_executor_leaves_the_row_that_an_executor_leaves(row, declared, how):
    """But for a flow that only counts: what a flow declares, the next executor reads."""
    declared, row = {**declared, "metrics_only": False}, row._replace(detail={**row.detail, "why": "x"})
    living = Executor(row, declared, False)
    living.now = NOW + 5
    refused = ""
    try:
        living.states.operate("api", how, "ana")
    except RefusedError as error:
        refused = str(error)
    with closing(table_of([row])) as alone:
        alone.execute("INSERT INTO run (run_id, dag_name, started_at, state) VALUES ('r', 'f', 1, 'RUNNING')")
        command = Command("1", "breaker", "r", (), "ana", "", {"downstream": "api", "how": how})
        answer = apply(Transaction(alone, NOW + 5, command.author), command)
        assert answer.ok == (not refused) and (answer.message == refused or not refused)
        if not refused:
            with closing(living.table()) as table:
                assert loaded(alone, declared) == loaded(table, declared)


@given(ROWS, SPECS)
def test_a_row_says_the_same_before_an_executor_has_it(row, declared):
    stored, engine = board_of(declared, [row]).snapshot.breakers["api"], Executor(row, declared, False).status
    if stored.state is BreakerState.HALF_OPEN:  # the next executor asks again
        assert (engine.state, engine.breaker.reopens_at) == (BreakerState.OPEN, 0)
    else:
        assert (stored.state, stored.breaker.reopens_at) == (engine.state, engine.breaker.reopens_at)
    assert (stored.breaker.why, stored.bucket, stored.reserve_at) == (
        engine.breaker.why,
        engine.bucket,
        engine.reserve_at,
    )


def test_a_flow_that_only_counts_now_has_no_reason_of_an_outage_left() -> None:
    row = BreakerRow("api", "OPEN", NOW, [], 10.0, {"why": "5 of 5 calls failed in 60 s"}, NOW)
    status = decode(row, DownstreamSpec("api", metrics_only=True))
    assert (status.state, status.why, status.is_blocking) == (BreakerState.METRICS_ONLY, "", False)
    assert decode(row, DownstreamSpec("api")).why == row.detail["why"]


def test_a_row_of_an_earlier_version_has_a_whole_bucket() -> None:
    status = decode(BreakerRow("api", "CLOSED", None, [], None, {}, NOW), DownstreamSpec("api"))
    assert (status.tokens, status.reserve_at, status.why) == (10.0, None, "")


def test_a_damaged_row_counts_as_empty() -> None:
    row = BreakerRow("api", "OPEN", NOW, [[]], 10.0, {"streak": "x"}, NOW)
    assert encode(decode(row, DownstreamSpec("api")))[:4] == ("api", "OPEN", NOW, ())
