"""What needs a human: the rule over facts, and that reading the facts costs no walk over all runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, PermanentError, RetryPolicy
from redrive.engine.domain.rows import BreakerRow, ExecutorState, FailingSender, Health, RunFacts
from redrive.engine.domain.states import NO_CAUSE
from redrive.engine.statefile.lists import (
    ATTENTION_RUNS,
    DEAD_LETTER_GROUPS,
    NEED_ROWS,
    NeedKind,
    NeedRow,
    ScheduleRow,
    query,
)
from redrive.engine.statefile.needs import attention_count, exit_code_of, needs_of
from redrive.engine.statefile.state_files import FileRow, file_row_of
from redrive.engine.statefile.supervisor_file import FlowBefore, NightSummary, ServedSchedule
from support.marks import for_each

MINUTE = 60_000_000
NOW = 1_000 * MINUTE


def run(state: str = "RUNNING", **columns: Any) -> RunFacts:
    ended_at = None if state == "RUNNING" else NOW - MINUTE
    known = {"run_id": "r", "dag_name": "etl", "started_at": NOW - 2 * MINUTE, "ended_at": ended_at, "state": state}
    return RunFacts(**{**known, **columns})


def schedule(next_at: int | None) -> ScheduleRow:
    return ScheduleRow("etl", "* * * * *", "UTC", "one", None, 0, 0, next_at, None)


def breaker(name: str, state: str, since: int) -> BreakerRow:
    return BreakerRow(name, state, None, [], None, {}, since)


ALIVE = ExecutorState(True, run_id="r")

#: Facts of a file -> the kinds of its needs (with * for a notice), and the exit code.
CASES: dict[str, tuple[FileRow, list[str], int]] = {
    "nothing": (FileRow("f"), [], 0),
    "running": (FileRow("f", runs=[run()], executor=ALIVE), [], 0),
    "running under a scheduler": (FileRow("f", runs=[run()], service_pid=7), [], 0),
    "lost": (FileRow("f", runs=[run()]), ["LOST"], 3),
    "executor silent": (FileRow("f", runs=[run()], executor=ALIVE._replace(silent_since=NOW)), ["LOST"], 3),
    "late": (FileRow("f", runs=[run(deadline_at=NOW - 1)], executor=ALIVE), ["LATE"], 3),
    "late by the clock of the reader": (
        FileRow("f", runs=[run(deadline_at=NOW - 1)], executor=ALIVE, clock_offset_us=-180 * MINUTE),
        [],
        0,
    ),
    "late by the clock of its host": (
        FileRow("f", runs=[run(deadline_at=NOW + MINUTE)], executor=ALIVE, clock_offset_us=180 * MINUTE),
        ["LATE"],
        3,
    ),
    "blocked": (FileRow("f", runs=[run(blocked_since=NOW)]), ["BLOCKED"], 3),
    "running with a failed task": (FileRow("f", runs=[run(failed_tasks=2)], executor=ALIVE), ["FAILED_TASKS"], 3),
    "failed": (FileRow("f", runs=[run("FAILED")]), ["FAILED"], 1),
    "failed before a success": (FileRow("f", runs=[run("FAILED", later_successes=5)]), ["FAILED*"], 0),
    "partial": (FileRow("f", runs=[run("PARTIAL")]), ["PARTIAL"], 3),
    "success after the deadline": (FileRow("f", runs=[run("SUCCESS")]), ["LATE*"], 0),
    "failed twice": (FileRow("f", runs=[run("FAILED", later_successes=1), run("FAILED")]), ["FAILED", "FAILED*"], 1),
    "held rows": (FileRow("f", listed=[NeedRow("held rows", "r", "etl", NOW, 3)]), ["HELD_ROWS*"], 0),
    "changed": (
        FileRow("f", listed=[NeedRow("changed elements", "r", "etl", NOW, 3, "pay[1]")]),
        ["CHANGED_EFFECTS*"],
        0,
    ),
    "breaker just open": (FileRow("f", breakers=[breaker("api", "OPEN", NOW - MINUTE)]), [], 0),
    "breaker open": (FileRow("f", breakers=[breaker("api", "OPEN", NOW - 11 * MINUTE)]), ["BREAKER"], 3),
    "breaker held": (FileRow("f", breakers=[breaker("api", "FORCED_OPEN", 0)]), ["BREAKER*"], 0),
    "breaker probes": (FileRow("f", breakers=[breaker("api", "HALF_OPEN", NOW - 11 * MINUTE)]), ["BREAKER"], 3),
    "one task is held alone": (
        FileRow("f", runs=[run()], executor=ALIVE, breakers=[breaker("api", "CLOSED", NOW - 11 * MINUTE)]),
        ["BREAKER"],
        3,
    ),
    "a task was held alone": (FileRow("f", breakers=[breaker("api", "CLOSED", NOW - 11 * MINUTE)]), [], 0),
    "partial by decisions": (FileRow("f", runs=[run("PARTIAL", undecided=0)]), [], 0),
    "cannot be written": (FileRow("f", health=Health("x", NOW, "full")), ["STORAGE"], 3),
    "no room": (FileRow("f", full_since=NOW), ["STORAGE"], 3),
    "healthy": (FileRow("f", health=Health("x")), [], 0),
    "unsent": (
        FileRow("f", listed=[NeedRow("unsent pages", "", "", NOW, 2, "", "command: exit status 1")]),
        ["PAGER"],
        3,
    ),
    "unsent on a full disk": (
        FileRow("f", health=Health("x", NOW, "full", senders=[FailingSender("command", "exit status 1", NOW)])),
        ["STORAGE", "PAGER"],
        3,
    ),
    "served": (FileRow("f", schedules=[schedule(NOW + MINUTE)], service_pid=7), [], 0),
    "scheduler stopped": (FileRow("f", schedules=[schedule(NOW + MINUTE)]), [], 0),
    "scheduler killed": (
        FileRow("f", schedules=[schedule(NOW + MINUTE)], has_lost_service=True),
        ["SCHEDULER_DEAD"],
        3,
    ),
    "scheduler stopped and a run is due": (FileRow("f", schedules=[schedule(NOW - 2 * MINUTE)]), ["SCHEDULER_DEAD"], 3),
    "due and not started": (FileRow("f", schedules=[schedule(NOW - 2 * MINUTE)], service_pid=7), ["NOT_STARTED"], 3),
    "due while a run runs": (
        FileRow("f", schedules=[schedule(NOW - 2 * MINUTE)], runs=[run()], executor=ALIVE, service_pid=7),
        [],
        0,
    ),
    "missed": (
        FileRow("f", schedules=[schedule(NOW)], listed=[NeedRow("missed start", "", "etl", NOW, 4)], service_pid=7),
        ["NOT_STARTED"],
        3,
    ),
    "no more runs": (FileRow("f", schedules=[schedule(None)]), [], 0),
    "unreadable": (FileRow("f", problem="f is damaged"), ["UNREADABLE"], 3),
    "unreadable, full disk": (FileRow("f", problem="f is damaged", full_since=NOW), ["UNREADABLE", "STORAGE"], 3),
    "replaced": (FileRow("f", problem="not the open file", health=Health(storage_since=NOW)), ["STORAGE"], 3),
}


@for_each("case", CASES)
def test_a_file_needs(case: str) -> None:
    file_row, kinds, code = CASES[case]
    needs = needs_of([file_row], NOW)
    assert [need.kind.name + "*" * need.is_notice for need in needs] == kinds
    assert exit_code_of(needs) == code
    assert all(need.path == "f" for need in needs)


def test_an_executor_that_is_silent_is_not_called_gone() -> None:
    silent = ExecutorState(True, pid=7, run_id="r", silent_since=NOW)
    (need,) = needs_of([FileRow("f", runs=[run()], executor=silent)], NOW)
    assert need.executor.pid == 7


def test_dead_letters_are_one_need_for_each_cause() -> None:
    groups = [
        NeedRow("dead letters", "r", "etl", 1, 5, "load", "no route", "f1"),
        NeedRow("dead letters", "r", "etl", 2, 1, "send", "", "f2"),
    ]
    needs = needs_of([FileRow("f", runs=[run(dead_letters=6, blocked_since=NOW)], listed=groups)], NOW)
    assert [(need.counted, need.subject, need.error, need.fingerprint) for need in needs] == [
        (5, "load", "no route", "f1"),
        (1, "send", "", "f2"),
    ]
    assert attention_count(needs) == 6 and exit_code_of(needs) == 3


def test_each_failed_task_counts_while_its_run_goes_on_and_after_its_end() -> None:
    """As the inbox of the run lists them: beside dead letters, too, and once."""
    approvals = [NeedRow("approval", "r", "etl", NOW, 1, "release")]
    columns: dict[str, Any] = {"failed_tasks": 3, "failed": "load", "error": "no route", "asked": 1}
    going_on = needs_of([FileRow("f", runs=[run(**columns)], listed=approvals, executor=ALIVE)], NOW)
    assert [(need.kind.name, need.counted, need.subject, need.error) for need in going_on] == [
        ("APPROVAL", 1, "release", ""),
        ("FAILED_TASKS", 3, "load", "no route"),
    ]
    assert attention_count(going_on) == 4
    assert attention_count(needs_of([FileRow("f", runs=[run("FAILED", failed_tasks=3)])], NOW)) == 3
    assert attention_count(needs_of([FileRow("f", runs=[run(dead_letters=2, failed_tasks=3)])], NOW)) == 5


def test_notices_come_last_and_dead_letters_before_failures() -> None:
    first = FileRow("a", runs=[run("FAILED", later_successes=1)])
    second = FileRow("b", runs=[run("FAILED"), run(dead_letters=1)])
    assert [(need.path, need.kind) for need in needs_of([first, second], NOW)] == [
        ("b", NeedKind.DEAD_LETTERS),
        ("b", NeedKind.FAILED),
        ("a", NeedKind.FAILED),
    ]


def scheduled(flow: str, **facts: Any) -> ServedSchedule:
    """A schedule whose supervisor lives, unless its facts say otherwise."""
    return ServedSchedule(1, f"{flow}.py:flow", f"{flow}.py", "flow", flow, **{"heartbeat_at": NOW, **facts})


def test_a_supervisor_knows_starts_that_failed_and_whether_it_lives() -> None:
    facts = [
        scheduled("a", failed_since=NOW, start_error="SyntaxError: invalid syntax", missed_times=3),
        scheduled("b", missed_times=2, missed_since=NOW),
        scheduled("d"),
        scheduled("e", heartbeat_at=0, next_at=NOW + MINUTE),
        scheduled("never", heartbeat_at=0),
        scheduled("stopped", stopped_at=NOW, next_at=NOW + MINUTE),
        scheduled("forgotten", stopped_at=NOW, next_at=NOW - 2 * MINUTE),
        scheduled("f", late_since=NOW),
    ]
    needs = needs_of([FileRow("s", supervised=facts)], NOW)
    assert [(need.kind, need.flow, need.counted) for need in needs] == [
        (NeedKind.SCHEDULER_DEAD, "forgotten", 1),
        (NeedKind.SCHEDULER_DEAD, "e", 1),
        (NeedKind.FAILED_START, "a", 1),
        (NeedKind.NOT_STARTED, "b", 2),
        (NeedKind.NOT_STARTED, "f", 1),
    ]
    assert exit_code_of(needs_of([FileRow("s", supervised=facts[:1])], NOW)) == 1


@pytest.mark.parametrize(("late_since", "since"), [(None, 0), (NOW - MINUTE, NOW - MINUTE)])
def test_a_flow_after_others_has_no_due_time_of_its_own_until_it_is_late(late_since: int | None, since: int) -> None:
    after = (FlowBefore("load", "goes on", None, ""),)
    row = scheduled("mart", heartbeat_at=0, next_at=NOW - 5 * MINUTE, late_since=late_since, after=after)
    (need,) = needs_of([FileRow("s", supervised=[row])], NOW)
    assert (need.kind, need.since) == (NeedKind.SCHEDULER_DEAD, since)


def test_what_a_supervisor_knows_replaces_what_the_state_file_says_of_a_schedule() -> None:
    late, _, _ = CASES["due and not started"]
    assert needs_of([late._replace(supervised=[scheduled("etl")])], NOW) == []
    killed, _, _ = CASES["scheduler killed"]
    for facts in (scheduled("etl"), scheduled("etl", heartbeat_at=0, next_at=NOW)):
        assert [need.kind for need in needs_of([killed._replace(supervised=[facts])], NOW)] == [NeedKind.SCHEDULER_DEAD]


# --- The facts of a file -------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state file of a run that has failed."""
    flow = Flow("etl")

    def load() -> None:
        raise OSError("no route")

    flow.task(name="load", retry=RetryPolicy(max_attempts=1))(load)
    Executor(run_id="first", flow=flow, state=tmp_path / "etl.db").run()
    return tmp_path / "etl.db"


