"""Another policy against the record of a run: what it would have come to, and how far that can be trusted."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace
from redrive.engine.analysis.trials import NO_CHANGE, PolicyChange, parse_change
from redrive.engine.analysis.what_if import (
    FailureAttribution,
    ReplayInput,
    ReplayStart,
    RunFigures,
    compare,
    differences,
    range_of,
    recorded_figures,
    replay,
    start_of_run,
)
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.projection import RunCounts, RunProjection
from redrive.engine.core.waiting import BreakerView
from redrive.engine.domain.states import TaskState

from .records import PLAIN, SECOND, START, Tried, generate_run, projection_of

BOTH = pytest.mark.parametrize("reading", FailureAttribution)


def again(
    projection: RunProjection,
    change: str = "",
    reading: FailureAttribution = FailureAttribution.BY_NUMBER,
    seed: int | None = None,
) -> RunFigures:
    dice = None if seed is None else random.Random(seed).uniform
    stage = ReplayInput(projection, start_of_run(projection))
    return replay(stage, parse_change(change) if change else NO_CHANGE, reading, dice)


# --- The control ---------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("seed", range(40))
def test_the_same_policies_with_the_waits_of_the_record_give_the_run_itself(
    seed: int, reading: FailureAttribution
) -> None:
    """Where nobody waited for anything but parents and the retries' own waits."""
    then = generate_run(seed)
    found = again(then.projection, reading=reading)
    assert (found.calls, found.failed, found.dead_letters, found.not_run) == (
        then.calls,
        then.failed,
        then.dead_letters,
        then.not_run,
    )
    assert found.seconds == pytest.approx(then.seconds, abs=0.001)
    assert found.unrecorded == 0


@pytest.mark.parametrize("seed", range(10))
def test_a_change_that_changes_nothing_is_the_control(seed: int) -> None:
    then = generate_run(seed)
    assert again(then.projection, "max_attempts=3", seed=1) == again(then.projection)


def test_a_replay_is_the_same_every_time() -> None:
    projection = generate_run(3).projection
    change = "max_attempts=6,jitter=equal,base=5s"
    assert again(projection, change, seed=9) == again(projection, change, seed=9)
    assert again(projection, change, seed=9) != again(projection, change, seed=10)


def test_the_run_that_is_asked_about_is_left_alone() -> None:
    projection, other = generate_run(5).projection, generate_run(5).projection
    again(projection, "max_attempts=9")
    assert projection == other


# --- Policies ------------------------------------------------------------------------------------------------------


def test_fewer_tries_are_fewer_calls_and_what_had_healed_late_fails() -> None:
    late = [Tried(1, "transient", 1.0, "a"), Tried(1, "transient", 2.0, "b"), Tried(1)]
    projection = projection_of({"late": late, "child": [Tried(1)]}, {"child": ["late"]}, starts={"child": 6.0})
    found = again(projection, "max_attempts=2")
    assert (found.calls, found.failed, found.not_run, found.pages) == (2, 1, 1, 1)


def test_more_tries_than_there_were_end_as_the_last_one_did_and_are_distinguished() -> None:
    projection = projection_of(
        {"t": [Tried(1, "transient", 1.0, mark) for mark in "ab"] + [Tried(1, "transient", mark="c")]}
    )
    found = again(projection, "max_attempts=5")
    assert (found.calls, found.failed, found.unrecorded) == (5, 1, 2)


def test_what_never_ran_is_taken_to_do_well_as_long_as_tasks_usually_take() -> None:
    bug = [Tried(1, "unclassified", 1.0, "bug"), Tried(1, "unclassified", mark="bug")]
    states = {"t": TaskState.DEAD_LETTER, "child": TaskState.PENDING}
    projection = projection_of({"fine": [Tried(7)], "t": [*bug, Tried(1)], "child": []}, {"child": ["t"]}, states)
    found = again(projection, "poison_after=off")
    assert (found.dead_letters, found.not_run, found.unrecorded) == (0, 0, 1)
    assert found.seconds == pytest.approx(3 + 1 + 3 + 7, abs=4)


def test_longer_waits_end_later() -> None:
    projection = projection_of({"t": [Tried(1, "transient", 1.0), Tried(1)]})
    assert again(projection, "jitter=none,base=100s").seconds == pytest.approx(102)


