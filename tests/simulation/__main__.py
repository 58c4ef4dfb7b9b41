"""Runs many nights, and shrinks and prints those that fail."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from .night import Report, run_night
from .plan import draw_plan
from .shrink import Reduction, reduce_plan, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many nights")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first")
    parser.add_argument("--only", type=Reduction.parse, default=Reduction(), help="what is left of the plan")
    parser.add_argument("--show", action="store_true", help="print the events")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the fifth failure")
    given = parser.parse_args()
    failed, seen = 0, Counter[str]()
    started, reported = time.process_time(), time.monotonic()
    for seed in range(given.first, given.first + given.seeds):
        report = _run(seed, given)
        seen += report.seen
        if report.problem:
            failed += 1
            _explain(report, given.only)
        if time.monotonic() - reported > 10:
            reported = time.monotonic()
            print(_progress(seed - given.first + 1, started, failed), flush=True)
        if failed >= 5 and not given.keep_going:
            break
    print(_progress(seed - given.first + 1, started, failed))
    print(", ".join(f"{move}: {count}" for move, count in sorted(seen.items())))
    return 1 if failed else 0


def _run(seed: int, given: argparse.Namespace) -> Report:
    plan = reduce_plan(draw_plan(seed), given.only)
    return run_night(plan, (lambda event: print(event)) if given.show else None)


def _explain(report: Report, only: Reduction) -> None:
    print(f"seed {report.seed}: {report.problem}")
    smallest, problem = shrink(draw_plan(report.seed), only)
    print(f"  smallest: {problem}")
    print(
        f"  replay: python -m tests.simulation --first {report.seed} --seeds 1 --show --only '{smallest}'", flush=True
    )


def _progress(nights: int, started: float, failed: int) -> str:
    seconds = time.process_time() - started
    return f"{nights} nights, {nights / seconds:.0f} a CPU second, {failed} failed"


if __name__ == "__main__":
    sys.exit(main())
