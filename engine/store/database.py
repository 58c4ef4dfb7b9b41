"""Opens the state file for writing, or for reading without side effects.

All pragmas, open modes and schema versions are here. By measurement: connections are opened once and kept, and readers
never checkpoint.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec

from ..core.breaker import BreakerState
from ..core.spec import Durability, TaskSpec
from ..domain.states import DeadLetterKind, RunState, SkipCause, TaskState
from ..domain.text import shell_command
from ..domain.trigger_rules import RULES
from ..errors import CorruptFileError, RedriveError, StateFileError, StorageError
from ..statefile.copies import RESCUED
from ..statefile.health_file import require_not_lost
from ..statefile.open_writing import check_ours, connect
from ..statefile.opening import DAMAGED, TABLES, Header, inspect, open_readonly
from ..statefile.ownership import require_not_emptied
from ..statefile.paths import FULL_BYTES, file_uri, has_content, is_full, network_problem
from . import making

MINIMUM_SQLITE = (3, 24, 0)  # the oldest version that supports all SQL statements here
READ_SECONDS_MAX = 120.0  # for all queries of one connection; the longest takes a second for 10,000 tasks
PROGRESS_STEPS = 100_000  # of SQLite's virtual machine, some milliseconds
CHECKED_BYTES = 32 * 1024 * 1024  # files up to this size get a full check before writing
CACHED_BYTES = 1024 * 1024  # files up to this size; SQLite's cache holds twice as much

_SYNCHRONOUS = {"full": "FULL", "normal": "NORMAL"}


def open_for_writing(path: str | os.PathLike[str], durability: Durability = "normal") -> sqlite3.Connection:
    """Open the state file as its only writer; create it (mode 0600) if missing.

    "full": a commit is on disk when it returns. "normal": ``write_ahead_log.py`` brings it there behind the writer; a
    crash of the process loses none. The caller holds the lock of the file.

    Raises StateFileError or one of its kinds, with the file unchanged.
    """
    path = os.fspath(path)
    _require_sqlite_version()
    problem = network_problem(path)
    if problem:
        raise StateFileError(problem)
    is_new, is_created = _inspect_for_writing(path) is None, False
    has_log = has_content(os.path.realpath(path) + "-wal")
    try:
        is_created = is_new and making.make(path)
        connection = connect(path)
        try:
            making.require_tables(connection, path)
            _set_modes(connection, path, durability)
            _fill_cache(connection, path)
            if has_log:  # of an executor that died on a failed sync: what it left in memory may pass for synced
                connection.execute("PRAGMA wal_checkpoint(RESTART)")
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        explained = translate(error, path)  # before the new file is removed, which would free the full disk
        if is_created:
            making.remove_with_sidecars(path)
        if is_new:
            if isinstance(explained, CorruptFileError):  # SQLite says so of a page that the disk does not give back
                sentence = "the disk does not give back what was written to {}: {}; see the kernel log"
                explained = StorageError(sentence.format(path, error))
        elif isinstance(explained, CorruptFileError):
            _require_disk(path)
        raise explained from error
    return connection


def open_for_reading(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Open the state file for reading: never writes, never checkpoints, creates no files in its folder.

    Without a writer the connection may show a fixed snapshot; ``follow.follow`` opens the file again once a writer
    appears. Do not call while this process writes the file: reading its bytes would drop the writer's locks
    (https://sqlite.org/howtocorrupt.html, section 2.2).

    Raises StateFileError or one of its kinds.
    """
    _require_sqlite_version()
    path = os.fspath(path)
    require_not_lost(path)
    if has_content(path + RESCUED) and not os.path.exists(path):
        copied = path + RESCUED
        steps = restoring_steps(path, copied)
        raise StateFileError(f"there is no state file {path}; what an executor kept of it is in {copied}: {steps}")
    require_not_emptied(path)
    return open_readonly(path).connection


def open_beside_writer(path: str | os.PathLike[str]) -> sqlite3.Connection:
    """Open the state file for reading in the process of its writer: nothing but SQLite opens the file itself."""
    return sqlite3.connect(file_uri(os.fspath(path), "mode=ro"), uri=True)


