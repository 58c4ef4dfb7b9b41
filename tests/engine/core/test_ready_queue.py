"""Which task starts next."""

import random
import sqlite3

from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.core.ready_queue import ReadyQueue
from redrive.engine.core.spec import DaskOptions, TaskSpec
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import SkipCause, TaskState
from redrive.engine.domain.trigger_rules import RULES, VERDICTS, satisfied_rules
from redrive.engine.statefile.transitions import UNSATISFIED_PARENT
from support.marks import for_each


def projection_of(edges: dict[str, list[str]], **specs) -> RunProjection:
    projection = RunProjection(RunRow("r"))
    for position, (name, parents) in enumerate(edges.items()):
        spec = TaskSpec(name, tuple(parents), **specs.get(name, {}))
        projection.tasks[name] = TaskRow(name, position=position, spec=spec)
        projection.parents[name] = tuple(parents)
    projection.children = {name: tuple(child for child in edges if name in edges[child]) for name in edges}
    return projection


def move(queue: ReadyQueue, projection: RunProjection, name: str, new: TaskState, **columns) -> None:
    row = projection.tasks[name]
    old, row.state = row.state, new
    for column, value in columns.items():
        setattr(row, column, value)
    queue.apply_move(row, old)


def anything(row: TaskRow) -> bool:
    return True


DIAMOND = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}


def test_a_task_is_startable_when_all_parents_are_satisfied():
    projection = projection_of(DIAMOND)
    queue = ReadyQueue(projection, {})
    assert {"top"} == queue.promotable
    move(queue, projection, "top", TaskState.SUCCESS)
    assert {"left", "right"} == queue.promotable
    move(queue, projection, "left", TaskState.SUCCESS)
    assert {"right"} == queue.promotable
    move(queue, projection, "right", TaskState.SKIPPED, skip_cause="operator")
    assert {"bottom"} == queue.promotable


def test_a_parent_that_is_run_again_takes_its_children_back():
    projection = projection_of(DIAMOND)
    queue = ReadyQueue(projection, {})
    move(queue, projection, "top", TaskState.SUCCESS)
    move(queue, projection, "top", TaskState.PENDING)
    assert {"top"} == queue.promotable
    assert ["top"] == queue.pop_startable(9, anything)


def test_a_success_frees_the_children_that_wait_for_nothing_else():
    projection = projection_of({**DIAMOND, "later": ["top"], "other": [], "both": ["top", "other"]})
    queue = ReadyQueue(projection, {})
    queue.defer("later")
    projection.tasks["right"].generation = 3
    assert {"left": 0, "right": 3} == queue.unblocked_by("top"), (
        "neither one with an instant nor one with another parent"
    )
    move(queue, projection, "top", TaskState.SUCCESS)
    assert {} == queue.unblocked_by("left")
    move(queue, projection, "right", TaskState.SUCCESS)
    assert {"bottom": 0} == queue.unblocked_by("left")


def test_a_skipped_task_that_an_operator_permits_frees_its_children():
    """An undo makes a task that follows from its parents one that an operator has skipped, without a move."""
    projection = projection_of(DIAMOND)
    queue = ReadyQueue(projection, {})
    move(queue, projection, "top", TaskState.SKIPPED, skip_cause="cascade")
    assert set() == queue.promotable
    projection.tasks["top"].skip_cause = "operator"
    queue.apply_event(EventKind.TASK_CHANGED, projection.tasks["top"], TaskState.SKIPPED)
    assert {"left", "right"} == queue.promotable


def test_the_longest_remaining_path_starts_first():
    projection = projection_of({"short": [], "long": [], "middle": []})
    queue = ReadyQueue(projection, {"short": 1.0, "long": 9.0, "middle": 5.0})
    assert ["long", "middle"] == queue.pop_startable(2, anything)
    assert ["short"] == queue.pop_startable(2, anything)


def test_a_picked_task_is_not_picked_again_until_its_claim_is_settled():
    projection = projection_of({"a": []})
    queue = ReadyQueue(projection, {})
    assert ["a"] == queue.pop_startable(1, anything)
    assert [] == queue.pop_startable(1, anything)
    queue.release_claims(["a"])  # the claim did not happen: offered again
    assert ["a"] == queue.pop_startable(1, anything)
    move(queue, projection, "a", TaskState.READY)
    move(queue, projection, "a", TaskState.RUNNING)
    queue.release_claims(["a"])
    assert [] == queue.pop_startable(1, anything)


def test_a_task_that_is_taken_out_of_its_turn_is_offered_once_more_only_if_its_claim_failed():
    projection = projection_of({"urgent": [], "cheap": []}, cheap={"pool": "db"})
    queue = ReadyQueue(projection, {"urgent": 9.0, "cheap": 1.0})
    queue.claim("cheap")
    assert 1 == queue.pool_used["db"]
    assert ["urgent"] == queue.pop_startable(9, anything)
    queue.release_claims(["cheap", "urgent"])
    assert 0 == queue.pool_used["db"]
    assert ["urgent", "cheap"] == queue.pop_startable(9, anything)


