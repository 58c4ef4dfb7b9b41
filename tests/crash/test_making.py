"""A kill while a state file is made or a run starts, at each step: the next start works, and nothing starts twice."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redrive.engine.errors import StateFileError
from redrive.engine.statefile import lock_file, start_requests, supervisor_file
from redrive.engine.store import database, lock, making
from redrive.engine.store.supervisor_writer import SupervisorFile
from support.commands import run_redrive
from support.marks import parametrize_mostly_long
from support.waiting import wait_until

STEPS_MAX = 500
FLOW = "from redrive.engine import Flow\nflow = Flow('f')\n@flow.task(timeout=30)\ndef a(): pass\n"


def killed_at_step(number: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that ends by SIGKILL before its step ``number``: a call that changes a file, or SQL.

    False: the work has fewer steps.
    """
    pid = os.fork()
    if pid == 0:
        try:
            _count_steps(number)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def _count_steps(number: int) -> None:
    left = iter(range(number))

    def step(*_: object) -> None:
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **options: Any) -> Any:
            step()
            return function(*values, **options)

        return call

    class Connection(sqlite3.Connection):
        def __init__(self, *values: Any, **options: Any) -> None:
            super().__init__(*values, **options)
            self.set_trace_callback(step)

    for name in ("open", "link", "unlink", "replace", "fsync", "chmod", "close", "pwrite", "ftruncate"):
        setattr(os, name, counted(getattr(os, name)))
    connect = sqlite3.connect
    sqlite3.connect = lambda *values, **options: connect(*values, factory=Connection, **options)  # type: ignore


def each_kill(folder: Path, work: Callable[[Path], object]) -> Iterator[Path]:
    """Yield a state path in a folder of its own, after a kill of ``work`` at each of its steps."""
    for number in range(STEPS_MAX):
        path = folder / str(number) / "state.db"
        path.parent.mkdir()
        if not killed_at_step(number, lambda path=path: work(path)):  # type: ignore[misc]
            assert number > 10
            return
        yield path
    raise AssertionError("the work does not end")


def make_given(path: Path) -> None:
    path.touch(0o644)
    database.open_for_writing(path)


def without_links(path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    os.link = refuse  # type: ignore[assignment]
    database.open_for_writing(path)


def assert_new(path: Path) -> None:
    """What a kill has left is no run for a reader, and a start makes a whole file of mode 0600."""
    try:
        with database.reading(path) as reader:
            assert reader.execute("SELECT count(*) FROM run").fetchall() == [(0,)]
    except StateFileError as error:
        assert re.search(r"there is no state file|is empty: no run has been recorded|has no run, no lock", str(error))
    held = lock.acquire(str(path), "executor-2")
    connection = database.open_for_writing(path)
    assert connection.execute("SELECT count(*) FROM run").fetchall() == [(0,)]
    assert database.integrity_check(connection) == []
    connection.close()
    held.release()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_nlink == 1
    assert {found.name for found in path.parent.iterdir()} - {"state.db.py"} == {"state.db", "state.db.lock"}


@parametrize_mostly_long("work", [database.open_for_writing, make_given, without_links], quick=0, daily=1)
def test_a_start_after_a_kill_at_any_step_of_the_making(tmp_path: Path, work: Callable[[Path], object]) -> None:
    for path in each_kill(tmp_path, work):
        assert_new(path)


def test_a_making_never_replaces_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.db"
    name = making._name

    def appear(made: str, real: str) -> None:
        path.write_text("somebody's letter")
        name(made, real)

    monkeypatch.setattr(making, "_name", appear)
    with pytest.raises(StateFileError, match="File exists"):
        database.open_for_writing(path)
    assert path.read_text() == "somebody's letter" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["blank", "journal"])
