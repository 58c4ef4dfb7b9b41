"""Cuts the power of many recorded runs, and prints what is broken."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .disk import choose_cuts
from .evidence import cut_everywhere
from .record import record_run, record_writer

CUTS_EACH = 2000  # of one recording


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.power_cuts", description=__doc__)
    parser.add_argument("--cuts", type=int, default=2000, help="how many cuts")
    parser.add_argument("--seed", type=int, default=0, help="of the dice")
    given = parser.parse_args()
    done, failed, kinds = 0, 0, Counter[str]()
    for seed in itertools.count(given.seed):
        with tempfile.TemporaryDirectory(prefix="redrive-cuts-") as name:
            folder = Path(name)
            calls, acknowledged, state = record_run(folder, 20) if seed % 2 else record_writer(folder, 300)
            cuts = choose_cuts(calls, min(CUTS_EACH, given.cuts - done), seed)
            broken = cut_everywhere(calls, cuts, state, acknowledged, folder)
        done, failed = done + len(cuts), failed + len(broken)
        kinds.update(str(cut.left) for cut in cuts)
        print(f"{done} cuts, {failed} broken; what was left of the unsynced: {dict(kinds)}", flush=True)
        print(*broken[:5], sep="\n", end="\n" if broken else "")
        if done >= given.cuts:
            return 1 if failed else 0
    return 0


sys.exit(main())
