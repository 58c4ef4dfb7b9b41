"""Other unfinished runs of the file that need a human are seen from every screen, and one key opens them."""

from __future__ import annotations

import pytest
from redrive.console.widgets.dialog import Dialog
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.rows import ExecutorState, RunRow, RunSummary
from redrive.engine.domain.states import RunState

from ..conftest import FakeSession, StillClock, attention_run, emit_events, press, rest, rows_of, shown, text_of, until
from ..model.runs import START, S, failed_task, projection_of


def other_run(name: str, *, blocked: bool, dead: int = 0) -> RunSummary:
    """An unfinished run that began an hour before the run of the test."""
    blocked_since = START - 1800 * S if blocked else None
    run = RunRow(name, "nightly", START - 3600 * S, blocked_since=blocked_since)
    return RunSummary(run, {"DEAD_LETTER": dead, "PENDING": 2})


def own_run(session: FakeSession) -> RunSummary:
    counts: dict[str, int] = {}
    for row in session.projection.tasks.values():
        counts[str(row.state)] = counts.get(str(row.state), 0) + 1
    return RunSummary(session.projection.run, counts)


@pytest.fixture
def morning() -> FakeSession:
    """A run that is fine, after a night that is blocked."""
    session = FakeSession(projection_of([("extract", []), ("load", ["extract"])]))
    session.set_status(executor=ExecutorState(True, run_id=session.projection.run.run_id))
    session.summaries = [own_run(session), other_run("night-1", blocked=True, dead=2)]
    return session


async def test_the_badges_and_the_header_count_the_other_run(morning: FakeSession, clock: StillClock) -> None:
    async with shown(morning, clock) as (app, _):
        top, tabs = rows_of(app)[:2]
        assert "◆ 1 other run" in top
        assert "1 Runs◆1" in tabs.replace(" ◆", "◆") and "Inbox◆2" in tabs.replace(" ◆", "◆")
    async with shown(morning, clock, size=(140, 40)) as (app, _):
        assert "◆ 1 other run needs a human: night-1" in rows_of(app)[0]


async def test_a_silent_executor_is_counted_and_named_in_the_inbox(morning: FakeSession, clock: StillClock) -> None:
    silent = ExecutorState(True, 40_000_000, None, 7, morning.projection.run.run_id, silent_since=clock.now)
    morning.set_status(executor=silent)
    morning.summaries = [own_run(morning)]
    async with shown(morning, clock) as (app, pilot):
        assert "4 Inbox ◆1" in rows_of(app)[1]
        await press(app, pilot, "4")
        assert "executor 7 silent for " in text_of(app) and "goes on with the run" not in text_of(app)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_inbox_lists_the_other_run_and_enter_opens_its_inbox(
    morning: FakeSession, clock: StillClock, size: tuple[int, int]
) -> None:
    async with shown(morning, clock, size=size) as (app, pilot):
        await press(app, pilot, "4")
        text = text_of(app)
        assert "nothing in this run needs a human" in text
        assert "run night-1 (BLOCKED, 2 dead letters) · nightly" in text
        session = projection_of([("extract", [])])
        session.run = session.run._replace(run_id="night-1")
        failed_task(session, "extract")
        morning.projection = session
        morning.summaries = [RunSummary(session.run, {"DEAD_LETTER": 1})]
        await press(app, pilot, "enter")
        assert "1 cause · 1 dead letter" in text_of(app)
        assert app.screen.PLACE.value == "inbox"


async def test_an_inbox_without_tasks_says_what_the_run_needs_before_it_lists_others(
    morning: FakeSession, clock: StillClock
) -> None:
    morning.set_status(executor=ExecutorState(gone_at=clock.now))
    async with shown(morning, clock, size=(120, 40)) as (app, pilot):
        await press(app, pilot, "4")
        text = text_of(app)
        assert "◆ executor gone since" in text and "nothing in this run" not in text
        assert "2 dead letters" in text.split("run night-1")[2], "beside the list: what the other run needs"
        assert "r requeue" not in text and "s skip" not in text


async def test_the_heading_of_the_inbox_counts_other_runs_as_its_badge_does(
    morning: FakeSession, clock: StillClock
) -> None:
    failed_task(morning.projection, next(iter(morning.projection.tasks)), at=clock.now)
    async with shown(morning, clock) as (app, pilot):
        await press(app, pilot, "4")
        assert "1 cause · 1 dead letter · 1 other run · oldest" in text_of(app)


async def test_an_act_on_another_run_says_where_to_act(morning: FakeSession, clock: StillClock) -> None:
    async with shown(morning, clock) as (app, pilot):
        await press(app, pilot, "4", "r")
        assert "Enter opens run night-1: act on its tasks there" in text_of(app)
        assert morning.commands == []


async def test_an_unfinished_run_without_an_executor_is_listed(morning: FakeSession, clock: StillClock) -> None:
    morning.summaries = [own_run(morning), other_run("night-1", blocked=False)]
    async with shown(morning, clock) as (app, pilot):
        await press(app, pilot, "4")
        assert "run night-1 (no executor)" in text_of(app)
        morning.set_status(service_pid=7)  # the scheduler resumes it
        await until(app, pilot, lambda: "night-1" not in text_of(app))
        assert "nothing needs a human" in text_of(app)


