"""The file of supervisors: its ledger of logical times, and the file of an earlier version."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redrive.engine.errors import CorruptFileError, StateFileError
from redrive.engine.statefile import supervisor_file
from redrive.engine.statefile.lock_file import SERVICE
from redrive.engine.statefile.paths import supervisor_path
from redrive.engine.statefile.start_requests import read_requests, write_request
from redrive.engine.statefile.supervisor_file import (
    FOREVER,
    Fate,
    LedgerRow,
    NightSummary,
    PastRun,
    ServedSchedule,
    dismiss,
    pause,
    read_known,
    read_ledger,
    read_schedules,
    remove,
    with_known,
)
from redrive.engine.store import lock
from redrive.engine.store.supervisor_writer import ROWS_MAX, SINGLE_MAX, SupervisorFile

HOUR = 3600 * 1_000_000


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SupervisorFile]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    os.makedirs(os.path.dirname(supervisor_path()))
    with contextlib.closing(SupervisorFile(supervisor_path(), "one")) as file:
        file.register(os.getpid(), "here", "[]", 0)
        yield file


def save(
    file: SupervisorFile, stored: ServedSchedule, decided: list[LedgerRow], caught_up: tuple[int, ...] = ()
) -> None:
    file.save(stored._replace(supervisor_id="one", spec="{}"), decided, caught_up)


def only_row() -> ServedSchedule:
    (row,) = read_schedules().schedules
    return row


def run(first: int, times: int = 1) -> LedgerRow:
    return LedgerRow(first, first + (times - 1) * HOUR, times, Fate.RUN, "", "", first, 0)


def missed(first: int, times: int = 1) -> LedgerRow:
    return LedgerRow(first, first + (times - 1) * HOUR, times, Fate.MISSED, "no power", "", first, times)


def test_runs_are_one_range_and_a_long_gap_is_one_row_with_its_count(file: SupervisorFile):
    stored = file.claim("/f.py:flow", "f", "/f.db")
    save(file, stored, [run(at * HOUR) for at in range(1, 50)])
    save(file, stored, [missed(50 * HOUR, 8_640), run(9_000 * HOUR)])
    rows = read_ledger(stored.id)
    assert [(row.first, row.last, row.times, row.fate) for row in rows] == [
        (HOUR, 9_000 * HOUR, 50, "run"),
        (50 * HOUR, 8_689 * HOUR, 8_640, "missed"),
    ]
    assert only_row().missed_times == 8_640 and only_row().missed == ()
    dismiss(stored.id, None, 7, "ana@here")
    assert only_row().missed_times == 0
    assert [(row.fate, row.who) for row in read_ledger(stored.id)] == [("run", ""), ("dropped", "ana@here")]


def test_old_times_are_folded_and_every_one_still_counts(file: SupervisorFile):
    stored = file.claim("/f.py:flow", "f", "/f.db")
    for at in range(1, 1_001):
        save(file, stored, [run(2 * at * HOUR), missed((2 * at + 1) * HOUR)])
    rows = read_ledger(stored.id)
    assert len(rows) <= ROWS_MAX + 2 and sum(row.times for row in rows) == 2_000
    assert only_row().missed_times == 1_000 and len(only_row().missed) >= SINGLE_MAX
    save(file, stored, [], (2_001 * HOUR, 3 * HOUR))  # a backfill: of a single one, and of one in the range
    assert only_row().missed_times == 998 and sum(row.times for row in read_ledger(stored.id)) == 2_000


def test_a_run_that_is_pruned_leaves_its_end_and_its_duration(file: SupervisorFile):
    stored = file.claim("/f.py:flow", "f", "/f.db")
    save(file, stored, [run(at * HOUR) for at in range(1, 501)])
    for at in range(1, 501):
        end = "FAILED" if at == 30 else "SUCCESS"
        lasts = file.note_runs(stored.id, [PastRun(f"r{at}", at * HOUR, at * HOUR, end, at)])
    assert lasts == [*range(500, 480, -1)]
    rows = read_ledger(stored.id)
    assert sum(row.times for row in rows) == 500
    assert (rows[-1].first, rows[-1].state, rows[-1].lasts_us) == (500 * HOUR, "SUCCESS", 500)
    nights = only_row().nights
    assert len(nights) >= 14 and nights[-1].lasts_us == 500 and nights[-2].lasts_us is not None
    in_file = NightSummary("SUCCESS", 3, nights[-2].day), NightSummary("FAILED", None, nights[-1].day)
    found = with_known(in_file, nights)
    assert [night.day for night in found] == [night.day for night in nights]
    assert found[-1] == in_file[-1] and found[-2].lasts_us == nights[-2].lasts_us
    remove(stored.id)
    assert file.note_runs(stored.id, [PastRun("r", 1, 1, "SUCCESS", 7)]) == [7]
    save(file, file.claim("/f.py:flow", "f", "/f.db"), [])
    assert only_row().nights == (), "what was forgotten belongs to no other schedule"


def test_a_flow_keeps_its_schedule_wherever_it_is_and_under_another_name(file: SupervisorFile):
    stored = file.claim("/a.py:flow", "f", "/f.db")
    save(file, stored, [])
    assert only_row().state_path == "/f.db"
    pause([stored.id], FOREVER, "holiday", "ana@here")
    moved = file.claim("/b.py:other", "f", "/f.db")
    assert moved.id == stored.id
    renamed = file.claim("/a.py:flow", "g", "/g.db")
    assert renamed.id == stored.id and only_row().flow == "g" and only_row().pause_reason == "holiday"
    remove(stored.id)
    assert read_schedules().schedules == ()
    save(file, stored, [run(HOUR)])
    assert read_schedules().schedules == (), "its supervisor does not bring it back"


VERSION_1 = """
CREATE TABLE IF NOT EXISTS supervisor (
    id           TEXT PRIMARY KEY,
    pid          INTEGER NOT NULL,
    host         TEXT NOT NULL,
    sources      TEXT NOT NULL,
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    stopped_at   INTEGER
);
CREATE TABLE IF NOT EXISTS schedule (
    target          TEXT PRIMARY KEY,
    file            TEXT NOT NULL,
    object          TEXT,
    flow            TEXT NOT NULL,
    supervisor_id   TEXT NOT NULL,
    spec            TEXT NOT NULL,
    state_path      TEXT,
    expression      TEXT,
    timezone        TEXT,
    next_at         INTEGER,
    next_logical    INTEGER,
    last_run_id     TEXT,
    last_state      TEXT,
    last_started_at INTEGER,
    usual_us        INTEGER,
    running_since   INTEGER,
    late_since      INTEGER,
    paused_until    INTEGER NOT NULL DEFAULT 0,
    skip_logical    INTEGER,
    start_error     TEXT,
    failed_since    INTEGER,
    failed_at       INTEGER,
    acknowledged_at INTEGER,
    missed_until    INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS missed (
    target       TEXT NOT NULL,
    logical_time INTEGER NOT NULL,
    due_at       INTEGER NOT NULL,
    PRIMARY KEY (target, logical_time)
);
CREATE TABLE IF NOT EXISTS request (
    target       TEXT NOT NULL,
    logical_time INTEGER NOT NULL,
    params       TEXT NOT NULL,
    PRIMARY KEY (target, logical_time)
);
PRAGMA user_version = 1;
INSERT INTO supervisor VALUES ('old', {pid}, '{host}', '[]', 0, {beat}, NULL);
INSERT INTO schedule (target, file, object, flow, supervisor_id, spec, state_path, paused_until, missed_until)
    VALUES ('/f.py:flow', '/f.py', 'flow', 'f', 'old', '{{}}', '/f.db', 0, 40),
           ('away: f in /f.db', '/e.py', 'flow', 'f', '', '{{}}', '/f.db', 253402300799000000, 30),
           ('/broken.py', '/broken.py', NULL, 'broken', 'old', '', NULL, 0, 0);
INSERT INTO missed VALUES ('/f.py:flow', 10, 11), ('/f.py:flow', 20, 21);
UPDATE schedule SET start_error = 'SyntaxError' WHERE flow = 'broken';
INSERT INTO request VALUES ('/f.py:flow', 5000000, '{{"day": "monday"}}');
"""


@pytest.fixture
def version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    os.makedirs(os.path.dirname(supervisor_path()))
    return supervisor_path()


def write_version_1(path: str, beat: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_1.format(pid=os.getpid(), host=os.uname().nodename, beat=beat))


def test_a_file_of_an_earlier_version_is_converted_without_loss(version_1: str):
    write_version_1(version_1, 0)
    with pytest.raises(StateFileError, match="start redrive serve again"):
        read_schedules()
    for _ in range(2):
        SupervisorFile(version_1, "new").close()
    broken, row = read_schedules().schedules
    assert (row.target, row.paused_until, row.missed_times) == ("/f.py:flow", FOREVER, 2)
    assert [one.first for one in row.missed] == [10, 20]
    assert [(one.flow, one.params, one.asked_at) for one in row.requests] == [("f", {"day": "monday"}, 5_000_000)]
    assert (broken.flow, broken.state_path) == ("broken", None)


def test_a_file_that_an_earlier_version_still_serves_is_left_alone(version_1: str):
    write_version_1(version_1, time.time_ns() // 1000)
    with pytest.raises(StateFileError, match=f"pid {os.getpid()}.*stop it first"):
        SupervisorFile(version_1, "new")
    with contextlib.closing(sqlite3.connect(version_1)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM missed").fetchone() == (2,)


def test_a_folder_whose_name_is_not_utf_8_has_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = os.path.join(os.fsencode(tmp_path), b"\xff")
    monkeypatch.setenv("XDG_STATE_HOME", os.fsdecode(home))
    os.makedirs(os.path.join(home, b"redrive"))
    with contextlib.closing(SupervisorFile(supervisor_path(), "one")) as opened:
        opened.claim("/f.py:flow", "f", "/f.db")
    assert read_schedules().schedules == () and [row.flow for row in read_known()] == ["f"]


def test_a_file_that_is_cut_short_is_damaged_at_its_first_check_and_at_each_later_one(file: SupervisorFile):
    """The step of a flow may check first, and only reports the error: the supervisor ends by its own check."""
    assert file.explain_loss() == ""
    with contextlib.closing(SupervisorFile(file.path, "two")) as opened:
        os.truncate(file.path, 100)
        for _ in range(2):
            with pytest.raises(CorruptFileError, match="was cut short"):
                opened.explain_loss()


def test_a_supervisor_whose_disk_is_full_does_not_hang(file: SupervisorFile, monkeypatch: pytest.MonkeyPatch):
    path = supervisor_path() + ".f.db"
    stored = file.claim("f.py:flow", "f", path)
    held = lock.acquire(path + SERVICE, "two")
    try:
        file.save(stored._replace(supervisor_id="one", spec="{}"))
        assert only_row().hang == f"(pid {os.getpid()}) hangs: kill -9 {os.getpid()}, and start it again"
        monkeypatch.setattr(supervisor_file, "is_full", lambda path: True)
        assert only_row().hang.startswith(f"(pid {os.getpid()}) cannot write {supervisor_path()}, whose disk is full")
    finally:
        held.release()


def test_a_request_of_another_writer_is_no_request(file: SupervisorFile):
    request = write_request("f", "/f.db", None, {"n": "1"}, "ana@here", 7)
    folder = Path(supervisor_path()).parent / "starts"
    assert read_requests() == [request]
    good = (folder / f"{request.name}.start").read_text()
    (folder / "other.start").write_text(good)  # its name is another one
    (folder / "broken.start").write_text("{")
    (folder / "loose.start").write_text(good.replace(request.name, "loose"))
    (folder / "loose.start").chmod(0o666)
    (folder / "link.start").symlink_to(folder / f"{request.name}.start")
    assert read_requests() == [request]


def test_a_flow_that_a_supervisor_reads_first_under_its_new_name_keeps_what_the_other_one_knows(file: SupervisorFile):
    """One of the same folders; one of others leaves the schedule, and those that live, as they are."""
    stored = file.claim("/a.py:flow", "f", "/f.db")
    save(file, stored, [])
    pause([stored.id], FOREVER, "holiday", "ana@here")
    for sources, is_own in (('["/b"]', False), ("[]", True)):
        with contextlib.closing(SupervisorFile(file.path, sources)) as other:
            other.register(os.getpid(), "here", sources, 1)
            renamed = other.claim("/a.py:flow", "g", f"/g{is_own}.db")
            assert (renamed.id == stored.id) == is_own and (renamed.pause_reason == "holiday") == is_own
    save(file, stored, [run(HOUR)])  # the first one has not read the file yet
    assert [row.flow for row in read_schedules().schedules if row.id == stored.id] == ["g"]
    assert read_ledger(stored.id) == []
    with contextlib.closing(sqlite3.connect(file.path)) as connection:
        assert connection.execute("SELECT count(*) FROM supervisor").fetchone() == (3,)
