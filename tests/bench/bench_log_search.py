"""What the search of a long log costs the console: the longest pause of its loop, and how long an answer takes.

    python tests/bench/bench_log_search.py [--megabytes 100]

A state file is written as an executor would write it; a local session searches it for what is
not there. The pauses are counted in processor time of the console: other work of the machine does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from redrive.console.sessions.local import LocalSession
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.errors import RedriveError
from redrive.engine.statefile import logs
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import claims, database, runs

MEGABYTE = 1_000_000
WHERE = ("bench", "chatty", 1)
LINE = "line {:09} reads the rows of a long file with many words in it, {} of them omitted\n"
PATTERN = "could not parse"


def write(path: str, size: int) -> None:
    """One attempt that has written ``size`` bytes."""
    connection = database.open_for_writing(path)
    connection.execute("BEGIN IMMEDIATE")
    transaction = Transaction(connection, time.time_ns() // 1000)
    flow = FlowSpec("bench", (TaskSpec("chatty"),))
    runs.create_run(
        transaction, run_id="bench", flow=flow, max_parallel=1, params={}, at=transaction.at, deadline_at=None
    )
    claims.promote(transaction, "bench", {"chatty": 0})
    claims.claim(transaction, "bench", "chatty", 0, "token", {"pid": 1, "host": "here"})
    number = written = 0
    while written < size:
        text = "".join(LINE.format(at, at * 7) for at in range(number, number + 10_000))
        logs.append(transaction, *WHERE, text, limit_bytes=2 * size)
        number, written = number + 10_000, written + len(text)
    connection.execute("COMMIT")
    connection.close()


async def search(session: LocalSession, pattern: str) -> str:
    """Search the whole log, slice by slice."""
    place: int | None = 0
    slices = 0
    while place is not None:
        try:
            found, place = await session.find_in_log(*WHERE, pattern, after=place)
        except RedriveError as error:
            return str(error)
        slices += 1
        if found is not None:
            return "found"
    return f"nowhere, {slices} slices"


async def measured(name: str, work: Callable[[], Awaitable[str]]) -> None:
    """Print how long it took, and the longest turns of the loop meanwhile."""
    ticks: list[float] = []
    last = time.process_time()

    def tick() -> None:
        nonlocal last
        ticks.append(time.process_time() - last)
        last += ticks[-1]

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.001)
            tick()

    watching = asyncio.create_task(watch())
    began, cpu = time.perf_counter(), time.process_time()
    result = await work()
    took, used = time.perf_counter() - began, time.process_time() - cpu
    watching.cancel()
    tick()
    ticks.sort()
    pauses = f"longest pause {ticks[-1] * 1e3:6.1f} ms, 99 of 100 {ticks[int(len(ticks) * 0.99)] * 1e3:5.1f} ms"
    print(f"{name:22} {pauses}  answer {took:5.2f} s  cpu of the console {used:5.2f} s  {result}")


async def main(megabytes: int) -> None:
    """See the module."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "bench.db")
        write(path, megabytes * MEGABYTE)
        session = await LocalSession.open(path)

        async def no_text() -> str:
            await asyncio.sleep(2)
            return ""

        await measured("at rest", no_text)
        await measured("first search", lambda: search(session, "line 000000001"))
        await measured(f"{megabytes} MB, words", lambda: search(session, PATTERN))
        await measured(f"{megabytes} MB, pattern", lambda: search(session, r"could\s+not.*\bparse\b"))
        await session.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    asyncio.run(main(parser.parse_args().megabytes))
