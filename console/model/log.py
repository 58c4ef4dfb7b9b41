"""The output of an attempt as readable lines, from chunks that end anywhere and arrive at either end.

Tasks write for a terminal: colours, progress bars with carriage returns, unfinished lines. Each line becomes the
characters that a terminal would show last, without control characters (``text/text.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from ...engine.core.projection import TaskRow
from ...engine.statefile.logs import LogChunk, visible
from ..text.text import sanitize

LINE_CHARACTERS_MAX = 4096  # a longer line is split
GAP = "\x00"  # begins the line that stands for dropped output; no other line contains it

ERROR = re.compile(
    r"Traceback \(most recent|\b(?i:\w*error|\w*exception|fatal|panic|critical|failed|failure|aborted"
    r"|segmentation fault|killed|out of memory)\b"
)
_NO_ERROR = re.compile(r"(?i)\b(?:0|no|without|ignor\w+) (?:\w+ )?(?:\w*error|\w*exception|failed|failure)\b")


def shown_attempt(row: TaskRow) -> int:
    """The number of the latest attempt; if it went well without a word, of the latest that wrote something; else 0."""
    if (latest := row.latest) is None:
        return 0
    wrote = [one.attempt for one in row.attempts.values() if one.output_bytes]
    return max(wrote) if wrote and latest.outcome == "success" else latest.attempt


def is_error_line(line: str) -> bool:
    """Whether a line seems to report an error; ``0 failed`` and ``no error`` do not."""
    return ERROR.search(line) is not None and _NO_ERROR.search(line) is None


class LogLine(str):
    """A line without control characters. ``at``: when its end was written (microseconds UTC); ``id``: of the chunk
    with its end; ``coloured``: the line with its SGR sequences, empty if it has none."""

    __slots__ = ("at", "coloured", "id")

    at: int
    id: int
    coloured: str

    def __new__(cls, text: str, at: int = 0, id: int = 0, coloured: str = "") -> LogLine:
        line = super().__new__(cls, text)
        line.at, line.id, line.coloured = at, id, coloured
        return line


def gap_line(dropped_bytes: int, at: int = 0, id: int = 0) -> LogLine:
    """The line that stands for dropped output."""
    return LogLine(f"{GAP}{dropped_bytes}", at, id)


def is_gap(line: str) -> bool:
    """Whether a line stands for dropped output."""
    return line.startswith(GAP)


class LogText:
    """The lines of one attempt, as far as they have been read: a window of its output.

    Attributes:
        lines: without control characters; where output was dropped a ``gap_line``.
        first_id, last_id: of the chunks that have been read; 0 before the first.
        characters: the length of the text that was read.
    """

    def __init__(self) -> None:
        self.lines: list[LogLine] = []
        self.first_id = 0
        self.last_id = 0
        self.characters = 0
        self._unfinished = LineAssembler()
        self._open_lines = 0  # how many of ``lines`` it takes
        self._at = 0  # of the latest chunk
        self._first: str | None = None  # the first line as received, once closed: its start may arrive later
        self._first_lines = 0
        self._starts_with_gap = False

    def append(self, chunks: Sequence[LogChunk]) -> None:
        """Append newer chunks."""
        new = [chunk for chunk in chunks if chunk.id > self.last_id]
        if not new:
            return
        if not self.last_id:
            self.first_id = new[0].id
        del self.lines[len(self.lines) - self._open_lines :]
        for chunk in new:
            self._at, self.last_id = chunk.at, chunk.id
            if chunk.dropped:
                self._append_gap(chunk.dropped)
            self._append_text(chunk.text)
        self._show_open_text()

    def prepend(self, chunks: Sequence[LogChunk]) -> int:
        """Prepend earlier chunks. Returns the number of lines that were added."""
        earlier = [chunk for chunk in chunks if chunk.id < self.first_id]
        if not earlier:
            return 0
        before = len(self.lines)
        front = LogText()
        front.append(earlier)
        characters = front.characters
        self._merge_front(front)
        self.first_id = front.first_id
        self.characters += characters
        return len(self.lines) - before

    def pop_closed_lines(self) -> list[LogLine]:
        """Remove the finished lines from the window, and return them."""
        closed = self.lines[: len(self.lines) - self._open_lines]
        del self.lines[: len(closed)]
        return closed

    def _merge_front(self, front: LogText) -> None:
        """Put the lines of ``front`` first, and join the parts of the line between."""
        del front.lines[len(front.lines) - front._open_lines :]
        front._open_lines = 0
        if self._starts_with_gap:
            front._close_open_text()
            self.lines[:0] = front.lines
        elif self._first is None:
            front._at, front.last_id = self._at, self.last_id
            front._append_text(self._unfinished.text)
            front._show_open_text()
            self.lines[:] = front.lines
            self._unfinished, self._open_lines = front._unfinished, front._open_lines
        else:
            if self.lines:
                front._at, front.last_id = self.lines[0].at, self.lines[0].id
            front._append_text(f"{self._first}\n")
            self.lines[: self._first_lines] = front.lines
        self._first, self._first_lines = front._first, front._first_lines
        self._starts_with_gap = front._starts_with_gap

    def _append_text(self, text: str) -> None:
        self.characters += len(text)
        for part in self._unfinished.split(text):
            self._close_line(part)

    def _show_open_text(self) -> None:
        shown = list(self._lines_of(self._unfinished.text)) if self._unfinished.text else []
        self._open_lines = len(shown)
        self.lines += shown

    def _close_line(self, part: str) -> None:
        before = len(self.lines)
        self.lines.extend(self._lines_of(part))
        if self._first is None:
            self._first, self._first_lines = part, len(self.lines) - before

    def _lines_of(self, part: str) -> Iterator[LogLine]:
        coloured = _after_last_return(part).strip("\r") if "\x1b[" in part and len(part) <= LINE_CHARACTERS_MAX else ""
        for text in printable_parts(part):
            yield LogLine(text, self._at, self.last_id, coloured)

    def _close_open_text(self) -> None:
        if self._unfinished.text:
            self._close_line(self._unfinished.text)
            self._unfinished.text = ""

    def _append_gap(self, dropped_bytes: int) -> None:
        """Close the unfinished line and append a gap."""
        self._close_open_text()
        self.lines.append(gap_line(dropped_bytes, self._at, self.last_id))
        if self._first is None:
            self._first, self._starts_with_gap = "", True


def _after_last_return(line: str) -> str:
    """Return the line from its last carriage return on, which stays: the start of the line may arrive later."""
    return line[max(line.rstrip("\r").rfind("\r"), 0) :]


class LineAssembler:
    """Cuts output that arrives in pieces into lines, and keeps only the unfinished one.

    ``longest``: characters of a line; a longer one becomes several. None: no bound but that of the log. ``text``: the
    unfinished line, from its last carriage return on.
    """

    def __init__(self, longest: int | None = LINE_CHARACTERS_MAX) -> None:
        self.text = ""
        self._longest = longest

    def split(self, text: str) -> list[str]:
        """Return the lines that ``text`` finishes, as they were received."""
        *closed, rest = (self.text + text).split("\n")
        self.text = _after_last_return(rest)
        while self._longest is not None and len(self.text) > self._longest:
            closed.append(self.text[: self._longest])
            self.text = self.text[self._longest :]
        return closed

    def append(self, text: str) -> Iterator[str]:
        """Yield the lines that ``text`` finishes."""
        return chain.from_iterable(printable_parts(part, self._longest) for part in self.split(text))

    def close(self) -> Iterator[str]:
        """Yield the unfinished line, if any."""
        text, self.text = self.text, ""
        return printable_parts(text, self._longest) if text else iter(())


class Unchanged(LineAssembler):
    """Passes output on as it was received, in its pieces."""

    def append(self, text: str) -> Iterator[str]:
        return iter((text,))


def printable_parts(line: str, longest: int | None = LINE_CHARACTERS_MAX) -> Iterator[str]:
    """Yield the line as a terminal shows it, in parts of at most ``longest`` characters; None: as one."""
    if not (line.isascii() and line.isprintable()):
        line = _without_sequences(_after_last_return(line).strip("\r"))
        line = sanitize(line.expandtabs(), limit=max(len(line) * 8, 1))
    if longest is None or len(line) <= longest:
        yield line
        return
    for start in range(0, len(line), longest):
        yield line[start : start + longest]


def _without_sequences(line: str) -> str:
    line = visible(line)
    return line if "\b" not in line else _apply_backspaces(line)


def _apply_backspaces(line: str) -> str:
    """Apply backspaces, as spinners and the bold face of old manuals use them."""
    visible: list[str] = []
    for character in line:
        if character != "\b":
            visible.append(character)
        elif visible:
            visible.pop()
    return "".join(visible)
