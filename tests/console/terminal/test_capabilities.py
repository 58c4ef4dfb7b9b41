"""What the environment tells about a terminal, before anything is drawn."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest
from redrive.console.terminal.capabilities import (
    ESCAPE_DELAY_SECONDS,
    REMOTE_ESCAPE_DELAY_SECONDS,
    Colours,
    TerminalCapabilities,
    detect_capabilities,
    size_of,
)

UTF8 = {"TERM": "xterm-256color", "LANG": "en_GB.UTF-8"}


@pytest.fixture
def tty() -> Iterator[int]:
    master, slave = os.openpty()
    yield slave
    os.close(master)
    os.close(slave)


def detect(tty: int, **environ: str) -> TerminalCapabilities:
    return detect_capabilities({**UTF8, **environ}, (tty, tty, tty))


def test_a_modern_terminal_can_do_everything(tty: int) -> None:
    assert detect(tty, COLORTERM="truecolor") == TerminalCapabilities(colours=Colours.TRUE)


@pytest.mark.parametrize("place", range(3))
def test_without_a_terminal_on_any_side_there_is_no_screen(tty: int, place: int) -> None:
    fds = [tty, tty, tty]
    fds[place] = os.open(os.devnull, os.O_RDWR)
    because = detect_capabilities(UTF8, (fds[0], fds[1], fds[2])).unsupported_reason
    os.close(fds[place])
    assert because is not None and ("input", "output", "error")[place] in because


def test_a_closed_descriptor_is_no_terminal(tty: int) -> None:
    assert detect_capabilities(UTF8, (tty, tty, 9999)).unsupported_reason == "standard error is not a terminal"


def test_a_dumb_terminal_gets_no_screen(tty: int) -> None:
    assert "dumb" in str(detect(tty, TERM="dumb").unsupported_reason)


@pytest.mark.parametrize(
    ("environ", "colours"),
    [
        ({"TERM": "xterm-256color"}, Colours.INDEXED),
        ({"TERM": "screen-256color"}, Colours.INDEXED),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, Colours.TRUE),
        ({"TERM": "xterm-direct"}, Colours.TRUE),
        ({"TERM": "linux"}, Colours.SIXTEEN),
        ({"TERM": "screen"}, Colours.SIXTEEN),
        ({"TERM": "vt100"}, Colours.NONE),
        ({"NO_COLOR": "1"}, Colours.NONE),
        ({"NO_COLOR": "1", "COLORTERM": "truecolor"}, Colours.NONE),
        ({"NO_COLOR": ""}, Colours.INDEXED),
    ],
)
def test_colours_are_those_that_the_terminal_says_it_has(
    tty: int, environ: Mapping[str, str], colours: Colours
) -> None:
    assert detect(tty, **environ).colours is colours


@pytest.mark.parametrize(
    ("environ", "unicode"),
    [
        ({"LANG": "de_DE.UTF-8"}, True),
        ({"LANG": "C.utf8"}, True),
        ({"LANG": "ca_ES.utf8@valencia"}, True),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, False),
        ({"LANG": "C", "LC_CTYPE": "UTF-8"}, True),
        ({"LANG": "C"}, False),
        ({"LANG": "en_US.ISO-8859-1"}, False),
        ({"LANG": ""}, False),
        ({"LANG": "C", "REDRIVE_ASCII": "0"}, True),
        ({"LANG": "en_US.UTF-8", "REDRIVE_ASCII": "1"}, False),
    ],
)
def test_signs_beyond_ascii_need_a_locale_of_utf8(tty: int, environ: Mapping[str, str], unicode: bool) -> None:
    assert detect(tty, **environ).has_unicode is unicode


@pytest.mark.parametrize(
    ("environ", "texts"),
    [
        ({"LANG": "en_US.UTF-8", "REDRIVE_ASCII": "1"}, True),
        ({"LANG": "C", "REDRIVE_ASCII": "1"}, False),
        ({"LANG": "C"}, False),
        ({"LANG": "C", "REDRIVE_ASCII": "0"}, True),
    ],
)
def test_texts_are_as_the_locale_can_show_them(tty: int, environ: Mapping[str, str], texts: bool) -> None:
    assert detect(tty, **environ).has_unicode_texts is texts


@pytest.mark.parametrize("variable", ["SSH_CONNECTION", "SSH_TTY", "MOSH_CONNECTION"])
def test_over_a_network_sequences_get_more_time_and_the_mouse_stays_the_terminals(tty: int, variable: str) -> None:
    terminal = detect(tty, **{variable: "x"})
    assert terminal.is_remote
    assert terminal.escape_delay_seconds == REMOTE_ESCAPE_DELAY_SECONDS > ESCAPE_DELAY_SECONDS


@pytest.mark.parametrize(("asked", "seconds"), [("25", 0.025), ("nonsense", 0.1), ("-5", 0.1), ("999999999", 5.0)])
def test_escdelay_is_obeyed_within_reason(tty: int, asked: str, seconds: float) -> None:
    assert detect(tty, ESCDELAY=asked).escape_delay_seconds == seconds


def test_a_terminal_without_a_size_counts_as_the_smallest_common_one(tty: int) -> None:
    assert size_of(tty) == (80, 24)
    assert size_of(9999) == (80, 24)


def detected_by_new_interpreter(environ: Mapping[str, str]) -> str:
    """Python coerces a C locale to UTF-8 in its environment when it starts; a look from inside must not see that."""
    code = "from redrive.console.terminal.capabilities import detect_capabilities as d; print(d().has_unicode)"
    base = {"PATH": os.environ["PATH"], "TERM": "xterm"}
    run = subprocess.run([sys.executable, "-c", code], env={**base, **environ}, capture_output=True, text=True)
    return run.stdout.strip()


@pytest.mark.parametrize("environ", [{"LANG": "C"}, {"LC_ALL": "C"}, {"LC_CTYPE": "POSIX"}, {}])
def test_python_cannot_talk_us_into_utf8(environ: Mapping[str, str]) -> None:
    assert detected_by_new_interpreter(environ) == "False"


def test_a_locale_of_utf8_is_seen_from_inside() -> None:
    assert detected_by_new_interpreter({"LC_CTYPE": "C.UTF-8"}) == "True"


def test_the_survey_needs_no_textual() -> None:
    code = "import sys; import redrive.console.terminal.tty; print('textual' in sys.modules, 'rich' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.split() == ["False", "False"]
