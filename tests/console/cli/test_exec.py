"""``redrive exec``: one word before a command of cron gives it a history, retries, a timeout and an inbox."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.commands import run_redrive, start_redrive
from support.marks import parametrize_mostly_long
from support.waiting import LIMIT_SECONDS, wait_until


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "states" / "redrive"


def test_a_success_prints_what_the_command_prints_and_has_a_history(states: Path, tmp_path: Path) -> None:
    done = run_redrive("exec", "--name", "nightly", "--", "sh", "-c", "pwd > here; echo hidden")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hidden\n", "")
    assert (tmp_path / "here").read_text().strip() == str(tmp_path)
    assert "SUCCESS" in run_redrive("runs", "nightly").stdout
    assert "hidden" in run_redrive("logs", "nightly").stdout


def test_a_command_alone_is_a_line_of_the_shell_and_arguments_are_words(states: Path, tmp_path: Path) -> None:
    assert run_redrive("exec", "--", "echo one | tr o 0 > a").returncode == 0
    assert (tmp_path / "a").read_text() == "0ne\n"
    done = run_redrive("exec", "--output", "--", "echo", "a  b", "$HOME", "'\"\n{x}")
    assert done.returncode == 0 and "echo | a  b $HOME '\"" in done.stdout and "echo | {x}" in done.stdout
    assert len(run_redrive("runs", "echo", "--json").stdout.splitlines()) == 2


def test_a_failure_is_reported_with_its_output_and_stays_in_the_inbox(states: Path) -> None:
    done = run_redrive("exec", "--name", "backup", "--retry", "1", "--", "sh", "-c", "echo disk is full >&2; exit 4")
    assert done.returncode == 4
    assert "disk is full" in done.stderr and "2 of 2 attempts failed" in done.stderr
    assert "exit status 4: disk is full" in run_redrive("inbox", "backup").stdout


def test_a_command_that_is_killed_from_outside_is_not_started_again(states: Path) -> None:
    done = run_redrive("exec", "--name", "pay", "--", "echo x >> starts; kill -9 $$")
    assert done.returncode == 137 and "DEAD_LETTER killed from outside (SIGKILL) in its only attempt" in done.stderr
    assert Path("starts").read_text() == "x\n"


def test_a_missing_program_is_named_once(states: Path) -> None:
    done = run_redrive("exec", "--", "no-such-program", "x")
    (line,) = [line for line in done.stderr.splitlines() if "program DEAD_LETTER" in line]
    assert line.count("there is no such program: 'no-such-program'") == 1 and done.returncode == 126


@parametrize_mostly_long(
    ("line", "code"),
    [("exit 2", 2), ("exit 75", 75), ("exit 126", 126), ("no-such-program-here", 127), ("kill -TERM $$", 143)],
    quick=3,
)
def test_the_exit_code_is_that_of_the_command(states: Path, line: str, code: int) -> None:
    """As in a line of cron: ``redrive exec -- a && b``."""
    assert run_redrive("exec", "--name", "job", "--", line).returncode == code


def test_its_page_gets_the_message_and_its_ping_is_declared(states: Path, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as switch:
        threading.Thread(target=switch.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{switch.server_port}/?{{event}}"
        words = ("exec", "--name", "job", "--page", f"cat > {tmp_path}/page", "--ping", url, "--")
        assert run_redrive(*words, "echo full >&2; exit 6").returncode == 6
        switch.shutdown()
    assert "exit status 6: full" in (tmp_path / "page").read_text()
    assert f"flow.ping({url!r})" in (states / "job.exec.py").read_text()
    done = run_redrive("exec", "--name", "job", "--ping", "ftp://x", "--", "true")
    assert done.returncode == 125 and "https://" in done.stderr and "Traceback" not in done.stderr


def test_a_command_that_hangs_is_killed_at_its_timeout(states: Path) -> None:
    done = run_redrive("exec", "--timeout", "1s", "--", "sleep", "300")
    assert done.returncode == 124 and "task exceeded 1s: asleep" in done.stderr


def test_the_second_of_two_at_a_time_is_refused(states: Path) -> None:
    words = ("exec", "--name", "long", "--", "sh", "-c", "touch started; while [ ! -e end ]; do sleep 0.02; done")
    first = start_redrive(*words)
    wait_until(Path("started").exists)
    text = (states / "long.exec.py").read_text()
    assert run_redrive(*words[:-1], "touch other").returncode == 75
    assert (states / "long.exec.py").read_text() == text  # what the first one, and its resume, run
    Path("end").touch()
    assert first.wait(LIMIT_SECONDS) == 0


def test_a_killed_one_is_resumed_with_the_command_that_it_had(states: Path) -> None:
    line = "echo x >> starts; [ $(wc -l < starts) -gt 1 ] || exec sleep 300"
    first = start_redrive("exec", "--name", "copy", "--", line)
    wait_until(lambda: Path("starts").exists() and Path("starts").read_text())
    os.kill(first.pid, signal.SIGKILL)
    first.wait(LIMIT_SECONDS)
    assert run_redrive("resume", "copy").returncode == 0
    assert Path("starts").read_text() == "x\nx\n"
    with sqlite3.connect(states / "copy.db") as connection:
        assert connection.execute("SELECT state FROM run").fetchall() == [("SUCCESS",)]


def test_a_run_does_not_get_the_command_of_a_later_one(states: Path) -> None:
    assert run_redrive("exec", "--name", "job", "--", "exit 4").returncode == 4
    assert run_redrive("exec", "--name", "job", "--", "echo x >> second").returncode == 0
    done = run_redrive("requeue", "job@-1", "--resume", "--reason", "mended", "--", "job")
    assert done.returncode and "start that one again by redrive exec" in done.stderr
    assert run_redrive("runs", "job").stdout.count("FAILED") == 1 and Path("second").read_text() == "x\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Missing argument"),
        (("--", ""), "the command names no program; give the run a name with --name"),
        (("--timeout", "soon", "--", "true"), "--timeout"),
        (("--name", "\n", "--", "true"), "name"),
    ],
)
def test_a_line_that_cannot_run_is_refused_in_one_sentence(states: Path, words: tuple[str, ...], sentence: str) -> None:
    done = run_redrive("exec", *words)
    assert done.returncode == 125 and sentence in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
def test_two_scripts_of_one_interpreter_are_two_flows(states: Path, tmp_path: Path) -> None:
    for name in ("orders", "stock"):
        (tmp_path / f"{name}.sh").write_text(f"echo {name}")
        assert run_redrive("exec", "--", "sh", f"{name}.sh").returncode == 0
    assert run_redrive("exec", "--", "cd / && sh -c 'echo moved'").returncode == 0
    assert "moved" in run_redrive("logs", "echo").stdout
    assert "orders" in run_redrive("logs", "orders").stdout
    assert "stock" in run_redrive("logs", "stock").stdout


OTHER_JOB = (
    "redrive: {!r} ran another command, or in another folder, before; if these are two jobs, name each by --name\n"
)


@pytest.mark.long
def test_another_script_under_the_name_of_the_first_is_reported(states: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "bak.sh").write_text("true")
    assert run_redrive("exec", "--", "sh", "a/bak.sh").stderr == ""
    done = run_redrive("exec", "--", "sh", "b/bak.sh")
    assert (done.returncode, done.stderr) == (0, OTHER_JOB.format("bak"))
    assert run_redrive("exec", "--timeout", "1h", "--", "sh", "b/bak.sh").stderr == ""
    assert run_redrive("exec", "--name", "bak", "--", "sh", "a/bak.sh").stderr == ""


def test_a_job_that_removes_its_folder_ends_as_any_other(states: Path, tmp_path: Path) -> None:
    for day in ("2026-11-26", "2026-11-27"):
        (tmp_path / "work").mkdir()
        done = run_redrive("exec", "--", f'true {day}; rmdir "$PWD"', cwd=tmp_path / "work")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


#: Words of two days' jobs, by pairs.
DATES = [
    ("2026-11-26", "2026-11-27"),
    ("/backups/20261126.tar", "/backups/20261201.tar"),
    ("orders_20261126T0130Z", "orders_20261127T0131Z"),
    ("20261126013000", "20261127013001"),
    ("until=27.11.2026", "until=1.12.2026"),
    ("2026-W47", "2026-W48"),
    ("1795651200", "1795737600"),
    ("23:59:01", "00:00:12"),
    ("dump-Fri.gz", "dump-Sat.gz"),
    ("Nov", "December"),
]


def test_the_date_of_another_day_makes_no_other_job(states: Path) -> None:
    for words in zip(*DATES, strict=True):
        done = run_redrive("exec", "--", "/bin/true", *words)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@parametrize_mostly_long(
    ("one", "other"),
    [
        (("/bin/true", "orders"), ("/bin/true", "stock")),
        (("/bin/true", "1"), ("/bin/true", "2")),
        (("/bin/true", "200013"), ("/bin/true", "200014")),
        (("/bin/true", "2026-11-26", "orders"), ("/bin/true", "2026-11-27", "stock")),
        (("true orders | cat",), ("true stock | cat",)),
        (("/bin/true", "monitor"), ("/bin/true", "tuesdays")),
    ],
    quick=2,
)
def test_other_arguments_are_reported_also_after_a_success(
    states: Path, one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    assert run_redrive("exec", "--", *one).stderr == ""
    done = run_redrive("exec", "--", *other)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", OTHER_JOB.format("true"))


def test_the_same_command_in_another_folder_is_reported(states: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    assert run_redrive("exec", "--", "/bin/true", cwd=tmp_path / "a").stderr == ""
    done = run_redrive("exec", "--", "/bin/true", cwd=tmp_path / "b")
    assert done.stderr == OTHER_JOB.format("true")


def test_a_flow_file_that_is_not_utf_8_is_written_anew(states: Path) -> None:
    assert run_redrive("exec", "--", "true", "\u00fc").returncode == 0
    file = states / "true.exec.py"
    text = file.read_bytes()
    file.write_bytes(text.replace("\u00fc".encode(), b"\xfc"))
    done = run_redrive("exec", "--", "true", "\u00fc")
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert file.read_bytes() == text


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("bash", "-c", "cd /tmp && /bin/true one"), "true"),
        (("env", "-u", "HOME", "/bin/true"), "true"),
    ],
)
def test_a_job_is_named_after_the_program_and_no_word_before_it(
    states: Path, words: tuple[str, ...], name: str
) -> None:
    assert run_redrive("exec", "--", *words).returncode == 0
    assert [file.name for file in states.glob("*.exec.py")] == [f"{name}.exec.py"]


def test_a_state_folder_that_cannot_be_made_is_one_sentence(
    states: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    done = run_redrive("exec", "--", "true")
    assert done.returncode == 125 and "cannot be made" in done.stderr and "Traceback" not in done.stderr
    assert run_redrive("exec", "--state", "here.db", "--", "true").returncode == 0
    assert sorted(path.name for path in tmp_path.glob("*.exec.py")) == ["true.exec.py"]


def test_a_flow_file_that_cannot_be_written_is_one_sentence(states: Path, tmp_path: Path) -> None:
    (tmp_path / "true.exec.py").mkdir()
    done = run_redrive("exec", "--state", "here.db", "--", "true")
    assert (
        done.returncode == 125 and "true.exec.py cannot be written: " in done.stderr and "Traceback" not in done.stderr
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["true.exec.py"]


def test_the_state_folder_is_private(states: Path) -> None:
    assert run_redrive("exec", "--", "true").returncode == 0
    assert states.stat().st_mode & 0o777 == 0o700
