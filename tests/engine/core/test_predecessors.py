"""When a flow starts that follows others: a table of cases, and an own count over random days."""

from __future__ import annotations

from datetime import UTC, date, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redrive.engine.core.predecessors import (
    DayRun,
    Following,
    Predecessor,
    cycle_sentence,
    day_problem,
    follow,
    older_days,
)
from redrive.engine.core.schedule import Schedule, parse_recurrence
from redrive.engine.core.supervision import ScheduleFacts, StepKind, decide_step
from redrive.engine.domain.states import RunState

MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
KOLKATA = ZoneInfo("Asia/Kolkata")


def at(text: str, zone: tzinfo = UTC) -> int:
    """An instant of 2026 in microseconds: "11-28 02:00"."""
    return round(datetime.fromisoformat(f"2026-{text.replace(' ', 'T')}").replace(tzinfo=zone).timestamp()) * 1_000_000


TODAY = at("11-28 00:00")  # a Saturday


def schedule_of(expression: str, zone=UTC, **options) -> Schedule:
    return Schedule(parse_recurrence(expression, zone), zone, **options)


def flow(
    expression: str, runs: dict[int, DayRun], decided_until: int | None = None, zone=UTC, **options
) -> Predecessor:
    """A flow that is served since long; what is not in ``runs`` is decided up to the last of them."""
    until = max(runs, default=0) if decided_until is None else decided_until
    return Predecessor(schedule_of(expression, zone), until, since=0, runs=runs, **options)


def good(ended_at: int = 1) -> DayRun:
    return DayRun(RunState.SUCCESS, ended_at)


NIGHTLY = at("11-28 02:00")
FAILED, RUNNING, MISSED = DayRun(RunState.FAILED, 1), DayRun(RunState.RUNNING), DayRun(None)
SKIPPED_BY_HAND, PARTIAL = DayRun(RunState.PARTIAL, 1, is_decided=True), DayRun(RunState.PARTIAL, 1)
HOURLY = [at(f"11-28 {hour:02}:00") for hour in range(24)]

#: What is known of load and prices at 10:00 (load at 02:00 unless said) -> for what build waits; READY; NONE: no day.
CASES = {
    "all succeeded": (flow("0 2 * * *", {NIGHTLY: good()}), "READY"),
    "goes on": (flow("0 2 * * *", {NIGHTLY: RUNNING}), "goes on (2026-11-28T02:00)"),
    "blocked": (
        flow("0 2 * * *", {NIGHTLY: DayRun(RunState.RUNNING, is_blocked=True)}),
        "waits for a human (2026-11-28T02:00)",
    ),
    "failed": (flow("0 2 * * *", {NIGHTLY: FAILED}), "ended FAILED (2026-11-28T02:00)"),
    "partial": (flow("0 2 * * *", {NIGHTLY: PARTIAL}), "ended PARTIAL (2026-11-28T02:00)"),
    "partial by a person's skip": (flow("0 2 * * *", {NIGHTLY: SKIPPED_BY_HAND}), "READY"),
    "not due": (flow("0 11 * * *", {}), "has not started (2026-11-28T11:00)"),
    "late": (flow("0 2 * * *", {}), "has not started (2026-11-28T02:00)"),
    "missed": (flow("0 2 * * *", {NIGHTLY: MISSED}), "was missed (2026-11-28T02:00), stuck"),
    "missed, and not written": (flow("0 2 * * *", {}, NIGHTLY), "was missed (2026-11-28T02:00), stuck"),
    "skipped": (
        flow("0 2 * * *", {NIGHTLY: DayRun(None, why="skipped by eva")}),
        "was skipped by eva (2026-11-28T02:00), stuck",
    ),
    "paused": (flow("0 2 * * *", {}, paused="paused by eva"), "is paused by eva, stuck"),
    "paused, not due": (flow("0 11 * * *", {}, paused="paused by eva"), "has not started (2026-11-28T11:00)"),
    "gone": (Predecessor(problem="is in no file that is served"), "is in no file that is served, stuck"),
    "no time on a Saturday": (flow("0 2 * * 1-5", {}), "NONE"),
    "run ahead of its time by a schedule that was edited": (
        flow("0 11 * * *", {at("11-28 15:00"): good()}, NIGHTLY),
        "has not started (2026-11-28T11:00)",
    ),
    "edited twice before a time of the first edit was decided": (
        Predecessor(
            schedule_of("0 1 * * *"),
            NIGHTLY,
            at("11-28 09:00"),
            {NIGHTLY: good()},
            edited=((schedule_of("0 8 * * *"), at("11-28 07:00"), at("11-28 09:00")),),
        ),
        "has not started (2026-11-28T08:00)",
    ),
    "served since noon": (Predecessor(schedule_of("0 2 * * *"), 0, since=at("11-28 03:00")), "NONE"),
    "given up for a later run": (
        flow("0 1,2 * * *", {at("11-28 01:00"): MISSED, NIGHTLY: good()}),
        "READY",
    ),
    "an earlier run failed": (
        flow("0 1,2 * * *", {at("11-28 01:00"): FAILED, NIGHTLY: good()}),
        "ended FAILED (2026-11-28T01:00)",
    ),
    "hourly": (flow("0 * * * *", {one: good() for one in HOURLY[:10]}), "has not started (2026-11-28T23:00)"),
    "edited since": (  # it ran at 05:00, and is at 02:00 from noon on
        Predecessor(schedule_of("0 2 * * *"), at("11-28 12:00"), at("11-28 12:00"), {at("11-28 05:00"): good()}),
        "READY",
    ),
    "its day in Kolkata": (
        flow("0 2 * * *", {at("11-28 02:00", KOLKATA): good(), at("11-29 02:00", KOLKATA): RUNNING}, zone=KOLKATA),
        "READY",
    ),
}


