"""The last runs of a flow with their tasks, read through a session."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ...engine.domain.rows import RunSummary
from ...engine.statefile.lists import RUN_TASKS, RunTaskRow
from ..model.runs import RunGrid, latest_runs, run_grid
from .session import Session


class RunGridReader:
    """Reads the grid of a flow; runs that have ended are read once, unless something in them was changed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ended: dict[tuple[str, int | None, tuple[tuple[str, int], ...]], Sequence[RunTaskRow]] = {}

    async def read(self, summaries: Sequence[RunSummary], dag_name: str) -> RunGrid:
        """Read the grid. ``summaries``: the runs of the file, the latest first. Raises RedriveError."""
        runs = latest_runs(summaries, dag_name)
        keys = [(one.run.run_id, one.run.ended_at, tuple(sorted(one.counts.items()))) for one in runs]
        missing = [key for key in keys if key not in self._ended]
        # all at once: each waits for a link of its own delay
        read = await asyncio.gather(*(self._session.rows(RUN_TASKS, run_id=run_id) for run_id, *_ in missing))
        known = {**self._ended, **dict(zip(missing, read, strict=True))}
        self._ended = {key: known[key] for key in keys if key[1] is not None}
        return run_grid(runs, {key[0]: known[key] for key in keys})
