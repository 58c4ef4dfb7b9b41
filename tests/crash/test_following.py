"""A flow after other flows, with real processes: it starts once for a day, whatever is killed, paused or run again."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redrive.engine.statefile.paths import supervisor_path
from redrive.engine.statefile.supervisor_file import read_ledger
from support.commands import run_redrive
from support.marks import parametrize_mostly_long
from support.waiting import wait_until

from .test_supervisor import Folder, folder  # noqa: F401  # a fixture

#: A zone in which it is about noon, so that no day begins while a test runs.
OFFSET = timedelta(hours=12 - datetime.now(UTC).hour)
ZONE = f"Etc/GMT{-OFFSET // timedelta(hours=1):+d}"
FIRST = """from redrive.engine import Flow
flow = Flow('{name}', schedule='{cron}', timezone='{zone}')
flow.command('a', 'true')
"""
SECOND = """from redrive.engine import Flow, after
build = Flow('build', schedule=after('load', 'prices', by='23:00'), timezone='{zone}')
build.command('make', 'echo made >> made', after=build.run_of('load', every=1), cwd='{place}')
last = Flow('last', schedule=after('build'), timezone='{zone}')
last.command('report', 'echo reported >> made', cwd='{place}')
"""
#: ``redrive`` with a supervisor that is killed before it starts the run of build, or right after.
KILLED = """
import os, signal
from redrive.console.__main__ import main
from redrive.engine.schedule import flow_service, supervisor

supervisor.SCAN_SECONDS = 0.5
launch = flow_service.FlowService._launch

async def killed(self, *words):
    if {is_after} or self.served.name != "build":
        await launch(self, *words)
    if self.served.name == "build":
        os.kill(os.getpid(), signal.SIGKILL)

