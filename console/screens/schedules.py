"""The schedules of this machine beside the first screen: a row for each, what comes, and what became of what was due.

Rows and columns are those of ``redrive schedule``; they are read again each second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from textual import events

from ...engine.core.schedule import daylight_note
from ...engine.domain.text import counted
from ...engine.errors import RedriveError, StateFileError
from ...engine.statefile import supervisor_file
from ...engine.store.schedules import decode_spec
from ..keys.actions import Action, ScreenName
from ..model.lists import parse_filter
from ..present import schedules as present
from ..present.nights import RUNNING, night_lines, nights_of, nights_of_schedule
from ..present.states import no_match_line
from ..text.columns import Columns, screen_row, screen_titles
from ..text.figures import number
from ..text.pieces import Line, Piece, Role, indented, join
from ..text.text import one_line
from ..widgets.table import VirtualTable
from .console import run_latest
from .fleet import MachineScreen

_READ_SECONDS = 1.0
_FRAME_ROWS = 6  # heading, titles, the rule with the name of the flow, two rules, keys
_PANEL_ROWS = present.TIMES_MAX + 3  # with their title, and what else is to be known
_LIST_ROWS_MIN = 2  # the second says that no schedule is known


class ScheduleTimes(NamedTuple):
    """The next times of one schedule, each with its note of daylight saving, and what became of those before.

    ``leader``: whose times they are, the flow before it or itself.
    """

    id: int = 0
    leader: supervisor_file.ServedSchedule | None = None
    coming: Sequence[tuple[int, str]] = ()
    decided: Sequence[supervisor_file.LedgerRow] = ()


def read_times(
    row: supervisor_file.ServedSchedule, leader: supervisor_file.ServedSchedule, now_us: int
) -> ScheduleTimes:
    """Read the times of a schedule. Raises StateFileError."""
    served = decode_spec(supervisor_file.read_spec(leader.id)) if leader.id and leader.gone_since is None else None
    schedule = None if served is None or served.schedule.follows else served.schedule
    times = islice(schedule.after(now_us), present.TIMES_MAX) if schedule is not None else ()
    coming = [(at, daylight_note(schedule, at)) for at in times if schedule is not None]
    return ScheduleTimes(row.id, leader, coming, supervisor_file.read_ledger(row.id))


class SchedulesScreen(MachineScreen):
    """See the module. ``row``: the schedule under the cursor."""

    PLACE = ScreenName.SCHEDULES

    def __init__(self, flow: str | None = None) -> None:
        super().__init__(self._line, self._empty_line, 0)
        self._before = flow  # the flow under the cursor at first
        self._view = supervisor_file.SupervisorView("", None, ())
        self._is_read = False
        self._shown: dict[str, supervisor_file.ServedSchedule] = {}
        self._columns: Columns[supervisor_file.ServedSchedule, int] = present.SCHEDULE_COLUMNS
        self._times = ScheduleTimes()
        self._problem = ""

    @property
    def _now_us(self) -> int:
        return self.console.live.clock_us

    @property
    def row(self) -> supervisor_file.ServedSchedule | None:
        return self._shown.get(self.table.cursor_key or "")

    # --- Reading ----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self.set_interval(_READ_SECONDS, self.read)

    def on_shown(self) -> None:
        self.table.focus()
        self.read()

    def read(self) -> None:
        """Read everything again in the background."""
        if self.is_current:
            run_latest(self, self.read_rows, "schedules")

    async def read_rows(self) -> None:
        """Read everything again."""
        try:
            self._view, self._problem = await asyncio.to_thread(supervisor_file.read_schedules), ""
        except StateFileError as error:
            self._problem = str(error)
        self._is_read = True
        before = self.table.cursor_key
        self._show_rows()
        if before is not None and before not in self._shown:
            self.on_row_removed()
        await self._read_times()

    async def _read_times(self) -> None:
        if (row := self.row) is not None:
            try:
                before = row.after[0].flow if row.after else None
                leader = next((one for one in self._view.rows if one.flow == before), row)
                self._times = await asyncio.to_thread(read_times, row, leader, self._now_us)
            except RedriveError as error:
                self._problem = str(error)
        self._lay_out()

    def _show_rows(self) -> None:
        wanted, now_us = parse_filter(self.filter_text), self._now_us
        found = [row for row in self._view.rows if wanted.matches(present.search_text(row, now_us))]
        self._shown = {f"{row.id} {row.target}": row for row in found}
        self._columns = present.schedule_columns(found, now_us, nights_of_schedule(self.console.glyphs))
        self.table.set_order([*self._shown])
        first = next((key for key, row in self._shown.items() if row.flow == self._before), None)
        if first is not None:
            self.table.move_to_key(first)
            self._before = None
        self.table.refresh()

    # --- Drawing ----------------------------------------------------------------------------------------------------

    def _line(self, key: str, columns: int) -> Line:
        return screen_row(self._columns, self._shown[key], self._now_us, columns, self.console.glyphs.more)

    def _empty_line(self) -> Line:
        if self.filter_text:
            return no_match_line(self.filter_text)
        return [Piece(" no schedule is known: redrive serve FOLDER starts the runs of the flows in it", Role.DIM)]

    def _lay_out(self) -> None:
        """Divide the rows: the list has what it needs as far as the times below keep their lines.

        Before the first answer it has all: a list of two rows would be scrolled to the cursor, and stay so.
        """
        if not self._is_read:
            self.show_frame()
            return
        columns, room = self.app.size.width, self.app.size.height - _FRAME_ROWS
        self.panel.set_row_count(room - min(max(len(self._shown), _LIST_ROWS_MIN), max(room - _PANEL_ROWS, room // 3)))
        self.panel.show_lines(self._panel_lines())
        self.titles.show(screen_titles(self._columns, columns))
        self.name_bar.show(present.rule_line(self.row, self.console.glyphs, columns))
        self.show_frame()

    def _panel_lines(self) -> list[Line]:
        row, now_us = self.row, self._now_us
        if row is None:
            return []
        columns, times = self.app.size.width, self._times
        state = present.schedule_state(row, now_us)
        words = [*([state] if state else ()), *present.row_notes(row, now_us)]
        notes = [line for one in words for line in indented(one, columns)]
        if times.id != row.id or times.leader is None or row.left_out:
            return notes  # the cursor does not rest, or no time is known
        coming = [present.coming_line(times.leader, at, note, now_us) for at, note in times.coming if at > now_us]
        lines = notes + present.times_lines(coming, row, times.decided, columns, self.console.glyphs.more)
        free = self.panel.row_count - len(lines)
        return lines + night_lines(nights_of(row), RUNNING, columns, free, self.console.glyphs)

    def show_frame(self) -> None:
        """Update heading, rules and keys."""
        now_us, rows = self._now_us, self._view.rows
        parts: list[Line] = [[Piece(counted(len(rows), "schedule"), Role.STRONG), Piece(" of this machine")]]
        if self.filter_text:
            parts.append([Piece(f"/{one_line(self.filter_text)}: {number(len(self._shown))}", Role.MATCH)])
        if found := sum(present.needs_attention(row, now_us) for row in rows):
            parts.append([Piece(f"{number(found)} to look at", Role.WARNING)])
        if paused := sum(row.is_paused(now_us) for row in rows):
            parts.append([Piece(f"{number(paused)} paused", Role.WAITING)])
        problem = [Piece(f"{one_line(self._problem)} ", Role.WARNING)] if self._problem else []
        self.show_heading([Piece(" "), *join(parts, f" {self.console.glyphs.dot} ")], problem)

    def tick(self, now_us: int) -> None:
        """Update ages and countdowns."""
        self.table.rows_changed([*self._shown])
        self._lay_out()

    def on_resize(self, event: events.Resize) -> None:
        """Divide the rows anew."""
        self._lay_out()

    # --- Keys -------------------------------------------------------------------------------------------------------

    def on_virtual_table_cursor_moved(self, message: VirtualTable.CursorMoved) -> None:
        """Read the times of another schedule once the cursor rests."""
        self.rest_timer.start()
        self._lay_out()

    def on_cursor_rest(self) -> None:
        run_latest(self, self._read_times, "times")

    def on_virtual_table_row_opened(self, message: VirtualTable.RowOpened) -> None:
        """Open the latest run of the flow."""
        self.open_in(ScreenName.GRAPH)

    def open_in(self, view: ScreenName) -> None:
        """Open a view of the latest run of the flow under the cursor."""
        row = self.row
        if row is None or row.state_path is None or row.last_run_id is None:
            self.console.show_message("no run of it is known" if row is not None else "nothing is selected")
        else:
            self.fleet.open_file(row.state_path, row.last_run_id, view)

    def legend(self) -> Sequence[Line]:
        """None: its words are whole."""
        return ()

    def target_tasks(self) -> Sequence[str]:
        """None: the acts here are on schedules."""
        return ()

    def is_offered(self, action: Action) -> bool:
        """Whether an action means something for the schedule under the cursor."""
        row = self.row
        if action.name in present.NO_ACT:
            return row is not None and action.name in {one.action for one in present.schedule_acts(row, self._now_us)}
        return action.name != "open" or (row is not None and row.last_run_id is not None)

    def _word_of(self, action: Action) -> str:
        """The word of an action now."""
        acts = () if self.row is None else present.schedule_acts(self.row, self._now_us)
        undone = {act.action: act.label for act in acts if act.name in ("unpause", "unskip")}
        return undone.get(action.name, action.label)

    def filter_changed(self, text: str) -> None:
        """Show only the schedules that match."""
        self._show_rows()
        self._lay_out()

    def go_to_next(self, step: int) -> None:
        """To the next match, without a filter to the next schedule that somebody has to look at."""
        now_us, rows, nothing = self._now_us, self._shown, "no other schedule has to be looked at"
        self.go_to_row(self.table, step, lambda key: present.needs_attention(rows[key], now_us), nothing)
