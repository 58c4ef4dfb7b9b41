"""The console as people start it: a real terminal, a real executor in its own process, and what survives which end."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.marks import parametrize_mostly_long
from support.waiting import wait_until

REDRIVE = str(Path(sys.executable).with_name("redrive"))
FLOW = """
import os, time
from redrive.engine import Flow, PermanentError

flow = Flow("night")

@flow.task
def load():
    print("loaded")

@flow.task(after=[load])
def settle(ctx):
    if ctx.generation == 0:
        raise PermanentError("the rates are missing")

@flow.task(after=[settle])
def report():
    pass

@flow.task(after=[load])
def slow():
    while {held} and not os.path.exists({released!r}):
        time.sleep(0.02)
"""


class Place:
    """A flow, its state file, and consoles on them."""

    def __init__(self, folder: Path, on_terminal: Callable[..., Any], held: bool) -> None:
        self.folder = folder
        self.state = folder / "night.db"
        self.flow = folder / "night.py"
        self._released = folder / "released"
        self.flow.write_text(FLOW.format(held=held, released=str(self._released)))
        self.environ = {
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "HOME": str(folder),
        }
        self._on_terminal = on_terminal

    def redrive(self, *words: str, **options: Any) -> Any:
        """A command on a terminal of its own."""
        environ = {**self.environ, **options.pop("environ", {})}
        return self._on_terminal([REDRIVE, *words], environ=environ, **options)

    def run(self, *words: str, **options: Any) -> Any:
        """``redrive run`` of the flow, until it is on the screen."""
        terminal = self.redrive("run", str(self.flow), "--state", str(self.state), *words, **options)
        terminal.until("settle")
        return terminal

    def attach(self, *words: str, **options: Any) -> Any:
        """``redrive attach``, until the run is on the screen."""
        terminal = self.redrive("attach", str(self.state), *words, **options)
        terminal.until("settle")
        return terminal

    def release(self) -> None:
        """Let the slow task end."""
        self._released.touch()

    def task(self, name: str) -> str:
        """The state of a task, from the file."""
        with closing(sqlite3.connect(f"file:{self.state}?mode=ro", uri=True)) as connection:
            return str(connection.execute("SELECT state FROM task WHERE name = ?", (name,)).fetchone()[0])

    def until(self, met: Callable[[], Any]) -> None:
        """Wait for something outside of any terminal."""
        wait_until(met)

    def executors(self) -> list[int]:
        """Pids of executors of this state file's folder."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
                here = os.readlink(folder / "fd/2")
            except OSError:
                continue
            if b"redrive.engine.executor.host" in words and here.startswith(str(self.state)):
                found.append(int(folder.name))
        return found


@pytest.fixture
def make_place(tmp_path: Path, on_terminal: Callable[..., Any]) -> Iterator[Callable[..., Place]]:
    """``make_place(held=False)``: whether the slow task waits for its release. No executor is left behind."""
    made: list[Place] = []

    def make(held: bool = False) -> Place:
        made.append(Place(tmp_path, on_terminal, held))
        return made[-1]

    yield make
    for place in made:
        for pid in place.executors():
            os.kill(pid, signal.SIGKILL)


def last_words(terminal: Any) -> str:
    """What was printed after the terminal was given back."""
    return bytes(terminal.raw).rpartition(b"\x1b[?25h")[2].decode().replace("\r\n", "\n")


# --- One night, by key ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_run_from_the_start_over_a_requeue_to_its_end(make_place):
    place = make_place()
    terminal = place.run()
    terminal.until("BLOCKED")
    terminal.until(lambda: re.search("settle .* DEAD +PermanentError", terminal.text))
    terminal.send("n")
    terminal.until("the rates are missing")
    terminal.send("r")
    terminal.until("takes it back")
    terminal.until("success 4/4")
    terminal.send("q")
    assert terminal.wait() == 0
    assert terminal.is_given_back()
    assert "success, 4 of 4 done" in last_words(terminal)


@pytest.mark.long
def test_the_output_of_a_dead_letter_leads_back_to_the_inbox_and_q_then_leaves(make_place):
    place = make_place()
    terminal = place.run()
    terminal.until("BLOCKED")
    terminal.send("4")
    terminal.until("1 cause")
    terminal.send("o")
    terminal.until("back to inbox")
    terminal.send("\x1b")
    terminal.until("1 cause")
    terminal.read_for(0.3)  # keys right after Esc may be pieces of a sequence
    terminal.send("o")
    terminal.until("back to inbox")
    terminal.send("q")
    terminal.until("1 cause")
    terminal.send("q")
    terminal.until("The run is not over")
    terminal.send("\x1b")
    terminal.until("1 cause")


