"""``ssh://host`` without a path: ``redrive attach`` lists the state files of that host, an act wants one of them."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import run_redrive
from support.pty_terminal import LIMIT_SECONDS, PtyTerminal
from support.state_file import StateFileBuilder

REDRIVE = (sys.executable, "-c", "import sys; from redrive.console.cli.main import main; sys.exit(main())")


@pytest.fixture
def make_files(far: Any, make_run_file: Callable[..., StateFileBuilder]) -> Iterator[Callable[..., Path]]:
    """State files in the default place over there, the first with the latest run; a run is named after its file."""
    folder: Path = far.home / ".local/state/redrive"
    folder.mkdir(parents=True, exist_ok=True)

    def make(*names: str) -> Path:
        for age, name in enumerate(names):
            run_file = make_run_file(name, run_id=f"run-of-{name}")
            run_file.close()
            (folder / name).write_bytes(run_file.path.read_bytes())
            with sqlite3.connect(folder / name) as connection:
                connection.execute("UPDATE run SET started_at = started_at - ? * 3600000000", (age,))
            os.utime(folder / name, (1000 + age, 1000 + age))  # the time of a write decides nothing
        return folder

    yield make
    shutil.rmtree(folder)  # commands over there may have left folders of their own


@pytest.fixture
def on_terminal() -> Iterator[Callable[..., PtyTerminal]]:
    """The command on a terminal of its own."""
    started: list[PtyTerminal] = []

    def start(*words: str) -> PtyTerminal:
        started.append(PtyTerminal([*REDRIVE, *words], columns=250, environ=dict(os.environ, TERM="xterm-256color")))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


def shows(terminal: PtyTerminal, text: str) -> bool:
    """On the screen of the console, and not among the lines before it."""
    return 1049 in terminal.modes and text in terminal.text


def logins(far: Any) -> int:
    """How often somebody was let in so far."""
    return int((far.folder / "sshd.log").read_text().count("Accepted publickey"))


def without_a_terminal(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*REDRIVE, "attach", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )


def test_of_several_files_over_there_a_list_is_shown_from_which_one_is_opened(
    make_files: Callable[..., Path], on_terminal: Callable[..., PtyTerminal], far: Any
) -> None:
    """One login is kept from the list to the run and back."""
    make_files("two.db", "one.db")
    before = logins(far)
    terminal = on_terminal("attach", "ssh://far")
    terminal.until(lambda: shows(terminal, " one.db"))
    assert "2 state files on ssh://far" in terminal.text
    assert terminal.text.index(" two.db") < terminal.text.index(" one.db")
    terminal.send("\x1b[B")
    terminal.send("\r")
    terminal.until(lambda: shows(terminal, "6 Journal") and "run-of-one.db" in terminal.text)
    terminal.send("\x1b")
    terminal.until(lambda: shows(terminal, "2 state files on ssh://far") and " two.db" in terminal.text)
    terminal.send("q")
    assert terminal.wait() == 0
    assert logins(far) - before == 1


def test_a_list_of_another_host_shows_what_happens_there(
    make_files: Callable[..., Path], on_terminal: Callable[..., PtyTerminal]
) -> None:
    folder = make_files("two.db", "one.db")
    terminal = on_terminal("attach", "ssh://far")
    terminal.until(lambda: shows(terminal, " one.db") and "success" not in terminal.text)
    with sqlite3.connect(folder / "one.db") as connection:
        connection.execute("UPDATE run SET state = 'SUCCESS', ended_at = started_at + 1000000")
    terminal.until(lambda: "success" in terminal.text)


def test_several_hosts_are_one_list_and_one_answer(
    make_files: Callable[..., Path], on_terminal: Callable[..., PtyTerminal], far: Any
) -> None:
    """A host that cannot be reached is a row that needs a human; the others are there all the same."""
    user = getpass.getuser()
    make_files("two.db", "one.db")
    hosts = ("ssh://far", f"ssh://{user}@far", "ssh://far:1")
    inbox = run_redrive("inbox", *hosts)
    assert inbox.returncode == 3 and "4 things need a human in 4 state files, 1 host could not be asked" in inbox.stdout
    assert "no ssh server listens" in inbox.stdout
    fleet = run_redrive("fleet", *hosts)
    assert [fleet.stdout.count(f"{host}/") for host in hosts[:2]] == [2, 2] and fleet.returncode == 69
    assert re.search(r"ssh://far:1\b.* no ssh server listens on far:1", fleet.stdout)
    before = logins(far)
    terminal = on_terminal("attach", *hosts)
    rows = ("no ssh server listens", f" {user}@far nightly")
    terminal.until(
        lambda: shows(terminal, "4 state files on 3 hosts") and all(words in terminal.text for words in rows)
    )
    terminal.send("\x1b[H" + "\x1b[B" * 3)
    terminal.send("\r")
    terminal.until(lambda: shows(terminal, " 6 J"))
    terminal.send("\x1b")
    terminal.until(lambda: shows(terminal, "4 state files on 3 hosts"))
    terminal.send("q")
    assert terminal.wait() == 0
    assert logins(far) - before == 2  # of the two names that answer, for list and run
    assert run_redrive("fleet", "ssh://far", "ssh://far/x.db").returncode == 2


def test_without_a_terminal_several_files_are_named_and_refused(make_files: Callable[..., Path]) -> None:
    folder = make_files("two.db", "one.db")
    done = without_a_terminal("ssh://far")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.index(f"ssh://far{folder}/two.db") < line.index(f"ssh://far{folder}/one.db")
    assert "run-of-one.db" in line


def test_an_act_on_a_host_with_several_files_is_refused(make_files: Callable[..., Path]) -> None:
    folder = make_files("two.db", "one.db")
    done = run_redrive("pause", "ssh://far", "--reason", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"ssh://far{folder}/one.db" in done.stderr
    with sqlite3.connect(folder / "two.db") as connection:
        connection.execute("UPDATE run SET state = 'SUCCESS', ended_at = 1")
    done = run_redrive("pause", "ssh://far", "--reason", "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith(f" run-of-one.db in ssh://far{folder}/one.db")


def test_a_run_over_there_is_abandoned(make_files: Callable[..., Path]) -> None:
    folder = make_files("one.db")
    done = run_redrive("abandon", "--state", "ssh://far", "run-of-one.db", "--reason", "over")
    assert done.returncode == 0, done.stdout + done.stderr
    with sqlite3.connect(folder / "one.db") as connection:
        assert connection.execute("SELECT state FROM run").fetchall() == [("ABANDONED",)]


def test_a_path_is_not_asked_about(make_files: Callable[..., Path]) -> None:
    folder = make_files("two.db", "one.db")
    done = without_a_terminal(f"ssh://far{folder}/one.db")
    assert done.returncode == 0, done.stderr
    assert "run-of-one.db" in done.stdout


def test_the_only_file_that_can_be_read_is_taken(make_files: Callable[..., Path], far: Any) -> None:
    """Also where one that cannot be read was written later."""
    folder, before = make_files("one.db"), logins(far)
    (folder / "odd.db").write_text("not a database")
    done = without_a_terminal("ssh://far")
    assert done.returncode == 0, done.stderr
    assert "run-of-one.db" in done.stdout
    assert logins(far) - before == 1


def test_a_host_without_a_state_file_says_so(make_files: Callable[..., Path]) -> None:
    make_files()
    done = without_a_terminal("ssh://far")
    assert done.returncode == 2 and "no state file" in done.stderr
