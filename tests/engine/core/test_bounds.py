"""No task is ever without a bound: whatever its calls and those of the others answer, its starts are few."""

from __future__ import annotations

import heapq
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from redrive.engine.core.decide import HELD_SECONDS_MAX, HELD_TRIES_MAX, Circumstances, Retry, TaskHistory, decide
from redrive.engine.core.downstreams import DownstreamStates
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import DownstreamSpec, FlowSpec, TaskSpec

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
CLASSES = [FailureClass.TRANSIENT, FailureClass.TIMEOUT, FailureClass.AMBIGUOUS, FailureClass.UNCLASSIFIED]
#: What the calls of a task meet, and how often.
BEHAVIOURS = st.tuples(st.sampled_from(CLASSES), st.sampled_from([0.0, 0.3, 0.9, 1.0]))
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 5),
    base=st.sampled_from([0.0, 1.0, 2.0]),
    cap=st.sampled_from([60.0, 600.0]),
    jitter=st.sampled_from(["full", "none", "decorrelated"]),
)


class Task:
    def __init__(self) -> None:
        self.starts, self.failures, self.refusals = 0, 0, 0
        self.failed_at: list[int] = []
        self.delay: float | None = None
        self.first: int | None = None


def run(behaviours: list[tuple[FailureClass, float]], policy: RetryPolicy, takes: float, seed: int) -> list[Task]:
    """Run tasks of one downstream to their ends; an open breaker is asked again when it says."""
    dice, now = random.Random(seed), START
    tasks = [Task() for _ in behaviours]
    spec = FlowSpec(
        "f", tuple(TaskSpec(str(number)) for number in range(len(tasks))), downstreams=(DownstreamSpec("api"),)
    )
    states = DownstreamStates(spec, lambda: now, lambda name: None)
    due = [(START, number, False) for number in range(len(tasks))]
    while due:
        now, number, is_running = heapq.heappop(due)
        task, (failure_class, share) = tasks[number], behaviours[number]
        if not is_running:
            admission = states.admit(str(number), "api", is_retry=task.starts > 0)
            if admission.call is None:
                heapq.heappush(due, (max(admission.retry_at or 0, now + SECOND), number, False))
                continue
            task.starts, task.first = task.starts + 1, task.first or now
            heapq.heappush(due, (now + round(takes * SECOND), number, True))
            continue
        failure = Failure("E", "m", failure_class, Fingerprint(f"s{number}", f"l{number}"))
        is_failed = dice.random() < share
        outcome = Outcome(OutcomeKind.ERROR, failure) if is_failed else Outcome(OutcomeKind.SUCCESS)
        verdict = states.record(str(number), outcome, task.failures + task.refusals, policy.max_attempts)
        history = TaskHistory(
            failures=task.failures,
            refusals=task.refusals,
            previous_delay=task.delay,
            failures_of_class=len(task.failed_at),
            first_failed_at=task.failed_at[0] if task.failed_at else None,
            first_started_at=task.first,
            spec=TaskSpec("a", downstream="api", retry=policy),
        )
        decision = decide(history, outcome, Circumstances(verdict), now, dice.uniform)
        if isinstance(decision, Retry):
            task.failures += decision.counts == "failures"
            task.refusals += decision.counts == "refusals"
            task.failed_at.append(now)
            task.delay = decision.delay
            heapq.heappush(due, (now + round(decision.delay * SECOND), number, False))
    assert now - START < (3 * HELD_SECONDS_MAX + 3600 * len(tasks)) * SECOND
    return tasks


@settings(max_examples=20)  # days of a dozen tasks each
@given(st.lists(BEHAVIOURS, min_size=1, max_size=14), POLICIES, st.sampled_from([0.1, 65.0]), st.integers(0, 9))
def test_the_starts_of_each_task_are_bounded(
    behaviours: list[tuple[FailureClass, float]], policy: RetryPolicy, takes: float, seed: int
) -> None:
    tasks = run(behaviours, policy, takes, seed)
    for task, (failure_class, _) in zip(tasks, behaviours, strict=True):
        own = policy.max_attempts + HELD_TRIES_MAX
        assert task.starts <= (9_000 if failure_class is FailureClass.TRANSIENT else own)


@given(st.sampled_from(CLASSES), POLICIES, st.sampled_from([0.1, 65.0]), st.integers(0, 30), st.integers(0, 9))
def test_one_task_that_fails_beside_good_ones_ends_as_without_a_downstream(
    failure_class: FailureClass, policy: RetryPolicy, takes: float, good: int, seed: int
) -> None:
    tasks = run([(failure_class, 1.0), *[(failure_class, 0.0)] * good], policy, takes, seed)
    if failure_class is not FailureClass.TRANSIENT:
        assert tasks[0].starts <= policy.max_attempts and not tasks[0].refusals
    assert all(task.starts == 1 for task in tasks[1:])


def test_a_policy_without_a_base_waits_as_well_while_its_downstream_is_down() -> None:
    transient, timeout, ambiguous, other = CLASSES
    behaviours = [(timeout, 0.9), (timeout, 0.3), (transient, 1.0), (transient, 1.0), (transient, 0.9)]
    behaviours += [(transient, 1.0), (timeout, 1.0), (ambiguous, 1.0), (transient, 0.0), (timeout, 0.9)]
    behaviours += [(other, 0.9), (ambiguous, 1.0), (other, 0.3)]
    policy = RetryPolicy(max_attempts=5, base=0.0, cap=60.0, jitter="full")
    assert max(task.starts for task in run(behaviours, policy, 0.1, 7)) < 9_000  # 27,812 without a pause
