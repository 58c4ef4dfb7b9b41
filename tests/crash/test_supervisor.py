"""``redrive serve FOLDER`` with real processes: files that come, break and go, acts of operators, kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redrive.console.app.fleet import FleetApp
from redrive.console.sessions.address import Endpoint
from redrive.console.sessions.open import FleetTarget, open_session
from redrive.console.widgets.dialog import Dialog
from redrive.engine.statefile import lock_file
from redrive.engine.statefile.start_requests import STALE_US, UNCLAIMED_US, claim, write_request
from redrive.engine.statefile.supervisor_file import (
    DEAD_AFTER_US,
    FOREVER,
    LedgerRow,
    ServedSchedule,
    heartbeat_age_us,
    is_served,
    read_ledger,
    read_schedules,
)
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long
from support.processes import find_processes_in, wait_until_dead
from support.ssh_host import LocalSshHost, SshHost
from support.waiting import wait_until, wait_until_async

SECOND = 1_000_000
YEARLY = "0 0 1 1 *"
FLOW = """from redrive.engine import Flow
{variable} = Flow('{name}', schedule='{schedule}'{more})
@{variable}.task(timeout=600)
def a{variable}(): {body}
"""


class Folder:
    """A folder of flows, the state files in the default place, and the supervisors of the folder."""

    def __init__(self, path: Path, states: Path) -> None:
        self.path = path
        self.states = states
        self.processes: list[Any] = []
        path.mkdir()

    def write(
        self, name: str, schedule: str = YEARLY, *, more: str = "", body: str = "pass", variable: str = "flow"
    ) -> Path:
        file = self.path / f"{name}.py"
        text = FLOW.format(name=name, schedule=schedule, more=more, body=body, variable=variable)
        file.write_text(text)
        return file

    def serve(self, *words: object) -> Any:
        self.processes.append(start_redrive("serve", self.path, *words))
        return self.processes[-1]

    def row(self, flow: str) -> ServedSchedule | None:
        found = [row for row in read_schedules().schedules if row.flow == flow]
        return found[0] if found else None

    def until(self, flow: str, holds: Callable[[ServedSchedule], object]) -> ServedSchedule:
        """Wait until the schedule of a flow is known and this holds for it."""
        wait_until(lambda: (row := self.row(flow)) is not None and holds(row), describe=read_schedules)
        row = self.row(flow)
        assert row is not None
        return row

    def edits(self, flow: str) -> str:
        """The schedules that a flow file has, and that do not hold yet."""
        with contextlib.closing(sqlite3.connect(self.states / "schedules.supervisor")) as connection:
            ((text,),) = connection.execute("SELECT edits FROM schedule WHERE flow = ?", (flow,)).fetchall()
        return str(text)

    def ask(self, flow: str, sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.states / f"{flow}.db")) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.delenv("REDRIVE_STATE", raising=False)
    folder = Folder(tmp_path / "flows", tmp_path / "states/redrive")
    yield folder
    for process in folder.processes:
        process.kill()
        process.wait()
        process.stdout.close()
    for pid in find_processes_in(tmp_path):
        with contextlib.suppress(ProcessLookupError):  # it may have ended with another one
            os.kill(pid, signal.SIGKILL)
    assert wait_until_dead(find_processes_in(tmp_path)) == []


@pytest.mark.long
def test_a_next_run_that_is_much_later_than_the_schedule_says_is_a_need_and_a_page(folder: Folder):
    """As after holidays of a wrong year; those of a few days are meant."""
    today = datetime.now(UTC).date()
    for name, days in (("far", 20), ("near", 5)):
        (folder.path / f"{name}.txt").write_text(f"{today} - {today + timedelta(days=days)}\n")
        folder.write(name, "0 2 * * *", more=f", holidays='{name}.txt', timezone='UTC', start_within='5m'")
    folder.serve()
    row = folder.until("far", lambda row: row.warning)
    assert "its next run is that of " in str(row.warning) and "look at its holidays" in str(row.warning)
    wait_until(lambda: folder.ask("far", "SELECT title FROM page") == [("far is planned too late",)])
    assert folder.until("near", lambda row: row.next_at).warning is None
    listed = run_redrive("inbox")
    assert listed.returncode == 3 and "look at its holidays" in listed.stdout and "near" not in listed.stdout


@pytest.mark.long
def test_files_that_come_break_and_go_concern_their_own_flows_alone(folder: Folder):
    several = (
        folder.write("one").read_text()
        + FLOW.format(name="two", schedule="every 1s", more="", body="pass", variable="second").partition("\n")[2]
    )
    (folder.path / "one.py").write_text(several)
    (folder.path / "helper.py").write_text("1 / 0  # no flow: it is not imported\n")
    broken = folder.path / "broken.py"
    broken.write_text("from redrive.engine import Flow\nflow = Flow('broken',\n")
    folder.serve()
    assert folder.until("one", lambda row: row.next_at).object == "flow"
    folder.until("two", lambda row: row.last_state == "SUCCESS")
    failed = folder.until("broken", lambda row: row.start_error)
    assert "SyntaxError" in (failed.start_error or "") and failed.has_failed_start() and failed.next_at is None
    folder.write("broken")
    folder.write("new")
    folder.until("broken", lambda row: row.start_error is None and row.next_at)
    folder.until("new", lambda row: row.next_at)
    (folder.path / "new.py").unlink()
    gone = folder.until("new", lambda row: row.gone_since)
    assert "new.py is gone" in (gone.start_error or "") and gone.has_failed_start()
    done = run_redrive("inbox", "--json")
    assert done.returncode == 1 and "redrive schedule forget" in done.stdout, done.stdout
    assert run_redrive("schedule", "forget", "one").returncode == 1, "it is served"
    assert run_redrive("schedule", "forget", "new").returncode == 0
    assert folder.row("new") is None
    (folder.path / "one.py").write_text("flow = Flow(  # redrive\n")
    folder.until("two", lambda row: row.start_error)
    assert folder.until("one", lambda row: row.start_error).next_at, "its schedule stays"


@parametrize_mostly_long("name", ["night", "moved"], quick=0, daily=1)
def test_what_operators_decided_outlives_the_file_of_the_flow(folder: Folder, name: str):
    """Away for one look of the supervisor, as in a checkout, or moved: its flow was started, paused or not."""
    file = folder.write("night", "every 1s", more=", misfire='skip'")
    folder.serve()
    folder.until("night", lambda row: row.last_state)
    assert run_redrive("schedule", "pause", "night").returncode == 0
    folder.until("night", lambda row: row.is_paused(time.time_ns() // 1000) and row.running_since is None)
    file.rename(folder.path / "away.txt")
    folder.until("night", lambda row: row.gone_since)
    runs = folder.ask("night", "SELECT count(*) FROM run")
    (folder.path / "away.txt").rename(folder.path / f"{name}.py")
    row = folder.until("night", lambda row: row.gone_since is None and row.file.endswith(f"/{name}.py"))
    assert row.paused_until == FOREVER and row.start_error is None
    folder.processes[0].terminate()
    folder.processes[0].wait()
    (folder.path / f"{name}.py").rename(folder.path / "third.py")  # while nobody serves it
    folder.serve()
    row = folder.until("night", lambda row: row.file.endswith("third.py") and row.next_at)
    assert row.paused_until == FOREVER and folder.ask("night", "SELECT count(*) FROM run") == runs
    assert run_redrive("schedule", "unpause", "night").returncode == 0
    wait_until(lambda: folder.ask("night", "SELECT count(*) FROM run") > runs)


@pytest.mark.long
def test_a_flow_that_is_renamed_or_forgotten_is_due_no_more(folder: Folder):
    """Its state file said for ever that a start was due, and that redrive serve would do it."""
    file = folder.write("night", "every 1s")
    folder.serve()
    folder.until("night", lambda row: row.last_state == "SUCCESS")
    file.write_text(file.read_text().replace("'night'", "'later'"))
    folder.until("later", lambda row: row.next_at)
    wait_until(lambda: folder.ask("night", "SELECT * FROM schedule") == [])
    folder.processes[0].terminate()
    folder.processes[0].wait()
    file.write_text(file.read_text().replace("'later'", "'last'"))  # while nobody serves it
    folder.serve()
    folder.until("last", lambda row: row.last_state == "SUCCESS")
    wait_until(lambda: folder.ask("later", "SELECT * FROM schedule") == [])
    folder.processes[1].terminate()
    folder.processes[1].wait()
    wait_until(lambda: (row := folder.row("last")) is not None and row.running_since is None)
    file.unlink()
    assert run_redrive("schedule", "forget", "last").returncode == 0
    assert folder.ask("last", "SELECT * FROM schedule") == []
    with contextlib.closing(sqlite3.connect(folder.states / "last.db")) as connection:  # one that was copied here
        connection.execute(
            "INSERT INTO schedule (dag_name, expression, timezone, misfire, since, decided_until, next_at)"
            " VALUES ('last', 'every 1s', 'UTC', 'one', 1, 1, 1)"
        )
        connection.commit()
    assert "no process serves" in run_redrive("inbox").stdout
    assert run_redrive("schedule", "forget", "last").returncode == 0
    for name in ("night", "later", "last"):
        assert " due " not in run_redrive("runs", name).stdout
    inbox = run_redrive("inbox")
    assert inbox.returncode == 0, inbox.stdout


@pytest.mark.long
def test_a_run_goes_on_where_its_flow_file_has_gone(folder: Folder):
    """The inbox prints `requeue --resume`; the file that the run names was moved since."""
    file = folder.write("night", "every 1s", more=", misfire='skip'", body="int('x')")
    folder.serve()
    run_id = folder.until("night", lambda row: row.last_state == "BLOCKED").last_run_id
    folder.write("night", body="pass")
    folder.until("night", lambda row: row.expression == YEARLY and row.running_since is None)
    file.rename(folder.path / "moved.py")
    folder.until("night", lambda row: row.file.endswith("moved.py"))
    folder.processes[0].terminate()
    folder.processes[0].wait()
    done = run_redrive("requeue", f"night@{run_id}", "--resume", "--reason", "mended", "aflow")
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(lambda: folder.ask("night", f"SELECT state FROM run WHERE run_id = '{run_id}'") == [("SUCCESS",)])


@pytest.mark.long
def test_the_end_of_a_run_that_outlived_its_supervisor_is_listed(folder: Folder):
    """Nobody serves its schedule: what the supervisor saw last is not what is true now."""
    go = folder.path / "go"
    body = f"import os, time\n    while not os.path.exists('{go}'): time.sleep(.02)"
    folder.write("night", "every 1s", body="\n    " + body)
    folder.serve()
    folder.until("night", lambda row: row.running_since and row.last_state == "RUNNING")
    folder.processes[0].terminate()
    folder.processes[0].wait()
    assert "not served, running for" in run_redrive("schedule").stdout
    go.touch()
    wait_until(lambda: folder.ask("night", "SELECT DISTINCT state FROM run") == [("SUCCESS",)])
    folder.until("night", lambda row: row.running_since is None)
    listed = run_redrive("schedule").stdout
    assert "SUCCESS" in listed and "running" not in listed.lower()


@pytest.mark.long
def test_a_changed_file_of_holidays_counts_at_once_and_a_broken_one_is_a_failed_start(folder: Folder):
    days = folder.path / "days.txt"
    days.write_text("# none yet\n")
    folder.write("one", "@yearly", more=", holidays='days.txt'")
    folder.serve()
    next_at = folder.until("one", lambda row: row.next_at).next_at
    assert next_at is not None
    first = datetime.fromtimestamp(next_at / SECOND, UTC).date()
    days.write_text(f"{first} New Year\n")
    second = folder.until("one", lambda row: row.next_at != next_at).next_at
    assert second == next_at + (first.replace(year=first.year + 1) - first).days * 86_400 * SECOND
    days.write_text("25 December\n")
    failed = folder.until("one", lambda row: row.start_error)
    assert "line 1 does not begin with a date as 2026-12-25: '25'" in (failed.start_error or "")


@pytest.mark.long
def test_an_import_that_hangs_holds_up_no_other_file(folder: Folder):
    for name in ("a1", "a2", "a3"):
        folder.write(name).write_text("import signal  # redrive, Flow(\nsignal.pause()\n")
    folder.write("old")
    folder.serve()
    folder.until("old", lambda row: row.next_at)
    folder.write("new", "every 1s")
    folder.until("new", lambda row: row.last_state == "SUCCESS")
    folder.write("old", "every 1s")
    folder.until("old", lambda row: row.last_state == "SUCCESS")
    assert folder.row("a1") is None  # it still hangs


@pytest.mark.long
def test_a_broken_release_is_paged_with_its_error_when_the_run_is_late(folder: Folder):
    pager = "\nflow.page('command', argv=['sh', '-c', 'cat >> \"$0\"', {!r}])\n".format(str(folder.path / "paged"))
    file = folder.write("night", "every 6s", more=", start_within='3s'")
    good = file.read_text().replace("\n@flow", f"{pager}@flow")
    file.write_text(good)
    folder.serve()
    folder.until("night", lambda row: row.last_state == "SUCCESS")
    file.write_text(good + "def broken(:\n")
    folder.until("night", lambda row: row.start_error and row.late_since)
    wait_until((folder.path / "paged").exists)
    ((promised, body),) = folder.ask("night", "SELECT created_at, body FROM page")
    ((logical,),) = folder.ask("night", "SELECT min(logical_time) FROM sla WHERE promise = 'start'")
    assert "SyntaxError" in body and promised - logical < 30 * SECOND, "seconds after it was due, and not a minute"
    file.write_text(good)
    folder.until("night", lambda row: row.start_error is None and row.last_state == "SUCCESS")


def has_stopped(row: ServedSchedule) -> bool:
    """Whether the supervisor has read the pause of a schedule of every second, and decides nothing more."""
    return row.running_since is None and (row.next_at or 0) < time.time_ns() // 1000 - 4 * SECOND


@pytest.mark.long
def test_what_operators_decide(folder: Folder):
    folder.write("held", "every 1s")
    folder.write("other", more=", params={'day': 'monday', 'n': 1}")
    folder.write("bank", more=", params={'token': None}, secrets=['token']")
    folder.serve()
    folder.until("held", lambda row: row.last_state == "SUCCESS")
    other = folder.until("other", lambda row: row.next_logical)
    assert run_redrive("schedule", "pause", "held", "--until", "2h").returncode == 0
    folder.until("held", has_stopped)
    before = folder.ask("held", "SELECT count(*) FROM run")
    assert run_redrive("schedule", "skip-next", "other").returncode == 0
    assert folder.until("bank", lambda row: row.next_logical)
    for words, why in (
        ("other dya=friday", "'dya'; did you mean 'day'?"),
        ("other n=x", "parameter 'n' wants a whole number"),
        ("bank token=hunter2", "the parameter 'token' is secret, and a request for a start is stored"),
    ):
        flow, param = words.split()
        done = run_redrive("schedule", "start", flow, "--param", param)
        assert done.returncode == 2 and why in done.stderr, done.stderr
    assert folder.until("other", lambda row: True).start_error is None
    assert run_redrive("schedule", "start", "other", "--param", "day=friday").returncode == 0
    folder.until("other", lambda row: row.last_state == "SUCCESS")
    ((params,),) = folder.ask("other", "SELECT params FROM run")
    assert json.loads(params)["day"] == "friday"
    assert folder.until("other", lambda row: True).skip_logical == other.next_logical
    shown = run_redrive("schedule", "other").stdout
    assert shown.startswith("other: 0 0 1 1 *") and shown.count("  skipped by ") == 1
    assert run_redrive("schedule", "held").stdout.count("  paused\n") == 5
    listed = run_redrive("schedule").stdout
    assert "paused until" in listed and "skips" in listed and "heartbeat" in listed
    assert before == folder.ask("held", "SELECT count(*) FROM run")
    assert run_redrive("schedule", "unpause", "--all").returncode == 0
    missed = folder.until("held", lambda row: len(row.missed) > 1).missed[0].first
    at = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(missed / SECOND))
    done = run_redrive("schedule", "start", "held", "--at", at.replace("+", ".5+"))
    assert done.returncode == 1 and "held has no run at " in done.stderr
    assert run_redrive("schedule", "start", "held", "--at", at).returncode == 0
    folder.until("held", lambda row: missed not in [run.first for run in row.missed])
    wait_until(lambda: folder.ask("held", f"SELECT 1 FROM run WHERE logical_time = {missed} AND state = 'SUCCESS'"))
    run_redrive("schedule", "pause", "held")
    assert folder.until("held", has_stopped).missed
    assert run_redrive("schedule", "dismiss", "held").returncode == 0
    assert folder.until("held", lambda row: True).missed == ()
    done = run_redrive("schedule", "start", "held", "--at", at)
    assert done.returncode == 1 and "has started already" in done.stderr
    coming = time.gmtime((other.next_logical or 0) / SECOND)
    done = run_redrive("schedule", "start", "other", "--at", time.strftime("%Y-%m-%dT%H:%M", coming))
    assert done.returncode == 1 and "is still to come; --early starts it now" in done.stderr


@pytest.mark.long
def test_a_served_flow_is_found_alike_by_all_commands(folder: Folder):
    """By its name, also if a command has a name like it, by its target and its file; a name of two flows is refused."""
    folder.write("stats")
    folder.write("twin").rename(folder.path / "a.py")
    folder.write("twin").write_text("flow = Flow(  # redrive, named by its file\n")
    folder.serve()
    target = folder.until("stats", lambda row: row.next_at).target
    wait_until(lambda: len(read_schedules().schedules) == 3, describe=read_schedules)
    for words in (("stats",), ("next", "stats"), ("next", target), ("next", target.partition(":")[0])):
        done = run_redrive("schedule", *words)
        assert done.stdout.startswith("stats: 0 0 1 1 *"), done.stderr
    done = run_redrive("schedule", "twin")
    assert done.returncode == 1 and "'twin' means several: " in done.stderr
    assert run_redrive("schedule", folder.path / "a.py").stdout.startswith("twin: 0 0 1 1 *")
    assert "(Did you mean 'start'?)" in run_redrive("schedule", "strat").stderr
    assert "--json stands behind FLOW" in run_redrive("schedule", "--json", "pause", "--all").stderr


@pytest.mark.long
def test_the_console_starts_a_run_and_pauses_its_schedule(folder: Folder):
    """In the list of schedules, with the parameters of the flow; and the supervisor does it."""
    folder.write("other", more=", params={'day': 'monday'}")
    folder.serve()
    folder.until("other", lambda row: row.next_logical and os.path.exists(row.state_path or ""))

    async def act() -> None:
        app = FleetApp(FleetTarget("this machine").watch, "this machine", lambda path: open_session(Endpoint(path)))
        async with app.run_test(size=(80, 24)) as pilot:
            known = folder.row("other")
            assert known is not None and known.state_path is not None
            await wait_until_async(lambda: app.list_screen.table.move_to_key(str(known.state_path)))
            await wait_until_async(lambda: (entry := app.list_screen.entry) is not None and entry.schedule is not None)
            await pilot.press("S")
            await wait_until_async(lambda: getattr(app.screen, "row", None) is not None)
            await pilot.press("r")
            await wait_until_async(lambda: isinstance(app.screen, Dialog))
            await pilot.press(*"asked for", "enter")
            await wait_until_async(lambda: (row := folder.row("other")) is not None and row.last_state == "SUCCESS")
            await pilot.press("p", "enter", *"move", "enter")
            await wait_until_async(lambda: (row := folder.row("other")) is not None and row.paused_until == FOREVER)
            assert (row := folder.row("other")) is not None and row.pause_reason == "move"

            folder.write("broken", more=", (")
            await pilot.press("/", *"broken", "enter")
            await wait_until_async(
                lambda: (row := getattr(app.screen, "row", None)) is not None and row.flow == "broken"
            )
            await pilot.press("a")
            await wait_until_async(
                lambda: (row := folder.row("broken")) is not None and row.acknowledged_at is not None
            )

    asyncio.run(act())
    ((params,),) = folder.ask("other", "SELECT params FROM run")
    assert json.loads(params)["day"] == "monday"


@pytest.mark.long
def test_runs_that_are_pruned_keep_their_time_end_and_duration(folder: Folder):
    """In the ledger and in the usual duration, also of a supervisor that has never seen the runs."""
    folder.write("load", "every 1s", more=", retention=1, misfire='all'")
    process = folder.serve()
    folder.until("load", lambda row: len([one for one in read_ledger(row.id) if one.lasts_us is not None]) >= 4)
    run_redrive("schedule", "pause", "load")
    row = folder.until("load", lambda row: row.running_since is None and row.last_state == "SUCCESS")
    process.terminate()
    process.wait()
    wait_until(lambda: folder.ask("load", "SELECT count(*) FROM run") == [(1,)])
    assert row.usual_us is not None and row.nights[-1].state == "SUCCESS"
    times = run_redrive("schedule", "times", "load", "--json").stdout.splitlines()
    assert len([one for one in map(json.loads, times) if one["state"] == "SUCCESS" and one["lasts_us"] > 0]) >= 4


@pytest.mark.spawns
@pytest.mark.long
def test_killed_again_and_again_it_starts_each_logical_time_once(folder: Folder):
    for name in ("one", "two"):
        folder.write(name, "every 1s", more=", misfire='all'")
    for pause_seconds in (0.3, 0.1, 0.45, 0.2):
        process = folder.serve()
        seen = [len(folder.ask(name, "SELECT 1 FROM slot")) if folder.row(name) else 0 for name in ("one", "two")]
        folder.until("one", lambda row: row.last_run_id)
        enough = seen[0] + 1
        wait_until(lambda: len(folder.ask("one", "SELECT 1 FROM slot")) > enough)  # noqa: B023  # called at once
        time.sleep(pause_seconds)  # another instant of its loop each time
        process.kill()
        process.wait()
    for name in ("one", "two"):
        sql = "SELECT 'slot', logical_time FROM slot UNION ALL SELECT 'run', logical_time FROM run ORDER BY 2"
        rows = folder.ask(name, sql)  # at one instant: a run may just start
        slots, runs = ([logical for kind, logical in rows if kind == table] for table in ("slot", "run"))
        assert slots == list(range(slots[0], slots[-1] + 1, SECOND)), "none never"
        assert runs == slots, "each once"
    row = folder.until("one", lambda row: True)
    assert heartbeat_age_us(row, row.heartbeat_at + DEAD_AFTER_US + 1) and not is_served(
        row, row.heartbeat_at + DEAD_AFTER_US + 1
    )
    assert is_served(row, row.heartbeat_at + 1)


@pytest.mark.long
def test_a_stop_leaves_runs_alone_or_stops_them_in_order(folder: Folder):
    folder.write("long", "every 1s", body="__import__('time').sleep(600)")
    process = folder.serve()
    folder.until("long", lambda row: row.last_state == "RUNNING")
    process.terminate()
    assert process.wait() == 0
    holder = lock_file.current_holder(str(folder.states / "long.db"))
    assert holder is not None and holder.is_alive()
    assert folder.until("long", lambda row: row.stopped_at)
    again = folder.serve("--stop-runs")
    wait_until(lambda: lock_file.service_pid(str(folder.states / "long.db")) == again.pid)
    again.terminate()
    assert again.wait() == 0
    assert not holder.is_alive() and lock_file.last_holder(str(folder.states / "long.db")).released_at


# --- No start is lost in silence ----------------------------------------------------------------------------------


def ledger_of(folder: Folder, flow: str) -> list[LedgerRow]:
    return read_ledger(folder.until(flow, lambda row: True).id)


@pytest.mark.long
def test_two_starts_in_one_second_are_two_runs_and_claim_no_time_of_the_schedule(folder: Folder):
    folder.write("load", more=", params={'day': ''}")
    folder.serve()
    folder.until("load", lambda row: row.next_at)
    starts = [start_redrive("schedule", "start", "load", "--param", f"day={day}") for day in "ABC"]
    assert [one.wait() for one in starts] == [0, 0, 0]
    wait_until(lambda: len(folder.ask("load", "SELECT 1 FROM run WHERE state = 'SUCCESS'")) == 3)
    params = [json.loads(text)["day"] for (text,) in folder.ask("load", "SELECT params FROM run")]
    assert sorted(params) == ["A", "B", "C"] and folder.ask("load", "SELECT * FROM slot") == []
    folder.until("load", lambda row: row.requests == ())


@pytest.mark.long
def test_a_start_that_nobody_takes_stands_in_the_inbox(folder: Folder):
    folder.write("load", more=", params={'n': 1}")
    process = folder.serve()
    row = folder.until("load", lambda row: row.next_at)
    process.kill()
    process.wait()
    asked_at = time.time_ns() // 1000 - 2 * UNCLAIMED_US
    request = write_request("load", row.state_path or "", None, {"n": "7"}, "ana@here", asked_at)
    assert (folder.states / "starts" / f"{request.name}.start").stat().st_mode & 0o777 == 0o600
    done = run_redrive("inbox")
    assert done.returncode and "a start that ana@here asked for at" in done.stdout
    assert "redrive schedule start load --param n=7" in run_redrive("schedule").stdout
    write_request("load", row.state_path or "", None, {}, "ana@here", asked_at - STALE_US)
    folder.serve()
    folder.until("load", lambda row: row.last_state == "SUCCESS")
    folder.until("load", lambda row: len(row.requests) == 1)
    assert folder.ask("load", "SELECT run_id FROM run") == [(request.name,)], "after an hour only a person starts it"
    assert run_redrive("schedule", "dismiss", "load").returncode == 0
    assert folder.until("load", lambda row: True).requests == ()


@contextlib.contextmanager
def linked(place: Path, target: str) -> Iterator[None]:
    """A link in the place of a folder of the host, which other tests use after this one."""
    place.mkdir(parents=True, exist_ok=True)
    place.rename(aside := place.with_name("aside"))
    place.symlink_to(target)
    try:
        yield
    finally:
        place.unlink()
        aside.rename(place)


@pytest.mark.long
def test_a_run_that_the_new_code_cannot_resume_is_a_need_and_a_page(folder: Folder, far: SshHost | LocalSshHost):
    flag = folder.path / "flag"
    body = f"__import__('time').sleep(600 if not __import__('os').path.exists({str(flag)!r}) else 0)"
    pager = "\nflow.page('command', argv=['sh', '-c', 'cat >> \"$0\"', {!r}])\n@flow".format(str(folder.path / "paged"))
    file = folder.write("load", body=body)
    file.write_text(good := file.read_text().replace("\n@flow", pager))
    folder.serve()
    folder.until("load", lambda row: row.next_at)
    assert run_redrive("schedule", "start", "load").returncode == 0
    row = folder.until("load", lambda row: row.running_since)
    wait_until(lambda: folder.ask("load", "SELECT 1 FROM task WHERE state = 'RUNNING'"))
    file.write_text(good.replace("def aflow", "def another"))
    holder = lock_file.current_holder(row.state_path or "")
    assert holder is not None
    assert run_redrive("schedule", "pause", "load", "--reason", "migration").returncode == 0, "it holds up no run"
    os.kill(holder.pid, signal.SIGKILL)
    row = folder.until("load", lambda row: row.stuck_run_id)
    wait_until((folder.path / "paged").exists)
    done = run_redrive("inbox")
    assert done.returncode and "cannot be resumed" in done.stdout and "--accept-changes" in done.stdout
    with linked(far.home / ".local/state", os.environ["XDG_STATE_HOME"]):
        for door in ("", "ssh://far"):
            of_file = run_redrive("inbox", f"{door}{row.state_path}").stdout
            assert "cannot resume it (why: redrive schedule)" in of_file and "resumes it" not in of_file, door
    listed = run_redrive("schedule").stdout
    assert f"cannot resume run {row.stuck_run_id}" in listed and ": migration" in listed
    flag.touch()
    file.write_text(good)
    folder.until("load", lambda row: row.last_state == "SUCCESS" and row.stuck_run_id is None)


@pytest.mark.long
def test_a_state_file_that_was_restored_starts_nothing_again_and_says_so(folder: Folder, tmp_path: Path):
    folder.write("load", "every 1s", more=", misfire='all'")
    process = folder.serve()
    folder.until("load", lambda row: row.last_state == "SUCCESS")
    run_redrive("schedule", "pause", "load")
    folder.until("load", lambda row: row.running_since is None and row.late_since is None)
    wait_until(lambda: folder.row("load") == folder.row("load")._replace(running_since=None))
    before = tmp_path / "before.db"
    source, copy = sqlite3.connect(folder.states / "load.db"), sqlite3.connect(before)
    with contextlib.closing(source), contextlib.closing(copy):
        source.backup(copy)
    run_redrive("schedule", "unpause", "load")
    wait_until(lambda: len(folder.ask("load", "SELECT 1 FROM run WHERE state = 'SUCCESS'")) > 8)
    run_redrive("schedule", "pause", "load")
    wait_until(lambda: lock_file.current_holder(str(folder.states / "load.db")) is None)
    until = folder.until("load", lambda row: row.running_since is None)
    process.terminate()
    process.wait()
    ran = folder.ask("load", "SELECT logical_time FROM run")
    for suffix in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            (folder.states / f"load.db{suffix}").unlink()
    before.rename(folder.states / "load.db")
    folder.serve()
    row = folder.until("load", lambda row: row.warning)
    assert "older than its runs" in (row.warning or "") and until.next_logical
    assert "older than its runs" in run_redrive("inbox").stdout
    run_redrive("schedule", "unpause", "load")
    latest = max(at for (at,) in ran)
    wait_until(lambda: folder.ask("load", f"SELECT 1 FROM run WHERE logical_time > {latest} AND state = 'SUCCESS'"))
    again = folder.ask("load", f"SELECT logical_time FROM run WHERE logical_time <= {latest}")
    assert len(again) < len(ran), "only what the copy had"
    assert run_redrive("schedule", "acknowledge", "load").returncode == 0
    assert folder.until("load", lambda row: True).warning is None


@pytest.mark.long
def test_a_clock_that_was_ahead_stops_no_schedule_and_is_a_need(folder: Folder):
    folder.write("load", "every 1s")
    process = folder.serve()
    folder.until("load", lambda row: row.last_state == "SUCCESS")
    process.terminate()
    process.wait()
    wait_until(lambda: lock_file.current_holder(str(folder.states / "load.db")) is None)
    ahead = time.time_ns() // 1000 + 400 * 86_400 * SECOND
    with contextlib.closing(sqlite3.connect(folder.states / "load.db")) as connection, connection:
        connection.execute("UPDATE schedule SET decided_until = ?, next_at = ?", (ahead, ahead + SECOND))
        connection.execute("UPDATE run SET started_at = ?, ended_at = ?", (ahead, ahead))
    with contextlib.closing(sqlite3.connect(folder.states / "schedules.supervisor")) as connection, connection:
        connection.execute("UPDATE schedule SET ledger_until = ?", (ahead,))
    began = time.time_ns() // 1000
    assert "ahead of the clock: redrive serve" in run_redrive("doctor", folder.states / "load.db").stdout
    folder.serve()
    folder.until(
        "load", lambda row: row.warning and row.last_state == "SUCCESS" and began < (row.last_started_at or 0) < ahead
    )
    assert "ahead of the clock" in run_redrive("inbox").stdout
    assert "ahead of the clock" in run_redrive("doctor").stdout
    pages = folder.ask("load", "SELECT body FROM page")
    assert len(pages) == 1 and "holidays" not in pages[0][0], "the schedule is right, and the clock was wrong"


@pytest.mark.long
def test_all_times_that_were_due_are_in_the_ledger_once_through_an_edit(folder: Folder):
    go = folder.path / "go"
    body = f"[__import__('time').sleep(0.02) for _ in iter(lambda: __import__('os').path.exists({str(go)!r}), True)]"
    folder.write("load", "every 1s", body=body)
    folder.serve()
    folder.until("load", lambda row: row.running_since)
    folder.write("load", "every 3s", body=body)
    wait_until(lambda: "3s" in folder.edits("load"))
    edited = time.time_ns() // 1000
    wait_until(lambda: time.time_ns() // 1000 > edited + 7 * SECOND)
    go.touch()
    folder.until("load", lambda row: (row.next_logical or 0) > edited + 9 * SECOND)
    run_redrive("schedule", "pause", "load")
    folder.until("load", lambda row: row.running_since is None and row.last_state == "SUCCESS")
    rows = ledger_of(folder, "load")
    times = sum(row.times for row in rows)
    started = [at for (at,) in folder.ask("load", "SELECT logical_time FROM run ORDER BY 1")]
    first, last = min(row.first for row in rows), max(row.last for row in rows)
    ((since,),) = folder.ask("load", "SELECT since FROM schedule")
    before = range(first, since + 1, SECOND)
    after = range(since // (3 * SECOND) * 3 * SECOND + 3 * SECOND, last + 1, 3 * SECOND)
    assert times == len(before) + len(after), (rows, started)
    assert len(set(started)) == len(started)


@pytest.mark.long
def test_a_backfill_beside_a_paused_schedule_goes_on(folder: Folder):
    file = folder.write("load", "every 1s")
    folder.serve()
    folder.until("load", lambda row: row.last_state == "SUCCESS")
    assert run_redrive("schedule", "pause", "load").returncode == 0
    row = folder.until("load", has_stopped)
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime((row.next_logical or 0) / SECOND + 1))
    done = run_redrive("backfill", file, "--from", at, "--to", at)
    assert done.returncode == 0 and "waiting for the run" not in done.stdout, done.stdout


@pytest.mark.long
def test_a_start_that_a_killed_supervisor_had_claimed_is_started_once(folder: Folder):
    folder.write("load")
    process = folder.serve()
    row = folder.until("load", lambda row: row.next_at)
    process.kill()
    process.wait()
    request = write_request("load", row.state_path or "", None, {}, "ana@here", time.time_ns() // 1000)
    assert claim(request)
    claimed = folder.states / "starts" / f"{request.name}.claimed"
    content = claimed.read_text()
    folder.serve()
    folder.until("load", lambda row: row.last_state == "SUCCESS" and row.requests == ())
    claimed.write_text(content)  # killed after the start, and before it had removed it
    claimed.chmod(0o600)
    folder.until("load", lambda row: row.requests == ())
    assert folder.ask("load", "SELECT run_id FROM run") == [(request.name,)]
    assert folder.until("load", lambda row: True).start_error is None
