"""The header: how the executor is, in the words that fit."""

from __future__ import annotations

import msgspec
import pytest
from redrive.console.model.board import Board
from redrive.console.model.runs import WaitingRun
from redrive.console.model.session_status import Link, SessionStatus
from redrive.console.present.header import (
    Tab,
    executor_gone_line,
    lock_reason,
    run_line,
    status_lines,
    storage_line,
    tab_at,
    tabs_line,
    waiting_fact,
)
from redrive.console.text.figures import wall
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import Line, Piece, plain, width
from redrive.engine.domain.rows import ExecutorState, Health, RunFacts
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.needs import Need
from support.marks import for_each

from ..conftest import rows_of, shown
from ..model.runs import START, S, projection_of

FULL = "the disk that holds /var/lib/nightly.db is full; free some space; nothing is lost, 3 changes wait in memory"
NO_WRITES = Health(storage_since=START, storage_why=FULL)


def rendered(status: SessionStatus, size: int = 120) -> list[str]:
    return [plain(line) for line in status_lines(None, status, size)]


def test_an_executor_that_cannot_write_is_not_called_alive():
    assert ["executor alive"] == rendered(SessionStatus(Link.LIVE, executor=ExecutorState(alive=True)))
    assert ["executor stuck, cannot write"] == rendered(
        SessionStatus(Link.LIVE, executor=ExecutorState(alive=True), health=NO_WRITES)
    )
    assert ["stuck, cannot write"] == rendered(
        SessionStatus(Link.LIVE, executor=ExecutorState(alive=True), health=NO_WRITES), size=50
    )


def test_beside_the_tabs_of_80_columns_one_word_says_that_it_cannot_write():
    assert rendered(SessionStatus(Link.LIVE, executor=ExecutorState(alive=True), health=NO_WRITES), 80)[-1] == "stuck"


def test_what_is_known_to_be_old_comes_before_what_it_said():
    assert ["stale 12s"] == rendered(
        SessionStatus(Link.LIVE, executor=ExecutorState(alive=True), health=NO_WRITES, data_age_seconds=12.0)
    )
    assert ["no executor"] == rendered(SessionStatus(Link.LIVE, health=NO_WRITES))


@pytest.mark.parametrize("address", ["/var/lib/nightly.db", "ssh://a@far:22/var/lib/nightly.db"])
def test_why_it_cannot_write_is_said_without_the_folder_that_the_header_shows(address):
    text = plain(storage_line(SessionStatus(Link.LIVE, executor=ExecutorState(alive=True), health=NO_WRITES), address))
    assert text.startswith("nothing is started: the disk that holds nightly.db is full · free some space")


def test_no_part_of_a_path_is_taken_for_something_else():
    full = NO_WRITES._replace(storage_why="the disk that holds /x.db is full, as is /var/log")
    status = SessionStatus(Link.LIVE, executor=ExecutorState(alive=True), health=full)
    assert plain(storage_line(status, "ssh://far/x.db")).endswith("holds x.db is full, as is /var/log")
    why = "/srv/read-only/x.db is not writable for ana"
    assert lock_reason(msgspec.structs.replace(status, read_only=why)) == f"read-only: {why}"


def test_nothing_is_said_of_a_disk_that_is_well_or_of_an_executor_that_is_gone():
    assert [] == storage_line(SessionStatus(Link.LIVE, executor=ExecutorState(alive=True)), "/var/lib/nightly.db")
    assert [] == storage_line(SessionStatus(Link.LIVE, health=NO_WRITES), "/var/lib/nightly.db")


def test_a_sentence_from_the_far_side_is_data():
    health = NO_WRITES._replace(storage_why="disk\x1b[2J\nfull")
    hostile = SessionStatus(Link.LIVE, executor=ExecutorState(alive=True), health=health)
    assert plain(storage_line(hostile, "ssh://far/x.db")).isprintable()


def test_a_dead_executor_is_told_in_80_columns_with_what_it_left_running():
    projection = projection_of([(f"t{number}", []) for number in range(6)])
    for row in projection.tasks.values():
        row.state = TaskState.RUNNING
    status = SessionStatus(Link.LIVE, executor=ExecutorState(gone_at=START, pid=1681))
    text = plain(executor_gone_line(Board(projection), status, "R", START + 60 * S))
    assert "6 tasks were running" in text[:78] and text.endswith(" · pid 1681 gone")


