"""Results over INLINE_BYTES_MAX: compressed in a table of their own, so that runs and events stay small.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

The row of the task, its event and the memory of the executor and of each console hold a marker in place of such a
result: its size and its digest. ``load`` reads the result itself, for an attempt that gets it and for the list of a
map task. The table is made with the first large result: files of before have none.
"""

import json
import sqlite3
import zlib
from typing import Optional

from ..domain.text import sha256_hex

INLINE_BYTES_MAX = 64 * 1024
KEPT = 3  # of a task: an undo, and a requeue of rows, may need the ones before
_MARKER = "redrive:large"
_START = f'{{"{_MARKER}"'
_LEVEL = 1  # zlib: a tenth of a second for 16 MiB

_CREATE = (
    "CREATE TABLE IF NOT EXISTS large_result"
    " (id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL, data BLOB NOT NULL)"
)
_INDEX = "CREATE INDEX IF NOT EXISTS idx_large_result ON large_result(run_id, name, digest)"
_EXISTS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'large_result'"
_OLD = (
    "DELETE FROM large_result WHERE run_id = ? AND name = ? AND id NOT IN"
    f" (SELECT id FROM large_result WHERE run_id = ? AND name = ? ORDER BY id DESC LIMIT {KEPT})"
)


def is_large(stored: Optional[str]) -> bool:
    """Return whether a stored result is a marker."""
    return stored is not None and stored.startswith(_START)


def store(connection: sqlite3.Connection, run_id: str, name: str, text: str) -> str:
    """Store the JSON of a result, and return what the row of the task has: the text itself, or a marker."""
    if len(text) <= INLINE_BYTES_MAX // 4:  # no character has more than four bytes
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= INLINE_BYTES_MAX:
        return text
    digest = sha256_hex(data)[:24]
    connection.execute(_CREATE)
    connection.execute(_INDEX)
    sql = "INSERT INTO large_result (run_id, name, digest, data) VALUES (?,?,?,?)"
    connection.execute(sql, (run_id, name, digest, zlib.compress(data, _LEVEL)))
    connection.execute(_OLD, (run_id, name, run_id, name))
    return json.dumps({_MARKER: {"bytes": len(data), "digest": digest}}, separators=(",", ":"))


def exist(connection: sqlite3.Connection) -> bool:
    """Return whether the file has ever held a large result."""
    return connection.execute(_EXISTS).fetchone() is not None


def load(connection: sqlite3.Connection, run_id: str, name: str, stored: Optional[str]) -> Optional[str]:
    """Return the JSON of a result. ``stored``: what the row of the task has. None: there is none, or it is gone."""
    if stored is None or not is_large(stored):
        return stored
    if not exist(connection):
        return None
    sql = "SELECT data FROM large_result WHERE run_id = ? AND name = ? AND digest = ? ORDER BY id DESC LIMIT 1"
    row = connection.execute(sql, (run_id, name, _digest(stored))).fetchone()
    return None if row is None else zlib.decompress(row[0]).decode("utf-8", "surrogatepass")


def delete(connection: sqlite3.Connection, run_id: str) -> None:
    """Delete the large results of a run."""
    if exist(connection):
        connection.execute("DELETE FROM large_result WHERE run_id = ?", (run_id,))


def _digest(stored: str) -> str:
    return str(json.loads(stored)[_MARKER]["digest"])
