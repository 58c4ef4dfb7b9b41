"""What attempts cost in slot seconds, by how they ended (000.04, 000.06, SPEC part 4, 7)."""

from redrive.engine.analysis.slot_seconds import slot_seconds
from redrive.engine.core.projection import AttemptRow, RunProjection, TaskRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.rows import RunRow

SECOND = 1_000_000


def projection(*rows: TaskRow) -> RunProjection:
    return RunProjection(RunRow("r"), {row.name: row for row in rows})


def task(
    name: str, *attempts: tuple[str, str, str, float], downstream: str | None = None, generation: int = 0
) -> TaskRow:
    """Attempts as (outcome, mode, fingerprint, seconds)."""
    row = TaskRow(name, spec=TaskSpec(name, downstream=downstream))
    for number, (outcome, mode, mark, seconds) in enumerate(attempts, start=1):
        row.attempts[number] = AttemptRow(
            number,
            generation=generation,
            ended_at=number,
            outcome=outcome,
            failure_mode=mode or None,
            fingerprint=mark or None,
            duration_us=round(seconds * SECOND),
        )
    return row


OK = ("success", "", "", 2.0)


def test_slot_seconds_are_split_by_how_the_attempts_ended():
    """000.04: a few seconds, a worker slot, the work times max_attempts; 000.06: who spends the budget is seen."""
    costs = slot_seconds(
        projection(
            task("flaky", ("error", "transient", "a", 1.0), OK),
            task("hangs", ("timed_out", "hang", "b", 600.0), OK),
            task("poisoned", ("error", "unclassified", "c", 30.0), ("error", "poisoned", "c", 30.0)),
        )
    )
    assert (1, 1.0) == (costs["transient"].attempts, costs["transient"].seconds)
    assert 600.0 == costs["hang"].seconds
    assert (2, 4.0) == (costs["success"].attempts, costs["success"].seconds)
    assert 6 == sum(cost.attempts for cost in costs.values())


def test_what_failed_as_it_had_failed_before_is_wasted():
    same = ("error", "other", "same", 10.0)
    costs = slot_seconds(projection(task("a", same, ("error", "other", "else", 10.0), same, same)))
    assert (40.0, 20.0) == (costs["other"].seconds, costs["other"].wasted_seconds)


def test_a_failure_without_a_mode_of_its_own_has_the_word_of_the_inbox():
    """A permanent error is "permanent" in the costs, as in the inbox; a hang says more than its class."""
    denied = AttemptRow(1, ended_at=1, outcome="error", failure_mode="other", failure_class="PERMANENT")
    hung = AttemptRow(1, ended_at=1, outcome="timed_out", failure_mode="hang", failure_class="TIMEOUT")
    rows = (TaskRow("denied", attempts={1: denied}), TaskRow("hung", attempts={1: hung}))
    assert ["permanent", "hang"] == [*slot_seconds(projection(*rows))]


def test_an_attempt_that_did_not_fail_has_the_word_of_its_end():
    outcomes = ("skipped", "deferred", "cancelled", "lost")
    rows = [TaskRow(outcome, attempts={1: AttemptRow(1, ended_at=1, outcome=outcome)}) for outcome in outcomes]
    assert [*outcomes] == [*slot_seconds(projection(*rows))]


def test_attempts_that_run_still_have_no_price_yet():
    row = TaskRow("a", attempts={1: AttemptRow(1)})
    assert {} == slot_seconds(projection(row))
