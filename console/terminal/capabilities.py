"""Terminal capabilities, detected from the environment before the first cell is drawn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

ESCAPE_DELAY_SECONDS = 0.1
REMOTE_ESCAPE_DELAY_SECONDS = 0.25  # a sequence cut by the network must still be one; longer makes Esc itself feel dead

DEFAULT_SIZE = (80, 24)
SMALLEST_SIZE = (40, 10)

_REMOTE_VARIABLES = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY", "MOSH_CONNECTION")
_MONOCHROME_TERMS = ("vt52", "vt100", "vt102", "vt220", "vt320", "vt420")
_WITHOUT_CURSOR = ("dumb", "unknown")
_COERCED_LOCALES = ("C.UTF-8", "C.utf8")


class Colours(IntEnum):
    """Colour depth of the terminal, in bits."""

    NONE = 0
    SIXTEEN = 4
    INDEXED = 8
    TRUE = 24


class TerminalCapabilities(NamedTuple):
    """Capabilities of the terminal of this process.

    Attributes:
        unsupported_reason: why the terminal cannot show a full screen, as one sentence; None if it can.
        colours: the colour depth; NO_COLOR makes it NONE.
        has_unicode: False if signs are to be drawn in ASCII.
        has_unicode_texts: False if the terminal cannot show a character beyond ASCII.
        is_remote: reached over a network, so bytes and round trips cost.
        escape_delay_seconds: how long an escape character may wait for the rest of its sequence.
    """

    unsupported_reason: str | None = None
    colours: Colours = Colours.SIXTEEN
    has_unicode: bool = True
    has_unicode_texts: bool = True
    is_remote: bool = False
    escape_delay_seconds: float = ESCAPE_DELAY_SECONDS


def detect_capabilities(
    environ: Mapping[str, str] | None = None, fds: tuple[int, int, int] = (0, 1, 2)
) -> TerminalCapabilities:
    """Read the environment and check standard input, output and error (the screen is drawn on standard error)."""
    environ = original_environment() if environ is None else environ
    term = environ.get("TERM", "")
    remote = any(environ.get(name) for name in _REMOTE_VARIABLES)
    return TerminalCapabilities(
        unsupported_reason=_unsupported_reason(term, fds),
        colours=_colours(environ, term),
        has_unicode=environ["REDRIVE_ASCII"] == "0" if environ.get("REDRIVE_ASCII") else _has_utf8(environ),
        has_unicode_texts=environ.get("REDRIVE_ASCII") == "0" or _has_utf8(environ),
        is_remote=remote,
        escape_delay_seconds=_escape_delay(environ, remote),
    )


def shows_colours(environ: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Whether lines are printed in colours: on a terminal that has some. NO_COLOR forbids them.

    FORCE_COLOR and CLICOLOR_FORCE, set to anything but 0, ask for them also in a pipe.
    """
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    term = environ.get("TERM", "")
    return is_terminal and term not in _WITHOUT_CURSOR and _colours(environ, term) is not Colours.NONE


def _unsupported_reason(term: str, fds: tuple[int, int, int]) -> str | None:
    names = ("standard input", "standard output", "standard error")
    for name, fd in zip(names, fds, strict=True):
        if not os.isatty(fd):
            return f"{name} is not a terminal"
    if term in _WITHOUT_CURSOR:
        return f"TERM={term} cannot place text on the screen"
    return None


def _colours(environ: Mapping[str, str], term: str) -> Colours:
    if environ.get("NO_COLOR") or term.startswith(_MONOCHROME_TERMS):
        return Colours.NONE
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") or term.endswith("-direct"):
        return Colours.TRUE
    return Colours.INDEXED if "256color" in term else Colours.SIXTEEN


def _has_utf8(environ: Mapping[str, str]) -> bool:
    """Whether the locale that the C library picks is one of UTF-8."""
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "C"
    return locale.lower().replace("-", "").partition("@")[0].endswith("utf8")


def _escape_delay(environ: Mapping[str, str], remote: bool) -> float:
    """Read ``ESCDELAY``, which is in milliseconds, as in ncurses."""
    asked = environ.get("ESCDELAY", "")
    if asked.isascii() and asked.isdigit() and int(asked) > 0:
        return min(int(asked), 5000) / 1000
    return REMOTE_ESCAPE_DELAY_SECONDS if remote else ESCAPE_DELAY_SECONDS


def original_environment() -> Mapping[str, str]:
    """The environment from before Python coerced a C locale to UTF-8 (PEP 538), if /proc has it."""
    if os.environ.get("LC_CTYPE") not in _COERCED_LOCALES:
        return os.environ
    try:
        with open("/proc/self/environ", "rb") as block:
            at_start = dict(os.fsdecode(item).partition("=")[::2] for item in block.read().split(b"\0"))
    except OSError:
        return os.environ
    return {**os.environ, "LC_CTYPE": at_start.get("LC_CTYPE", "")}


def size_of(fd: int) -> tuple[int, int]:
    """Columns and rows; 80x24 if the terminal reports none."""
    try:
        columns, rows = os.get_terminal_size(fd)
    except OSError:
        return DEFAULT_SIZE
    return (columns or DEFAULT_SIZE[0], rows or DEFAULT_SIZE[1])