def test_waits_that_nobody_changed_are_as_they_were() -> None:
    projection = projection_of({"t": [Tried(1, "transient", 1.25), Tried(1)]})
    assert {again(projection, "max_attempts=7", seed=seed).seconds for seed in range(5)} == {3.25}


def test_nobody_comes_back_sooner_than_the_other_side_had_asked_for() -> None:
    projection = projection_of({"t": [Tried(1, "transient", 0.5, asked=30.0), Tried(1)]})
    assert again(projection).seconds == pytest.approx(32.5)
    assert again(projection, "jitter=none,base=0.1s").seconds == pytest.approx(32.1)


# --- The two readings ----------------------------------------------------------------------------------------------


def outage() -> RunProjection:
    """A system that is down from the second 10 to 100: three call it then, one before and one afterwards."""
    system = {"downstream": "bank"}
    down = [Tried(1, "transient", 2.0), Tried(1, "transient", 4.0), Tried(1, "transient")]
    tries = {"early": [Tried(1)], "late": [Tried(1)], **{f"down{number}": down for number in range(3)}}
    states = {f"down{number}": TaskState.FAILED for number in range(3)}
    starts = {"early": 0.0, "late": 110.0, "down0": 10.0, "down1": 30.0, "down2": 60.0}
    return projection_of(tries, {}, states, starts, specs=dict.fromkeys(tries, system))


def test_by_time_an_outage_ends_and_by_number_it_never_does() -> None:
    """Retries that are long enough find the system back, if the failures belonged to its outage."""
    patient = "jitter=none,base=60s,breaker=off"
    projection = outage()
    spec = projection.tasks["late"].spec
    assert spec is not None
    projection.tasks["late"].spec = replace(spec, pool="never")  # it runs in the record alone
    assert again(projection, patient, FailureAttribution.BY_NUMBER).failed == 3
    assert again(projection, patient, FailureAttribution.BY_TIME).failed == 0


@BOTH
def test_a_bug_is_a_bug_at_any_time(reading: FailureAttribution) -> None:
    bug = [Tried(1, "unclassified", 1.0, "bug"), Tried(1, "unclassified", mark="bug")]
    tries = {"bad": bug, "fine": [Tried(1)]}
    projection = projection_of(
        tries, {}, {"bad": TaskState.DEAD_LETTER}, specs={key: {"downstream": "bank"} for key in tries}
    )
    assert again(projection, "jitter=none,base=500s", reading).dead_letters == 1


# --- Room ----------------------------------------------------------------------------------------------------------


def test_slots_are_shared_as_they_were() -> None:
    projection = projection_of({f"t{number}": [Tried(10)] for number in range(6)}, max_parallel=2)
    assert again(projection).seconds == pytest.approx(30)


def test_pools_are_shared_as_they_were() -> None:
    tries = {f"t{number}": [Tried(10)] for number in range(6)}
    projection = projection_of(tries, specs={key: {"pool": "db"} for key in tries}, options='{"pools": {"db": 3}}')
    assert again(projection).seconds == pytest.approx(20)


def herd(minimum_calls: int) -> RunProjection:
    """Twenty tasks at once against a system that is down for all of their tries."""
    tries = {f"t{number}": [Tried(1, "transient", 1.0, str(one)) for one in range(3)] for number in range(20)}
    options = f'{{"downstreams": [{{"name": "bank", "minimum_calls": {minimum_calls}, "open_seconds": 5}}]}}'
    system = {key: {"downstream": "bank"} for key in tries}
    return projection_of(
        tries, {}, dict.fromkeys(tries, TaskState.FAILED), specs=system, options=options, max_parallel=4
    )


def test_what_a_breaker_holds_spends_no_budget_and_waits_for_ever_where_the_system_never_comes_back() -> None:
    holds, off = again(herd(5)), again(herd(5), "breaker=off,bucket_capacity=1000")
    assert (off.calls, off.failed, off.is_over) == (60, 20, True)
    assert (holds.failed, holds.is_over) == (0, False)


def test_what_a_breaker_holds_for_long_is_a_page_of_its_own() -> None:
    assert again(herd(2), "open_seconds=11m").pages >= 1


def test_a_breaker_that_was_open_at_the_fork_holds_until_its_time() -> None:
    projection = projection_of({"t": [Tried(1)]}, specs={"t": {"downstream": "bank"}})
    view = BreakerView("OPEN", START + 20 * SECOND)
    fork = replace(start_of_run(projection), breakers={"bank": view})
    assert replay(ReplayInput(projection, fork), NO_CHANGE, FailureAttribution.BY_NUMBER).seconds == pytest.approx(21)


