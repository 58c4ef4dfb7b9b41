"""An attempt's output as lines that can be read: from pieces that end anywhere, grown at either end.

Tasks write for a terminal: colours, progress bars drawn over with carriage returns, lines without an end. What is kept
of that is what a person would have seen last, as plain visible characters (``text/text.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..sessions.session import LogChunk
from ..text.text import sanitize
from .filters import Filter

LINE_CHARACTERS_MAX = 4096  # a longer line is told as several
BURST_BYTES = 224 * 1024  # so much between two looks, and the engine may have dropped some of it in the meantime
GAP = "\x00"  # stands among the lines where output was dropped; no line holds it

#: CSI, strings (OSC, DCS, ...) that are ended, and two-character sequences.
_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-NQ-WYZ\\`-~]"
)
_ERROR = re.compile(
    r"Traceback \(most recent|\b(?i:\w*error|\w*exception|fatal|panic|critical|failed|failure|aborted"
    r"|segmentation fault|killed|out of memory)\b"
)
_NO_ERROR = re.compile(r"(?i)\b(?:0|no|without|ignor\w+) (?:\w+ )?(?:\w*error|\w*exception|failed|failure)\b")


def tells_of_error(line: str) -> bool:
    """Whether a line seems to say what went wrong; ``0 failed`` and ``no error`` do not."""
    return _ERROR.search(line) is not None and _NO_ERROR.search(line) is None


class LogText:
    """Lines of one attempt, first to last, of as much as has been read.

    Attributes:
        lines: without control characters; ``GAP`` where output was dropped.
        first_id, last_id: of the chunks that have been read; 0 before there are any.
        characters: how much text was read.
        dropped: whether the engine has dropped output between the head and the tail; to be set before chunks come.
    """

    def __init__(self, dropped: bool = False) -> None:
        self.lines: list[str] = []
        self.first_id = 0
        self.last_id = 0
        self.characters = 0
        self.dropped = dropped
        self._open = ""  # what follows the last line break, as far as it can still matter
        self._open_lines = 0  # how many of ``lines`` it is
        self._first: str | None = None  # the first line as it came, once it is closed: a part of it may come later
        self._first_lines = 0
        self._first_is_tail = False
        self._last_is_tail = False

    def append(self, chunks: Sequence[LogChunk], burst: bool = False) -> int:
        """Take what came after. Answers with the number of the first line that is not as before.

        ``burst``: it is so much that some may have been dropped before it could be read.
        """
        fresh = [chunk for chunk in chunks if chunk.id > self.last_id]
        changed = len(self.lines) - self._open_lines
        if not fresh:
            return len(self.lines)
        if not self.last_id:
            self.first_id = fresh[0].id
            self._last_is_tail = self._first_is_tail = fresh[0].tail
        elif burst:
            self._break()
        for tail, text in _stretches(fresh):
            if tail and not self._last_is_tail and self.dropped:
                self._break()
            self._last_is_tail = tail
            self._feed(text)
        self.last_id = fresh[-1].id
        return changed

    def prepend(self, chunks: Sequence[LogChunk]) -> int:
        """Take what came before. Answers with how many lines there are more than before."""
        earlier = [chunk for chunk in chunks if chunk.id < self.first_id]
        if not earlier:
            return 0
        before = len(self.lines)
        front = LogText(self.dropped)
        front.append(earlier)
        if self._first_is_tail and not front._last_is_tail and self.dropped:
            front._break()
        self._put_in_front(front)
        self.first_id = front.first_id
        self._first_is_tail = front._first_is_tail
        self.characters += front.characters
        return len(self.lines) - before

    def _put_in_front(self, front: LogText) -> None:
        """Where the first line was begun before, both parts become one."""
        own = front.characters
        if self._first is None:
            front._feed(self._open)
            self.lines[:] = front.lines
            self._open, self._open_lines = front._open, front._open_lines
        else:
            front._feed(f"{self._first}\n")
            self.lines[: self._first_lines] = front.lines
        self._first, self._first_lines = front._first, front._first_lines
        front.characters = own

    def _feed(self, text: str) -> None:
        self.characters += len(text)
        del self.lines[len(self.lines) - self._open_lines :]
        *closed, rest = (self._open + text).split("\n")
        for part in closed:
            self._close(part)
        rest = _last_state(rest)
        while len(rest) > LINE_CHARACTERS_MAX:
            self._close(rest[:LINE_CHARACTERS_MAX])
            rest = rest[LINE_CHARACTERS_MAX:]
        self._open = rest
        shown = list(_clean(rest)) if rest else []
        self._open_lines = len(shown)
        self.lines += shown

    def _close(self, part: str) -> None:
        before = len(self.lines)
        self.lines.extend(_clean(part))
        if self._first is None:
            self._first, self._first_lines = part, len(self.lines) - before

    def _break(self) -> None:
        """Nothing that comes now belongs to the line before."""
        if self._open:
            self._feed("\n")
        self.lines.append(GAP)
        if self._first is None:
            self._first, self._first_lines = "", 0


def _stretches(chunks: Iterable[LogChunk]) -> Iterator[tuple[bool, str]]:
    """Texts of chunks of the same part of the log, in one."""
    texts: list[str] = []
    tail = False
    for chunk in chunks:
        if texts and chunk.tail != tail:
            yield tail, "".join(texts)
            texts = []
        tail = chunk.tail
        texts.append(chunk.text)
    yield tail, "".join(texts)


def _last_state(line: str) -> str:
    """What is left of a line that was drawn over and over, with the return that says so: its start may come later."""
    return line[max(line.rstrip("\r").rfind("\r"), 0) :]


def _clean(line: str) -> Iterator[str]:
    """The line as it was seen last, in parts that are not too long."""
    if not (line.isascii() and line.isprintable()):
        line = _without_sequences(_last_state(line).strip("\r"))
        line = sanitize(line.expandtabs(), limit=max(len(line) * 8, 1))
    if len(line) <= LINE_CHARACTERS_MAX:
        yield line
        return
    for start in range(0, len(line), LINE_CHARACTERS_MAX):
        yield line[start : start + LINE_CHARACTERS_MAX]


def _without_sequences(line: str) -> str:
    if "\x1b" in line or "\x9b" in line:
        line = _SEQUENCES.sub("", line)
    return line if "\b" not in line else _rubbed_out(line)


def _rubbed_out(line: str) -> str:
    """Backspaces take away what is before them: spinners, and the bold face of old manuals."""
    kept: list[str] = []
    for character in line:
        if character != "\b":
            kept.append(character)
        elif kept:
            kept.pop()
    return "".join(kept)


class Selection:
    """Which lines of a ``LogText`` are shown: all of them, or those that a filter keeps. Gaps are always shown."""

    def __init__(self, text: LogText) -> None:
        self.text = text
        self.wanted = Filter()
        self._kept: list[int] = []

    def __len__(self) -> int:
        return len(self._kept) if self.wanted else len(self.text.lines)

    def __getitem__(self, place: int) -> str:
        return self.text.lines[self._kept[place] if self.wanted else place]

    def number(self, place: int) -> int:
        """Which line of the text stands at a place, from 0."""
        return self._kept[place] if self.wanted else place

    def show_only(self, wanted: Filter) -> None:
        """Another filter; an empty one keeps everything."""
        self.wanted = wanted
        self.changed(0)

    def changed(self, first: int) -> None:
        """The lines from ``first`` on are other ones."""
        if not self.wanted:
            self._kept = []
            return
        while self._kept and self._kept[-1] >= first:
            self._kept.pop()
        keeps, lines = self.wanted.keeps, self.text.lines
        self._kept += [
            number for number in range(first, len(lines)) if lines[number] == GAP or keeps(lines[number].casefold())
        ]

    def grown_in_front(self, added: int) -> int:
        """So many lines were put in front. Answers with how many of them are shown."""
        if not self.wanted:
            return added
        before = len(self)
        self.changed(0)
        return len(self) - before

    def next_error(self, after: int, step: int = 1) -> int | None:
        """The place of the next line that tells of an error, round and round; None if there is none."""
        count = len(self)
        for distance in range(1, count + 1):
            place = (after + step * distance) % count
            if tells_of_error(self[place]):
                return place
        return None
