"""Lets a task pass if it gets slots of its pool of the machine, and reports in the state file what the others wait for.

``store/machine_pools.py`` holds the slots. A wait is reported once it has lasted ``REPORT_SECONDS``, and again when
others hold the pool, at most every ``REPORT_AGAIN_SECONDS``: pools change hands often.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ..core.projection import TaskRow
from ..core.ready_queue import spec_of
from ..domain.event_changes import RunChange
from ..domain.event_payloads import RunChanged
from ..domain.states import TaskState
from ..statefile.changes.transitions import Transaction
from ..store.machine_pools import RECHECK_SECONDS, MachinePools, PoolEntry
from .run_view import RunView

REPORT_SECONDS = 1.0
REPORT_AGAIN_SECONDS = 10.0
FORGET_SECONDS = 3.0


class PoolGate:
    """The pools of the machine, as the dispatcher of one run uses them."""

    def __init__(
        self, view: RunView, state_path: str, write: Callable[[Callable[[Transaction], object]], object]
    ) -> None:
        flow, run = view.flow, view.projection.run
        sizes = {pool: flow.pools[pool] for pool in flow.machine_pools}
        self._pools = MachinePools(sizes, flow.name, run.run_id, state_path)
        self._view = view
        self._write = write
        self._full_since: dict[str, int] = {}  # by pool: microseconds UTC
        self._refused_at: dict[str, int] = {}  # the same: when a task asked last
        self._reported: dict[str, str] = {}  # by pool: who holds it, as the state file has it
        self._reported_at = 0

    def admits(self, row: TaskRow) -> bool:
        """Whether the task needs no slot of the machine, or has got what it needs."""
        spec = spec_of(row)
        if spec.pool is None or spec.pool not in self._pools:
            return True
        if self._pools.acquire(row.name, spec.pool, spec.pool_slots):
            return True
        now = self._view.now_us()
        self._full_since.setdefault(spec.pool, now)
        self._refused_at[spec.pool] = now
        self._view.wake_at(f"pool {spec.pool}", now + round(RECHECK_SECONDS * 1e6))
        return False

    def release(self, row: TaskRow) -> None:
        """Give back what ``admits`` got for a task that does not start after all."""
        self._pools.release(row.name)

    def update(self) -> None:
        """Free the slots of tasks that have ended, and report the waits."""
        queue, tasks = self._view.ready_queue, self._view.projection.tasks
        self._pools.release_unless(lambda name: name in queue.claiming or tasks[name].state is TaskState.RUNNING)
        self._forget_waits()
        self._report_waits()

    def close(self) -> None:
        """Free all slots."""
        self._pools.close()

    def _forget_waits(self) -> None:
        """End the waits of pools for which no task asks any more: it was cancelled, or the run is paused."""
        for pool in list(self._full_since):
            if self._view.now_us() - self._refused_at[pool] > FORGET_SECONDS * 1e6:
                del self._full_since[pool]
                self._pools.end_wait(pool)

    def _report_waits(self) -> None:
        if not self._full_since and not self._reported:
            return
        now = self._view.now_us()
        waiting = {pool for pool, since in self._full_since.items() if now - since >= REPORT_SECONDS * 1e6}
        is_due = now - self._reported_at >= REPORT_AGAIN_SECONDS * 1e6
        if waiting == self._reported.keys() and not is_due:
            return
        holders = {pool: describe_holders(self._pools.holders(pool)) for pool in sorted(waiting)}
        self._reported_at = now
        if holders != self._reported:
            self._reported = holders
            run_id = self._view.projection.run.run_id
            change = RunChanged(RunChange.POOL_WAITS, {"pool_waits": json.dumps(holders) if holders else None})
            self._write(lambda transaction: transaction.change_run(run_id, change))


def describe_holders(entries: list[PoolEntry]) -> str:
    """Name the holder of a pool and how many others there are: ``load of revenue (pid 77) and 1 more``."""
    if not entries:
        return "others who wait longer"
    first = min(entries, key=lambda entry: entry.holder["since"]).holder
    tasks = {(entry.holder["pid"], entry.holder["run_id"], entry.holder["task"]) for entry in entries}
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"{first['task']} of {first['flow']} (pid {first['pid']}){more}"
