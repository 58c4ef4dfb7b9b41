"""What the end of one task means for the others, and what its return means."""

from __future__ import annotations

import itertools

import pytest
from redrive.engine.statefile.transitions import hold_children, mark_stale, propagate, reevaluate, unpropagate

from ..store.conftest import RUN, START, StateFile

DIAMOND = {"a": "", "b": "a", "c": "a", "d": "b c", "e": "d"}


def fail(state_file: StateFile, name: str, state: str = "FAILED") -> list[str]:
    state_file.set_state(name, state)
    return state_file.write(lambda transaction: propagate(transaction, RUN, name))


def free(state_file: StateFile, *names: str) -> list[str]:
    for name in names:
        state_file.set_state(name, "PENDING")
    return state_file.write(lambda transaction: unpropagate(transaction, RUN, names))


def blame(state_file: StateFile) -> dict[str, str]:
    """Who is stopped, and by whom."""
    return {
        name: state_file.column(name, "blocked_by")
        for name, state in state_file.states().items()
        if state == "UPSTREAM_FAILED"
    }


# --- Failure -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_everything_below_a_failure_is_stopped_and_knows_by_whom(state_file: StateFile, state: str) -> None:
    state_file.create({**DIAMOND, "x": ""})
    assert fail(state_file, "b", state) == ["d", "e"]
    assert blame(state_file) == {"d": "b", "e": "b"}
    assert state_file.states()["x"] == "PENDING" and state_file.column("d", "ended_at") == START


def test_a_child_that_was_promoted_already_is_stopped_too(state_file: StateFile) -> None:
    state_file.create(DIAMOND)
    state_file.set_state("d", "READY")
    assert fail(state_file, "b") == ["d", "e"]


@pytest.mark.parametrize("state", ["RUNNING", "RETRYING", "SENSING", "SUCCESS", "DEAD_LETTER", "SKIPPED", "FAILED"])
def test_a_child_with_a_fate_of_its_own_keeps_it(state_file: StateFile, state: str) -> None:
    state_file.create({"a": "", "b": "a", "c": "b"})
    state_file.set_state("b", state)
    assert fail(state_file, "a") == []
    assert state_file.states()["b"] == state and state_file.states()["c"] == "PENDING"


def test_a_child_that_runs_in_any_case_stops_the_propagation(state_file: StateFile) -> None:
    state_file.create({"a": "", "report": "a", "mail": "report", "load": "a"}, report={"rule": "all_done"})
    assert fail(state_file, "a") == ["load"]
    assert state_file.states()["report"] == state_file.states()["mail"] == "PENDING"


def test_a_dead_letter_holds_its_children_and_fails_none(state_file: StateFile) -> None:
    state_file.create(DIAMOND)
    state_file.set_state("b", "DEAD_LETTER")
    assert set(blame(state_file)) == set()


@pytest.mark.parametrize("order", [("success", "failure"), ("failure", "success")])
def test_a_join_whose_one_parent_succeeds_as_the_other_fails_is_stopped(
    state_file: StateFile, order: tuple[str, str]
) -> None:
    """Both orders: the writer makes one of them true."""
    state_file.create(DIAMOND)
    for what in order:
        if what == "success":
            state_file.set_state("c", "SUCCESS")
        else:
            fail(state_file, "b")
    assert blame(state_file) == {"d": "b", "e": "b"}


# --- And back ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["b", "c"])
def test_a_diamond_with_two_failed_sides_comes_back_when_both_do(state_file: StateFile, first: str) -> None:
    other = "c" if first == "b" else "b"
    state_file.create(DIAMOND)
    fail(state_file, "b")
    fail(state_file, "c")
    assert free(state_file, first) == []
    assert blame(state_file) == {"d": other, "e": other}
    assert free(state_file, other) == ["d", "e"]
    assert set(state_file.states().values()) == {"PENDING"}
    assert state_file.column("d", "blocked_by") is None and state_file.column("d", "ended_at") is None


def test_both_sides_at_once_bring_the_diamond_back(state_file: StateFile) -> None:
    state_file.create(DIAMOND)
    fail(state_file, "b")
    fail(state_file, "c")
    assert free(state_file, "b", "c") == ["d", "e"]


def test_blame_stays_with_a_cause_that_still_holds(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "c": "", "d": "a b c"})
    for name in ("b", "a", "c"):
        fail(state_file, name)
    before = len(state_file.emitted)
    free(state_file, "c")
    assert blame(state_file) == {"d": "b"} and len(state_file.emitted) == before


def test_what_never_was_stopped_is_not_touched(state_file: StateFile) -> None:
    state_file.create(DIAMOND)
    state_file.set_state("d", "DEAD_LETTER")
    fail(state_file, "b")
    assert free(state_file, "b") == []
    assert state_file.states()["d"] == "DEAD_LETTER"


# --- Branches that are not taken -----------------------------------------------------------------------------------


def skip(state_file: StateFile, name: str) -> list[str]:
    state_file.set_state(name, "SKIPPED", skip_cause="condition")
    return state_file.write(lambda transaction: propagate(transaction, RUN, name))


def test_a_branch_that_is_not_taken_takes_those_along_that_need_it(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "need": "a b", "join": "a b", "report": "need"}, join={"rule": "none_failed"})
    assert skip(state_file, "a") == []
    state_file.set_state("b", "SUCCESS")
    assert state_file.write(lambda transaction: propagate(transaction, RUN, "b")) == ["need", "report"]
    assert state_file.column("report", "skip_cause") == "cascade"
    assert state_file.states()["join"] == "PENDING"


