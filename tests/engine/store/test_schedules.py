"""What a file remembers of schedules: logical times that run once, those that are given up, promises that broke.

003.35, SPEC 4.10 and 4.13.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from redrive.engine.core.schedule import LISTED_MAX, Excused, FollowingDay
from redrive.engine.core.spec import FlowSpec, ScheduleSpec, TaskSpec
from redrive.engine.core.supervision import decide_schedule
from redrive.engine.domain.event_codec import encode
from redrive.engine.domain.event_payloads import RunChanged
from redrive.engine.errors import RefusedError
from redrive.engine.statefile import lists
from redrive.engine.statefile.supervisor_file import ServedSchedule
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database, runs, schedules

SECOND = 1_000_000
HOUR = 3600 * SECOND
SIX = 494_118 * HOUR  # an hour that is whole


class Files:
    """A state file and a clock that is set by hand."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.connection = database.open_for_writing(path)
        self.now = SIX
        self.served = self.of(**options)
        self.emitted: list[dict[str, Any]] = []

    def of(self, expression: str = "0 * * * *", deadline: float | None = None, **options: Any) -> schedules.ServedFlow:
        flow = FlowSpec(
            "f",
            (TaskSpec("a"), TaskSpec("b", parents=("a",))),
            deadline_seconds=deadline,
            schedule=ScheduleSpec(expression, **options),
        )
        served = schedules.served_flow(flow)
        assert served is not None
        return served

    def write(self, item: Callable[[Transaction], Any]) -> Any:
        self.connection.execute("BEGIN IMMEDIATE")
        transaction = Transaction(self.connection, self.now)
        try:
            result = item(transaction)
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        self.emitted += [{**encode(event.payload), "kind": event.kind} for event in transaction.events]
        return result

    def settle(self, **options: Any) -> None:
        self.write(lambda transaction: schedules.update_schedule(transaction, self.served, **options))

    def start(self, logical: int, **options: Any) -> None:
        def item(transaction: Transaction) -> None:
            schedules.claim_slot(transaction, self.served, logical, str(logical), **options)
            seconds = self.served.flow.deadline_seconds
            runs.create_run(
                transaction,
                run_id=str(logical),
                flow=self.served.flow,
                max_parallel=4,
                params={},
                at=self.now,
                deadline_at=None if seconds is None else logical + round(seconds * 1e6),
                logical_time=logical,
            )

        self.write(item)

    def progress(self) -> Any:
        return schedules.load_status(self.connection, self.served, self.now).progress

    def decision(self) -> Any:
        status = schedules.load_status(self.connection, self.served, self.now)
        if status.progress is None:
            return None
        schedule = status.replaced or self.served.schedule
        return decide_schedule(schedule, status.progress.decided_until, status.fired, self.now)

    def changes(self) -> list[str]:
        return [one["what"] for one in self.emitted if one["kind"] == "schedule"]

    def ask(self, sql: str) -> list[Any]:
        return self.connection.execute(sql).fetchall()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Callable[..., Files]]:
    made: list[Files] = []

    def make(**options: Any) -> Files:
        made.append(Files(tmp_path / "state.db", **options))
        return made[-1]

    yield make
    for one in made:
        one.connection.close()


# --- Begun, come further, changed ----------------------------------------------------------------------------------


def test_nothing_was_due_before_the_schedule_began(files):
    file = files()
    file.now = SIX + 1
    file.settle()
    assert file.decision().run is None
    assert [(SIX + 1, SIX + HOUR)] == file.ask("SELECT since, next_at FROM schedule")
    assert ["begun"] == [one["what"] for one in file.emitted]


def test_a_run_and_its_logical_time_are_written_together_and_what_comes_next_with_them(files):
    file = files()
    file.settle()
    file.now = SIX + HOUR
    assert SIX + HOUR == file.decision().run
    file.start(SIX + HOUR)
    assert [("run", str(SIX + HOUR))] == file.ask("SELECT state, run_id FROM slot")
    assert [(SIX + HOUR, SIX + 2 * HOUR)] == file.ask("SELECT decided_until, next_at FROM schedule")
    assert file.decision().run is None


