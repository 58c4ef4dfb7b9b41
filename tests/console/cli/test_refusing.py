"""What is wrong on a command line, for every command: its exit code, its stream, and one sentence that helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import quoted, run_redrive, startup_variables
from support.marks import parametrize_mostly_long

REDRIVE = Path(sys.executable).with_name("redrive")
FLOW = """
from redrive.engine import Flow, RetryPolicy
flow = Flow("night", params={"day": "monday", "limit": 3, "share": 0.5, "names": ["a"], "really": False})
@flow.task(retry=RetryPolicy(max_attempts=1))
def fails(): raise ValueError("no")
@flow.task(after=fails)
def below(): ...
@flow.task
def fine(): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a flow, and with the state file of a run of it that failed."""
    folder = tmp_path_factory.mktemp("night")
    (folder / "flow.py").write_text(FLOW)
    assert redrive(folder, "run", "flow.py", "--state", "night.db", "--plain", "--run-id", "first").returncode == 1
    return folder


def redrive(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    own = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "XDG_STATE_HOME": str(folder / "states")}
    return run_redrive(*words, cwd=folder, env=startup_variables(os.environ) | own, errors="surrogateescape")


def assert_refused(done: subprocess.CompletedProcess[str], code: int, sentence: str) -> None:
    assert sentence in done.stderr.splitlines()[-1]
    assert done.returncode == code
    assert all(line.startswith("night first in ") for line in done.stdout.splitlines())  # what the answer is about
    assert "Traceback" not in done.stderr


READING = ("tasks", "inbox", "events", "pages", "breakers", "replay", "quarantine", "attach")
ON_A_RUN = [
    *((name, "night.db") for name in READING),
    *((name, "night.db") for name in ("pause", "unpause")),
    *((name, "night.db", "fails", "--reason", "x") for name in ("requeue", "skip", "cancel")),
    ("extend", "night.db", "fails", "1m", "--reason", "x"),
    ("resume", "night.db", "--plain"),
]


@parametrize_mostly_long("words", ON_A_RUN, quick=3, ids=lambda words: words[0])
def test_a_run_that_is_not_there_is_bad_usage(folder: Path, words: tuple[str, ...]) -> None:
    assert_refused(redrive(folder, *words, "--run", "nosuch"), 2, "there is no run 'nosuch'")


@parametrize_mostly_long("words", ON_A_RUN, quick=3, ids=lambda words: words[0])
def test_a_state_file_that_is_not_there_is_bad_usage(folder: Path, words: tuple[str, ...]) -> None:
    missing = ["nowhere.db" if word == "night.db" else word for word in words]
    assert_refused(redrive(folder, *missing), 2, "there is no state file")
    assert not list(folder.glob("nowhere*"))


@pytest.mark.parametrize(
    "words",
    [
        ("requeue", "fails"),
        ("skip", "fails"),
        ("cancel", "fails"),
        ("requeue", "fails", "--reason", "  "),
    ],
)
def test_an_act_without_a_reason_is_bad_usage(folder: Path, words: tuple[str, ...]) -> None:
    assert_refused(redrive(folder, words[0], "night.db", *words[1:]), 2, "say why with --reason TEXT")


@parametrize_mostly_long(
    ("words", "code", "sentence"),
    [
        (("requeue", "night.db", "nobody", "--reason", "x"), 2, "run first has no task 'nobody'"),
        (("requeue", "night.db", "nobody"), 2, "run first has no task 'nobody'; see: redrive tasks night.db"),
        (("events", "night.db@first", "nobody"), 2, "no event here is about nobody; see: redrive tasks "),
        (("tasks", "night.db@other"), 2, "there is no run 'other' in this state file; `redrive runs "),
        (("undo", "night.db", "--reason", "x"), 2, "that can be taken back; see: redrive events "),
        (("systems", "rows", "night.db", "--requeue", "k", "--reason", "x"), 2, "is held; see: redrive systems rows "),
        (("requeue", "night.db", "--reason", "x"), 2, "name tasks, or give --fingerprint"),
        (("requeue", "night.db", "--fingerprint", "zz", "--reason", "x"), 2, "failed with fingerprint zz"),
        (("requeue", "fails", "--rate", "0/s", "--reason", "x"), 2, "write a number above 0 a second"),
        (("skip", "fails", "--substitute", "{", "--reason", "x"), 2, "--substitute: not JSON"),
        (("extend", "night.db", "1m"), 2, "name a task"),
        (("extend", "night.db", "fails", "soon"), 2, "is not a duration"),
        (("extend", "night.db", "fails", "9" * 400), 2, "is longer than 100 years"),
        (("pause", "night.db"), 1, "the run has ended: FAILED"),
        (("breakers", "night.db", "--open", "api"), 1, "this run has no downstream 'api'"),
        (("replay", "night.db", "--at", "yesterdayish"), 2, "yesterdayish"),
        (("replay", "night.db", "--at", "2001-01-01"), 2, "2001-01-01 is before run first began: 20"),
        (("rerun", "ssh://far/x.db"), 2, "rerun it there: ssh far 'redrive rerun /x.db'"),
        (("resume", "ssh://ana@far:2222/x.db"), 2, "resume it there: ssh -p 2222 ana@far 'redrive resume /x.db'"),
        (("nonsense",), 2, "No such command"),
        (("tasks", "b.db", "a.db"), 2, "there is no state file"),
        (("tasks", ""), 2, "the name of the state file is empty"),
        (("tasks", "flow.py"), 2, "a flow is named by its name, not by its program"),
        (("resume", "nosuch"), 2, "there is no flow or state file 'nosuch'; redrive fleet lists them"),
        (("systems", "night.db", "breakers"), 2, "the name of the list comes first: redrive systems breakers night.db"),
        (("runs", "night.db", "fails"), 2, "'fails' is too much: runs takes [FLOW]"),
        (("logs", "night.db", "--lines", "x"), 2, "'x' is not a valid number"),
        (("postpone", "night.db", "25:00"), 2, "no time to come, as 06:00"),
        (("rehearse", "flow.py", "--at", "yesterday"), 2, "'yesterday' is no instant: write"),
        (("prune", "night.db", "--keep", "x"), 2, "write a duration, as 30d, or a number of runs, as 20"),
        (("schedule", "nosuch"), 2, "no schedule of 'nosuch' is known"),
        (("backoff", "--grace", "-1"), 2, "--grace: '-1' is not a duration"),
        (("help", "systems", "rose"), 2, "redrive help lists the topics"),
        (("help", "tsks"), 2, "lists the topics; did you mean 'tasks'?"),
        (("new", ""), 2, "the name of the file is empty"),
        (("run", "flow.py", "--state", ""), 2, "the name of the state file is empty"),
    ],
    quick=4,
)
def test_what_makes_no_sense_is_reported_on_stderr(
    folder: Path, words: tuple[str, ...], code: int, sentence: str
) -> None:
    assert_refused(redrive(folder, *words), code, sentence)


@pytest.mark.parametrize("command", ["check", "run"])
@parametrize_mostly_long(
    ("params", "sentence"),
    [
        (("limit=[1,2]",), "parameter 'limit' wants a whole number like 3, not '[1,2]'"),
        (("share=nan",), "parameter 'share' wants a finite number like 0.5, not 'nan'"),
        (("share=1e999",), "parameter 'share' wants a finite number"),
        (("limit=99999999999999999999",), "parameter 'limit' wants a whole number"),
        (("really=maybe",), "parameter 'really' wants true or false"),
        (("names=a,b",), "parameter 'names' wants a list in JSON like ['a'], not 'a,b'"),
        (("names=[1e999]",), "parameter 'names' wants a list in JSON"),
        (("nosuch=1",), "has no parameter 'nosuch'; it declares: day, limit, names, really, share"),
        (("=1",), "write name=value"),
        (("day",), "write name=value"),
        (("day=1", "day=2"), "--param 'day' is given twice: '1' and '2'"),
        (("day=\udcff",), "it is not valid UTF-8"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_alike(
    folder: Path, tmp_path: Path, command: str, params: tuple[str, ...], sentence: str
) -> None:
    words = [word for param in params for word in ("--param", param)]
    more = [] if command == "check" else ["--plain", "--state", tmp_path / "new.db"]
    assert_refused(redrive(folder, command, "flow.py", *words, *more), 2, sentence)
    assert not list(tmp_path.iterdir())


def test_parameters_arrive_as_what_they_are(folder: Path, tmp_path: Path) -> None:
    given = ["--param", 'names=["x", "y"]', "--param", "day=", "--param", "limit=-7", "--param", "really=yes"]
    state = tmp_path / "new.db"
    assert redrive(folder, "run", "flow.py", "--plain", "--state", state, *given).returncode == 1
    params = json.loads(sql(state, "SELECT params FROM run"))
    assert params == {"names": ["x", "y"], "day": "", "limit": -7, "really": True, "share": 0.5}


def sql(state: Path, query: str) -> str:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(state)) as connection:
        return str(connection.execute(query).fetchone()[0])


# --- What an act would do --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ("requeue", "fails"),
            ["would run again (1): fails", "may go on (1): below", "dry run: nothing was changed"],
        ),
        (
            ("skip", "fails"),
            ["would be skipped (1): fails", "may go on (1): below", "dry run: nothing was changed"],
        ),
    ],
)
def test_a_dry_run_reports_exactly_what_would_change_and_changes_nothing(
    folder: Path, words: tuple[str, ...], lines: list[str]
) -> None:
    before = sql(folder / "night.db", "SELECT count(*) || max(seq) FROM event")
    done = redrive(folder, words[0], "night.db", *words[1:], "--dry-run")
    assert (done.returncode, done.stdout.splitlines()[1:], done.stderr) == (0, lines, "")
    assert sql(folder / "night.db", "SELECT count(*) || max(seq) FROM event") == before


def test_a_dry_run_of_what_would_be_refused_says_so(folder: Path) -> None:
    done = redrive(folder, "cancel", "night.db", "fine", "--dry-run")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"night first in {folder / 'night.db'}",
        "fine: a task in SUCCESS cannot be cancelled",
        "dry run: nothing would change",
    ]


def test_a_dry_run_as_json_has_the_whole_set(folder: Path) -> None:
    answer = json.loads(redrive(folder, "requeue", "night.db", "fails", "--dry-run", "--json").stdout)
    assert (answer["dry_run"], answer["ok"], answer["run_again"], answer["unblocked"]) == (
        True,
        True,
        ["fails"],
        ["below"],
    )


# --- A world that is not as usual -------------------------------------------------------------------------------------


@parametrize_mostly_long("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
@parametrize_mostly_long("words", ["check flow.py", "tasks night.db", "runs night.db", "report night.db"])
def test_closed_streams_change_nothing_about_the_end(folder: Path, words: str, closed: str) -> None:
    line = f"{quoted(REDRIVE)} {words} {closed}"
    done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("begin", "output", "why"),
    [("", "/dev/full", "No space left on device"), ("ulimit -f 0;", "listed", "File too large")],
)
def test_output_that_cannot_be_written_is_one_sentence(folder: Path, begin: str, output: str, why: str) -> None:
    line = f"{begin} {quoted(REDRIVE)} tasks night.db > {output}"
    done = subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == f"redrive: the output cannot be written: {why}\n"


def test_an_error_whose_reader_has_left_keeps_its_exit_code(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([REDRIVE, "tasks", "missing"], cwd=folder, stdout=writer, stderr=writer, timeout=120)
    os.close(writer)
    assert done.returncode == 2


def test_a_current_folder_that_was_removed_is_a_sentence(tmp_path):
    begin = f"mkdir gone && cd gone && rmdir ../gone && {quoted(REDRIVE)}"
    assert "the current folder was removed" in subprocess.getoutput(f"cd {tmp_path}; {begin} new x.py")
    done = subprocess.run(["sh", "-c", f"{begin} tasks ../night.db"], capture_output=True, cwd=tmp_path)
    sentence = b"redrive: the current folder was removed: change to another one\n"  # a shell may have one of its own
    assert done.returncode == 2 and done.stderr.endswith(sentence) and b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["check", "run --plain --state new.db"])
@parametrize_mostly_long(
    ("text", "sentence"),
    [
        ("import os; os._exit(3)", "the process that imported 'odd.py' ended (exit code 3)"),
        ("raise KeyboardInterrupt", "importing the flow failed: KeyboardInterrupt"),
        ("raise SystemExit(4)", "failed: SystemExit: 4"),
        ("import os; os.kill(os.getpid(), 9)", "the process that imported 'odd.py' ended (signal 9)"),
    ],
)
def test_an_import_that_ends_its_process_is_reported(tmp_path: Path, command: str, text: str, sentence: str) -> None:
    (tmp_path / "odd.py").write_text(text)
    name, *rest = command.split()
    done = redrive(tmp_path, name, "odd.py", *rest)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("new")] == []


@parametrize_mostly_long("limit", [16, 8])
def test_a_limit_of_open_files_that_is_too_low_is_one_sentence(tmp_path: Path, limit: int):
    """The run is refused before the state file exists; a command that reads says what is wrong, too."""
    (tmp_path / "flow.py").write_text(FLOW)
    for command in ("run flow.py --plain --state s.db", "inbox s.db"):
        line = f"ulimit -n {limit}; exec {quoted(REDRIVE)} {command}"
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True)
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1), done.stderr
        assert done.stderr.startswith(b"redrive: ")
        assert b"open files" in done.stderr or command.startswith("inbox")
    assert not (tmp_path / "s.db").exists()


@pytest.mark.parametrize("name", ["", "  ", "i" * 201, "caf\udce9"])
def test_a_run_has_a_name_as_a_task_has(folder: Path, name: str) -> None:
    done = redrive(folder, "run", "flow.py", "--state", "new.db", "--plain", "--run-id", name)
    assert_refused(done, 2, "the name of a run is a text that is not blank and holds no NUL character, of at most 200 ")
    assert len(done.stderr) < 300 and not (folder / "new.db").exists()


#: redrive on a machine that has no thread, or no memory for one, left.
LACKING = """
import sys, threading
start = threading.Thread.start
def refuse(thread):
    if thread._target.__name__ in {refused}:
        raise {error}
    start(thread)
