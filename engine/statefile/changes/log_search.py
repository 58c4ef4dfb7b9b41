"""Searches the stored output of an attempt, a slice at a time: nothing but the place of a match leaves the file.

A regular expression that somebody typed can take for ever on one line. So each slice has a limit of processor time,
which a signal enforces: the process must call from its main thread.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import re
import signal
import sqlite3
from contextlib import contextmanager
from typing import Iterator, List, Optional, Pattern, Tuple

from ...errors import RedriveError
from .log_rows import FoundChunk, LogChunk, SelectedLines
from .logs import READ_CHARACTERS_MAX, Key, pieces_after, pieces_before

SLICE_CHARACTERS = 2 * 1024 * 1024  # searched in one call
SLICE_SECONDS = 2.0  # of processor time
LINE_CHARACTERS_MAX = 4096  # of a line that pieces share

#: What a terminal does not show: CSI, terminated strings (OSC, DCS, ...), and two-character sequences.
SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-NQ-WYZ\\`-~]"
)


class SlowPatternError(RedriveError):
    """A pattern takes too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise SlowPatternError after so much processor time, also within one search of a regular expression."""

    def stop(number: int, frame: object) -> None:
        raise SlowPatternError("the pattern takes too long on a part of the log: simplify it")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def select(
    connection: sqlite3.Connection, run_id: str, name: str, attempt: int, pattern: str, after: int = 0, rest: str = ""
) -> SelectedLines:
    """The lines after the piece ``after`` that match a regular expression. ``rest``: of the step before."""
    with time_limit(SLICE_SECONDS):
        return _select(pieces_after(connection, (run_id, name, attempt), after), _compiled(pattern), after, rest)


def _select(rows: Iterator[List[LogChunk]], wanted: Pattern[str], last: int, rest: str) -> SelectedLines:
    found: List[LogChunk] = []
    searched = 0
    for pieces in rows:
        for piece in pieces:
            rest = "" if piece.dropped else rest
            *lines, rest = (rest + piece.text).split("\n")
            rest = rest[-LINE_CHARACTERS_MAX:]
            kept = "".join(line + "\n" for line in lines if wanted.search(_searched(line)))
            if kept or piece.dropped:
                found.append(piece._replace(text=kept))
            searched, last = searched + len(piece.text), piece.id
        if searched >= SLICE_CHARACTERS or sum(len(piece.text) for piece in found) >= READ_CHARACTERS_MAX:
            return SelectedLines(found, rest, last, False)
    return SelectedLines(found, rest, last, True)


def find(
    connection: sqlite3.Connection,
    run_id: str,
    name: str,
    attempt: int,
    pattern: str,
    after: int = 0,
    before: Optional[int] = None,
) -> FoundChunk:
    """Find the first line after the piece ``after`` that matches ``pattern``, or the last one before ``before``.

    ``pattern``: a regular expression; the case of letters does not matter. Raises RedriveError.
    """
    key = (run_id, name, attempt)
    texts = _joined_after(connection, key, after) if before is None else _joined_before(connection, key, before)
    with time_limit(SLICE_SECONDS):
        return _search(texts, _compiled(pattern))


def _compiled(pattern: str) -> Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    except (re.error, RecursionError, OverflowError) as error:
        raise RedriveError("that is not a regular expression: {}".format(error)) from None


#: Pieces with the text to search in each: with the part of its first or last line that another piece holds.
_Texts = List[Tuple[int, str]]


def _search(rows: Iterator[_Texts], wanted: Pattern[str]) -> FoundChunk:
    searched = 0
    last = None
    for texts in rows:
        whole = "".join(text for _, text in texts)
        if wanted.search(_searched(whole)):
            for identity, text in texts:
                if wanted.search(_searched(text)):
                    return FoundChunk(identity, identity)
        searched += len(whole)
        last = texts[-1][0]
        if searched >= SLICE_CHARACTERS:
            return FoundChunk(None, last)
    return FoundChunk(None, None)


def _searched(text: str) -> str:
    """The text as it is searched: lines as a person reads them."""
    return visible(text.replace("\r\n", "\n").rstrip("\r") if "\r" in text else text)


def visible(text: str) -> str:
    """The text without the sequences that steer a terminal."""
    return SEQUENCES.sub("", text) if "\x1b" in text or "\x9b" in text else text


def _joined_after(connection: sqlite3.Connection, key: Key, after: int) -> Iterator[_Texts]:
    rest = ""
    for pieces in pieces_after(connection, key, after):
        texts = []
        for piece in pieces:
            text = rest + piece.text
            rest = text[text.rfind("\n") + 1 :][-LINE_CHARACTERS_MAX:]
            texts.append((piece.id, text))
        yield texts


def _joined_before(connection: sqlite3.Connection, key: Key, before: int) -> Iterator[_Texts]:
    rest = ""
    for pieces in pieces_before(connection, key, before):
        texts = []
        for piece in reversed(pieces):
            texts.append((piece.id, piece.text + rest))
            rest = _first_line(piece, rest)
        yield texts


def _first_line(piece: LogChunk, rest: str) -> str:
    end = piece.text.find("\n")
    return (piece.text + rest if end < 0 else piece.text[:end])[:LINE_CHARACTERS_MAX]
