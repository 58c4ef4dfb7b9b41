"""What the console costs on a real terminal: start, bytes at rest and at work, and from a key to the changed cell.

    python tests/bench/bench_console.py [--size 120x40] [--seconds 5] [--only NAME ...]

A state file is written by this process as an executor would write it; ``redrive attach`` looks at it through a PTY.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from redrive.console.model.graph.groups import GRAPH_MAX
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.event_payloads import RunChanged, TaskColumns
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import claims, database, runs
from redrive.engine.store.lock import acquire
from support.pty_terminal import PtyTerminal

REDRIVE = [str(Path(sys.executable).with_name("redrive"))]
KEYS = 60
RUN = "bench"


class Writer:
    """A state file with one run, written by this process; it holds the lock, so an executor seems to live."""

    def __init__(self, folder: Path, tasks: int) -> None:
        self.path = folder / "bench.db"
        self.connection = database.open_for_writing(str(self.path))
        self.names = [f"task_{number:05}" for number in range(tasks)]
        specs = tuple(TaskSpec(name, timeout=300.0) for name in self.names)
        flow = FlowSpec("bench", specs)
        self.write(
            lambda transaction: runs.create_run(
                transaction, run_id=RUN, flow=flow, max_parallel=4, params={}, at=transaction.at, deadline_at=None
            )
        )
        self.lock = acquire(str(self.path), "bench")
        self.stopping = threading.Event()

    def write(self, item: Callable[[Transaction], Any]) -> Any:
        self.connection.execute("BEGIN IMMEDIATE")
        result = item(Transaction(self.connection, time.time_ns() // 1000))
        self.connection.execute("COMMIT")
        return result

    def run(self, count: int) -> None:
        """So many tasks run and tell how far they are."""

        def item(transaction: Transaction) -> None:
            for name in self.names[:count]:
                claims.promote(transaction, RUN, {name: 0})
                claims.claim(transaction, RUN, name, 0, f"token-{name}", {"pid": 1, "host": "here"})
                transaction.change(RUN, name, {"progress_done": 0, "progress_total": 1000})

        self.write(item)

    def wait_for_retries(self, count: int) -> None:
        """So many tasks count down for an hour."""

        def item(transaction: Transaction) -> None:
            for name in self.names[:count]:
                claims.promote(transaction, RUN, {name: 0})
                claims.claim(transaction, RUN, name, 0, f"token-{name}", {"pid": 1, "host": "here"})
                due = transaction.at + 3_600_000_000
                transaction.move(RUN, name, "RUNNING", "RETRYING", 0, set={"next_retry_at": due, "failures": 1})

        self.write(item)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """The lock is touched each second, as an executor does."""
        self._thread(self._beat)
        try:
            yield
        finally:
            self.stopping.set()
            for thread in threading.enumerate():
                if thread.name == "bench":
                    thread.join()
            self.stopping.clear()

    def _thread(self, target: Callable[[], None]) -> None:
        threading.Thread(target=target, name="bench", daemon=True).start()

    def _beat(self) -> None:
        while not self.stopping.wait(0.5):
            self.lock.touch()

    def change(self, rate: int, names: list[str]) -> None:
        """Until the end: so many changes a second, of these tasks, ten transactions a second."""

        def work() -> None:
            connection = database.open_for_writing(str(self.path))
            number = 0
            due = time.monotonic()
            while not self.stopping.is_set():
                connection.execute("BEGIN IMMEDIATE")
                transaction = Transaction(connection, time.time_ns() // 1000)
                for _ in range(rate // 10):
                    number += 1
                    done: TaskColumns = {"progress_done": number % 997, "progress_total": 1000}
                    transaction.change(RUN, names[number % len(names)], done)
                connection.execute("COMMIT")
                due += 0.1
                self.stopping.wait(max(due - time.monotonic(), 0))

        self._thread(work)

    def close(self) -> None:
        self.lock.release()
        self.connection.close()


@contextmanager
def console(writer: Writer, size: tuple[int, int]) -> Iterator[PtyTerminal]:
    """``redrive attach`` on a terminal, settled."""
    environ = {"XDG_CONFIG_HOME": str(writer.path.parent), "HOME": str(writer.path.parent)}
    terminal = PtyTerminal(
        [*REDRIVE, "attach", str(writer.path)], columns=size[0], rows=size[1], environ={**os.environ, **environ}
    )
    try:
        terminal.until(lambda: terminal.lines[1].endswith("alive"), 30)
        terminal.read_for(2.5)  # what comes late: who else is here, the texts of the selected task
        yield terminal
    finally:
        terminal.close()


# --- Measurements ---------------------------------------------------------------------------------------------------


def start(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    writer = Writer(folder, 13)
    first, usable = [], []
    with writer.beating():
        for _ in range(7):
            began = time.perf_counter()
            terminal = PtyTerminal(
                [*REDRIVE, "attach", str(writer.path)], columns=80, rows=24, environ=dict(os.environ)
            )
            while not terminal.read(0.001):
                pass
            first.append(time.perf_counter() - began)
            terminal.until("task_00012", 30)
            usable.append(time.perf_counter() - began)
            terminal.close()
    writer.close()
    yield f"first cells after {_ms(first)} (best {min(first) * 1000:.0f} ms)"
    yield f"the run on the screen after {_ms(usable)} (best {min(usable) * 1000:.0f} ms)"


def idle(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    writer = Writer(folder, 40)
    writer.write(
        lambda transaction: transaction.change_run(
            RUN, RunChanged("ended", {"state": "SUCCESS", "ended_at": transaction.at})
        )
    )
    with writer.beating(), console(writer, options.size) as terminal:
        cpu = terminal.cpu_seconds()
        count = terminal.read_for(options.seconds)
        used = (terminal.cpu_seconds() - cpu) / options.seconds
        yield f"a run that is over: {count / options.seconds:.0f} B/s, {used:.1%} of a core"
    writer.close()


def countdowns(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    for count in (5, 20):
        place = folder / str(count)
        place.mkdir()
        writer = Writer(place, 40)
        writer.wait_for_retries(count)
        with writer.beating(), console(writer, options.size) as terminal:
            cpu = terminal.cpu_seconds()
            got = terminal.read_for(options.seconds)
            used = (terminal.cpu_seconds() - cpu) / options.seconds
            yield f"{count} countdowns and the elapsed time: {got / options.seconds:.0f} B/s, {used:.1%} of a core"
        writer.close()


def changes(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    writer = Writer(folder, 30)
    writer.run(30)
    with writer.beating(), console(writer, options.size) as terminal:
        writer.change(200, writer.names[:14])
        terminal.read_for(1)
        cpu = terminal.cpu_seconds()
        count = terminal.read_for(options.seconds)
        used = (terminal.cpu_seconds() - cpu) / options.seconds
        yield f"200 visible changes a second: {count / options.seconds / 1000:.1f} kB/s, {used:.1%} of a core"
    writer.close()


def keys(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    for rate in (0, 500, 2000):
        place = folder / str(rate)
        place.mkdir()
        writer = Writer(place, options.tasks)
        with writer.beating(), console(writer, options.size) as terminal:
            if rate:
                writer.change(rate, writer.names)
                terminal.read_for(1)
            if options.tasks > GRAPH_MAX:  # from groups to one row per task
                terminal.send("=")
                terminal.read_for(1)
            found = sorted(_key_to_paint(terminal, number) for number in range(KEYS))
            p50, p95 = statistics.median(found) * 1000, found[int(len(found) * 0.95)] * 1000
            yield f"a key under {rate} events/s, {options.tasks} tasks: p50 {p50:.1f} ms, p95 {p95:.1f} ms"
        writer.close()


def _key_to_paint(terminal: PtyTerminal, number: int) -> float:
    """The cursor moves down and up: until the name of its task has come to where the details are."""
    key, expected = ("j", "task_00001") if number % 2 == 0 else ("k", "task_00000")
    terminal.read_for(0.05)
    began = time.perf_counter()
    terminal.send(key)
    while expected not in _details(terminal):
        terminal.read(0.0005)
        assert time.perf_counter() - began < 5, terminal.text
    return time.perf_counter() - began


def _details(terminal: PtyTerminal) -> str:
    """The row that names the selected task: of the strip, or of the pane beside the graph. Cell by cell: ``display``
    joins the whole screen, which takes longer than what is measured."""
    columns, rows = terminal.screen.columns, terminal.screen.lines
    y, x = (3, columns * 3 // 5) if columns >= 118 else (rows - 5, 0)
    row = terminal.screen.buffer[y]
    return "".join(row[column].data for column in range(x, columns))


def _ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1000:.0f} ms"


MEASUREMENTS: dict[str, Callable[[Path, argparse.Namespace], Iterator[str]]] = {
    "start": start,
    "idle": idle,
    "countdowns": countdowns,
    "changes": changes,
    "keys": keys,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="80x24", type=lambda text: tuple(map(int, text.split("x"))))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--only", nargs="*", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            for line in MEASUREMENTS[name](Path(folder), options):
                print(f"{name:<11} {line}", flush=True)


if __name__ == "__main__":
    main()
