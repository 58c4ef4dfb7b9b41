"""The log in rows: which attempt, how much of it, and its lines with what went wrong set off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from ...engine.core.projection import AttemptRow, TaskRow
from ..model.log import GAP, Selection, tells_of_error
from ..text.durations import clock, number, size
from ..text.glyphs import Glyph, Glyphs
from ..text.pieces import Line, Piece, Role, width
from ..text.text import cells, one_line, shorten_middle

_NAME_CELLS_MIN = 12
_MARGIN = Piece(" ")

#: outcome -> (glyph, word, role)
_OUTCOMES = {
    "running": (Glyph.RUNNING, "running", Role.RUNNING),
    "success": (Glyph.DONE, "ok", Role.DONE),
    "error": (Glyph.FAILED, "failed", Role.FAILED),
    "timed_out": (Glyph.SIGKILL, "timed out", Role.FAILED),
    "lost": (Glyph.LOST, "lost", Role.WAITING),
    "cancelled": (Glyph.CANCELLED, "stopped", Role.SKIPPED),
    "deferred": (Glyph.SENSING, "not ready", Role.WAITING),
    "skipped": (Glyph.SKIPPED, "skipped", Role.SKIPPED),
}


@dataclass(frozen=True, slots=True)
class Heading:
    """What the line above the log says.

    Attributes:
        count: attempts of the task.
        written: bytes that the attempt wrote; None if that is not known.
        lines: how many are shown, and the last of them in view.
        searched, only: what is looked for, and what is shown alone.
        found: whether the search stands at something.
        whole: whether everything has been read that is kept.
    """

    count: int
    written: int | None
    lines: int
    last: int
    following: bool
    whole: bool
    searched: str = ""
    only: str = ""
    found: bool = True


def heading_line(
    row: TaskRow, attempt: AttemptRow | None, heading: Heading, now_us: int, columns: int, glyphs: Glyphs
) -> tuple[Line, Line]:
    """Left and right side; where there is less room, less is said."""
    name = one_line(row.name)
    parts = _facts(attempt, heading, now_us, glyphs)
    rights = _rights(heading, attempt is not None and attempt.outcome == "running")
    least = min(cells(name), _NAME_CELLS_MIN) + 3
    for word in _LEAST_WANTED:
        if least + sum(map(width, (*parts.values(), *rights.values()))) <= columns:
            break
        parts.pop(word, None)
        rights.pop(word, None)
    right = [piece for part in rights.values() for piece in (*part, Piece(" "))]
    facts = [piece for part in parts.values() for piece in part]
    room = max(columns - width(facts) - width(right) - 2, _NAME_CELLS_MIN)
    return [Piece(" "), Piece(shorten_middle(name, room, glyphs.more), Role.TITLE), *facts], right


#: What gives way first where there is no room.
_LEAST_WANTED = ("where", "written", "of", "took", "only", "searched")


def _facts(attempt: AttemptRow | None, heading: Heading, now_us: int, glyphs: Glyphs) -> dict[str, Line]:
    """Parts of the left side, in order."""
    if attempt is None:
        return {}
    glyph, word, role = _OUTCOMES.get(attempt.outcome, (Glyph.LOST, attempt.outcome, Role.WAITING))
    took = attempt.duration_us
    if took is None:
        took = (attempt.ended_at if attempt.ended_at is not None else now_us) - attempt.started_at
    return {
        "number": [Piece(f"  #{attempt.attempt}", Role.STRONG)],
        "of": [Piece(f" of {heading.count}" if heading.count > 1 else "", Role.DIM)],
        "outcome": [Piece(f"  {glyphs.of(glyph)} {one_line(word)}", role)],
        "took": [Piece(f" {clock(took).strip()}")],
        "written": [Piece(f"  {size(heading.written)}" if heading.written is not None else "", Role.DIM)],
    }


def _rights(heading: Heading, running: bool) -> dict[str, Line]:
    """Parts of the right side, in order."""
    rights: dict[str, Line] = {}
    if heading.searched:
        nowhere = "" if heading.found else ": nowhere"
        role = Role.MATCH if heading.found else Role.WARNING
        rights["searched"] = [Piece(f"/{one_line(heading.searched)}{nowhere}", role)]
    if heading.only:
        rights["only"] = [Piece(f"&{one_line(heading.only)}", Role.MATCH)]
    if running and heading.following and not heading.only:
        rights["where"] = [Piece("following", Role.DIM)]
    elif heading.lines:
        of = f"{number(heading.lines)}{'' if heading.whole else '+'}"
        rights["where"] = [Piece(f"{number(heading.last)} of {of}", Role.DIM)]
    return rights


class LogLines(Sequence[Line]):
    """The lines of a ``Selection``, made when they are looked at.

    ``dropped_bytes``: how much the engine has dropped; None if that is not known.
    """

    def __init__(self, selection: Selection, glyphs: Glyphs) -> None:
        self._selection = selection
        self._glyphs = glyphs
        self.dropped_bytes: int | None = None

    def __len__(self) -> int:
        return len(self._selection)

    @overload
    def __getitem__(self, place: int) -> Line: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Line]: ...
    def __getitem__(self, place: int | slice) -> Line | Sequence[Line]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        text = self._selection[place]
        if text == GAP:
            return [_MARGIN, Piece(gap_words(self.dropped_bytes, self._glyphs), Role.WARNING)]
        return [_MARGIN, Piece(text, Role.FAILED if tells_of_error(text) else Role.TEXT)]


def gap_words(dropped_bytes: int | None, glyphs: Glyphs) -> str:
    """What stands where output was dropped."""
    amount = f"{size(dropped_bytes)}" if dropped_bytes else "output was"
    return f"{glyphs.more} {amount} dropped here {glyphs.more}"


def nothing_line(attempt: AttemptRow | None, why: str, only: str, whole: bool, glyphs: Glyphs) -> Line:
    """In place of lines that are not there."""
    if attempt is None:
        return [Piece(f" {glyphs.dot} no attempt yet: {one_line(why)}", Role.DIM)]
    if only:
        return [Piece(f" nothing matches &{one_line(only)}; Esc shows all", Role.DIM)]
    if not whole:
        return [Piece(" reading ...", Role.DIM)]
    said = "nothing written yet" if attempt.outcome == "running" else "this attempt wrote nothing"
    return [Piece(f" {glyphs.dot} {said}", Role.DIM)]
