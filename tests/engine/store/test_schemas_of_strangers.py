"""SQL that a stranger put into a state file never runs: views and triggers in the place of tables are refused."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from redrive.engine.errors import CorruptFileError, StorageError
from redrive.engine.statefile.open_writing import open_existing
from redrive.engine.statefile.opening import TABLES, VALUE_BYTES_MAX, open_readonly
from redrive.engine.store import database
from support.commands import run_redrive, with_file
from support.state_file import StateFileBuilder

ENDLESS_VIEW = """
ALTER TABLE task RENAME TO real_task;
CREATE VIEW task AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT t.* FROM real_task t, r;
"""
TRIGGER = "CREATE TRIGGER x AFTER UPDATE ON task BEGIN DELETE FROM event; END;"
VIRTUAL = "DROP TABLE log; CREATE VIRTUAL TABLE log USING fts5(text);"


@pytest.fixture
def path(tmp_path: Path) -> str:
    builder = StateFileBuilder(tmp_path / "x.db", tasks=2)
    builder.close()
    return str(builder.path)


def change(path: str, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)


def test_the_tables_are_those_of_the_schema() -> None:
    schema = Path(database.__file__).with_name("schema.sql").read_text()
    assert set(re.findall(r"^CREATE TABLE (\w+)", schema, re.MULTILINE)) == TABLES


@pytest.mark.parametrize("sql", [ENDLESS_VIEW, TRIGGER, VIRTUAL], ids=["view", "trigger", "virtual"])
def test_a_schema_that_runs_sql_is_refused_by_every_way_to_open(path: str, sql: str) -> None:
    change(path, sql)
    before = Path(path).read_bytes()
    for open_file in (open_readonly, database.open_for_writing, open_existing):
        with pytest.raises(CorruptFileError, match=r"its tables are missing|has triggers"):
            open_file(path)
    assert Path(path).read_bytes() == before


def test_a_command_ends_at_once_with_a_sentence(path: str) -> None:
    change(path, ENDLESS_VIEW)
    for words in (("tasks",), ("events",), ("pause", "--reason", "x")):
        done = run_redrive(*with_file(words, path))
        assert done.returncode == 2, words
        (sentence,) = done.stderr.splitlines()
        assert "its tables are missing" in sentence


def test_a_view_of_the_operator_does_no_harm(path: str) -> None:
    change(path, "CREATE VIEW my_failures AS SELECT name FROM task WHERE state = 'FAILED'")
    with database.reading(path) as connection:
        assert connection.execute("SELECT count(*) FROM task").fetchone() == (2,)


def test_a_value_beyond_every_limit_of_ours_is_a_sentence(path: str) -> None:
    change(path, f"UPDATE run SET dag_name = hex(zeroblob({VALUE_BYTES_MAX // 2 + 1}))")
    with pytest.raises(CorruptFileError, match="larger than redrive writes"), database.reading(path) as connection:
        connection.execute("SELECT dag_name FROM run").fetchall()


def test_a_query_without_end_is_interrupted(path: str) -> None:
    endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT max(x) FROM r"
    with pytest.raises(StorageError, match="too long"), database.reading(path, seconds_max=0.2) as connection:
        connection.execute(endless).fetchall()
