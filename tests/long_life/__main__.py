"""Lives a long life, plots it, and ends with 1 if something grows."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

from .life import Sample, live, plot


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.long_life", description=__doc__)
    parser.add_argument("--attempts", type=int, default=200_000)
    parser.add_argument("--attaches", type=int, default=1_000)
    parser.add_argument("--acts", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so long in any case")
    given = parser.parse_args()
    reported = [0]

    def report(sample: Sample) -> None:
        if sample.attempts - reported[0] >= given.attempts // 50:
            reported[0] = sample.attempts
            print(sample, flush=True)

    with tempfile.TemporaryDirectory(prefix="redrive-life-") as folder:
        life = live(Path(folder), given.attempts, given.attaches, given.acts, report, given.minutes * 60)
    print(*plot(life.samples), sep="\n")
    problems = list(life.problems())
    print(f"{life.samples[-1].attempts} attempts, {life.attaches} attaches, {life.acts} acts", *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
