"""Another executor that holds a slot in a pool of the machine."""

from __future__ import annotations

import subprocess
import sys

_HOLD = """
import sys, time
from redrive.engine.store.machine import MachinePools
pool, flow = sys.argv[1:]
pools = MachinePools({pool: 1}, flow, "r", flow + ".db")
assert pools.acquire("load", pool, 1)
print("held", flush=True)
time.sleep(600)
"""


def hold_slot(pool: str, flow: str) -> subprocess.Popen[str]:
    """Start a process that holds the only slot until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", _HOLD, pool, flow], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process