@pytest.mark.long
def test_a_click_on_a_tab_and_on_a_row_selects_it(make_place):
    place = make_place()
    terminal = place.run()
    terminal.until("BLOCKED")

    def click(words):
        row = next(y for y, line in enumerate(terminal.lines) if words in line)
        column = terminal.lines[row].index(words)
        terminal.send(f"\x1b[<0;{column + 2};{row + 1}M\x1b[<0;{column + 2};{row + 1}m")

    click("report")
    terminal.until("waits for settle")
    click("Inbox")
    terminal.until("1 cause")


@pytest.mark.long
def test_undo_takes_a_requeue_back_before_it_starts(make_place):
    place = make_place()
    terminal = place.run()
    terminal.until("BLOCKED")
    terminal.send("n")
    terminal.until("the rates are missing")
    terminal.send("r")
    terminal.until("takes it back")
    terminal.send("z")
    terminal.until("1 changed back")
    assert place.task("settle") == "DEAD_LETTER"
    terminal.send("q")
    terminal.until("The run is not over")
    terminal.read_for(0.4)
    terminal.send("\r")
    assert terminal.wait() == 3


@pytest.mark.long
def test_stopping_now_ends_the_executor_and_capital_r_takes_the_run_up_again(make_place):
    place = make_place(held=True)
    terminal = place.run()
    place.until(lambda: place.task("slow") == "RUNNING")
    terminal.send("q")
    terminal.until("Stop now")
    terminal.read_for(0.4)
    terminal.send("jj\r")
    assert terminal.wait() == 130
    place.until(lambda: not place.executors())
    place.release()
    terminal = place.attach()
    terminal.until("R to resume here")
    terminal.send("R")
    terminal.until(lambda: "Start an executor here" in terminal.text and "reading the flow" not in terminal.text)
    terminal.read_for(0.4)
    terminal.send("a")
    place.until(lambda: place.task("slow") == "SUCCESS")
    terminal.until(lambda: "R to resume here" not in terminal.text and "BLOCKED" in terminal.text)


@pytest.mark.long
def test_an_act_on_a_run_that_had_ended_starts_an_executor_again(make_place):
    place = make_place()
    terminal = place.run()
    terminal.until("BLOCKED")
    terminal.send("n")
    terminal.until("the rates are missing")
    terminal.send("s")
    terminal.until("Reason:")
    terminal.read_for(0.4)
    terminal.send("no rates today, ask ana")
    terminal.until("Reason: no rates today, ask ana")
    terminal.read_for(0.4)
    terminal.send("\r")
    terminal.until("partial 4/4")
    place.until(lambda: not place.executors())
    terminal.until("ended")
    terminal.send("r")
    terminal.until("Requeue settle")
    terminal.read_for(0.4)
    terminal.send("a")
    terminal.until("success 4/4")


# --- Ends of the console that are none of the run -------------------------------------------------------------------


@parametrize_mostly_long("how", ["kill -9", "hang up", "SIGTERM"], quick=0, daily=1)
def test_whatever_ends_the_console_the_run_goes_on_and_attach_comes_back(make_place, how: str):
    place = make_place(held=True)
    terminal = place.run()
    place.until(lambda: place.task("slow") == "RUNNING")
    (executor,) = place.executors()
    if how == "hang up":
        terminal.hang_up()
    else:
        terminal.signal(signal.SIGKILL if how == "kill -9" else signal.SIGTERM)
    place.until(lambda: terminal.process.poll() is not None)
    assert place.executors() == [executor]
    again = place.attach()
    place.release()
    place.until(lambda: place.task("slow") == "SUCCESS")
    again.until("✓ slow")
    again.until("DEAD")


@pytest.mark.long
def test_a_read_only_console_quits_at_once_and_the_run_goes_on(make_place):
    place = make_place(held=True)
    place.run().signal(signal.SIGKILL)
    terminal = place.attach()
    terminal.send("q")
    assert terminal.wait() == 0
    assert "the run goes on; come back with: redrive attach" in last_words(terminal)
    assert place.executors()


