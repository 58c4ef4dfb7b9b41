"""What attempts cost and what retries were worth (000.04, 000.06, 004.17)."""

from redrive.engine.core.costs import costs_of, total, yields_of
from redrive.engine.core.fold import AttemptRow, RunFold, RunRow, TaskRow
from redrive.engine.core.spec import TaskSpec

SECOND = 1_000_000


def fold(*rows: TaskRow) -> RunFold:
    return RunFold(RunRow("r"), {row.name: row for row in rows})


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
    costs = costs_of(
        fold(
            task("flaky", ("error", "transient", "a", 1.0), OK),
            task("hangs", ("timed_out", "hang", "b", 600.0), OK),
            task("poisoned", ("error", "unclassified", "c", 30.0), ("error", "poisoned", "c", 30.0)),
        )
    )
    assert (1, 1.0) == (costs["transient"].attempts, costs["transient"].seconds)
    assert 600.0 == costs["hang"].seconds
    assert (2, 4.0) == (costs["success"].attempts, costs["success"].seconds)
    assert 6 == total(costs.values()).attempts


def test_what_failed_as_it_had_failed_before_is_wasted():
    same = ("error", "other", "same", 10.0)
    costs = costs_of(fold(task("a", same, ("error", "other", "else", 10.0), same, same)))
    assert (40.0, 20.0) == (costs["other"].seconds, costs["other"].wasted_seconds)


def test_attempts_that_run_still_have_no_price_yet():
    row = TaskRow("a", attempts={1: AttemptRow(1)})
    assert {} == costs_of(fold(row))


def test_a_downstream_that_mostly_needs_retries_is_degraded_although_everything_succeeds():
    """004.17: a downstream that needs three retries eighty percent of the time is degraded."""
    blip = ("error", "transient", "x", 1.0)
    rows = [task(f"t{number}", blip, blip, blip, OK, downstream="api") for number in range(8)]
    rows += [task(f"u{number}", OK, downstream="api") for number in range(2)]
    (healed,) = yields_of(fold(*rows))
    assert ({0: 2, 3: 8}, 0.8, True) == (healed.by_failures, healed.recovered_share, healed.is_degraded)


def test_few_successes_say_nothing_of_a_downstream():
    blip = ("error", "transient", "x", 1.0)
    (healed,) = yields_of(fold(task("a", blip, OK, downstream="api")))
    assert 1.0 == healed.recovered_share and not healed.is_degraded
