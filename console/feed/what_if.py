"""``what if``: a run beside itself under another policy, asked through a session; for the shell and for the console."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from ...engine.analysis.compare import Comparison, compare
from ...engine.analysis.policy_change import Change
from ...engine.analysis.what_if import Fork, Stage, beginning_of
from ...engine.core.dag import Dag
from ...engine.core.projection import RunFold
from ...engine.statefile.duration_stats import Usual
from ..present.what_if import Circumstances, sentences
from ..sessions.session import Session
from .event_reader import Night

NIGHTS = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """``seq``: of the event after which the replay begins; None: with the run."""

    comparison: Comparison
    run_id: str
    seq: int | None
    circumstances: Circumstances

    def sentences(self) -> Iterator[str]:
        """What it knows, and what it does not."""
        return sentences(self.comparison, self.circumstances)


async def ask(
    session: Session, fold: RunFold, night: Night, change: Change, seq: int | None = None, nights: int = NIGHTS
) -> Answer:
    """Replay the run of ``fold``, a picture of its present, from the moment after the event ``seq`` of its ``night``.

    The night is read up to the present first. Reckoned in a thread: a large run holds up no screen.
    """
    await night.read(fold.seq)
    reel, usual = night.reel, await session.usual(fold.run.run_id)
    fork = beginning_of(fold)
    if seq is not None:
        moment = (await night.sight(seq)).moment
        fork = Fork(moment.fold, reel.instant(seq), reel.tally.at(seq), moment.breakers)
    counts, dice = reel.tally.at(fold.seq), [random.Random(one).uniform for one in range(nights)]
    run = fold.run

    def reckon() -> Comparison:
        return compare(Stage(fold, fork, _path_seconds(fold, usual)), counts, change, dice)

    circumstances = Circumstances(
        forked_at=None if seq is None else fork.at,
        acts=counts.acts - fork.counts.acts,
        deadline_seconds=None if run.deadline_at is None else (run.deadline_at - run.started_at) / 1e6,
        is_running=run.ended_at is None and run.blocked_since is None,
    )
    return Answer(await asyncio.to_thread(reckon), run.run_id, seq, circumstances)


def _path_seconds(fold: RunFold, usual: Mapping[str, Usual]) -> Mapping[str, float]:
    """The longest way from each task to the end by runs before, as the executor of the run knew it; none: empty."""
    if not usual:
        return {}
    known: dict[str, Any] = {name: one.p50_us / 1e6 for name, one in usual.items()}
    unknown = median_low(known.values())
    dag = Dag((name, fold.parents.get(name, ())) for name in fold.tasks)
    return dag.remaining_path({name: known.get(name, unknown) for name in fold.tasks})
