"""The log in rows: the heading with the attempt and its size, and the lines with errors set off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import msgspec

from ...engine.core.failures import hang
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.core.views import attempt_view
from ...engine.core.waiting import ALIVE
from ...engine.domain.text import format_bytes, format_duration
from ...engine.statefile.logs import AttemptText
from ..keys.keymap import shown_key
from ..model.log import GAP, LogLine, LogText, is_error_line, is_gap, printable_parts, shown_attempt
from ..sessions.attempt_log import AttemptLog
from ..text.columns import that_fit
from ..text.figures import clock, number, wall
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, coloured_pieces, coloured_spans, fit, join, width, wrap
from ..text.text import cells, one_line, sanitize, shorten_middle
from .states import sign_and_word
from .tasks import RunContext, hang_of

_NAME_CELLS_MIN = 12
_MARGIN = Piece(" ")


class LogHeading(msgspec.Struct, frozen=True):
    """The data of the line above the log.

    Attributes:
        lines: number of shown lines; ``last``: the number of the last one in view; ``last_at``: when it was written.
        searched: the search text.
        has_match: whether the search has found a line.
        is_searching: whether the rest of the log is still searched.
        is_given_up: whether the search ended with an error.
    """

    lines: int
    last: int
    last_at: int
    is_following: bool
    is_searching: bool = False
    is_given_up: bool = False
    searched: str = ""
    has_match: bool = True


def heading_line(
    row: TaskRow,
    attempt: AttemptRow | None,
    log: AttemptLog | None,
    heading: LogHeading,
    context: RunContext,
    columns: int,
) -> tuple[Line, Line]:
    """Left and right side of the line; parts are left out where there is no room."""
    name, parts, latest = one_line(row.name), _facts(row, attempt, log, context), row.latest
    if attempt is not None and latest is not None and attempt.attempt == shown_attempt(row) != latest.attempt:
        parts["of"] = [Piece(f" of {len(row.attempts)}, the latest wrote nothing", Role.DIM)]
    rights = _rights(heading, log, attempt is not None and attempt.outcome == "running")
    ranked = [(_RANKS.get(word, 0), [*part, Piece(" ")]) for word, part in rights.items()]
    ranked = [*((_RANKS.get(word, 0), part) for word, part in parts.items()), *ranked]
    shown = that_fit(columns - min(cells(name), _NAME_CELLS_MIN) - 2, *ranked)
    facts, right = join(shown[: len(parts)], ""), join(shown[len(parts) :], "")
    room = max(columns - width(facts) - width(right) - 2, _NAME_CELLS_MIN)
    return [Piece(" "), Piece(shorten_middle(name, room, context.glyphs.more), Role.TITLE), *facts], right


#: The parts that are left out where there is no room, the highest first.
_RANKS = {"searched": 1, "dropped": 2, "written": 3, "duration": 4, "of": 5, "where": 6}


def _facts(row: TaskRow, attempt: AttemptRow | None, log: AttemptLog | None, context: RunContext) -> dict[str, Line]:
    """Parts of the left side, in order."""
    if attempt is None:
        return {}
    view = context.attempt(attempt)
    outcome = sign_and_word(view.style, context.glyphs)
    lasts = clock(view.clock).strip() if view.is_moving else format_duration(view.clock)
    known, dropped = (None, None) if log is None else (log.output_bytes, log.dropped_bytes)
    written = attempt.output_bytes or None if known is None else known
    return {
        "number": [Piece(f"  #{attempt.attempt}", Role.STRONG)],
        "of": [Piece(f" of {len(row.attempts)}" if len(row.attempts) > 1 else "", Role.DIM)],
        "outcome": [outcome._replace(text=f"  {outcome.text}")],
        "duration": [Piece(f" {lasts}")],
        "written": [Piece(f"  {format_bytes(written)}" if written is not None else "", Role.DIM)],
        "dropped": [Piece(f", {missing_output_text(dropped)}" if dropped else "", Role.WARNING)],
    }


def _rights(heading: LogHeading, log: AttemptLog | None, running: bool) -> dict[str, Line]:
    """Parts of the right side, in order."""
    rights: dict[str, Line] = {}
    if heading.searched:
        found, role = _match_count_text(heading, log), Role.MATCH if heading.has_match else Role.WARNING
        rights["searched"] = [Piece(f"/{one_line(heading.searched)}{found}", role)]
    if running and heading.is_following:
        rights["where"] = [Piece("following", Role.DIM)]
    elif heading.lines:
        place = f"{number(heading.last)} of {number(heading.lines)}"
        rights["where"] = [Piece(place if log is None or log.is_whole else f"at {wall(heading.last_at)}", Role.DIM)]
    return rights


def _match_count_text(heading: LogHeading, log: AttemptLog | None) -> str:
    """The result of a search; empty for a match."""
    if heading.is_searching:
        return ": searching"
    if heading.is_given_up:
        return ": given up"
    return "" if heading.has_match else f": nowhere{unsearched_output_text(None if log is None else log.dropped_bytes)}"


class LogLines(Sequence[Line]):
    """The lines of a log, built on access. ``has_times``: with the clock time at which each was written."""

    def __init__(self, text: LogText, glyphs: Glyphs) -> None:
        self.text = text
        self._glyphs = glyphs
        self.has_times = False

    def __len__(self) -> int:
        return len(self.text.lines)

    @overload
    def __getitem__(self, place: int) -> Line: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Line]: ...
    def __getitem__(self, place: int | slice) -> Line | Sequence[Line]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        line = self.text.lines[place]
        margin = [_MARGIN, Piece(f"{wall(line.at)} ", Role.DIM)] if self.has_times else [_MARGIN]
        return [*margin, *line_pieces(line, self._glyphs)]

    def line_at(self, place: int) -> LogLine:
        return self.text.lines[place]

    def text_at(self, place: int) -> str:
        """A line without its role, which takes ten times as long to find: for a search through all of them."""
        return line_text(self.text.lines[place], self._glyphs)


def line_pieces(line: LogLine, glyphs: Glyphs) -> Line:
    """A line in its own colours; where it has none, an error is set off."""
    if is_gap(line):
        return [Piece(line_text(line, glyphs), Role.WARNING)]
    role = Role.FAILED if is_error_line(line) else Role.TEXT
    if not line.coloured:
        return [Piece(str(line), role)]
    spans = [(len(next(printable_parts(line.coloured[:at]))), style) for at, style in coloured_spans(line.coloured)]
    return coloured_pieces(str(line), spans, role)


def missing_output_text(dropped_bytes: int) -> str:
    """The size of the output that was dropped: ``2.9 MB dropped``."""
    return f"{format_bytes(dropped_bytes)} dropped"


def unsearched_output_text(dropped_bytes: int | None) -> str:
    """The output that a search without a result has not seen; empty if it has seen everything."""
    return f" in what is kept; {missing_output_text(dropped_bytes)}" if dropped_bytes else ""


def line_text(line: LogLine, glyphs: Glyphs) -> str:
    """The text of a line; of a gap, how much was dropped."""
    if not is_gap(line):
        return line
    return f"{glyphs.more} {format_bytes(int(line.removeprefix(GAP)))} dropped here {glyphs.more}"


def failure_text(attempt: AttemptRow) -> str:
    """Why an attempt failed: the place of its hang, its failure in a few words, or its error."""
    return hang_of(attempt) or one_line(attempt.explain or "") or attempt.error or ""


def failure_lines(
    attempt: AttemptRow, texts: AttemptText | None, columns: int, rows: int, glyphs: Glyphs
) -> list[Line]:
    """Why an attempt failed, in at most ``rows`` rows: its failure, then the end of its traceback.

    A timeout has the innermost calls of its stack instead, an attempt without either its whole error.
    """
    style = attempt_view(attempt, attempt.ended_at or attempt.started_at, ALIVE).style
    failure = failure_text(attempt)
    head = [Piece(f" {glyphs.of(style.sign)} {style.word}", style.role), Piece(f"  {one_line(failure)}", Role.STRONG)]
    texts = texts or AttemptText()
    stack, _ = hang.split_stack_and_report(texts.stack)
    below = "\n".join(filter(None, (texts.diagnostic, texts.traceback.rstrip() or stack.rstrip() or attempt.error)))
    lines = ([Piece(f"   {sanitize(line.expandtabs(4))}")] for line in below.splitlines())
    rest = [row for line in lines for row in wrap(line, columns - 1, None)]
    free = max(rows - 1, 0)
    shown = rest[max(len(rest) - free, 0) :] if texts.traceback else rest[:free]
    return [fit(head, columns, glyphs.more), *shown]


def empty_line(
    attempt: AttemptRow | None, why: str, whole: bool, glyphs: Glyphs, dropped_bytes: int | None, wrote: Sequence[int]
) -> Line:
    """The line in place of an empty log. ``wrote``: the attempts of the task that wrote something."""
    if attempt is None:
        return [Piece(f" {glyphs.dot} no attempt yet: {one_line(why)}", Role.DIM)]
    if not whole:
        return [Piece(" reading ...", Role.DIM)]
    if dropped_bytes:
        dropped = format_bytes(dropped_bytes)
        sentence = f"{dropped} were dropped: the run wrote more than it keeps, and the oldest goes first"
        return [Piece(f" {glyphs.more} {sentence}", Role.WARNING)]
    sentence = "nothing written yet" if attempt.outcome == "running" else "this attempt wrote nothing"
    earlier = [number for number in wrote if number < attempt.attempt]
    sentence += f"; attempt {earlier[-1]} did: {shown_key('older_attempt')}" if earlier else ""
    return [Piece(f" {glyphs.dot} {sentence}", Role.DIM)]
