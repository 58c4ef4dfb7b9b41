"""Runs many nights, and shrinks and prints those that fail."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from .plan import draw_plan
from .shrink import Reduction, reduce_plan, shrink
from .simulate import Report, simulate

CHUNK = 20  # nights that a process is given at once


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many nights")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--only", type=Reduction.parse, default=Reduction(), help="what is left of the plan")
    parser.add_argument("--show", action="store_true", help="print the events")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the fifth failure")
    given = parser.parse_args()
    runs, failed, cpu_seconds, counts = 0, 0, 0.0, Counter[str]()
    reported = time.monotonic()
    with _reports(given) as reports:
        for report, seconds in reports:
            runs, cpu_seconds, counts = runs + 1, cpu_seconds + seconds, counts + report.counts
            if report.problem:
                failed += 1
                _explain(report, given.only)
            if time.monotonic() - reported > 10:
                reported = time.monotonic()
                print(_progress(runs, cpu_seconds, failed), flush=True)
            if failed >= 5 and not given.keep_going:
                break
    print(_progress(runs, cpu_seconds, failed))
    print(", ".join(f"{move}: {count}" for move, count in sorted(counts.items())))
    return 1 if failed else 0


@contextmanager
def _reports(given: argparse.Namespace) -> Iterator[Iterator[tuple[Report, float]]]:
    """Yield the reports in the order of the seeds, each with its seconds of CPU."""
    seeds = range(given.first, given.first + given.seeds)
    run = partial(_run, only=given.only, shows=given.show)
    if given.jobs == 1:
        yield map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(given.jobs) as pool:
        yield pool.imap(run, seeds, CHUNK)


def _run(seed: int, only: Reduction, shows: bool) -> tuple[Report, float]:
    started = time.process_time()
    report = simulate(reduce_plan(draw_plan(seed), only), print if shows else None)
    return report, time.process_time() - started


def _explain(report: Report, only: Reduction) -> None:
    print(f"seed {report.seed}: {report.problem}")
    smallest, problem = shrink(draw_plan(report.seed), only)
    print(f"  smallest: {problem}")
    print(
        f"  replay: python -m tests.simulation --first {report.seed} --seeds 1 --show --only '{smallest}'", flush=True
    )


def _progress(runs: int, cpu_seconds: float, failed: int) -> str:
    return f"{runs} nights, {runs / cpu_seconds:.0f} a CPU second, {failed} failed"


if __name__ == "__main__":
    sys.exit(main())
