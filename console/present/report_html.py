"""A report as one HTML file: no network, one style sheet and one script, both known to its Content-Security-Policy.

Every text of the report becomes part of the page in ``_escaped``, and nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from html import escape
from importlib import resources
from itertools import groupby
from typing import NamedTuple

from rich.style import Style

from ...engine.domain.states import TaskState
from ..text.durations import wall
from ..text.glyphs import UTF8
from ..text.pieces import Line, Piece, Role
from ..text.text import sanitize
from .report import (
    CauseEvidence,
    ReportData,
    ReportRow,
    Timeline,
    act_lines,
    cause_lines,
    fact_lines,
    graph_rows,
    headline,
    left_out_causes,
    slow_lines,
    timeline_of,
)
from .states import STATE_STYLES, state_sign

_MOVES_MAX = 20_000  # a run with more has no slider in its report
_OPEN_CAUSES = 3  # the others are folded
_STATES = tuple(TaskState)


class PageColours(NamedTuple):
    """Colours of the page, as ``#rrggbb``, and the styles of roles."""

    background: str
    foreground: str
    styles: Mapping[str, Style]


def report_html(data: ReportData, light: PageColours, dark: PageColours) -> str:
    """The page, with light or dark colours by the reader's preference."""
    style = f"{_asset('report.css')}{_colour_rules(light)}@media(prefers-color-scheme:dark){{{_colour_rules(dark)}}}"
    script, timeline = _asset("report.js"), timeline_of(data)
    numbers = {name: place for place, name in enumerate(data.board.projection.tasks)}
    slider = _slider(data, timeline, numbers) if 0 < len(data.moves) <= _MOVES_MAX else ""
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'"
    causes = "".join(_cause(one, data, place < _OPEN_CAUSES) for place, one in enumerate(data.causes))
    acts = "".join(f'<p class="line">{_line(line)}</p>' for line in act_lines(data))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escaped(headline(data))}</title><style>{style}</style></head><body>"
        f"<h1>{_escaped(headline(data))}</h1>{_paragraphs(fact_lines(data))}{slider}"
        f'<h2>Graph</h2><div class="wide"><pre id="graph">{_rows(graph_rows(data), numbers)}</pre></div>'
        f'<h2>Timeline</h2><div class="wide"><div id="lanes">{_lanes(timeline.rows, numbers)}'
        '<i id="hand" hidden></i></div></div>'
        f"<h2>Causes</h2>{causes}{_paragraphs(filter(None, [left_out_causes(data)]))}"
        f"<h2>Acts and notes</h2>{acts}"
        f"<h2>Slower than usual</h2>{_paragraphs(slow_lines(data))}"
        f"<script>{script}</script></body></html>\n"
    )


def _escaped(text: str) -> str:
    """Text of the report as text of the page: without control characters, tags and quotes."""
    return escape(sanitize(text), quote=True)


def _paragraphs(texts: Iterable[str]) -> str:
    return "".join(f"<p>{_escaped(text)}</p>" for text in texts)


def _line(line: Line) -> str:
    return "".join(map(_piece, line))


def _piece(piece: Piece) -> str:
    text = _escaped(piece.text)
    return text if piece.role is Role.TEXT or not piece.text.strip() else f'<b class="{piece.role}">{text}</b>'


def _rows(rows: Iterable[ReportRow], numbers: Mapping[str, int]) -> str:
    return "\n".join(_row(row, numbers) for row in rows)


def _lanes(rows: Iterable[ReportRow], numbers: Mapping[str, int]) -> str:
    """Rows of groups open to those of their tasks; the rows between are blocks."""
    parts = []
    for is_group, block in groupby(rows, lambda row: bool(row.members)):
        if is_group:
            parts += [_group(row, numbers) for row in block]
        else:
            parts.append(f"<pre>{_rows(block, numbers)}</pre>")
    return "".join(parts)


def _group(row: ReportRow, numbers: Mapping[str, int]) -> str:
    """A group; the sign that it can be opened is that of the style sheet, which knows whether it is open."""
    summary = _row(row, numbers, first=1)
    return f"<details><summary>{summary}</summary><pre>{_rows(row.members, numbers)}</pre></details>"


def _row(row: ReportRow, numbers: Mapping[str, int], first: int = 0) -> str:
    """The pieces of a row from the place ``first`` on."""
    parts = []
    for place, piece in list(enumerate(row.line))[first:]:
        if place in row.signs:
            parts.append(f'<b class="{piece.role}" data-task="{numbers[row.signs[place]]}">{_escaped(piece.text)}</b>')
        elif place in row.times:
            parts.append(f'<span class="time">{_piece(piece)}</span>')
        else:
            parts.append(_piece(piece))
    return "".join(parts).rstrip()


def _cause(one: CauseEvidence, data: ReportData, is_open: bool) -> str:
    first, *rest = cause_lines(one, data)
    text = "\n".join(_line(line) for line in rest)
    summary = f"<summary>{_line(first).strip()}</summary>"
    return f'<details{" open" if is_open else ""}>{summary}<div class="wide"><pre>{text}</pre></div></details>'


def _slider(data: ReportData, timeline: Timeline, numbers: Mapping[str, int]) -> str:
    """The slider and its data: numbers and our own words, so that no text of a task is part of it."""
    span, last = timeline.span, timeline.span.cells - 1
    latest = {(min(max(span.cell(move.at), 0), last), numbers[move.task]): move.state for move in data.moves}
    values = {
        "columns": timeline.label_columns,
        "tasks": len(numbers),
        "clocks": [wall(span.instant(cell + 1) - 1, None) for cell in range(span.cells)],
        "states": [_style(state) for state in _STATES],
        "pending": _STATES.index(TaskState.PENDING),
        "moves": [[cell, task, _STATES.index(state)] for (cell, task), state in latest.items()],
    }
    return (
        f'<div id="night" hidden><input type="range" id="slider" min="0" max="{last}" value="{last}"'
        ' aria-label="Instant of the night"><output id="instant"></output></div>'
        f'<script type="application/json" id="data">{json.dumps(values, separators=(",", ":"))}</script>'
    )


def _style(state: TaskState) -> tuple[str, str, str]:
    return state_sign(state, UTF8), str(STATE_STYLES[state].role), STATE_STYLES[state].word


def _colour_rules(colours: PageColours) -> str:
    page = f"body{{background:{colours.background};color:{colours.foreground}}}"
    rules = (f".{role}{{{css}}}" for role, style in colours.styles.items() if (css := style.get_html_style()))
    return "".join([page, *rules])


def _asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
