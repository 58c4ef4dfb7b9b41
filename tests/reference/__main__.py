"""Compares many sequences of operators' acts with the model, and shrinks those that differ."""

from __future__ import annotations

import argparse
import sys
import time

from .sequences import draw_sequence, problem_of, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.reference", description=__doc__)
    parser.add_argument("--sequences", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first")
    parser.add_argument("--failures", type=int, default=3, help="end after so many failures")
    given = parser.parse_args()
    failed, acts, begun = 0, 0, time.process_time()
    for number, seed in enumerate(range(given.first, given.first + given.sequences), 1):
        sequence = draw_sequence(seed)
        acts += len(sequence.acts)
        problem = problem_of(sequence)
        if problem:
            failed += 1
            smallest = shrink(sequence)
            print(f"{smallest}\n{problem_of(smallest)}\n", flush=True)
        if failed >= given.failures:
            break
        if number % 5000 == 0:
            print(f"{number} sequences, {acts} acts, {time.process_time() - begun:.0f} CPU s", flush=True)
    print(f"{number} sequences, {acts} acts, {time.process_time() - begun:.0f} CPU s, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
