"""Runs as rows: what is written is what is read, and readiness is proven where it is acted on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.projection import new_projection
from redrive.engine.core.run_outcome import RunOutcome
from redrive.engine.core.spec import DownstreamSpec, FlowSpec, TaskSpec, map_task
from redrive.engine.domain.acts import parse_command
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.event_payloads import (
    AttemptDeadline,
    AttemptSigkill,
    AttemptSigterm,
    AttemptStack,
    ClockMoved,
    RunChanged,
)
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.states import WAITING, RunState, TaskState
from redrive.engine.errors import RefusedError
from redrive.engine.statefile import durations, lists, map_tasks, operator_actions, snapshot, task_acts, transitions
from redrive.engine.statefile.clock_steps import shift_times
from redrive.engine.statefile.reader import events_query
from redrive.engine.statefile.sql import in_list
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import claims, database, endings, runs, settle
from redrive.engine.store.claims import Claim, ClaimOrder
from redrive.engine.store.executors import ExecutorIdentity

from .conftest import RUN, SECOND, START, StateFile

DIAMOND = {"a": "", "b": "a", "c": "a", "d": "b c"}


def create(state_file: StateFile, flow: FlowSpec, run_id: str = RUN) -> None:
    state_file.write(
        lambda transaction: runs.create_run(
            transaction,
            run_id=run_id,
            flow=flow,
            max_parallel=7,
            params={"day": "2026-04-25"},
            at=state_file.now,
            deadline_at=START + SECOND,
        )
    )


# --- Made and read back --------------------------------------------------------------------------------------------


def test_a_run_reads_back_as_it_was_written(state_file: StateFile) -> None:
    first = TaskSpec("first", params={"n": [1, None]}, retry=RetryPolicy(max_attempts=5, cap=9.5), downstream="bank")
    last = TaskSpec("last", ("middle", "first"), rule="all_done", timeout=1.5)
    middle = TaskSpec("middle", ("first",))
    flow = FlowSpec(
        "revenue",
        (first, last, middle),
        pools={"db": 2},
        downstreams=(DownstreamSpec("bank"),),
        code_hash="c0de",
        path="/srv/revenue.py",
    )
    create(state_file, flow)
    projection = state_file.projection()
    assert [row.spec for row in projection.tasks.values()] == [first, last, middle]
    assert [row.position for row in projection.tasks.values()] == [0, 1, 2]
    assert projection.tasks["first"].max_attempts == 5 and projection.tasks["first"].state is TaskState.PENDING
    assert projection.parents == {"first": (), "last": ("middle", "first"), "middle": ("first",)}
    assert projection.children == {"first": ("last", "middle"), "last": (), "middle": ("last",)}
    run = projection.run
    assert (run.dag_name, run.max_parallel, run.state, run.started_at) == ("revenue", 7, RunState.RUNNING, START)
    assert (run.params, run.flow_path, run.code_hash) == ('{"day": "2026-04-25"}', "/srv/revenue.py", "c0de")
    assert '"bank"' in run.options and '"db":2' in run.options and run.deadline_at == START + SECOND


def test_a_new_run_is_known_without_reading_its_tasks(state_file: StateFile) -> None:
    """Their order, a parent that is named twice, a list of 300 tasks: more values than one statement takes."""
    mapped = map_task(TaskSpec("each", ("a",)), "a", max_size=9)
    many = tuple(TaskSpec(f"t{number}", ("a", "each", "a")[: number % 4]) for number in range(300))
    flow = FlowSpec("f", (TaskSpec("a"), mapped, TaskSpec("last", ("t7", "a")), *many))
    state_file.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 700)
    create(state_file, flow)
    alone = runs.load_run_alone(state_file.connection, RUN)
    assert replace(new_projection(alone.run, flow.tasks), seq=alone.seq) == state_file.projection()


def test_a_run_is_reported_in_one_event(state_file: StateFile) -> None:
    state_file.create(DIAMOND)
    (event,) = state_file.emitted
    assert (event.kind, event.payload.what, event.payload.tasks, event.new) == (EventKind.RUN, "created", 4, "RUNNING")
    assert isinstance(event.payload, RunChanged) and event.payload.set["dag_name"] == "settlement"


def test_a_parent_named_twice_is_one_edge(state_file: StateFile) -> None:
    create(state_file, FlowSpec("f", (TaskSpec("a"), TaskSpec("b", ("a", "a")))))
    assert state_file.projection().parents["b"] == ("a",)


def test_a_second_run_of_the_same_name_is_refused_and_changes_nothing(state_file: StateFile) -> None:
    state_file.create(DIAMOND)
    with pytest.raises(RefusedError, match="resume it"):
        state_file.create({"other": ""})
    assert list(state_file.states()) == ["a", "b", "c", "d"] and len(state_file.emitted) == 1


def test_names_are_data(state_file: StateFile) -> None:
    hostile = ["'); DROP TABLE task; --", "[red]x[/]", "\x1b[2J", "a b", "ß☃", "%s{}"]
    create(state_file, FlowSpec("'; --", tuple(TaskSpec(name) for name in hostile)))
    assert list(state_file.projection().tasks) == hostile
    assert state_file.write(lambda transaction: claims.promote(transaction, RUN, dict.fromkeys(hostile, 0))) == hostile


def test_an_unknown_run_is_refused_by_name(state_file: StateFile) -> None:
    with pytest.raises(RefusedError, match="no run 'nowhere'"):
        runs.load_run(state_file.connection, "nowhere")


def test_the_projection_holds_attempts_and_the_instants_of_their_kill(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    state_file.now += SECOND
    assert state_file.claim("a") == 1
    ladder = [
        AttemptDeadline(),
        AttemptStack("settle.py:87 in settle"),
        AttemptSigterm("timeout"),
        AttemptSigkill("timeout"),
    ]
    for step in ladder:
        state_file.now += SECOND
        state_file.write(lambda j, s=step: j.emit(s, RUN, "a", attempt=1, generation=0))
    attempt = state_file.projection().tasks["a"].attempts[1]
    assert (attempt.deadline_at, attempt.sigterm_at, attempt.sigkill_at) == tuple(START + n * SECOND for n in (2, 4, 5))
    assert (attempt.where, attempt.started_at, attempt.outcome) == ("settle.py:87 in settle", START + SECOND, "running")
    task = state_file.projection().tasks["a"]
    assert (task.changed_seq, task.changed_at) == (state_file.emitted[-1].seq, START + 5 * SECOND)


def test_what_is_equal_in_the_tasks_of_a_run_is_in_memory_once(state_file: StateFile) -> None:
    """Of 100,000 tasks, most of what a console holds would be the same host, hash and instant again."""
    names = ["a", "b", 'q"q', "back\\slash", "☃"]
    create(state_file, FlowSpec("f", tuple(TaskSpec(name, source="flow.py:4", code="c0de") for name in names)))
    for name in names:
        state_file.move(name, "READY")
        state_file.claim(name)
    rows = state_file.projection().tasks
    assert [row.spec and row.spec.name for row in rows.values()] == names
    a, b = rows["a"], rows["b"]
    assert a.spec is not None and b.spec is not None and a.latest is not None and b.latest is not None
    assert a.spec.source is b.spec.source and a.spec.code is b.spec.code and a.latest.outcome is b.latest.outcome
    assert a.started_at is a.first_started_at is a.latest.started_at is a.changed_at is b.started_at


def test_runs_are_listed_latest_first_with_their_counts(state_file: StateFile) -> None:
    create(state_file, FlowSpec("f", (TaskSpec("a"), TaskSpec("b"))), "monday")
    state_file.now += SECOND
    create(state_file, FlowSpec("f", (TaskSpec("a"),)), "tuesday")
    state_file.connection.execute("UPDATE task SET state = 'DEAD_LETTER' WHERE run_id = 'monday' AND name = 'b'")
    listed = lists.runs(state_file.connection)
    assert [(item.run.run_id, item.counts) for item in listed] == [
        ("tuesday", {"PENDING": 1}),
        ("monday", {"DEAD_LETTER": 1, "PENDING": 1}),
    ]
    assert runs.latest_run_id(state_file.connection) == "tuesday"


def test_an_empty_file_has_no_latest_run(state_file: StateFile) -> None:
    assert runs.latest_run_id(state_file.connection) is None and lists.runs(state_file.connection) == []


def test_events_come_in_windows_and_of_one_run_with_those_of_the_file(state_file: StateFile) -> None:
    def emit(transaction: Transaction) -> None:
        for number in range(10):
            transaction.emit(ClockMoved(number), ["one", "two", None][number % 3])

    def read(since: int, run_id: str | None = None, limit: int = 500) -> list[Event]:
        return [event_of(row) for row in state_file.connection.execute(*events_query(since, limit, run_id))]

    state_file.write(emit)
    everything = read(0)
    assert everything == state_file.emitted
    assert read(everything[3].seq, limit=2) == everything[4:6]
    assert [event.payload.moved_us for event in read(0, "one")] == [0, 2, 3, 5, 6, 8, 9]


# --- Readiness -----------------------------------------------------------------------------------------------------


def plan(connection: sqlite3.Connection, sql: str, *values: Any) -> str:
    return "; ".join(row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, values))


@pytest.mark.parametrize(
    ("sql", "values"),
    [
        (map_tasks._INPUTS, ("r", "x")),
        (map_tasks._MAPS, ("r", "x")),
        (settle._FIRST, ("r", "x", 1, 0, 0)),
        (settle._LATEST, ("r", "x", 1, 0, 0)),
        (settle._LATEST_OF_CAUSE, ("r", "x", 1, 0, 0, "l")),
        (settle._READ, (1, 1, 1, "r", "x")),
        (task_acts.CHILDREN_NEEDING_RESULT, ("r", "x")),
    ],
)
def test_what_is_asked_for_each_attempt_or_target_walks_no_table(
    state_file: StateFile, sql: str, values: tuple[Any, ...]
) -> None:
    steps = plan(state_file.connection, sql, *values).split("; ")
    searches = [step for step in steps if not step.startswith(("USE TEMP B-TREE", "CORRELATED SCALAR SUBQUERY"))]
    few = "idx_page_task_open"  # of pages that are open
    assert searches and all(step.startswith("SEARCH") for step in searches)
    assert all("run_id=? AND " in step or few in step for step in searches)


@pytest.mark.parametrize("sql", [runs._AUDIT, claims._CLAIMABLE, claims._PROMOTABLE.format(marks="?")])
def test_readiness_is_searched_by_child_in_the_primary_key(state_file: StateFile, sql: str) -> None:
    values = ("r", 0) if sql == runs._AUDIT else ("r", "x", 0) if sql == claims._CLAIMABLE else ("r", "x")
    assert "SEARCH edge USING PRIMARY KEY (run_id=? AND child=?)" in plan(state_file.connection, sql, *values)


def test_propagation_walks_edges_by_their_parent(state_file: StateFile) -> None:
    waiting = f"{transitions._CHILDREN} AND task.state IN {in_list(WAITING)}"
    assert plan(state_file.connection, waiting, "r", "x").count("idx_edge_parent (run_id=? AND parent=?)") == 1
    found = "; ".join(
        row[3]
        for row in state_file.connection.execute(
            "EXPLAIN QUERY PLAN " + transitions._DESCENDANTS, {"run": "r", "name": "x"}
        )
    )
    assert found.count("idx_edge_parent (run_id=? AND parent=?)") == 2


def test_the_instants_of_kills_are_found_without_reading_the_run(state_file: StateFile) -> None:
    assert "idx_event_ladder" in plan(state_file.connection, snapshot.KILL_EVENTS, "r")


def promote_all(state_file: StateFile) -> list[str]:
    return state_file.write(lambda transaction: claims.promote(transaction, RUN, dict.fromkeys(state_file.states(), 0)))


def test_only_roots_can_start_a_run(state_file: StateFile) -> None:
    state_file.create(DIAMOND)
    assert runs.ready_audit(state_file.connection, RUN) == ["a"]
    assert promote_all(state_file) == ["a"]
    assert state_file.states() == {"a": "READY", "b": "PENDING", "c": "PENDING", "d": "PENDING"}


def test_a_join_waits_for_all_of_its_parents(state_file: StateFile) -> None:
    state_file.create(DIAMOND)
    state_file.set_state("a", "SUCCESS")
    state_file.set_state("b", "SUCCESS")
    assert promote_all(state_file) == ["c"]
    state_file.set_state("c", "SUCCESS")
    assert promote_all(state_file) == ["d"]


RULES = {
    # state of the parent, cause of the skip: may a child start under all_success, strict, none_failed, all_done
    ("PENDING", None): (0, 0, 0, 0),
    ("READY", None): (0, 0, 0, 0),
    ("RUNNING", None): (0, 0, 0, 0),
    ("RETRYING", None): (0, 0, 0, 0),
    ("SENSING", None): (0, 0, 0, 0),
    ("DEAD_LETTER", None): (0, 0, 0, 0),
    ("SUCCESS", None): (1, 1, 1, 1),
    ("FAILED", None): (0, 0, 0, 1),
    ("UPSTREAM_FAILED", None): (0, 0, 0, 1),
    ("CANCELLED", None): (0, 0, 0, 1),
    ("SKIPPED", "operator"): (1, 0, 1, 1),
    ("SKIPPED", "condition"): (0, 0, 1, 1),
    ("SKIPPED", "cascade"): (0, 0, 1, 1),
    ("SKIPPED", None): (0, 0, 1, 1),
}


@pytest.mark.parametrize(("parent", "allowed"), list(RULES.items()), ids=str)
def test_each_rule_says_which_ends_of_a_parent_it_accepts(
    state_file: StateFile, parent: tuple[str, str | None], allowed: tuple[int, ...]
) -> None:
    names = ["all_success", "all_success_strict", "none_failed", "all_done"]
    state_file.create({"p": "", **dict.fromkeys(names, "p")}, **{name: {"rule": name} for name in names})
    state_file.set_state("p", parent[0], skip_cause=parent[1])
    expected = [name for name, yes in zip(names, allowed, strict=True) if yes]
    assert [name for name in runs.ready_audit(state_file.connection, RUN) if name != "p"] == expected
    assert state_file.write(lambda transaction: claims.promote(transaction, RUN, dict.fromkeys(names, 0))) == expected


def test_a_not_before_is_reported_by_the_audit_and_cleared_by_the_promotion(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "PENDING", next_retry_at=START + SECOND)
    assert runs.ready_audit(state_file.connection, RUN, START) == []
    assert runs.ready_audit(state_file.connection, RUN, START + SECOND) == ["a"]
    assert promote_all(state_file) == ["a"]
    assert state_file.column("a", "next_retry_at") is None


def test_more_names_than_a_query_may_have(state_file: StateFile) -> None:
    names = [f"t{number}" for number in range(1_300)]
    state_file.create(dict.fromkeys(names, ""))
    assert state_file.write(lambda transaction: claims.promote(transaction, RUN, dict.fromkeys(names, 0))) == names


@pytest.mark.parametrize("state", ["READY", "RETRYING", "DEAD_LETTER"])
def test_a_requeue_that_shares_a_commit_with_the_dispatch_keeps_its_not_before(
    state_file: StateFile, state: str
) -> None:
    """The executor saw the task in its earlier generation, whose instant had come."""
    state_file.create({"a": ""})
    state_file.set_state("a", state)
    order = ClaimOrder("a", 0, TaskSpec("a"))
    command = state_file.command("requeue", "a", not_before=600)

    def batch(transaction: Transaction) -> list[Claim]:
        operator_actions.apply(transaction, parse_command(command))
        return claims.dispatch(transaction, RUN, {"a": 0}, [order], ExecutorIdentity("executor-1", "here", None))

    assert state_file.write(batch) == []
    row = state_file.projection().tasks["a"]
    assert (row.state, row.generation, row.next_retry_at) == ("PENDING", 1, START + 600 * SECOND)


def test_a_task_that_is_turned_away_counts_it(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", "READY", refusals=2)
    order = ClaimOrder("a", 0, TaskSpec("a", downstream="api"))
    state_file.write(lambda j: claims.reject(j, RUN, order, "fail"))
    assert (state_file.states()["a"], state_file.column("a", "refusals")) == ("FAILED", 3)


@pytest.mark.parametrize("verdict", [RunOutcome(RunState.FAILED), RunOutcome(RunState.RUNNING, is_blocked=True)])
def test_a_verdict_of_states_that_have_changed_is_not_written(state_file: StateFile, verdict: RunOutcome) -> None:
    """An operator requeues while the verdict is on its way to the file."""
    state_file.create({"a": ""})
    state_file.set_state("a", "FAILED")
    seen = state_file.projection().seq
    state_file.act("requeue", "a")
    state_file.write(lambda j: endings.write_verdict(j, RUN, verdict, seen))
    run = state_file.projection().run
    assert (run.state, run.ended_at, run.blocked_since) == ("RUNNING", None, None)
    state_file.write(lambda j: endings.write_verdict(j, RUN, verdict, state_file.projection().seq))
    assert state_file.projection().run.ended_at or state_file.projection().run.blocked_since


@pytest.mark.parametrize("jump", [3600, -3600])
def test_when_the_clock_is_set_what_is_left_and_what_has_passed_stay(state_file: StateFile, jump: int) -> None:
    state_file.create(dict.fromkeys(["waits", "runs", "done", "dead", "late"], ""))
    state_file.connection.execute("UPDATE run SET deadline_at = ?", (START + 900 * SECOND,))
    state_file.set_state("waits", "RETRYING", next_retry_at=START + 60 * SECOND, first_started_at=START - 60 * SECOND)
    state_file.set_state("runs", "RUNNING", first_started_at=START - 60 * SECOND)
    state_file.set_state("done", "SUCCESS", first_started_at=START - 60 * SECOND)
    state_file.set_state("dead", "DEAD_LETTER", expires_at=START + 600 * SECOND)
    state_file.set_state("late", "DEAD_LETTER", expires_at=START + 900 * SECOND)  # with the deadline of the run
    state_file.act("pause")
    state_file.write(lambda transaction: shift_times(transaction, [RUN], jump * SECOND))
    columns = ("next_retry_at", "first_started_at", "expires_at")
    rows = {name: [state_file.column(name, column) for column in columns] for name in state_file.states()}
    moved = {name: [at and (at - START) // SECOND for at in row] for name, row in rows.items()}
    assert moved == {
        "waits": [60 + jump, jump - 60, None],
        "runs": [None, jump - 60, None],
        "done": [None, -60, None],
        "dead": [None, None, 600 + jump],
        "late": [None, None, 900 + jump],
    }
    assert state_file.run_column("deadline_at") == START + (900 + jump) * SECOND
    assert state_file.projection().run.paused_since == START + jump * SECOND
    event = state_file.emitted[-1]
    assert (event.kind, event.payload) == ("clock", ClockMoved(jump * SECOND, 4))


# --- Waking and claiming -------------------------------------------------------------------------------------------


def test_a_retry_that_is_due_becomes_ready_and_runs(state_file: StateFile) -> None:
    """Document 003 wrote the state twice in one SET: the row stayed RETRYING and the run hung for ever."""
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    assert state_file.claim("a") == 1
    state_file.move("a", "RETRYING", next_retry_at=START + SECOND)
    assert state_file.write(lambda transaction: claims.wake(transaction, RUN, {"a": 0})) == ["a"]
    assert state_file.states() == {"a": "READY"} and state_file.column("a", "next_retry_at") is None
    assert state_file.claim("a") == 2
    assert state_file.states() == {"a": "RUNNING"}


def test_an_attempt_knows_whether_it_was_given_the_same_as_the_one_before(state_file: StateFile) -> None:
    """What would change between attempt one and two? (004.36)"""
    state_file.create({"p": "", "a": "p"})
    hashes = []
    for result, params in [("1", {}), ("1", {}), ("2", {}), ("2", {"day": 3})]:
        state_file.set_state("p", "SUCCESS", result=result)
        state_file.set_state("a", "READY")
        order = ClaimOrder("a", 0, TaskSpec("a", ("p",)))
        identity = ExecutorIdentity("executor-1", "here", None, params)
        state_file.write(lambda j, o=order, c=identity: claims.dispatch(j, RUN, {}, [o], c))
        attempt = state_file.projection().tasks["a"].attempts[len(hashes) + 1]
        hashes.append((attempt.input_hash, attempt.params_hash))
    first, second, other_input, other_params = hashes
    assert first == second
    assert other_input[0] != first[0] and other_input[1] == first[1]
    assert other_params[0] == other_input[0] and other_params[1] != other_input[1]


def test_attempts_are_counted_by_the_claim_and_only_there(state_file: StateFile) -> None:
    """Document 003 wrote ``attempt = 1`` with each claim, so that max_attempts bounded nothing."""
    state_file.create({"a": ""})
    numbers = []
    for _ in range(4):
        state_file.move("a", "READY")
        numbers.append(state_file.claim("a"))
        state_file.move("a", "RETRYING")
        assert state_file.column("a", "attempt") == numbers[-1]
    assert numbers == [1, 2, 3, 4]
    assert list(state_file.projection().tasks["a"].attempts) == numbers


def test_a_claim_writes_the_attempt_with_the_state(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    state_file.set_state("a", "READY", stale=1, progress_done=3, progress_total=9)
    state_file.claim("a", token="t1")
    row = state_file.projection().tasks["a"]
    assert (row.attempt, row.started_at, row.first_started_at) == (1, START, START)
    assert state_file.column("a", "claim_token") == "t1"
    assert (row.stale, row.progress_done, row.progress_total) == (0, None, None)
    event = state_file.emitted[-1]
    assert (event.old, event.new, event.attempt) == ("READY", "RUNNING", 1)
    assert event.payload.attempt_set == {"generation": 0, "started_at": START, "executor_id": "executor-1"}
    stored = state_file.connection.execute("SELECT token, executor_id, outcome FROM attempt").fetchall()
    assert stored == [("t1", "executor-1", "running")]


@pytest.mark.parametrize("state", [str(state) for state in TaskState if state is not TaskState.READY])
def test_only_a_ready_task_can_be_claimed(state_file: StateFile, state: str) -> None:
    state_file.create({"a": ""})
    state_file.set_state("a", state)
    assert state_file.claim("a") == 0
    assert state_file.states() == {"a": state} and state_file.projection().tasks["a"].attempts == {}


def test_a_claim_of_another_generation_is_refused(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    assert state_file.write(lambda transaction: claims.claim(transaction, RUN, "a", 1, "t", {})) == 0
    assert state_file.states() == {"a": "READY"}


@pytest.mark.parametrize(
    ("parent", "becomes", "blocked_by"),
    [
        ("PENDING", "PENDING", None),
        ("RUNNING", "PENDING", None),
        ("DEAD_LETTER", "PENDING", None),
        ("FAILED", "UPSTREAM_FAILED", "a"),
        ("CANCELLED", "UPSTREAM_FAILED", "a"),
    ],
)
def test_a_task_whose_parent_came_back_is_not_started_and_does_not_stay_ready(
    state_file: StateFile, parent: str, becomes: str, blocked_by: str | None
) -> None:
    state_file.create({"a": "", "b": "a", "c": "b"})
    state_file.set_state("a", parent)
    state_file.set_state("b", "READY")
    assert state_file.claim("b") == 0
    assert state_file.states() == {
        "a": parent,
        "b": becomes,
        "c": "UPSTREAM_FAILED" if becomes == "UPSTREAM_FAILED" else "PENDING",
    }
    assert state_file.column("b", "blocked_by") == blocked_by == state_file.column("c", "blocked_by")


def test_two_executors_that_claim_one_task_start_it_once(
    state_file: StateFile, make_state_file: Callable[[str], StateFile]
) -> None:
    """Read, decide, write has a window; the guarded UPDATE has none."""
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    other = database.open_for_writing(state_file.path)
    rival = StateFile.__new__(StateFile)
    rival.connection, rival.now, rival.emitted = other, START, []
    generation = state_file.column("a", "generation")
    assert rival.column("a", "state") == "READY"
    assert state_file.claim("a", "ours") == 1
    assert rival.write(lambda transaction: claims.claim(transaction, RUN, "a", generation, "theirs", {})) == 0
    assert state_file.column("a", "claim_token") == "ours"
    other.close()


# --- History -------------------------------------------------------------------------------------------------------


def attempt(state_file: StateFile, name: str, number: int, outcome: str, **columns: Any) -> None:
    columns = {
        "run_id": RUN,
        "name": name,
        "attempt": number,
        "generation": 0,
        "token": "t",
        "started_at": START,
        "outcome": outcome,
        **columns,
    }
    state_file.write(lambda transaction: transaction.insert("attempt", columns))


def test_durations_are_medians_of_what_succeeded(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": ""})
    for number, (outcome, seconds) in enumerate([("success", 1), ("success", 9), ("success", 2), ("error", 500)]):
        attempt(state_file, "a", number, outcome, duration_us=seconds * SECOND)
    attempt(state_file, "b", 1, "success")
    took = durations.duration_stats(state_file.connection, "settlement")
    assert took == {"a": durations.DurationStats(2 * SECOND, 9 * SECOND, 3)}
    assert durations.duration_stats(state_file.connection, "another") == {}


def test_a_failure_heals_when_the_same_generation_succeeds_after_it(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    attempt(state_file, "a", 1, "error", fingerprint="f1")
    attempt(state_file, "a", 2, "error", fingerprint="f1")
    attempt(state_file, "a", 3, "success")
    attempt(state_file, "a", 4, "error", fingerprint="f1", generation=1)
    attempt(state_file, "a", 5, "success", generation=2)  # an operator's requeue is help
    attempt(state_file, "a", 6, "lost", fingerprint="f2", generation=3)
    attempt(state_file, "a", 7, "success", generation=3)
    healed = runs.healed_count
    assert healed(state_file.connection, "a", "f1") == 1
    assert healed(state_file.connection, "a", "f2") == 0
    assert healed(state_file.connection, "b", "f1") == 0


def test_a_part_of_a_run_is_read_alone(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a", "c": "b"})
    state_file.move("a", "READY")
    state_file.claim("a")
    part = runs.load_part(state_file.connection, RUN, ["b", "a"])
    assert list(part.tasks) == ["a", "b"]
    assert list(part.tasks["a"].attempts) == [1]
    assert (part.parents, part.children["a"]) == ({"a": (), "b": ("a",)}, ("b",))
    assert list(runs.load_part(state_file.connection, RUN, ["c"]).parents["c"]) == []


def test_what_a_breaker_or_a_pause_may_hold_is_looked_for_in_the_whole_run(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a"})
    assert not runs.load_part(state_file.connection, RUN).tasks
    state_file.connection.execute("UPDATE run SET paused_since = 1")
    assert list(runs.load_part(state_file.connection, RUN).tasks) == ["a", "b"]
    state_file.connection.execute("UPDATE run SET paused_since = NULL, blocked_since = 1")
    assert list(runs.load_part(state_file.connection, RUN).tasks) == ["a", "b"]
