"""Engine, board, lists, shell, JSON, report, timeline, log and sessions say the same of random tasks and attempts."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import redrive.engine.store
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from redrive.console.cli.listings import TasksContext, task_lines
from redrive.console.model.board import Board
from redrive.console.model.inbox import Inbox
from redrive.console.present.evidence import attempt_line
from redrive.console.present.log import LogHeading, heading_line
from redrive.console.present.tasks import RunContext, task_line
from redrive.console.present.timeline_text import describe_path
from redrive.console.sessions.answers import decode_projection, merge_history
from redrive.console.text.figures import clock, column, offset
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.analysis.slot_seconds import slot_seconds
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.core.views import attempt_view, row_style, state_code
from redrive.engine.core.waiting import ALIVE, RunnerKind, RunnerStatus
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.domain.states import FAILED_OUTCOMES, MOVING, NEEDS_HUMAN, TaskState
from redrive.engine.domain.text import format_duration
from redrive.engine.statefile import lists, snapshot
from redrive.engine.store.runs import load_part, load_run

SCHEMA = (Path(redrive.engine.store.__file__).parent / "schema.sql").read_text()
S = 1_000_000
NOW = 1_700_000_000 * S
START = NOW - 1000 * S
PAST = st.integers(START // S, NOW // S - 1).map(lambda seconds: seconds * S)
OUTCOMES = ["success", "error", "timed_out", "lost", "cancelled", "deferred", "skipped"]
RUNNERS = [
    ALIVE,
    RunnerStatus(RunnerKind.GONE, ExecutorState(gone_at=NOW - 100 * S, pid=7)),
    RunnerStatus(RunnerKind.GONE),
]


def attempts_of(draw: st.DrawFn, state: str, generation: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in range(1, draw(st.integers(0, 3)) + 1):
        began = draw(PAST)
        took = draw(st.integers(0, 50)) * S
        outcome = draw(st.sampled_from(OUTCOMES))
        failed = outcome in FAILED_OUTCOMES
        found.append(
            {
                "attempt": number,
                "generation": draw(st.integers(0, generation)),
                "started_at": began,
                "ended_at": began + took,
                "duration_us": draw(st.none() | st.just(took) | st.just(took + S)),
                "outcome": outcome,
                "error": draw(st.sampled_from([None, "no such table"])) if failed else None,
                "error_type": draw(st.sampled_from([None, "a.b.KeyError"])) if failed else None,
                "explain": draw(st.sampled_from([None, "KeyError load.py:9"])) if failed else None,
                "fingerprint": draw(st.sampled_from([None, "f00d", "beef"])) if failed else None,
                "fingerprint_loose": draw(st.sampled_from([None, "cafe"])) if failed else None,
                "timeout_us": draw(st.sampled_from([None, 60 * S])),
                "late": draw(st.booleans()),
            }
        )
    if state == "RUNNING":
        last = found[-1] if found else {"attempt": 1, "generation": generation, "started_at": draw(PAST)}
        last = {**last, "ended_at": None, "duration_us": None, "outcome": "running", "late": 0}
        found = [*found[:-1], last]
    elif state == "SUCCESS" and found:
        found[-1] |= {"outcome": "success", "error": None, "error_type": None, "explain": None, "fingerprint": None}
    return found


class Rows(NamedTuple):
    """The tasks of a run, each with its attempts; ``edges``: child and parent."""

    tasks: list[tuple[dict[str, Any], list[dict[str, Any]]]]
    edges: list[tuple[str, str]]


@st.composite
def rows(draw: st.DrawFn) -> Rows:
    tasks = []
    for place in range(draw(st.integers(1, 4))):
        state, generation = draw(st.sampled_from([str(state) for state in TaskState])), draw(st.integers(0, 1))
        attempts = attempts_of(draw, state, generation)
        last = attempts[-1] if attempts else {}
        failed = state in NEEDS_HUMAN
        tasks.append(
            (
                {
                    "name": f"t{place}",
                    "state": state,
                    "position": place,
                    "generation": generation,
                    "attempt": len(attempts),
                    "failures": draw(st.integers(0, 2)),
                    "started_at": last.get("started_at"),
                    "ended_at": None if state in MOVING else draw(PAST),
                    "error": draw(st.none() | st.just("no such table")) if failed or state == "RETRYING" else None,
                    "dead_letter_kind": draw(st.sampled_from([None, "poison"])) if state == "DEAD_LETTER" else None,
                    "skip_cause": draw(st.sampled_from(["operator", "condition"])) if state == "SKIPPED" else None,
                    "next_retry_at": NOW + 9 * S if state in ("RETRYING", "SENSING") else None,
                    "stale": draw(st.integers(0, 1)) if state == "SUCCESS" else 0,
                    "notice": draw(st.none() | st.just("late")),
                    "result": draw(st.none() | st.just("[1]")) if state == "SUCCESS" else None,
                    "claim_token": draw(st.none() | st.just("secret")) if state == "RUNNING" else None,
                },
                attempts,
            )
        )
    names = [str(task["name"]) for task, _ in tasks]
    pairs = [(child, parent) for place, child in enumerate(names) for parent in names[:place]]
    return Rows(tasks, [pair for pair in pairs if draw(st.booleans())])


def write(connection: sqlite3.Connection, found: Rows) -> None:
    connection.executescript(SCHEMA)
    insert(connection, "run", {"run_id": "r", "dag_name": "flow", "started_at": START, "state": "RUNNING"})
    for task, attempts in found.tasks:
        parents = tuple(parent for child, parent in found.edges if child == task["name"])
        spec = msgspec.json.encode(TaskSpec(task["name"], parents[::-1])).decode()
        insert(connection, "task", {"run_id": "r", "spec": spec, **task})
        for attempt in attempts:
            insert(connection, "attempt", {"run_id": "r", "name": task["name"], "token": "t", **attempt})
            event = {"at": attempt["started_at"], "kind": "attempt.sigterm", "run_id": "r", "task": task["name"]}
            insert(connection, "event", {**event, "attempt": attempt["attempt"], "data": "{}"})
    for child, parent in found.edges:
        insert(connection, "edge", {"run_id": "r", "child": child, "parent": parent})


def insert(connection: sqlite3.Connection, table: str, values: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def as_sent(connection: sqlite3.Connection) -> RunProjection:
    """The run as it arrives over ssh: the board, then the history in windows of two tasks."""
    sent = json.loads(json.dumps(snapshot.board(connection, "r")))
    projection = decode_projection(sent)
    start: int | None = 0
    while start is not None:
        window = json.loads(json.dumps(snapshot.history(connection, "r", start, 2)))
        assert merge_history(projection, window)
        start = window["next"]
    return projection


@settings(deadline=None)
@given(rows())
def test_each_reader_reads_the_same_rows(found: Rows) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        write(connection, found)
        whole, names = load_run(connection, "r"), [task["name"] for task, _ in found.tasks]
        sent, states = as_sent(connection), load_run(connection, "r", successes="states")
        parts = [load_part(connection, "r", names), load_part(connection, "r", names, has_blockers=True)]
    assert sent == whole
    for part in parts:
        assert (part.run, part.parents, part.children) == (whole.run, whole.parents, whole.children)
        assert {name: without_instants(row) for name, row in part.tasks.items()} == {
            name: without_instants(row) for name, row in whole.tasks.items()
        }
    assert list(states.tasks) == names
    for name, row in whole.tasks.items():
        if row.state is not TaskState.SUCCESS:
            assert without_instants(states.tasks[name]) == without_instants(row)


def without_instants(row: TaskRow) -> TaskRow:
    return structs.replace(row, changed_seq=0, changed_at=0)


@settings(deadline=None)
@given(rows(), st.sampled_from(RUNNERS))
def test_lists_rows_and_json_say_the_same_state(found: Rows, runner: RunnerStatus) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        write(connection, found)
        whole, few = load_run(connection, "r"), load_run(connection, "r", successes="states")
    board = Board(whole)
    context = RunContext(board, NOW, UTF8, runner=runner)
    head, *listed = shell(few, board, runner)
    assert [head, *listed] == shell(whole, board, runner)
    values = {value["name"]: value for value in (json.loads(str(line)) for line in task_lines(whole, True, {}))}
    assert head.split() == ["TASK", "STATE", "ATTEMPT", "NOTE"]
    for line, (name, row) in zip(listed, whole.tasks.items(), strict=True):
        view, style = board.view(name, NOW, runner), row_style(row, runner)
        assert view.style == style
        assert state_code(row, runner) in line
        assert style.word in plain(task_line(row, context, 80, 9))
        assert values[name]["state"] == row.state and len(values[name]["attempts"]) == len(row.attempts)
    needing = {name for name, row in whole.tasks.items() if row.state in NEEDS_HUMAN}
    inbox = Inbox(board)
    assert {task for cause in inbox.causes() for task in cause.tasks} >= needing


def shell(projection: RunProjection, board: Board, runner: RunnerStatus) -> list[str]:
    about = TasksContext(projection, lambda name: board.explain(name, NOW, runner), runner)
    lines = task_lines(projection, False, {}, (), about)
    return [line if isinstance(line, str) else plain(line) for line in lines]


@settings(deadline=None)
@given(rows(), st.sampled_from(RUNNERS))
def test_all_say_the_same_duration_of_an_attempt(found: Rows, runner: RunnerStatus) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        write(connection, found)
        board = Board(load_run(connection, "r"))
        grid = {one.name: one for one in lists.query(connection, lists.RUN_TASKS, {"run_id": "r"})}
        past = {name: lists.query(connection, lists.HISTORY, {"task": name}) for name in grid}
    context = RunContext(board, NOW, UTF8, runner=runner)
    for row in board.projection.tasks.values():
        for attempt in row.attempts.values():
            view = attempt_view(attempt, NOW, runner)
            assert offset(view.clock) in plain(attempt_line(attempt, context, 80))
            title = plain(heading_line(row, attempt, None, LogHeading(0, 0, 0, False), context, 200)[0])
            lasts = clock(view.clock).strip() if attempt.ended_at is None else format_duration(view.clock)
            assert lasts in title and view.style.word in title, (title, view)
            lasted = None if attempt.ended_at is None else view.clock
            assert [one.duration_us for one in past[row.name] if one.attempt == attempt.attempt] == [lasted]
            if attempt is row.latest:
                assert (grid[row.name].state, grid[row.name].duration_us) == (row.state, lasted)
                if row.state is TaskState.SUCCESS:
                    assert column(view.clock) in plain(task_line(row, context, 80, 9))
        work = sum(attempt_view(one, NOW, runner).clock for one in row.attempts.values())
        if row.attempts:
            assert f"{format_duration(work)} of work" in describe_path([row.name], context)
    attempts = [one for row in board.projection.tasks.values() for one in row.attempts.values()]
    ended = [one for one in attempts if one.ended_at is not None]
    slots = sum(one.seconds for one in slot_seconds(board.projection).values())
    assert slots == pytest.approx(sum(attempt_view(one, NOW, runner).clock for one in ended) / 1e6)