threading.Thread.start = refuse
from redrive.console.cli.main import main
main()
"""
NO_THREAD = 'RuntimeError("can\'t start new thread")'
NOT_WRITTEN = "the state file cannot be written: can't start new thread; raise the limit of memory or processes"
LIMIT = "the limit of memory or processes is reached: raise it (ulimit -v, ulimit -u, MemoryMax, TasksMax)"


@parametrize_mostly_long(
    ("error", "words", "sentence"),
    [
        (NO_THREAD, ("run", "flow.py", "--plain", "--state", "new.db"), NOT_WRITTEN),  # also as its loop ends
        (NO_THREAD, ("events", "night.db"), LIMIT),
        ("MemoryError", ("events", "night.db"), LIMIT),
    ],
    quick=1,
)
def test_a_machine_without_threads_or_memory_is_one_sentence(
    folder: Path, error: str, words: tuple[str, ...], sentence: str
) -> None:
    refused = ("_run", "_do_shutdown") if words[0] == "run" else ("_connection_worker_thread", "_worker", "_run")
    command = [sys.executable, "-c", LACKING.format(error=error, refused=refused), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"redrive: {sentence}\n")


def test_doctor_of_a_file_that_is_not_there_says_so(folder: Path) -> None:
    done = redrive(folder, "doctor", "none.db")
    assert done.returncode == 1 and done.stdout.splitlines()[-1].startswith(
        "error   state       there is no state file"
    )
    assert not done.stderr
