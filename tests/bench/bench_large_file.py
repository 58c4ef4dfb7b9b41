"""What a state file with many runs costs, beside a fresh one: ``python tests/bench/bench_large_file.py [--runs 1000]``.

One run is written as an executor writes it, and copied within the file. Each figure is the best of five: of the file
that holds the latest run alone, of the large file, and their ratio.

1,000 runs, 5,000,000 events, 636 MB (2 busy cores, ``--events 5000``): attach 0.96 times the fresh file, inbox 1.09,
commit 1.01, latest acts 1.06; the list of 1,000 runs with 200,000 tasks 32 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from redrive.console.model.board import Board
from redrive.console.model.inbox import Inbox
from redrive.console.sessions.local import LocalSession
from redrive.engine.domain.event_payloads import AttemptSwept
from redrive.engine.statefile import lists
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database
from support.state_file import StateFileBuilder

#: Tables of a run, and the columns that are not part of the copy: numbers that the file gives.
COPIED = {"run": (), "task": (), "edge": (), "attempt": (), "event": ("seq",)}
ROUNDS = 5
COMMITS = 300


def write_run(path: Path, tasks: int, events: int) -> None:
    """A run of which every task has ended, the last as a dead letter."""
    builder = StateFileBuilder(path, tasks)
    for name in [f"task_{number:05}" for number in range(tasks)]:
        is_last = name.endswith(f"{tasks - 1:05}")
        builder.finish(name, *(["DEAD_LETTER"] if is_last else []), error="no" if is_last else None)
    builder.emit_idle_events(max(0, events - builder.head()))
    builder.close()


def copy_run(path: Path, count: int) -> None:
    """Copy the run so many times, each started a second after the one before."""
    connection = database.open_for_writing(str(path), "normal")
    connection.execute("PRAGMA synchronous=OFF")
    ((run_id,),) = connection.execute("SELECT run_id FROM run").fetchall()
    for number in range(count):
        connection.execute("BEGIN")
        for table, given in COPIED.items():
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] not in given]
            values = [_VALUES.get((table, column), column) for column in columns]
            copied = f"SELECT {', '.join(values)} FROM {table} WHERE run_id = :old"
            order = " ORDER BY seq" if table == "event" else ""
            connection.execute(
                f"INSERT INTO {table} ({', '.join(columns)}) {copied}{order}", {"old": run_id, "number": number}
            )
        connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


_NEW_ID = "'old-' || substr('0000' || :number, -5)"
_VALUES = {(table, "run_id"): _NEW_ID for table in COPIED} | {
    ("run", "started_at"): "started_at - 1000000000 + :number * 1000000",
    ("run", "ended_at"): "started_at - 1000000000 + :number * 1000000 + 500000",
    ("run", "state"): "'PARTIAL'",
}


async def doors(path: Path) -> dict[str, float]:
    """Seconds of each request of a console that attaches."""
    session = await LocalSession.open(str(path))

    async def inbox() -> None:
        projection = await session.snapshot()
        board = Board(projection)
        board.update_lists(await session.rows(lists.BREAKERS))
        causes = Inbox(board).causes()
        await session.cause_histories(
            projection.run.run_id, [(cause.fingerprint, cause.downstream) for cause in causes]
        )

    async def attach() -> None:
        projection = await session.snapshot()
        async for _ in session.events(projection.seq):
            break

    async def acts() -> None:
        await session.rows(lists.JOURNAL, run_id="night-1", acts=1, limit=100)

    requests: dict[str, Callable[[], object]] = {
        "attach: the latest run and the first look for events": attach,
        "inbox with its past": inbox,
        "list of runs": session.runs,
        "latest acts of a run": acts,
        "durations of earlier runs": lambda: session.duration_stats("night-1"),
    }
    found = {name: min([await _seconds(request) for _ in range(ROUNDS)]) for name, request in requests.items()}
    await session.close()
    return found


async def _seconds(request: Callable[[], object]) -> float:
    began = time.process_time()
    await request()  # type: ignore[misc]
    return time.process_time() - began


def commits(path: Path) -> float:
    """Processor seconds of one commit of an event."""
    connection = database.open_for_writing(str(path), "normal")
    best = 1e9
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(COMMITS):
            connection.execute("BEGIN IMMEDIATE")
            Transaction(connection, time.time_ns() // 1000).emit(AttemptSwept(), "night-1")
            connection.execute("COMMIT")
        best = min(best, (time.process_time() - began) / COMMITS)
    connection.close()
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--events", type=int, default=1000, help="of each run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fresh, large = Path(folder) / "fresh.db", Path(folder) / "large.db"
        for path in (fresh, large):
            write_run(path, options.tasks, options.events)
        copy_run(large, options.runs - 1)
        with sqlite3.connect(large) as connection:
            (count,) = connection.execute("SELECT count(*) FROM event").fetchone()
        print(f"{options.runs} runs, {count:,} events, {os.path.getsize(large) / 1e6:,.0f} MB")
        few, many = asyncio.run(doors(fresh)), asyncio.run(doors(large))
        few["commit of an event"], many["commit of an event"] = commits(fresh), commits(large)
        for name, seconds in many.items():
            print(f"{name:54} {few[name] * 1000:9.2f} ms  {seconds * 1000:9.2f} ms  {seconds / few[name]:5.2f}")


if __name__ == "__main__":
    main()
