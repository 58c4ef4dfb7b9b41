"""Opening a state file: ours works in every situation, and what is not ours does not change by a byte."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.core.spec import Durability
from redrive.engine.errors import CorruptFileError, ForeignFileError, OtherFormatError, StateFileError, StorageError
from redrive.engine.statefile import open_writing, opening, paths
from redrive.engine.store import database, making
from support.marks import for_each, parametrize_mostly_long

NOBODY = 65534


def make_closed(path: Path) -> Path:
    """A state file of a run, without an executor."""
    connection = database.open_for_writing(path)
    connection.execute("INSERT INTO run (run_id, dag_name, started_at, state) VALUES ('r', 'f', 0, 'RUNNING')")
    connection.close()
    return path


def picture(folder: Path) -> dict[str, bytes]:
    """Every file of a folder and its bytes."""
    return {str(item.relative_to(folder)): item.read_bytes() for item in folder.rglob("*") if item.is_file()}


# --- Making and opening --------------------------------------------------------------------------------------------


def test_a_new_file_is_for_its_owner_alone_also_its_log(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    mask = os.umask(0)
    try:
        connection = database.open_for_writing(path)
    finally:
        os.umask(mask)
    modes = {item.name: stat.S_IMODE(item.stat().st_mode) for item in tmp_path.glob("state.db*")}
    assert modes == {"state.db": 0o600, "state.db-wal": 0o600, "state.db-shm": 0o600}
    connection.close()


def test_a_new_file_names_itself_and_knows_when_it_was_made(tmp_path: Path) -> None:
    connection = database.open_for_writing(tmp_path / "state.db")
    facts = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    assert len(facts["uuid"]) == 32 and facts["uuid"] == database.file_uuid(connection)
    assert int(facts["created_at"]) > 1_600_000_000_000_000 and facts["schema_version"] == str(opening.SCHEMA_VERSION)
    connection.close()


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1)])
def test_the_writer_uses_the_log_and_the_durability_asked_for(
    tmp_path: Path, durability: Durability, synchronous: int
) -> None:
    connection = database.open_for_writing(tmp_path / "state.db", durability)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (5000,)
    connection.close()


def test_opening_again_keeps_everything(tmp_path: Path) -> None:
    path = make_closed(tmp_path / "state.db")
    first = database.open_for_writing(path)
    identity = database.file_uuid(first)
    first.close()
    second = database.open_for_writing(path)
    assert database.file_uuid(second) == identity
    assert database.integrity_check(second) == []
    second.close()


@pytest.mark.parametrize("name", ["a?b.db", "a#b.db", "a%20b.db", "a b.db", "ä.db", "a'b;.db"])
def test_odd_names_are_names(tmp_path: Path, name: str) -> None:
    path = make_closed(tmp_path / name)
    database.open_for_reading(path).close()
    assert [item.name for item in tmp_path.iterdir()] == [name]


def test_the_header_of_a_file_in_the_making_is_nobody_elses(tmp_path: Path) -> None:
    """Killed while it was made, a file is either empty or ours: it opens the next time."""
    path = tmp_path / "state.db"
    path.touch()
    connection = database.open_for_writing(path)
    assert connection.execute("SELECT count(*) FROM run").fetchone() == (0,)
    connection.close()


# --- What cannot be used -------------------------------------------------------------------------------------------


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE guest(name)")
    connection.commit()
    connection.close()


def foreign_with_log(path: Path) -> None:
    """Another program's database that was left in the middle of its work."""
    origin = path.with_suffix(".origin")
    connection = sqlite3.connect(origin)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE guest(name)")
    connection.commit()
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{origin}{suffix}", f"{path}{suffix}")
    connection.close()
    origin.unlink()


def newer(path: Path) -> None:
    connection = sqlite3.connect(make_closed(path))
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def older(path: Path) -> None:
    connection = sqlite3.connect(make_closed(path))
    connection.execute("PRAGMA user_version = 1")
    connection.close()


