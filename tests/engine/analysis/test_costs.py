"""What attempts cost and what retries were worth (000.04, 000.06, 004.17)."""

from redrive.engine.analysis.costs import CUT_STARTS_MIN, costs_by_outcome, policy_costs, retry_yields, total
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.projection import AttemptRow, RunProjection, RunRow, TaskRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.states import TaskState

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
    costs = costs_by_outcome(
        projection(
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
    costs = costs_by_outcome(projection(task("a", same, ("error", "other", "else", 10.0), same, same)))
    assert (40.0, 20.0) == (costs["other"].seconds, costs["other"].wasted_seconds)


def test_a_failure_without_a_mode_of_its_own_has_the_word_of_the_inbox():
    """A permanent error is "permanent" in the costs, as in the inbox; a hang says more than its class."""
    denied = AttemptRow(1, ended_at=1, outcome="error", failure_mode="other", failure_class="PERMANENT")
    hung = AttemptRow(1, ended_at=1, outcome="timed_out", failure_mode="hang", failure_class="TIMEOUT")
    rows = (TaskRow("denied", attempts={1: denied}), TaskRow("hung", attempts={1: hung}))
    assert ["permanent", "hang"] == [*costs_by_outcome(projection(*rows))]


def test_an_attempt_that_did_not_fail_has_the_word_of_its_end():
    outcomes = ("skipped", "deferred", "cancelled", "lost")
    rows = [TaskRow(outcome, attempts={1: AttemptRow(1, ended_at=1, outcome=outcome)}) for outcome in outcomes]
    assert [*outcomes] == [*costs_by_outcome(projection(*rows))]


def test_attempts_that_run_still_have_no_price_yet():
    row = TaskRow("a", attempts={1: AttemptRow(1)})
    assert {} == costs_by_outcome(projection(row))


def test_a_downstream_that_mostly_needs_retries_is_degraded_although_everything_succeeds():
    """004.17: a downstream that needs three retries eighty percent of the time is degraded."""
    blip = ("error", "transient", "x", 1.0)
    rows = [task(f"t{number}", blip, blip, blip, OK, downstream="api") for number in range(8)]
    rows += [task(f"u{number}", OK, downstream="api") for number in range(2)]
    (healed,) = retry_yields(projection(*rows))
    assert ({0: 2, 3: 8}, 0.8, True) == (healed.by_failures, healed.recovered_share, healed.is_degraded)


def test_few_successes_say_nothing_of_a_downstream():
    blip = ("error", "transient", "x", 1.0)
    (healed,) = retry_yields(projection(task("a", blip, OK, downstream="api")))
    assert 1.0 == healed.recovered_share and not healed.is_degraded


# --- The retry ledger (SPEC part 4, 7) ------------------------------------------------------------------------------

FIVE = RetryPolicy(max_attempts=5)
BLIP = ("error", "transient", "x", 1.0)
SLOW = ("timed_out", "hang", "x", 30.0)


def under(policy: RetryPolicy, row: TaskRow, state: TaskState = TaskState.SUCCESS) -> TaskRow:
    assert row.spec is not None
    row.spec = TaskSpec(row.name, downstream=row.spec.downstream, retry=policy)
    row.state = state
    return row


def late_and_useless(tasks: int = 300) -> list[TaskRow]:
    """Nearly all succeed at once, some at the first retry; the rest hangs every time but for one, which heals late."""
    rows = [task(f"fine{number}", OK, downstream="api") for number in range(tasks - 40)]
    rows += [task(f"blip{number}", BLIP, OK, downstream="api") for number in range(20)]
    rows += [task(f"hang{number}", SLOW, SLOW, SLOW, SLOW, SLOW, downstream="api") for number in range(19)]
    rows += [task("lucky", SLOW, SLOW, SLOW, OK, downstream="api")]
    return [under(FIVE, row) for row in rows]


def test_a_policy_shows_what_each_of_its_retries_cost_and_healed():
    (ledger,) = policy_costs(projection(*late_and_useless()))
    assert ("api", FIVE, 300, 0) == (ledger.downstream, ledger.policy, ledger.tasks, ledger.undecided)
    assert [300, 40, 20, 20, 19] == [one.starts for one in ledger.tries]
    assert [260, 20, 0, 1, 0] == [one.healed for one in ledger.tries]
    tail = ledger.retries_from(2)
    assert (2, 4, 59, 1) == (tail.first, tail.last, tail.starts, tail.healed)
    assert 58 * 30.0 + 2.0 == tail.seconds
    assert round(1 / 300, 6) == round(tail.healed_share, 6) and 0.4 < tail.cost_share < 0.5


def test_the_cut_is_made_where_dear_retries_begin_to_heal_nothing():
    (ledger,) = policy_costs(projection(*late_and_useless()))
    cut = ledger.removable_retries()
    assert cut is not None and 2 == cut.first, "the first retry healed half of those that it was for"


def test_retries_that_heal_are_not_cut_however_dear_and_useless_ones_not_while_they_are_cheap():
    heal = [under(FIVE, task(f"t{number}", SLOW, SLOW, OK)) for number in range(50)]
    (ledger,) = policy_costs(projection(*heal))
    assert ledger.retries_from(1).cost_share > 0.4 and ledger.removable_retries() is None
    cheap = [under(FIVE, task(f"long{number}", ("success", "", "", 600.0))) for number in range(10)]
    cheap += [under(FIVE, task(f"t{number}", BLIP, BLIP, BLIP)) for number in range(30)]
    (ledger,) = policy_costs(projection(*cheap))
    assert 0 == ledger.retries_from(1).healed and ledger.removable_retries() is None


def test_nothing_is_concluded_from_few_retries():
    few = [under(FIVE, task(f"t{number}", SLOW, SLOW)) for number in range(CUT_STARTS_MIN - 1)]
    assert policy_costs(projection(*few))[0].removable_retries() is None
    enough = [*few, under(FIVE, task("one more", SLOW, SLOW))]
    cut = policy_costs(projection(*enough))[0].removable_retries()
    assert cut is not None and (1, 0, 0.5) == (cut.first, cut.healed, cut.cost_share)


def test_losses_and_polls_of_a_sensor_are_no_retries_and_each_generation_counts_from_zero():
    row = under(FIVE, task("a", ("lost", "", "", 5.0), ("deferred", "", "", 1.0), BLIP, OK), TaskState.RETRYING)
    row.attempts[5] = AttemptRow(5, generation=1, ended_at=5, outcome="success", duration_us=SECOND)
    (ledger,) = policy_costs(projection(row))
    assert [(4, 1), (1, 1)] == [(one.starts, one.healed) for one in ledger.tries]
    assert (2, 1) == (ledger.tasks, ledger.undecided)


def test_each_policy_and_each_downstream_has_a_ledger_of_its_own_the_dearest_first():
    rows = [
        under(FIVE, task("a", BLIP, OK, downstream="api")),
        under(RetryPolicy(max_attempts=2), task("b", BLIP, SLOW, downstream="api")),
        under(FIVE, task("c", OK)),
        TaskRow("never started", spec=TaskSpec("never started")),
    ]
    found = [(ledger.downstream, ledger.policy.max_attempts) for ledger in policy_costs(projection(*rows))]
    assert [("api", 2), ("api", 5), ("", 5)] == found
