"""Nights of the real executor on a virtual clock: no invariant breaks, and one seed is one night."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from msgspec.structs import replace
from redrive.console.model.inbox import Inbox
from redrive.engine.core.downstreams import Capacity
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.executor.run_end import RunEndCheck
from redrive.engine.statefile import operator_actions
from support.marks import parametrize_mostly_long, scaled

from .plan import Plan, draw_plan
from .shrink import Reduction, reduce_plan, shrink
from .simulate import Report, simulate

SEEDS = 10  # in one test
ROOT = Path(__file__).resolve().parents[2]


@parametrize_mostly_long("first", range(0, scaled(300), SEEDS), daily=6)
def test_no_invariant_breaks(first: int) -> None:
    reports = [simulate(draw_plan(seed)) for seed in range(first, first + SEEDS)]
    assert [] == [
        f"{report.problem}: python -m tests.simulation --first {report.seed} --seeds 1"
        for report in reports
        if report.problem
    ]


@pytest.mark.parametrize("seed", [20023, 20152, 20217, 20301, 30237, 30329, 40367, 300596])
def test_a_run_that_failed_once_does_not_fail_again(seed: int) -> None:
    """Waits a day too long or for ever, ends by states that had changed, a last write, acts undone, a page unsent."""
    assert simulate(draw_plan(seed, heartbeats=(1.0,), other_acts=0.0)).problem == ""


@pytest.mark.parametrize(
    ("seed", "only"),
    [
        # a dead letter expires, and the run goes on, while the executor of a blocked run is asked to stop
        (300740, "tasks=m,n,t10,t11,t12,t13,t3,t5,t6,t9"),
        # the clock is set just before an act that computes a due time
        (1000224, "tasks=t1,t10,t11,t12,t13,t2,t3,t4,t5,t6,t7,t8,t9 acts=1,2,3 refusals=0,1,2,3,4,5"),
        # the clock is set while the storage refuses such an act
        (1001454, "acts=0,3 refusals=0"),
        # a pause is undone, and that is undone, after the clock was set
        (1000232, "tasks=t0,t1,t10,t11,t12,t13,t2,t3,t5,t7,t9 acts=10,11,12,13,3"),
        # a run ends, and is requeued before its executor has left
        (1000585, "tasks=m,n,t3,t4 acts=7 crashes=1,2,3"),
        # an act is undone in a blocked run
        (1001628, "tasks=m,n,t2,t3,t4,t5,t6,t7 acts=0,2 clock_steps=0,1"),
    ],
)
def test_a_shrunk_run_that_failed_once_does_not_fail_again(seed: int, only: str) -> None:
    assert simulate(reduce_plan(draw_plan(seed, other_acts=0.0), Reduction.parse(only))).problem == ""


@pytest.mark.parametrize(
    ("seed", "only"),
    [
        # an executor dies after a step of the clock, by which a breaker's times were not shifted yet
        (5001851, "tasks=t1,t10,t11,t12,t13,t14,t16,t18,t2,t3,t4,t5,t7,t8,t9 crashes=1"),
        # a dead letter expires while a blocked run is opened, and its executor leaves at once
        (5003182, "crashes=1,2,3"),
        # a cancel is undone, and a task below had counted it as an end
        (5008683, "tasks=t0 acts=0,2,3,4,6,7"),
        # an executor dies between a step of the clock and its shift, and has written an event meanwhile
        (5025571, "tasks=t10,t11,t12,t13,t14,t16,t17,t18,t19 acts=13,14,15"),
        # a task that a breaker turns away became due while no executor lived
        (5029406, "acts=11"),
        # the clock is set while a run is opened
        (5033920, "tasks=t1,t3,t4,t5,t7 acts=6,7"),
        # a task is again as the act that is undone has found it
        (5033184, "tasks=t5,t7 acts=1,10,11,12,13,14,15,2,3,4,5,6,7,8 crashes=0"),
        # a process cannot be started any more, because the executor leaves a storage that refuses
        (
            5114131,
            "tasks=t10,t11,t12,t13,t14,t15,t16,t17,t18,t19,t2,t3,t4,t5,t6,t7,t8,t9 acts=1,2,3,4,5,6,7 crashes=0",
        ),
        # the clock is set back twice, and the executor dies before its second shift
        (5118635, "tasks=t1,t4 acts=1"),
        # an executor dies while the writer that it has given up is closing
        (5021110, "tasks=t1,t2,t3,t4 acts=0,1 crashes=0,3 clock_steps=0"),
        # an undo restores a retry whose parent runs again by an act that stays
        (5303744, "tasks=n acts=2,3,4,5,6,7"),
        # a run is blocked by a breaker that an operator holds before its task becomes READY
        (5304242, "tasks=m,n,t1,t2,t3 acts=0,1,13,14,15 crashes=1"),
        # an operator closes a breaker just after a step of the clock, and its calls are paced
        (5314507, "tasks=t10,t11,t12,t13,t5,t7,t8,t9"),
        # the clock is stepped while a task that waited for an instant is UPSTREAM_FAILED
        (
            5320007,
            "tasks=m,n,t2,t3 acts=0,10,11,12,13,15,2,4,5,7,8,9 crashes=0,1,2,3 refusals=0,1,2,3,4,5 clock_steps=1",
        ),
    ],
)
def test_a_shrunk_run_with_all_acts_does_not_fail_again(seed: int, only: str) -> None:
    assert simulate(reduce_plan(draw_plan(seed), Reduction.parse(only))).problem == ""


_LATE_TASKS = (
    TaskSpec("long", timeout=300.0, grace_seconds=5.0, retry=RetryPolicy(max_attempts=9, base=1.0)),
    TaskSpec("pay", timeout=300.0, effect=True, idempotent=False),
    TaskSpec("flaky", retry=RetryPolicy(max_attempts=50, base=5.0, cap=30.0)),
    TaskSpec("file", kind="sensor", timeout=10.0, recheck_seconds=10.0),
)


@parametrize_mostly_long("number", [*range(1, 41, 3), *range(2, 41, 3), *range(3, 41, 3)], daily=4)
def test_a_crash_at_any_commit_of_a_run_that_its_deadline_ends_is_safe(number: int) -> None:
    """Before it, in the middle of it, while attempts are killed, and before the run ends."""
    late = FlowSpec(
        "night", (*_LATE_TASKS, TaskSpec("last", ("long", "flaky"))), deadline_seconds=60.0, path="night.py"
    )
    tempers = {"long": "slow", "pay": "slow", "flaky": "flaky", "file": "sensor", "last": "fine"}
    crashes = [((number, is_committed), (number + 3, False)) for is_committed in (False, True)]
    reports = [simulate(Plan(seed, late, tempers, crashes=kind)) for seed in range(8) for kind in crashes]
    assert {report.problem for report in reports} == {""}
    assert "FAILED" in {report.state for report in reports} <= {"FAILED", "BLOCKED"}  # some before the deadline


def test_a_seed_is_one_run_also_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other hashes: no order of a set reaches the file."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it would be stored with the run
    script = "import sys; sys.path.insert(0, 'tests'); "
    script += "from simulation.simulate import simulate; from simulation.plan import draw_plan; "
    script += "print(*[simulate(draw_plan(seed)).digest for seed in (3, 5)])"
    environment = {"PYTHONHASHSEED": "7", "PATH": os.environ["PATH"]}
    completed = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    assert [simulate(draw_plan(seed)).digest for seed in (3, 5)] == completed.stdout.split()


# --- That a fault is found -----------------------------------------------------------------------------------------


def first_problem(seeds: range) -> Report:
    """The first night with a problem."""
    reports = (simulate(draw_plan(seed)) for seed in seeds)
    return next((report for report in reports if report.problem), Report(-1))


def test_a_pool_without_a_bound_is_found() -> None:
    with mock.patch.object(Capacity, "has_pool_slots", lambda capacity, row: True):
        assert "slots of pool" in first_problem(range(40)).problem


@pytest.mark.long
def test_a_breaker_that_holds_nobody_is_found() -> None:
    with mock.patch.object(Capacity, "may_call", lambda capacity, row: True):
        assert first_problem(range(300)).problem


def test_an_act_that_is_applied_again_is_found() -> None:
    with mock.patch.object(operator_actions, "find_act", lambda connection, command_id: None):
        assert "applied twice" in first_problem(range(80)).problem


@pytest.mark.long
def test_a_deadline_that_ends_nothing_is_found() -> None:
    with (
        mock.patch.object(RunEndCheck, "is_deadline_due", False),
        mock.patch.object(RunEndCheck, "pass_deadline", lambda check: None),
    ):
        assert "starts after the deadline" in first_problem(range(80)).problem


@pytest.mark.weekly
@pytest.mark.long
def test_an_inbox_that_leaves_out_what_a_breaker_holds_is_found() -> None:
    with mock.patch.object(Inbox, "_update_held", lambda inbox: False):
        assert "and the inbox lists" in first_problem(range(150)).problem


def test_an_effect_that_is_tried_again_is_found() -> None:
    def draw(seed: int) -> Plan:
        plan = draw_plan(seed)
        tasks = tuple(replace(task, idempotent=True) for task in plan.flow.tasks)
        return replace(plan, flow=replace(plan.flow, tasks=tasks))

    problems = (simulate(draw(seed)).problem for seed in range(80))
    assert any("happens twice" in problem for problem in problems)


def test_a_failing_run_is_shrunk_and_can_be_replayed() -> None:
    with mock.patch.object(Capacity, "has_pool_slots", lambda capacity, row: True):
        report = first_problem(range(40))
        smallest, problem = shrink(draw_plan(report.seed), Reduction())
        replayed = reduce_plan(draw_plan(report.seed), Reduction.parse(str(smallest)))
        assert len(replayed.flow.tasks) == 2
        assert not (replayed.acts or replayed.crashes or replayed.refusals or replayed.clock_steps)
        assert problem == simulate(replayed).problem
