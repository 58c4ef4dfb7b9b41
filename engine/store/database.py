"""Opens the state file: to write it, or to look at it without leaving a trace.

The only place that knows pragmas, modes of opening and versions of the schema. Measurements behind each choice:
connections are opened once and kept; FULL is the default because group commit pays for it; readers never checkpoint.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import resources
from typing import Literal

from ..errors import CorruptFileError, StateFileError, StorageError
from ..statefile.changes.migrations import set_version, upgrade
from ..statefile.changes.open_writing import connect, demand_known_version, demand_ours, transaction
from ..statefile.file_systems import network_trouble
from ..statefile.header import APPLICATION_ID, Header, has_content, inspect
from ..statefile.open_readonly import file_uri, look

Durability = Literal["full", "normal"]

MINIMUM_SQLITE = (3, 24, 0)  # the oldest that reads and writes all of our SQL
CHECKED_BYTES = 32 * 1024 * 1024  # files up to this size are checked whole before they are written

_SYNCHRONOUS = {"full": "FULL", "normal": "NORMAL"}


def open_for_writing(path: str | os.PathLike[str], durability: Durability = "full") -> sqlite3.Connection:
    """Open the state file as its one writer; make it (mode 0600) where there is none, and bring it up to date.

    "full": a commit is on the disk when it returns. "normal": a power cut may take the latest commits along, in no
    bound of time; a crash of the process takes none. The caller holds the lock of the file.

    Raises StateFileError or one of its kinds, with the file unchanged.
    """
    path = os.fspath(path)
    _demand_sqlite()
    trouble = network_trouble(path)
    if trouble:
        raise StateFileError(trouble)
    header = _inspect_for_writing(path)
    made = header is None and _make_empty(path)
    try:
        connection = connect(path)
        try:
            _bring_up_to_date(connection, path)
            _set_modes(connection, path, durability)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        if made:
            _remove_made(path)
        raise translate(error, path) from error
    return connection


def open_for_reading(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Open the state file to look at it: never writes, never checkpoints, creates nothing in its folder.

    A file that nobody has open may be seen as of this moment only; ``tail.follow`` looks again as soon as a writer
    appears. Never while this process writes the file: the first look at its bytes would drop the writer's locks
    (https://sqlite.org/howtocorrupt.html, section 2.2).

    Raises StateFileError or one of its kinds.
    """
    _demand_sqlite()
    return look(os.fspath(path)).connection


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
    """Look at the state file, as ``open_for_reading`` does, and close it. Damage that only a look finds is told, too.

    Raises StateFileError or one of its kinds.
    """
    with explained(os.fspath(path)), closing(open_for_reading(path)) as connection:
        yield connection


