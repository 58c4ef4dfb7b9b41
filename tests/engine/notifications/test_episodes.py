"""An episode of pages ends with the next success of its task, also in a later run (SPEC 4.13)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, FlowError, PermanentError
from redrive.engine.executor.run_options import RunOptions
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.needs import needs_of
from redrive.engine.statefile.state_files import file_row_of
from redrive.engine.testing import down, error, in_turn, killed, play, play_schedule
from support.marks import for_each, parametrize_mostly_long

BROKEN = ConnectionError("refused")
HOUR = 3600 * 1_000_000
SIX = 494_118 * HOUR  # an hour that is whole
DAY = "2026-01-05T22:30+00:00"


def hourly(**options) -> Flow:
    flow = Flow("hourly", **options)
    flow.task(name="load", max_attempts=1)(lambda: 1)
    return flow


def causes(night) -> list[tuple[int, int, str]]:
    """Episode, failures and state of each page of the file."""
    return night.query("SELECT episode, count, state FROM page ORDER BY id")


@pytest.mark.parametrize("answer", [None, ("ack", {"pages": [1]}), ("snooze", {"pages": [1], "seconds": 86400})])
def test_a_success_in_a_later_run_ends_the_episode_whatever_was_answered(answer) -> None:
    results = in_turn(BROKEN, 1, 1, BROKEN, BROKEN, 1)
    acts = [] if answer is None else [("+1m", *answer)]
    night = play(hourly(), runs=6, results={"load": results}, acts=acts)
    assert causes(night) == [(1, 1, "resolved"), (2, 2, "resolved")]


def test_without_a_success_between_a_cause_pages_once() -> None:
    night = play(hourly(), runs=4, results={"load": BROKEN}, acts=[("+1m", "ack", {"pages": [1]})])
    assert causes(night) == [(1, 4, "acked")]


def test_an_hourly_flow_is_not_silent_for_ever() -> None:
    """Fails at 01:00, is acknowledged, is well until 05:00, fails at 06:00 and at 09:00."""
    results = in_turn(1, 1, BROKEN, 1, 1, 1, 1, BROKEN, 1, 1, BROKEN, 1)
    night = play_schedule(
        hourly(schedule="0 * * * *"),
        at=DAY,
        lasts="12h",
        results={"load": results},
        acts=[("+3h", "ack", {"pages": [1]})],
    )
    assert causes(night) == [(number, 1, "resolved") for number in (1, 2, 3)]


REMINDED = (
    "SELECT (reminder.at - paged.at) / 3600000000, count(*) FROM event AS reminder, event AS paged"
    " WHERE paged.seq = 1 AND reminder.data ->> 'how' = 'reminder' GROUP BY 1"
)


@parametrize_mostly_long(
    ("answer", "reminders"),
    [
        (("ack", {"pages": [1]}), [(24, 2), (48, 1), (72, 1)]),
        (None, [(24, 2), (48, 2), (72, 2)]),
        (("snooze", {"pages": [1], "seconds": 86400}), [(24, 2), (48, 1), (72, 1)]),
        (("requeue", "load"), [(24, 2), (48, 1), (72, 1)]),
        (("ack-run",), [(24, 2)]),
    ],
    ids=["ack", "none", "snooze", "requeue", "ack-run"],
)
def test_one_message_a_day_reminds_of_what_is_undecided(answer, reminders) -> None:
    """The run of a weekly flow fails, and no executor is left: the supervisor reminds of both causes at once."""
    flow = hourly(schedule="0 23 * * 1")
    flow.task(name="save", max_attempts=1)(lambda: 1)
    flow.page("bell")
    acts = [] if answer is None else [("+30h", *answer)]
    results = {"load": in_turn(BROKEN, 1), "save": KeyError("id")}
    night = play_schedule(flow, at=DAY, lasts="80h", results=results, acts=acts)
    assert night.query(REMINDED) == reminders


def test_the_next_run_of_a_night_reminds_where_no_supervisor_does() -> None:
    """Of the dead letter of the night before, which is still undecided; not of what has failed just now."""
    flow = hourly()
    flow.page("bell")
    night = play(flow, runs=2, every="23h30m", results={"load": in_turn(PermanentError("no table"), BROKEN)})
    assert night.query(REMINDED) == [(23, 1)]


def test_a_missed_deadline_ends_with_a_run_that_succeeds() -> None:
    flow = Flow("late", deadline="1m")
    flow.task(name="load", timeout="1h")(lambda: 1)
    slow = play(flow, runs=3, durations={"load": in_turn("5m", "5m", "5s")})
    assert {state for *_, state in causes(slow)} == {"resolved"} and len(causes(slow)) == 2
    never = play(flow, runs=2, durations={"load": "5m"})
    assert {state for *_, state in causes(never)} == {"open"}


def test_only_the_success_of_the_same_task_counts() -> None:
    flow = hourly()
    flow.task(name="other")(lambda: 1)
    night = play(flow, runs=3, results={"load": BROKEN}, acts=[("+1m", "ack", {"pages": [1]})])
    assert causes(night) == [(1, 3, "acked")]


def test_all_tasks_of_an_episode_have_to_succeed() -> None:
    flow = hourly()
    flow.task(name="save", max_attempts=1)(lambda: 1)
    night = play(flow, runs=3, results={"load": in_turn(BROKEN, 1, 1), "save": in_turn(BROKEN, BROKEN, 1)})
    assert {state for *_, state in causes(night)} == {"resolved"}
    earlier = play(flow, runs=2, results={"load": in_turn(BROKEN, 1), "save": in_turn(BROKEN, BROKEN)})
    assert "open" in {state for *_, state in causes(earlier)}


def test_a_map_task_counts_for_its_children() -> None:
    flow = Flow("many")
    flow.task(name="split")(lambda: ["a", "b", "c"])

    @flow.map(over="split", max_attempts=1)
    def load(item):
        return item

    flow.task(name="next", after="split")(lambda: 1)
    faults = [error("load[2]", BROKEN, times=1)]
    night = play(flow, runs=2, faults=faults, acts=[("+1m", "ack", {"pages": [1]})])
    assert causes(night) == [(1, 1, "resolved")]


def test_a_shorter_list_ends_the_episode_as_well() -> None:
    """The child that failed is gone; its map task has succeeded."""
    flow = Flow("many")
    flow.task(name="split")(lambda: 1)
    flow.map(over="split", name="load", max_attempts=1)(lambda item: item)
    results = {"split": in_turn(["a", "b", "c"], ["a"])}
    night = play(flow, runs=2, results=results, faults=[error("load[2]", BROKEN, times=1)])
    assert causes(night) == [(1, 1, "resolved")]


def test_a_task_that_the_flow_has_no_more_ends_with_a_run_that_succeeds() -> None:
    renamed = Flow("hourly")
    renamed.task(name="fetch")(lambda: 1)
    broken = Flow("hourly")

    @broken.task(name="load", max_attempts=1)
    def load():
        raise BROKEN

    acts = [("+1m", "ack", {"pages": [1]}), ("+2m", "change", renamed)]
    night = play(broken, runs=2, acts=acts)
    assert [run.state for run in night.runs] == ["FAILED", "SUCCESS"] and causes(night) == [(1, 1, "resolved")]


def test_what_nobody_has_decided_stays_in_the_inbox() -> None:
    night = play(hourly(), runs=2, results={"load": in_turn(PermanentError("no table"), 1)})
    first, second = night.runs
    assert first.state == "BLOCKED" and second.state == "SUCCESS" and causes(night) == [(1, 1, "resolved")]
    assert [need.kind for need in needs_of([file_row_of(night.state_file)], 0)] == [NeedKind.DEAD_LETTERS]


@parametrize_mostly_long(
    ("options", "state"),
    [
        (RunOptions(), "resolved"),
        (RunOptions(logical_time=SIX), "open"),
        (RunOptions(logical_time=SIX + HOUR), "open"),
    ],
    quick=2,
)
def test_a_backfill_ends_no_episode(tmp_path: Path, options: RunOptions, state: str) -> None:
    flow = Flow("hourly", schedule="0 * * * *")

    @flow.task(max_attempts=1)
    def load(ctx) -> None:
        if ctx.run_id == "first":
            raise ConnectionError("refused")

    path = str(tmp_path / "state.db")
    Executor(flow=flow, state=path, run_id="first").run()
    Executor(flow=flow, state=path, run_id="second", options=options).run()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT state FROM page").fetchall() == [(state,)]


# --- ``page_after`` ---------------------------------------------------------------------------------------------------


def paged_runs(night) -> list[str]:
    return [run_id for (run_id,) in night.query("SELECT run_id FROM page ORDER BY id")]


def test_a_failure_may_wait_for_the_second_bad_run_in_a_row() -> None:
    results = in_turn(BROKEN, 1, BROKEN, BROKEN, 1, BROKEN)
    night = play(hourly(page_after=2), runs=6, results={"load": results})
    assert paged_runs(night) == ["night-4"]
    assert paged_runs(play(hourly(page_after=3), runs=3, results={"load": BROKEN})) == ["night-3"]


def test_a_missed_deadline_may_wait_as_well() -> None:
    flow = hourly(page_after=2, deadline="1m")
    night = play(flow, runs=2, durations={"load": "10m"})
    assert [run.state for run in night.runs] == ["FAILED", "FAILED"] and set(paged_runs(night)) == {"night-2"}


def test_what_blocks_a_run_or_is_in_doubt_pages_at_once() -> None:
    assert paged_runs(play(hourly(page_after=2), results={"load": PermanentError("no")})) == ["night"]
    effect = Flow("pay", page_after=2, dead_letter_ttl=0)
    effect.task(name="pay", kind="effect")(lambda: 1)
    assert paged_runs(play(effect, faults=[killed("pay", 9)])) == ["night"]
    outage = Flow("outage", page_after=2)
    for number in range(4):
        outage.task(name=f"a{number}", downstream="api")(lambda: 1)
    assert paged_runs(play(outage, faults=[down("api", lasts="20m")], until="15m")) == ["night"]


def test_a_dead_letter_that_holds_nothing_may_wait() -> None:
    flow = hourly(page_after=2, dead_letter_ttl=0)
    assert paged_runs(play(flow, runs=2, results={"load": PermanentError("no")})) == ["night-2"]


@for_each("value", [0, -1, 1.5, "2", None])
def test_page_after_is_a_number_of_runs(value) -> None:
    with pytest.raises(FlowError, match="page_after"):
        Flow("x", page_after=value)