def build(known: dict[str, Predecessor], now: int, expression: str = "after load, prices", **options) -> Following:
    return follow(schedule_of(expression, **options), TODAY - 1, (), known, now)


def verdict(found: Following) -> str:
    if not found.days:
        return "NONE"
    stuck = ", stuck" if any(one.is_stuck for one in found.waits) else ""
    return "READY" if found.days[-1].ready_at is not None else f"{found.waits[0].why}{stuck}"


def test_a_flow_starts_when_all_before_it_are_done():
    night = {"prices": flow("0 1 * * *", {at("11-28 01:00"): good()})}
    none = {"prices": flow("0 1 * * 0", {})}
    found = {name: verdict(build({"load": load, **night}, at("11-28 10:00"))) for name, (load, _) in CASES.items()}
    expected = {name: "READY" if word == "NONE" else word for name, (_, word) in CASES.items()}
    assert found == expected
    alone = {name: verdict(build({"load": load, **none}, at("11-28 10:00"))) for name, (load, _) in CASES.items()}
    assert alone == {name: word for name, (_, word) in CASES.items()}


def test_with_ended_a_failed_run_counts_and_a_missed_one_does_not():
    for run, word in ((FAILED, "READY"), (PARTIAL, "READY"), (RUNNING, "goes on"), (MISSED, "was missed")):
        found = build({"load": flow("0 2 * * *", {NIGHTLY: run})}, at("11-28 10:00"), "after load; ended")
        assert verdict(found).startswith(word)


def test_a_flow_after_a_flow_has_the_days_of_the_first():
    load = flow("0 2 * * 1-5", {})
    chain = {"build": Predecessor(schedule_of("after load"), at("11-27 00:00"), 0), "load": load}
    assert verdict(follow(schedule_of("after build"), TODAY - 1, (), chain, at("11-28 10:00"))) == "NONE"
    monday = at("11-30 00:00")
    assert verdict(follow(schedule_of("after build"), monday - 1, (), chain, at("11-30 10:00"))) == (
        "has not started (2026-11-30)"
    )


@pytest.mark.parametrize(
    ("now", "late", "paused_until"),
    [("06:00", False, 0), ("06:01", True, 0), ("06:01", False, at("11-28 08:00"))],
    ids=["in time", "late", "paused"],
)
def test_by_says_when_a_day_that_waits_is_late(now, late, paused_until):
    known = {"load": flow("0 2 * * *", {NIGHTLY: RUNNING})}
    found = build(known, at(f"11-28 {now}"), "after load; by 06:00")
    schedule = schedule_of("after load; by 06:00").with_days(found.days)
    step = decide_step(schedule, ScheduleFacts(decided_until=TODAY - 1, paused_until=paused_until), at(f"11-28 {now}"))
    assert step.kind is StepKind.WAIT
    assert step.late_since == (at("11-28 06:00") if late else None)


def test_no_day_is_late_before_the_flow_is_served():
    known = {"load": flow("0 2 * * *", {NIGHTLY: RUNNING})}
    found = follow(schedule_of("after load; by 06:00"), TODAY - 1, (), known, at("11-28 10:00"), at("11-28 09:00"))
    assert found.days[0].by_at is None and found.waits


def test_by_is_the_first_such_time_after_the_last_run_is_due():
    found = build({"load": flow("0 23 * * *", {})}, at("11-28 10:00"), "after load; by 06:00")
    assert found.days[0].by_at == at("11-29 06:00")


