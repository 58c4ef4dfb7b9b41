"""The journal in rows, its heading, and all data of one event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime

from ...engine.core.projection import is_operator_act
from ...engine.core.views import KILL_STYLES, STATE_STYLES, Sign
from ...engine.domain.acts import TargetResult
from ...engine.domain.event_codec import encode
from ...engine.domain.events import Event, EventKind
from ...engine.domain.states import WAITING, TaskState
from ...engine.domain.text import counted, format_duration
from ..keys.keymap import shown_key
from ..model.repeats import REPORTS, Tries
from ..model.replay import EventJournal
from ..text.columns import FILL, Width, row_line, that_fit
from ..text.event_text import describe_event, event_subject, target_results
from ..text.figures import number, offset, wall, wall_day
from ..text.glyphs import Glyph, Glyphs
from ..text.pieces import Line, Piece, Role, join
from ..text.text import one_line, pad, sanitize
from .act_results import result_lines
from .states import no_match_line

_DATA_LINES_MAX = 400
_LABEL_CELLS = 12

#: Events that only lead to others.
_FAINT_KINDS = frozenset([EventKind.TASK_CHANGED, EventKind.ATTEMPT_STARTED])

#: kind -> (glyph, role)
_SIGNS = {
    **{kind: (step.sign, Role(step.role)) for kind, step in KILL_STYLES.items()},
    EventKind.ATTEMPT_RECLAIMED: (Sign.LOST, Role.WAITING),
    EventKind.ATTEMPT_SILENT: (Sign.LOST, Role.WAITING),
    EventKind.STORAGE: (Sign.FAILED, Role.WARNING),
}


def is_minor(event: Event) -> bool:
    """Whether an event is shown dimmed, because the events around it say more."""
    return event.kind in _FAINT_KINDS or (event.kind == EventKind.TASK and event.new in WAITING)


def event_row(
    event: Event,
    started_at: int,
    absolute: bool,
    columns: int,
    longest: int,
    glyphs: Glyphs,
    tries: Tries | None = None,
) -> Line:
    """Time, subject, sentence and actor of an event.

    ``started_at``: of the run, for offsets. ``longest``: cells of the longest subject. ``tries``: for which it stands.
    """
    is_dim = is_minor(event) and event.actor is None
    named = event.task is not None or event.kind == EventKind.OPERATOR
    text = Role.DIM if is_dim else Role.TEXT
    when = wall(event.at) if absolute else offset(event.at - started_at)
    return row_line(
        columns,
        (Width(8 if absolute else 6, is_right=not absolute), Piece(when, Role.DIM)),
        (Width(1), Piece(glyphs.dot, Role.DIM) if is_dim else _sign(event, glyphs)),
        (Width(11, min(longest, 32), is_name=True), Piece(one_line(event_subject(event)), text if named else Role.DIM)),
        (
            Width(44, FILL),
            [
                *_times(event, tries, glyphs),
                Piece(one_line(describe_event(event)), text),
                *_actor_and_reason(event, glyphs),
            ],
        ),
        more=glyphs.more,
    )


def _times(event: Event, tries: Tries | None, glyphs: Glyphs) -> Line:
    """The number of equal tries and their time, before the end of the latest try."""
    if tries is None:
        return []
    count, took = number(tries.count), format_duration(event.at - tries.began_at)
    return [Piece(f"{glyphs.closed} {count} {'reports' if tries.end == REPORTS else 'times'} in {took}: ", Role.STRONG)]


def _sign(event: Event, glyphs: Glyphs) -> Piece:
    if is_operator_act(event):
        return Piece(glyphs.closed, Role.STRONG)
    if event.kind == EventKind.TASK and event.new in STATE_STYLES:
        style = STATE_STYLES[TaskState(event.new)]
        return Piece(glyphs.of(style.sign), style.role)
    glyph, role = _SIGNS.get(event.kind, (Glyph.DOT, Role.DIM))
    return Piece(glyphs.of(glyph), role)


def _actor_and_reason(event: Event, glyphs: Glyphs) -> Line:
    if not event.actor:
        return []
    actor = [Piece(one_line(event.actor), Role.STRONG)]
    reason = [Piece(one_line(event.reason))] if event.reason else []
    return [Piece(f" {glyphs.dot} ", Role.DIM), *join([actor, reason], ": ")]


# --- The line above the list -----------------------------------------------------------------------------------------


def heading_line(
    journal: EventJournal,
    filter_text: str,
    times_since: int | None,
    columns: int,
    glyphs: Glyphs,
    *,
    is_following: bool,
) -> tuple[Line, Line]:
    """Left and right side of the line; parts are left out where there is no room.

    ``times_since``: the start of the run, if the rows show the times since then.
    """
    known = f"{number(len(journal))}{'' if journal.is_complete else '+'} event{'' if len(journal) == 1 else 's'}"
    parts: list[Line] = [[Piece(known, Role.STRONG)]]
    if filter_text:
        parts.append([Piece(f"/{one_line(filter_text)}: {number(len(journal.order))}", Role.MATCH)])
    else:
        parts.append([Piece(counted(journal.acts, "act"))])
    if times_since is not None:
        parts.append([Piece(f"times since {wall(times_since)}", Role.DIM)])
    right: Line = [Piece("following " if is_following else "", Role.DIM)]
    if journal.newer_dropped:
        right = [Piece(f"{number(journal.newer_dropped)} newer {glyphs.down} ", Role.WARNING)]
    dot = Piece(f" {glyphs.dot} ", Role.DIM)
    ranked = [(place, [dot if place else Piece(" "), *part]) for place, part in enumerate(parts)]
    *left, right = that_fit(columns - 1, *ranked, (0, right))
    return join(left, ""), right


def empty_line(filter_text: str, read: bool) -> Line:
    """The line in place of an empty list."""
    if not read:
        return [Piece("   reading ...", Role.DIM)]
    return no_match_line(filter_text) or [Piece("   nothing has happened yet", Role.DIM)]


# --- One event --------------------------------------------------------------------------------------------------------


def event_lines(event: Event, command: str | None, glyphs: Glyphs) -> list[Line]:
    """All data of one event; for an act, first the shell command that does the same."""
    lines: list[Line] = [[Piece(one_line(describe_event(event)), Role.STRONG)], []]
    copies = Piece("  "), Piece(shown_key("copy"), Role.KEY), Piece(" copies it", Role.DIM)
    if command is not None:
        lines += [[Piece("The same from a shell", Role.DIM), *copies], [Piece(f"  {command}")], []]
    elif is_operator_act(event):
        lines += [[Piece("The shell has no command that does the same.", Role.DIM)], []]
    for label, value in _facts(event, glyphs):
        lines.append([Piece(pad(label, _LABEL_CELLS), Role.DIM), Piece(one_line(value))])
    lines += _result_lines(event, glyphs)
    lines += _data_lines(event)
    return lines


def _facts(event: Event, glyphs: Glyphs) -> Iterator[tuple[str, str]]:
    fraction = f"{event.at % 1_000_000:06}"
    zone = datetime.fromtimestamp(event.at / 1e6).astimezone().strftime("%Z")
    yield "when", f"{wall_day(event.at)}.{fraction} {zone}"
    yield "kind", f"{event.kind}, event {event.seq}"
    if event.task is not None:
        tried = f", attempt {event.attempt}" if event.attempt is not None else ""
        again = f", generation {event.generation}" if event.generation else ""
        yield "task", f"{event.task}{tried}{again}"
    if event.old or event.new:
        yield "state", f"{event.old or 'none'} {glyphs.arrow} {event.new}" if event.new else str(event.old)
    yield "run", event.run_id or "all runs of the file"
    if event.actor:
        yield "by", event.actor
    if event.reason:
        yield "reason", event.reason
    if event.command_id:
        yield "command", event.command_id


def _result_lines(event: Event, glyphs: Glyphs) -> Iterator[Line]:
    results = [TargetResult(*map(str, result)) for result in target_results(event)]
    if results:
        yield []
        yield [Piece("What became of each task", Role.DIM)]
    yield from ([Piece("  "), *line] for line in result_lines(results, glyphs))


def _data_lines(event: Event) -> Iterator[Line]:
    data = {key: value for key, value in encode(event.payload).items() if key != "answer"}
    if not data:
        return
    yield []
    yield [Piece("What was recorded", Role.DIM)]
    written = json.dumps(data, indent=2, ensure_ascii=False, default=str).splitlines()
    for text in written[:_DATA_LINES_MAX]:
        yield [Piece(f"  {sanitize(text)}")]
    if len(written) > _DATA_LINES_MAX:
        yield [Piece(f"  {number(len(written) - _DATA_LINES_MAX)} more lines: see events --json", Role.DIM)]
