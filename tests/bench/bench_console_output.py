"""What the console's terminal layer costs: bytes to the terminal, processor time of a frame, time from key to paint.

    python tests/bench/bench_console_output.py [--quick]

The programs run on real pseudo-terminals. "CPU" is the time of the event loop's thread from a change to the end of its
frame; "key to paint" is wall time from a key written to the first byte read back, as a terminal next door sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from redrive.console.app.base_app import ConsoleBase
from redrive.console.screens.graph_view import Canvas
from redrive.console.terminal.capabilities import Colours, TerminalCapabilities
from redrive.console.terminal.driver import ConsoleDriver
from redrive.console.terminal.tty import Tty
from redrive.console.text.pieces import Line, Piece, Role
from redrive.console.text.role_styles import RoleStyles
from redrive.console.widgets.table import VirtualTable
from rich.style import Style
from support.pty_terminal import PtyTerminal, python
from textual.app import ComposeResult
from textual.widget import Widget

TERMINAL_TESTS = Path(__file__).resolve().parents[1] / "terminal"
SIZES = ((80, 24), (120, 40), (200, 60))
PALETTE = RoleStyles(
    {
        Role.RUNNING: Style(color="cyan"),
        Role.WAITING: Style(color="yellow"),
        Role.FAILED: Style(color="red"),
        Role.HUMAN: Style(color="magenta", reverse=True),
        Role.DONE: Style(dim=True),
        Role.CURSOR: Style(reverse=True),
    }
)
SIGNS = (("✓", Role.DONE), ("●", Role.RUNNING), ("↻", Role.WAITING), ("✗", Role.FAILED), ("◆", Role.HUMAN))


def report(what: str, *facts: str) -> None:
    print(f"{what:<52} {'   '.join(facts)}", flush=True, file=sys.__stdout__)


def percentiles(values: Sequence[float], unit: str = "ms") -> str:
    ordered = sorted(values)
    p95 = ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]
    return f"p50 {statistics.median(ordered):.1f}  p95 {p95:.1f}  max {ordered[-1]:.1f} {unit}"


# --- the demo application in a process of its own ---------------------------------------------------------------------


class Demo:
    """The demo application on a terminal."""

    def __init__(self, *options: str, **more: Any) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.terminal = PtyTerminal(python(TERMINAL_TESTS / "demo_app.py", str(self.folder), *options), **more)

    def stats(self) -> dict[str, float]:
        path = self.folder / "stats"
        path.unlink(missing_ok=True)
        self.terminal.signal(signal.SIGUSR1)
        while not path.exists():
            time.sleep(0.002)  # nothing is timed here: a poll is shorter than a watch of the folder
        found: dict[str, float] = json.loads(path.read_text())
        return found


@contextmanager
def demo(*options: str, **more: Any) -> Iterator[Demo]:
    app = Demo(*options, **more)
    try:
        yield app
    finally:
        app.terminal.close()


def start_up(rounds: int) -> None:
    first, live = [], []
    for _ in range(rounds):
        with demo() as app:
            while not app.terminal.raw:
                app.terminal.read(0.01)
            first.append((time.monotonic() - app.terminal.started_at) * 1000)
            app.terminal.until("task_00001")
            live.append((time.monotonic() - app.terminal.started_at) * 1000)
    report("first cells", percentiles(first))
    report("usable screen", percentiles(live))


def bytes_of(what: str, seconds: float, *options: str, size: tuple[int, int] = (120, 40)) -> None:
    with demo(*options, columns=size[0], rows=size[1]) as app:
        app.terminal.until("task_00001")
        app.terminal.read_for(1.5)
        cpu, started = app.terminal.cpu_seconds(), time.monotonic()
        count = app.terminal.read_for(seconds)
        took = time.monotonic() - started
        cpu = (app.terminal.cpu_seconds() - cpu) / took * 100
        report(what, f"{count / took:,.0f} B/s", f"{cpu:.1f} % CPU")


def key_to_paint(what: str, count: int, *options: str) -> None:
    """The key moves the cursor; what comes back must hold the row that it moved to."""
    with demo("--rows", "10000", *options, columns=120, rows=40) as app:
        app.terminal.until("task_00001")
        app.terminal.read_for(1.0)
        times = []
        for number in range(count):
            down = number % 20 < 10
            place = number % 20 + 1 if down else 19 - number % 20
            started = time.monotonic()
            app.terminal.send("j" if down else "k")
            while not app.terminal.screen.buffer[3 + place][5].reverse:
                app.terminal.read(1.0)
            times.append((time.monotonic() - started) * 1000)
            app.terminal.read_for(random.uniform(0.02, 0.06))
        report(what, percentiles(times))


def stall(seconds: float) -> None:
    with demo("--tick", "0.1", "--full", columns=120, rows=40) as app:
        app.terminal.until("tick 20")
        time.sleep(8.0)  # what is measured is the stall itself: nothing is read, until every buffer is full
        app.stats()
        memory = app.terminal.memory_bytes()
        time.sleep(seconds)
        stats = app.stats()
        grown = app.terminal.memory_bytes() - memory
        before, started = len(app.terminal.raw), time.monotonic()

        def newest() -> bool:
            found = re.search(r"tick (\d+)", app.terminal.text)
            return found is not None and int(found[1]) >= stats["ticks"]

        app.terminal.until(newest)
        report(
            f"terminal not read for {seconds:.0f} s, 10 full paints/s",
            f"loop's longest gap {stats['longest_gap'] * 1000:.0f} ms",
            f"memory +{grown // 1024} kB",
            f"newest picture after {(time.monotonic() - started) * 1000:.0f} ms, {len(app.terminal.raw) - before} B",
        )


def slow_link(rate: int, seconds: float) -> None:
    """A line with a deep buffer, as ssh has: bytes are taken at once, and seen and answered at the line's rate."""
    environ = {"SSH_TTY": "x"}
    with demo("--tick", "0.1", "--full", columns=160, rows=50, environ=environ, answers=False) as app:
        terminal = app.terminal
        line, ages, started, passed = bytearray(), [], time.monotonic(), 0
        while (now := time.monotonic()) < started + seconds:
            before = len(terminal.raw)
            terminal.read(0.005)
            line += terminal.raw[before:]
            ages.append(len(line) / rate)
            budget = int((now - started) * rate) - passed
            passed += budget
            seen, line = bytes(line[:budget]), line[budget:]
            for _ in range(seen.count(b"\x1b[6n")):
                terminal.send(b"\x1b[1;6R")
        report(
            f"line of {rate} B/s with a deep buffer, 10 full paints/s",
            f"the picture is old by {percentiles(ages, 's')}",
        )


