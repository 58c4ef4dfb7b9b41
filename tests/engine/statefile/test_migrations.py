"""Formats of the state file: each earlier one is read as it is, and upgraded by whoever writes; a later one is refused.

What this holds: after a change of ``schema.sql``, a file of every earlier format that was upgraded has the tables of a
new one. A format is closed when people may have files of it: its dump goes into ``formats/`` and into ``CLOSED``.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from redrive.engine.agent import command_client
from redrive.engine.domain.acts import Command
from redrive.engine.errors import NewerFileError, StateFileError
from redrive.engine.statefile import formats, lists, open_writing, opening
from redrive.engine.statefile.formats import FORMATS, SCHEMA_VERSION, Column, Format
from redrive.engine.statefile.opening import open_readonly
from redrive.engine.store import database
from support.commands import run_redrive
from support.formats import CLOSED, older_file

COMMAND = Command("1", "pause", "night-1", actor="a", reason="b")
COLOUR = Format(
    columns=(Column("task", "colour", "TEXT"), Column("task", "size", "INTEGER NOT NULL DEFAULT 7")),
    tables=("CREATE TABLE shelf (name TEXT PRIMARY KEY)",),
    indexes=("CREATE INDEX idx_task_colour ON task(colour)",),
)
LEFT_OVER = {("task", "owner_note")}  # no later format has it; SQLite of old servers drops no column


def add_format(monkeypatch: pytest.MonkeyPatch, added: Format = COLOUR) -> None:
    """Let the code know a format that comes after the latest."""
    monkeypatch.setattr(formats, "FORMATS", {**FORMATS, SCHEMA_VERSION + 1: added})
    for module in (opening, open_writing):
        monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the latest format with one task."""
    connection = database.open_for_writing(tmp_path / "state.db")
    connection.execute("INSERT INTO run (run_id, dag_name, started_at, state) VALUES ('night-1', 'f', 1, 'RUNNING')")
    connection.execute("INSERT INTO task (run_id, name, state) VALUES ('night-1', 'a', 'PENDING')")
    connection.close()
    return tmp_path / "state.db"


