"""Who may start next."""

import random
import sqlite3

import pytest
from redrive.engine.core.projection import RunProjection, RunRow, TaskRow
from redrive.engine.core.ready_queue import ReadyQueue
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.states import TaskState
from redrive.engine.domain.trigger_rules import RULES, satisfied_rules
from redrive.engine.statefile.changes.propagation import UNSATISFIED_PARENT


def fold_of(edges: dict[str, list[str]], **specs) -> RunProjection:
    fold = RunProjection(RunRow("r"))
    for position, (name, parents) in enumerate(edges.items()):
        spec = TaskSpec(name, tuple(parents), **specs.get(name, {}))
        fold.tasks[name] = TaskRow(name, position=position, spec=spec)
        fold.parents[name] = tuple(parents)
    fold.children = {name: tuple(child for child in edges if name in edges[child]) for name in edges}
    return fold


def move(ledger: ReadyQueue, fold: RunProjection, name: str, new: TaskState, **columns) -> None:
    row = fold.tasks[name]
    old, row.state = row.state, new
    for column, value in columns.items():
        setattr(row, column, value)
    ledger.apply_move(row, old)


def anything(row: TaskRow) -> bool:
    return True


DIAMOND = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}


def test_a_task_is_startable_when_all_parents_are_satisfied():
    fold = fold_of(DIAMOND)
    ledger = ReadyQueue(fold, {})
    assert {"top"} == ledger.promotable
    move(ledger, fold, "top", TaskState.SUCCESS)
    assert {"left", "right"} == ledger.promotable
    move(ledger, fold, "left", TaskState.SUCCESS)
    assert {"right"} == ledger.promotable
    move(ledger, fold, "right", TaskState.SKIPPED, skip_cause="operator")
    assert {"bottom"} == ledger.promotable


def test_a_parent_that_is_run_again_takes_its_children_back():
    fold = fold_of(DIAMOND)
    ledger = ReadyQueue(fold, {})
    move(ledger, fold, "top", TaskState.SUCCESS)
    move(ledger, fold, "top", TaskState.PENDING)
    assert {"top"} == ledger.promotable
    assert ["top"] == ledger.pop_startable(9, anything)


def test_a_success_frees_the_children_that_wait_for_nothing_else():
    fold = fold_of({**DIAMOND, "later": ["top"], "other": [], "both": ["top", "other"]})
    ledger = ReadyQueue(fold, {})
    ledger.defer("later")
    fold.tasks["right"].generation = 3
    assert {"left": 0, "right": 3} == ledger.unblocked_by("top"), (
        "neither one with an instant nor one with another parent"
    )
    move(ledger, fold, "top", TaskState.SUCCESS)
    assert {} == ledger.unblocked_by("left")
    move(ledger, fold, "right", TaskState.SUCCESS)
    assert {"bottom": 0} == ledger.unblocked_by("left")


def test_the_longest_remaining_path_starts_first():
    fold = fold_of({"short": [], "long": [], "middle": []})
    ledger = ReadyQueue(fold, {"short": 1.0, "long": 9.0, "middle": 5.0})
    assert ["long", "middle"] == ledger.pop_startable(2, anything)
    assert ["short"] == ledger.pop_startable(2, anything)


def test_a_picked_task_is_not_picked_again_until_its_claim_is_settled():
    fold = fold_of({"a": []})
    ledger = ReadyQueue(fold, {})
    assert ["a"] == ledger.pop_startable(1, anything)
    assert [] == ledger.pop_startable(1, anything)
    ledger.release_claims(["a"])  # the claim did not happen: offered again
    assert ["a"] == ledger.pop_startable(1, anything)
    move(ledger, fold, "a", TaskState.READY)
    move(ledger, fold, "a", TaskState.RUNNING)
    ledger.release_claims(["a"])
    assert [] == ledger.pop_startable(1, anything)