def test_a_run_starts_in_what_earlier_versions_left(tmp_path: Path, kind: str) -> None:
    """They wrote in place: the first page, then all tables in a second transaction."""
    path = tmp_path / "state.db"
    pid = os.fork()
    if pid == 0:
        try:
            connection = sqlite3.connect(path, isolation_level=None)
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
            if kind == "journal":
                connection.execute("PRAGMA cache_size=1")
                connection.execute("BEGIN IMMEDIATE")
                making.create_tables(connection)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)  # other children of this process may end meanwhile
    assert path.stat().st_size >= 4096 and (kind == "blank" or Path(f"{path}-journal").stat().st_size)
    assert "is empty: no run has been recorded" in run_redrive("tasks", path).stderr
    flow = tmp_path / "flow.py"
    flow.write_text(FLOW)
    done = run_redrive("run", flow, "--state", path, "--plain")
    assert done.returncode == 0, done.stderr


# --- At each system call ---------------------------------------------------------------------------------------------

CALLS = "openat,pwrite64,write,fsync,fdatasync,link,unlink,rename,renameat,ftruncate,fallocate,chmod,flock,close,mkdir"
STARTS = "openat,write,ftruncate,close,mkdir,memfd_create,pipe2,vfork,read"
MAKE_STATE_FILE = "database.open_for_writing({path!r})"
MAKE_GIVEN = "open({path!r}, 'x').close(); database.open_for_writing({path!r})"
LOCK = "held = lock.acquire({path!r}, 'executor-1', 'r'); held.set_run('s'); held.release()"
SUPERVISE = "file = SupervisorFile({path!r}, 'one'); file.register(1, 'h', '[]', 5); file.beat(6); file.close()"
ASK = "write_request('f', '/f.db', None, {{}}, 'ana@here', 7)"
CLAIM = "claim(read_requests()[0])"
START = "host.spawn(flow={path!r} + '.py', state={path!r}, run_id='r', options={{}})"
EXECUTE = "Executor(flow={path!r} + '.py', state={path!r}, run_id='r').run_result()"
PROGRAM = """
import os, sys
from redrive.engine.executor import host
from redrive.engine.executor.executor import Executor
from redrive.engine.store import database, lock, making
from redrive.engine.statefile.start_requests import claim, read_requests, write_request
from redrive.engine.store.supervisor_writer import SupervisorFile
os.path.exists("/begin")
{work}
"""


def kills(work: str, folder: Path, calls: str = CALLS, every: int = 1) -> Iterator[Path]:
    """Yield a path after a kill at each system call of ``work`` that changes a file or its descriptors.

    ``every``: of the calls with one name, at the first one and each ``every``-th after it.
    """
    names = _calls_of(work, folder / "counted", calls)
    for name in sorted(set(names)):
        first, count = names[name]
        for number in range(first, first + count, every):
            path = folder / f"{name}-{number}" / "state.db"
            path.parent.mkdir()
            path.with_name("state.db.py").write_text(FLOW)
            inject = f"inject={name}:signal=KILL:when={number}"
            done = _traced(work, path, "-e", f"trace={name}", "-e", inject)
            assert done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL, 137), done.stderr
            yield path


def _calls_of(work: str, folder: Path, calls: str) -> dict[str, tuple[int, int]]:
    """By system call: the number of the first one of ``work``, and how many it has."""
    folder.mkdir()
    (folder / "state.db.py").write_text(FLOW)
    done = _traced(work, folder / "state.db", "-e", f"trace={calls},stat,newfstatat")
    assert done.returncode == 0, done.stderr
    before, _, own = (folder / "trace").read_text().partition('"/begin"')
    found = {}
    for name in calls.split(","):
        count = len(re.findall(rf"^{name}\(", own.partition("exit_group")[0], re.MULTILINE))
        if count:
            found[name] = len(re.findall(rf"^{name}\(", before, re.MULTILINE)) + 1, count
    return found


