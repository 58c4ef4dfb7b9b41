"""The picture on its way to the terminal: only cells that changed, only the newest state, and never a wait.

Textual hands every frame to a thread through a queue of 30 writes that blocks when it is full; a terminal that stops
reading (Ctrl-S, a closed lid, a dead line) thereby stops the event loop within seconds. Here the loop itself writes to
a descriptor that never blocks. ``Picture`` knows what should be shown and what the terminal shows; what has not been
written yet exists only as a difference between the two, so a terminal that stalls for an hour costs no memory and then
gets the state of that moment, not a replay.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter

from .cell_encoder import BLANK, Cell
from .flow_control import Pacing

_text_of = itemgetter(0)
_sgr_of = itemgetter(1)
_UNKNOWN: Cell = ("\0", "\0")  # equal to no cell that is ever drawn

_PART_CHARACTERS = 8192  # a frame goes out in parts of about this size, each made from the newest state
_CONTROL_BYTES_MAX = 1 << 18
_GAP_CELLS_MAX = 3  # rewriting so few unchanged cells is no dearer than moving over them
_ERASE_CELLS_MIN = 6

_BELL = b"\a"
_SYNC_BEGIN, _SYNC_END = "\x1b[?2026h", "\x1b[?2026l"
ASK_POSITION = "\x1b[6n"


class Picture:
    """What should be shown (``want``) and what the terminal shows (``have``), cell by cell."""

    def __init__(self) -> None:
        self.width = 0
        self.height = 0
        self._want: list[list[Cell]] = []
        self._have: list[list[Cell]] = []
        self._dirty: set[int] = set()
        self._frame: deque[int] = deque()  # rows of the frame that is being written
        self._cursor: tuple[int, int] | None = None  # where the terminal's is, if known
        self._sgr: str | None = None  # what the terminal's next character would get, if known

        self.rest_at: tuple[int, int] | None = None  # column and row for the hidden cursor, for input methods

    @property
    def changed(self) -> bool:
        """Whether anything is left to be shown."""
        return bool(self._dirty or self._frame)

    def resize(self, width: int, height: int) -> None:
        """A new size: blank, and nothing known about the terminal."""
        if (width, height) != (self.width, self.height):
            self.width, self.height = width, height
            self._want = [[BLANK] * width for _ in range(height)]
            self.forget()

    def forget(self) -> None:
        """Somebody else wrote to the terminal: draw everything again."""
        self._have = [[_UNKNOWN] * self.width for _ in range(self.height)]
        self._dirty = set(range(self.height))
        self._frame.clear()
        self._cursor = self._sgr = None

    def draw(self, x: int, y: int, cells: list[Cell]) -> None:
        """Put ``cells`` at column ``x`` of row ``y``; what lies outside of the picture is cut off."""
        if not 0 <= y < self.height or x >= self.width:
            return
        row = self._want[y]
        end = x + len(cells)
        if x and row[x][0] == "":
            row[x - 1] = BLANK  # half of a wide character is none
        if end < self.width and row[end][0] == "":
            row[end] = BLANK
        row[x:end] = cells
        if len(row) > self.width:
            if row[self.width][0] == "":
                row[self.width - 1] = BLANK
            del row[self.width :]
        self._dirty.add(y)

    def next_part(self) -> tuple[str, bool]:
        """Text for the terminal, and whether its frame ends with it. The terminal counts as having what was returned.

        Rows that change while their frame is being written wait for the next one, so that every frame ends.
        """
        if not self._frame:
            self._frame.extend(sorted(self._dirty))
            self._dirty.clear()
        parts: list[str] = []
        size = 0
        while self._frame and size < _PART_CHARACTERS:
            y = self._frame.popleft()
            if self._want[y] != self._have[y]:
                parts.append(self._row(y))
                size += len(parts[-1])
        ends = not self._frame
        if ends and parts and self.rest_at is not None:
            parts.append(self._move(*self.rest_at))
            self._cursor = self.rest_at
        return "".join(parts), ends

    def _row(self, y: int) -> str:
        want = self._want[y]
        parts: list[str] = []
        for start, end in _changes(want, self._have[y]):
            self._span(parts, y, want, start, end)
        self._have[y] = want.copy()
        return "".join(parts)

    def _span(self, parts: list[str], y: int, want: list[Cell], start: int, end: int) -> None:
        """Write the cells from ``start`` to before ``end`` of row ``y``."""
        parts.append(self._move(start, y))
        shown = _shown_until(want, start, end)
        x = start
        for sgr, group in groupby(want[start:shown], _sgr_of):
            parts.append(self._style(sgr))
            texts = list(map(_text_of, group))
            text = "".join(texts)
            if len(text) == len(texts) and "" not in texts:
                parts.append(text)
                x += len(texts)
            else:
                x = self._contested(parts, x, y, texts)
        self._cursor = (x, y) if x < self.width else None
        if shown < end:
            parts.append(self._style("") + "\x1b[K")

    def _contested(self, parts: list[str], x: int, y: int, texts: list[str]) -> int:
        """Write cells of which some are wide or carry marks. Terminals disagree about the width of most of these
        (not of East Asian letters): their cells are blanked first and the cursor is put behind them."""
        for index, text in enumerate(texts):
            wide = texts[index + 1 : index + 2] == [""]
            agreed = len(text) < 2 and (not wide or text.isalpha())
            if agreed:
                parts.append(text)
            elif wide:
                parts.append(f"  \x1b[2D{text}\x1b[{y + 1};{x + 3}H")
            else:
                parts.append(f"{text}\x1b[{y + 1};{x + 2}H")
            x += 1
        return x

    def _move(self, x: int, y: int) -> str:
        if self._cursor is not None:
            at_x, at_y = self._cursor
            if at_y == y and at_x == x:
                return ""
            if at_y == y and x > at_x:
                return f"\x1b[{x - at_x}C" if x - at_x > 1 else "\x1b[C"
            if x == 0 and y in (at_y, at_y + 1):
                return "\r" if y == at_y else "\r\n"
        return f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H"

    def _style(self, sgr: str) -> str:
        if sgr == self._sgr:
            return ""
        before, self._sgr = self._sgr, sgr
        if not sgr:
            return "\x1b[m"
        return f"\x1b[{sgr}m" if before == "" else f"\x1b[0;{sgr}m"


def _changes(want: list[Cell], have: list[Cell]) -> Iterator[tuple[int, int]]:
    """The spans that differ, first and last column; never half of a wide character, and not in too many pieces."""
    start = end = -1
    for x, (new, old) in enumerate(zip(want, have, strict=True)):
        if new == old:
            continue
        if start < 0:
            start = x
        elif x > end and not _worth_bridging(want, end, x):
            yield _whole(want, start, end)
            start = x
        end = x + 1
    if start >= 0:
        yield _whole(want, start, end)


def _worth_bridging(want: list[Cell], end: int, start: int) -> bool:
    sgr = want[end - 1][1]
    return start - end <= _GAP_CELLS_MAX and all(cell[1] == sgr for cell in want[end:start])


def _whole(want: list[Cell], start: int, end: int) -> tuple[int, int]:
    if want[start][0] == "":
        start -= 1
    if end < len(want) and want[end][0] == "":
        end += 1
    return start, end


def _shown_until(want: list[Cell], start: int, end: int) -> int:
    """Where the plain blanks begin that reach to the end of the row and are dearer to write than to erase."""
    if end < len(want) or want[-1] != BLANK:
        return end
    x = end
    while x > start and want[x - 1] == BLANK:
        x -= 1
    return x if end - x >= _ERASE_CELLS_MIN else end


class TerminalOutput:
    """Writes a ``Picture`` to a terminal without ever waiting for it. All writes to the terminal go through here.

    Args:
        screen: a descriptor of ``terminal.open_screen``.
        pacing: for terminals behind a network.
        on_lost: called once when the terminal is gone.
        on_quiet: called when the terminal has got everything after it had to be waited for.
    """

    def __init__(
        self,
        screen: int,
        on_lost: Callable[[], None],
        on_quiet: Callable[[], None],
        pacing: Pacing | None = None,
    ) -> None:
        self.picture = Picture()
        self.synchronized = False
        self.bytes_written = 0
        self.frames = 0
        self._screen: int | None = screen
        self._on_lost = on_lost
        self._on_quiet = on_quiet
        self._pacing = pacing
        self._loop = asyncio.get_running_loop()
        self._pending = b""
        self._controls: deque[bytes] = deque()
        self._controls_bytes = 0
        self._in_frame = False
        self._midway = False  # a part of a frame has been written, and not yet its end
        self._bell = False
        self._waiting = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Something waits for the terminal: painting now would only be work for a frame that nobody sees."""
        return bool(self._pending or self._controls or self.picture.changed)

    @property
    def answers_due(self) -> int:
        """How many reports the terminal still owes us, which would otherwise reach the shell."""
        return self._pacing.answers_due if self._pacing is not None else 0

    def control(self, text: str) -> None:
        """Send modes and the like, in order and between parts of frames. Dropped when far too much of it waits."""
        data = text.encode("utf-8", "replace")
        if self._controls_bytes + len(data) <= _CONTROL_BYTES_MAX:
            self._controls.append(data)
            self._controls_bytes += len(data)
        self.flush()

    def ring(self) -> None:
        """Ring the terminal's bell, outside of any frame. For a terminal that does not read, once however often."""
        self._bell = True
        self.flush()

    def flush(self) -> None:
        """Write what the terminal takes now; the loop calls again when it takes more."""
        if self._screen is None:
            return
        while self._pending or self._prepare():
            try:
                written = os.write(self._screen, self._pending)
            except BlockingIOError:
                self._wait()
                return
            except OSError:
                self.abandon()
                self._on_lost()
                return
            self.bytes_written += written
            self._pending = self._pending[written:]
        if self._waiting:
            self._loop.remove_writer(self._screen)
            self._waiting = False
            if not self.busy:
                self._on_quiet()

    def answered(self) -> None:
        """The terminal reported its position."""
        if self._pacing is not None:
            self._pacing.answered(self._loop.time())
            waited = self.busy
            self.flush()
            if waited and not self.busy:
                self._on_quiet()

    def abandon(self) -> None:
        """Write nothing any more and let go of the descriptor."""
        if self._screen is not None:
            if self._waiting:
                self._loop.remove_writer(self._screen)
                self._waiting = False
            os.close(self._screen)
            self._screen = None
        if self._timer is not None:
            self._timer.cancel()
        self._pending = b""
        self._controls.clear()
        self._bell = False

    def _wait(self) -> None:
        if not self._waiting and self._screen is not None:
            self._loop.add_writer(self._screen, self.flush)
            self._waiting = True

    def _prepare(self) -> bool:
        """Make the next bytes, from the state of this moment. False if there are none or the line is full."""
        if self._controls:
            self._pending = b"".join(self._controls)
            self._controls.clear()
            self._controls_bytes = 0
            return True
        if self._bell and not self._midway:
            self._pending, self._bell = _BELL, False
            return True
        if not self.picture.changed or not self._line_has_room():
            return False
        text, ends = self.picture.next_part()
        self._midway = not ends
        if text and self.synchronized and not self._in_frame:
            text = _SYNC_BEGIN + text
            self._in_frame = True
        if ends:
            self.frames += bool(text)
            text += _SYNC_END if self._in_frame else ""
            self._in_frame = False
        if text and self._pacing is not None and self._pacing.sent(len(text), self._loop.time()):
            text += ASK_POSITION
        self._pending = text.encode("utf-8", "replace")
        return bool(self._pending) or self._prepare()

    def _line_has_room(self) -> bool:
        if self._pacing is None or self._pacing.may_send(self._loop.time()):
            return True
        due = self._pacing.due()
        if due is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self.flush)
        return False
