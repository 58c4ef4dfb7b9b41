"""Decide which startable tasks have capacity, which are rejected, and which outages last too long.

The executor follows these rules (``executor/dispatch.py``, ``executor/watchdog.py``), and so does the replay of a run
under another policy (``what_if.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..domain.states import TaskState
from . import paging
from .downstreams import DownstreamStates
from .projection import TaskRow
from .ready_queue import ReadyQueue, is_retry, spec_of

#: ``on_open`` of a downstream -> the end of a task that calls it while its breaker is open; None: the task waits.
END_WHEN_OPEN: Mapping[str, TaskState | None] = {
    "hold": None,
    "fail": TaskState.FAILED,
    "dead_letter": TaskState.DEAD_LETTER,
}


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pools and downstreams, which limit tasks besides slots. ``pools``: name -> slots.

    ``schedule_recheck(downstream, instant)`` is called if a downstream admits no call before ``instant`` (microseconds
    UTC).
    """

    ready_queue: ReadyQueue
    downstreams: DownstreamStates
    pools: Mapping[str, int]
    schedule_recheck: Callable[[str, int], None]

    def admits(self, row: TaskRow) -> bool:
        """True if the pool of a task has slots left and the breaker of its downstream admits a call."""
        return self.has_pool_slots(row) and self.may_call(row)

    def has_pool_slots(self, row: TaskRow) -> bool:
        """True if the run itself leaves slots of the pool to a task."""
        spec = spec_of(row)
        if spec.pool is None:
            return True
        return self.ready_queue.pool_used[spec.pool] + spec.pool_slots <= self.pools.get(spec.pool, 0)

    def may_call(self, row: TaskRow) -> bool:
        """True if the breaker of its downstream admits a call, which then counts."""
        downstream = spec_of(row).downstream
        if downstream is None:
            return True
        admission = self.downstreams.admit(row.name, downstream, is_retry=is_retry(row))
        if admission.call is None and admission.retry_at is not None:
            self.schedule_recheck(downstream, admission.retry_at)
        return admission.call is not None

    def rejected(self) -> Iterator[tuple[str, str]]:
        """Yield the tasks that may not wait for their open downstream, with its ``on_open``."""
        for downstream, spec in self.downstreams.specs.items():
            if END_WHEN_OPEN[spec.on_open] is not None and self.downstreams.is_open(downstream):
                yield from ((name, spec.on_open) for name in self.ready_queue.startable_for(downstream))


class LongOutage(NamedTuple):
    """A downstream that has been down for ``lasts_us`` microseconds and holds ``tasks``."""

    downstream: str
    tasks: list[str]
    lasts_us: int


class LongOutages:
    """Finds outages of ``paging.LONG_OUTAGE_SECONDS`` or more, each once. Shorter outages are normal."""

    def __init__(self, ready_queue: ReadyQueue, downstreams: DownstreamStates) -> None:
        self._ready_queue = ready_queue
        self._downstreams = downstreams
        self._held_us = round(paging.LONG_OUTAGE_SECONDS * 1e6)
        self._since: dict[str, int] = {}
        self._reported: set[str] = set()

    def update(self, now_us: int) -> list[LongOutage]:
        """Return the new long outages that hold tasks. ``now_us``: any steady clock."""
        down = [name for name in self._downstreams.specs if self._downstreams.is_down(name)]
        self._since = {name: self._since.get(name, now_us) for name in down}
        self._reported &= self._since.keys()
        long = [name for name in down if name not in self._reported and now_us - self._since[name] >= self._held_us]
        found = [LongOutage(name, self._ready_queue.startable_for(name), now_us - self._since[name]) for name in long]
        found = [outage for outage in found if outage.tasks]
        self._reported.update(outage.downstream for outage in found)
        return found

    @property
    def due_at(self) -> list[int]:
        """Return when each outage that was not returned yet becomes long, past instants included."""
        return [since + self._held_us for name, since in self._since.items() if name not in self._reported]