# --- processor time of a frame, in this process -----------------------------------------------------------------------


class Bench(ConsoleBase):
    """One widget on a terminal that reads everything."""

    def __init__(self, hold: Tty, widget: Widget) -> None:
        super().__init__(hold, palette=PALETTE)
        self.widget = widget
        self.painted = asyncio.Event()

    def compose(self) -> ComposeResult:
        yield self.widget

    def post_display_hook(self) -> None:
        self.painted.set()

    async def cpu_of(self, change: Callable[[int], object], count: int) -> tuple[list[float], int]:
        """Milliseconds of this thread for each of ``count`` changes with its frame, and the bytes of one."""
        driver = self.console_driver
        assert isinstance(driver, ConsoleDriver) and driver.output is not None
        await asyncio.sleep(0.3)
        before = driver.output.bytes_written
        times = []
        for number in range(count):
            self.painted.clear()
            started = time.thread_time()
            change(number)
            await asyncio.wait_for(self.painted.wait(), 5)
            times.append((time.thread_time() - started) * 1000)
            await asyncio.sleep(0.02)
        return times, (driver.output.bytes_written - before) // count


@contextmanager
def terminal_that_reads(columns: int, rows: int) -> Iterator[int]:
    import fcntl
    import struct
    import termios

    master, slave = os.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    reading = True

    def drain() -> None:
        while reading:
            try:
                os.read(master, 65536)
            except OSError:
                return

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    yield slave
    reading = False
    os.close(slave)
    os.close(master)


Changes = dict[str, Callable[[int], object]]


async def frames(what: str, size: tuple[int, int], make: Callable[[], tuple[Widget, Changes]], count: int) -> None:
    with terminal_that_reads(*size) as slave:
        widget, changes = make()
        app = Bench(Tty(TerminalCapabilities(colours=Colours.INDEXED), slave, slave), widget)
        running = asyncio.create_task(app.run_async())
        await asyncio.sleep(0.5)
        for name, change in changes.items():
            times, size_bytes = await app.cpu_of(change, count)
            report(f"{what} {size[0]}x{size[1]}: {name}", f"CPU {percentiles(times)}", f"{size_bytes} B")
        app.exit()
        await running


