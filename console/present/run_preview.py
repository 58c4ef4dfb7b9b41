"""The selected run of the list in a few rows: its parameters, then its tasks, what needs a human first."""

from __future__ import annotations

import heapq
import json

from ...engine.core.projection import RunRow, TaskRow
from ...engine.domain.states import TaskState
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit
from ..text.text import cells, one_line, pad
from .runs import run_name
from .states import SEVERITY, STATE_STYLES, state_sign
from .tasks import Scene, attempt_of, attempts_text, duration_of, state_facts

_NAME_CELLS_MAX = 48
_VALUE_CHARACTERS = 40
_ATTEMPTS_FROM = 64  # columns
#: Consequences and what has not begun: the other tasks say why.
_LEFT_OUT = frozenset([TaskState.UPSTREAM_FAILED, TaskState.PENDING, TaskState.SKIPPED])


def preview_lines(scene: Scene, columns: int, rows: int) -> list[Line]:
    """At most ``rows`` rows; of tasks in the same state the one with the longest latest attempt comes first."""
    tasks = [row for row in scene.board.projection.tasks.values() if row.state not in _LEFT_OUT]
    shown = heapq.nsmallest(rows - 1, tasks, key=lambda row: _rank(row, scene.now_us))
    name_cells = min(max((cells(one_line(row.name)) for row in shown), default=0), _NAME_CELLS_MAX, columns * 2 // 5)
    has_attempts = columns >= _ATTEMPTS_FROM
    task_lines = (_task_line(row, name_cells, scene, has_attempts=has_attempts) for row in shown)
    lines = [_heading(scene.board.projection.run, scene.glyphs), *task_lines]
    return [fit(line, columns, scene.glyphs.more) for line in lines]


def _rank(row: TaskRow, now_us: int) -> tuple[int, int, int]:
    attempt = attempt_of(row)
    ran_us = duration_of(attempt, now_us) if attempt is not None else 0
    return SEVERITY.index(row.state), -ran_us, row.position


def _heading(run: RunRow, glyphs: Glyphs) -> Line:
    return [Piece(" "), Piece(run_name(run, glyphs), Role.TITLE), Piece(f"  {describe_params(run)}", Role.DIM)]


def describe_params(run: RunRow) -> str:
    """The parameters of a run: ``day=2026-04-25  limit=100``."""
    try:
        values = json.loads(run.params)
    except ValueError:
        return ""
    named = values.items() if isinstance(values, dict) else ()
    return "  ".join(f"{one_line(name)}={_value(value)}" for name, value in named)


def _value(value: object) -> str:
    text = one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}..."


def _task_line(row: TaskRow, name_cells: int, scene: Scene, *, has_attempts: bool) -> Line:
    sign = Piece(state_sign(row.state, scene.glyphs), STATE_STYLES[row.state].role)
    tried = f"{attempts_text(row):<5}  " if has_attempts else ""
    return [Piece("   "), sign, Piece(f" {pad(one_line(row.name), name_cells)}  {tried}"), *state_facts(row, scene)]