# --- Forks ---------------------------------------------------------------------------------------------------------


def test_from_the_middle_only_what_comes_later_is_another() -> None:
    """One task is running at the fork and ends as it did; the other waits for the time that it had drawn."""
    tries = {"runs": [Tried(10)], "waits": [Tried(1, "transient", 6.0), Tried(1)]}
    projection = projection_of(tries)
    start = start_of_run(projection).run
    start.tasks["runs"].state, start.tasks["runs"].attempt = TaskState.RUNNING, 1
    start.tasks["runs"].attempts = {1: replace(projection.tasks["runs"].attempts[1], ended_at=None, outcome="running")}
    waits = start.tasks["waits"]
    waits.state, waits.failures, waits.next_retry_at = TaskState.RETRYING, 1, START + 7 * SECOND
    waits.attempts = {1: projection.tasks["waits"].attempts[1]}
    found = replay(
        ReplayInput(projection, ReplayStart(start, START + 5 * SECOND, RunCounts(calls=2))),
        NO_CHANGE,
        FailureAttribution.BY_NUMBER,
    )
    assert (found.calls, found.seconds) == (3, pytest.approx(10.0))


def test_tries_of_the_generation_at_the_fork_count_and_not_those_that_came_later() -> None:
    """What an operator had run again does well; from the beginning, no executor runs it again."""
    mended = [Tried(1, "permanent", at=0), Tried(1, at=500, generation=1)]
    projection = projection_of({"t": mended})
    assert again(projection).dead_letters == 1
    counts = RunCounts(calls=2, dead_letters=1, pages=1)
    assert recorded_figures(projection, counts) == RunFigures(2, 0, 1, 0, 1, 501.0)


# --- Beside each other ---------------------------------------------------------------------------------------------


def test_all_figures_beside_each_other_with_median_and_spread() -> None:
    then = generate_run(4)
    dice = [random.Random(seed).uniform for seed in range(5)]
    counts = RunCounts(calls=then.calls, failed=then.failed, dead_letters=then.dead_letters)
    change = parse_change("base=20s,cap=60s")
    found = compare(ReplayInput(then.projection, start_of_run(then.projection)), counts, change, dice)
    assert found.recorded.calls == then.calls
    assert set(found.control) == set(found.changed) == set(FailureAttribution)
    for spread in found.changed.values():
        assert spread.least.seconds < spread.median.seconds < spread.most.seconds
    assert differences(found.recorded, found.control[FailureAttribution.BY_NUMBER]).keys() <= {"seconds", "pages"}


def test_the_spread_of_one_run_is_that_run() -> None:
    one = RunFigures(1, 2, 3, 4, 5, 6.0)
    spread = range_of([one])
    assert spread.median == spread.least == spread.most == one


# --- What is asked for ---------------------------------------------------------------------------------------------


def test_a_change_holds_for_every_policy_and_leaves_the_rest() -> None:
    change = parse_change("jitter=equal, max_attempts=5 cap=10m")
    assert change.apply_to_policy(PLAIN) == RetryPolicy(max_attempts=5, base=2.0, cap=600.0, jitter="equal")
    assert change.text == "jitter=equal max_attempts=5 cap=10m"
    assert not change.has_recorded_delays
    assert parse_change("max_attempts=5").has_recorded_delays


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "name a change"),
        ("attempts=5", "'attempts=5' is not name=value with one of max_attempts, base"),
        ("max_attempts=0", r"max_attempts is a whole number of at least 1 \(the first start counts too\), not 0"),
        ("base=-2", "base is a duration of 0 or more .*, not -2"),
        ("jitter=wild", "jitter is one of none, full"),
        ("failure_rate=2", "failure_rate is a finite number above 0 and at most 1, not 2"),
        ("breaker=maybe", "breaker is one of on, off, not 'maybe'"),
        ("bucket_per_second=0", "bucket_per_second is a finite number above 0, not 0"),
        ("max_elapsed=never", "max_elapsed is a duration .*, or None, not 'never'"),
        ("factor=nan", "factor is a finite number of at least 1, not nan"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_change(text)


def test_no_change_is_none() -> None:
    assert PolicyChange() == NO_CHANGE
    assert NO_CHANGE.apply_to_policy(PLAIN) == PLAIN