def big_table() -> tuple[Widget, Changes]:
    states = [number % 5 for number in range(10_000)]

    def row(key: int, width: int) -> Line:
        sign, role = SIGNS[states[key]]
        return [
            Piece(sign, role),
            Piece(f" load_part_{key:05}   2/5   retry in 00:07   UnicodeDecodeError parser.py:31"),
        ]

    table: VirtualTable[int] = VirtualTable(row, mark_sign="▪")
    table.set_order(range(10_000))
    orders = [list(range(10_000)), sorted(range(10_000), key=lambda key: -key)]
    matching = [key for key in range(10_000) if key % 4 == 0]

    def change(number: int) -> None:
        states[7] = number % 5
        table.rows_changed([7])

    def change_twenty(number: int) -> None:
        for key in range(20):
            states[key] = (states[key] + 1) % 5
        table.rows_changed(set(range(20)))

    return table, {
        "one row of 10,000": change,
        "20 rows": change_twenty,
        "cursor down": lambda number: table.move_rows(1),
        "page": lambda number: table.move_pages(1),
        "new order": lambda number: table.set_order(orders[(number + 1) % 2]),
        "filter to 2,500, and back": lambda number: table.set_order(orders[0] if number % 2 else matching),
        "everything again": lambda number: table.refresh(),
    }


def big_canvas() -> tuple[Widget, Changes]:
    """10,000 tasks in 100 columns, with lines between them."""
    states = [number % 5 for number in range(10_000)]

    def pieces(y: int, x0: int, x1: int) -> Iterator[Piece]:
        x = x0 - x0 % 24
        while x < x1:
            key = (y * 100 + x // 24) % 10_000
            sign, role = SIGNS[states[key]]
            text = (Piece(sign, role), Piece(f" task_{key:05}     "), Piece("╶┬───", Role.RULE))
            if x >= x0 and x + 24 <= x1:
                yield from text
            else:
                plain = "".join(piece.text for piece in text)
                yield Piece(plain[max(x0 - x, 0) : x1 - x])
            x += 24

    class Drawing(Canvas):
        def drawn_row(self, y: int, x0: int, x1: int) -> Line:
            return list(pieces(y, x0, x1))

        def click_cell(self, x: int, y: int, chain: int) -> None:
            pass

    canvas = Drawing()
    canvas.set_extent(2400, 100)

    def change(number: int) -> None:
        states[503] = number % 5
        canvas.refresh_drawing_cells(3 * 24, 5, 1)

    return canvas, {
        "one task of 10,000": change,
        "one line down": lambda number: canvas.scroll_by(0, -1 if number % 2 else 1),
        "page": lambda number: canvas.scroll_by(0, -40 if number % 2 else 40),
        "sideways": lambda number: canvas.scroll_by(8 if number % 40 < 20 else -8, 0),
        "everything again": lambda number: canvas.refresh(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the time, rougher figures")
    quick = parser.parse_args().quick
    count = 20 if quick else 100
    start_up(3 if quick else 15)
    bytes_of("idle", 3 if quick else 15)
    five = ("--tick", "1.0", "--per-tick", "5")
    for size in SIZES:
        bytes_of(f"5 countdowns at 1 Hz, {size[0]}x{size[1]}", 4 if quick else 15, *five, size=size)
    ten = ("--tick", "0.1", "--per-tick", "0")
    bytes_of("200 visible changes/s at 10 fps", 3 if quick else 10, *ten, "--rows", "35", "--events", "200")
    bytes_of("2,000 changes/s over 10,000 rows at 10 fps", 3, *ten, "--rows", "10000", "--events", "2000")
    key_to_paint("key to paint, idle", count)
    key_to_paint("key to paint, 2,000 changes/s", count, *ten, "--events", "2000")
    stall(5 if quick else 60)
    slow_link(5000, 8 if quick else 30)
    for size in SIZES:
        asyncio.run(frames("table", size, big_table, count))
    asyncio.run(frames("canvas", (120, 40), big_canvas, count))


if __name__ == "__main__":
    main()
