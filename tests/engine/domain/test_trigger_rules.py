"""Whether a task may start, and what becomes of it: every rule against every standing of its parents."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from redrive.engine.domain.states import MOVING, SkipCause, TaskState
from redrive.engine.domain.trigger_rules import (
    COLLECTS,
    RULES,
    STATES_OF,
    VERDICTS,
    DerivedState,
    ParentStatus,
    TaskGraph,
    TaskNode,
    derive_state,
    edge_rule,
    hold_children,
    hold_if_blocked,
    is_satisfied,
    parent_status,
    propagate,
    reevaluate,
    rules_with,
    satisfied_rules,
    unpropagate,
)
from support.marks import for_each

#: One state of each kind of parent: its state, and who skipped it.
PARENTS: Mapping[str, tuple[str, str | None]] = {
    "success": ("SUCCESS", None),
    "permitted": ("SKIPPED", "operator"),
    "condition": ("SKIPPED", "condition"),
    "cascade": ("SKIPPED", "cascade"),
    "failed": ("FAILED", None),
    "cancelled": ("CANCELLED", None),
    "stopped": ("UPSTREAM_FAILED", None),
    "dead": ("DEAD_LETTER", None),
    **{str(state).lower(): (str(state), None) for state in sorted(MOVING)},
}

OPEN = ("dead", "pending", "ready", "running", "retrying", "sensing")
NOT_TAKEN = ("condition", "cascade")
FAILED = ("failed", "cancelled", "stopped")

#: rule -> kind of the one parent -> may the child start, and the state that the parent leaves it.
ONE_PARENT: Mapping[str, Mapping[str, tuple[bool, str]]] = {
    "all_success": {
        "success": (True, "PENDING"),
        "permitted": (True, "PENDING"),
        **dict.fromkeys(NOT_TAKEN, (False, "SKIPPED")),
        **dict.fromkeys(FAILED, (False, "UPSTREAM_FAILED")),
        **dict.fromkeys(OPEN, (False, "PENDING")),
    },
    "all_success_strict": {
        "success": (True, "PENDING"),
        "permitted": (False, "UPSTREAM_FAILED"),
        **dict.fromkeys(NOT_TAKEN, (False, "SKIPPED")),
        **dict.fromkeys(FAILED, (False, "UPSTREAM_FAILED")),
        **dict.fromkeys(OPEN, (False, "PENDING")),
    },
    "none_failed": {
        "success": (True, "PENDING"),
        "permitted": (True, "PENDING"),
        **dict.fromkeys(NOT_TAKEN, (True, "SKIPPED")),  # the propagation comes first, and leaves nothing to start
        **dict.fromkeys(FAILED, (False, "UPSTREAM_FAILED")),
        **dict.fromkeys(OPEN, (False, "PENDING")),
    },
    "all_done": {
        "success": (True, "PENDING"),
        "permitted": (True, "PENDING"),
        **dict.fromkeys(NOT_TAKEN, (True, "PENDING")),
        **dict.fromkeys(FAILED, (True, "PENDING")),
        **dict.fromkeys(OPEN, (False, "PENDING")),
    },
}


def parent(kind: str, name: str = "parent") -> TaskNode:
    state, cause = PARENTS[kind]
    return TaskNode(name, state, 0, "all_success", cause, "above" if kind == "stopped" else None)


def test_the_table_has_every_rule_and_every_standing() -> None:
    assert tuple(ONE_PARENT) == RULES
    assert set(VERDICTS) == {*RULES, *COLLECTS.values()}
    assert all(set(row) == set(ParentStatus) for row in VERDICTS.values())
    assert all(set(row) == set(PARENTS) for row in ONE_PARENT.values())


def test_every_state_has_one_standing_and_a_skip_that_of_its_cause() -> None:
    assert set().union(*STATES_OF.values()) == set(TaskState) - {TaskState.SKIPPED}
    for state in set(TaskState) - {TaskState.SKIPPED}:
        standings = [standing for standing, states in STATES_OF.items() if state in states]
        assert standings == [parent_status(str(state), None)]
    of_skips = {cause and str(cause): parent_status("SKIPPED", cause) for cause in [*SkipCause, None]}
    permitted, not_taken = ParentStatus.PERMITTED, ParentStatus.NOT_TAKEN
    assert [of_skips[cause] for cause in ("operator", "condition", "cascade", None)] == [permitted, *[not_taken] * 3]


@for_each("rule", RULES)
@for_each("kind", PARENTS)
def test_one_parent_decides(rule: str, kind: str) -> None:
    may_start, state = ONE_PARENT[rule][kind]
    found = derive_state(rule, [parent(kind)])
    assert (is_satisfied(rule, [parent(kind)]), str(found.state)) == (may_start, state)
    assert (rule in satisfied_rules(*PARENTS[kind])) is may_start
    cause = "above" if kind == "stopped" else "parent"
    assert found.blocked_by == (cause if state == "UPSTREAM_FAILED" else None)
    assert found.skip_cause == ("cascade" if state == "SKIPPED" else None)


@for_each("rule", RULES)
@for_each("kinds", itertools.combinations_with_replacement(PARENTS, 2))
def test_one_parent_stops_at_once_and_one_skips_when_both_have_ended(rule: str, kinds: tuple[str, str]) -> None:
    alone = [ONE_PARENT[rule][kind][1] for kind in kinds]
    if "UPSTREAM_FAILED" in alone:
        expected = "UPSTREAM_FAILED"
    elif set(kinds) & set(OPEN):
        expected = "PENDING"
    elif rule == "none_failed":
        expected = "SKIPPED" if alone == ["SKIPPED", "SKIPPED"] else "PENDING"
    else:
        expected = "SKIPPED" if "SKIPPED" in alone else "PENDING"
    parents = [parent(kind, name) for kind, name in zip(kinds, "pq", strict=True)]
    assert str(derive_state(rule, parents).state) == expected
    assert is_satisfied(rule, parents) is all(ONE_PARENT[rule][kind][0] for kind in kinds)


#: Option ``collect`` of a map task -> how its children have ended -> the map task.
COLLECTED: Mapping[str, Mapping[str, str]] = {
    "success condition": dict.fromkeys(RULES, "starts"),  # None stands for the one that has skipped itself
    "success permitted": {**dict.fromkeys(RULES, "starts"), "all_success_strict": "UPSTREAM_FAILED"},
    "permitted condition": {**dict.fromkeys(RULES, "starts"), "all_success_strict": "UPSTREAM_FAILED"},
    "condition condition": {**dict.fromkeys(RULES, "SKIPPED"), "all_done": "starts"},
    "condition failed": {**dict.fromkeys(RULES, "UPSTREAM_FAILED"), "all_done": "starts"},
    "condition dead": dict.fromkeys(RULES, "PENDING"),
    "success running": dict.fromkeys(RULES, "PENDING"),
    "": dict.fromkeys(RULES, "starts"),
}


@for_each("collect", RULES)
@for_each("children", COLLECTED)
def test_a_map_task_collects_by_a_rule_of_its_own(collect: str, children: str) -> None:
    names = [f"load[{index}]" for index, _ in enumerate(children.split())]
    nodes = [parent("success", "list"), *map(parent, children.split(), names)]
    over = [node._replace(edge_rule=edge_rule("load", RULES[0], node.name, "list", collect)) for node in nodes]
    found = str(derive_state("all_success", over).state)
    assert ("starts" if is_satisfied("all_success", over) and found == "PENDING" else found) == (
        COLLECTED[children][collect]
    )


@for_each("rule", RULES)
def test_nothing_replaces_the_list_of_a_map(rule: str) -> None:
    for name, collect in (("load", "all_done"), ("load[0]", None)):
        by = edge_rule(name, rule, "list", "list", collect)
        assert derive_state(rule, [parent("failed")._replace(edge_rule=by)]).state == "UPSTREAM_FAILED"
        assert edge_rule(name, rule, "other", "list", collect) == rule


@for_each("rule", RULES)
def test_without_parents_a_task_may_start(rule: str) -> None:
    assert is_satisfied(rule, []) and derive_state(rule, []) == DerivedState(TaskState.PENDING)


def test_who_stops_a_task_stays_the_one_to_name_while_it_is_a_cause() -> None:
    both = [parent("failed", "p"), parent("failed", "q")]
    assert derive_state("all_success", both).blocked_by == "p"
    assert derive_state("all_success", both, "q").blocked_by == "q"
    assert derive_state("all_success", both, "gone").blocked_by == "p"


def test_rules_are_found_by_what_satisfies_them() -> None:
    assert rules_with(ParentStatus.PERMITTED) == {"all_success", "none_failed", "all_done", "collect"}
    assert rules_with(ParentStatus.FAILED) == {"all_done"}
    assert rules_with(ParentStatus.OPEN) == frozenset()


# --- Over a graph --------------------------------------------------------------------------------------------------


class Plain(TaskGraph):
    """A graph in a dict: name -> parents in one string."""

    def __init__(self, edges: Mapping[str, str], states: Mapping[str, str] = {}, rules: Mapping[str, str] = {}) -> None:
        self.above = {name: names.split() for name, names in edges.items()}
        self.tasks = {
            name: TaskNode(name, states.get(name, "PENDING"), 0, rules.get(name, "all_success"), None, None)
            for name in edges
        }
        self.written: list[str] = []

    def task(self, name: str) -> TaskNode:
        return self.tasks[name]

    def parents(self, name: str) -> list[TaskNode]:
        return [self.tasks[above] for above in self.above[name]]

    def children(self, name: str, states: Collection[str]) -> list[TaskNode]:
        return [self.tasks[child] for child in self.tasks if name in self.above[child] and self.at(child) in states]

    def apply(self, task: TaskNode, fate: DerivedState) -> None:
        self.written.append(task.name)
        self.set_state(task.name, *fate)

    def hold(self, task: TaskNode) -> None:
        self.set_state(task.name, "PENDING")

    def at(self, name: str) -> str:
        return str(self.tasks[name].state)

    def set_state(self, name: str, state: str, skip_cause: str | None = None, blocked_by: str | None = None) -> None:
        self.tasks[name] = self.tasks[name]._replace(state=str(state), skip_cause=skip_cause, blocked_by=blocked_by)


DIAMOND = {"a": "", "b": "a", "c": "a", "d": "b c", "e": "d"}


def test_a_failure_stops_all_below_once_and_its_return_brings_all_back() -> None:
    graph = Plain(DIAMOND, {"a": "FAILED"})
    assert propagate(graph, "a") == ["b", "c", "d", "e"] == graph.written
    assert {graph.tasks[name].blocked_by for name in "bcde"} == {"a"}
    graph.set_state("a", "PENDING")
    assert unpropagate(graph, ["a"]) == ["b", "c", "d", "e"]
    assert {graph.at(name) for name in DIAMOND} == {"PENDING"}


@for_each("state", sorted({str(state) for state in TaskState} - {"FAILED", "CANCELLED", "SKIPPED"}))
def test_what_is_not_an_end_that_stops_changes_nothing_below(state: str) -> None:
    graph = Plain(DIAMOND, {"a": state})
    assert propagate(graph, "a") == ([] if state != "UPSTREAM_FAILED" else ["b", "c", "d", "e"])


def test_a_child_that_waits_for_every_end_ends_the_walk() -> None:
    graph = Plain(DIAMOND, {"b": "FAILED"}, {"d": "all_done"})
    assert propagate(graph, "b") == [] and graph.at("e") == "PENDING"


def test_a_permitted_task_stops_strict_children_and_what_is_below_them_in_its_own_name() -> None:
    graph = Plain(DIAMOND, rules={"b": "all_success_strict"})
    graph.set_state("a", "SKIPPED", "operator")
    assert propagate(graph, "a") == ["b", "d", "e"]
    assert {graph.tasks[name].blocked_by for name in "bde"} == {"a"}


def test_a_parent_that_runs_again_holds_who_was_about_to_start_or_stops_it_with_another_failure() -> None:
    graph = Plain({"a": "", "x": "", "b": "a", "c": "a x"}, {"b": "RETRYING", "c": "READY", "x": "FAILED"})
    assert hold_children(graph, ["a"]) == ["b", "c"]
    assert (graph.at("b"), graph.at("c"), graph.tasks["c"].blocked_by) == ("PENDING", "UPSTREAM_FAILED", "x")


def test_a_task_that_runs_is_not_reconsidered() -> None:
    graph = Plain({"a": "", "b": "a"}, {"a": "FAILED", "b": "RUNNING"})
    assert reevaluate(graph, "b") == "RUNNING" and graph.written == []


def test_a_task_that_an_act_stops_stops_those_that_wait_below_it() -> None:
    """A child that was skipped with ``c`` is stopped by ``d`` once ``c`` runs again: those below it cannot start."""
    graph = Plain(
        {"c": "", "d": "", "child": "c d", "join": "child", "late": "child", "last": "join"},
        {"c": "PENDING", "d": "FAILED", "late": "RETRYING"},
        {"join": "none_failed", "late": "none_failed"},
    )
    graph.set_state("child", "SKIPPED", "cascade")
    assert unpropagate(graph, ["c"]) == []
    assert {name: graph.at(name) for name in ("child", "join", "late", "last")} == dict.fromkeys(
        ("child", "join", "late", "last"), "UPSTREAM_FAILED"
    )
    assert {graph.tasks[name].blocked_by for name in ("child", "join", "late", "last")} == {"d"}


def test_a_task_that_is_freed_and_stopped_in_one_act_is_not_reported_as_freed() -> None:
    graph = Plain(
        {"c": "", "d": "", "stopped": "c d", "waits": "stopped", "x": "", "low": "x waits"},
        {"c": "PENDING", "d": "FAILED", "x": "PENDING", "low": "UPSTREAM_FAILED"},
        {"waits": "none_failed"},
    )
    graph.set_state("stopped", "SKIPPED", "cascade")
    assert unpropagate(graph, ["x", "c"]) == []
    assert graph.at("low") == "UPSTREAM_FAILED"


def test_a_failure_wins_over_a_skip_whichever_comes_first() -> None:
    for last in "cd":
        graph = Plain({"c": "", "d": "", "child": "c d"}, {"c": "RUNNING", "d": "RUNNING"})
        for name in sorted("cd", key=lambda name: name == last):
            graph.set_state(name, *(("SKIPPED", "condition") if name == "c" else ("FAILED",)))
            propagate(graph, name)
        assert graph.at("child") == "UPSTREAM_FAILED"


def test_a_skip_waits_for_the_other_parents_and_comes_with_the_success_of_the_last() -> None:
    graph = Plain({"c": "", "d": "", "child": "c d", "low": "child"}, {"d": "RUNNING"})
    graph.set_state("c", "SKIPPED", "condition")
    assert propagate(graph, "c") == [] and graph.at("child") == "PENDING"
    graph.set_state("d", "SUCCESS")
    assert propagate(graph, "d") == ["child", "low"] and graph.at("low") == "SKIPPED"
    graph.set_state("d", "PENDING")  # requeued: it may fail now
    assert unpropagate(graph, ["d"]) == ["child", "low"] and graph.at("child") == "PENDING"


def test_a_task_that_failed_while_its_only_branch_was_skipped_does_not_run_again() -> None:
    graph = Plain({"a": "", "b": "a"}, {"b": "RETRYING"}, {"b": "none_failed"})
    graph.set_state("a", "SKIPPED", "cascade")
    assert hold_if_blocked(graph, "b") and graph.at("b") == "SKIPPED"