def cut_short(path: Path) -> None:
    data = make_closed(path).read_bytes()
    path.write_bytes(data[: len(data) // 2])


def cut_to_a_header(path: Path) -> None:
    path.write_bytes(make_closed(path).read_bytes()[:60])


def cut_to_a_word(path: Path) -> None:
    path.write_bytes(b"SQLite fo")


def first_page_overwritten(path: Path) -> None:
    data = bytearray(make_closed(path).read_bytes())
    data[100:4096] = bytes(3996)
    path.write_bytes(bytes(data))


def middle_overwritten(path: Path) -> None:
    data = bytearray(make_closed(path).read_bytes())
    data[4096 : 4096 * 4] = random.Random(1).randbytes(4096 * 3)
    path.write_bytes(bytes(data))


def without_tables(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {opening.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {opening.SCHEMA_VERSION}")
    connection.execute("CREATE TABLE other(x)")
    connection.commit()
    connection.close()


def text(path: Path) -> None:
    path.write_text("name: settlement\n")


def directory(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


BAD_FILES: list[tuple[Callable[[Path], None], type[StateFileError], str]] = [
    (foreign, ForeignFileError, "database of another program"),
    (foreign_with_log, ForeignFileError, "database of another program"),
    (text, ForeignFileError, "not a redrive state file"),
    (newer, OtherFormatError, "upgrade redrive"),
    (older, OtherFormatError, "an earlier version"),
    (cut_short, CorruptFileError, "cut short"),
    (cut_to_a_header, CorruptFileError, "cut short"),
    (cut_to_a_word, CorruptFileError, "cut short"),
    (first_page_overwritten, CorruptFileError, "damaged"),
    (without_tables, CorruptFileError, "damaged"),
    (directory, StateFileError, "is a directory"),
    (pipe, StateFileError, "not a regular file"),
]


@pytest.mark.parametrize("open_it", [database.open_for_writing, database.open_for_reading])
@pytest.mark.parametrize(("spoil", "error", "words"), BAD_FILES, ids=[spoil.__name__ for spoil, _, _ in BAD_FILES])
def test_a_file_that_cannot_be_used_says_why_and_stays_as_it_is(
    tmp_path: Path,
    open_it: Callable[..., sqlite3.Connection],
    spoil: Callable[[Path], None],
    error: type[StateFileError],
    words: str,
) -> None:
    path = tmp_path / "state.db"
    spoil(path)
    before = picture(tmp_path)
    with pytest.raises(error) as caught:
        open_it(path)
    assert words in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert picture(tmp_path) == before


def test_damage_in_the_middle_is_found_before_the_first_write(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    middle_overwritten(path)
    before = picture(tmp_path)
    with pytest.raises(CorruptFileError, match="damaged"):
        database.open_for_writing(path)
    assert picture(tmp_path) == before


def test_a_later_version_that_only_the_log_knows_of_is_refused(tmp_path: Path) -> None:
    """A newer redrive that crashed before its checkpoint."""
    path = tmp_path / "origin.db"
    connection = database.open_for_writing(path)
    connection.execute("PRAGMA user_version = 99")
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", f"{tmp_path / 'state.db'}{suffix}")
    connection.close()
    with pytest.raises(OtherFormatError):
        database.open_for_writing(tmp_path / "state.db")
    with pytest.raises(OtherFormatError):
        database.open_for_reading(tmp_path / "state.db")


def test_a_missing_file_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(StateFileError, match="there is no state file"):
        database.open_for_reading(tmp_path / "state.db")
    with pytest.raises(StorageError, match="does not exist"):
        database.open_for_writing(tmp_path / "nowhere" / "state.db")
    assert picture(tmp_path) == {}


def test_an_empty_file_has_nothing_to_read_yet(tmp_path: Path) -> None:
    (tmp_path / "state.db").touch()
    with pytest.raises(StateFileError, match="no run has been recorded"):
        database.open_for_reading(tmp_path / "state.db")


def test_an_empty_file_beside_a_full_log_was_cut_short(tmp_path: Path) -> None:
    (tmp_path / "state.db").touch()
    (tmp_path / "state.db-wal").write_bytes(b"frames")
    for open_it in (database.open_for_writing, database.open_for_reading):
        with pytest.raises(CorruptFileError, match="cut short"):
            open_it(tmp_path / "state.db")


# --- As another user -----------------------------------------------------------------------------------------------


@pytest.fixture
def common_folder() -> Iterator[Path]:
    """A folder that others may enter; those of pytest are closed to them."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_nobody(work: Callable[[], object]) -> object:
    """What ``work`` answers, or raises as text, in a process without privileges."""
    parent, child = multiprocessing.Pipe()

    def run() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            child.send(work())
        except Exception as error:
            child.send(f"{type(error).__name__}: {error}")

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    answer = parent.recv()
    process.join()
    return answer


def count_meta(path: Path) -> int:
    connection = database.open_for_reading(path)
    try:
        return int(connection.execute("SELECT count(*) FROM meta").fetchone()[0])
    finally:
        connection.close()


def share(path: Path) -> None:
    """Readable for all, writable for its owner; where the tests run without privileges, for nobody."""
    for item in path.parent.glob(path.name + "*"):
        item.chmod(0o644 if os.getuid() == 0 else 0o444)
    if os.getuid() != 0:
        path.parent.chmod(0o555)


def test_a_file_that_may_not_be_written_is_refused_and_left_alone(common_folder: Path) -> None:
    path = make_closed(common_folder / "state.db")
    share(path)
    before = picture(common_folder)
    assert "StorageError" in str(as_nobody(lambda: database.open_for_writing(path)))
    assert picture(common_folder) == before


def test_a_closed_file_in_a_folder_of_another_can_be_read(common_folder: Path) -> None:
    path = make_closed(common_folder / "state.db")
    share(path)
    assert as_nobody(lambda: count_meta(path)) == 3


def test_a_live_file_of_another_can_be_read_with_its_log(common_folder: Path) -> None:
    path = common_folder / "state.db"
    connection = database.open_for_writing(path)
    connection.execute("INSERT INTO meta VALUES ('in the log', 'only')")
    share(path)
    assert as_nobody(lambda: count_meta(path)) == 4
    connection.close()


def test_a_crashed_file_without_its_index_is_read_through_a_copy(tmp_path: Path) -> None:
    path, copy = tmp_path / "state.db", tmp_path / "crashed.db"
    connection = database.open_for_writing(path)
    connection.execute("INSERT INTO meta VALUES ('in the log', 'only')")
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
    connection.close()
    before = picture(tmp_path)
    assert count_meta(copy) == 4
    assert picture(tmp_path) == before


def test_the_log_of_a_dead_writer_is_copied_before_more_is_promised(tmp_path: Path) -> None:
    """Its last sync may have failed, and the next one would not tell."""
    left, copy = tmp_path / "left.db", tmp_path / "copy.db"
    with closing(database.open_for_writing(tmp_path / "state.db")) as connection:
        connection.execute("INSERT INTO meta (key, value) VALUES ('a', '1')")
        for suffix in ("", "-wal"):
            shutil.copy(tmp_path / f"state.db{suffix}", f"{left}{suffix}")
    with closing(database.open_for_writing(left)):
        shutil.copy(left, copy)  # without the log
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE key = 'a'").fetchone() == ("1",)


def test_what_was_read_is_synced_before_it_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a link, and if the disk fails: an operator must see what there is."""
    path, link, synced = make_closed(tmp_path / "state.db"), tmp_path / "link.db", []
    link.symlink_to(path)

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    with closing(database.open_for_writing(path)):
        for name in (path, link):
            with database.reading(name) as connection:
                database.file_uuid(connection)
                assert len(synced) == (name == link)
    assert synced == [f"{path}-wal"] * 2
    with database.reading(path) as connection:
        database.file_uuid(connection)
    assert len(synced) == 2  # no log is left


def test_reading_a_closed_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = make_closed(tmp_path / "state.db")
    before = picture(tmp_path)
    connection = database.open_for_reading(path)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM meta")
    connection.close()
    assert picture(tmp_path) == before


def test_a_file_is_the_same_where_sqlite_does_not_copy_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert making.tables_alone()
    copied = facts_of(database.open_for_writing(tmp_path / "copied.db"))
    monkeypatch.setattr(making, "tables_alone", lambda: b"")
    assert facts_of(database.open_for_writing(tmp_path / "made.db")) == copied


def facts_of(connection: sqlite3.Connection) -> list[object]:
    with closing(connection):
        pragmas = ("application_id", "user_version", "auto_vacuum", "journal_mode", "page_size", "page_count")
        queries = [*(f"PRAGMA {name}" for name in pragmas), "SELECT * FROM sqlite_master", "SELECT key FROM meta"]
        return [connection.execute(query).fetchall() for query in queries]


# --- The disk ------------------------------------------------------------------------------------------------------


def test_a_new_file_that_the_disk_does_not_give_back_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that cannot be read while SQLite parses the schema is "malformed" to it."""

    def fail(connection: sqlite3.Connection, path: str) -> None:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    monkeypatch.setattr(making, "set_log_mode", fail)
    with pytest.raises(StorageError, match=r"the disk does not give back what was written to .*; see the kernel log"):
        database.open_for_writing(tmp_path / "state.db")
    assert picture(tmp_path) == {}


@parametrize_mostly_long("is_new", [True, False], quick=0, daily=1)
def test_a_disk_that_fails_to_read_is_named_at_each_read(tmp_path: Path, is_new: bool) -> None:
    """With real errors of the kernel, from each read on."""
    path = tmp_path / "state.db"
    code = f"from redrive.engine.store import database; database.open_for_writing({str(path)!r})"
    sentences = []
    for first in range(1, 40, 3):
        path.unlink(missing_ok=True)
        if not is_new:
            make_closed(path)
        strace = ["strace", "-f", "-o", os.devnull, "-P", str(path), "-e", "trace=read,pread64"]
        fault = ["-e", f"inject=pread64:error=EIO:when={first}+"]
        fault += ["-e", "inject=read:error=EIO:when=2+"]  # the first is of the header, the others look for the fault
        done = subprocess.run([*strace, *fault, sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        *_, sentence = done.stderr.splitlines() or [""]
        assert not sentence or sentence.startswith("redrive.engine.errors.StorageError"), (first, sentence)
        sentences.append(sentence)
    assert any(sentences), "no read has failed"


def test_a_full_disk_leaves_no_half_made_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = open_writing.connect

    def connect_to_a_small_disk(path: str) -> sqlite3.Connection:
        connection = connect(path)
        connection.execute("PRAGMA max_page_count = 3")
        return connection

    monkeypatch.setattr(making, "connect", connect_to_a_small_disk)
    monkeypatch.setattr(making, "tables_alone", lambda: b"")
    with pytest.raises(StorageError, match="full"):
        database.open_for_writing(tmp_path / "state.db")
    assert picture(tmp_path) == {}


def errors_of(code: int) -> StateFileError:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return database.translate(error, "/var/night.db")


@for_each(
    "code, kind, words",
    [
        (sqlite3.SQLITE_FULL, StorageError, "full"),
        (sqlite3.SQLITE_IOERR_FSYNC, StorageError, "refused"),
        (sqlite3.SQLITE_READONLY_DBMOVED, StorageError, "read-only"),
        (sqlite3.SQLITE_BUSY, StorageError, "locked"),
        (sqlite3.SQLITE_CORRUPT_INDEX, CorruptFileError, "damaged"),
        (sqlite3.SQLITE_MISMATCH, StateFileError, "as SQLite says it"),
    ],
)
def test_every_refusal_of_sqlite_has_a_sentence(code: int, kind: type[StateFileError], words: str) -> None:
    error = errors_of(code)
    assert type(error) is kind and words in str(error) and "/var/night.db" in str(error)


def test_integrity_check_reports_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    middle_overwritten(path)
    connection = sqlite3.connect(path)
    assert database.integrity_check(connection)
    connection.close()


# --- A log cut by a power failure ----------------------------------------------------------------------------------


@pytest.mark.long
def test_a_torn_log_gives_back_a_consistent_past(tmp_path: Path) -> None:
    """Cut anywhere, with bits flipped: what is read is some prefix of what was committed, never a mixture."""
    path, torn = tmp_path / "state.db", tmp_path / "torn.db"
    connection = database.open_for_writing(path)
    for number in range(60):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO event (at, kind) VALUES (?, 'tick')", (number,))
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('ticks', ?)", (str(number + 1),))
        connection.execute("COMMIT")
    main, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    connection.close()
    dice, seen = random.Random(7), set()
    for _ in range(150):
        cut = bytearray(log[: dice.randrange(len(log) + 1)])
        if cut and dice.random() < 0.3:
            cut[dice.randrange(len(cut))] ^= 1 << dice.randrange(8)
        for leftover in tmp_path.glob("torn.db*"):
            leftover.unlink()
        torn.write_bytes(main)
        Path(f"{torn}-wal").write_bytes(bytes(cut))
        survivor = database.open_for_writing(torn)
        assert database.integrity_check(survivor) == []
        (events,) = survivor.execute("SELECT count(*) FROM event").fetchone()
        ticks = survivor.execute("SELECT value FROM meta WHERE key = 'ticks'").fetchone()
        assert int(ticks[0]) == events if ticks else events == 0
        survivor.close()
        seen.add(events)
    assert len(seen) > 10


# --- Network file systems ------------------------------------------------------------------------------------------

MOUNTS = """\
/dev/vda / ext4 rw 0 0
filer:/export/home /home nfs4 rw 0 0
ana@etl.example:/srv/night /mnt/etl fuse.sshfs rw 0 0
/dev/vdb /home/local ext4 rw 0 0
//nas/share /mnt/with\\040space cifs rw 0 0
"""


@pytest.fixture
def mounts_path(tmp_path: Path) -> str:
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    return str(path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/home/ana/night.db", "nfs4 at /home"),
        ("/mnt/with space/night.db", "cifs"),
        ("/mnt/etl/july/night.db", "ssh://ana@etl.example/srv/night/july/night.db"),
    ],
)
def test_a_network_file_system_is_refused_with_the_way_out(mounts_path: str, path: str, words: str) -> None:
    assert words in str(paths.network_problem(path, mounts_path))


@pytest.mark.parametrize("path", ["/var/night.db", "/home/local/night.db", "/mnt/etlx/night.db"])
def test_a_local_file_system_is_fine(mounts_path: str, path: str) -> None:
    assert paths.network_problem(path, mounts_path) is None


def test_opening_on_a_network_file_system_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "network_problem", lambda path: f"{path} is on nfs")
    with pytest.raises(StateFileError, match="is on nfs"):
        database.open_for_writing(tmp_path / "state.db")
    assert not list(tmp_path.iterdir())


def test_a_log_that_was_cut_short_under_a_reader_is_named_and_the_file_stays_whole(tmp_path: Path) -> None:
    path = make_closed(tmp_path / "state.db")
    writer = database.open_for_writing(path)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        writer.execute("INSERT INTO meta (key, value) VALUES ('told', 'yes')")
        assert reader.execute("SELECT value FROM meta WHERE key = 'told'").fetchone() == ("yes",)
        writer.close()
        os.truncate(f"{path}-wal", 0)
        with pytest.raises(StorageError, match="was cut short while other programs had it open: close them"):
            database.open_for_writing(path)
    with closing(database.open_for_writing(path)) as connection:
        assert database.integrity_check(connection) == []


def test_an_sqlite_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 22, 0))
    for open_it in (database.open_for_writing, database.open_for_reading):
        with pytest.raises(StateFileError, match=r"needs 3\.24\.0"):
            open_it(tmp_path / "state.db")


def statements() -> Any:
    return (Path(database.__file__).parent / "schema.sql").read_text().upper()


@for_each("word", ["STRICT", "GENERATED ALWAYS", "->>", "RETURNING", "UNIXEPOCH()"])
def test_the_schema_is_readable_for_the_sqlite_of_old_servers(word: str) -> None:
    code = "\n".join(line.partition("--")[0] for line in statements().splitlines())
    assert word not in code
