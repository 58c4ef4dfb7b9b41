"""Upgrades of the state file: each missing step runs once, in order, all in one transaction, and never backwards."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from redrive.engine.agent import command_client
from redrive.engine.domain.acts import Command
from redrive.engine.errors import NewerFileError, StateFileError
from redrive.engine.statefile import open_writing, opening
from redrive.engine.statefile.opening import SCHEMA_VERSION
from redrive.engine.store import database

LATER = SCHEMA_VERSION + 2
COMMAND = Command("1", "pause", "r", actor="a", reason="b")


def add_column(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE task ADD COLUMN colour TEXT")


def fill_column(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE task SET colour = 'red'")


def fail(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE task SET colour = 'red'")
    raise sqlite3.OperationalError("disk I/O error")


def teach(monkeypatch: pytest.MonkeyPatch, *steps: open_writing.Step) -> None:
    """Let the code know formats that come after the latest."""
    monkeypatch.setattr(open_writing, "STEPS", {SCHEMA_VERSION + 1 + place: step for place, step in enumerate(steps)})
    for module in (opening, open_writing):
        monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + len(steps))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of the latest format with one task."""
    connection = database.open_for_writing(tmp_path / "state.db")
    connection.execute("INSERT INTO run (run_id, dag_name, started_at, state) VALUES ('r', 'f', 1, 'RUNNING')")
    connection.execute("INSERT INTO task (run_id, name, state) VALUES ('r', 'a', 'PENDING')")
    connection.close()
    return tmp_path / "state.db"


def facts(path: Path) -> tuple[int, str, list[str]]:
    """The format by the header and by the table ``meta``, and the columns of ``task``."""
    connection = sqlite3.connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (messages,) = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    columns = [row[1] for row in connection.execute("PRAGMA table_info(task)")]
    connection.close()
    return version, messages, columns


def test_each_format_after_the_first_has_its_step() -> None:
    assert sorted(open_writing.STEPS) == list(range(2, SCHEMA_VERSION + 1))


def test_a_new_file_has_the_latest_format_and_needs_no_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_writing, "STEPS", {})
    database.open_for_writing(path).close()
    assert facts(path)[:2] == (SCHEMA_VERSION, str(SCHEMA_VERSION))


def test_the_writer_runs_the_missing_steps_in_order_and_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teach(monkeypatch, add_column, fill_column)
    database.open_for_writing(path).close()
    connection = database.open_for_writing(path)
    assert connection.execute("SELECT name, colour FROM task").fetchall() == [("a", "red")]
    assert database.integrity_check(connection) == []
    connection.close()
    assert facts(path)[:2] == (LATER, str(LATER))


def test_an_act_under_the_lock_upgrades_the_file_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teach(monkeypatch, add_column)
    assert command_client.send_blocking(str(path), COMMAND).ok
    assert facts(path)[0] == SCHEMA_VERSION + 1 and "colour" in facts(path)[2]


def test_a_step_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = facts(path)
    teach(monkeypatch, add_column, fail)
    with pytest.raises(StateFileError, match="disk I/O error"):
        database.open_for_writing(path)
    assert facts(path) == before


def test_a_file_of_a_later_format_is_refused_in_one_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        teach(later, add_column)
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