def test_a_logical_time_runs_once_and_the_second_run_leaves_nothing_behind(files):
    file = files()
    file.settle()
    file.now = SIX + HOUR
    file.start(SIX + HOUR)
    before = file.ask("SELECT count(*) FROM event"), file.ask("SELECT * FROM run")
    for again in (False, True):
        with pytest.raises(RefusedError, match="decided about already"):
            file.start(SIX + HOUR, again=again)
    assert before == (file.ask("SELECT count(*) FROM event"), file.ask("SELECT * FROM run"))


RACE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_schedules import HOUR, SIX, Files
from redrive.engine.errors import RefusedError

file, won = Files(Path(sys.argv[2])), 0
file.connection.execute("PRAGMA busy_timeout = 60000")
print("ready", flush=True)
sys.stdin.readline()
for number in range(1, 61):
    try:
        file.start(SIX + number * HOUR)
        won += 1
    except RefusedError:
        pass
print(won)
"""


def test_two_processes_that_want_the_same_times_start_each_of_them_once(files, tmp_path):
    file = files()
    words = [sys.executable, "-c", RACE, str(Path(__file__).parent), str(tmp_path / "state.db")]
    racers = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for racer in racers:
        assert "ready\n" == racer.stdout.readline()
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [int(racer.communicate(timeout=100)[0]) for racer in racers]
    assert 60 == sum(won)
    assert [(60, 60)] == file.ask("SELECT count(*), count(DISTINCT logical_time) FROM run")


def test_what_is_given_up_is_written_down_and_reported_in_one_sentence(files):
    file = files()
    file.settle()
    file.now = SIX + 4 * HOUR
    file.settle()
    assert [(SIX + hour * HOUR, "missed") for hour in (1, 2, 3)] == file.ask("SELECT logical_time, state FROM slot")
    assert SIX + 4 * HOUR == file.decision().run
    assert [3] == [one["count"] for one in file.emitted if one["what"] == "missed"]
    file.settle()
    assert 1 == len([one for one in file.emitted if one["what"] == "missed"])


@pytest.mark.parametrize(("zone", "midnight_hours"), [("UTC", 18), ("Asia/Kolkata", 12.5)])
def test_the_last_time_of_each_day_is_kept_also_behind_an_edit(files, zone, midnight_hours):
    """A flow that comes after it waits for that one, and is not started by an earlier run of the day."""
    file, midnight = files(expression="every 10s", timezone=zone, misfire="skip"), SIX + round(midnight_hours * HOUR)
    file.settle()
    file.now = SIX + 72 * HOUR
    for at in (midnight - HOUR, midnight + 24 * HOUR - 10 * SECOND):
        file.start(at, again=True)
    file.served = file.of("0 2 * * *", timezone=zone, misfire="skip")
    file.settle()
    file.start(file.now)
    file.settle()
    assert "0 2 * * *" == file.progress().expression
    slots = file.ask("SELECT logical_time, state FROM slot ORDER BY logical_time")[: -LISTED_MAX - 1]
    lasts = [(midnight + day * 24 * HOUR - 10 * SECOND, state) for day, state in enumerate(["missed", "run", "missed"])]
    assert [(midnight - HOUR, "run"), *lasts] == slots


def test_of_a_year_without_service_the_latest_are_kept_one_by_one(files):
    file = files(expression="* * * * *")
    file.settle()
    file.now = SIX + 365 * 24 * HOUR
    begun = time.thread_time()
    file.settle()
    assert time.thread_time() - begun < 10
    assert [(2 * LISTED_MAX,)] == file.ask("SELECT count(*) FROM slot"), "and the last one of each of as many days"
    assert [False] == [one["is_all"] for one in file.emitted if one["what"] == "missed"]
    assert file.now == file.decision().run


def test_what_was_given_up_can_be_backfilled_and_then_never_again(files):
    file = files()
    file.settle()
    file.now = SIX + 2 * HOUR
    file.settle()
    with pytest.raises(RefusedError):
        file.start(SIX + HOUR)
    file.start(SIX + HOUR, again=True)
    with pytest.raises(RefusedError):
        file.start(SIX + HOUR, again=True)
    assert SIX + 2 * HOUR == file.decision().run, "a backfill leaves the schedule where it was"


def test_what_a_backfill_has_run_ahead_of_the_schedule_is_not_run_again(files):
    file = files()
    file.settle()
    file.now = SIX + 2 * HOUR
    file.start(SIX + 2 * HOUR, again=True)
    assert file.decision().run is None
    file.settle()
    assert [("missed",), ("run",)] == file.ask("SELECT state FROM slot ORDER BY logical_time")
    assert [(SIX + 3 * HOUR,)] == file.ask("SELECT next_at FROM schedule")


def test_what_was_due_before_an_edit_runs_or_is_listed_and_then_the_new_schedule_holds(files):
    file = files()
    file.settle()
    file.now = SIX + 3 * HOUR + 1
    file.served = file.of("*/5 * * * *")
    file.settle()
    assert [(SIX + hour * HOUR, "missed") for hour in (1, 2)] == file.ask("SELECT logical_time, state FROM slot")
    assert "0 * * * *" == file.progress().expression and SIX + 3 * HOUR == file.decision().run
    file.start(SIX + 3 * HOUR)
    file.settle()
    assert "*/5 * * * *" == file.progress().expression and file.decision().run is None
    assert ["begun", "missed", "changed"] == file.changes()


def test_an_edit_counts_from_when_it_was_seen(files):
    """A run went on: times of the old schedule before the edit, and of the new one after it."""
    file = files(misfire="skip")
    file.settle()
    file.now = SIX + 3 * HOUR + 1
    file.served = file.of("30 * * * *", misfire="skip")
    file.settle(replaced_at=SIX + HOUR + HOUR // 4)
    assert "30 * * * *" == file.progress().expression and SIX + HOUR + HOUR // 4 == file.progress().decided_until
    assert SIX + HOUR + HOUR // 2 == file.progress().next_at
    file.settle()
    hours = [1, 1.5, 2.5]
    assert [(SIX + round(hour * HOUR),) for hour in hours] == file.ask("SELECT logical_time FROM slot")


@pytest.mark.parametrize(
    ("before", "after"), [("0 2 * * 7", "00 02 * * sun"), ("@daily", "0 0 * * *"), ("every 60m", "every 1h")]
)
def test_an_expression_of_equal_meaning_changes_nothing(files, before, after):
    file = files(expression=before)
    file.settle()
    due = next(file.served.schedule.after(SIX))
    file.now = due
    file.served = file.of(after)
    assert due == file.decision().run
    file.start(due)
    assert ["begun"] == file.changes() and after == file.progress().expression


def test_times_ahead_of_the_clock_are_undecided_again_but_for_runs_with_one_page(files):
    file = files()
    file.settle()
    year = 365 * 24 * HOUR
    file.now = SIX + year
    file.settle()
    file.start(SIX + year)
    file.now = SIX + HOUR // 2
    file.settle()
    assert SIX + HOUR == file.progress().next_at
    assert [(SIX + year, "run")] == file.ask("SELECT logical_time, state FROM slot")
    assert ["begun", "missed", "taken-back"] == file.changes()
    file.settle()
    assert 1 == len(pages(file)) and "ahead of the clock" in file.ask("SELECT body FROM page")[0][0]
    file.now = SIX + HOUR
    assert SIX + HOUR == file.decision().run


# --- Promises ------------------------------------------------------------------------------------------------------


def pages(file: Files) -> list[tuple[str, int, str]]:
    return file.ask("SELECT cause, count, state FROM page ORDER BY id")


def test_each_row_of_a_flow_excuses_its_starts(files, monkeypatch):
    """A flow whose file was moved has two rows for a while."""
    file = files(start_within_seconds=600)
    row = ServedSchedule(1, "old.py:f", "old.py", "f", "f", "/x.db")
    known = [row._replace(skip_logical=SIX), row._replace(id=2, paused_until=SIX + HOUR), row._replace(flow="g")]
    monkeypatch.setattr(schedules, "read_known", lambda: known)
    excused = schedules.excused_starts(file.served, state_path="/x.db")
    assert excused == Excused(SIX + HOUR + 600 * 1_000_000, frozenset({SIX}))


def test_a_run_that_has_not_started_in_time_is_recorded_and_pages_once(files):
    file = files(start_within_seconds=600)
    file.settle()
    file.now = SIX + HOUR + 600 * 1_000_000
    assert file.now + 1 == file.write(lambda transaction: schedules.record_late_runs(transaction, file.served))
    assert [] == pages(file)
    file.now += 1
    skipped = Excused(skipped=frozenset({SIX + HOUR}))
    breaks_at = file.write(lambda transaction: schedules.record_late_runs(transaction, file.served, excused=skipped))
    assert SIX + 2 * HOUR + 600 * 1_000_000 + 1 == breaks_at
    assert [] == pages(file), "an operator skips it"
    for _ in range(3):
        breaks_at = file.write(lambda transaction: schedules.record_late_runs(transaction, file.served))
    assert SIX + 2 * HOUR + 600 * 1_000_000 + 1 == breaks_at
    assert [("schedule:f", 1, "open")] == pages(file)
    assert [(SIX + HOUR, "start", SIX + HOUR + 600 * 1_000_000, None)] == file.ask(
        "SELECT logical_time, promise, promised_at, run_id FROM sla"
    )
    ((title, body),) = file.ask("SELECT title, body FROM page")
    assert "f has not started" == title and "was due 10m00 ago" in body and "redrive runs" in body


def test_a_day_whose_skip_has_moved_on_becomes_late_although_a_later_one_was_told(files):
    file = files(expression="after load; by 06:00")
    late_at = [SIX + day * 24 * HOUR + 6 * HOUR for day in (0, 1)]
    days = [FollowingDay(at - 6 * HOUR, by_at=at) for at in late_at]
    file.served = replace(file.served, schedule=file.served.schedule.with_days(days))
    file.settle()
    file.now = late_at[1] + 1
    file.settle(excused=Excused(skipped=frozenset({days[0].logical})))
    assert [(days[1].logical,)] == file.ask("SELECT logical_time FROM sla")
    assert late_at[0] + 1 == schedules.load_status(file.connection, file.served, file.now).next_late_at
    file.settle()
    assert [(days[0].logical,), (days[1].logical,)] == file.ask("SELECT logical_time FROM sla ORDER BY 1")
    assert schedules.load_status(file.connection, file.served, file.now).next_late_at is None


def test_a_flow_that_cannot_start_pages_although_each_run_is_given_up_before_it_is_late(files):
    file = files(start_within_seconds=5400)
    file.settle()
    for hours in (1, 2, 3):
        file.now = SIX + hours * HOUR
        file.write(lambda transaction: schedules.update_schedule(transaction, file.served, start_error="SyntaxError"))
    ((title, body),) = file.ask("SELECT title, body FROM page WHERE state = 'open'")
    assert "f has not started" == title and "SyntaxError" in body
    assert [(SIX + HOUR,), (SIX + 2 * HOUR,)] == file.ask("SELECT logical_time FROM sla")


def test_days_without_service_are_one_page_and_the_next_run_on_time_resolves_it(files):
    file = files(start_within_seconds=600, misfire="skip")
    file.settle()
    file.now = SIX + 3 * HOUR + HOUR // 2
    file.settle()
    assert [("schedule:f", 1, "open")] == pages(file)
    assert [(3,)] == file.ask("SELECT count(*) FROM sla")
    assert [(3, "missed")] == file.ask("SELECT count(*), state FROM slot GROUP BY state")
    file.now = SIX + 4 * HOUR
    file.start(SIX + 4 * HOUR)
    assert [("schedule:f", 1, "resolved")] == pages(file)


def test_a_run_that_starts_late_resolves_nothing(files):
    file = files(start_within_seconds=600)
    file.settle()
    file.now = SIX + HOUR + HOUR // 2
    file.settle()
    file.start(SIX + HOUR)
    assert [("schedule:f", 1, "open")] == pages(file)


def test_a_run_that_nobody_moves_any_more_is_late_all_the_same(files):
    """Blocked, its executor gone: who waits for the schedule tells that it was due."""
    file = files(deadline=1800)
    file.settle()
    file.now = SIX + HOUR
    file.start(SIX + HOUR)
    due = SIX + HOUR + 1800 * 1_000_000
    assert due == schedules.load_status(file.connection, file.served, file.now).next_late_at
    file.now = due
    for _ in range(2):
        file.settle()
    assert [(SIX + HOUR, "end", due, str(SIX + HOUR))] == file.ask(
        "SELECT logical_time, promise, promised_at, run_id FROM sla"
    )
    assert [(f"deadline:{SIX + HOUR}", 1, "open")] == pages(file)
    assert [("FAILED", due)] == file.ask("SELECT state, ended_at FROM run")
    assert [("CANCELLED",)] == file.ask("SELECT DISTINCT state FROM task")


def test_a_late_run_that_shall_only_be_paged_goes_on(files):
    file = files(deadline=1800)
    file.settle()
    file.now = SIX + HOUR
    file.start(SIX + HOUR)
    file.connection.execute('UPDATE run SET options = \'{"deadline_action": "page"}\'')
    file.now = SIX + HOUR + 1800 * 1_000_000
    file.settle()
    assert [(f"deadline:{SIX + HOUR}", 1, "open")] == pages(file)
    assert [("RUNNING",)] == file.ask("SELECT state FROM run")


def test_the_run_of_a_living_executor_is_ended_by_that_executor(files):
    file = files(deadline=1800)
    file.settle()
    file.now = SIX + HOUR
    file.start(SIX + HOUR)
    file.now = SIX + HOUR + 1800 * 1_000_000
    file.write(lambda transaction: schedules.record_late_runs(transaction, file.served, str(SIX + HOUR)))
    assert [("CANCELLED",)] == file.ask("SELECT DISTINCT state FROM task")
    assert [("RUNNING",)] == file.ask("SELECT state FROM run")


def test_who_was_called_already_is_not_called_again_when_it_comes_true(files):
    from redrive.engine.core.causes import PageRequest
    from redrive.engine.domain.states import DeadLetterKind
    from redrive.engine.store.pages import trigger_page

    file = files(deadline=1800)
    file.settle()
    file.now = SIX + HOUR
    file.start(SIX + HOUR)
    seen = PageRequest(str(SIX + HOUR), "a", "deadline at risk", "it will be late", kind=DeadLetterKind.DEADLINE)
    file.write(lambda transaction: trigger_page(transaction, seen))
    file.now = SIX + 2 * HOUR - 1
    file.settle()
    assert [(1,)] == file.ask("SELECT count(*) FROM sla")
    assert [(f"deadline:{SIX + HOUR}", 1, "open")] == pages(file)


def test_a_run_that_ended_in_time_breaks_no_promise(files):
    file = files(deadline=1800)
    file.settle()
    file.now = SIX + HOUR
    file.start(SIX + HOUR)
    ended = RunChanged("ended", {"state": "SUCCESS", "ended_at": SIX + HOUR + 60_000_000})
    file.write(lambda transaction: transaction.change_run(str(SIX + HOUR), ended, old="RUNNING", new="SUCCESS"))
    file.now = SIX + 2 * HOUR - 1
    file.settle()
    assert [] == file.ask("SELECT * FROM sla") and [] == pages(file)


def test_another_expression_has_promised_nothing_before_it_begins(files):
    """As in a run that was started by hand from a flow that has changed."""
    file = files(start_within_seconds=600)
    file.settle()
    file.now = SIX + HOUR // 2
    file.served = file.of("* * * * *", start_within_seconds=60)
    assert file.write(lambda transaction: schedules.record_late_runs(transaction, file.served)) is None
    assert [] == file.ask("SELECT * FROM sla") and [] == pages(file)


# --- For those who look --------------------------------------------------------------------------------------------


def test_the_list_of_schedules_says_what_comes_next_by_the_clocks_of_its_zone(files):
    file = files(expression="0 2 * * *", timezone="Asia/Kolkata", splay_seconds=60)
    file.settle()
    (row,) = lists.query(file.connection, lists.SCHEDULES, {})
    assert row.next_local.endswith("T02:00:00+05:30") and "Asia/Kolkata" == row.timezone
    first = next(schedules.served_flow(file.served.flow).schedule.recurrence.after(SIX))
    assert row.next_at is not None and 0 <= row.next_at - first < 60_000_000
