"""Dispatch: claims the tasks that may start and have a slot, commits, then launches the claims.

``core/ready_queue.py`` decides which tasks may start and in which order; ``core/downstreams.py`` holds the breakers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..core.breaker import ProbeCandidate, choose_probe
from ..core.causes import LONG_OUTAGE_SECONDS, PageRequest
from ..core.downstreams import Capacity, DownstreamStates
from ..core.outcome import reason_of_unstored, unstored_reason
from ..core.projection import TaskRow, missing_inputs
from ..core.ready_queue import spec_of, worker_pool
from ..core.spec import DaskOptions
from ..core.waiting import PoolWaits
from ..domain.event_payloads import RunChange, RunChanged
from ..domain.states import APPROVAL, TaskState
from ..domain.text import format_seconds
from ..statefile.durations import of_child
from ..statefile.transitions import Transaction, resolve_cause
from ..store import claims
from ..store.claims import Claim, ClaimOrder
from ..store.endings import expire
from ..store.machine import RECHECK_SECONDS, MachinePools, PoolEntry
from ..store.pages import trigger_page
from .active_run import ActiveRun, Commit, FollowUp, WriteInTransaction
from .attempts import RunningAttempts
from .opening import OpenRun

if TYPE_CHECKING:
    from ..runner.dask_client import DaskCluster


class Dispatcher:
    """Builds the next commit that starts tasks."""

    def __init__(
        self, opened: OpenRun, run: ActiveRun, downstreams: DownstreamStates, attempts: RunningAttempts
    ) -> None:
        self._runner = opened.runner
        self._opened = opened
        self._run = run
        self._downstreams = downstreams
        self._attempts = attempts
        self._pool_gate = PoolGate(run, opened.state_path, attempts.write)
        self._worker_gate = WorkerGate(run, opened.remote, attempts.write)
        self._capacity = Capacity(run.ready_queue, downstreams, run.flow.pools, run.wake_at)

    def next_commit(self) -> Commit | None:
        """Return the next commit; None: no task may start."""
        self._pool_gate.update(self._worker_gate.waits())
        if not self._runner.is_open:
            return None
        if expired := self._run.expired_tasks():
            return Commit(lambda transaction: expire(transaction, self._run.run_id, expired))
        if rejected := dict(self._capacity.rejected()):
            return self._reject(rejected)
        ready_queue, free = self._run.ready_queue, self._free_slots()
        picked = self._pick_probes(free)
        picked += ready_queue.pop_startable(free - len(picked), self._admits)
        self._worker_gate.update(free - len(picked))
        self._request_leaked_slots(len(picked) == free)
        promote = {name: self._run.projection.tasks[name].generation for name in ready_queue.promotable}
        return self._start(promote, picked) if picked or promote else None

    def follow_up(self, freed: Mapping[str, int]) -> FollowUp | None:
        """Claim what may start now, and what may start if an ending attempt succeeds; None: nothing.

        ``freed``: the children that its success makes READY.
        """
        if not self._runner.is_open or self._run.expired_tasks():
            return None
        free = self._free_slots()
        picked = self._pick_probes(free)
        picked += self._run.ready_queue.pop_startable(free - len(picked), self._admits)
        children = self._waiting_for_a_slot_alone(freed)[: free - len(picked)]
        for name in children:
            self._run.ready_queue.claim(name)
        if not picked and not children:
            return None
        at_once = self._orders(picked)
        later = self._orders(children, is_ready=True)  # by the settlement
        identity = self._opened.identity

        def claim(transaction: Transaction, has_succeeded: bool) -> list[Claim]:
            orders = [*at_once, *later] if has_succeeded else at_once
            return claims.dispatch(transaction, self._run.run_id, {}, orders, identity)

        names = [*picked, *children]
        return FollowUp(claim, lambda claimed: self._launch_all(names, claimed), _is_durable([*at_once, *later]))

    def _waiting_for_a_slot_alone(self, freed: Mapping[str, int]) -> list[str]:
        """Return the children without further conditions, longest remaining path first."""
        specs = (self._run.spec(name) for name in self._run.ready_queue.in_order(freed))
        return [
            spec.name
            for spec in specs
            if (spec.pool, spec.downstream, spec.map) == (None, None, None)
            and spec.kind != APPROVAL
            and spec.isolation != "dask"
        ]

    def close(self) -> None:
        """Free the slots in pools of the machine."""
        self._pool_gate.close()

    def _admits(self, row: TaskRow) -> bool:
        """Whether there is room for a task. The breaker is asked last, because it counts the call."""
        if not (self._capacity.has_pool_slots(row) and self._pool_gate.admits(row)):
            return False
        # No worker is acquired for a call that the breaker refuses; ``may_call`` schedules when it is asked again.
        has_worker = not self._capacity.could_call(row) or self._worker_gate.admits(row)
        if has_worker and self._capacity.may_call(row):
            return True
        self._worker_gate.release(row)
        self._pool_gate.release(row)
        return False

    # --- Start -----------------------------------------------------------------------------------------------------

    def _start(self, promote: Mapping[str, int], picked: Sequence[str]) -> Commit:
        """Promote tasks whose parents are satisfied, claim the picked ones, and launch the claims."""
        identity, orders = self._opened.identity, self._orders(picked)

        def item(transaction: Transaction) -> list[Claim]:
            return claims.dispatch(transaction, self._run.run_id, promote, orders, identity)

        return Commit(item, lambda claimed: self._launch_all(picked, claimed), _is_durable(orders))

    def _launch_all(self, picked: Sequence[str], claimed: Sequence[Claim]) -> None:
        self._run.ready_queue.release_claims(picked)
        self._downstreams.release_calls(set(picked) - {claim.task for claim in claimed})
        for claim in claimed:
            self._launch(claim)
        self._run.wake()  # tasks that were not claimed may start

    def _orders(self, names: Iterable[str], *, is_ready: bool = False) -> list[ClaimOrder]:
        return [self._order(self._run.projection.tasks[name], is_ready) for name in names]

    def _order(self, row: TaskRow, is_ready: bool) -> ClaimOrder:
        is_ready, is_first = is_ready or row.state is TaskState.READY, row.attempt == 0
        return ClaimOrder(row.name, row.generation, self._run.spec(row.name), is_ready, is_first)

    def _launch(self, claim: Claim) -> None:
        projection, spec, large = self._run.projection, self._run.spec(claim.task), claim.large_inputs
        gone = {name: unstored_reason(why) for name, text in large.items() if (why := reason_of_unstored(text))}
        parents: Sequence[str] = projection.parents.get(claim.task, ())
        if spec.map is not None:  # it collects the results of its children in the order of the list
            parents = sorted(parents, key=lambda name: projection.tasks[name].position)
        self._attempts.launch(
            claim,
            spec,
            {parent: large.get(parent, projection.tasks[parent].result) for parent in parents},
            {**missing_inputs(projection, claim.task), **gone},
            self._downstreams.classification_rules(spec.downstream),
        )
        if projection.tasks[claim.task].cancel_requested_at is not None:  # in the same commit as the claim
            self._attempts.cancel(claim.task, "cancelled before it started")

    # --- Slots -----------------------------------------------------------------------------------------------------

    def _free_slots(self) -> int:
        run, runner = self._run.projection.run, self._runner
        if run.paused_since is not None:
            return 0
        slots = min(run.max_parallel, runner.attempts_max)
        # Count processes, not rows: an ended attempt is not committed yet, and its successor shares that commit.
        claimed = len(self._attempts.running) + len(self._run.ready_queue.claiming) + runner.leaked_slots
        return max(0, slots - claimed)

    def _request_leaked_slots(self, are_all_used: bool) -> None:
        runner = self._runner
        if runner.leaked_slots:
            is_paused = self._run.projection.run.paused_since is not None
            runner.set_slot_demand(are_all_used and not is_paused and self._run.ready_queue.has_startable)

    # --- Probes ----------------------------------------------------------------------------------------------------

    def _pick_probes(self, count: int) -> list[str]:
        """Pick tasks that probe open breakers: not the most urgent ones, because a probe may well fail."""
        picked: list[str] = []
        for downstream in self._downstreams.specs:
            while len(picked) < count and self._downstreams.is_probe_due(downstream):
                candidate = choose_probe(self._candidates(downstream))
                if candidate is None or not self._admits(self._run.projection.tasks[candidate.task]):
                    break
                self._run.ready_queue.claim(candidate.task)
                picked.append(candidate.task)
        return picked

    def _candidates(self, downstream: str) -> Iterator[ProbeCandidate]:
        for name in self._run.ready_queue.startable_for(downstream):
            has_probed = self._downstreams.has_probed(downstream, name)
            usual_seconds = of_child(self._run.median_seconds, name, None)
            yield ProbeCandidate(name, self._run.spec(name).idempotent, usual_seconds, has_probed)

    # --- Reject ----------------------------------------------------------------------------------------------------

    def _reject(self, names: Mapping[str, str]) -> Commit:
        orders = self._orders(names)

        def item(transaction: Transaction) -> None:
            for order in orders:
                claims.reject(transaction, self._run.run_id, order, names[order.task])

        return Commit(item)


def _is_durable(orders: Iterable[ClaimOrder]) -> bool:
    """Whether the claims must be on the disk before the start: a power cut ends neither an effect nor a Dask worker,
    and without its claim such a task would be started twice."""
    return any(order.spec.effect or order.spec.isolation == "dask" for order in orders)


# --- Slots in pools of the machine -----------------------------------------------------------------------------------
#
# Lets a task pass if it gets slots of its pool of the machine, and reports in the state file what the others wait for.
#
# ``store/machine.py`` holds the slots. A wait is reported once it has lasted ``REPORT_SECONDS``, and again when others
# hold the pool, at most every ``REPORT_AGAIN_SECONDS``: pools change hands often.


REPORT_SECONDS = 1.0
REPORT_AGAIN_SECONDS = 10.0
FORGET_SECONDS = 3.0


class PoolGate:
    """The pools of the machine, as the dispatcher of one run uses them."""

    def __init__(self, run: ActiveRun, state_path: str, write: WriteInTransaction) -> None:
        flow = run.flow
        sizes = {pool: flow.pools[pool] for pool in flow.machine_pools}
        self._pools = MachinePools(sizes, flow.name, run.run_id, state_path)
        self._run = run
        self._write = write
        self._full_since: dict[str, int] = {}  # by pool: microseconds UTC
        self._refused_at: dict[str, int] = {}  # the same: when a task asked last
        self._reported = PoolWaits()  # as the state file has them
        self._reported_at = 0

    def admits(self, row: TaskRow) -> bool:
        """Whether the task needs no slot of the machine, or has got what it needs."""
        spec = spec_of(row)
        if spec.pool is None or spec.pool not in self._pools:
            return True
        if self._pools.acquire(row.name, spec.pool, spec.pool_slots):
            return True
        now = self._run.now_us()
        self._full_since.setdefault(spec.pool, now)
        self._refused_at[spec.pool] = now
        self._run.wake_at(f"pool {spec.pool}", now + round(RECHECK_SECONDS * 1e6))
        return False

    def release(self, row: TaskRow) -> None:
        """Give back what ``admits`` got for a task that does not start after all."""
        self._pools.release(row.name)

    def update(self, worker_waits: Mapping[str, str]) -> None:
        """Free the slots of tasks that have ended, and report the waits. ``worker_waits``: beside those for pools."""
        queue, tasks = self._run.ready_queue, self._run.projection.tasks
        self._pools.release_unless(lambda name: name in queue.claiming or tasks[name].state is TaskState.RUNNING)
        self._forget_waits()
        self._report_waits(worker_waits)

    def close(self) -> None:
        """Free all slots."""
        self._pools.close()

    def _forget_waits(self) -> None:
        """End the waits of pools for which no task asks any more: it was cancelled, or the run is paused."""
        for pool in list(self._full_since):
            if self._run.now_us() - self._refused_at[pool] > FORGET_SECONDS * 1e6:
                del self._full_since[pool]
                self._pools.end_wait(pool)

    def _report_waits(self, worker_waits: Mapping[str, str]) -> None:
        if not (self._full_since or any(self._reported) or worker_waits):
            return
        now = self._run.now_us()
        waiting = {pool for pool, since in self._full_since.items() if now - since >= REPORT_SECONDS * 1e6}
        is_due = now - self._reported_at >= REPORT_AGAIN_SECONDS * 1e6
        is_same = waiting == self._reported.pools.keys() and worker_waits == self._reported.workers
        if is_same and not is_due:
            return
        holders = {pool: describe_pool_holders(self._pools.holders(pool)) for pool in sorted(waiting)}
        waits = PoolWaits(holders, worker_waits)
        self._reported_at = now
        if waits != self._reported:
            self._reported = waits
            text = json.dumps(waits._asdict()) if any(waits) else None
            change = RunChanged(RunChange.POOL_WAITS, {"pool_waits": text})
            self._write(lambda transaction: transaction.change_run(self._run.run_id, change))


def describe_pool_holders(entries: list[PoolEntry]) -> str:
    """Name the holder of a pool and how many others there are: ``load of revenue (pid 77) and 1 more``."""
    if not entries:
        return "others who wait longer"
    first = min(entries, key=lambda entry: entry.since)
    tasks = {(entry.pid, entry.run_id, entry.task) for entry in entries}
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"{first.task} of {first.flow} (pid {first.pid}){more}"


# --- Workers of a Dask cluster ---------------------------------------------------------------------------------------
#
# A task on Dask starts when a worker has asked for one (``runner/dask_client.py``). Until then it is READY.


class WorkerGate:
    """The workers of the cluster, as the dispatcher of one run uses them. ``remote`` None: no task runs there."""

    def __init__(self, run: ActiveRun, remote: DaskCluster | None, write: WriteInTransaction) -> None:
        self._run = run
        self._remote = remote
        self._write = write
        self._wanted: dict[str, TaskRow] = {}  # by pool of workers: the first task that waits for one
        self._is_paged = False

    def admits(self, row: TaskRow) -> bool:
        """Whether the task runs here, or has got a worker."""
        pool = worker_pool(spec_of(row))
        if pool is None or self._remote is None:
            return True
        if self._remote.acquire(row.name, pool):
            return True
        self._wanted[pool] = row
        return False

    def release(self, row: TaskRow) -> None:
        """Give back what ``admits`` got for a task that does not start after all."""
        if self._remote is not None:
            self._remote.release(row.name)

    def update(self, free: int) -> None:
        """Ask for as many workers as tasks could start now. ``free``: slots of the run."""
        if self._remote is None:
            return
        wanted, self._wanted = self._wanted, {}
        count = self._run.ready_queue.startable_like
        self._remote.demand(
            {pool: (spec_of(row).dask or DaskOptions(), count(row, free)) for pool, row in wanted.items()}
        )
        self._page(wanted)

    def waits(self) -> Mapping[str, str]:
        """Return why tasks wait for a worker, by pool of workers."""
        return {} if self._remote is None else self._remote.waits()

    def _page(self, wanted: Mapping[str, TaskRow]) -> None:
        """Page once when nothing has run on the cluster for long, and resolve that when a worker takes a task."""
        assert self._remote is not None
        is_long = self._remote.idle_seconds >= LONG_OUTAGE_SECONDS
        if is_long is self._is_paged:
            return
        self._is_paged, cause = is_long, f"workers:{self._remote.address}"
        if not is_long:
            self._write(lambda transaction: resolve_cause(transaction, cause))
            return
        pool, row = next(iter(wanted.items()))
        lasts = format_seconds(self._remote.idle_seconds)
        why = f"{row.name} has waited {lasts} for a Dask worker: {self.waits().get(pool, '')}"
        run_id, owner = self._run.run_id, spec_of(row).owner
        request = PageRequest(run_id, row.name, "no Dask worker", why, cause=cause, owner=owner)
        self._write(lambda transaction: trigger_page(transaction, request))
