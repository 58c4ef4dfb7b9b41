"""What one attempt costs: latency of a no-op from start to ended, and the rate at 1, 4 and 16 in parallel.

Run as ``python tests/bench/bench_attempts.py [--import MODULE] [--count N]``. Goals on a quiet machine with two
cores: median <= 3 ms, >= 800 attempts/s at 4 in parallel. The CPU columns hold on a busy machine too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

from redrive.engine.core.outcome import Outcome, OutcomeKind
from redrive.engine.core.spec import TaskSpec
from redrive.engine.runner.process import children
from redrive.engine.runner.protocol import AttemptListener, AttemptOrder, Open
from redrive.engine.runner.runner import Runner
from redrive.engine.statefile.processes import stat_fields

FLOW = """
{imports}
from redrive.engine.flow.flow import Flow

flow = Flow("bench")

@flow.task
def noop():
    return None

flow.task(name="worker", isolation="worker")(noop)
flow.task(name="thread", isolation="thread")(noop)
flow.command("shell", "exit 0")
"""


class Waiter(AttemptListener):
    """A listener that only waits for the end."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def ended(self, outcome: Outcome) -> None:
        self.outcome.set_result(outcome)


async def one(runner: Runner, spec: TaskSpec) -> float:
    """Seconds from start to ended."""
    before = time.perf_counter()
    waiter = Waiter()
    await runner.start(AttemptOrder("run", spec.name, 1, 0, spec), waiter)
    outcome = await waiter.outcome
    assert outcome.kind is OutcomeKind.SUCCESS, outcome
    return time.perf_counter() - before


@dataclass(frozen=True, slots=True)
class Cpu:
    """CPU seconds used so far by the executor, by the zygote and by the processes that it has forked."""

    executor: float
    zygote: float
    attempts: float

    @classmethod
    def now(cls, zygote_pid: int) -> Cpu:
        """Read it."""
        ticks = os.sysconf("SC_CLK_TCK")
        user, system, reaped_user, reaped_system = (int(field) for field in stat_fields(zygote_pid)[11:15])
        living = sum(int(field) for pid in children(zygote_pid) for field in stat_fields(pid)[11:13])
        attempts = (reaped_user + reaped_system + living) / ticks
        return cls(time.process_time(), (user + system) / ticks, attempts)

    def rate_since(self, before: Cpu, count: int) -> str:
        """Milliseconds for each of ``count`` attempts."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        each = [1000 * (now - then) / count for now, then in pairs]
        return f"CPU {sum(each):5.2f} ms = executor {each[0]:4.2f} + zygote {each[1]:4.2f} + attempt {each[2]:4.2f}"


async def measure(runner: Runner, spec: TaskSpec, parallel: int, count: int) -> None:
    """Print the latency and the rate with so many at once."""
    latencies: list[float] = []

    async def lane() -> None:
        for _ in range(count // parallel):
            latencies.append(await one(runner, spec))

    assert runner.zygote_pid is not None
    cpu, before = Cpu.now(runner.zygote_pid), time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(parallel)))
    seconds = time.perf_counter() - before
    used = Cpu.now(runner.zygote_pid).rate_since(cpu, len(latencies))
    median, p99, best = (1000 * latency for latency in (statistics.median(latencies), _p99(latencies), min(latencies)))
    print(
        f"{spec.name:6} {parallel:3} parallel: {len(latencies) / seconds:7.0f}/s   "
        f"p50 {median:6.2f} ms   p99 {p99:6.2f} ms   best {best:6.2f} ms   {used}"
    )


def _p99(latencies: list[float]) -> float:
    return sorted(latencies)[int(len(latencies) * 0.99)]


async def main(imports: str, count: int) -> None:
    """Measure each way to run a task."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "bench_flow.py")
        path.write_text(FLOW.format(imports=f"import {imports}" if imports else ""))
        runner = Runner.spawn(environment={"REDRIVE_EXECUTOR": "bench"})
        before = time.perf_counter()
        flow = await runner.open(Open(str(path)))
        print(f"open {(time.perf_counter() - before) * 1e3:.0f} ms; warnings: {list(runner.warnings)}")
        for spec in flow.tasks:
            await measure(runner, spec, 1, 50)  # warm
            for parallel in (1, 4, 16):
                await measure(runner, spec, parallel, count)
        await runner.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--import", dest="imports", default="", help="modules that the flow imports first")
    parser.add_argument("--count", type=int, default=800)
    options = parser.parse_args()
    asyncio.run(main(options.imports, options.count))