def test_a_full_pool_holds_its_lane_and_no_other():
    projection = projection_of({"p1": [], "p2": [], "free": []}, p1={"pool": "db"}, p2={"pool": "db"})
    queue = ReadyQueue(projection, {"p1": 3.0, "p2": 2.0, "free": 1.0})
    one_slot = lambda row: row.spec.pool is None or queue.pool_used[row.spec.pool] < 1  # noqa: E731
    assert ["p1", "free"] == queue.pop_startable(9, one_slot)
    for state in (TaskState.READY, TaskState.RUNNING):
        move(queue, projection, "p1", state)
    queue.release_claims(["p1", "free"])
    move(queue, projection, "p1", TaskState.SUCCESS)
    assert "p2" in queue.pop_startable(9, one_slot)


def test_a_retry_is_startable_only_when_it_is_due():
    projection = projection_of({"a": []})
    queue = ReadyQueue(projection, {})
    for state in (TaskState.READY, TaskState.RUNNING, TaskState.RETRYING):
        move(queue, projection, "a", state)
    assert [] == queue.pop_startable(1, anything)
    assert 1 == queue.active_count
    queue.mark_due("a")
    assert ["a"] == queue.pop_startable(1, anything)


def test_a_pending_task_with_an_instant_waits_for_it():
    projection = projection_of({"a": []})
    queue = ReadyQueue(projection, {})
    queue.defer("a")
    assert not queue.promotable
    assert 1 == queue.active_count
    queue.mark_due("a")
    assert {"a"} == queue.promotable


@for_each("seed", range(20))
def test_the_counts_agree_with_a_fresh_ledger_after_any_moves(seed):
    """The queue is a cache: rebuilt from the projection it must say the same."""
    dice = random.Random(seed)
    names = [f"t{number}" for number in range(30)]
    edges = {name: dice.sample(names[:index], k=min(index, dice.randint(0, 3))) for index, name in enumerate(names)}
    projection = projection_of(edges, **{name: {"rule": dice.choice(RULES)} for name in names})
    queue = ReadyQueue(projection, {})
    for _ in range(200):
        cause = dice.choice(list(SkipCause))
        move(queue, projection, dice.choice(names), dice.choice(list(TaskState)), skip_cause=cause)
    fresh = ReadyQueue(projection, {})
    assert fresh.unmet_counts == queue.unmet_counts
    assert +fresh.counts == +queue.counts
    assert fresh.promotable == queue.promotable


@for_each("rule", VERDICTS)
@for_each("state", TaskState)
@for_each("cause", [*SkipCause, None])
@for_each("is_over", [False, True])
def test_the_table_in_sql_says_the_same(rule, state, cause, is_over):
    """The promotion is guarded by SQL once more; both tables of rules must agree."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(
        "CREATE TABLE task (run_id, name, state, skip_cause, rule); CREATE TABLE edge (run_id, child, parent, rule);"
        "CREATE TABLE run (run_id, deadline_passed_at, abandoned_at);"
        "INSERT INTO edge VALUES ('r', 'child', 'parent', NULL);"
    )
    connection.execute("INSERT INTO run VALUES ('r', ?, NULL)", (1 if is_over else None,))
    connection.execute("INSERT INTO task VALUES ('r', 'parent', ?, ?, 'all_success')", (state.value, cause))
    is_of_edge = rule not in RULES  # of a map task and its children: the others are those of a task
    connection.execute(
        "INSERT INTO task VALUES ('r', 'child', 'PENDING', NULL, ?)", (RULES[0] if is_of_edge else rule,)
    )
    connection.execute("UPDATE edge SET rule = ?", (rule if is_of_edge else None,))
    held = connection.execute(f"SELECT 1 FROM task WHERE name = 'child' AND EXISTS ({UNSATISFIED_PARENT})").fetchone()
    assert (rule in satisfied_rules(state, cause, is_over)) is (held is None)


def test_tasks_that_wait_for_a_worker_elsewhere_hold_up_no_others():
    gpu = {"isolation": "dask", "dask": DaskOptions((("GPU", 1),))}
    specs = {"far": {"isolation": "dask"}, "more": {"isolation": "dask"}, "gpu": gpu}
    projection = projection_of({name: [] for name in ("far", "more", "gpu", "near")}, **specs)
    queue = ReadyQueue(projection, {})
    asked: list[str] = []

    def admits(row: TaskRow) -> bool:
        asked.append(row.name)
        return row.name == "near"

    assert ["near"] == queue.pop_startable(9, admits)
    assert sorted(asked) == ["far", "gpu", "near"], "one of each kind of worker"
    assert [2, 1] == [queue.startable_like(projection.tasks[name], 9) for name in ("far", "gpu")]
    assert 1 == queue.startable_like(projection.tasks["far"], 1)
