"""``redrive serve`` with real processes: killed and started again, two at a time, stopped, blocked, late, backfilled.

000.55, 003.35, SPEC 4.10 and 4.13.
"""

from __future__ import annotations

import os
import select
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.statefile import lock_file
from redrive.engine.statefile.paths import supervisor_path
from support.commands import quoted, run_redrive, start_redrive
from support.marks import parametrize_mostly_long
from support.processes import wait_until_dead
from support.waiting import wait_until

PATIENCE_SECONDS = 60
SECOND = 1_000_000

HEAD = """import time
from pathlib import Path
from redrive.engine import Flow, PermanentError
HERE = Path(__file__).parent
"""
QUICK = HEAD + "flow = Flow('f', schedule='every 1s')\n@flow.task\ndef a(): pass\n"
YEARLY = "schedule='0 0 1 1 *'"  # nothing comes while a test runs
FIXABLE = """
@flow.task
def a():
    if not (HERE / 'fixed').exists():
        raise PermanentError('not yet')
"""
HELD = """
@flow.task(timeout=60)
def a():
    while not (HERE / 'go').exists():
        time.sleep(0.02)
"""


class Serve:
    """One service, and what it has printed."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.state = folder / "state.db"
        command = ["serve", folder / "flow.py", "--state", folder / "state.db", *words]
        self.process: Any = start_redrive(*command, text=False)
        self.text = ""

    def until(self, words: str, times: int = 1) -> str:
        """Wait until it has printed this so often."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.text.count(words) < times:
            ready, _, _ = select.select([self.process.stdout], [], [], deadline - time.monotonic())
            piece = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert piece, f"no {words!r} in {self.text!r}"
            self.text += piece.decode()
        return self.text

    def stop(self) -> int:
        """As systemd does."""
        self.process.terminate()
        self.text += self.process.communicate(timeout=PATIENCE_SECONDS)[0].decode()
        return self.process.returncode

    def until_row(self, sql: str) -> None:
        """Wait until the state file answers with rows."""
        wait_until(lambda: self.state.exists() and self._rows(sql))

    def _rows(self, sql: str) -> list[Any]:
        try:
            return ask(self.state.parent, sql)
        except sqlite3.OperationalError:  # the file has just been made
            return []

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    made: list[Serve] = []

    def start(*words: str, flow: str | None = None) -> Serve:
        if flow is not None:
            (tmp_path / "flow.py").write_text(flow)
        made.append(Serve(tmp_path, *words))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.kill()
    holder = lock_file.current_holder(str(tmp_path / "state.db"))
    if holder is not None:  # executors outlive their supervisor
        os.kill(holder.pid, signal.SIGTERM)
        assert wait_until_dead([holder.pid]) == []


def test_a_folder_without_a_schedule_is_said_to_have_none(tmp_path):
    (tmp_path / "flow.py").write_text(QUICK.replace(", schedule='every 1s'", ""))
    process: Any = start_redrive("serve", tmp_path)
    try:
        assert "no flow with a schedule in " in process.stdout.readline()
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0