def test_a_later_day_that_is_ready_gives_up_the_one_that_waits():
    load = flow("0 2 * * *", {NIGHTLY: FAILED, NIGHTLY + DAY: good()})
    found = follow(schedule_of("after load"), TODAY - 1, (), {"load": load}, at("11-29 10:00"))
    facts = ScheduleFacts(decided_until=TODAY - 1)
    step = decide_step(schedule_of("after load").with_days(found.days), facts, at("11-29 10:00"))
    assert step.kind is StepKind.RECORD, "the first day is written down as missed"
    step = decide_step(
        schedule_of("after load").with_days(found.days), ScheduleFacts(decided_until=TODAY), at("11-29 10:00")
    )
    assert (step.kind, step.logical) == (StepKind.START, TODAY + DAY)
    in_order = schedule_of("after load", misfire="all").with_days(found.days)
    assert decide_step(in_order, facts, at("11-29 10:00")).kind is StepKind.WAIT, "misfire='all' runs them in order"


def test_with_all_in_order_the_day_that_holds_up_the_others_says_why():
    known = {"load": flow("0 2 * * *", {NIGHTLY: MISSED, NIGHTLY + DAY: good()})}
    found = build(known, NIGHTLY + DAY + HOUR, "after load", misfire="all")
    assert [(one.why, one.is_stuck) for one in found.waits] == [("was missed (2026-11-28T02:00)", True)]
    assert build(known, NIGHTLY + DAY + HOUR, "after load").waits == ()


def test_a_run_after_that_of_the_second_leaves_it_with_older_data():
    load = flow("0 2 * * *", {NIGHTLY: good(at("11-28 12:00"))})
    assert older_days({date(2026, 11, 28): at("11-28 03:00")}, load) == [date(2026, 11, 28)]
    assert older_days({date(2026, 11, 28): at("11-28 13:00")}, load) == []


def test_a_flow_after_itself_is_named():
    assert (
        cycle_sentence("a", {"a": ["b"], "b": ["c"], "c": ["a"]})
        == "flow 'a' comes after itself: a after b after c after a"
    )
    assert cycle_sentence("d", {"d": ["a"], "a": ["b"], "b": ["a"]}) == ""


def test_a_sensor_waits_for_the_same_day():
    known = {"load": flow("0 2 * * 1-5", {})}
    now = at("11-28 10:00")
    assert day_problem("load", date(2026, 11, 28), known, ended=False, now=now) == ""
    assert day_problem("load", date(2026, 11, 30), known, ended=False, now=now) == "has not started (2026-11-30T02:00)"
    assert day_problem("prices", date(2026, 11, 28), known, ended=False, now=now) == "is in no file that is served"


# --- Against an own count --------------------------------------------------------------------------------------------

OUTCOMES = [good(5), FAILED, RUNNING, MISSED, SKIPPED_BY_HAND]
one_day = st.lists(st.sampled_from(OUTCOMES), min_size=0, max_size=3)  # of a flow at 01:00, 02:00 and 03:00, so far


@settings(max_examples=60, deadline=None)
@given(days=st.lists(st.tuples(one_day, one_day, st.booleans()), min_size=1, max_size=4), ended=st.booleans())
def test_the_days_that_are_ready_are_those_of_an_own_count(days, ended):
    """Each day is counted by hand: a flow with n outcomes so far has decided n of its three times."""
    times = [HOUR, 2 * HOUR, 3 * HOUR]
    loads, prices, holidays, expected = {}, {}, set(), {}
    for number, (load, price, is_holiday) in enumerate(days):
        begin = TODAY + number * DAY
        loads.update({begin + at: run for at, run in zip(times, load, strict=False)})
        complete = [is_complete(load, ended)]
        if is_holiday:
            holidays.add(datetime.fromtimestamp(begin / 1e6, UTC).date())
        else:
            prices.update({begin + at: run for at, run in zip(times, price, strict=False)})
            complete.append(is_complete(price, ended))
        expected[begin] = all(complete)
    now = TODAY + len(days) * DAY
    known = {
        "load": flow("0 1,2,3 * * *", loads, 0),
        "prices": Predecessor(schedule_of("0 1,2,3 * * *", holidays=frozenset(holidays)), 0, 0, prices),
    }
    found = build(known, now - 1, f"after load, prices{'; ended' if ended else ''}")
    assert {day.logical: day.ready_at is not None for day in found.days} == expected


def is_complete(outcomes: list[DayRun], ended: bool) -> bool:
    if len(outcomes) < 3 or outcomes[-1].state is None:
        return False
    ran = [run for run in outcomes if run.state is not None]
    return all(run.ended_at is not None and (ended or run.state is not RunState.FAILED) for run in ran)