@pytest.mark.long
def test_a_read_only_console_sends_nothing(make_place):
    place = make_place()
    place.run().until("BLOCKED")
    terminal = place.attach("--read-only")
    terminal.until("BLOCKED")
    terminal.send("n")
    terminal.until("the rates are missing")
    terminal.send("r")
    terminal.until("read-only")
    assert place.task("settle") == "DEAD_LETTER"


# --- Terminals of every kind ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_without_colours_not_one_colour_code_is_sent(make_place):
    terminal = make_place().run(environ={"NO_COLOR": "1"})
    terminal.until("BLOCKED")
    for key in "13456n2?":
        terminal.send(key)
        terminal.read_for(0.3)
    assert terminal.colour_codes() == set()


@pytest.mark.long
def test_in_a_locale_without_utf8_only_ascii_is_sent(make_place):
    terminal = make_place().run(environ={"LC_ALL": "C", "LANG": "C"})
    terminal.until("BLOCKED")
    for key in "13456n2=?":
        terminal.send(key)
        terminal.read_for(0.3)
    assert terminal.raw.isascii()


@pytest.mark.long
def test_a_dumb_terminal_gets_lines_and_the_command_is_the_executor(make_place):
    place = make_place()
    terminal = place.redrive("run", str(place.flow), "--state", str(place.state), environ={"TERM": "dumb"})
    assert terminal.wait() == 3
    assert "settle DEAD_LETTER" in terminal.text
    assert b"\x1b[" not in terminal.raw
    looking = place.redrive("attach", str(place.state), environ={"TERM": "dumb"})
    assert looking.wait() == 0
    assert "DEAD_LETTER" in looking.text


@pytest.mark.long
@parametrize_mostly_long("size", [(40, 15), (200, 60)])
def test_it_works_at_other_sizes(make_place, size: tuple[int, int]):
    place = make_place()
    terminal = place.run(columns=size[0], rows=size[1])
    terminal.until("BLOCKED")
    terminal.send("n")
    terminal.send("r")
    terminal.until(lambda: place.task("settle") != "DEAD_LETTER")


# --- What keeps it from starting ------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_flow_that_cannot_be_imported_says_so_on_a_terminal_that_is_given_back(make_place):
    place = make_place()
    place.flow.write_text("import nothing_of_that_name\n")
    terminal = place.redrive("run", str(place.flow), "--state", str(place.state))
    assert terminal.wait() == 2
    assert "nothing_of_that_name" in terminal.text
    assert terminal.is_given_back()


@pytest.mark.long
def test_a_second_executor_is_refused_with_75_and_the_name_of_the_first(make_place):
    place = make_place(held=True)
    place.run()
    (executor,) = place.executors()
    second = place.redrive("run", str(place.flow), "--state", str(place.state))
    assert second.wait() == 75
    assert str(executor) in second.text
    assert second.is_given_back()


def test_nothing_is_started_where_the_theme_is_none(make_place):
    place = make_place()
    terminal = place.redrive("run", str(place.flow), "--state", str(place.state), environ={"REDRIVE_THEME": "nonsense"})
    assert terminal.wait() == 2
    assert terminal.is_given_back()
    assert not place.state.exists()


# --- The demo -------------------------------------------------------------------------------------------------------


@pytest.mark.first
@pytest.mark.long
def test_the_tour_of_the_demo_is_finished_by_the_keys_that_it_names(
    on_terminal: Callable[..., Any], tmp_path: Path
) -> None:
    """On the smallest terminal and without colours, as over ssh."""
    environ = {"HOME": str(tmp_path), "NO_COLOR": "1", "SSH_TTY": "/dev/pts/9"}
    terminal = on_terminal([REDRIVE, "demo"], columns=80, rows=24, environ=environ)
    named = re.compile(r" \d of 8: [^\n]*: press (\S+)")
    for _ in range(40):
        terminal.until(lambda: named.search(terminal.text) or "8 of 8 done" in terminal.text)
        found = named.search(terminal.text)
        if found is None:
            break
        terminal.read_for(1.6)  # a row that has just come under the cursor is protected, as is a box nobody has read
        if "write why" in found[0]:
            terminal.send("x")
        terminal.send({"Enter": "\r", "Esc": "\x1b"}.get(found[1], found[1]))
        terminal.until(lambda said=found[0]: said not in terminal.text)
    terminal.until("success 19/19")
    terminal.send("X")
    terminal.until(lambda: "of 8" not in terminal.text)
    terminal.send("q")
    assert terminal.wait() == 0