@contextmanager
def explained(path: str) -> Iterator[None]:
    """What SQLite refuses in here is raised as an error of ours, with what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def integrity_check(connection: sqlite3.Connection, limit: int = 20) -> list[str]:
    """Return what is wrong with the file, in SQLite's words; empty when nothing is."""
    try:
        found = [str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({int(limit)})")]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [] if found == ["ok"] else found


def file_uuid(connection: sqlite3.Connection) -> str:
    """Return the identity of the file, made with it: a file replaced by another one has another."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'uuid'").fetchone()
    return str(row[0]) if row else ""


# --- What SQLite says, in words for a person -----------------------------------------------------------------------

#: Primary result codes (https://sqlite.org/rescode.html) -> the error, and its sentence.
_SENTENCES: dict[int, tuple[type[StateFileError], str]] = {
    sqlite3.SQLITE_FULL: (StorageError, "the disk that holds {path} is full; free some space"),
    sqlite3.SQLITE_IOERR: (StorageError, "the disk refused {path}: {error}; see the kernel log"),
    sqlite3.SQLITE_READONLY: (StorageError, "{path} or its folder is read-only for this user; make both writable"),
    sqlite3.SQLITE_PERM: (StorageError, "{path} may not be opened by this user"),
    sqlite3.SQLITE_CANTOPEN: (StorageError, "{path}, or the files beside it, cannot be opened by this user"),
    sqlite3.SQLITE_BUSY: (StorageError, "another program keeps {path} locked; close it"),
    sqlite3.SQLITE_LOCKED: (StorageError, "another program keeps {path} locked; close it"),
    sqlite3.SQLITE_CORRUPT: (CorruptFileError, "{path} is damaged ({error}); restore a copy"),
    sqlite3.SQLITE_NOTADB: (CorruptFileError, "{path} is damaged ({error}); restore a copy"),
}


def primary_code(error: BaseException) -> int:
    """Return SQLite's primary result code of an error, 0 for what is none."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def translate(error: sqlite3.Error, path: str) -> StateFileError:
    """Return the error of ours that says what SQLite meant and what to do."""
    kind, sentence = _SENTENCES.get(primary_code(error), (StateFileError, "{path} cannot be used: {error}"))
    return kind(sentence.format(path=path, error=error))


# --- Writing -------------------------------------------------------------------------------------------------------


def _demand_sqlite() -> None:
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        wanted = ".".join(str(part) for part in MINIMUM_SQLITE)
        raise StateFileError(f"this Python comes with SQLite {sqlite3.sqlite_version}; redrive needs {wanted} or later")


def _inspect_for_writing(path: str) -> Header | None:
    try:
        header = inspect(path)
    except FileNotFoundError:
        _demand_writable(os.path.dirname(os.path.abspath(path)))
        return None
    _demand_writable(path)
    _demand_writable(os.path.dirname(os.path.abspath(path)))
    if header is not None and not has_content(path + "-wal") and not has_content(path + "-journal"):
        _look_inside(path)
    return header


def _demand_writable(path: str) -> None:
    if not os.path.exists(path):
        raise StorageError(f"the folder {path} does not exist; create it, or name another with --state")
    if not os.access(path, os.W_OK):
        raise StorageError(f"{path} is not writable for this user; change its mode, or name another with --state")


def _look_inside(path: str) -> None:
    """Find damage while the file can still be left as it is: ``immutable`` locks nothing and creates nothing."""
    try:
        connection = sqlite3.connect(file_uri(path, "immutable=1"), uri=True, isolation_level=None)
        try:
            _demand_whole(connection, path)
            if os.path.getsize(path) <= CHECKED_BYTES:
                found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
                if found != "ok":
                    raise CorruptFileError(f"{path} is damaged ({found}); restore a copy")
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise translate(error, path) from error


def _demand_whole(connection: sqlite3.Connection, path: str) -> None:
    """What the header claims must also be in the file. Raises CorruptFileError, NewerFileError."""
    demand_ours(connection, path)
    try:
        identity = file_uuid(connection)
    except sqlite3.OperationalError as error:
        if primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        identity = ""
    if not identity:
        raise CorruptFileError(f"{path} is damaged: its tables are missing; restore a copy")


def _make_empty(path: str) -> bool:
    """Create the file with mode 0600 before SQLite does it with the umask's; errors and logs hold secrets."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"the disk that holds {path} is full; free some space") from error
        raise StorageError(f"cannot create the state file {path}: {error.strerror}") from error
    return True


def _remove_made(path: str) -> None:
    for leftover in (path + "-journal", path + "-wal", path + "-shm", path):
        try:
            os.unlink(leftover)
        except FileNotFoundError:
            pass


def _set_modes(connection: sqlite3.Connection, path: str, durability: Durability) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
    if mode != "wal":
        raise StateFileError(f"{path} is on a file system without shared memory, where SQLite's WAL does not work")
    connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS[durability]}")
    file_uuid(connection)  # the first read makes -wal and -shm: from now on readers see that somebody is here


def _bring_up_to_date(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables of a new file, or upgrade one of an earlier format, in one transaction.

    A new file gets them in SQLite's rollback mode, so that its header names us from the first byte on.
    """
    with transaction(connection):
        version = demand_known_version(connection, path)  # a later one said by the log only: the header is older
        if version == 0:
            _create(connection)
        upgrade(connection, path)


def _create(connection: sqlite3.Connection) -> None:
    _run_script(connection, resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8"))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    facts = {"uuid": uuid.uuid4().hex, "created_at": str(time.time_ns() // 1000), "schema_version": "0"}
    connection.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", facts.items())
    set_version(connection)


def _run_script(connection: sqlite3.Connection, script: str) -> None:
    """Like ``executescript``, which would commit the transaction that this belongs to."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
