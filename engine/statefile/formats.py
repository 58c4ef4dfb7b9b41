"""The formats of a state file: what each one has that the format before it lacks.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``store/schema.sql`` makes a new file in the latest format. Who writes to an older file adds what it lacks
(``open_writing.upgrade``). Who only reads an older file leaves it as it is and shows the missing
columns with their defaults (``show_as_latest``), so that each query is written for the latest format alone.
"""

import re
import sqlite3
from typing import Any, Dict, NamedTuple, Sequence, Set


class Column(NamedTuple):
    """A column. ``declaration``: as in ``schema.sql``, without a CHECK; NOT NULL needs a DEFAULT."""

    table: str
    name: str
    declaration: str

    def default(self) -> str:
        """What rows have that were written before the column, in SQL."""
        return self.declaration.partition(" DEFAULT ")[2] or "NULL"


class Format(NamedTuple):
    """What a format adds to the one before. ``tables``, ``indexes``: their CREATE statements, as in ``schema.sql``."""

    columns: Sequence[Column] = ()
    tables: Sequence[str] = ()
    indexes: Sequence[str] = ()


# A new column, table or index: write it into ``store/schema.sql``, and the same here, in the latest format (a table
# also into ``opening.TABLES``). SQLite adds a column at the end, so no SQL may go by its place. The test
# ``tests/engine/statefile/test_migrations.py`` compares a new file with each earlier one that was upgraded. A format is
# closed as soon as anybody may have files of it (``tests/support/formats.py``): the next change begins a new number.

#: Format -> what it adds. Two kinds of files say 1: one of them has some of these columns already.
FORMATS: Dict[int, Format] = {
    2: Format(
        columns=(
            Column("run", "deadline_passed_at", "INTEGER"),
            Column("run", "deadline_is_time", "INTEGER NOT NULL DEFAULT 0"),
            Column("run", "abandoned_at", "INTEGER"),
            Column("run", "acknowledged_at", "INTEGER"),
            Column("run", "acknowledged_by", "TEXT"),
            Column("run", "waited_us", "INTEGER NOT NULL DEFAULT 0"),
            Column("task", "notice", "TEXT"),
            Column("executor", "state_path", "TEXT"),
            Column("task", "element", "TEXT"),
            Column("task", "aside", "TEXT"),
            Column("task", "element_keys", "TEXT"),
            Column("edge", "rule", "TEXT"),
            Column("breaker", "opened_at", "INTEGER"),
            Column("page", "told_by", "TEXT"),
        ),
        indexes=(
            "CREATE INDEX idx_run_attention ON run(started_at) WHERE acknowledged_at IS NULL"
            " AND (ended_at IS NULL OR state IN ('FAILED','PARTIAL') OR ended_at > deadline_at)",
            "CREATE INDEX idx_run_flow ON run(dag_name, started_at, state)",
            "CREATE INDEX idx_task_notice ON task(run_id) WHERE stale = 1 AND notice IS NOT NULL",
            "CREATE INDEX idx_task_failure ON task(run_id, failure_fingerprint, state, dead_letter_kind)"
            " WHERE failure_fingerprint IS NOT NULL",
            "CREATE INDEX idx_quarantine_held ON quarantine(run_id) WHERE state = 'held'",
            "CREATE INDEX idx_page_task_open ON page_task(task) WHERE done = 0",
        ),
    )
}
SCHEMA_VERSION = max(FORMATS)
_CREATED = re.compile(r"CREATE (TABLE|INDEX) (\w+)")


def tables_since(version: int) -> Set[str]:
    """The tables that formats after ``version`` have added."""
    return {created_name(sql) for later in later_formats(version) for sql in later.tables}


class OlderFile(sqlite3.Connection):
    """A read-only connection to a file that lacks indexes, and whose tables are views: SQL may name no index."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return super(OlderFile, self).execute(re.sub(r" INDEXED BY \w+", "", sql), *values)


def show_as_latest(connection: sqlite3.Connection, version: int) -> None:
    """Cover the tables of an older file with temporary views that have the missing columns.

    Temporary names come first, and are made on a read-only connection, too. A writer that upgrades the file meanwhile
    adds the columns to ``*``, which comes before the defaults here.
    """
    connection.execute("PRAGMA temp_store=MEMORY")
    missing: Dict[str, str] = {}
    for later in later_formats(version):
        for sql in later.tables:
            connection.execute(sql.replace("CREATE TABLE", "CREATE TEMP TABLE", 1))
        for column in later.columns:
            if column.name not in column_names(connection, column.table):
                shown = missing.get(column.table, "")
                missing[column.table] = "{}, {} AS {}".format(shown, column.default(), column.name)
    for table, columns in missing.items():
        rowid = ", rowid AS rowid" if table in ("run", "executor") else ""  # a view has none of its own
        connection.execute("CREATE TEMP VIEW {0} AS SELECT *{1}{2} FROM main.{0}".format(table, columns, rowid))


def later_formats(version: int) -> Sequence[Format]:
    return [FORMATS[number] for number in sorted(FORMATS) if number > version]


def created_name(sql: str) -> str:
    found = _CREATED.match(sql)
    assert found is not None
    return found.group(2)


def column_names(connection: sqlite3.Connection, table: str) -> Set[str]:
    return {row[1] for row in connection.execute("PRAGMA main.table_info({})".format(table))}