@for_each("size", [80, 120])
def test_a_paused_run_says_who_paused_it_and_why(size):
    projection = projection_of([("load", [])])
    author = 'ana@ops: "partner\x1b[2J migrates"'
    projection.run = projection.run._replace(paused_since=START, paused_by=author)
    line = plain(run_line(Board(projection), "/srv/x.db", None, START + S, size, UTF8))
    assert 'by ana@ops: "partner␛[2J migrates"' in line and line.isprintable() and len(line) == size
    projection.run = projection.run._replace(blocked_since=START, paused_by="ana@ops")
    line = plain(run_line(Board(projection), "/srv/x.db", None, START + S, size, UTF8))
    assert "BLOCKED paused 0/1" in line and "paused by ana@ops" in line


async def test_changed_code_is_named_until_it_is_loaded(revenue, clock):
    revenue.projection.run = revenue.projection.run._replace(code_changed="lib/x.py")
    async with shown(revenue, clock, size=(120, 30)) as (app, _):
        assert "code changed since start: lib/x.py" in rows_of(app)[0]


@for_each("blocked_since", [None, START + 60 * S])
@for_each("other_runs", [[], [WaitingRun(RunFacts("run-0", "flow", START), Need(NeedKind.BLOCKED, "", START))]])
def test_80_columns_show_the_slack_also_of_a_blocked_run_beside_others(blocked_since, other_runs):
    tasks = [(f"load[{number}]", []) for number in range(215)]
    projection = projection_of(tasks, deadline_at=START + 1500 * S, blocked_since=blocked_since)
    projection.run = projection.run._replace(dag_name="warehouse", run_id="20261127T183032")
    waiting = waiting_fact(other_runs, 80, UTF8)
    line = plain(run_line(Board(projection), "/var/warehouse.db", None, START + 300 * S, 80, UTF8, waiting))
    assert width([Piece(line)]) <= 80 and line.startswith(" warehouse · 2026")
    assert line.rstrip().endswith("slack 20m00")
    assert ("◆ 1 other run" in line) == bool(other_runs)


def test_a_run_that_blocked_at_once_says_only_for_how_long():
    projection = projection_of([("load", [])], blocked_since=START)
    line = plain(run_line(Board(projection), "/var/warehouse.db", None, START + 300 * S, 120, UTF8))
    assert "for 5m00" in line and "after" not in line


def test_both_times_of_a_run_that_has_ended_have_a_word():
    projection = projection_of([("load", [])])
    projection.run = projection.run._replace(state="FAILED", ended_at=projection.run.started_at + 18 * S)
    line = plain(run_line(Board(projection), "/var/warehouse.db", None, START + 60 * S, 120, UTF8))
    assert f"after 18s  at {wall(projection.run.started_at + 18 * S)}" in line


LABELS = ("Runs", "Graph", "Timeline", "Inbox", "Log", "Journal", "Systems", "History")
BADGES = ({}, {3: "◆1"}, {3: "◆20 ✗3", 6: "◆1"})
STATUSES: tuple[list[Line], ...] = (
    [[Piece("executor alive")], [Piece("alive")], []],
    [[Piece("executor gone 03:11:20")], [Piece("executor gone")], [Piece("gone")]],
    [[Piece("no executor")]],
)


@for_each("size", [40, 60, 80, 100, 120, 200])
@for_each("badges", BADGES)
def test_no_key_and_no_status_moves_a_tab(size: int, badges: dict[int, str]):
    shapes = set()
    for active in range(len(LABELS)):
        for rights in STATUSES:
            tabs = [
                Tab(str(place + 1), label, place == active, badges.get(place, "")) for place, label in enumerate(LABELS)
            ]
            text = plain(tabs_line(tabs, rights, size))
            assert len(text) <= size
            shapes.add(tuple(text.find(f" {place} ") for place in range(1, 8)))
            assert LABELS[active][:4] in text or (active == 7 and " 8 " in f"{text} ")
    assert len(shapes) == 1


@for_each("badges", [{3: "◆1"}, {3: "◆1", 6: "◆1"}, {0: "◆1", 3: "◆2"}, {3: "◆5 ✗3", 6: "◆7"}])
def test_at_80_columns_the_last_tab_has_a_word_beside_counts_of_one_digit(badges: dict[int, str]):
    tabs = [Tab(str(place + 1), label, False, badges.get(place, "")) for place, label in enumerate(LABELS)]
    assert " 8 Hist" in plain(tabs_line(tabs, STATUSES[0], 80))


@for_each("size", [160, 80, 60, 40])
def test_a_click_on_a_tab_finds_it_at_any_size(size: int):
    tabs = [Tab(str(place + 1), label, place == 2, "◆1" if place == 3 else "") for place, label in enumerate(LABELS)]
    text = plain(tabs_line(tabs, [], size))
    for place, tab in enumerate(tabs):
        assert tab_at(tabs, size, text.index(f" {tab.key}") + 1) == place
    assert tab_at(tabs, size, 0) is None and tab_at(tabs, size, len(text) + 20) is None
