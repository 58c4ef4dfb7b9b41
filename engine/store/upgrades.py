"""What versions of the schema after the first have added, and how a file made by an earlier one gets it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Only columns came, each with a default that says what there was before, tables that are empty at first, and indexes. So
a file is brought up to date in place by whoever may write it, and one that is only looked at is read as if it had them
(``runs.py``, ``lists.py``). An index changes nothing that an earlier version would have to know: it comes without a new
version of the schema.
"""

import sqlite3

from .header import SCHEMA_VERSION

#: Table, column, declaration; in the order in which they came.
ADDED_COLUMNS = (
    ("task", "cancel_requested_at", "INTEGER"),
    ("task", "expires_at", "INTEGER"),
    ("task", "overrides", "TEXT"),
    ("task", "key_generation", "INTEGER NOT NULL DEFAULT 0"),
    ("task", "canary", "TEXT"),
    ("attempt", "params_hash", "TEXT"),
    ("run", "logical_time", "INTEGER"),
    ("attempt", "image_hash", "TEXT"),
    ("task", "shortened_us", "INTEGER"),
    ("attempt", "shortened_us", "INTEGER"),
)

#: As ``schema.sql`` explains them.
ADDED_TABLES = (
    "schedule (dag_name TEXT PRIMARY KEY, expression TEXT NOT NULL, timezone TEXT NOT NULL,"
    " misfire TEXT NOT NULL, flow_path TEXT, since INTEGER NOT NULL, decided_until INTEGER NOT NULL, next_at INTEGER,"
    " next_local TEXT) WITHOUT ROWID",
    "slot (dag_name TEXT NOT NULL, logical_time INTEGER NOT NULL,"
    " state TEXT NOT NULL CHECK (state IN ('run', 'missed')), run_id TEXT, decided_at INTEGER NOT NULL,"
    " PRIMARY KEY (dag_name, logical_time)) WITHOUT ROWID",
    "sla (dag_name TEXT NOT NULL, logical_time INTEGER NOT NULL,"
    " promise TEXT NOT NULL CHECK (promise IN ('start', 'end')), promised_at INTEGER NOT NULL, run_id TEXT,"
    " at INTEGER NOT NULL, PRIMARY KEY (dag_name, logical_time, promise)) WITHOUT ROWID",
)

#: As in ``schema.sql``.
ADDED_INDEXES = (
    "idx_attempt_cause ON attempt(fingerprint_loose, run_id) WHERE fingerprint_loose IS NOT NULL",
    "idx_event_decision ON event(run_id, seq)"
    " WHERE kind = 'task' AND old IN ('DEAD_LETTER', 'FAILED') AND command_id IS NOT NULL",
    "idx_run_late ON run(dag_name) WHERE ended_at IS NULL OR ended_at > deadline_at",
    "idx_event_note ON event(run_id, seq) WHERE kind = 'note'",
)


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Bring a file of an earlier ``version`` up to date, in the transaction of the caller."""
    for index in ADDED_INDEXES:
        connection.execute("CREATE INDEX IF NOT EXISTS " + index)
    if version == SCHEMA_VERSION:
        return
    add_columns(connection)
    for table in ADDED_TABLES:
        connection.execute("CREATE TABLE IF NOT EXISTS " + table)
    connection.execute("PRAGMA user_version = {}".format(SCHEMA_VERSION))
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION),))


def add_columns(connection: sqlite3.Connection) -> None:
    """Add what is missing to those of the tables that are there."""
    for table, column, declaration in ADDED_COLUMNS:
        names = [row[1] for row in connection.execute("PRAGMA table_info({})".format(table))]
        if names and column not in names:
            connection.execute("ALTER TABLE {} ADD COLUMN {} {}".format(table, column, declaration))