def test_a_task_that_is_taken_out_of_its_turn_is_offered_once_more_only_if_its_claim_failed():
    fold = fold_of({"urgent": [], "cheap": []}, cheap={"pool": "db"})
    ledger = ReadyQueue(fold, {"urgent": 9.0, "cheap": 1.0})
    ledger.claim("cheap")
    assert 1 == ledger.pool_used["db"]
    assert ["urgent"] == ledger.pop_startable(9, anything)
    ledger.release_claims(["cheap", "urgent"])
    assert 0 == ledger.pool_used["db"]
    assert ["urgent", "cheap"] == ledger.pop_startable(9, anything)


def test_a_full_pool_holds_its_lane_and_no_other():
    fold = fold_of({"p1": [], "p2": [], "free": []}, p1={"pool": "db"}, p2={"pool": "db"})
    ledger = ReadyQueue(fold, {"p1": 3.0, "p2": 2.0, "free": 1.0})
    one_slot = lambda row: row.spec.pool is None or ledger.pool_used[row.spec.pool] < 1  # noqa: E731
    assert ["p1", "free"] == ledger.pop_startable(9, one_slot)
    for state in (TaskState.READY, TaskState.RUNNING):
        move(ledger, fold, "p1", state)
    ledger.release_claims(["p1", "free"])
    move(ledger, fold, "p1", TaskState.SUCCESS)
    assert "p2" in ledger.pop_startable(9, one_slot)


def test_a_retry_is_startable_only_when_it_is_due():
    fold = fold_of({"a": []})
    ledger = ReadyQueue(fold, {})
    for state in (TaskState.READY, TaskState.RUNNING, TaskState.RETRYING):
        move(ledger, fold, "a", state)
    assert [] == ledger.pop_startable(1, anything)
    assert 1 == ledger.active_count
    ledger.mark_due("a")
    assert ["a"] == ledger.pop_startable(1, anything)


def test_a_pending_task_with_an_instant_waits_for_it():
    fold = fold_of({"a": []})
    ledger = ReadyQueue(fold, {})
    ledger.defer("a")
    assert not ledger.promotable
    assert 1 == ledger.active_count
    ledger.mark_due("a")
    assert {"a"} == ledger.promotable


@pytest.mark.parametrize("seed", range(20))
def test_the_counts_agree_with_a_fresh_ledger_after_any_moves(seed):
    """The ledger is a cache: rebuilt from the fold it must say the same."""
    dice = random.Random(seed)
    names = [f"t{number}" for number in range(30)]
    edges = {name: dice.sample(names[:index], k=min(index, dice.randint(0, 3))) for index, name in enumerate(names)}
    fold = fold_of(edges, **{name: {"rule": dice.choice(RULES)} for name in names})
    ledger = ReadyQueue(fold, {})
    for _ in range(200):
        cause = dice.choice(["operator", "condition"])
        move(ledger, fold, dice.choice(names), dice.choice(list(TaskState)), skip_cause=cause)
    fresh = ReadyQueue(fold, {})
    assert fresh.unmet_counts == ledger.unmet_counts
    assert +fresh.counts == +ledger.counts
    assert fresh.promotable == ledger.promotable


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("cause", ["operator", "condition", "cascade", None])
def test_the_table_in_sql_says_the_same(rule, state, cause):
    """The promotion is guarded by SQL once more; both tables of rules must agree."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE task (run_id, name, state, skip_cause, rule); CREATE TABLE edge (run_id, child, parent);"
        "INSERT INTO edge VALUES ('r', 'child', 'parent');"
    )
    connection.execute("INSERT INTO task VALUES ('r', 'parent', ?, ?, 'all_success')", (state.value, cause))
    connection.execute("INSERT INTO task VALUES ('r', 'child', 'PENDING', NULL, ?)", (rule,))
    held = connection.execute(f"SELECT 1 FROM task WHERE name = 'child' AND EXISTS ({UNSATISFIED_PARENT})").fetchone()
    assert (rule in satisfied_rules(state, cause)) is (held is None)