def change(state: Path, sql: str) -> None:
    with sqlite3.connect(state) as connection:
        connection.execute(sql)
    connection.close()


def test_a_failed_run_is_read_with_its_error_and_the_successes_after_it(state: Path) -> None:
    (failed,) = file_row_of(str(state)).runs
    assert (failed.run_id, failed.state, failed.failed, failed.later_successes) == ("first", "FAILED", "load", 0)
    assert "no route" in (failed.error or "")
    change(
        state,
        "INSERT INTO run (run_id, dag_name, started_at, ended_at, state) SELECT n.column1, n.column2, started_at + 1,"
        " ended_at, 'SUCCESS' FROM run, (SELECT 'a' AS column1, 'etl' AS column2 UNION SELECT 'b', 'etl'"
        " UNION SELECT 'c', 'another') AS n WHERE run_id = 'first'",
    )
    (failed,) = file_row_of(str(state)).runs
    assert failed.later_successes == 2


def test_held_rows_of_all_runs_are_read(state: Path) -> None:
    for run_id in ("first", "first"):
        change(
            state,
            "INSERT INTO quarantine (run_id, name, attempt, row_key, state, at)"
            f" VALUES ('{run_id}', 'load', 1, hex(randomblob(4)), 'held', 5)",
        )
    assert file_row_of(str(state)).listed == [NeedRow("held rows", "first", "etl", 5, 2)]


