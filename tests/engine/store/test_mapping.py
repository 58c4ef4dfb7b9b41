"""Map tasks in the state file: their children come with the result that they map over, and the events tell it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.projection import RunProjection
from redrive.engine.core.ready_queue import ReadyQueue
from redrive.engine.core.spec import FlowSpec, TaskSpec, child_spec, map_task
from redrive.engine.store import claims, runs
from redrive.engine.store.claims import Claim, ClaimOrder, ExecutorIdentity
from redrive.engine.store.settle import settle

from .conftest import RUN, StateFile

IDENTITY = ExecutorIdentity("executor-1", "here", None)
CHILD = TaskSpec("load", ("list", "other"), retry=RetryPolicy(max_attempts=2), timeout=5.0, pool="api")
TASKS = (
    TaskSpec("list"),
    TaskSpec("other"),
    map_task(CHILD, "list", 12),
    TaskSpec("report", ("load",), requires=("load",)),
)


class Mapped:
    """A run with a map task, and what an observer of its events has."""

    def __init__(self, state_file: StateFile) -> None:
        self.file = state_file
        state_file.write(
            lambda transaction: runs.create_run(
                transaction,
                run_id=RUN,
                flow=FlowSpec("orders", TASKS),
                max_parallel=4,
                params={},
                at=state_file.now,
                deadline_at=None,
            )
        )
        self.events: RunProjection = state_file.projection()
        self.queue = ReadyQueue(self.events, {})

    def claim(self, name: str) -> Claim | None:
        order = ClaimOrder(name, self.file.column(name, "generation"), self.file.projection().tasks[name].spec or CHILD)
        found = self.file.write(lambda transaction: claims.dispatch(transaction, RUN, {}, [order], IDENTITY))
        self.see()
        return found[0] if found else None

    def run(self, name: str, result: object = None, *, is_failure: bool = False) -> None:
        claim, spec = self.claim(name), self.file.projection().tasks[name].spec or CHILD
        assert claim is not None, name
        failure = Failure("E", "no", FailureClass.PERMANENT, Fingerprint("a" * 32, "a" * 32))
        outcome = Outcome(OutcomeKind.SUCCESS, result=json.dumps(result))
        if is_failure:
            outcome = Outcome(OutcomeKind.ERROR, failure)
        self.file.write(lambda transaction: settle(transaction, claim, spec, outcome, lambda low, high: low))
        self.see()

    def act(self, act: str, *names: str, **options: Any) -> None:
        assert self.file.act(act, *names, **options)["ok"]
        self.see()

    def see(self) -> None:
        """Apply the new events as the executor does, and compare with the tables."""
        for event in self.file.emitted:
            old = self.events.tasks[event.task].state if event.task in self.events.tasks else None
            row = self.events.apply(event)
            if row is not None and old is not None:
                self.queue.apply_event(event.kind, row, old)
        now = self.file.projection()
        assert list(now.tasks) == list(self.events.tasks)
        assert now.tasks == self.events.tasks
        assert (now.parents, now.children) == (self.events.parents, self.events.children)
        fresh = ReadyQueue(now, {})
        assert (self.queue.unmet_counts, self.queue.counts) == (fresh.unmet_counts, fresh.counts)
        assert self.queue.promotable == fresh.promotable == set(runs.ready_audit(self.file.connection, RUN))

    @property
    def states(self) -> dict[str, str]:
        return {name: str(row.state) for name, row in self.file.projection().tasks.items() if name.startswith("load")}


@pytest.fixture
def mapped(state_file: StateFile) -> Mapped:
    found = Mapped(state_file)
    found.run("other")
    return found


def test_the_children_come_in_the_transaction_of_the_result(mapped: Mapped) -> None:
    mapped.run("list", ["a", "b"])
    order = ["list", "other", "load", "load[0]", "load[1]", "report"]
    assert list(mapped.file.projection().tasks) == order
    assert set(runs.ready_audit(mapped.file.connection, RUN)) == {"load[0]", "load[1]"}
    row, task = mapped.file.projection().tasks["load[1]"], mapped.file.projection().tasks["load"]
    assert row.spec == child_spec(task.spec or CHILD, "load[1]", 1)
    assert (row.spec.timeout, row.spec.pool, row.max_attempts) == (5.0, "api", 2)
    assert mapped.claim("load") is None


def test_the_children_of_a_long_list_are_in_its_order(mapped: Mapped) -> None:
    mapped.run("list", list(range(12)))
    assert list(mapped.states) == ["load", *(f"load[{index}]" for index in range(12))]


def test_the_map_task_waits_for_every_child(mapped: Mapped) -> None:
    mapped.run("list", ["a", "b"])
    mapped.run("load[0]", 1)
    mapped.run("load[1]", is_failure=True)
    assert mapped.states == {"load": "PENDING", "load[0]": "SUCCESS", "load[1]": "DEAD_LETTER"}
    mapped.act("requeue", "load[1]")
    mapped.run("load[1]", 2)
    mapped.run("load", [1, 2])
    assert set(mapped.states.values()) == {"SUCCESS"}


@pytest.mark.parametrize("result", [[], {"a": 1}, "text", None, list(range(13))])
def test_without_a_list_that_fits_there_are_no_children(mapped: Mapped, result: object) -> None:
    mapped.run("list", result)
    assert mapped.states == {"load": "PENDING"}
    assert mapped.claim("load") is not None  # its attempt returns the empty list, or says what is wrong


def test_a_tuple_is_a_list(mapped: Mapped) -> None:
    mapped.run("list", {"redrive:tuple": ["a"]})
    assert mapped.states == {"load": "PENDING", "load[0]": "PENDING"}


def test_a_substitute_result_has_children_as_well(mapped: Mapped) -> None:
    mapped.run("list", is_failure=True)
    mapped.act("skip", "list", substitute=["a", "b"])
    assert mapped.states == {"load": "PENDING", "load[0]": "PENDING", "load[1]": "PENDING"}


def test_children_of_a_failed_parent_do_not_start(state_file: StateFile) -> None:
    mapped = Mapped(state_file)
    mapped.run("other", is_failure=True)
    state_file.move("other", "PENDING", "SKIPPED", skip_cause="condition")  # its branch is not taken
    mapped.run("list", ["a"])
    assert mapped.states["load[0]"] == "SKIPPED"


def test_after_a_requeue_only_new_elements_run(mapped: Mapped) -> None:
    mapped.run("list", ["a", "b", "c", "d"])
    for name in ("load[0]", "load[1]", "load[3]"):
        mapped.run(name, name)
    mapped.run("load[2]", is_failure=True)
    mapped.act("requeue", "list")
    mapped.run("list", ["z", "c", "a"])
    states = {"load[4]": "PENDING", "load[2]": "DEAD_LETTER", "load[0]": "SUCCESS"}
    gone = {"load[1]": "SUCCESS", "load[3]": "SUCCESS"}
    assert list(mapped.states.items()) == [("load", "PENDING"), *states.items(), *gone.items()]
    assert mapped.file.column("load[0]", "stale") == 0
    assert mapped.file.projection().parents["load"] == ("list", "load[0]", "load[2]", "load[4]", "other")


def test_an_element_that_is_gone_neither_holds_nor_fails_the_run(mapped: Mapped) -> None:
    mapped.run("list", ["a", "b"])
    mapped.run("load[1]", is_failure=True)
    mapped.run("load[0]", 1)
    mapped.act("requeue", "list")
    mapped.run("list", ["a"])
    assert mapped.states == {"load": "PENDING", "load[0]": "SUCCESS", "load[1]": "SKIPPED"}
    assert set(runs.ready_audit(mapped.file.connection, RUN)) == {"load"}
    mapped.act("requeue", "list")
    mapped.run("list", ["a", "b"])
    assert mapped.states == {"load": "PENDING", "load[0]": "SUCCESS", "load[1]": "DEAD_LETTER"}
    mapped.act("requeue", "load[1]")
    mapped.run("load[1]", 2)
    assert set(runs.ready_audit(mapped.file.connection, RUN)) == {"load"}


def test_a_map_task_that_an_operator_skipped_gets_no_children(mapped: Mapped) -> None:
    mapped.act("skip", "load", substitute=[])
    mapped.run("list", ["a"])
    assert mapped.states == {"load": "SKIPPED"}


def test_a_rollback_leaves_no_child(mapped: Mapped) -> None:
    claim = mapped.claim("list")
    assert claim is not None

    def item(transaction: Any) -> None:
        settle(transaction, claim, TASKS[0], Outcome(OutcomeKind.SUCCESS, result="[1]"), lambda low, high: low)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        mapped.file.write(item)
    mapped.see()
    assert mapped.states == {"load": "PENDING"}


def test_a_map_task_goes_on_once_the_child_that_stopped_it_is_gone(mapped: Mapped) -> None:
    mapped.run("list", ["a", "b"])
    mapped.run("load[0]", 1)
    mapped.act("cancel", "load[1]")
    assert mapped.states["load"] == "UPSTREAM_FAILED"
    mapped.act("requeue", "list")
    mapped.run("list", ["a"])
    assert mapped.states["load"] == "PENDING"
    assert mapped.claim("load") is not None


def test_a_child_that_comes_back_below_a_failed_task_does_not_wait_for_ever(mapped: Mapped) -> None:
    mapped.run("list", ["a", "b"])
    mapped.act("requeue", "list")
    mapped.run("list", ["a"])
    mapped.act("requeue", "other")
    mapped.act("cancel", "other")
    mapped.act("requeue", "list")
    mapped.run("list", ["a", "b"])
    assert mapped.states == dict.fromkeys(["load", "load[0]", "load[1]"], "UPSTREAM_FAILED")


def test_a_child_that_runs_while_its_element_goes_has_its_result_when_it_is_back(mapped: Mapped) -> None:
    mapped.run("list", ["a", "b"])
    claim, spec = mapped.claim("load[0]"), mapped.file.projection().tasks["load[0]"].spec or CHILD
    assert claim is not None
    mapped.act("requeue", "list")
    mapped.run("list", ["A", "b"])
    success = Outcome(OutcomeKind.SUCCESS, result="1")
    mapped.file.write(lambda transaction: settle(transaction, claim, spec, success, lambda low, high: low))
    mapped.see()
    assert mapped.states == {"load": "PENDING", "load[2]": "PENDING", "load[1]": "PENDING", "load[0]": "SUCCESS"}
    mapped.act("requeue", "list")
    mapped.run("list", ["b", "a"])
    assert mapped.states == {"load": "PENDING", "load[1]": "PENDING", "load[0]": "SUCCESS", "load[2]": "SKIPPED"}