flow_service.FlowService._launch = killed
main()
"""


def write_night(folder: Folder) -> Path:  # noqa: F811
    place = folder.path.parent
    for name, cron in (("load", "0 1 * * *"), ("prices", "30 1 * * *")):
        (folder.path / f"{name}.py").write_text(FIRST.format(name=name, cron=cron, zone=ZONE))
    (folder.path / "second.py").write_text(SECOND.format(zone=ZONE, place=place))
    return place / "made"


def begin_today(folder: Folder) -> None:  # noqa: F811
    """Serve the flows, and leave their files as if they had been served since this midnight."""
    process = folder.serve()
    for flow in ("load", "prices", "build", "last"):
        folder.until(flow, lambda row: row.last_run_id is None)
        wait_until(lambda: (folder.states / f"{flow}.db").exists() and folder.ask(flow, "SELECT 1 FROM schedule"))  # noqa: B023
    process.kill()
    process.wait()
    with contextlib.closing(sqlite3.connect(supervisor_path())) as connection, connection:
        connection.execute("UPDATE schedule SET ledger_until = ?", (midnight() - 1,))
    for flow in ("load", "prices", "build", "last"):
        with contextlib.closing(sqlite3.connect(folder.states / f"{flow}.db")) as connection, connection:
            connection.execute("UPDATE schedule SET since = ?, decided_until = ?", (midnight() - 1, midnight() - 1))


def midnight() -> int:
    today = (datetime.now(UTC) + OFFSET).replace(hour=0, minute=0, second=0, microsecond=0)
    return round((today - OFFSET).timestamp()) * 1_000_000


def serve_and_die(folder: Folder, *, is_after: bool) -> None:  # noqa: F811
    command = [sys.executable, "-P", "-c", KILLED.format(is_after=is_after), "serve", str(folder.path)]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)


@parametrize_mostly_long("is_after", [False, True], ids=["before the start", "after the start"], quick=0, daily=1)
def test_a_flow_after_others_starts_once_though_the_supervisor_is_killed(folder: Folder, is_after: bool):  # noqa: F811
    made = write_night(folder)
    begin_today(folder)
    serve_and_die(folder, is_after=is_after)
    assert (
        folder.ask("load", "SELECT state FROM run") == folder.ask("prices", "SELECT state FROM run") == [("SUCCESS",)]
    )
    folder.serve()
    folder.until("last", lambda row: row.last_state == "SUCCESS")
    folder.until("build", lambda row: row.last_state == "SUCCESS" and not any(one.waits for one in row.after))
    assert made.read_text().split() == ["made", "reported"]
    for flow in ("build", "last"):
        assert folder.ask(flow, "SELECT logical_time, run_id = (SELECT run_id FROM slot) FROM run") == [(midnight(), 1)]
    # What runs again of the first starts nothing of the second, which says that it has older data.
    day = datetime.fromtimestamp(midnight() / 1e6, UTC) + timedelta(hours=12)
    again = run_redrive(
        "backfill", folder.path / "load.py", "--from", f"{day:%Y-%m-%d}", "--to", f"{day:%Y-%m-%d}", "--again"
    )
    assert again.returncode == 0, again.stdout
    row = folder.until("build", lambda row: row.after[0].newer)
    assert row.after[0].newer == f"{day:%Y-%m-%d}"
    assert "older data" in run_redrive("schedule").stdout
    assert made.read_text().split() == ["made", "reported"]


@pytest.mark.long
def test_a_flow_before_that_is_paused_gone_or_unknown_is_a_need_and_no_start(folder: Folder):  # noqa: F811
    made = write_night(folder)
    late = (folder.path / "second.py").read_text().replace("by='23:00'", "by='02:00'")
    late = late.replace("after('build')", "after('build', by='02:00')")
    (folder.path / "second.py").write_text(late)
    begin_today(folder)
    for flow in ("load", "last"):
        assert run_redrive("schedule", "pause", flow).returncode == 0
    folder.serve()
    folder.until("prices", lambda row: row.last_state == "SUCCESS")
    folder.until("build", lambda row: [bool(one.stuck_since) for one in row.after] == [True, False])
    found = run_redrive("inbox")
    assert found.returncode == 3
    assert "waits for load, which is paused by" in found.stdout
    assert "after load, prices: waits for load" in run_redrive("schedule").stdout
    graph = run_redrive("schedule", "--graph").stdout.splitlines()
    assert [line.split("  ")[0].strip() for line in graph[1:]] == ["prices", "load", "-- build", "---- last"]
    (folder.path / "load.py").rename(folder.path.parent / "kept")
    folder.until("build", lambda row: "is in no file" in row.after[0].waits)
    assert not made.exists()
    folder.until("build", lambda row: row.late_since)
    ((body, state),) = folder.ask("build", "SELECT body, state FROM page")
    assert "has not started: waits for load" in body and state == "open"
    os.rename(folder.path.parent / "kept", folder.path / "load.py")
    folder.until("load", lambda row: row.gone_since is None)
    assert folder.ask("last", "SELECT 1 FROM page") == [], "it is paused itself"
    for flow in ("load", "last"):
        assert run_redrive("schedule", "unpause", flow).returncode == 0
    folder.until("last", lambda row: row.last_state == "SUCCESS")
    assert folder.ask("build", "SELECT state FROM page") == [("resolved",)]
    assert made.read_text().split() == ["made", "reported"]


@pytest.mark.long
def test_flows_after_one_another_are_refused_by_check_and_serve(folder: Folder):  # noqa: F811
    for name, other in (("a", "b"), ("b", "a")):
        folder.write(name, f"after {other}")
    folder.write("c", "after bb")
    checked = run_redrive("check", folder.path)
    assert checked.returncode == 2
    assert "it comes after 'bb', and no flow of that name is known here; did you mean 'b'?" in checked.stdout
    assert "flow 'b' comes after itself: b after a after b" in checked.stdout
    folder.serve()
    row = folder.until("a", lambda row: row.start_error)
    assert row.start_error == "flow 'a' comes after itself: a after b after a"
    folder.write("b", "0 0 1 1 *")
    folder.until("a", lambda row: row.start_error is None)


@pytest.mark.long
def test_a_flow_before_that_another_supervisor_serves_counts_also_after_a_requeue(folder: Folder, tmp_path: Path):  # noqa: F811
    made = write_night(folder)
    begin_today(folder)
    others = tmp_path / "others"
    others.mkdir()
    (folder.path / "load.py").rename(others / "load.py")
    text = (
        (others / "load.py")
        .read_text()
        .replace("'true'", f"'test -e {tmp_path}/there', retry=RetryPolicy(max_attempts=1)")
    )
    (others / "load.py").write_text(text.replace("import Flow", "import Flow, RetryPolicy"))
    other = Folder(tmp_path / "unused", folder.states)
    other.path = others
    folder.processes.append(other.serve())
    folder.until("load", lambda row: row.last_state == "FAILED")
    folder.serve()
    row = folder.until("build", lambda row: row.after[0].waits.startswith("ended FAILED"))
    assert row.after[0].stuck_since is None, "the failed run is a need itself"
    (tmp_path / "there").touch()
    assert run_redrive("requeue", "load", "a", "--reason", "mended").returncode == 0
    folder.until("last", lambda row: row.last_state == "SUCCESS")
    assert made.read_text().split() == ["made", "reported"]


@pytest.mark.long
def test_an_edit_to_other_flows_and_back_gives_up_no_day(folder: Folder):  # noqa: F811
    folder.write("build")
    folder.serve()
    folder.until("build", lambda row: row.next_at)
    folder.write("build", "after load")
    row = folder.until("build", lambda row: row.after)
    assert row.after[0].waits == "" and row.next_at is None, "its first day is the next one"
    folder.write("build")
    row = folder.until("build", lambda row: row.next_at and not row.after)
    assert row.warning is None and not row.missed_times
    assert read_ledger(row.id) == []
