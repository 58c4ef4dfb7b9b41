"""Opens a state file read-only, after a look at its first bytes.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
import sqlite3
import stat
import struct
from typing import NamedTuple, Optional, Tuple

from ..errors import (
    CorruptFileError,
    ForeignFileError,
    OtherFormatError,
    StateFileError,
    UnreadableFileError,
)
from .health_file import require_not_lost
from .paths import file_uri, folder_sentence, has_content, network_problem

# --- The first bytes of a file ---------------------------------------------------------------------------------------
#
# Inspects the header of a file before SQLite opens it: a state file, another database, cut short, or no database.
#
# SQLite repairs, locks and creates files beside the one that it opens. A file that is not a state file must not
# change, so its first hundred bytes are checked here (https://sqlite.org/fileformat2.html, section 1.3).


MAGIC = b"SQLite format 3\x00"
HEADER_BYTES = 100
START_BYTES = HEADER_BYTES + 8  # with the header of the first page
JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
APPLICATION_ID = 0x52445256  # "RDRV"
#: The format of a state file: each change of ``store/schema.sql`` begins the next number. A file of another is refused.
SCHEMA_VERSION = 2
NAME_ANOTHER = "name another one"  # what a command that was given the file can do


class Header(NamedTuple):
    """The fields of SQLite's header that decide."""

    page_bytes: int
    pages: int  # 0 if the writer was too old to fill it in
    version: int  # PRAGMA user_version: the format of the state file
    application_id: int


def has_log(path: str) -> bool:
    """Whether changes are in the log beside a file: it alone is not its content. ``path``: not a link."""
    return has_content(path + "-wal")


def inspect(path: str) -> Optional[Header]:
    """Return the header of a state file; None for a file that holds nothing. Opens nothing for writing.

    A making in place that was cut off leaves an empty first page, or a journal that takes back all that was written.

    Raises FileNotFoundError, or the StateFileError that says why this file cannot be used.
    """
    data, size = _read_start(path)
    real = os.path.realpath(path)  # SQLite keeps its files beside the one that a link names
    is_logged = has_log(real)
    if size == 0:
        if is_logged:
            raise CorruptFileError(f"{path} is empty but its -wal is not: the file was cut short; restore a copy")
        return None
    if not is_logged and _is_blank_page(data, size) or _rolls_back_all(real + "-journal"):
        return None
    if not data.startswith(MAGIC):
        if MAGIC.startswith(data):
            raise CorruptFileError(f"{path} is cut short: {size} bytes are left; restore a copy")
        raise ForeignFileError(f"{path} is not a redrive state file (and no SQLite database)", advice=NAME_ANOTHER)
    if len(data) < HEADER_BYTES:
        raise CorruptFileError(f"{path} is cut short: {size} bytes are left; restore a copy")
    header = _parse(data)
    _validate(path, header, size, is_unfinished=is_logged or has_content(real + "-journal"))
    return header


