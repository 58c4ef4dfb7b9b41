"""The state of a flow that follows others: which of its days are ready, and for what the others wait.

``core/predecessors.py`` decides; this module collects what it decides from.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ..core.predecessors import Following, Predecessor, cycle_sentence, follow, older_days
from ..core.schedule import local_time
from ..flow.predecessors import known_follows, read_predecessors
from ..statefile.supervisor_file import FlowBefore, ServedSchedule
from ..store.schedules import ServedFlow, day_starts, load_days

_DAY_US = 86_400_000_000
OLDER_DAYS = 7  # of which a run of a flow before is noticed that came after


class Followed(msgspec.Struct, frozen=True):
    """A flow with its days as of now. ``newer``: by flow before it, the days of which that has run again since.

    ``error``: why it can never start.
    """

    served: ServedFlow
    following: Following = Following()
    newer: Mapping[str, str] = {}
    error: str = ""

    @property
    def sentence(self) -> str:
        """For what the latest day waits; empty: for nothing."""
        waits = "; ".join(f"{one.flow}, which {one.why}" for one in self.following.waits)
        return f"waits for {waits}" if waits else ""

    def before(self, known: Iterable[FlowBefore], now: int) -> tuple[FlowBefore, ...]:
        """Return the flows that come before it. ``known``: as they were, for since when one is stuck."""
        waits, known_by_flow = {one.flow: one for one in self.following.waits}, {one.flow: one for one in known}
        found = []
        for flow in self.served.schedule.follows:
            wait, was = waits.get(flow), known_by_flow.get(flow)
            is_stuck = wait is not None and wait.is_stuck
            since = (was.stuck_since if was is not None else None) or now
            why = "" if wait is None else wait.why
            found.append(FlowBefore(flow, why, since if is_stuck else None, self.newer.get(flow, "")))
        return tuple(found)


def follow_now(
    served: ServedFlow,
    connection: sqlite3.Connection | None,
    rows: Sequence[ServedSchedule],
    now: int,
) -> Followed:
    """Return a flow with its days. ``connection``: to its state file, if there is one; ``rows``: all schedules."""
    follows = {**known_follows(rows), served.name: served.schedule.follows}
    if circle := cycle_sentence(served.name, follows):
        return Followed(msgspec.structs.replace(served, schedule=served.schedule.with_days()), error=circle)
    decided_until, started, begun = load_days(connection, served, now)
    since = min(decided_until, now - OLDER_DAYS * _DAY_US)
    known = read_predecessors(served.schedule.follows, rows, since, now)
    following = follow(served.schedule, decided_until, started, known, now, begun)
    resolved = msgspec.structs.replace(served, schedule=served.schedule.with_days(following.days))
    return Followed(resolved, following, _newer(served, connection, known, since))


def _newer(
    served: ServedFlow, connection: sqlite3.Connection | None, known: Mapping[str, Predecessor], since: int
) -> dict[str, str]:
    if connection is None:
        return {}
    starts = day_starts(connection, served.name, since)
    days = {local_time(at, served.schedule.zone).date(): started for at, started in starts.items()}
    flows = (name for name in served.schedule.follows if name in known)
    return {name: ", ".join(map(str, sorted(older_days(days, known[name])))) for name in flows}