def _traced(work: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(work=work.format(path=str(path))) + "\nos._exit(0)"
    words = ["strace", "-o", str(path.with_name("trace")), *options, sys.executable, "-c", program]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True)
    if "inject" in " ".join(options):
        path.with_name("trace").unlink()
    return done


#: Each kill costs an interpreter: some of them each day, all of them once a week.
@parametrize_mostly_long(
    ("work", "every"), [(MAKE_STATE_FILE, 5), (MAKE_STATE_FILE, 1), (MAKE_GIVEN, 1)], quick=0, daily=1
)
def test_a_start_after_a_kill_at_any_system_call_of_the_making(tmp_path: Path, work: str, every: int) -> None:
    for path in kills(work, tmp_path, every=every):
        assert_new(path)


@pytest.mark.long
def test_a_start_after_a_kill_at_any_system_call_of_the_lock(tmp_path: Path) -> None:
    for path in kills(LOCK, tmp_path):
        holder = lock_file.current_holder(str(path))
        assert holder is None
        held = lock.acquire(str(path), "executor-2", "t")
        assert lock_file.last_holder(str(path)) == held.holder
        held.release()


@pytest.mark.long
@pytest.mark.weekly
def test_a_start_after_a_kill_at_any_system_call_of_a_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in kills(SUPERVISE, tmp_path):
        monkeypatch.setattr(supervisor_file, "supervisor_path", lambda path=path: str(path))
        assert supervisor_file.read_schedules().schedules == ()
        file = SupervisorFile(str(path), "two")
        file.register(2, "h", "[]", 7)
        file.close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.long
def test_a_start_that_is_asked_for_is_whole_or_absent_after_a_kill_at_any_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    os.makedirs(start_requests.requests_folder())  # its making is one call more
    found = []
    for _ in kills(ASK, tmp_path):
        found += (left := start_requests.read_requests())
        for request in left:
            assert (request.who, request.params) == ("ana@here", {})
            start_requests.remove(request)
    assert found, "a kill after the last step leaves it"


@pytest.mark.long
def test_a_start_is_claimed_once_whatever_kills_its_supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    asked = start_requests.write_request("f", "/f.db", None, {}, "ana@here", 7)
    for _ in kills(CLAIM, tmp_path):
        assert start_requests.read_requests() == [asked]
        assert start_requests.claim(asked), "by the next one"


@parametrize_mostly_long("every", [3, 1], quick=0, daily=1)
def test_a_run_starts_once_or_not_at_all_whenever_its_starter_is_killed(tmp_path: Path, every: int) -> None:
    found = Counter[int]()
    for path in kills(START, tmp_path, STARTS, every):
        wait_until(lambda path=path: not processes_of(path))  # type: ignore[misc]
        found[len(states := states_of(path))] += 1
        assert states in ([], ["SUCCESS"]), path
        log = path.with_name("state.db.stderr")
        assert not log.exists() or log.read_text() == "", path
    assert set(found) == {0, 1}


@parametrize_mostly_long("every", [97, 31], quick=0, daily=1)
def test_a_run_ends_once_whenever_its_executor_is_killed(tmp_path: Path, every: int) -> None:
    for path in kills(EXECUTE, tmp_path, every=every):
        wait_until(lambda path=path: not processes_of(path))  # type: ignore[misc]
        words = ("resume", path) if states_of(path) == ["RUNNING"] else ("run", f"{path}.py", "--state", path)
        assert states_of(path) == ["SUCCESS"] or run_redrive(*words, "--plain").returncode == 0
        assert states_of(path) == ["SUCCESS"], path


def processes_of(path: Path) -> list[str]:
    """The processes that name a path among their words."""
    found = []
    for words in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            found += [words.parent.name] if os.fsencode(path) in words.read_bytes() else []
    return found


def states_of(path: Path) -> list[str]:
    try:
        with database.reading(str(path)) as reader:
            return [state for (state,) in reader.execute("SELECT state FROM run")]
    except StateFileError:
        return []
