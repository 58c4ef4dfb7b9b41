"""Replays a recorded run under another policy and compares the results; for the command line and for the console."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median_low

from ...engine.analysis.compare import PolicyComparison, compare
from ...engine.analysis.policy_change import PolicyChange
from ...engine.analysis.what_if import ReplayInput, ReplayStart, start_of_run
from ...engine.core.dag import Dag
from ...engine.core.projection import RunProjection
from ...engine.statefile.list_rows import DurationStats
from ..present.what_if import ReplayContext, describe_comparison
from ..sessions.session import Session
from .event_reader import EventHistory

REPLAYS = 5


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """A comparison. ``seq``: the event after which the replay starts; None: at the start of the run."""

    comparison: PolicyComparison
    run_id: str
    seq: int | None
    context: ReplayContext

    def sentences(self) -> Iterator[str]:
        """The findings and the limits of the comparison."""
        return describe_comparison(self.comparison, self.context)


async def replay_under_policy(
    session: Session,
    projection: RunProjection,
    history: EventHistory,
    change: PolicyChange,
    seq: int | None = None,
    replays: int = REPLAYS,
) -> WhatIfResult:
    """Replay the run of ``projection``, a snapshot of the present, from after the event ``seq``; None: from its start.

    ``replays``: how many, each with other random numbers. Reads ``history`` up to the present first. The replays run in
    a thread, so that a large run does not block the screen.
    """
    await history.load(projection.seq)
    index, stats = history.index, await session.duration_stats(projection.run.run_id)
    start = start_of_run(projection)
    if seq is not None:
        snapshot = (await history.point_at(seq)).snapshot
        start = ReplayStart(snapshot.projection, index.instant_of(seq), index.counter.counts_at(seq), snapshot.breakers)
    counts, dice = index.counter.counts_at(projection.seq), [random.Random(one).uniform for one in range(replays)]
    run = projection.run

    def simulate() -> PolicyComparison:
        return compare(ReplayInput(projection, start, _path_seconds(projection, stats)), counts, change, dice)

    context = ReplayContext(
        forked_at=None if seq is None else start.at,
        acts=counts.acts - start.counts.acts,
        deadline_seconds=None if run.deadline_at is None else (run.deadline_at - run.started_at) / 1e6,
        is_running=run.ended_at is None and run.blocked_since is None,
    )
    return WhatIfResult(await asyncio.to_thread(simulate), run.run_id, seq, context)


def _path_seconds(projection: RunProjection, stats: Mapping[str, DurationStats]) -> Mapping[str, float]:
    """The longest path in seconds from each task to the end, by the durations of earlier runs; empty without those."""
    if not stats:
        return {}
    known: dict[str, float] = {name: one.p50_us / 1e6 for name, one in stats.items()}
    unknown = median_low(known.values())
    dag = Dag((name, projection.parents.get(name, ())) for name in projection.tasks)
    return dag.remaining_path({name: known.get(name, unknown) for name in projection.tasks})
