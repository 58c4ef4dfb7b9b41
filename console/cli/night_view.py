"""Shows a played night (``redrive.engine.testing``) as the console and ``redrive run`` do."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from ...engine.core.projection import RunProjection
from ...engine.core.waiting import ALIVE
from ...engine.domain.events import Event
from ...engine.domain.rows import PageRow
from ...engine.statefile.lists import BREAKERS, PAGES, query
from ...engine.testing.night import NightCause
from ..model.board import Board
from ..model.inbox import Inbox
from ..model.replay import ReplayIndex
from ..present.header import run_line
from ..present.report import ReportData, timeline_rows
from ..present.runs import incident_summary
from ..text.event_text import lines_of_event
from ..text.glyphs import UTF8
from ..text.pieces import plain
from .group import code_of_run

_HEADER_CELLS = 160
_ADDRESS = "a played night"


class ConsoleView:
    """A run of a night as the console shows it. ``end_us``: the end of the night, microseconds UTC."""

    def __init__(
        self, projection: RunProjection, events: Sequence[Event], connection: sqlite3.Connection, end_us: int
    ) -> None:
        self._projection = projection
        self._events = events
        self._end_us = end_us
        self._end = Board(projection)
        pages: list[PageRow] = query(connection, PAGES, {})
        self._end.update_lists(query(connection, BREAKERS, {}), pages)
        self._index: ReplayIndex | None = None

    def timeline(self) -> str:
        rows = timeline_rows(ReportData(self._end, _ADDRESS, self._end_us))
        return "\n".join(plain(row.line).rstrip() for row in rows)

    def header(self, at: int) -> str:
        """The first line of the screen."""
        return " ".join(plain(run_line(self._board(at), _ADDRESS, None, at, _HEADER_CELLS, UTF8)).split())

    def why(self, task: str, at: int) -> str:
        """The reason why a task does not run."""
        return self._board(at).explain(task, at, ALIVE)

    def inbox(self, at: int) -> Sequence[NightCause]:
        """The causes that need a human."""
        board = self._board(at)
        inbox = Inbox(board)
        found = ((inbox.entry(cause.tasks[0]).kind, cause) for cause in inbox.causes())
        return [NightCause(one.title, one.message, kind, self.why(one.tasks[0], at), one.tasks) for kind, one in found]

    def summary(self) -> str:
        """The run for an incident channel."""
        return incident_summary(self._end, _ADDRESS, self._end_us)

    def journal(self) -> Sequence[str]:
        """The lines that ``redrive run`` prints."""
        return [line for event in self._events for line in lines_of_event(event)]

    def exit_code(self) -> int:
        """The exit code of ``redrive run``."""
        run = self._projection.run
        blocked = run.ended_at is None and run.blocked_since is not None
        return int(code_of_run(run.state, interrupted=run.ended_at is None and not blocked, blocked=blocked))

    def _board(self, at: int) -> Board:
        """Return the run at an instant."""
        if at >= self._end_us:
            return self._end
        if self._index is None:
            self._index = ReplayIndex(self._projection)
            self._index.extend(self._events)
        seq = self._index.seq_at(at)
        after = self._index.window_for(seq).after
        board = Board(self._projection, self._end)
        board.seek(self._index.snapshot_at(seq, (event for event in self._events if event.seq > after)))
        return board
