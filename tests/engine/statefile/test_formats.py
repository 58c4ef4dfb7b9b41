"""The format of a state file: a change of its tables has a new number, and a file of another number is refused."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from redrive.engine.statefile.opening import SCHEMA_VERSION
from redrive.engine.store import database
from support.commands import run_redrive

FORMATS = Path(__file__).parent / "formats"


def tables(connection: sqlite3.Connection) -> Mapping[tuple[str, str], object]:
    """Each column, index and view of a file."""
    found: dict[tuple[str, str], object] = {}
    for name, kind, sql in connection.execute("SELECT name, type, sql FROM sqlite_master WHERE sql NOT NULL"):
        if kind == "table":
            found |= {(name, row[1]): row[2:] for row in connection.execute(f"PRAGMA table_info({name})")}
        else:
            found[kind, name] = " ".join(re.sub(r"--.*", "", sql).split())
    return found


def test_a_format_has_the_tables_of_its_first_file(tmp_path: Path) -> None:
    """People have files of this number: another table or column needs the next one, and its dump beside this one."""
    with closing(sqlite3.connect(":memory:")) as first, closing(database.open_for_writing(tmp_path / "a.db")) as new:
        first.executescript((FORMATS / f"{SCHEMA_VERSION}.sql").read_text())
        assert tables(new) == tables(first)


def test_a_file_of_an_earlier_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(database.open_for_writing(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION - 1}")
    before = path.read_bytes()
    formats = f"(format {SCHEMA_VERSION - 1}, this one knows {SCHEMA_VERSION})"
    sentence = f"redrive: {path} was written by an earlier version of redrive {formats}; name another one\n"
    for words in (("tasks",), ("resume", "--plain"), ("requeue", "a", "--reason", "x")):
        done = run_redrive(*words, env={"REDRIVE_STATE": str(path)})
        assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)
    assert sentence.partition(": ")[2] in run_redrive("doctor", path).stdout
    assert path.read_bytes() == before
