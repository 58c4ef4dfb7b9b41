"""The slack of a run before its deadline (SPEC part 4, 2)."""

import pytest
from redrive.engine.core.deadline import Slack, compute_slack
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import TaskState

NOW = 1_700_000_000_000_000
SECOND = 1_000_000

#: extract (100 s) -> clean (200 s) -> load (50 s); beside them: report (30 s)
PATHS = {"extract": 350.0, "clean": 250.0, "load": 50.0, "report": 30.0}
CHILDREN = {"extract": ("clean",), "clean": ("load",)}


def slack(states: dict[str, TaskState], due_in: float | None = 1000, **columns: dict) -> Slack | None:
    run = RunRow("r", deadline_at=None if due_in is None else NOW + round(due_in * SECOND))
    tasks = {name: TaskRow(name, state=state, **columns.get(name, {})) for name, state in states.items()}
    return compute_slack(RunProjection(run, tasks, children=CHILDREN), PATHS, NOW)  # type: ignore[arg-type]


P, S = TaskState.PENDING, TaskState.SUCCESS


def test_a_run_that_has_not_begun_needs_its_longest_path():
    assert Slack(650, "extract", 350) == slack({"extract": P, "clean": P, "load": P, "report": P})


def test_what_is_done_needs_nothing():
    assert Slack(970, "report", 30) == slack({"extract": S, "clean": S, "load": S, "report": P})
    assert slack(dict.fromkeys(PATHS, S)) is None


def test_a_running_task_needs_what_is_left_of_it_and_never_less_than_what_is_behind_it():
    running = {"extract": TaskState.RUNNING, "clean": P, "load": P}
    assert 310 == slack(running, extract={"started_at": NOW - 40 * SECOND}).needs_seconds
    assert 250 == slack(running, extract={"started_at": NOW - 4000 * SECOND}).needs_seconds


@pytest.mark.parametrize("state", [TaskState.RETRYING, TaskState.SENSING])
def test_a_wait_is_added_to_the_way(state):
    found = slack({"extract": state, "clean": P}, extract={"next_retry_at": NOW + 700 * SECOND})
    assert Slack(-50, "extract", 1050) == found


def test_a_task_that_waits_for_a_human_needs_its_whole_path_from_now_on():
    assert 350 == slack({"extract": TaskState.DEAD_LETTER, "clean": P}).needs_seconds


def test_a_run_without_a_deadline_has_no_slack():
    assert slack({"extract": P}, due_in=None) is None


def test_without_history_only_the_clock_counts():
    run = RunRow("r", deadline_at=NOW - SECOND)
    projection = RunProjection(run, {"a": TaskRow("a", state=P)})
    assert Slack(-1, "a", 0) == compute_slack(projection, {}, NOW)