def test_dead_letters_are_grouped_by_the_fingerprint_of_their_cause(tmp_path: Path) -> None:
    """A hang has no strict fingerprint; an attempt that was lost shares no cause with another."""
    flow = Flow("etl")

    def fail(ctx: Any) -> None:
        raise PermanentError(ctx.task)

    lost = [f"no cause {number}" for number in range(len(NO_CAUSE))]
    for name in ("a", "b", "hangs", *lost):
        flow.task(name=name)(fail)
    state = tmp_path / "etl.db"
    Executor(run_id="first", flow=flow, state=state).run()
    change(state, "UPDATE task SET failure_fingerprint = '' WHERE name NOT IN ('a', 'b')")
    for name, loose in (("hangs", "h"), *zip(lost, sorted(NO_CAUSE), strict=True)):
        change(state, f"UPDATE attempt SET fingerprint = '', fingerprint_loose = '{loose}' WHERE name = '{name}'")
    common, *others = file_row_of(str(state)).rows_of(NeedKind.DEAD_LETTERS)
    assert (common.task, common.error, common.counted) == ("a", "a", 2) and common.fingerprint
    assert [(group.task, group.counted, group.fingerprint) for group in others] == [
        ("hangs", 1, "h"),
        ("no cause 0", len(NO_CAUSE), None),
    ]


