"""Non-blocking terminal output: only changed cells, only the newest state.

Textual hands every frame to a thread through a queue of 30 writes that blocks when it is full; a terminal that stops
reading (Ctrl-S, a closed lid, a dead line) thereby stops the event loop within seconds. Here the loop itself writes to
a descriptor that never blocks. ``ScreenBuffer`` has the desired and the displayed cells; unwritten output is
the difference of both, so a terminal that stalls for an hour costs no memory and then gets the current state rather
than a replay.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter

from .cell_encoder import BLANK, Cell
from .flow_control import FlowControl

_text_of = itemgetter(0)
_sgr_of = itemgetter(1)
_UNKNOWN: Cell = ("\0", "\0")  # equal to no cell that is ever drawn

_CHUNK_CHARACTERS = 8192  # a frame goes out in parts of about this size, each made from the newest state
_CONTROL_BYTES_MAX = 1 << 18
_GAP_CELLS_MAX = 3  # rewriting so few unchanged cells is not more expensive than moving over them
_ERASE_CELLS_MIN = 6
_LONG_BLANKS = re.compile(r" {12,}(?! *$)")

_BELL = b"\a"
_SYNC_BEGIN, _SYNC_END = "\x1b[?2026h", "\x1b[?2026l"
REQUEST_POSITION = "\x1b[6n"


class ScreenBuffer:
    """The desired and the displayed cells of the terminal."""

    def __init__(self) -> None:
        self.width = 0
        self.height = 0
        self._desired: list[list[Cell]] = []
        self._displayed: list[list[Cell]] = []
        self._dirty: set[int] = set()
        self._frame: deque[int] = deque()  # rows of the frame that is being written
        self._cursor: tuple[int, int] | None = None  # where the terminal's is, if known
        self._sgr: str | None = None  # what the terminal's next character would get, if known

        self.cursor_target: tuple[int, int] | None = None  # column and row for the hidden cursor, for input methods

    @property
    def has_changes(self) -> bool:
        """Whether a row has unwritten changes."""
        return bool(self._dirty or self._frame)

    def resize(self, width: int, height: int) -> None:
        """Change the size: all cells become blank and are written again."""
        if (width, height) != (self.width, self.height):
            self.width, self.height = width, height
            self._desired = [[BLANK] * width for _ in range(height)]
            self.invalidate()

    def invalidate(self) -> None:
        """Write all cells again: another program may have written to the terminal."""
        self._displayed = [[_UNKNOWN] * self.width for _ in range(self.height)]
        self._dirty = set(range(self.height))
        self._frame.clear()
        self._cursor = self._sgr = None

    def draw(self, x: int, y: int, cells: list[Cell]) -> None:
        """Put ``cells`` at column ``x`` of row ``y``; what lies outside of the picture is cut off."""
        if not 0 <= y < self.height or x >= self.width:
            return
        row = self._desired[y]
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

    def next_chunk(self) -> tuple[str, bool]:
        """The next text for the terminal, and whether it ends a frame. The text counts as displayed.

        Rows that change while their frame is being written wait for the next one, so that every frame ends.
        """
        if not self._frame:
            self._frame.extend(sorted(self._dirty))
            self._dirty.clear()
        parts: list[str] = []
        size = 0
        while self._frame and size < _CHUNK_CHARACTERS:
            y = self._frame.popleft()
            if self._desired[y] != self._displayed[y]:
                parts.append(self._write_row(y))
                size += len(parts[-1])
        ends = not self._frame
        if ends and parts and self.cursor_target is not None:
            parts.append(self._move(*self.cursor_target))
            self._cursor = self.cursor_target
        return "".join(parts), ends

    def _write_row(self, y: int) -> str:
        want = self._desired[y]
        parts: list[str] = []
        for start, end in _changed_spans(want, self._displayed[y]):
            self._write_span(parts, y, want, start, end)
        self._displayed[y] = want.copy()
        return "".join(parts)

    def _write_span(self, parts: list[str], y: int, want: list[Cell], start: int, end: int) -> None:
        """Write the cells from ``start`` to before ``end`` of row ``y``."""
        parts.append(self._move(start, y))
        shown = _end_before_erasable_blanks(want, start, end)
        x = start
        for sgr, group in groupby(want[start:shown], _sgr_of):
            parts.append(self._style(sgr))
            texts = list(map(_text_of, group))
            text = "".join(texts)
            if len(text) == len(texts) and "" not in texts:
                parts.append(text if sgr else _LONG_BLANKS.sub(_erased, text))
                x += len(texts)
            else:
                x = self._write_ambiguous_cells(parts, x, y, texts)
        self._cursor = (x, y) if x < self.width else None
        if shown < end:
            parts.append(self._style("") + ("\x1b[K" if end == len(want) else f"\x1b[{end - shown}X"))

    def _write_ambiguous_cells(self, parts: list[str], x: int, y: int, texts: list[str]) -> int:
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


def _erased(blanks: re.Match[str]) -> str:
    """Erase cells in place of blanks, and go on behind them."""
    size = len(blanks[0])
    return f"\x1b[{size}X\x1b[{size}C"


def _changed_spans(want: list[Cell], have: list[Cell]) -> Iterator[tuple[int, int]]:
    """The spans that differ, first and last column; never half of a wide character, and not in too many pieces."""
    start = end = -1
    for x, (new, old) in enumerate(zip(want, have, strict=True)):
        if new == old:
            continue
        if start < 0:
            start = x
        elif x > end and not _is_worth_bridging(want, end, x):
            yield _widened_to_whole_characters(want, start, end)
            start = x
        end = x + 1
    if start >= 0:
        yield _widened_to_whole_characters(want, start, end)


def _is_worth_bridging(want: list[Cell], end: int, start: int) -> bool:
    sgr = want[end - 1][1]
    return start - end <= _GAP_CELLS_MAX and all(cell[1] == sgr for cell in want[end:start])


def _widened_to_whole_characters(want: list[Cell], start: int, end: int) -> tuple[int, int]:
    if want[start][0] == "":
        start -= 1
    if end < len(want) and want[end][0] == "":
        end += 1
    return start, end


def _end_before_erasable_blanks(want: list[Cell], start: int, end: int) -> int:
    """The start of trailing blanks that are cheaper to erase than to write; ``end`` if there are none."""
    x = end
    while x > start and want[x - 1] == BLANK:
        x -= 1
    return x if end - x >= _ERASE_CELLS_MIN else end


class TerminalOutput:
    """Writes a ``ScreenBuffer`` to a terminal without blocking. All terminal writes go through this class.

    Args:
        screen: a descriptor of ``tty.open_screen``.
        flow_control: for terminals behind a network.
        on_lost: called once when the terminal is gone.
        on_drained: called when all output is written after the terminal was busy.
    """

    def __init__(
        self,
        screen: int,
        on_lost: Callable[[], None],
        on_drained: Callable[[], None],
        flow_control: FlowControl | None = None,
    ) -> None:
        self.buffer = ScreenBuffer()
        self.supports_synchronized = False
        self.bytes_written = 0
        self.frames = 0
        self._screen: int | None = screen
        self._on_lost = on_lost
        self._on_drained = on_drained
        self._flow_control = flow_control
        self._loop = asyncio.get_running_loop()
        self._pending = b""
        self._controls: deque[bytes] = deque()
        self._controls_bytes = 0
        self._in_frame = False
        self._is_mid_frame = False  # a part of a frame has been written, and not yet its end
        self._bell = False
        self._has_writer = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether output waits for the terminal; a repaint now would be skipped work."""
        return bool(self._pending or self._controls or self.buffer.has_changes)

    @property
    def pending_reports(self) -> int:
        """Position reports still expected; they must be read before the shell gets the terminal."""
        return self._flow_control.pending_reports if self._flow_control is not None else 0

    def send_control(self, text: str) -> None:
        """Send control sequences in order, between parts of frames. Drops them if the queue is full."""
        data = text.encode("utf-8", "replace")
        if self._controls_bytes + len(data) <= _CONTROL_BYTES_MAX:
            self._controls.append(data)
            self._controls_bytes += len(data)
        self.flush()

    def ring(self) -> None:
        """Ring the terminal's bell, outside of any frame. Many calls ring once if the terminal does not read."""
        self._bell = True
        self.flush()

    def flush(self) -> None:
        """Write what the terminal takes now; the loop calls again when it takes more."""
        if self._screen is None:
            return
        while self._pending or self._prepare_pending():
            try:
                written = os.write(self._screen, self._pending)
            except BlockingIOError:
                self._add_writer()
                return
            except OSError:
                self.close()
                self._on_lost()
                return
            self.bytes_written += written
            self._pending = self._pending[written:]
        if self._remove_writer() and not self.is_busy:
            self._on_drained()

    def on_position_report(self) -> None:
        if self._flow_control is not None:
            self._flow_control.record_report(self._loop.time())
            waited = self.is_busy
            self.flush()
            if waited and not self.is_busy:
                self._on_drained()

    def close(self) -> None:
        """Drop unwritten output and close the descriptor."""
        if self._screen is not None:
            self._remove_writer()
            os.close(self._screen)
            self._screen = None
        if self._timer is not None:
            self._timer.cancel()
        self._pending = b""
        self._controls.clear()
        self._bell = False

    def _add_writer(self) -> None:
        if not self._has_writer and self._screen is not None:
            self._loop.add_writer(self._screen, self.flush)
            self._has_writer = True

    def _remove_writer(self) -> bool:
        had_writer, self._has_writer = self._has_writer, False
        return had_writer and self._screen is not None and self._loop.remove_writer(self._screen)

    def _prepare_pending(self) -> bool:
        """Fill ``_pending`` from the current state. False if there is no output or the window is full."""
        if self._controls:
            self._pending = b"".join(self._controls)
            self._controls.clear()
            self._controls_bytes = 0
            return True
        if self._bell and not self._is_mid_frame:
            self._pending, self._bell = _BELL, False
            return True
        if not self.buffer.has_changes or not self._has_room():
            return False
        text, ends = self.buffer.next_chunk()
        self._is_mid_frame = not ends
        if text and self.supports_synchronized and not self._in_frame:
            text = _SYNC_BEGIN + text
            self._in_frame = True
        if ends:
            self.frames += bool(text)
            text += _SYNC_END if self._in_frame else ""
            self._in_frame = False
        if text and self._flow_control is not None and self._flow_control.record_sent(len(text), self._loop.time()):
            text += REQUEST_POSITION
        self._pending = text.encode("utf-8", "replace")
        return bool(self._pending) or self._prepare_pending()

    def _has_room(self) -> bool:
        if self._flow_control is None or self._flow_control.has_room(self._loop.time()):
            return True
        due = self._flow_control.next_check_at()
        if due is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self.flush)
        return False