@contextmanager
def reading(path: str | os.PathLike[str], seconds_max: float = READ_SECONDS_MAX) -> Iterator[sqlite3.Connection]:
    """Open the state file by ``open_for_reading``, translate SQLite errors in the block, and close it.

    What was read is on the disk then, so that it can be reported. ``seconds_max``: a query that runs then is
    interrupted.

    Raises StateFileError or one of its kinds.
    """
    with translated_errors(os.fspath(path)), closing(open_for_reading(path)) as connection:
        until = time.monotonic() + seconds_max
        connection.set_progress_handler(lambda: time.monotonic() > until, PROGRESS_STEPS)
        yield connection
    _sync_log(os.fspath(path))


def _sync_log(path: str) -> None:
    """Bring what was read to the disk, as far as the disk takes it."""
    try:
        with open(os.path.realpath(path) + "-wal", "rb") as log:
            os.fdatasync(log.fileno())
    except OSError:  # there is no log; or the executor reports it, and a reader must see what there is
        pass


@contextmanager
def translated_errors(path: str) -> Iterator[None]:
    """Translate SQLite errors in the block into StateFileError with advice."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def integrity_check(connection: sqlite3.Connection) -> list[str]:
    """Return up to 20 problems of the file in SQLite's words; empty: none."""
    try:
        found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(20)")]
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [] if found == ["ok"] else found


def restoring_steps(path: str, copied: str, *, is_replaced: bool = False) -> str:
    """Return the shell commands that put a copy in the place of a state file and resume it.

    ``is_replaced``: another file is at ``path``, which is kept.
    """
    aside = [["mv", path, path + ".replaced"]] if is_replaced else []
    remove, move = ["rm", "-f", f"{path}-wal", f"{path}-shm"], ["mv", copied, path]
    return " && ".join(map(shell_command, (*aside, remove, move, ["redrive", "resume", path])))


def file_uuid(connection: sqlite3.Connection) -> str:
    """Return the identity of the file, created with it; a replaced file has another one."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'uuid'").fetchone()
    return str(row[0]) if row else ""


def checkpoint(connection: sqlite3.Connection) -> None:
    """Copy the log into the file, as far as no reader needs an older state. Raises StateFileError."""
    with translated_errors(path_of(connection)):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def path_of(connection: sqlite3.Connection) -> str:
    """Return the path of the file, with links resolved; empty for a database in memory."""
    name = "SELECT CAST(file AS BLOB) FROM pragma_database_list WHERE name = 'main'"  # as bytes: it may not be UTF-8
    return os.fsdecode(connection.execute(name).fetchone()[0] or b"")


# --- SQLite errors -------------------------------------------------------------------------------------------------

#: Primary result codes (https://sqlite.org/rescode.html) -> the error, and its sentence.
_SENTENCES: dict[int, tuple[type[StateFileError], str]] = {
    sqlite3.SQLITE_FULL: (StorageError, "the disk that holds {path} is full; free some space"),
    sqlite3.SQLITE_IOERR: (StorageError, "the disk refused {path}: {error}; see the kernel log"),
    sqlite3.SQLITE_READONLY: (StorageError, "{path} or its folder is read-only for this user; make both writable"),
    sqlite3.SQLITE_PERM: (StorageError, "{path} may not be opened by this user"),
    sqlite3.SQLITE_CANTOPEN: (StorageError, "{path}, or the files beside it, cannot be opened by this user"),
    sqlite3.SQLITE_BUSY: (StorageError, "another program keeps {path} locked; close it"),
    sqlite3.SQLITE_LOCKED: (StorageError, "another program keeps {path} locked; close it"),
    sqlite3.SQLITE_CORRUPT: (CorruptFileError, DAMAGED),
    sqlite3.SQLITE_TOOBIG: (CorruptFileError, "{path} has a value that is larger than redrive writes; restore a copy"),
    sqlite3.SQLITE_INTERRUPT: (StorageError, "{path} takes too long to read; restore a copy"),
    sqlite3.SQLITE_NOTADB: (CorruptFileError, DAMAGED),
}


def primary_code(error: BaseException) -> int:
    """Return SQLite's primary result code of an error, 0 for other errors."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def translate(error: sqlite3.Error, path: str) -> StateFileError:
    """Return a StateFileError that explains an SQLite error and what to do."""
    code = primary_code(error)
    if code == sqlite3.SQLITE_IOERR and is_full(path):
        code = sqlite3.SQLITE_FULL  # SQLite says so of the file itself, but not of its -shm
    kind, sentence = _SENTENCES.get(code, (StateFileError, "{path} cannot be used: {error}"))
    if code == sqlite3.SQLITE_IOERR and _has_limit_size(path):
        sentence = "{path} has reached the limit on the size of a file: raise it (ulimit -f, LimitFSIZE)"
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHORT_READ:
        sentence = "{path}-wal was cut short while other programs had it open: close them, then try again"
    return kind(sentence.format(path=path, error=error))