async def test_the_list_follows_the_events_of_other_runs(morning: FakeSession, clock: StillClock) -> None:
    blocked, morning.summaries = morning.summaries, [own_run(morning)]
    async with shown(morning, clock) as (app, pilot):
        await press(app, pilot, "4")
        assert "nothing needs a human" in text_of(app)
        morning.summaries = blocked
        event = morning.builder.event(EventKind.RUN, data={"what": "blocked"})
        await emit_events(app, pilot, morning, event._replace(run_id="night-1"))
        assert "run night-1" in text_of(app)


@pytest.mark.long
async def test_a_filter_also_filters_other_runs(morning: FakeSession, clock: StillClock) -> None:
    async with shown(morning, clock) as (app, pilot):
        await press(app, pilot, "4", "/", "z", "z", "enter")
        await rest(app, pilot)
        assert "run night-1" not in text_of(app)


async def test_a_run_is_abandoned_from_the_list_of_runs(morning: FakeSession, clock: StillClock) -> None:
    async with shown(morning, clock) as (app, pilot):
        await press(app, pilot, "1", "j", "x")
        assert isinstance(app.screen, Dialog)
        assert "Abandon run night-1" in text_of(app)
        assert "4 tasks not ended so far: cancelled." in text_of(app)
        await press(app, pilot, *"old", "enter")
        (command,) = morning.commands
        assert (command.act, command.run_id, command.targets, command.reason) == ("abandon", "night-1", (), "old")


async def test_an_ended_run_is_not_abandoned(morning: FakeSession, clock: StillClock) -> None:
    ended = RunRow("night-1", "nightly", START - 3600 * S, ended_at=START, state=RunState.SUCCESS)
    morning.summaries = [own_run(morning), RunSummary(ended, {})]
    async with shown(morning, clock) as (app, pilot):
        await press(app, pilot, "1")
        assert "abandon" in text_of(app)
        await press(app, pilot, "j")
        assert "abandon" not in text_of(app)
        await press(app, pilot, "x")
        assert "the run has ended: SUCCESS" in text_of(app)
        assert morning.commands == []


def earlier_failure() -> RunSummary:
    """A run that failed before the run of the test began."""
    run = RunRow("night-1", "nightly", START - 3600 * S, ended_at=START - 1800 * S, state=RunState.FAILED)
    return RunSummary(run, {"FAILED": 1})


async def test_an_earlier_failure_is_listed_until_it_is_acknowledged(morning: FakeSession, clock: StillClock) -> None:
    morning.summaries = [own_run(morning), earlier_failure()]
    async with shown(morning, clock) as (app, pilot):
        assert "◆ 1 other run" in rows_of(app)[0]
        await press(app, pilot, "4")
        assert "run night-1 (FAILED) · nightly" in text_of(app)
        await rest(app, pilot)
        assert "lists all runs, where a acknowledges how it ended" in text_of(app)
        await press(app, pilot, "1", "j", "a")
        (command,) = morning.commands
        assert (command.act, command.run_id, command.targets) == ("ack-run", "night-1", ())
        own, failed = morning.summaries
        morning.summaries = [own, failed._replace(run=failed.run._replace(acknowledged_at=START))]
        event = morning.builder.event(EventKind.RUN, data={"what": "acknowledged"})
        await emit_events(app, pilot, morning, event._replace(run_id="night-1"))
        assert "other run" not in rows_of(app)[0]


async def test_a_notice_is_listed_and_counts_for_nothing(morning: FakeSession, clock: StillClock) -> None:
    morning.summaries = [own_run(morning), earlier_failure()]
    row = attention_run(earlier_failure())._replace(later_successes=5)
    morning.lists["attention_runs"] = [row._asdict()]
    async with shown(morning, clock) as (app, pilot):
        assert "other run" not in rows_of(app)[0] and "◆" not in rows_of(app)[1]
        await press(app, pilot, "4")
        assert "run night-1 (FAILED, 5 later runs succeeded) · nightly" in text_of(app)


async def test_an_ended_run_has_the_sign_of_its_end(morning: FakeSession, clock: StillClock) -> None:
    failed = earlier_failure()
    late = failed.run._replace(run_id="night-2", state=RunState.SUCCESS, deadline_at=START - 2700 * S)
    morning.summaries = [own_run(morning), failed, RunSummary(late, {"SUCCESS": 1})]
    async with shown(morning, clock) as (app, pilot):
        await press(app, pilot, "4")
        assert "✗ run night-1 (FAILED)" in text_of(app) and "✓ run night-2 (late)" in text_of(app)


async def test_a_run_that_goes_on_is_not_acknowledged(morning: FakeSession, clock: StillClock) -> None:
    async with shown(morning, clock) as (app, pilot):
        await press(app, pilot, "1", "j", "a")
        assert "the run has not ended" in text_of(app)
        assert morning.commands == []
