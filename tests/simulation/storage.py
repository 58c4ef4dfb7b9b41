"""Where the state of a night is: in one database in memory, which all nights of a process share, or in a file.

In memory the tables are made once, each statement is compiled once, and no page passes through a log, which is most of
what SQL costs a short night. What belongs to files (the log, its sync, torn writes) is tried by ``tests/power_cuts``.
A seed gives the same night in both: a test compares them.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from unittest import mock

from redrive.engine.statefile.changes.open_writing import CACHED_STATEMENTS
from redrive.engine.store import database, log_sync, pages, writer


class FileStorage:
    """A state file at ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open_log = log_sync._open_log
        self._logs: list[int] = []

    def patches(self) -> list[AbstractContextManager[object]]:
        """Return what puts the storage into the engine."""
        return [mock.patch.object(log_sync, "_open_log", self._open_watched_log)]

    def connect(self) -> sqlite3.Connection:
        """Return a connection for use between two executors."""
        return sqlite3.connect(self._path)

    def close_logs(self) -> None:
        """Close the descriptor by which an executor that died synced the log."""
        for descriptor in self._logs:
            with suppress(OSError):  # the executor has closed it
                if os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._path):
                    os.close(descriptor)
        self._logs.clear()

    def _open_watched_log(self, connection: sqlite3.Connection) -> int | None:
        descriptor = self._open_log(connection)
        if descriptor is not None:
            self._logs.append(descriptor)
        return descriptor


class MemoryStorage(FileStorage):
    """The database in memory, emptied. The file at ``path`` only shows that a state exists; syncs go to it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._open_log = lambda connection: os.open(path, os.O_RDONLY)
        self._is_empty = True
        self._connection = _database_in_memory()
        self._empty()

    def patches(self) -> list[AbstractContextManager[object]]:
        patches = [mock.patch.object(module, "path_of", self._path_of) for module in (log_sync, pages, writer)]
        return [
            *super().patches(),
            *patches,
            mock.patch.object(database, "open_for_writing", self._open_for_writing),
            mock.patch.object(database, "reading", self._reading),
        ]

    def connect(self) -> sqlite3.Connection:
        return self._connection

    def _open_for_writing(self, path: str, durability: str = "normal") -> sqlite3.Connection:
        if self._is_empty:
            self._is_empty = False
            self._connection.execute("INSERT INTO meta (key, value) VALUES ('uuid', ?)", (uuid.uuid4().hex,))
            with open(path, "wb") as file:
                file.write(b"a state")
        return self._connection

    @contextmanager
    def _reading(self, path: str) -> Iterator[sqlite3.Connection]:
        with database.translated_errors(path):
            yield self._connection

    def _path_of(self, connection: sqlite3.Connection) -> str:
        return self._path

    def _empty(self) -> None:
        for table in _tables():
            self._connection.execute(f"DELETE FROM {table}")


class _SharedConnection(sqlite3.Connection):
    """A connection that whoever closes it leaves to the next one."""

    def close(self) -> None:
        if self.in_transaction:
            self.rollback()


@cache
def _database_in_memory() -> sqlite3.Connection:
    connection = sqlite3.connect(
        ":memory:", isolation_level=None, cached_statements=CACHED_STATEMENTS, factory=_SharedConnection
    )
    database._create_tables(connection)
    return connection


@cache
def _tables() -> tuple[str, ...]:
    rows = _database_in_memory().execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return tuple(name for (name,) in rows)