def _has_limit_size(path: str) -> bool:
    """Whether one of the files has no room for a commit below the limit of this process on the size of a file."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    sizes = [os.path.getsize(one) for one in (path, f"{path}-wal", f"{path}-shm") if os.path.exists(one)]
    return limit != resource.RLIM_INFINITY and max(sizes, default=0) + FULL_BYTES > limit


# --- Writing -------------------------------------------------------------------------------------------------------


def _require_sqlite_version() -> None:
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        required = ".".join(str(part) for part in MINIMUM_SQLITE)
        raise StateFileError(
            f"this Python comes with SQLite {sqlite3.sqlite_version}; redrive needs {required} or later"
        )


def _inspect_for_writing(path: str) -> Header | None:
    try:
        header = inspect(path)
    except FileNotFoundError:
        _check_regular(path)
        _require_writable(os.path.dirname(os.path.abspath(path)))
        return None
    _check_regular(path)
    _require_writable(path)
    _require_writable(os.path.dirname(os.path.abspath(path)))
    if header is not None and not has_content(path + "-wal") and not has_content(path + "-journal"):
        _check_readable(path)
    return header


def _check_regular(path: str) -> None:
    """Check what SQLite and the executor make beside the file: with a folder of that name nothing can be written."""
    for suffix in ("-wal", "-shm", "-journal", ".sock"):
        if os.path.isdir(path + suffix):
            raise StorageError(f"{path}{suffix} is a folder: remove it")


def _require_writable(path: str) -> None:
    if not os.path.exists(path):
        raise StorageError(f"the folder {path} does not exist; create it, or name another with --state")
    if not os.access(path, os.W_OK):
        raise StorageError(f"{path} is not writable for this user; change its mode, or name another with --state")


def _check_readable(path: str) -> None:
    """Detect damage before the file is changed: ``immutable`` takes no locks and creates no files."""
    try:
        connection = sqlite3.connect(file_uri(path, "immutable=1"), uri=True, isolation_level=None)
        try:
            check_ours(connection, path)
            if not file_uuid(connection):
                raise CorruptFileError(f"{path} is damaged: its tables are missing; restore a copy")
            if os.path.getsize(path) <= CHECKED_BYTES:
                found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
                if found != "ok":
                    raise CorruptFileError(DAMAGED.format(path=path, error=found))
        finally:
            connection.close()
    except (sqlite3.Error, CorruptFileError) as error:
        _require_disk(path)
        raise (translate(error, path) if isinstance(error, sqlite3.Error) else error) from error


def _require_disk(path: str) -> None:
    """Raise StorageError if the disk does not give the bytes of a file, which SQLite may call damage.

    No connection of this process is open: closing a descriptor of the file would drop its locks.
    """
    try:
        with open(path, "rb") as file:
            while file.read(CACHED_BYTES):
                pass
    except OSError as error:
        raise StorageError(
            f"the disk cannot read {path}: {error.strerror}; see the kernel log, and restore a copy on another disk"
        ) from error


def _set_modes(connection: sqlite3.Connection, path: str, durability: Durability) -> None:
    making.set_log_mode(connection, path)
    connection.execute(f"PRAGMA synchronous={_SYNCHRONOUS[durability]}")
    file_uuid(connection)  # the first read creates -wal and -shm, by which readers detect a writer


def _fill_cache(connection: sqlite3.Connection, path: str) -> None:
    """Read a small file into the cache of the connection, which saves it if the file is cut short."""
    if os.path.getsize(path) <= CACHED_BYTES:
        with closing(sqlite3.connect(":memory:")) as nowhere:
            connection.backup(nowhere)


# --- Finds a row that no redrive has written: the reason why a state file of a stranger cannot be shown --------------


INSTANT_MAX_US = 253_370_764_800_000_000  # the year 9999, which has a local time in every zone

#: Columns that hold a word of a list; SQLite checks it only while it writes.
_WORDS: dict[tuple[str, str], frozenset[str]] = {
    ("run", "state"): frozenset(RunState),
    ("task", "state"): frozenset(TaskState),
    ("task", "rule"): frozenset(RULES),
    ("task", "skip_cause"): frozenset(SkipCause),
    ("task", "dead_letter_kind"): frozenset(DeadLetterKind),
    ("breaker", "state"): frozenset(BreakerState),
    ("event", "old"): frozenset(RunState) | frozenset(TaskState),
    ("event", "new"): frozenset(RunState) | frozenset(TaskState),
}
#: Columns that hold JSON, and its type.
_JSON: dict[tuple[str, str], type] = {
    ("run", "params"): dict,
    ("run", "options"): dict,
    ("task", "overrides"): dict,
    ("attempt", "fingerprint_detail"): dict,
    ("event", "data"): dict,
    ("page", "body"): dict,
    ("breaker", "window"): list,
    ("breaker", "detail"): dict,
}
_TYPES = {
    "INTEGER": {"integer", "null"},
    "TEXT": {"text", "null"},
    "REAL": {"real", "integer", "null"},
    "BLOB": {"blob", "null"},
}
_STRAY_EDGES = (
    "SELECT e.run_id, e.child, e.parent FROM edge e"
    " LEFT JOIN task c ON c.run_id = e.run_id AND c.name = e.child"
    " LEFT JOIN task p ON p.run_id = e.run_id AND p.name = e.parent WHERE c.name IS NULL OR p.name IS NULL LIMIT 1"
)
_STRAY_ROWS = (
    "SELECT 'attempt', run_id, name, 'task' FROM attempt WHERE (run_id, name) NOT IN (SELECT run_id, name FROM task)"
    " UNION ALL SELECT 'task', run_id, name, 'run' FROM task WHERE run_id NOT IN (SELECT run_id FROM run) LIMIT 1"
)


def require_known_rows(path: str) -> None:
    """Read every row. Raises CorruptFileError that names the first one with an unknown value."""
    with reading(path) as connection:
        for problem in _problems(connection):
            raise CorruptFileError(f"{path} is damaged: {problem}; restore a copy")


@contextmanager
def explained_by_rows(path: str) -> Iterator[None]:
    """Turn an exception in the block into a CorruptFileError that names the bad row, or into an error for SQLite's."""
    try:
        yield
    except (RedriveError, OSError):
        raise
    except sqlite3.Error as error:
        raise translate(error, path) from error
    except Exception:
        if has_content(path):
            require_known_rows(path)
        raise


