"""The output of an attempt as readable lines, from chunks that end anywhere and arrive at either end.

Tasks write for a terminal: colours, progress bars with carriage returns, unfinished lines. Each line becomes the
characters that a terminal would show last, without control characters (``text/text.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..sessions.session import LogChunk
from ..text.text import sanitize
from .filters import Filter

LINE_CHARACTERS_MAX = 4096  # a longer line is split
POLL_BYTES_MAX = 224 * 1024  # more between two polls may mean that the engine dropped output in between
GAP = "\x00"  # the line that marks dropped output; no other line contains it

#: CSI, terminated strings (OSC, DCS, ...), and two-character sequences.
_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-NQ-WYZ\\`-~]"
)
_ERROR = re.compile(
    r"Traceback \(most recent|\b(?i:\w*error|\w*exception|fatal|panic|critical|failed|failure|aborted"
    r"|segmentation fault|killed|out of memory)\b"
)
_NO_ERROR = re.compile(r"(?i)\b(?:0|no|without|ignor\w+) (?:\w+ )?(?:\w*error|\w*exception|failed|failure)\b")


def is_error_line(line: str) -> bool:
    """Whether a line seems to report an error; ``0 failed`` and ``no error`` do not."""
    return _ERROR.search(line) is not None and _NO_ERROR.search(line) is None


class LogText:
    """The lines of one attempt, as far as they have been read.

    Attributes:
        lines: without control characters; ``GAP`` where output was dropped.
        first_id, last_id: of the chunks that have been read; 0 before the first.
        characters: the length of the text that was read.
        has_dropped: whether the engine dropped output between head and tail; set it before the first chunk.
    """

    def __init__(self, dropped: bool = False) -> None:
        self.lines: list[str] = []
        self.first_id = 0
        self.last_id = 0
        self.characters = 0
        self.has_dropped = dropped
        self._open_text = ""  # the unfinished line, from its last carriage return on
        self._open_lines = 0  # how many of ``lines`` it takes
        self._first: str | None = None  # the first line as received, once closed: its start may arrive later
        self._first_lines = 0
        self._first_is_tail = False
        self._last_is_tail = False

    def append(self, chunks: Sequence[LogChunk], may_have_gap: bool = False) -> int:
        """Append newer chunks. Returns the number of the first line that changed.

        ``may_have_gap``: output may have been dropped before these chunks.
        """
        new = [chunk for chunk in chunks if chunk.id > self.last_id]
        changed = len(self.lines) - self._open_lines
        if not new:
            return len(self.lines)
        if not self.last_id:
            self.first_id = new[0].id
            self._last_is_tail = self._first_is_tail = new[0].tail
        elif may_have_gap:
            self._insert_gap()
        for tail, text in _join_by_part(new):
            if tail and not self._last_is_tail and self.has_dropped:
                self._insert_gap()
            self._last_is_tail = tail
            self._append_text(text)
        self.last_id = new[-1].id
        return changed

    def prepend(self, chunks: Sequence[LogChunk]) -> int:
        """Prepend earlier chunks. Returns the number of lines that were added."""
        earlier = [chunk for chunk in chunks if chunk.id < self.first_id]
        if not earlier:
            return 0
        before = len(self.lines)
        front = LogText(self.has_dropped)
        front.append(earlier)
        if self._first_is_tail and not front._last_is_tail and self.has_dropped:
            front._insert_gap()
        self._merge_front(front)
        self.first_id = front.first_id
        self._first_is_tail = front._first_is_tail
        self.characters += front.characters
        return len(self.lines) - before

    def _merge_front(self, front: LogText) -> None:
        """Put the lines of ``front`` first, and join the parts of the line between."""
        own = front.characters
        if self._first is None:
            front._append_text(self._open_text)
            self.lines[:] = front.lines
            self._open_text, self._open_lines = front._open_text, front._open_lines
        else:
            front._append_text(f"{self._first}\n")
            self.lines[: self._first_lines] = front.lines
        self._first, self._first_lines = front._first, front._first_lines
        front.characters = own

    def _append_text(self, text: str) -> None:
        self.characters += len(text)
        del self.lines[len(self.lines) - self._open_lines :]
        *closed, rest = (self._open_text + text).split("\n")
        for part in closed:
            self._close_line(part)
        rest = _after_last_return(rest)
        while len(rest) > LINE_CHARACTERS_MAX:
            self._close_line(rest[:LINE_CHARACTERS_MAX])
            rest = rest[LINE_CHARACTERS_MAX:]
        self._open_text = rest
        shown = list(printable_parts(rest)) if rest else []
        self._open_lines = len(shown)
        self.lines += shown

    def _close_line(self, part: str) -> None:
        before = len(self.lines)
        self.lines.extend(printable_parts(part))
        if self._first is None:
            self._first, self._first_lines = part, len(self.lines) - before

    def _insert_gap(self) -> None:
        """Close the unfinished line and append a gap."""
        if self._open_text:
            self._append_text("\n")
        self.lines.append(GAP)
        if self._first is None:
            self._first, self._first_lines = "", 0


def _join_by_part(chunks: Iterable[LogChunk]) -> Iterator[tuple[bool, str]]:
    """Join the texts of consecutive chunks of the same part of the log: (is tail, text)."""
    texts: list[str] = []
    tail = False
    for chunk in chunks:
        if texts and chunk.tail != tail:
            yield tail, "".join(texts)
            texts = []
        tail = chunk.tail
        texts.append(chunk.text)
    yield tail, "".join(texts)


def _after_last_return(line: str) -> str:
    """Return the line from its last carriage return on, which stays: the start of the line may arrive later."""
    return line[max(line.rstrip("\r").rfind("\r"), 0) :]


class LineAssembler:
    """Cuts output that arrives in pieces into lines, and keeps only the unfinished one."""

    def __init__(self) -> None:
        self._open_text = ""

    def append(self, text: str) -> Iterator[str]:
        """Yield the lines that ``text`` finishes."""
        *closed, rest = (self._open_text + text).split("\n")
        self._open_text = _after_last_return(rest)
        for part in closed:
            yield from printable_parts(part)
        while len(self._open_text) > LINE_CHARACTERS_MAX:
            part, self._open_text = self._open_text[:LINE_CHARACTERS_MAX], self._open_text[LINE_CHARACTERS_MAX:]
            yield from printable_parts(part)

    def close(self) -> Iterator[str]:
        """Yield the unfinished line, if any."""
        text, self._open_text = self._open_text, ""
        return printable_parts(text) if text else iter(())


def printable_parts(line: str) -> Iterator[str]:
    """Yield the line as a terminal shows it, in parts of at most LINE_CHARACTERS_MAX."""
    if not (line.isascii() and line.isprintable()):
        line = _without_sequences(_after_last_return(line).strip("\r"))
        line = sanitize(line.expandtabs(), limit=max(len(line) * 8, 1))
    if len(line) <= LINE_CHARACTERS_MAX:
        yield line
        return
    for start in range(0, len(line), LINE_CHARACTERS_MAX):
        yield line[start : start + LINE_CHARACTERS_MAX]


def _without_sequences(line: str) -> str:
    if "\x1b" in line or "\x9b" in line:
        line = _SEQUENCES.sub("", line)
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


class LogSelection:
    """The lines of a ``LogText`` that match a filter. Gaps always match."""

    def __init__(self, text: LogText) -> None:
        self.text = text
        self.filter = Filter()
        self._matching: list[int] = []

    def __len__(self) -> int:
        return len(self._matching) if self.filter else len(self.text.lines)

    def __getitem__(self, index: int) -> str:
        return self.text.lines[self._matching[index] if self.filter else index]

    def number(self, index: int) -> int:
        """Return the line number, from 0, of the line at an index."""
        return self._matching[index] if self.filter else index

    def set_filter(self, filter: Filter) -> None:
        """Set the filter; an empty one matches every line."""
        self.filter = filter
        self.update_from(0)

    def update_from(self, first: int) -> None:
        """Handle a change of the lines from ``first`` on."""
        if not self.filter:
            self._matching = []
            return
        while self._matching and self._matching[-1] >= first:
            self._matching.pop()
        keeps, lines = self.filter.matches, self.text.lines
        self._matching += [
            number for number in range(first, len(lines)) if lines[number] == GAP or keeps(lines[number].casefold())
        ]

    def apply_prepended(self, added: int) -> int:
        """Handle ``added`` lines at the front. Returns how many of them match."""
        if not self.filter:
            return added
        before = len(self)
        self.update_from(0)
        return len(self) - before

    def next_error(self, after: int, step: int = 1) -> int | None:
        """Return the index of the next line that looks like an error, cyclically; None if there is none."""
        count = len(self)
        for distance in range(1, count + 1):
            index = (after + step * distance) % count
            if is_error_line(self[index]):
                return index
        return None