@pytest.fixture(params=CLOSED)
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of each earlier format."""
    return older_file(request.param, tmp_path / "shop.db")


def facts(path: Path) -> tuple[int, str, list[str]]:
    """The format by the header and by the table ``meta``, and the columns of ``task``."""
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (messages,) = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        return version, messages, [row[1] for row in connection.execute("PRAGMA table_info(task)")]


def tables(path: Path) -> Mapping[tuple[str, str], object]:
    """Each column, index and view of a file."""
    found: dict[tuple[str, str], object] = {}
    with closing(sqlite3.connect(path)) as connection:
        for name, kind, sql in connection.execute("SELECT name, type, sql FROM sqlite_master WHERE sql NOT NULL"):
            if kind == "table":
                rows = connection.execute(f"PRAGMA table_info({name})").fetchall()
                found |= {(name, row[1]): row[2:] for row in rows if (name, row[1]) not in LEFT_OVER}
            else:
                found[kind, name] = " ".join(re.sub(r"--.*", "", sql).split())
    return found


def test_each_earlier_format_is_closed_by_a_file() -> None:
    assert set(range(1, SCHEMA_VERSION)) <= set(CLOSED.values()) and sorted(FORMATS) == list(
        range(2, SCHEMA_VERSION + 1)
    )


def test_an_upgraded_file_has_the_tables_of_a_new_one(older: Path, path: Path) -> None:
    """Also a file of the latest format, once that is closed: it is not changed, so a new table needs a new number."""
    database.open_for_writing(older).close()
    assert tables(older) == tables(path)
    assert facts(older)[:2] == facts(path)[:2] == (SCHEMA_VERSION, str(SCHEMA_VERSION))
    with closing(sqlite3.connect(older)) as connection:
        assert database.integrity_check(connection) == []


READINGS = (
    ("tasks", 0, "load     DEAD_LETTER  2/2"),
    ("runs", 0, "night-1  shop  BLOCKED"),
    ("inbox", 3, "DEAD_LETTER load 2/2 poison: 'price'"),
    ("events", 0, "load RUNNING attempt=2"),
    ("runs --tasks", 0, "the whole run"),
    ("report", 0, "KeyError"),
    ("doctor", 0, "ok      integrity"),
    ("why load", 0, "needs a decision"),
    ("logs load", 0, "loading 3"),
    ("requeue load --dry-run --reason x", 0, "would run again (1): load"),
)


@pytest.mark.parametrize(("words", "code", "shown"), READINGS, ids=[words for words, _, _ in READINGS])
def test_a_reading_shows_an_older_file_and_leaves_it_as_it_is(older: Path, words: str, code: int, shown: str) -> None:
    before = older.read_bytes()
    command, *rest = words.split()
    done = run_redrive(command, *rest, "--state", older)
    assert done.returncode == code and shown in done.stdout and "no such" not in done.stderr
    assert older.read_bytes() == before and sorted(path.name for path in older.parent.iterdir()) == ["shop.db"]


def test_the_machine_lists_an_older_file(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_STATE", str(older))
    for command, shown in (("fleet", "BLOCKED"), ("inbox", "DEAD_LETTER load"), ("metrics", "redrive_needs_human 2")):
        assert shown in run_redrive(command).stdout


def test_doctor_names_the_format(tmp_path: Path, path: Path) -> None:
    assert "note    format      format 1 of" in run_redrive("doctor", older_file("1", tmp_path / "shop.db")).stdout
    assert f"ok      format      {SCHEMA_VERSION}" in run_redrive("doctor", path).stdout


def test_an_act_upgrades_the_file_first(older: Path) -> None:
    assert command_client.send_blocking(str(older), COMMAND).ok
    assert facts(older)[0] == SCHEMA_VERSION
    done = run_redrive("skip", "load", "publish", "--state", older, "--reason", "fixed by hand")
    assert done.returncode == 0, done.stderr


def test_a_reader_shows_what_an_upgrade_adds_under_it(older: Path) -> None:
    """A console stays open while the first executor of the new version starts."""
    with closing(database.open_for_writing(older)) as writer:  # its -shm makes the reader a live one
        writer.execute("PRAGMA user_version = 1")
        with closing(open_readonly(str(older)).connection) as reader:
            writer.execute("UPDATE run SET acknowledged_at = 5")
            assert [line.run.acknowledged_at for line in lists.runs(reader)] == [5]


def test_a_new_file_has_the_latest_format(path: Path) -> None:
    database.open_for_writing(path).close()
    assert facts(path)[:2] == (SCHEMA_VERSION, str(SCHEMA_VERSION))


def test_a_reader_shows_what_a_file_lacks_with_its_defaults(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_format(monkeypatch)
    with closing(open_readonly(str(path)).connection) as connection:
        assert connection.execute("SELECT name, colour, size FROM task").fetchall() == [("a", None, 7)]
        assert connection.execute("SELECT * FROM shelf").fetchall() == []
        assert connection.execute("SELECT size FROM task INDEXED BY idx_task_colour").fetchall() == [(7,)]
    assert "colour" not in facts(path)[2]


def test_a_writer_adds_what_a_file_lacks_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_format(monkeypatch)
    database.open_for_writing(path).close()
    with closing(database.open_for_writing(path)) as connection:
        assert connection.execute("SELECT name, colour, size FROM task").fetchall() == [("a", None, 7)]
        assert connection.execute("SELECT * FROM shelf").fetchall() == []
    assert facts(path)[:2] == (SCHEMA_VERSION + 1, str(SCHEMA_VERSION + 1))


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts(path)
    add_format(monkeypatch, COLOUR._replace(indexes=("CREATE INDEX idx_none ON missing(x)",)))
    with pytest.raises(StateFileError, match="no such table"):
        database.open_for_writing(path)
    assert facts(path) == before


def test_a_file_of_a_later_format_is_refused_in_one_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        add_format(later)
        database.open_for_writing(path).close()
    before = facts(path)
    sentence = f"format {SCHEMA_VERSION + 1}, this one knows {SCHEMA_VERSION}.; upgrade redrive"
    with pytest.raises(NewerFileError, match=sentence):
        database.open_for_writing(path)
    with pytest.raises(NewerFileError, match=sentence):
        database.open_for_reading(path)
    with pytest.raises(NewerFileError, match=sentence):
        command_client.send_blocking(str(path), COMMAND)
    assert facts(path) == before