def test_a_join_goes_on_with_what_there_is_unless_there_is_nothing(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "join": "a b"}, join={"rule": "none_failed"})
    assert skip(state_file, "a") == []
    assert skip(state_file, "b") == ["join"]


def test_a_join_with_one_side_that_succeeded_is_not_skipped(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "join": "a b"}, join={"rule": "none_failed"})
    state_file.set_state("b", "SUCCESS")
    assert skip(state_file, "a") == []


def test_a_taken_branch_brings_back_what_was_skipped_with_it(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a", "c": "b"})
    assert skip(state_file, "a") == ["b", "c"]
    assert free(state_file, "a") == ["b", "c"]
    assert state_file.column("c", "skip_cause") is None


def test_a_task_below_a_failure_and_a_skip_waits_when_the_failure_goes(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "c": "a b", "d": "c"})
    fail(state_file, "a")
    assert skip(state_file, "b") == []
    assert free(state_file, "a") == ["c", "d"]
    assert state_file.states() == {"a": "PENDING", "b": "SKIPPED", "c": "PENDING", "d": "PENDING"}


def test_who_accepts_only_success_is_stopped_by_an_operators_skip(state_file: StateFile) -> None:
    state_file.create({"a": "", "strict": "a", "below": "strict", "lax": "a"}, strict={"rule": "all_success_strict"})
    state_file.set_state("a", "SKIPPED", skip_cause="operator")
    assert state_file.write(lambda transaction: propagate(transaction, RUN, "a")) == ["strict", "below"]
    assert blame(state_file) == {"strict": "a", "below": "a"}


# --- A parent runs again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["READY", "RETRYING", "SENSING"])
def test_a_child_about_to_start_waits_for_its_parent_again(state_file: StateFile, state: str) -> None:
    state_file.create({"a": "", "b": "a"})
    state_file.set_state("b", state, next_retry_at=START + 1)
    assert state_file.write(lambda transaction: hold_children(transaction, RUN, ["a"])) == ["b"]
    assert state_file.states()["b"] == "PENDING" and state_file.column("b", "next_retry_at") == START + 1


@pytest.mark.parametrize("state", ["READY", "RETRYING", "SENSING"])
def test_a_child_about_to_start_waits_for_a_parent_that_is_unblocked(state_file: StateFile, state: str) -> None:
    state_file.create({"a": "", "b": "a", "c": "b"}, c={"rule": "all_done"})
    state_file.set_state("b", "UPSTREAM_FAILED", blocked_by="a")
    state_file.set_state("c", state, next_retry_at=START + 1)
    assert state_file.write(lambda transaction: unpropagate(transaction, RUN, ["a"])) == ["b"]
    assert state_file.states() == {"a": "PENDING", "b": "PENDING", "c": "PENDING"}


def test_a_child_whose_parents_all_allow_it_is_not_held_back(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a"})
    state_file.set_state("a", "SUCCESS")
    state_file.set_state("b", "READY")
    assert state_file.write(lambda transaction: hold_children(transaction, RUN, ["a"])) == []


def test_everything_that_ran_below_is_stale_once(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "a", "c": "b", "d": "c", "x": ""})
    for name, state in {"b": "SUCCESS", "c": "DEAD_LETTER", "d": "RUNNING", "x": "SUCCESS"}.items():
        state_file.set_state(name, state)
    assert state_file.write(lambda transaction: mark_stale(transaction, RUN, ["a"])) == ["b", "d"]
    assert state_file.write(lambda transaction: mark_stale(transaction, RUN, ["a"])) == []


# --- The verdict of the parents, in general ------------------------------------------------------------------------

ENDS = [("SUCCESS", None), ("FAILED", None), ("SKIPPED", "operator"), ("SKIPPED", "condition"), ("PENDING", None)]


@pytest.mark.parametrize("rule", ["all_success", "all_success_strict", "none_failed", "all_done"])
def test_a_waiting_task_is_left_where_its_parents_leave_it_whatever_they_are(state_file: StateFile, rule: str) -> None:
    """All pairs of parents under each rule, against the rule in words."""
    state_file.create({"p": "", "q": "", "child": "p q"}, child={"rule": rule})
    for pair in itertools.product(ENDS, repeat=2):
        for name, (state, cause) in zip("pq", pair, strict=True):
            state_file.set_state(name, state, skip_cause=cause)
        state_file.set_state("child", "PENDING", skip_cause=None, blocked_by=None)
        found = state_file.write(lambda transaction: reevaluate(transaction, RUN, "child"))
        assert str(found) == expected(rule, set(pair), pair), pair


def expected(rule: str, ends: set[tuple[str, str | None]], pair: tuple[tuple[str, str | None], ...]) -> str:
    if rule == "all_done":
        return "PENDING"
    if ("FAILED", None) in ends or (rule == "all_success_strict" and ("SKIPPED", "operator") in ends):
        return "UPSTREAM_FAILED"
    if ("PENDING", None) in ends:
        return "PENDING"
    not_taken = pair.count(("SKIPPED", "condition"))
    if rule == "none_failed":
        return "SKIPPED" if not_taken == 2 else "PENDING"
    return "SKIPPED" if not_taken else "PENDING"
