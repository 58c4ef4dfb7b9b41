"""The command line as cron, systemd and people use it: exit codes, sentences, JSON."""

import json
import os
import signal
import sqlite3
import subprocess
import sys

import pytest
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long

GOOD = "from redrive.engine import Flow\nflow = Flow('f')\n@flow.task\ndef a(): print('hello')\n"
FAILING = GOOD + "flow.command('b', 'exit 75', after=[a], max_attempts=1)\n"
BLOCKED = GOOD + "from redrive.engine import PermanentError\n@flow.task\ndef b(): raise PermanentError('no')\n"
SLEEPING = GOOD + "import time\n@flow.task\ndef b(): time.sleep(600)\n"
RING = GOOD + "flow.command('b', 'true', after=['c'])\nflow.command('c', 'true', after=['b'])\n"


@pytest.fixture
def flow(tmp_path):
    def write(text: str) -> list[object]:
        (tmp_path / "flow.py").write_text(text)
        return [tmp_path / "flow.py", "--state", tmp_path / "state.db", "--run-id", "r"]

    return write


@parametrize_mostly_long(
    ("text", "code"), [(GOOD, 0), (FAILING, 1), (BLOCKED, 3), (RING, 2), ("1 / 0", 2), ("", 2)], quick=2
)
def test_the_exit_code_says_how_the_run_ended(flow, text, code):
    """DESIGN 6."""
    done = run_redrive("run", *flow(text))
    assert code == done.returncode, done.stderr
    assert code != 2 or done.stderr.splitlines()[-1].startswith("redrive: ")


@pytest.mark.long
def test_a_ring_is_named(flow):
    assert "b -> c -> b" in run_redrive("run", *flow(RING)).stderr
    assert "b -> c -> b" in run_redrive("check", flow(RING)[0]).stderr


def test_the_traceback_of_a_broken_flow_is_shown_once_and_nothing_is_left_behind(flow, tmp_path):
    done = run_redrive("run", *flow("1 / 0"))
    assert 1 == done.stderr.splitlines().count("ZeroDivisionError: division by zero")
    assert "engine/flow/flow.py" not in done.stderr
    assert not (tmp_path / "state.db").exists()


@parametrize_mostly_long(
    "words", [["run", "nowhere.py"], ["tasks", "nowhere.db"], ["resume", "nowhere.db"], ["attach", "nowhere.db"]]
)
def test_what_is_not_there_gets_one_sentence(tmp_path, words):
    done = run_redrive(*words, cwd=tmp_path)
    assert 2 == done.returncode
    assert 1 == len(done.stderr.splitlines()), done.stderr
    assert "nowhere" in done.stderr


@parametrize_mostly_long(
    "content", [b"", b"hello, I am a text file\n" * 100, b"SQLite format 3\0" + b"\0" * 5000], quick=2
)
def test_a_file_that_is_not_ours_is_refused_and_untouched(flow, tmp_path, content):
    (tmp_path / "state.db").write_bytes(content)
    done = run_redrive("run", *flow(GOOD))
    if content:
        assert 2 == done.returncode
        assert content == (tmp_path / "state.db").read_bytes()
    else:
        assert 0 == done.returncode  # an empty file is a file to be made


@pytest.mark.long
def test_a_second_executor_exits_75_and_names_the_first(flow):
    first = start_redrive("run", *flow(SLEEPING))
    try:
        while "b RUNNING" not in first.stdout.readline():
            pass
        second = run_redrive("run", *flow(SLEEPING))
        assert 75 == second.returncode
        assert str(first.pid) in second.stderr
    finally:
        first.kill()
        first.wait()


