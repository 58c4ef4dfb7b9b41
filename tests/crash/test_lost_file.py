"""Somebody removes, moves or replaces the state file, its lock or its socket under a living executor."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from redrive.engine import Executor, Flow, RunOptions
from redrive.engine.agent import command_client, executor_socket
from redrive.engine.domain.acts import parse_command
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.errors import StateFileError, StorageError
from redrive.engine.executor import state_file_watch
from redrive.engine.executor.opening import Machine
from redrive.engine.statefile import lock_file
from redrive.engine.statefile.opening import open_readonly
from redrive.engine.store import database
from redrive.engine.store.write_ahead_log import free_copy_path
from support.commands import REDRIVE, quoted, run_redrive, start_redrive
from support.marks import parametrize_mostly_long
from support.waiting import wait_until

FLOW = """
import pathlib, time
from redrive.engine import Flow

flow = Flow("night")
go_on = pathlib.Path(__file__).with_name("go-on")

@flow.task
def long():
    while not go_on.exists():
        time.sleep(0.02)
    return 42

@flow.task(after=long)
def below(): ...
"""


#: Modes of files hold for root as they hold for everybody else.
ORDINARY_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.getuid() == 0 else ()


class RunUnderWay:
    """A run under way, in a folder of its own: ``long`` runs until ``proceed``."""

    def __init__(self, folder: Path, state: Path | None = None, prefix: Sequence[str] = ()) -> None:
        self.folder, self._prefix = folder, prefix
        (folder / "flow.py").write_text(FLOW)
        self.state = state or folder / "state.db"
        self.process = self._redrive("run", str(folder / "flow.py"), "--state", str(self.state), "--run-id", "r")
        self.read_until("long RUNNING")

    def _redrive(self, *words: str) -> Any:
        return start_redrive(*words, "--plain", prefix=self._prefix)

    def read_until(self, word: str) -> str:
        """What it prints, up to the line that holds ``word``."""
        return self.read_until_found(lambda line: word in line)

    def read_until_found(self, is_found: Callable[[str], bool]) -> str:
        """What it prints, up to the line that ``is_found``."""
        output = self.read_to_end_or(is_found)
        assert is_found(output), output
        return output

    def read_to_end_or(self, is_found: Callable[[str], bool]) -> str:
        """What it prints, up to the line that ``is_found`` or to its end."""
        output = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            output += line
            if is_found(line):
                break
        return output

    def proceed(self) -> None:
        (self.folder / "go-on").touch()

    def end(self) -> str:
        """What it prints to its end; ``communicate`` would lose lines that came together with the last one read."""
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        self.process.wait(timeout=120)
        return output

    def resume(self) -> int:
        resumed = self._redrive("resume", str(self.state))
        resumed.communicate(timeout=120)
        return resumed.returncode


def rows(path: Path) -> list[tuple[str, str]]:
    with database.reading(path) as connection:
        return connection.execute("SELECT name, state FROM task ORDER BY position").fetchall()


@pytest.fixture
def live_run(tmp_path: Path) -> Iterator[RunUnderWay]:
    live_run = RunUnderWay(tmp_path)
    yield live_run
    if live_run.process.poll() is None:
        live_run.process.kill()
        live_run.end()


@parametrize_mostly_long("pattern", ["state.db", "state.db*"])
def test_a_removed_file_is_kept_and_resumed(live_run: RunUnderWay, pattern: str) -> None:
    """What runs ends, and its result is in the copy; nothing else is started."""
    for path in live_run.folder.glob(pattern):
        path.unlink()
    output = live_run.read_until("storage degraded")
    assert f"a process has removed {live_run.state}; all of it is kept in {live_run.state}.rescued" in output
    live_run.proceed()
    output = live_run.end()
    assert (
        live_run.process.returncode == 2 and f"mv {live_run.state}.rescued {live_run.state} && redrive resume" in output
    )
    assert "below RUNNING" not in output
    copied = Path(f"{live_run.state}.rescued")
    assert rows(copied) == [("long", "SUCCESS"), ("below", "READY")]
    assert copied.stat().st_mode & 0o777 == 0o600
    assert not live_run.state.exists()
    copied.rename(live_run.state)
    assert live_run.resume() == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
def test_a_moved_file_is_moved_back_and_the_run_goes_on(live_run: RunUnderWay) -> None:
    away = live_run.folder / "away.db"
    live_run.state.rename(away)
    assert f"mv {away} {live_run.state} and the run goes on" in live_run.read_until("storage degraded")
    answer = executor_socket.ping(str(live_run.state))
    assert answer is not None and "was moved" in answer["storage_problem"]
    live_run.proceed()
    live_run.read_until("long SUCCESS")
    away.rename(live_run.state)
    output = live_run.read_until("storage recovered") + live_run.end()
    assert "below SUCCESS" in output
    assert live_run.process.returncode == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_a_removed_log_is_brought_into_the_file(live_run: RunUnderWay, suffix: str) -> None:
    Path(f"{live_run.state}{suffix}").unlink()
    assert f"a process has removed {live_run.state}{suffix}, which holds the latest changes" in live_run.read_until(
        "storage"
    )
    reader = sqlite3.connect(f"file:{live_run.state}?mode=ro", uri=True)  # keeps the closing writer from a checkpoint
    live_run.proceed()
    output = live_run.end()
    assert live_run.process.returncode == 2 and f"and ends; then redrive resume {quoted(live_run.state)}" in output
    assert "below RUNNING" not in output and "Traceback" not in output
    reader.close()
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "READY")]
    assert live_run.resume() == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
def test_a_log_that_was_cut_short_ends_the_executor_which_saves_its_memory(live_run: RunUnderWay) -> None:
    """At once: nothing that ends now can be written."""
    os.truncate(f"{live_run.state}-wal", 0)
    output = live_run.end()
    assert live_run.process.returncode == 2 and "Traceback" not in output
    assert f"somebody has cut {live_run.state}-wal short" in output
    steps = output.rpartition(f"{live_run.state}.rescued: ")[2].partition(" && redrive resume")[0]
    subprocess.run(steps, shell=True, check=True)
    live_run.proceed()
    assert live_run.resume() == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
def test_an_index_that_was_cut_short_is_made_again_before_it_is_read(live_run: RunUnderWay) -> None:
    """Else the executor would end by SIGBUS at its next commit, and the run would wait for a resume."""
    index = Path(f"{live_run.state}-shm")
    length = index.stat().st_size
    os.truncate(index, 0)
    wait_until(lambda: index.stat().st_size == length)
    live_run.proceed()
    output = live_run.end()
    assert live_run.process.returncode == 0 and "storage" not in output, output
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]
    with database.reading(live_run.state) as connection:
        assert database.integrity_check(connection) == []


def test_acts_are_refused_with_what_to_do(live_run: RunUnderWay) -> None:
    live_run.state.unlink()
    live_run.read_until("storage degraded")
    command = {"id": "c", "act": "pause", "run_id": "r", "actor": "ana@desk", "targets": [], "options": {}}
    answer = command_client.send_blocking(str(live_run.state), parse_command(command)).as_json()
    assert not answer["ok"] and "all of it is kept in" in answer["message"]


@pytest.mark.long
def test_a_removed_lock_is_made_again(live_run: RunUnderWay) -> None:
    Path(lock_file.lock_path(str(live_run.state))).unlink()
    assert "the lock file of" in live_run.read_until("storage lock")
    holder = lock_file.current_holder(str(live_run.state))
    assert holder is not None and holder.pid == live_run.process.pid and holder.run_id == "r"
    assert live_run.resume() == 75
    live_run.proceed()
    live_run.end()
    assert live_run.process.returncode == 0


@pytest.mark.long
def test_a_removed_socket_is_made_again(live_run: RunUnderWay) -> None:
    path = executor_socket.socket_path(str(live_run.state))
    os.unlink(path)
    answer = wait_until(lambda: executor_socket.ping(str(live_run.state)))
    assert answer is not None and answer["pid"] == live_run.process.pid
    live_run.proceed()
    live_run.end()
    assert live_run.process.returncode == 0 and not os.path.exists(path)


def test_the_log_of_a_dead_executor_is_not_joined_with_another_file(live_run: RunUnderWay) -> None:
    """That one was put in the place of its file before it was killed."""
    copied = live_run.folder / "copy.db"
    with closing(sqlite3.connect(live_run.state)) as connection, closing(sqlite3.connect(copied)) as target:
        connection.backup(target)
        target.execute("UPDATE task SET state = 'SKIPPED'")
        target.commit()
    copied.rename(live_run.state)
    live_run.process.kill()
    live_run.process.wait()
    refused = run_redrive("tasks", live_run.state)
    said = f"{live_run.state}-wal has the changes of another file, which was in the place of {live_run.state}"
    assert refused.returncode == 2 and said in refused.stderr and live_run.resume() == 2
    subprocess.run(refused.stderr.rpartition("died: ")[2], shell=True, check=True)
    assert rows(live_run.state) == [("long", "SKIPPED"), ("below", "SKIPPED")]


@pytest.mark.long
def test_a_copy_that_cannot_be_made_is_reported_and_made_at_the_end(live_run: RunUnderWay) -> None:
    """Nowhere to copy to: it is said, and that the process still has it."""
    for path in live_run.folder.glob("state.db*"):
        path.unlink()
    live_run.state.with_suffix(".db.rescued.part").mkdir()
    assert f"when pid {live_run.process.pid} ends" in live_run.read_until("when pid")
    live_run.state.with_suffix(".db.rescued.part").rmdir()
    live_run.proceed()
    live_run.end()
    assert rows(Path(f"{live_run.state}.rescued")) == [("long", "SUCCESS"), ("below", "READY")]


# --- Cut short -----------------------------------------------------------------------------------------------------

#: Bytes that are left of a state file of so many bytes.
CUTS: dict[str, Callable[[int], int]] = {
    "nothing": lambda size: 0,
    "a page": lambda size: 4096,
    "the header": lambda size: 100,
    "half": lambda size: size // 2,
    "all but a page": lambda size: size - 4096,
    "all but a byte": lambda size: size - 1,
}


@parametrize_mostly_long("left", CUTS, quick=0, daily=2)
@parametrize_mostly_long("is_running", [True, False], quick=1)
def test_a_file_that_is_cut_short_ends_the_executor_which_saves_it(
    live_run: RunUnderWay, left: str, is_running: bool
) -> None:
    """While nothing is written, and at the next commit, which would end the run as a success."""
    if not is_running:
        os.kill(live_run.process.pid, signal.SIGSTOP)
    os.truncate(live_run.state, CUTS[left](live_run.state.stat().st_size))
    if not is_running:
        live_run.proceed()
        os.kill(live_run.process.pid, signal.SIGCONT)
    output = live_run.end()
    assert live_run.process.returncode == 2 and "Traceback" not in output, output
    assert "run r SUCCESS" not in output
    assert f"somebody has cut {live_run.state} short; all of it is kept in {live_run.state}.rescued: rm -f" in output
    steps = output.rpartition(f"{live_run.state}.rescued: ")[2].partition(" && redrive resume")[0]
    subprocess.run(steps, shell=True, check=True)
    live_run.proceed()
    assert live_run.resume() == 0
    assert rows(live_run.state) == [("long", "SUCCESS"), ("below", "SUCCESS")]


@pytest.mark.long
def test_a_folder_that_is_renamed_is_renamed_back_and_the_run_goes_on(live_run: RunUnderWay) -> None:
    away = live_run.folder.with_name("renamed folder")
    live_run.folder.rename(away)
    back = f"mv '{away}' {live_run.folder}"
    output = live_run.read_until("storage degraded")
    assert f"the folder of {live_run.state} was moved: {back} and the run goes on; nothing is lost" in output
    subprocess.run(back, shell=True, check=True)
    output = live_run.read_until("storage recovered")
    assert "lost when" not in output and "could not be made" not in output
    live_run.proceed()
    live_run.end()
    assert live_run.process.returncode == 0 and not Path(f"{live_run.state}.rescued").exists()


@pytest.mark.long
def test_a_moved_file_that_is_then_removed_is_kept(live_run: RunUnderWay) -> None:
    away = live_run.folder / "away.db"
    live_run.state.rename(away)
    assert "was moved" in live_run.read_until("storage degraded")
    away.unlink()
    assert f"a process has removed {live_run.state}; all of it is kept" in live_run.read_until("storage degraded")
    live_run.proceed()
    live_run.end()
    assert live_run.process.returncode == 2
    assert rows(Path(f"{live_run.state}.rescued")) == [("long", "SUCCESS"), ("below", "READY")]


@pytest.mark.long
def test_resume_is_refused_before_it_imports_the_flow(live_run: RunUnderWay) -> None:
    """Whatever the flow would say: another executor owns the file."""
    (live_run.folder / "flow.py").write_text("raise RuntimeError('imported')")
    resumed = start_redrive("resume", str(live_run.state), "--plain")
    output, _ = resumed.communicate(timeout=120)
    assert resumed.returncode == 75 and f"pid {live_run.process.pid}" in output and "imported" not in output


# --- The matrix ------------------------------------------------------------------------------------------------------


class Harm(NamedTuple):
    """What is done to the files of a run, and what its executor says and does. ``{}`` is the path of the state file."""

    commands: str  # of a shell in the parent of ``$d``, the folder of the state file
    sentence: str
    exit_code: int = 2
    #: What an executor that waits for it says while it runs; None: it ends by itself.
    waits: str | None = None
    kept_at: str = "{}.rescued"


REMOVED = "a process has removed {}; all of it is kept in {}.rescued: rm -f"
REPLACED = "another file is in the place of {}; all of it is kept in {}.rescued: mv {} {}.replaced && rm -f"
CUT = "somebody has cut {} short; all of it is kept in {}.rescued: rm -f"
MOVED = "{} was moved: "
GOES_ON = "and the run goes on"

HARMS: dict[str, Harm] = {
    "the folder is moved": Harm("mv $d away", "the folder of {} was moved: ", waits=GOES_ON, kept_at="away/s.db"),
    "nothing may be made in the folder": Harm("chmod 555 $d", "", 0, kept_at="{}"),
    "the file is removed": Harm("rm $d/s.db", REMOVED),
    "all files are removed": Harm("rm $d/s.db*", REMOVED),
    "the folder is removed": Harm("rm -r $d", REMOVED),
    "the folder is removed and made again": Harm("rm -r $d && mkdir $d", REMOVED),
    "the file goes to another disk": Harm("cp $d/s.db away.db && rm $d/s.db", REMOVED),
    "the file is renamed": Harm("mv $d/s.db $d/away.db", MOVED, waits=GOES_ON),
    "the file is moved": Harm("mkdir away && mv $d/s.db away", MOVED, waits=GOES_ON),
    "all files are moved": Harm("mkdir away && mv $d/s.db* away", MOVED, waits=GOES_ON),
    "the folder is moved and made again": Harm("mv $d away && mkdir $d", MOVED, waits=GOES_ON),
    "the file is renamed and the folder moved": Harm(
        "mv $d/s.db $d/t.db && mv $d away", MOVED, waits=GOES_ON, kept_at="the place to which it is moved back"
    ),
    "a link replaces the file": Harm("mv $d/s.db $d/real.db && ln -s real.db $d/s.db", MOVED, waits=GOES_ON),
    "a copy replaces the file": Harm("cp $d/s.db c.db && mv c.db $d/s.db", REPLACED),
    "another file replaces the file": Harm("echo mine > mine && mv mine $d/s.db", REPLACED),
    "a folder replaces the file": Harm("rm $d/s.db && mkdir $d/s.db", REPLACED),
    "a text is written over the file": Harm("echo mine > $d/s.db", CUT),
    "zeros are written over the file": Harm(
        "head -c $(stat -c %s $d/s.db) /dev/zero > z && cat z 1<> $d/s.db >&1",
        "{} cannot be read back (file is not a database); all of it is kept in {}.rescued: rm -f",
    ),
    "the log is removed": Harm("rm $d/s.db-wal", "a process has removed {}-wal, which holds the latest", kept_at="{}"),
    "the log is cut": Harm(": > $d/s.db-wal", "somebody has cut {}-wal short, which held the latest"),
    "a copy is written over the file": Harm("cp $d/s.db c.db && cat c.db 1<> $d/s.db >&1", "", 0, kept_at="{}"),
    "the file may only be read": Harm("chmod 444 $d/s.db", "", 0, kept_at="{}"),
    "the file may not be read": Harm(
        "chmod 0 $d/s.db", "{} cannot be read back (unable to open database file); all of it is kept in {}.rescued: rm"
    ),
}
#: Of these an end that comes before the next look at the files is a success: nothing was missing at the end.
WHOLE_AT_THE_END = {"the log is removed"}


def do(commands: str, folder: Path) -> None:
    """Run shell commands; ``redrive resume`` in them is the one that is tested."""
    redrive = shlex.join(REDRIVE)
    function = f'redrive() {{ {redrive} "$@" --plain; }}\nd={shlex.quote(str(folder))}\n'
    subprocess.run(["bash", "-ec", function + commands], cwd=folder.parent, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def folder_of_a_run(tmp_path: Path) -> Iterator[Path]:
    """A folder below another, so that it can be moved and removed; writable again at the end."""
    folder = tmp_path / "state"
    folder.mkdir()
    (tmp_path / "flow.py").write_text(FLOW)
    yield folder
    if folder.exists():
        folder.chmod(0o700)


def _is_named(output: str) -> bool:
    return "storage degraded" in output or "redrive:" in output


@parametrize_mostly_long("harm", HARMS, quick=0, daily=len(HARMS) // 6)
@parametrize_mostly_long("is_at_the_end", [True, False])
def test_each_harm_is_named_and_nothing_is_lost(folder_of_a_run: Path, harm: str, is_at_the_end: bool) -> None:
    """While it runs, and in the last second before it would end as a success: the commands that it names are run."""
    folder, cell = folder_of_a_run, HARMS[harm]
    live_run = RunUnderWay(folder.parent, folder / "s.db", ORDINARY_USER if "chmod" in cell.commands else ())
    try:
        if is_at_the_end:
            os.kill(live_run.process.pid, signal.SIGSTOP)
        do(cell.commands, folder)
        output = ""
        if not is_at_the_end and cell.exit_code and "cannot be read back" not in cell.sentence:
            output = live_run.read_until_found(_is_named)
            if cell.sentence in (REPLACED, MOVED, REMOVED) and (folder / "s.db.health").exists():
                with pytest.raises(StateFileError, match=f"not the file that pid {live_run.process.pid} on"):
                    open_readonly(str(folder / "s.db"))
        live_run.proceed()
        os.kill(live_run.process.pid, signal.SIGCONT)
        if cell.waits is not None and is_at_the_end:
            output = live_run.read_to_end_or(_is_named)  # it may look at its files before it sees that the task ended
        has_ended = "run r SUCCESS" in output  # it leaves: a signal would take its exit code
        if cell.waits is not None and not has_ended and (not is_at_the_end or cell.waits in output):
            assert cell.waits in output, output
            if "long SUCCESS" not in output:
                output += live_run.read_until("long SUCCESS")
            live_run.process.terminate()
        output += live_run.end()
    finally:
        if live_run.process.poll() is None:
            live_run.process.kill()
            live_run.end()
    is_whole = is_at_the_end and harm in WHOLE_AT_THE_END
    assert live_run.process.returncode == (0 if is_whole else cell.exit_code), output
    last = output.rstrip().rpartition("\n")[2]
    path = str(folder / "s.db")
    if cell.exit_code and not is_whole:
        assert last.startswith("redrive: " + cell.sentence.replace("{}", path)), output
        assert cell.sentence not in (REPLACED, REMOVED) or not (folder / "s.db-wal").exists(), "nobody joins it"
        assert GOES_ON not in last and "lost" not in last.replace("nothing is lost", "")
        do(_steps_in(last, path), folder)
    live_run.proceed()
    assert rows(folder / "s.db") == [("long", "SUCCESS"), ("below", "SUCCESS")]


def _steps_in(sentence: str, path: str) -> str:
    """The commands that a sentence names."""
    if "was moved" in sentence:
        return sentence.partition("was moved: ")[2].rpartition("; ")[0]
    if "brings them into" in sentence:
        return sentence.rpartition("; then ")[2]
    return sentence.rpartition(".rescued: ")[2]


class HarmBetweenRuns(NamedTuple):
    """What is done to the files of a run that was stopped, and what ``resume`` and ``tasks`` say."""

    commands: str
    sentence: str


BETWEEN_RUNS: dict[str, HarmBetweenRuns] = {
    "removed": HarmBetweenRuns("rm $d/s.db", "there is no state file {}"),
    "removed, with a copy": HarmBetweenRuns(
        "mv $d/s.db $d/s.db.rescued", "there is no state file {}; what an executor kept of it is in {}.rescued: rm -f"
    ),
    "the folder is removed": HarmBetweenRuns("rm -r $d", "there is no state file {}"),
    "the folder is moved": HarmBetweenRuns("mv $d away", "there is no state file {}"),
    "a text in its place": HarmBetweenRuns("echo mine > $d/s.db", "{} is not a redrive state file"),
    "a folder in its place": HarmBetweenRuns("rm $d/s.db && mkdir $d/s.db", "{} is a directory"),
    "a link to nothing": HarmBetweenRuns("rm $d/s.db && ln -s nowhere $d/s.db", "there is no state file "),
    "empty": HarmBetweenRuns(": > $d/s.db", "{} is empty, but run r was written into it: restore a copy"),
    "cut to less than a header": HarmBetweenRuns("truncate -s 50 $d/s.db", "{} is cut short: 50 bytes are left"),
    "cut to a page": HarmBetweenRuns("truncate -s 4096 $d/s.db", "{} is cut short: 4096 of"),
    "cut by a byte": HarmBetweenRuns("truncate -s -1 $d/s.db", "{} is cut short: "),
}


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    live_run = RunUnderWay(folder, folder / "s.db")
    live_run.process.terminate()
    live_run.end()
    assert live_run.process.returncode == 130
    return folder


@parametrize_mostly_long("harm", BETWEEN_RUNS, quick=2)
def test_each_harm_between_runs_is_named_and_changes_nothing(stopped_run: Path, tmp_path: Path, harm: str) -> None:
    folder = tmp_path / "state"
    shutil.copytree(stopped_run, folder)
    do(BETWEEN_RUNS[harm].commands, folder)
    before = {path: path.read_bytes() for path in folder.rglob("s.db*") if path.is_file()}
    path = str(folder / "s.db")
    for command in ("resume", "tasks"):
        done = run_redrive(command, path)
        assert done.returncode == 2 and done.stdout == "", done
        assert done.stderr.startswith("redrive: " + BETWEEN_RUNS[harm].sentence.replace("{}", path)), done.stderr
    after = {path: path.read_bytes() for path in folder.rglob("s.db*") if path.is_file()}
    assert {path: after.get(path) for path in before} == before


def test_a_moved_folder_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor of which nothing runs ends after a limit, with the commands that bring all of it back."""
    monkeypatch.setattr(state_file_watch, "MOVED_SECONDS", 0.2)
    folder, seen = tmp_path / "state", tmp_path / "seen"
    flow = Flow("night")
    flow.task(lambda: os.rename(folder, tmp_path / "away"), name="moves")
    flow.task(lambda: wait_until(seen.exists), name="waits")

    def listen(events: Sequence[Event]) -> None:
        if any(event.kind == EventKind.STORAGE for event in events):
            seen.touch()

    flow.task(lambda: None, name="below", after=["moves", "waits"])
    folder.mkdir()
    with pytest.raises(StorageError, match=r"was moved: mv .*away .*state && redrive resume .*; nothing is lost"):
        options = RunOptions(max_parallel=2)
        machine = Machine(heartbeat_seconds=0.1)
        Executor(flow=flow, state=folder / "s.db", options=options, machine=machine, on_events=listen).run()
    assert rows(tmp_path / "away" / "s.db") == [("moves", "SUCCESS"), ("waits", "SUCCESS"), ("below", "READY")]


def test_a_copy_is_not_written_over_an_earlier_one(tmp_path: Path) -> None:
    path = str(tmp_path / "s.db")
    assert free_copy_path(path) == path + ".rescued"
    for name in ("s.db.rescued", "s.db.rescued.2"):
        (tmp_path / name).touch()
    assert free_copy_path(path) == path + ".rescued.3"
