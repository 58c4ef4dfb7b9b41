"""The state files of a machine as one list: the latest run of each, and what needs a human in any of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...engine.core.projection import RunRow
from ...engine.domain.states import RunState, TaskState
from ...engine.statefile.list_rows import ExecutorState
from ...engine.statefile.on_demand.offers import Offer
from ..sessions.session import Link, RunSummary, SessionStatus
from .waiting_runs import WaitingRun, waiting_runs

_NO_EXECUTOR = ExecutorState(False)


class FleetOrder(StrEnum):
    """The order of the list."""

    ATTENTION = "needs a human"  # that first, else in the order given
    LATEST = "latest"  # by the start of the latest run
    NEXT = "next start"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class FleetEntry:
    """A state file. ``run``: its latest one; ``waiting``: its unfinished runs that need a human."""

    offer: Offer
    run: RunRow | None
    waiting: Sequence[WaitingRun]

    @property
    def executor(self) -> ExecutorState:
        """The latest executor."""
        return self.offer.executor or _NO_EXECUTOR

    @property
    def attention_count(self) -> int:
        """How much waits for a human: the badge of the inbox."""
        return sum(one.weight for one in self.waiting)

    @property
    def next_at(self) -> int | None:
        """When the next of its scheduled runs starts, in microseconds UTC."""
        return min((row.next_at for row in self.offer.schedules if row.next_at is not None), default=None)


def fleet_entries(offers: Iterable[Offer], order: FleetOrder = FleetOrder.ATTENTION) -> list[FleetEntry]:
    """One entry per state file, in an order."""
    return sorted(map(_entry, offers), key=_ORDERS[order])


_ORDERS: Mapping[FleetOrder, Callable[[FleetEntry], tuple[object, ...]]] = {
    FleetOrder.ATTENTION: lambda entry: (not entry.waiting,),
    FleetOrder.LATEST: lambda entry: (-entry.offer.started_at,),
    FleetOrder.NEXT: lambda entry: (entry.next_at is None, entry.next_at or 0),
    FleetOrder.NAME: lambda entry: (entry.offer.dag_name is None, entry.offer.dag_name or "", entry.offer.path),
}


def _entry(offer: Offer) -> FleetEntry:
    executor = offer.executor or _NO_EXECUTOR
    status = SessionStatus(
        Link.LIVE, executor_alive=executor.alive, executor_run_id=executor.run_id, service_pid=offer.service_pid
    )
    open_runs = [
        RunSummary(
            RunRow(
                one.run_id,
                one.dag_name,
                one.started_at,
                one.ended_at,
                RunState.RUNNING if one.ended_at is None else RunState.FAILED,
                blocked_since=one.blocked_since,
                paused_since=one.paused_since,
            ),
            {TaskState.DEAD_LETTER: one.dead_letters},
            one.dead_letters,
        )
        for one in offer.unfinished
    ]
    return FleetEntry(offer, _latest_run(offer, open_runs), waiting_runs(open_runs, status))


def _latest_run(offer: Offer, open_runs: Iterable[RunSummary]) -> RunRow | None:
    if offer.run_id is None:
        return None
    ended = RunRow(
        offer.run_id, offer.dag_name or "", offer.started_at, offer.ended_at, RunState(offer.state or RunState.RUNNING)
    )
    return next((one.run for one in open_runs if one.run.run_id == offer.run_id), ended)
