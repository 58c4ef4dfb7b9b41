"""What it costs to go through a long night, and to learn how long tasks usually take.

    python tests/bench/bench_replay.py [--tasks 10000] [--events 100000] [--runs 100] [--size 80x24] [--only NAME ...]

State files are made as an executor would write them; ``redrive attach`` looks at them through a PTY.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from redrive.console.model.board import Board
from redrive.console.model.replay import ReplayIndex
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.event_payloads import AttemptColumns, AttemptStarted, RunChanged, TaskColumns, TaskMoved
from redrive.engine.statefile import durations, lists
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import claims, database, runs
from support.pty_terminal import PtyTerminal

REDRIVE = [str(Path(sys.executable).with_name("redrive"))]
RUN = "night"
KEYS = 60
SECOND = 1_000_000
OWN_EVENTS = 4  # of each task; the others say how far it is


def write_run(path: Path, tasks: int, events: int) -> None:
    """A run of ``events`` events that is over: all tasks did well in the end, one in twenty failed before."""
    connection = database.open_for_writing(str(path))
    names = [f"task_{number:05}" for number in range(tasks)]
    specs = tuple(
        TaskSpec(name, (names[(number - 1) // 8],) if number else (), timeout=300.0)
        for number, name in enumerate(names)
    )
    connection.execute("BEGIN IMMEDIATE")
    transaction = Transaction(connection, time.time_ns() // 1000 - 4 * 3600 * SECOND)
    flow = FlowSpec("nightly", specs)
    runs.create_run(transaction, run_id=RUN, flow=flow, max_parallel=8, params={}, at=transaction.at, deadline_at=None)
    quiet = events // tasks - OWN_EVENTS
    dice = random.Random(7)
    for number, name in enumerate(names):
        if number % 20 == 19:
            _attempt(transaction, name, 0, dice, "RETRYING")
            claims.wake(transaction, RUN, {name: 0})
        else:
            claims.promote(transaction, RUN, {name: 0})
        _attempt(transaction, name, quiet, dice, "SUCCESS")
    transaction.change_run(RUN, RunChanged("ended", {"state": "SUCCESS", "ended_at": transaction.at}))
    connection.execute("COMMIT")
    connection.close()


def _attempt(transaction: Transaction, name: str, quiet: int, dice: random.Random, state: str) -> None:
    if state == "RETRYING":
        claims.promote(transaction, RUN, {name: 0})
    attempt = claims.claim(transaction, RUN, name, 0, f"{dice.getrandbits(128):032x}", {"timeout_us": 300 * SECOND})
    started: AttemptColumns = {"pid": 4711, "host": "far.example.org"}
    transaction.change_attempt(RUN, name, attempt, started)
    transaction.emit(AttemptStarted(started), RUN, name, attempt=attempt)
    for done in range(quiet):
        transaction.at += dice.randrange(1000, 100_000)
        transaction.change(RUN, name, {"progress_done": done, "progress_total": quiet})
    took = dice.randrange(100_000, 2_000_000)
    transaction.at += took // 8
    ended: AttemptColumns = {
        "ended_at": transaction.at,
        "duration_us": took,
        "outcome": "success",
        "max_rss_kb": 23_456,
    }
    columns: TaskColumns = {"ended_at": transaction.at}
    if state == "RETRYING":
        ended |= {"outcome": "error", "error": "ConnectTimeout", "fingerprint_loose": f"cause-{dice.randrange(9)}"}
        columns |= {"failures": 1, "next_retry_at": transaction.at + SECOND, "error": "ConnectTimeout"}
    transaction.change_attempt(RUN, name, attempt, ended)
    transaction.move(RUN, name, "RUNNING", state, 0, set=columns, attempt=attempt, payload=TaskMoved(attempt_set=ended))


def make_year(path: Path, tasks: int, count: int) -> None:
    """So many runs of a flow, of which every task did well once; the last has just begun."""
    connection = database.open_for_writing(str(path))
    dice = random.Random(1)
    at = time.time_ns() // 1000 - count * 86_400 * SECOND
    connection.execute("BEGIN IMMEDIATE")
    for number in range(count):
        run_id, started_at = f"run-{number:03}", at + number * 86_400 * SECOND
        connection.execute(
            "INSERT INTO run (run_id, dag_name, started_at, state) VALUES (?, 'nightly', ?, 'SUCCESS')",
            (run_id, started_at),
        )
        connection.executemany(
            "INSERT INTO attempt (run_id, name, attempt, generation, token, host, pid, started_at, ended_at,"
            " duration_us, outcome) VALUES (?, ?, 1, 0, ?, 'far.example.org', 4711, ?, ?, ?, 'success')",
            (
                (run_id, f"task_{task:05}", f"{dice.getrandbits(128):032x}", started_at, started_at, took)
                for task, took in ((task, dice.randrange(2_000, 9_000_000)) for task in range(tasks))
            ),
        )
    connection.executemany(
        "INSERT INTO task (run_id, name, state) VALUES (?, ?, 'PENDING')",
        ((run_id, f"task_{task:05}") for task in range(tasks)),
    )
    connection.execute("COMMIT")
    connection.close()


# --- Measurements ---------------------------------------------------------------------------------------------------


def model(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """The reel alone, without a screen."""
    path = folder / "night.db"
    write_run(path, options.tasks, options.events)
    connection = database.open_for_reading(str(path))
    projection = runs.load_run(connection, RUN)
    began = time.perf_counter()
    events = _events(connection)
    read = time.perf_counter() - began
    tracemalloc.start()
    reel = ReplayIndex(projection)
    reel.extend(events)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    began = time.perf_counter()
    reel = ReplayIndex(projection)
    reel.extend(events)
    folded = time.perf_counter() - began
    yield f"{len(events)} events: read in {read:.2f} s, folded in {folded:.2f} s, {size / 1e6:.0f} MB of frames"
    yield from _steps(connection, reel, Board(projection))


def _events(connection: sqlite3.Connection, after: int = 0, limit: int = -1) -> list[Any]:
    return [event_of(row) for row in lists.read_events(connection, RUN, after, limit)]


def _steps(connection: sqlite3.Connection, reel: ReplayIndex, board: Board) -> Iterator[str]:
    """Backwards one by one with the stretch at hand, then to any moment with its stretch to be read."""
    seq, near, far = reel.seq, [], []
    dice = random.Random(3)
    after, events = -1, []
    for _ in range(1000):
        seq = reel.step(seq, -1) or seq
        stretch = reel.window_for(seq)
        if stretch.after != after:
            after, events = stretch.after, _events(connection, *stretch)
        near.append(_seconds(lambda seq=seq, events=events: board.seek(reel.snapshot_at(seq, events))))  # type: ignore[misc]
    for _ in range(100):
        seq = dice.randrange(1, reel.seq)

        def seek(seq: int = seq) -> object:
            return board.seek(reel.snapshot_at(seq, _events(connection, *reel.window_for(seq))))

        far.append(_seconds(seek))
    yield f"a step: {_spread(near)}; to any moment, its events read: {_spread(far)}"


def keys(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """From a key to the number of the event in the header, on a terminal."""
    path = folder / "night.db"
    write_run(path, options.tasks, options.events)
    environ = {**os.environ, "XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}
    columns, rows = options.size
    terminal = PtyTerminal([*REDRIVE, "attach", str(path)], columns=columns, rows=rows, environ=environ)
    try:
        terminal.until("ended", 60)
        terminal.read_for(2.5)
        yield f"the first step back: {_key_to_paint(terminal, '[') * 1000:.0f} ms"
        for view in "2346":
            terminal.send(view)
            terminal.read_for(1.5)
            for key in "[]{}":
                found = [_key_to_paint(terminal, key) for _ in range(KEYS if key in "[{" else KEYS - 5)]
                yield f"view {view}, key {key}: {_spread(found)}"
        sent = terminal.read_for(3)
        yield f"standing still in the past: {sent} bytes in 3 s"
        began = time.perf_counter()
        terminal.send("\x1b")
        terminal.until("ended", 10)
        yield f"back to the present: {(time.perf_counter() - began) * 1000:.0f} ms"
    finally:
        terminal.close()


def _key_to_paint(terminal: PtyTerminal, key: str) -> float:
    """Until the first row of the screen is another one."""
    terminal.read_for(0.05)
    before = terminal.screen.display[0]
    began = time.perf_counter()
    terminal.send(key)
    while terminal.screen.display[0] == before or "reading" in terminal.screen.display[0]:
        terminal.read(0.0005)
        assert time.perf_counter() - began < 30, terminal.text
    return time.perf_counter() - began


def durations_of_runs(folder: Path, options: argparse.Namespace) -> Iterator[str]:
    """What a console asks once for each run."""
    path = folder / "year.db"
    make_year(path, options.tasks, options.runs)
    connection = database.open_for_reading(str(path))
    run_id = f"run-{options.runs - 1:03}"
    found = [_seconds(lambda: durations.read_durations(connection, run_id)) for _ in range(5)]
    one = _seconds(lambda: connection.execute(durations._ATTEMPTS, ("run-000", durations.ATTEMPTS_MAX)).fetchall())
    size = path.stat().st_size / 1e6
    yield f"{options.runs} runs of {options.tasks} tasks ({size:.0f} MB): {_spread(found)}; one statement {one:.3f} s"


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _spread(seconds: list[float]) -> str:
    ordered = sorted(1000 * one for one in seconds)
    p95 = ordered[int(len(ordered) * 0.95)]
    return f"p50 {statistics.median(ordered):.1f} ms, p95 {p95:.1f} ms, max {ordered[-1]:.1f} ms"


MEASUREMENTS: dict[str, Callable[[Path, argparse.Namespace], Iterator[str]]] = {
    "model": model,
    "keys": keys,
    "durations": durations_of_runs,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="80x24", type=lambda text: tuple(map(int, text.split("x"))))
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--only", nargs="*", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    options = parser.parse_args()
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            for line in MEASUREMENTS[name](Path(folder), options):
                print(f"{name:<9} {line}", flush=True)


if __name__ == "__main__":
    main()
