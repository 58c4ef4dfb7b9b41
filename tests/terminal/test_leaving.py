"""Whatever ends the console, the terminal is as it was before, and the run is not asked."""

from __future__ import annotations

import signal
import time

import pytest
from support.marks import parametrize_mostly_long
from support.pty_terminal import LIMIT_SECONDS, in_time


def test_quitting_gives_the_terminal_back(demo) -> None:
    app = demo()
    assert 1049 in app.terminal.modes and 25 not in app.terminal.modes
    app.terminal.send("q")
    assert app.terminal.wait() == 0
    assert app.terminal.is_given_back()


@parametrize_mostly_long("key", ["q", "\x1a"], ids=["left", "put aside"], quick=0)
def test_what_is_printed_next_does_not_stand_in_the_picture(demo, key: str) -> None:
    """The terminal of this test has one screen, as GNU screen has by its defaults."""
    app = demo()
    assert app.terminal.text.strip()
    app.terminal.send(key)
    app.terminal.until(app.terminal.is_given_back)
    app.terminal.until(lambda: not app.terminal.text.strip())
    assert (app.terminal.screen.cursor.x, app.terminal.screen.cursor.y) == (0, 0)


@parametrize_mostly_long("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(demo, number: int) -> None:
    app = demo()
    app.terminal.signal(number)
    assert app.terminal.wait() == 128 + number
    assert app.terminal.is_given_back()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_first_screen_gives_it_back(demo, number: int) -> None:
    app = demo("--splash-only", "30", ready="redrive - demo")
    app.terminal.signal(number)
    assert app.terminal.wait() == 128 + number
    assert app.terminal.is_given_back()


@pytest.mark.long
def test_a_cut_line_ends_the_console_and_it_spins_nowhere(demo) -> None:
    app = demo("--tick", "0.02", "--full", ready="tick 5")
    app.terminal.hang_up()
    assert app.terminal.process.wait(LIMIT_SECONDS) == 128 + signal.SIGHUP


def test_a_crash_gives_the_terminal_back_and_says_where_it_was(demo) -> None:
    app = demo("--crash")
    app.terminal.send("y")
    assert app.terminal.wait() == 1
    assert app.terminal.is_given_back()
    after = bytes(app.terminal.raw).rpartition(b"\x1b[?25h")[2].decode()
    assert "The console failed: ZeroDivisionError: division by zero" in after
    assert "The run was not touched" in after
    assert "Traceback (most recent call last)" in after


@pytest.mark.long
def test_a_suspended_console_gives_the_terminal_back_and_draws_everything_when_it_continues(demo) -> None:
    app = demo()
    before = app.terminal.text
    app.terminal.signal(signal.SIGTSTP)
    app.terminal.until(app.terminal.is_given_back)
    app.terminal.until_stopped()
    app.terminal.screen.reset()
    app.terminal.signal(signal.SIGCONT)
    app.terminal.until(lambda: app.terminal.text == before)
    assert 1049 in app.terminal.modes and 2004 in app.terminal.modes
    app.settle()
    app.terminal.send("q")
    assert app.terminal.wait() == 0
    assert app.terminal.is_given_back()


def test_ctrl_z_puts_the_console_aside(demo) -> None:
    app = demo()
    before = app.terminal.text
    app.terminal.send("\x1a")
    app.terminal.until(app.terminal.is_given_back)
    app.terminal.until_stopped()
    app.terminal.screen.reset()
    app.terminal.signal(signal.SIGCONT)
    app.terminal.until(lambda: app.terminal.text == before)


@pytest.mark.long
def test_an_answer_that_comes_after_the_last_frame_is_not_left_for_the_shell(demo) -> None:
    """Over ssh the console asks for reports; one that is still under way when it ends must be waited for."""

    def is_waited_for() -> bool:
        app = demo("--tick", "0.02", "--full", ready="tick 3", environ={"SSH_TTY": "x"})
        app.terminal.answers = False
        app.terminal.until(lambda: app.terminal.raw.count(b"\x1b[6n") > 3)
        app.terminal.send("q")
        app.terminal.read_for(0.15)
        app.terminal.send(b"\x1b[12;40R" * 4)
        if not app.terminal.takes_keys():
            return False  # too late for the program, which does not wait for ever
        assert app.terminal.wait() == 0
        assert app.terminal.unread_input() == b""
        return True

    in_time(is_waited_for)


@pytest.mark.long
def test_a_pager_gets_the_terminal_as_it_was_and_the_picture_comes_back(demo) -> None:
    app = demo()
    before = app.terminal.text
    app.terminal.send("o")
    app.terminal.until("this is the pager")
    assert app.terminal.is_given_back()
    app.terminal.screen.reset()
    app.terminal.send("\r")
    app.terminal.until(lambda: app.terminal.text == before)
    app.terminal.send("j")
    app.terminal.until(lambda: app.terminal.screen.buffer[4][5].reverse)
    app.terminal.signal(signal.SIGTERM)
    assert app.terminal.wait() == 143
    assert app.terminal.is_given_back()


@pytest.mark.long
def test_a_console_that_was_stopped_from_outside_draws_everything_again(demo) -> None:
    app = demo()
    before = app.terminal.text
    app.terminal.signal(signal.SIGSTOP)
    app.terminal.until_stopped()
    app.terminal.screen.reset()
    app.terminal.signal(signal.SIGCONT)
    app.terminal.until(lambda: app.terminal.text == before)


@pytest.mark.long
def test_redraw_draws_everything_whatever_the_terminal_shows(demo) -> None:
    app = demo()
    before = app.terminal.text
    app.terminal.screen.reset()
    app.terminal.send("\x0c")
    app.terminal.until(lambda: app.terminal.text == before)


@pytest.mark.long
def test_a_storm_of_sizes_ends_with_the_right_picture_and_few_others(demo) -> None:
    app = demo()
    before, started_at = app.stats()["frames"], time.monotonic()
    for number in range(200):
        app.terminal.resize(40 + number % 97, 10 + number % 37)
        app.terminal.read(0.002)
    app.terminal.resize(100, 30)
    app.terminal.until(lambda: app.terminal.lines[29].startswith(" r requeue"))
    app.settle()
    assert app.terminal.lines[27] == " ◆ task_00024                     2/5  retry in 00:07  ConnectTimeout"
    assert all(len(line) <= 100 for line in app.terminal.lines)
    sizes_taken = (time.monotonic() - started_at) / 0.05 + 2
    assert app.stats()["frames"] - before < 4 * sizes_taken


@pytest.mark.long
@parametrize_mostly_long("size", [(20, 5), (1, 1), (300, 100)])
def test_any_size_is_survived(demo, size: tuple[int, int]) -> None:
    app = demo(ready="", columns=size[0], rows=size[1])
    app.terminal.until(lambda: b"\x1b[6n" in app.terminal.raw)  # its second question: it reads keys
    app.terminal.read_for(0.5)
    app.terminal.send("q")
    assert app.terminal.wait() == 0