def _read_start(path: str) -> Tuple[bytes, int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise StateFileError(folder_sentence(path))
            if not stat.S_ISREG(status.st_mode):
                raise StateFileError(f"{path} is not a regular file", advice=NAME_ANOTHER)
            return os.read(descriptor, START_BYTES), status.st_size
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableFileError(f"cannot read the state file {path}: {error.strerror}") from error


def holds_nothing(path: str) -> bool:
    """True if no state file is at the path, or one that is empty; False if the path cannot be read."""
    try:
        return inspect(path) is None
    except FileNotFoundError:
        return True
    except StateFileError:
        return False


def _is_blank_page(data: bytes, size: int) -> bool:
    """Whether a file is a database without any table, which no program has named as its own."""
    if not data.startswith(MAGIC) or len(data) < START_BYTES:
        return False
    header = _parse(data)
    (cells,) = struct.unpack_from(">H", data, HEADER_BYTES + 3)
    return size <= header.page_bytes and not (cells or header.version or header.application_id)


def _rolls_back_all(journal: str) -> bool:
    """Whether a transaction that was cut off, and that SQLite takes back, began in a database without any table."""
    try:
        data, size = _read_start(journal)
    except (OSError, StateFileError):
        return False
    return data.startswith(JOURNAL_MAGIC) and size > 20 and struct.unpack_from(">I", data, 16)[0] <= 1


def _parse(data: bytes) -> Header:
    (page_bytes,) = struct.unpack_from(">H", data, 16)
    changes, pages = struct.unpack_from(">II", data, 24)
    version, application_id, valid_for = struct.unpack_from(">8xI4xI20xI", data, 52)
    return Header(
        65536 if page_bytes == 1 else page_bytes, pages if changes == valid_for else 0, version, application_id
    )


def _validate(path: str, header: Header, size: int, *, is_unfinished: bool) -> None:
    """``is_unfinished``: a checkpoint that was interrupted leaves a short file; the rest is in the -wal."""
    if header.application_id != APPLICATION_ID:
        raise ForeignFileError(f"{path} is an SQLite database of another program, not a redrive state file")
    check_version(path, header.version)
    if header.page_bytes < 512 or header.page_bytes & (header.page_bytes - 1):
        raise CorruptFileError(
            f"{path} is damaged: its header gives a page size of {header.page_bytes}; restore a copy"
        )
    expected = header.pages * header.page_bytes
    if size < expected and not is_unfinished:
        raise CorruptFileError(f"{path} is cut short: {size} of {expected} bytes are left; restore a copy")


def check_version(path: str, version: int) -> None:
    """Raises OtherFormatError for a format that is not SCHEMA_VERSION."""
    if version != SCHEMA_VERSION:
        formats = f"(format {version}, this one knows {SCHEMA_VERSION})"
        if version > SCHEMA_VERSION:
            raise OtherFormatError(f"{path} was written by a later version of redrive {formats}; upgrade redrive")
        raise OtherFormatError(f"{path} was written by an earlier version of redrive {formats}", advice=NAME_ANOTHER)


# --- Opening without side effects ------------------------------------------------------------------------------------
#
# Opens a state file read-only: never writes, never checkpoints, creates nothing in its folder.


BUSY_SECONDS = 5.0
VALUE_BYTES_MAX = 64 * 1024 * 1024  # of a row; a longer one is not ours
#: As in ``schema.sql``.
TABLES = {"attempt", "breaker", "edge", "event", "executor", "log", "log_size", "meta", "page", "page_task"}
TABLES |= {"pruned_run", "quarantine", "run", "schedule", "sla", "slot", "task"}


class ReadonlyDatabase(NamedTuple):
    """A read-only connection. ``is_static``: it shows the content at its opening; reopen when the file changes."""

    connection: sqlite3.Connection
    is_static: bool


def open_readonly(path: str) -> ReadonlyDatabase:
    """Open the state file in the best way that its state allows.

    Never call this while this process has another connection to the file: reading the header would drop the locks of
    that connection (https://sqlite.org/howtocorrupt.html, section 2.2). Raises StateFileError or one of its kinds.
    """
    problem = network_problem(path)
    if problem:
        raise StateFileError(problem)
    require_not_lost(path)
    try:
        if inspect(path) is None:
            raise StateFileError(f"{path} is empty: no run has been recorded in it")
    except FileNotFoundError:
        raise StateFileError(f"there is no state file {path}") from None
    try:
        return _open(path)
    except (sqlite3.Error, ValueError) as error:  # SQLite quotes a damaged schema
        raise reading_error(path, error) from error


#: What is in no -wal is all that a copy of the file alone has.
_WITHOUT_LOG = (
    "{} has no run, no lock and no -wal beside it: probably a copy of a file that a run was writing, without its -wal;"
    " .backup of sqlite3 copies all of it"
)
#: Half of a file that a run was writing looks like damage.
DAMAGED = "{path} is damaged ({error}); restore a copy; .backup of sqlite3 copies a file that a run is writing"


def reading_error(path: str, error: Exception) -> StateFileError:
    """The error for what SQLite says while a state file is read."""
    if isinstance(error, sqlite3.OperationalError):
        return UnreadableFileError(f"{path} cannot be read: {error}")
    return CorruptFileError(DAMAGED.format(path=path, error=error))


def _open(path: str) -> ReadonlyDatabase:
    """Open a file in use live, a crashed one without its -shm as a copy, and any other as immutable.

    ``immutable`` ignores the log, so it is correct only if there is none. ``mode=ro`` creates a missing -shm, which
    an executor of another user could not open.
    """
    path = os.path.realpath(path)  # beside which SQLite has its files, also for a link
    if os.path.exists(path + "-shm"):
        try:
            return ReadonlyDatabase(_connect(path, "mode=ro"), is_static=False)
        except sqlite3.OperationalError:
            pass  # this user may not open it, or it has just been removed
    if has_log(path):
        return ReadonlyDatabase(_open_copy(path), is_static=True)
    connection = _connect(path, "immutable=1")
    has_content_of_runs = "SELECT 1 FROM run UNION ALL SELECT 1 FROM schedule LIMIT 1"
    if not os.path.exists(path + ".lock") and connection.execute(has_content_of_runs).fetchone() is None:
        connection.close()
        raise CorruptFileError(_WITHOUT_LOG.format(path))
    return ReadonlyDatabase(connection, is_static=True)


def _connect(path: str, options: str) -> sqlite3.Connection:
    uri = file_uri(path, options)
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        check_version(path, format_of(connection))
        check_tables(connection, path)
        if hasattr(connection, "setlimit"):  # since Python 3.11
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)
    except BaseException:
        connection.close()
        raise
    return connection


def format_of(connection: sqlite3.Connection) -> int:
    """The number of the format of a file, 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def check_tables(connection: sqlite3.Connection, path: str) -> None:
    """Raises CorruptFileError if reading or writing a table would run SQL of the file, or if one is missing."""
    connection.execute("PRAGMA trusted_schema=OFF")
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE %'")
    if not TABLES.issubset(name for (name,) in tables):
        raise CorruptFileError(f"{path} is damaged: its tables are missing; restore a copy")
    if connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'trigger'").fetchone():
        raise CorruptFileError(f"{path} has triggers, which no state file has; restore a copy")


def _open_copy(path: str) -> sqlite3.Connection:
    """Copy a file whose log lacks its index: no process writes, so the copy is complete."""
    import shutil  # here, as the next: such a file is rare, and both slow down each reader
    import tempfile

    with tempfile.TemporaryDirectory(prefix="redrive-") as folder:
        copy = os.path.join(folder, "state.db")
        try:
            shutil.copyfile(path, copy)
            shutil.copyfile(path + "-wal", copy + "-wal")
        except OSError as error:
            raise UnreadableFileError(f"cannot copy {path} to read it: {error.strerror}") from error
        merging = sqlite3.connect(copy, isolation_level=None)
        merging.execute("PRAGMA journal_mode=DELETE")
        merging.close()
        return _connect(copy, "immutable=1")