@pytest.mark.parametrize("listing", [ATTENTION_RUNS, DEAD_LETTER_GROUPS, NEED_ROWS], ids=lambda one: one.name)
def test_facts_are_read_by_an_index(listing: Any, state: Path) -> None:
    with sqlite3.connect(state) as connection:
        plan = connection.execute("EXPLAIN QUERY PLAN " + listing.sql, listing.defaults).fetchall()
    connection.close()
    steps = [row[3] for row in plan]
    assert any("INDEX idx_run_attention" in step or "INDEX idx_quarantine_held" in step for step in steps), steps
    tables = ("SCAN run", "SCAN task", "SCAN quarantine", "SCAN later")
    assert not [step for step in steps if step.startswith(tables) and "USING" not in step], steps


def test_missed_starts_are_those_since_the_latest_run(state: Path) -> None:
    change(
        state,
        "INSERT INTO schedule (dag_name, expression, timezone, misfire, since, decided_until)"
        " VALUES ('etl', '* * * * *', 'UTC', 'one', 0, 0)",
    )
    later = 2**60
    for at, found in [(5, "missed"), (later, "missed"), (later + 1, "missed")]:
        change(
            state,
            f"INSERT INTO slot (dag_name, logical_time, state, decided_at) VALUES ('etl', {at}, '{found}', 0)",
        )
    assert file_row_of(str(state)).listed == [NeedRow("missed start", "", "etl", later, 2)]
    with sqlite3.connect(state) as connection:
        connection.execute("UPDATE run SET ended_at = NULL, state = 'RUNNING'")
        assert query(connection, NEED_ROWS, {}) == []
    connection.close()


def test_the_nights_of_a_flow_are_the_worst_ends_of_its_last_days(state: Path) -> None:
    day = 86_400_000_000
    rows = [(0, "SUCCESS"), (1, "SUCCESS"), (1, "PARTIAL"), (2, "FAILED"), (2, "SUCCESS"), (4, "RUNNING")]
    change(state, "DELETE FROM run")
    for number, (days, end) in enumerate(rows):
        at = 1_700_000_000_000_000 + days * day
        change(
            state,
            "INSERT INTO run (run_id, dag_name, started_at, ended_at, state)"
            f" VALUES ('{number}', 'etl', {at}, {'NULL' if end == 'RUNNING' else at}, '{end}')",
        )
    nights = file_row_of(str(state)).nights
    assert [one.state for one in nights] == ["SUCCESS", "PARTIAL", "FAILED", "RUNNING"]
    for days in range(20):
        at = 1_800_000_000_000_000 + days * day
        change(
            state,
            "INSERT INTO run (run_id, dag_name, started_at, ended_at, state)"
            f" VALUES ('later-{days}', 'etl', {at}, {at}, 'SUCCESS')",
        )
    assert [night._replace(day="") for night in file_row_of(str(state)).nights] == [NightSummary("SUCCESS", 0)] * 14
