"""The engine against the model, after any acts of operators: ``python -m tests.reference`` tries many more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from redrive.console.cli.listings import TasksContext, task_lines
from redrive.console.cli.output import plain_text
from redrive.console.model.board import Board
from redrive.console.model.inbox import Inbox
from redrive.console.present.runs import incident_summary
from redrive.engine.core.projection import RunProjection
from redrive.engine.core.waiting import ALIVE, RunnerKind, RunnerStatus
from redrive.engine.domain import trigger_rules
from redrive.engine.domain.states import OPEN
from redrive.engine.statefile import task_acts, transitions
from support.marks import parametrize_mostly_long, scaled

from .operators import BY_BRANCH, BY_OPERATOR, Difference, Model, Scripted
from .real_nights import RealNight
from .sequences import APPROVALS, START_US, SteppedNight, draw_sequence, problem_of, shrink

CHUNK = 50


@parametrize_mostly_long("first", range(0, scaled(4_000), CHUNK), daily=7)
def test_every_state_is_allowed_and_every_run_comes_to_its_end(first: int) -> None:
    problems = [problem_of(draw_sequence(seed)) for seed in range(first, first + CHUNK)]
    assert [] == [problem for problem in problems if problem]


@parametrize_mostly_long("first", range(APPROVALS, APPROVALS + scaled(2_000), CHUNK), daily=4)
def test_approvals_are_answered_and_never_run(first: int) -> None:
    problems = [problem_of(draw_sequence(seed)) for seed in range(first, first + CHUNK)]
    assert [] == [problem for problem in problems if problem]


#: Seeds that failed before, and what was wrong.
_MENDED = {
    59: "an undo restored a skipped task as a stopped one, below a run that had ended without it",
    470: "a map task stayed stopped by a child whose element was gone",
    2535: "an undo made a task skipped by an operator again, and its children were not told",
    8411: "a task failed while its only parent was skipped, and ran again",
    17629: "a child of a map task came back below a failed task and waited for ever",
    46889: "an undo took the mark from a task below one that runs again, so that it kept its old result",
    23819: "a skipped child of a map task whose element was gone came back with its branch",
}


@pytest.mark.parametrize("seed", _MENDED)
def test_a_sequence_that_failed_does_not_fail_again(seed: int) -> None:
    assert problem_of(draw_sequence(seed)) == ""


# --- What is read of a run -----------------------------------------------------------------------------------------


def seeds(count: int) -> list[int]:
    """Of ``count`` runs and of 20 with approvals; by default the first of each are tried."""
    return [*range(15), *range(APPROVALS, APPROVALS + 5), *range(15, count), *range(APPROVALS + 5, APPROVALS + 20)]


def nights_of(seed: int) -> Iterator[SteppedNight]:
    """A night just after its first starts, and one in which nothing can move."""
    begun = SteppedNight(draw_sequence(seed))
    begun.engine.start_some()
    yield begun
    rested = SteppedNight(draw_sequence(seed))
    rested.work()
    yield rested


@parametrize_mostly_long("seed", seeds(60), quick=20)
def test_the_inbox_of_a_part_of_a_run_is_that_of_the_run(seed: int) -> None:
    """Only the tasks that need a human, and those below them, are read."""
    night = SteppedNight(draw_sequence(seed))
    night.work()
    whole = night.engine.projection
    whole.run = whole.run._replace(blocked_since=None)
    part = night.engine.read_part()
    causes = Inbox(Board(part)).causes()
    assert Inbox(Board(whole)).causes() == causes
    assert bool(part.tasks) is bool(causes)


@parametrize_mostly_long("seed", seeds(40), quick=20)
def test_a_task_is_explained_by_a_part_of_a_run_as_by_the_run(seed: int) -> None:
    """Only what is above the task and has not succeeded, and what runs, are read."""
    for night in nights_of(seed):
        whole = Board(night.engine.read_run())
        for name in whole.projection.tasks:
            part = Board(night.engine.read_part(name))
            for runner in (ALIVE, RunnerStatus(RunnerKind.GONE)):
                at = (name, START_US * 2, runner)
                assert part.blocking_chain(*at) == whole.blocking_chain(*at)
                assert part.explain(*at) == whole.explain(*at)


@parametrize_mostly_long("seed", seeds(40), quick=20)
def test_lists_of_states_read_the_same_without_the_rest_of_what_succeeded(seed: int) -> None:
    for night in nights_of(seed):
        assert _lists_of(night.engine.read_run(successes="states")) == _lists_of(night.engine.read_run())


def _lists_of(projection: RunProjection) -> tuple[list[str], str]:
    board, now_us = Board(projection), START_US * 2
    lines = task_lines(
        projection, False, {}, (), TasksContext(projection, lambda name: board.explain(name, now_us, ALIVE))
    )
    return [plain_text(line) for line in lines], incident_summary(board, "file", now_us)


# --- That a fault is found -----------------------------------------------------------------------------------------


def test_a_verdict_by_who_ends_first_is_found_and_shrunk() -> None:
    """A task that is skipped at once, not when all of its parents have ended."""
    at_once = mock.patch.object(transitions._RunGraph, "has_open_parent", lambda graph, name: False)
    with at_once, mock.patch.object(trigger_rules, "derive_state", _derive_early):
        failing = (sequence for sequence in map(draw_sequence, range(500)) if problem_of(sequence))
        smallest = shrink(next(failing))
        assert (len(smallest.tasks), len(smallest.acts)) == (3, 0)
        assert "is SKIPPED as a branch, not PENDING" in problem_of(smallest)


def _derive_early(
    rule: str, parents: list[trigger_rules.TaskNode], blocked_by: str | None = None
) -> trigger_rules.DerivedState:
    ended = [parent for parent in parents if parent.state not in OPEN]
    found = DERIVE_STATE(rule, ended, blocked_by)
    return found if found.state == "SKIPPED" and rule != "none_failed" else DERIVE_STATE(rule, parents, blocked_by)


DERIVE_STATE = trigger_rules.derive_state


@pytest.mark.long
def test_children_that_start_before_a_task_that_runs_again_are_found() -> None:
    with mock.patch.object(task_acts, "hold_children", lambda *args: []):
        failing = (sequence for sequence in map(draw_sequence, range(500)) if problem_of(sequence))
        assert len(shrink(next(failing)).tasks) <= 6


# --- The executor itself -------------------------------------------------------------------------------------------


@parametrize_mostly_long("seed", range(scaled(40)), daily=6)
def test_a_run_of_the_executor_ends_as_the_model_says(seed: int, tmp_path: Path) -> None:
    """With its loop, real processes and threads, a new executor after each act."""
    RealNight(draw_sequence(seed), tmp_path / "state.db").run()


# --- The model -----------------------------------------------------------------------------------------------------


def test_the_model_itself() -> None:
    model = Model.of([Scripted("a", ("skip", "ok")), Scripted("b", ("ok",), ("a",)), Scripted("c", ("ok",), ("b",))])
    model.start("a", 1)
    model.end("a")
    model.check({"a": BY_BRANCH, "b": BY_BRANCH, "c": BY_BRANCH})
    model.act("c1", "requeue", {"a": "done"})
    with pytest.raises(Difference, match=r"b .* is SKIPPED as a branch, not PENDING"):
        model.check({"a": "PENDING", "b": BY_BRANCH, "c": BY_BRANCH})
    model.check({"a": "PENDING", "b": "PENDING", "c": "PENDING"})
    model.act("c2", "skip", {"b": "done"})
    model.check({"a": "PENDING", "b": BY_OPERATOR, "c": "PENDING"})
    with pytest.raises(Difference, match=r"c .* starts while b is PENDING"):
        replace(model, states={**model.states, "b": "PENDING"}).start("c", 1)