@parametrize_mostly_long("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_in_order_and_the_run_can_be_taken_up(flow, tmp_path, number):
    first = start_redrive("run", *flow(SLEEPING))
    while "b RUNNING" not in first.stdout.readline():
        pass
    first.send_signal(number)
    first.communicate(timeout=60)
    assert 130 == first.returncode
    with sqlite3.connect(tmp_path / "state.db") as connection:
        assert [("SUCCESS", 0), ("RETRYING", 0)] == connection.execute("SELECT state, losses FROM task").fetchall()
        assert [(None,)] != connection.execute("SELECT stopped_at FROM executor").fetchall()


def test_a_reader_that_goes_away_does_not_stop_the_run(flow, tmp_path):
    process = start_redrive("run", *flow(GOOD), stderr=subprocess.DEVNULL)
    process.stdout.close()
    assert 0 == process.wait(timeout=60)


def test_a_reader_that_has_read_enough_is_no_failure():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as left:
        process = start_redrive("help", "commands", stdout=left, stderr=subprocess.PIPE)
    assert process.communicate(timeout=60) == (None, "") and process.returncode == 0


@pytest.mark.long
def test_detached_a_run_goes_on_by_itself(flow, tmp_path):
    done = run_redrive("run", *flow(GOOD), "--detach")
    assert 0 == done.returncode, done.stderr
    again = run_redrive("resume", tmp_path / "state.db", "--wait", "--plain")
    assert 0 == again.returncode, again.stderr


@pytest.mark.long
def test_what_is_refused_before_it_began_leaves_nothing_behind(flow, tmp_path):
    done = run_redrive("run", *flow("raise SystemExit(3)\n"), "--detach")
    assert 2 == done.returncode and "SystemExit" in done.stderr
    assert [] == [path.name for path in tmp_path.iterdir() if path.name.startswith("state.db")]


@pytest.mark.long
def test_every_list_speaks_json(flow, tmp_path):
    run_redrive("run", *flow(BLOCKED))
    state = tmp_path / "state.db"
    runs, tasks, inbox, events = (
        [json.loads(line) for line in run_redrive(word, state, "--json").stdout.splitlines()]
        for word in ("runs", "tasks", "inbox", "events")
    )
    assert ("r", {"SUCCESS": 1, "DEAD_LETTER": 1}) == (runs[0]["run_id"], runs[0]["counts"])
    assert [("a", "SUCCESS"), ("b", "DEAD_LETTER")] == [(task["name"], task["state"]) for task in tasks]
    assert 1 == len(inbox)
    assert "created" == next(event for event in events if event["kind"] == "run")["data"]["what"]


@pytest.mark.long
def test_the_inbox_is_worked_from_the_command_line(flow, tmp_path):
    run_redrive("run", *flow(BLOCKED))
    state = tmp_path / "state.db"
    assert "b" in run_redrive("inbox", state).stdout
    assert 2 == run_redrive("skip", "--state", state).returncode
    done = run_redrive("skip", "--state", state, "b", "--reason", "known")
    assert 0 == done.returncode, done.stderr
    again = run_redrive("skip", "--state", state, "b", "--reason", "known", "--json")
    assert 1 == again.returncode
    assert 3 == run_redrive("resume", state, "--plain").returncode  # PARTIAL: an operator skipped


@pytest.mark.long
def test_text_from_tasks_reaches_no_terminal_as_it_came(flow, tmp_path):
    hostile = "\\x1b]0;pwned\\x07\\x1b[2J\\x9b31m\\u202e"
    text = BLOCKED.replace("'no'", f"'{hostile}'")
    text = text.replace("@flow.task\ndef b", f"@flow.task(name='b{hostile}')\ndef b")
    output = run_redrive("run", *flow(text)).stdout
    for word in ("tasks", "inbox", "events"):
        output += run_redrive(word, tmp_path / "state.db").stdout
    assert "pwned" in output
    assert not set("\x1b\x07\x9b\u202e") & set(output)


def test_help_loads_no_screen():
    code = "import sys; from redrive.console import cli; assert not [name for name in sys.modules if 'textual' in name]"
    assert 0 == subprocess.run([sys.executable, "-c", code]).returncode


@parametrize_mostly_long(
    "words", [["run", "x.py", "--param", "oops"], ["requeue", "--rate", "fast", "t"], ["nonsense"]]
)
def test_bad_usage_is_reported_and_exits_2(words):
    done = run_redrive(*words, env={**os.environ, "REDRIVE_STATE": "/nonexistent/state.db"})
    assert 2 == done.returncode
    assert "Traceback" not in done.stderr


def test_the_golden_backoff_table(tmp_path):
    """000.11."""
    output = run_redrive("backoff", "--base", "1", "--cap", "300", "--attempts", "11").stdout
    ceilings = [line.split()[1] for line in output.splitlines() if line.strip()[:1].isdigit()][:10]
    assert ["1.00", "2.00", "4.00", "8.00", "16.00", "32.00", "64.00", "128.00", "256.00", "300.00"] == ceilings