def ask(tmp_path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
        return connection.execute(sql).fetchall()


def change(tmp_path: Path, sql: str, *values: object) -> None:
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute(sql, values)


def be_off_since(tmp_path: Path, since: datetime) -> None:
    """Leave the files as if nothing had served them since then."""
    change(tmp_path, "UPDATE schedule SET decided_until = ?", round(since.timestamp() * 1e6))
    with closing(sqlite3.connect(supervisor_path())) as connection, connection:
        connection.execute("UPDATE schedule SET ledger_until = ?", (round(since.timestamp() * 1e6),))


# --- Killed and started again --------------------------------------------------------------------------------------


def assert_nothing_is_doubled_or_lost(tmp_path: Path, step: int = SECOND) -> None:
    """Every second from the first to the last has run, once, or was given up; and what ran has one run."""
    slots = ask(tmp_path, "SELECT logical_time, state, run_id FROM slot ORDER BY logical_time")
    times = [logical for logical, _, _ in slots]
    assert times == list(range(times[0], times[-1] + 1, step))
    started = {(logical, run_id) for logical, state, run_id in slots if state == "run"}
    assert started == set(ask(tmp_path, "SELECT logical_time, run_id FROM run WHERE logical_time IS NOT NULL"))
    assert len(started) == len({logical for logical, _ in started})


@parametrize_mostly_long("misfire", ["all", "one", "skip"], quick=0, daily=1)
def test_killed_at_any_moment_and_started_again_nothing_runs_twice_and_nothing_is_forgotten(tmp_path, serve, misfire):
    flow = QUICK.replace("'every 1s'", f"'every 1s', misfire={misfire!r}")
    service = serve(flow=flow)
    service.until(" SUCCESS")
    service.until("has started", 2)
    service.kill()
    last = ask(tmp_path, "SELECT decided_until FROM schedule")[0][0]
    while time.time_ns() // 1000 < last + 4 * SECOND:
        time.sleep(0.1)  # nobody serves: three times pass
    service = serve()
    service.until(" SUCCESS", 4 if misfire == "all" else 1)
    assert service.stop() == 0
    assert_nothing_is_doubled_or_lost(tmp_path)
    missed = ask(tmp_path, "SELECT count(*) FROM slot WHERE state = 'missed'")[0][0]
    if misfire == "all":
        assert 0 == missed
    else:
        assert missed >= 2


def test_a_run_outlives_a_killed_supervisor_and_the_next_one_waits_for_it(tmp_path, serve):
    first = serve(flow=QUICK + HELD.replace("def a", "def b"))
    first.until_row("SELECT 1 FROM task WHERE name = 'b' AND state = 'RUNNING'")
    first.kill()
    second = serve()
    (tmp_path / "go").touch()
    second.until(" SUCCESS", 2)
    assert "is resumed" not in second.text
    second.stop()
    assert_nothing_is_doubled_or_lost(tmp_path)
    assert [(1, 0)] == ask(tmp_path, "SELECT DISTINCT attempt, losses FROM task"), "no attempt was lost"


@pytest.mark.long
def test_the_run_of_an_executor_that_died_is_resumed(tmp_path, serve):
    service = serve(flow=QUICK + HELD.replace("def a", "def b"))
    service.until_row("SELECT 1 FROM task WHERE name = 'b' AND state = 'RUNNING'")
    holder = lock_file.current_holder(str(tmp_path / "state.db"))
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    service.until("has died")
    service.until("is resumed")
    service.until(" SUCCESS")
    service.stop()
    assert_nothing_is_doubled_or_lost(tmp_path)


# --- Two at a time -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_second_service_is_refused_and_goes_on_where_the_first_was_killed(tmp_path, serve):
    first = serve(flow=QUICK)
    first.until(" SUCCESS")
    refused = run_redrive("serve", tmp_path / "flow.py", "--state", tmp_path / "state.db")
    assert 75 == refused.returncode and f"pid {first.process.pid}" in refused.stdout
    first.kill()
    second = serve()
    second.until(" SUCCESS", 2)
    second.stop()
    assert_nothing_is_doubled_or_lost(tmp_path)


@pytest.mark.long
def test_a_run_by_hand_and_the_schedule_take_turns(tmp_path, serve):
    service = serve(flow=QUICK)
    service.until(" SUCCESS")
    by_hand = run_redrive("run", tmp_path / "flow.py", "--state", tmp_path / "state.db", "--run-id", "mine", "--wait")
    assert 0 == by_hand.returncode, by_hand.stderr
    service.until(" SUCCESS", 3)
    service.stop()
    assert [(None,)] == ask(tmp_path, "SELECT logical_time FROM run WHERE run_id = 'mine'")


# --- Stopped -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_service_that_waits_is_seen_by_others_and_ends_with_sigterm(tmp_path, serve):
    service = serve(flow=HEAD + f"flow = Flow('f', {YEARLY})" + FIXABLE)
    service.until("next ")
    examined = run_redrive("doctor", tmp_path / "state.db").stdout
    assert "f: next " in examined and f"served by pid {service.process.pid}" in examined
    assert "no process serves it" not in run_redrive("runs", tmp_path / "state.db").stdout
    assert 0 == service.stop()


@pytest.mark.long
def test_a_run_goes_on_after_sigterm_and_the_next_supervisor_reports_its_end(tmp_path, serve):
    service = serve(flow=HEAD + "flow = Flow('f', schedule='every 1s')" + HELD)
    service.until_row("SELECT 1 FROM task WHERE state = 'RUNNING'")
    assert 0 == service.stop()
    assert [("RUNNING", 0)] == ask(tmp_path, "SELECT state, losses FROM task")
    again = serve()
    (tmp_path / "go").touch()
    again.until(" SUCCESS", 2)
    again.stop()
    assert_nothing_is_doubled_or_lost(tmp_path)


# --- What an operator does meanwhile -------------------------------------------------------------------------------


@pytest.mark.long
def test_a_blocked_run_stays_in_the_inbox_the_next_one_comes_and_a_requeue_is_taken_up(tmp_path, serve):
    service = serve(flow=HEAD + "flow = Flow('f', schedule='every 1s')" + FIXABLE)
    service.until("waits for a human", 2)
    (tmp_path / "flow.py").write_text(HEAD + f"flow = Flow('f', {YEARLY})" + FIXABLE)
    service.until_row("SELECT 1 FROM schedule WHERE expression = '0 0 1 1 *'")
    ((first,),) = ask(tmp_path, "SELECT run_id FROM run ORDER BY started_at LIMIT 1")
    (tmp_path / "fixed").touch()
    state = tmp_path / "state.db"
    done = run_redrive("requeue", "--state", state, "--run", first, "--reason", "fixed", "a")
    assert 0 == done.returncode, done.stderr
    service.until(f"run {first} is resumed")
    service.until(f"run {first} SUCCESS")
    assert [("RUNNING", 1)] == ask(
        tmp_path, f"SELECT DISTINCT state, blocked_since IS NOT NULL FROM run WHERE run_id <> '{first}'"
    )
    assert 0 == service.stop()


@pytest.mark.long
def test_a_flow_that_was_broken_while_it_is_served_keeps_its_schedule_until_it_is_repaired(tmp_path, serve):
    service = serve(flow=QUICK)
    service.until(" SUCCESS")
    (tmp_path / "flow.py").write_text("1 / 0\n")
    service.until("ZeroDivisionError")
    (tmp_path / "flow.py").write_text(QUICK.replace("def a", "def c"))
    service.until(" SUCCESS", 2)
    service.stop()
    assert_nothing_is_doubled_or_lost(tmp_path)


# --- Late ----------------------------------------------------------------------------------------------------------

PAGED = "flow.page('command', argv=['sh', '-c', 'cat >> \"$0\"', str(HERE / 'paged')])\n"


@pytest.mark.long
def test_a_run_that_takes_too_long_and_the_one_that_it_holds_up_are_reported_while_it_still_runs(tmp_path, serve):
    service = serve(
        flow=HEAD + "flow = Flow('f', schedule='every 1s', start_within='1s', deadline='2s',"
        " deadline_action='page')\n" + HELD
    )
    service.until_row("SELECT 1 FROM sla WHERE promise = 'end'")
    service.until_row("SELECT 1 FROM sla WHERE promise = 'start'")
    assert [("RUNNING",)] == ask(tmp_path, "SELECT state FROM run")
    (tmp_path / "go").touch()
    service.until(" SUCCESS", 3)
    service.stop()
    causes = [cause.partition(":")[0] for (cause,) in ask(tmp_path, "SELECT cause FROM page ORDER BY cause")]
    assert "schedule" in causes and "deadline" in causes
    assert [(1,)] == ask(tmp_path, "SELECT count(*) FROM sla WHERE promise = 'end' GROUP BY logical_time LIMIT 1")


@pytest.mark.long
def test_a_run_that_takes_too_long_is_ended_and_the_schedule_goes_on(tmp_path, serve):
    service = serve(flow=HEAD + "flow = Flow('f', schedule='every 1s', deadline='2s')\n" + HELD)
    service.until(" FAILED")
    (tmp_path / "go").touch()
    service.until(" SUCCESS", 3)
    service.stop()
    assert [("FAILED",)] == ask(tmp_path, "SELECT state FROM run ORDER BY started_at LIMIT 1")


@pytest.mark.long
def test_a_run_that_starts_after_its_deadline_runs_without_one_and_pages(tmp_path, serve):
    """The host was off: what was missed is started all the same, and one page says so."""
    options = "schedule='*/20 * * * *', deadline='0s', misfire='all'"
    flow = HEAD + f"flow = Flow('f', {options})\n@flow.task\ndef a(): pass\n"
    first = serve(flow=flow)
    first.until("next ")
    first.kill()
    now = datetime.now(UTC)
    since = (now - timedelta(hours=2)).replace(minute=now.minute // 20 * 20, second=0, microsecond=0)
    be_off_since(tmp_path, since)
    second = serve()
    second.until(" SUCCESS", 2)
    second.stop()
    runs = ask(tmp_path, "SELECT state, deadline_at FROM run WHERE ended_at IS NOT NULL")  # the next one may run
    assert len(runs) > 1 and set(runs) == {("SUCCESS", None)}
    ((title, body),) = ask(tmp_path, "SELECT title, body FROM page")
    assert title == "deadline missed" and "starts only now: it runs without a deadline" in body


@pytest.mark.long
def test_a_run_by_hand_that_holds_up_the_schedule_says_so_itself(tmp_path, serve):
    """Somebody has left it running, perhaps for the night."""
    body = HELD.replace("def a()", "def a(ctx)").replace("while not", "while ctx.run_id == 'mine' and not")
    service = serve(flow=HEAD + "flow = Flow('f', schedule='every 1s', start_within='1s')\n" + body)
    service.until(" SUCCESS")
    words = ["run", str(tmp_path / "flow.py"), "--state", str(tmp_path / "state.db"), "--run-id", "mine", "--wait"]
    assert run_redrive("schedule", "pause", "f").returncode == 0
    assert "f: paused\n" in run_redrive("runs", tmp_path / "state.db").stdout
    by_hand = start_redrive(*words)
    output = ""

    def until(text: str) -> None:
        nonlocal output
        assert by_hand.stdout is not None
        while text not in output:
            line = by_hand.stdout.readline()
            assert line, output
            output += line

    until("a RUNNING")
    paused_until = time.time() + 2  # of the schedule two times are due by then
    wait_until(lambda: time.time() > paused_until)
    assert run_redrive("schedule", "unpause", "f").returncode == 0
    until("has not started as promised")
    ((said_at,),) = ask(tmp_path, "SELECT min(at) FROM sla")
    assert said_at > paused_until * 1e6, "not while it was paused"
    (tmp_path / "go").touch()
    by_hand.communicate(timeout=PATIENCE_SECONDS)
    service.until(" SUCCESS", 3)
    service.stop()
    assert_nothing_is_doubled_or_lost(tmp_path)


@pytest.mark.long
def test_days_that_nobody_served_page_once_although_nothing_is_started_for_them(tmp_path, serve):
    options = "schedule='*/20 * * * *', start_within='1m', misfire='skip'"
    first = serve(flow=HEAD + f"flow = Flow('f', {options})\n" + PAGED + "@flow.task\ndef a(): pass\n")
    first.until("next ")
    first.kill()
    now = datetime.now(UTC)
    since = (now - timedelta(hours=2)).replace(minute=now.minute // 20 * 20, second=0, microsecond=0)
    be_off_since(tmp_path, since)
    second = serve()
    second.until_row("SELECT 1 FROM page WHERE title = 'f has not started' AND sent_at > 0")
    second.until_row("SELECT 1 FROM slot WHERE state = 'missed'")
    second.kill()
    third = serve()
    third.until("next ")
    third.stop()
    listed = run_redrive("runs", tmp_path / "state.db").stdout
    assert "f: next " in listed and "no process serves it" in listed
    assert "starts missed since" in run_redrive("inbox", tmp_path / "state.db").stdout
    assert (
        f"no process serves it: redrive serve {quoted(tmp_path / 'flow.py')}"
        in run_redrive("doctor", tmp_path / "state.db").stdout
    )
    assert 1 == (tmp_path / "paged").read_text().count('"episode": 1')
    ((broken, late),) = ask(tmp_path, "SELECT (SELECT count(*) FROM sla), (SELECT count(*) FROM slot)")
    assert 5 <= broken <= late <= 7


# --- What a task sees ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_task_sees_for_which_instant_it_runs(tmp_path, serve):
    body = """flow = Flow('f', schedule='every 1s', timezone='Asia/Kolkata')
@flow.task
def a(ctx, logical_time):
    assert ctx.logical_time.isoformat() == logical_time
    (HERE / 'seen').write_text(f'{logical_time} {ctx.run_id}')
flow.command('b', f'grep "^$REDRIVE_PARAM_LOGICAL_TIME " "{HERE}/seen"', after=[a])
"""
    service = serve(flow=HEAD + body)
    service.until("SUCCESS", 3)
    service.stop()
    ((logical, run_id),) = ask(tmp_path, "SELECT logical_time, run_id FROM run ORDER BY started_at LIMIT 1")
    wall = datetime.fromtimestamp(logical / 1e6, UTC).astimezone(datetime.strptime("+0530", "%z").tzinfo)
    assert f"{wall:%Y-%m-%dT%H:%M}" in run_id and run_id.endswith("+0530")
    assert (tmp_path / "seen").read_text().split()[0].endswith("+05:30")


@pytest.mark.long
def test_a_manual_run_has_no_logical_time_unless_one_is_given(tmp_path):
    body = (
        "@flow.task\ndef a(ctx): (HERE / 'seen').write_text(repr(ctx.logical_time and ctx.logical_time.isoformat()))\n"
    )
    (tmp_path / "flow.py").write_text(HEAD + f"flow = Flow('f', {YEARLY})\n" + body)
    words = ["run", tmp_path / "flow.py", "--state", tmp_path / "state.db"]
    assert 0 == run_redrive(*words).returncode and "None" == (tmp_path / "seen").read_text()
    assert 0 == run_redrive(*words, "--param", "logical_time=2026-11-01T02:00:00+05:30").returncode
    assert "'2026-11-01T02:00:00+05:30'" == (tmp_path / "seen").read_text()
    days = {"2026-01-01": "2026-01-01T00:00:00+00:00", "2026-11-21": "2026-11-21T00:00:00+00:00"}
    days["2027-01-01T07:30"] = "2027-01-01T07:30:00+00:00"
    for at, expected in days.items():
        assert 0 == run_redrive(*words, "--at", at).returncode
        assert repr(expected) == (tmp_path / "seen").read_text()
    (tmp_path / "flow.py").write_text(HEAD + "flow = Flow('f', schedule='0 2 * * *', timezone='Asia/Kolkata')\n" + body)
    assert 0 == run_redrive(*words, "--at", "2026-11-21").returncode
    assert "'2026-11-21T02:00:00+05:30'" == (tmp_path / "seen").read_text()
    assert ask(tmp_path, "SELECT count(*) FROM slot") == [(0,)], "it takes the place of none"
    (tmp_path / "flow.py").write_text(HEAD + "flow = Flow('f')\n" + body)
    refused = run_redrive(*words, "--at", "2026-11-21")
    assert refused.returncode == 2 and "has no schedule" in refused.stderr


# --- Backfill ------------------------------------------------------------------------------------------------------

DAILY = "flow = Flow('f', schedule='0 2 * * *', timezone='Europe/Berlin', deadline='1h')\n"
BACKFILL = ["--from", "2026-03-27", "--to", "2026-03-30"]
STARTS = ["2026-03-27T02:00+0100", "2026-03-28T02:00+0100", "2026-03-29T03:00+0200", "2026-03-30T02:00+0200"]


def backfill(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run_redrive("backfill", tmp_path / "flow.py", "--state", tmp_path / "state.db", *BACKFILL, *words)


@pytest.mark.long
def test_a_backfill_runs_what_is_left_out_oldest_first_and_once(tmp_path):
    """Over a night in which the clocks change."""
    (tmp_path / "flow.py").write_text(HEAD + DAILY + "@flow.task\ndef a(): pass\n")
    polled = backfill(tmp_path, "--dry-run")
    assert 0 == polled.returncode and "4 to run" in polled.stdout and not (tmp_path / "state.db").exists()
    done = backfill(tmp_path)
    assert 0 == done.returncode, done.stderr
    assert [(start, "SUCCESS") for start in STARTS] == ask(
        tmp_path, "SELECT run_id, state FROM run ORDER BY started_at"
    )
    again = backfill(tmp_path)
    assert 0 == again.returncode and "0 of 4" in again.stdout
    assert [(4,)] == ask(tmp_path, "SELECT count(*) FROM run")
    assert [] == ask(tmp_path, "SELECT * FROM page"), "a deadline counts from the start of a backfill's run"


@pytest.mark.long
def test_a_backfill_goes_on_behind_a_failure_and_where_it_was_interrupted(tmp_path):
    body = FIXABLE.replace("not (HERE / 'fixed').exists()", "'03-28' in ctx.run_id").replace("a()", "a(ctx)")
    held = HELD.replace("def a()", "def b(ctx)").replace(
        "not (HERE / 'go').exists()", "'03-29' in ctx.run_id and not (HERE / 'go').exists()"
    )
    (tmp_path / "flow.py").write_text(HEAD + DAILY + body + held)
    words = ["backfill", str(tmp_path / "flow.py"), "--state", str(tmp_path / "state.db"), *BACKFILL]
    first = start_redrive(*words)
    assert first.stdout is not None
    while "b RUNNING" not in (line := first.stdout.readline()) or STARTS[2] not in str(
        ask(tmp_path, "SELECT run_id FROM run")
    ):
        assert line
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=PATIENCE_SECONDS)
    assert 130 == first.returncode
    (tmp_path / "go").touch()
    assert f"BLOCKED: {STARTS[1]}" in backfill(tmp_path, "--dry-run").stdout
    done = backfill(tmp_path)
    assert 3 == done.returncode and f"BLOCKED: {STARTS[1]}" in done.stdout
    assert ["SUCCESS", "RUNNING", "SUCCESS", "SUCCESS"] == [
        state for (state,) in ask(tmp_path, "SELECT state FROM run ORDER BY logical_time")
    ]


@pytest.mark.weekly
@pytest.mark.long
def test_what_a_service_gave_up_a_backfill_can_run_and_both_at_a_time_run_nothing_twice(tmp_path, serve):
    service = serve(flow=QUICK.replace("'every 1s'", "'every 3s', misfire='skip'"))
    service.until(" SUCCESS")
    service.kill()
    begun = ask(tmp_path, "SELECT since FROM schedule")[0][0]
    while time.time_ns() // 1000 < begun + 10 * SECOND:
        time.sleep(0.1)
    service = serve()
    service.until_row("SELECT 1 FROM slot WHERE state = 'missed'")
    to = datetime.fromtimestamp(begun / 1e6 + 11, UTC).isoformat(timespec="seconds")
    since = datetime.fromtimestamp(begun / 1e6, UTC).isoformat(timespec="seconds")
    done = run_redrive("backfill", tmp_path / "flow.py", "--state", tmp_path / "state.db", "--from", since, "--to", to)
    assert 0 == done.returncode, done.stderr
    service.until(" SUCCESS", 2)
    service.stop()
    assert_nothing_is_doubled_or_lost(tmp_path, 3 * SECOND)
    assert [] == ask(tmp_path, f"SELECT * FROM slot WHERE state = 'missed' AND logical_time < {begun + 10 * SECOND}")


# --- What is refused -----------------------------------------------------------------------------------------------


@parametrize_mostly_long(
    ("options", "why"),
    [
        ("", "has no schedule"),
        (", schedule='0 2 * *'", "five fields"),
        (", schedule='0 2 * * *', timezone='Mars/Olympus'", "no time zone 'Mars/Olympus'"),
        (", schedule='0 2 * * *', misfire='maybe'", "misfire is one of"),
        (", schedule='0 2 * * *', splay='soon'", "splay is a duration"),
        (", schedule=7", "schedule is a text"),
    ],
)
def test_what_has_no_schedule_is_refused_in_one_sentence(tmp_path, options, why):
    (tmp_path / "flow.py").write_text(HEAD + f"flow = Flow('f'{options})\n@flow.task\ndef a(): pass\n")
    done = run_redrive("schedule", tmp_path / "flow.py")
    assert 2 == done.returncode and why in done.stderr.splitlines()[-1]
    assert not (tmp_path / "state.db").exists()
