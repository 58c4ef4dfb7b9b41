"""One state file of a fleet in one row: what needs a human, its latest run, its executor and its next start."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ...engine.domain.counting import counted
from ...engine.domain.states import RunState
from ..model.columns import ALL_COLUMNS
from ..model.fleet import FleetEntry, FleetOrder
from ..text.durations import number
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit
from ..text.text import cells, one_line, pad, shorten_middle
from .counts import order_line, waiting_pieces
from .runs import run_name, run_style
from .schedules import describe_next_run

FLEET_COLUMNS = ("NEEDS", "STATE", "FLOW", "RUN", "EXECUTOR", "NEXT", "FILE")

_COUNT_CELLS, _STATE_CELLS, _EXECUTOR_CELLS = 6, 10, 11
_NAME_CELLS = (12, 40)
_OTHER_COLUMNS_CELLS = 52
_WIDE, _FILE_CELLS = 150, 32
NO_EXECUTOR = "no executor"


def executor_text(entry: FleetEntry) -> str:
    """Whether a process runs the file, or starts its runs."""
    if entry.executor.alive:
        return "running"
    if entry.offer.service_pid is not None:
        return "served"
    return NO_EXECUTOR if entry.offer.unfinished else ""


def fleet_cells(entry: FleetEntry, now_us: int) -> Sequence[str]:
    """The columns of FLEET_COLUMNS as plain text."""
    run, offer = entry.run, entry.offer
    cells = [str(entry.attention_count or ""), _state(entry), *((run.dag_name, run.run_id) if run else ("", ""))]
    return (*cells, executor_text(entry), describe_next_run(offer.schedules, now_us), offer.problem or offer.path)


def fleet_value(entry: FleetEntry) -> Mapping[str, object]:
    """One state file in JSON values; instants in microseconds UTC."""
    offer, executor = entry.offer, entry.executor
    return {
        "state_file": offer.path,
        "flow": offer.dag_name,
        "run_id": offer.run_id,
        "state": _state(entry) or None,
        "started_at": offer.started_at or None,
        "ended_at": offer.ended_at,
        "needs_human": entry.attention_count,
        "waiting_runs": [one.run.run_id for one in entry.waiting],
        "executor_alive": executor.alive,
        "executor_pid": executor.pid if executor.alive else None,
        "service_pid": offer.service_pid,
        "next_at": entry.next_at,
        "problem": offer.problem,
    }


def _state(entry: FleetEntry) -> str:
    run = entry.run
    if run is None:
        return ""
    return "BLOCKED" if run.state is RunState.RUNNING and run.blocked_since is not None else str(run.state)


def fleet_heading(
    entries: Sequence[FleetEntry], place: str, problem: str, order: FleetOrder, glyphs: Glyphs
) -> tuple[Line, Line]:
    """Left and right side of the line above the list. ``problem``: why the list is not that of now."""
    waiting = sum(bool(entry.waiting) for entry in entries)
    left = [Piece(" "), Piece(counted(len(entries), "state file"), Role.STRONG)]
    left += [Piece(f" on {one_line(place)}"), *waiting_pieces(waiting, glyphs)]
    if problem:
        return left, [Piece(f"{one_line(problem)} ", Role.WARNING)]
    return left, order_line(order, glyphs)


def fleet_row(
    entry: FleetEntry,
    now_us: int,
    columns: int,
    glyphs: Glyphs,
    longest_name: int = 0,
    shown: Collection[str] = ALL_COLUMNS,
) -> Line:
    """What needs a human, state, flow and run, executor, next start; where there is room, the name of the file.

    ``shown``: columns.
    """
    count, offer = entry.attention_count, entry.offer
    line: Line = [Piece(pad(f" {glyphs.dead}{number(count)}" if count else "", _COUNT_CELLS), Role.HUMAN)]
    if offer.problem is not None:
        return fit([*line, Piece(f"{file_name(entry)}  "), Piece(one_line(offer.problem), Role.WARNING)], columns)
    low, high = _NAME_CELLS
    name_cells = max(min(longest_name, high, columns - _OTHER_COLUMNS_CELLS), low)
    executor = executor_text(entry)
    line += [
        *_state_and_name(entry, name_cells, glyphs),
        Piece(
            f"  {executor:{_EXECUTOR_CELLS}}  " if "executor" in shown else "  ",
            Role.WARNING if executor == NO_EXECUTOR else Role.DIM,
        ),
        Piece(describe_next_run(offer.schedules, now_us) if "next" in shown else ""),
    ]
    if columns < _WIDE or "file" not in shown:
        return fit(line, columns, glyphs.more)
    file = pad(shorten_middle(file_name(entry), _FILE_CELLS, glyphs.more), _FILE_CELLS)
    return [*fit(line, columns - _FILE_CELLS - 1, glyphs.more), Piece(f" {file}", Role.DIM)]


def _state_and_name(entry: FleetEntry, name_cells: int, glyphs: Glyphs) -> Line:
    if entry.run is None:
        return [
            Piece(pad("no run", _STATE_CELLS), Role.DIM),
            Piece(f" {pad(shorten_middle(file_name(entry), name_cells, glyphs.more), name_cells)}"),
        ]
    style = run_style(entry.run)
    return [
        Piece(pad(f"{glyphs.of(style.glyph)} {style.word}", _STATE_CELLS), style.role),
        Piece(f" {pad(shorten_middle(run_name(entry.run, glyphs), name_cells, glyphs.more), name_cells)}"),
    ]


def file_name(entry: FleetEntry) -> str:
    """The last part of the path."""
    return one_line(entry.offer.path.rpartition("/")[2])


def name_cells(entries: Sequence[FleetEntry], glyphs: Glyphs) -> int:
    """The cells of the longest name of a run."""
    return max((cells(run_name(entry.run, glyphs)) for entry in entries if entry.run), default=0)
