"""Runs one life: run after run in one process, a follower beside it, and samples of what the process holds."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import psutil
from redrive.engine import Executor, Flow, RetryPolicy, RunOptions, TransientError
from redrive.engine.core.spec import Isolation
from redrive.engine.domain.events import Event
from support.commands import run_redrive

from .follower import attached_path

ROOT = Path(__file__).resolve().parents[2]
KEPT_RUNS = 5
ABANDON_EVERY = 20  # runs: acts have left tasks in them for which no executor lives
OPTIONS = RunOptions(wait=True, max_parallel=8)
TASKS = 50  # of one run; one of ten fails once
QUICK = RetryPolicy(max_attempts=5, base=0.01, cap=0.02)
KINDS: tuple[Isolation, ...] = ("thread", "worker", "worker", "thread", "thread")


@dataclass(frozen=True, slots=True)
class Sample:
    """What the process holds between two runs. Sizes in kB."""

    attempts: int
    seconds: float
    memory: int
    descriptors: int
    threads: int
    children: int
    zombies: int
    wal: int
    file: int


@dataclass(frozen=True, slots=True)
class Life:
    """The samples of a life, and what the follower did."""

    samples: list[Sample]
    attaches: int
    acts: int

    def problems(self) -> Iterator[str]:
        """What grows: the last quarter holds more than the second one, beyond a tolerance."""
        quarter = max(1, len(self.samples) // 4)
        earlier, later = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        for name, tolerance in (
            ("children", 1),
            ("memory", 4096),
            ("descriptors", 2),
            ("threads", 1),
            ("wal", 8192),
            ("file", 2048),
        ):
            before, after = (max(getattr(each, name) for each in part) for part in (earlier, later))
            if after > before * 1.1 + tolerance:
                yield f"{name} grows: {before} and later {after}"
        zombies = self.samples[-1].zombies - self.samples[0].zombies  # a test before this one may have left some
        if zombies > 0:
            yield f"{zombies} zombies"


def make_flow() -> Flow:
    """The flow of each run."""
    flow = Flow("life", retention=KEPT_RUNS, max_parallel=8)
    above: list[str] = []
    for number in range(TASKS):
        name = f"task{number}"
        flow.task(
            _body(number),
            name=name,
            after=above[-2:-1],
            isolation=KINDS[number % len(KINDS)],
            timeout=30,
            retry=QUICK,
            max_losses=99,
        )
        above.append(name)
    return flow


def _body(number: int) -> Callable[..., object]:
    def run(ctx: object) -> dict[str, int]:
        print("attempt of", number)
        if number % 10 == 3 and ctx.attempt == 1:  # type: ignore[attr-defined]
            raise TransientError("once")
        return {"number": number}

    return run


def live(
    folder: Path,
    attempts: int,
    attaches: int,
    acts: int,
    report: Callable[[Sample], None],
    seconds_max: float = math.inf,
) -> Life:
    """Run until there were so many attempts, or for so long; ``report`` gets each sample."""
    state, flow = folder / "life.db", make_flow()
    samples: list[Sample] = []
    process, started, runs, counted = psutil.Process(), time.monotonic(), 0, Counter[str]()

    def count(events: Sequence[Event]) -> None:
        counted["attempts"] += sum(event.new == "RUNNING" and event.task is not None for event in events)

    wanted = [str(max(1, attaches)), str(acts)]
    follower = subprocess.Popen(
        [sys.executable, "-m", "tests.long_life.follower", str(state), *wanted],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def goes_on() -> bool:
        """A follower that starts late gets runs to attach to."""
        is_followed = attached_path(str(state)).exists() or follower.poll() is not None
        return (counted.total() < attempts or not is_followed) and time.monotonic() - started < seconds_max

    while goes_on():
        runs += 1
        if runs % ABANDON_EVERY == 0:
            run_redrive("abandon", "--all", "--reason", "an old night", "--state", state)
        executor = Executor(run_id=f"run{runs:05}", flow=flow, state=state, options=OPTIONS, on_events=count)
        with contextlib.suppress(SystemExit):
            executor.run_result()
        samples.append(_sample(process, state, counted.total(), time.monotonic() - started))
        report(samples[-1])
    output, _ = follower.communicate(timeout=60)
    counts = json.loads(output)
    return Life(samples, counts["attaches"], counts["acts"])


def _sample(process: psutil.Process, state: Path, attempts: int, seconds: float) -> Sample:
    children = process.children()
    return Sample(
        attempts,
        round(seconds, 1),
        process.memory_info().rss // 1024,
        process.num_fds(),
        process.num_threads(),
        len(children),
        sum(child.status() == psutil.STATUS_ZOMBIE for child in children),
        _kilobytes(f"{state}-wal"),
        _kilobytes(state),
    )


def _kilobytes(path: str | Path) -> int:
    try:
        return os.stat(path).st_size // 1024
    except FileNotFoundError:
        return 0


def plot(samples: list[Sample], columns: int = 60, rows: int = 6) -> Iterator[str]:
    """Draw each measure over the attempts as lines of text."""
    for name in list(asdict(samples[0]))[2:]:
        values = [getattr(sample, name) for sample in samples]
        width = min(columns, len(values))
        bounds = [place * len(values) // width for place in range(width + 1)]
        shown = [max(values[first:last]) for first, last in pairwise(bounds)]
        top = max(shown) or 1
        yield f"{name}: {values[0]} at the start, {values[-1]} at the end, at most {max(values)}"
        for row in range(rows, 0, -1):
            yield "  |" + "".join("#" if value * rows > top * (row - 1) else " " for value in shown).rstrip()