def _problems(connection: sqlite3.Connection) -> Iterator[str]:
    for table in sorted(TABLES):
        columns = [(name, kind) for _, name, kind, *_ in connection.execute(f"PRAGMA main.table_info({table})")]
        types = ", ".join(f"typeof({name})" for name, _ in columns)
        for values in connection.execute(f"SELECT *, {types} FROM main.{table}"):
            found = zip(columns, values[: len(columns)], values[len(columns) :], strict=True)
            for (name, kind), value, stored in found:
                if stored not in _TYPES.get(kind, ()) or not _is_known(table, name, value):
                    yield f"table {table}, {columns[0][0]} {values[0]!r:.60}: no redrive writes this {name}"
    for run_id, child, parent in connection.execute(_STRAY_EDGES):
        yield f"table edge, run {run_id!r}: {child!r} after {parent!r} names no task"
    for table, run_id, name, missing in connection.execute(_STRAY_ROWS):
        yield f"table {table}, run {run_id!r}, {name!r}: there is no such {missing}"


def _is_known(table: str, column: str, value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= INSTANT_MAX_US
    if not isinstance(value, str):
        return True
    words = _WORDS.get((table, column))
    if words is not None:
        return value in words
    if (table, column) == ("task", "spec"):
        return value == "{}" or _decodes(value, TaskSpec)
    return (table, column) not in _JSON or _decodes(value, _JSON[table, column])


def _decodes(text: str, kind: type) -> bool:
    try:
        msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, ValueError, RedriveError):
        return False
    return True
