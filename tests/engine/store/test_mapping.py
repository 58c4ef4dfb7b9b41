"""Map tasks in the state file: their children come with the result that they map over, and the events tell it."""

from __future__ import annotations

from typing import Any

import pytest
from redrive.engine.core.outcome import Outcome, OutcomeKind
from redrive.engine.core.spec import child_spec
from redrive.engine.store import runs
from redrive.engine.store.settle import settle

from .conftest import RUN, StateFile
from .mapped import CHILD, TASKS, Mapped


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
