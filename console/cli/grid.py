"""``redrive runs --tasks``: each task in the last runs of a flow, as text or JSON."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable

from ...engine.errors import RedriveError
from ..model.board import SessionStatus
from ..model.runs import RunGrid
from ..present.run_grid import grid_lines, history_value
from ..sessions.address import Endpoint
from ..sessions.once import with_session
from ..sessions.past import HistoryReader
from ..sessions.session import Session
from ..text.glyphs import glyphs_for
from ..text.pieces import stripped
from ..text.text import echo_lines
from .output import echo_values, print_lines

_COLUMNS_OF_FILES = 160  # where the output is not a terminal


def print_tasks_of_runs(
    endpoint: Endpoint, as_json: bool, needing_lines: Callable[[Session], Awaitable[list[str]]]
) -> int:
    """Print each task in the last runs of the flow of the latest run, then ``needing_lines``."""

    async def read(session: Session) -> tuple[RunGrid, SessionStatus, int, list[str]]:
        runs = await session.runs()
        if not runs:
            raise RedriveError("no run has been recorded yet")
        grid = await HistoryReader(session).read(runs, runs[0].run.dag_name)
        return grid, session.status, session.now_us(), await needing_lines(session)

    grid, status, now_us, needing = with_session(endpoint, read)
    if as_json:
        name = grid.runs[-1].run.dag_name
        echo_values("run_tasks", ({"flow": name, **history_value(task, grid)} for task in grid.tasks))
        return 0
    glyphs = glyphs_for(sys.stdout.encoding)
    columns = shutil.get_terminal_size((_COLUMNS_OF_FILES, 0)).columns
    print_lines(map(stripped, grid_lines(grid, columns, now_us, glyphs, status)))
    echo_lines(needing)
    return 0
