"""``redrive pools``: who holds slots in the pools of this machine, and who waits for them."""

from __future__ import annotations

import time

from ...engine.store.machine_pools import PoolEntry, read_pools
from ..text.durations import format_duration
from ..text.printing import echo, print_table
from .exit_codes import ExitCode
from .output.json_schemas import echo_values


def print_pools(as_json: bool) -> int:
    """Print a line for each slot that is held, and for each executor that waits."""
    entries, now_us = read_pools(), time.time_ns() // 1000
    if as_json:
        echo_values("pools", ({"pool": entry.pool, "slot": entry.slot, **entry.holder} for entry in entries))
    elif entries:
        print_table(
            [("POOL", "SLOT", "TASK", "FLOW", "RUN", "PID", "FOR"), *(_row(entry, now_us) for entry in entries)]
        )
    else:
        echo("no pool of this machine is in use: flows declare them by Flow(machine_pools={...})")
    return ExitCode.SUCCESS


def _row(entry: PoolEntry, now_us: int) -> tuple[str, ...]:
    slot = "waits" if entry.slot is None else str(entry.slot + 1)
    holder = entry.holder
    age = format_duration(max(0, now_us - holder["since"]))
    return entry.pool, slot, holder["task"], holder["flow"], holder["run_id"], str(holder["pid"]), age
