"""Reads the last runs of a flow with their tasks."""

from __future__ import annotations

from ...engine.statefile.list_rows import RUN_TASKS, RunTaskRow
from ..model.history import RunGrid, latest_runs, run_grid
from ..sessions.session import Session


class HistoryReader:
    """Reads the grid of a flow; runs that have ended are read once, unless something in them was changed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ended: dict[tuple[str, int | None, tuple[tuple[str, int], ...]], list[RunTaskRow]] = {}

    async def read(self, dag_name: str) -> RunGrid:
        """Read the grid. Raises RedriveError."""
        runs = latest_runs(await self._session.runs(), dag_name)
        rows: dict[str, list[RunTaskRow]] = {}
        kept = {}
        for one in runs:
            key = (one.run.run_id, one.run.ended_at, tuple(sorted(one.counts.items())))
            found = self._ended.get(key)
            if found is None:
                found = list(await self._session.query(RUN_TASKS, run_id=one.run.run_id))
            if one.run.ended_at is not None:
                kept[key] = found
            rows[one.run.run_id] = found
        self._ended = kept
        return run_grid(runs, rows)
