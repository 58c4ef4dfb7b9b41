"""``redrive history``: every task in the last runs of a flow."""

from __future__ import annotations

import shutil
import sys
import time

from ....engine.errors import RedriveError
from ...feed.history import HistoryReader
from ...model.history import HistoryOrder, RunGrid
from ...present.history import grid_lines, heading_line, history_value
from ...sessions.open import with_session
from ...sessions.session import Session
from ...sessions.ssh_options import Endpoint
from ...text.glyphs import glyphs_for
from ...text.pieces import plain
from ...text.printing import echo
from ..output.json_schemas import echo_values

_COLUMNS_OF_FILES = 160  # where the output is not a terminal


def print_history(endpoint: Endpoint, as_json: bool, *, flow: str | None, sort: str) -> int:
    """Print the grid of a flow; None: the flow of the latest run."""

    async def read(session: Session) -> RunGrid:
        runs = await session.runs()
        names = {one.run.dag_name for one in runs}
        if not runs:
            raise RedriveError("no run has been recorded yet")
        if flow is not None and flow not in names:
            raise RedriveError(f"no run of a flow {flow!r} in this state file; it has {', '.join(sorted(names))}")
        return await HistoryReader(session).read(flow or runs[0].run.dag_name)

    grid = with_session(endpoint, read)
    tasks, order = grid.in_order(HistoryOrder(sort)), HistoryOrder(sort)
    if as_json:
        name = grid.runs[-1].run.dag_name
        echo_values("history", ({"flow": name, **history_value(task, grid)} for task in tasks))
        return 0
    glyphs = glyphs_for(sys.stdout.encoding)
    columns = shutil.get_terminal_size((_COLUMNS_OF_FILES, 0)).columns
    heading, _ = heading_line(grid, len(tasks), "", order, glyphs)
    for line in [heading, *grid_lines(grid, tasks, columns, time.time_ns() // 1000, glyphs)]:
        echo(plain(line).rstrip())
    return 0
