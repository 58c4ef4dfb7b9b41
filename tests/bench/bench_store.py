"""Prints what one durable transition costs: ``python tests/bench/bench_store.py [--callers 1000] [--seconds 3]``.

A caller is a coroutine that awaits its own commit before it goes on. One transition is a guarded UPDATE with its event,
from the call to the resolved future. Both durabilities; goal: 20,000/s at 1000 callers on FULL.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

from redrive.engine.core.spec import Durability, FlowSpec, TaskSpec
from redrive.engine.domain.states import TaskState
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database, runs
from redrive.engine.store.writer import Writer

_THERE_AND_BACK = (TaskState.READY, TaskState.PENDING)


def _now_us() -> int:
    return time.time_ns() // 1000


def _flip(name: str, old: TaskState, new: TaskState) -> Callable[[Transaction], bool]:
    return lambda transaction: transaction.move("bench", name, old, new, 0, set={"next_retry_at": None})


async def _caller(writer: Writer, name: str, until: float, latencies: list[float]) -> None:
    old, new = TaskState.PENDING, TaskState.READY
    while time.perf_counter() < until:
        started = time.perf_counter()
        moved = await writer.submit(_flip(name, old, new))
        latencies.append(time.perf_counter() - started)
        assert moved
        old, new = new, old


async def measure(path: Path, durability: Durability, callers: int, seconds: float) -> dict[str, Any]:
    """Run ``callers`` for ``seconds`` on a new file. Rates per second, latencies and CPU in microseconds."""
    connection = database.open_for_writing(path, durability)
    writer = Writer(connection, asyncio.get_running_loop(), _now_us)
    flow = FlowSpec("bench", tuple(TaskSpec(f"task{number}") for number in range(callers)))
    await writer.submit(
        lambda transaction: runs.create_run(
            transaction, run_id="bench", flow=flow, max_parallel=4, params={}, at=transaction.at, deadline_at=None
        )
    )
    latencies: list[float] = []
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    until = started + seconds
    await asyncio.gather(*(_caller(writer, f"task{number}", until, latencies) for number in range(callers)))
    elapsed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    await writer.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cuts = quantiles(latencies, n=100)
    return {
        "rate": len(latencies) / elapsed,
        "cpu_us": cpu / len(latencies) * 1e6,
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
    }


def main() -> None:
    """Print one line for each durability and number of callers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--folder", default=None, help="where to put the files (default: the temporary folder)")
    options = parser.parse_args()
    print(f"SQLite {sqlite3.sqlite_version}")
    print("durability  callers  transitions/s  CPU us  p50 ms  p99 ms")
    for durability in ("full", "normal"):
        for callers in options.callers:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                found = asyncio.run(measure(Path(folder, "bench.db"), durability, callers, options.seconds))
            print(
                f"{durability:<10}  {callers:>7}  {found['rate']:>13,.0f}  {found['cpu_us']:>6.1f}"
                f"  {found['p50_ms']:>6.2f}  {found['p99_ms']:>6.2f}"
            )


if __name__ == "__main__":
    main()
