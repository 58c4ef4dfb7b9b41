"""Engine, board, lists, shell, JSON, metrics, report, inbox and fleet say the same of one run, whatever its rows."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
import redrive.engine.store
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from redrive.console.cli.metrics import Samples, add_run
from redrive.console.model.board import Board
from redrive.console.model.runs import fleet_entries, needs_of_board, status_of, waiting_runs
from redrive.console.model.session_status import Link, SessionStatus, runner_of
from redrive.console.present.fleet import FLEET_COLUMNS
from redrive.console.present.report import ReportData, headline
from redrive.console.present.runs import RUN_COLUMNS as COLUMNS
from redrive.console.present.runs import ListedRun, incident_summary
from redrive.console.present.states import RowContext, counts_line, counts_text
from redrive.console.sessions.answers import rows_of
from redrive.console.text.columns import json_value, shell_rows
from redrive.console.text.figures import column
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.core.projection import AttemptRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.core.views import UNSAVED, attempt_view, counted_states, run_code, run_view
from redrive.engine.domain.rows import ExecutorState, Health, RunFacts, RunSummary
from redrive.engine.domain.states import MOVING, RunState, TaskState
from redrive.engine.domain.text import format_duration
from redrive.engine.statefile import lists, state_files
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.needs import OF_RUNS, attention_count, exit_code_of, needs_of
from redrive.engine.statefile.state_files import FileRow
from redrive.engine.store.runs import load_run

from .runs import projection_of

SCHEMA = (Path(redrive.engine.store.__file__).parent / "schema.sql").read_text()
S = 1_000_000
NOW = 1_700_000_000 * S
START = NOW - 1000 * S
LOOK = RowContext(NOW, UTF8)
PAST = st.integers(START, NOW)
ENDED = [str(state) for state in RunState if state is not RunState.RUNNING]


#: The executor of the run lives, and gives no sign of life.
SILENT = ExecutorState(True, 9 * S, None, 7, "r", silent_since=NOW - 9 * S)


class Rows(NamedTuple):
    """A run, its tasks: state, and whether the task is an approval or was ended by the deadline; and who runs it."""

    run: dict[str, Any]
    tasks: list[tuple[str, bool]]
    executor: ExecutorState
    service_pid: int | None


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    ended_at = draw(st.none() | PAST)
    run = {
        "state": draw(st.sampled_from(ENDED)) if ended_at is not None else "RUNNING",
        "ended_at": ended_at,
        "blocked_since": None if ended_at is not None else draw(st.none() | PAST),
        "paused_since": draw(st.none() | PAST),
        "deadline_at": draw(st.none() | PAST | st.integers(NOW, NOW + 1000 * S)),
        "acknowledged_at": None if ended_at is None else draw(st.none() | PAST),
        "waited_us": draw(st.sampled_from([0, 0, 7 * S])),
    }
    states = [str(state) for state in TaskState if ended_at is None or state not in MOVING]
    tasks = draw(st.lists(st.tuples(st.sampled_from(states), st.booleans()), max_size=4))
    gone_at = draw(st.none() | PAST)
    executors = (
        ExecutorState(True, 0, None, 7, "r"),
        SILENT,
        ExecutorState(True, 0, None, 7, "other"),
        ExecutorState(False, None, gone_at, 7, "r", draw(st.booleans())),
        ExecutorState(False),
    )
    return Rows(run, tasks, draw(st.sampled_from(executors)), draw(st.none() | st.just(8)))


class Read(NamedTuple):
    """What each reader finds of the run."""

    file_row: Any
    figures: Any
    summary: RunSummary
    board: Board
    status: SessionStatus


def read(found: Rows) -> Read:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        run = {"run_id": "r", "dag_name": "flow", "started_at": START, **found.run}
        insert(connection, "run", run)
        for number, (state, is_approval) in enumerate(found.tasks):
            spec = TaskSpec(f"t{number}", kind="approval") if is_approval else TaskSpec(f"t{number}")
            known = {
                "position": number,
                "started_at": START,
                "ended_at": START,
                "failure_mode": "deadline" if is_approval and state == "CANCELLED" else None,
                "spec": msgspec.json.encode(spec).decode(),
            }
            insert(connection, "task", {"run_id": "r", "name": spec.name, "state": state, **known})
        file_row = state_files.read_file_row(connection, "/x.db")._replace(
            executor=found.executor, service_pid=found.service_pid
        )
        (latest,) = lists.query(connection, state_files.LATEST_RUNS, {})
        (summary,) = rows_of(RunSummary, json.loads(json.dumps(lists.runs(connection))))
        board = Board(load_run(connection, "r"))
    return Read(file_row, latest, summary, board, status_of(file_row))


def insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


@settings(deadline=None)
@given(rows())
@example(Rows({"state": "RUNNING"}, [("RUNNING", False)], SILENT, None))
def test_all_say_the_same_state(found: Rows) -> None:
    file_row, latest, summary, board, status = read(found)
    run, runner = board.projection.run, runner_of(board.projection.run, status)
    (entry,) = fleet_entries([file_row], NOW)
    samples = Samples()
    add_run(samples, latest, file_row, NOW)
    (metric,) = [labels[-1] for labels, value in samples.values["run_state"].items() if value]
    said = {
        "board": run_code(run, runner, board.counts),
        "list": run_code(summary.run, runner, counted_states(summary.counts, summary.asked)),
        "shell": cell("STATE", summary, file_row, status),
        "JSON": json_value(COLUMNS, listed_run(summary, file_row, status), LOOK)["state"],
        "fleet": fleet_cell(entry, "STATE"),
        "fleet JSON": json_value(FLEET_COLUMNS, entry, LOOK)["state"],
    }
    assert len(set(said.values())) == 1, said
    assert metric == str(said["board"]).removesuffix(" PAUSED"), (metric, said)
    word = run_view(run, runner, NOW, board.counts).style.word
    texts = {
        "short report": incident_summary(board, "/x.db", NOW, runner).splitlines()[0],
        "report": headline(ReportData(board, "/x.db", NOW, runner=runner)),
    }
    assert all(word in text for text in texts.values()), (word, texts)


@settings(deadline=None)
@given(rows())
def test_all_say_the_same_duration_and_counts(found: Rows) -> None:
    file_row, latest, summary, board, status = read(found)
    run, runner = board.projection.run, runner_of(board.projection.run, status)
    clock = run_view(run, runner, NOW, board.counts).clock
    samples = Samples()
    add_run(samples, latest, file_row, NOW)
    (metric,) = samples.values["run_duration_seconds"].values()
    assert metric == clock / 1e6
    shown = cell("TOOK", summary, file_row, status).strip()
    assert shown in (column(clock).strip(), format_duration(clock // S * S)), (shown, clock)
    for text in (
        incident_summary(board, "/x.db", NOW, runner),
        headline(ReportData(board, "/x.db", NOW, runner=runner)),
    ):
        assert f"after {format_duration(clock)}" in text
    (entry,) = fleet_entries([file_row], NOW)
    done = f"{board.finished}/{board.total}"
    assert done == cell("DONE", summary, file_row, status) == fleet_cell(entry, "DONE")
    assert f"{board.finished} of {board.total} done" in incident_summary(board, "/x.db", NOW, runner)
    assert board.counts == {
        state: count for state, count in counted_states(summary.counts, summary.asked).items() if count
    }


@settings(deadline=None)
@given(rows())
def test_all_say_the_same_needs(found: Rows) -> None:
    file_row, _, _, board, status = read(found)
    needs = [need for need in needs_of([file_row], NOW) if need.kind in OF_RUNS]
    waiting = waiting_runs(file_row.runs, status, NOW)
    count = attention_count(needs)
    assert count == sum(one.weight for one in waiting if not one.is_notice) == sum(one.weight for one in waiting)
    (entry,) = fleet_entries([file_row], NOW)
    value = json_value(FLEET_COLUMNS, entry, LOOK)
    assert value["needs_human"] == count and value["notices"] == sum(need.is_notice for need in needs)
    assert (exit_code_of(needs) != 0) == bool(count)
    of_board = needs_of_board(board, status, NOW)
    badge = attention_count(of_board)
    assert badge == count or any(need.is_notice for need in needs), (of_board, needs)
    assert {need.kind for need in of_board} == {need.kind for need in needs}, (of_board, needs)


def listed_run(summary: RunSummary, file_row: Any, status: SessionStatus) -> ListedRun:
    waiting = next(iter(waiting_runs(file_row.runs, status, NOW)), None)
    return ListedRun(summary, runner_of(summary.run, status), (), waiting)


def cell(title: str, summary: RunSummary, file_row: Any, status: SessionStatus) -> str:
    titles, row = shell_rows(COLUMNS, [listed_run(summary, file_row, status)], LOOK)
    return plain_text(row[titles.index(title)])


def fleet_cell(entry, title):
    """A cell of ``redrive fleet``."""
    titles, row = shell_rows(FLEET_COLUMNS, [entry], LOOK)
    return plain_text(row[titles.index(title)])


def plain_text(piece: Any) -> str:
    return cast(str, getattr(piece, "text", piece))


def test_a_followed_run_needs_what_its_living_processes_know() -> None:
    """Its file says neither: the disk is full, or the code of the flow has changed below ``redrive serve``."""
    board = Board(projection_of([("a", [])]))
    board.row("a").state = TaskState.RUNNING
    alive = SessionStatus(Link.LIVE, executor=ExecutorState(alive=True))
    run_id = board.projection.run.run_id
    full, served = Health("e", NOW, "full", {"a": NOW}), SessionStatus(Link.LIVE, service_pid=7)
    assert needs_of_board(board, alive, NOW) == needs_of_board(board, served, NOW) == []
    (need,) = needs_of_board(board, replace(alive, health=full), NOW)
    assert (need.kind, need.since, need.error) == (NeedKind.STORAGE, NOW, "full")
    (need,) = needs_of_board(board, replace(served, stuck_run=run_id), NOW)
    assert need.kind is NeedKind.LOST
    runner = runner_of(board.projection.run, replace(alive, health=full))
    assert board.view("a", NOW, runner).style is UNSAVED
    counts = {TaskState.RUNNING: 1}
    assert counts_text(counts, runner) == plain(counts_line(counts, UTF8, (), runner)) == "1 unsaved"
    assert counts_text(counts, replace(runner, unsaved={})) == "1 running"
    ended = replace(runner, unsaved={"a": NOW - 20 * S})  # before or after the disk was full
    assert attempt_view(AttemptRow(1, started_at=NOW - 60 * S), NOW, ended, board.row("a")).clock == 40 * S


@pytest.mark.parametrize("service_pid", [None, 7])
def test_a_board_needs_of_a_silent_executor_what_the_lists_say(service_pid: int | None) -> None:
    """It holds the file: a supervisor can start no other one."""
    board = Board(projection_of([("a", [])]))
    run = board.projection.run
    silent = ExecutorState(True, age_us=40 * S, pid=5, run_id=run.run_id, silent_since=NOW - 40 * S)
    facts = RunFacts(run.run_id, run.dag_name, run.started_at)
    file_row = FileRow("f", executor=silent, service_pid=service_pid, runs=[facts])
    (need,) = needs_of_board(board, status_of(file_row), NOW)
    assert [need._replace(path="f")] == needs_of([file_row], NOW)
    assert need.executor.pid == 5
