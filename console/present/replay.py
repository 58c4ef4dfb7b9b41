"""The past on the screen: a header that nobody takes for the present, and what happened last, in the line of keys."""

from __future__ import annotations

from dataclasses import dataclass

from ...engine.domain.events import Event
from ..model.board import Board
from ..text.durations import clock, number, wall, wall_day
from ..text.event_text import describe_event, event_subject
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit, join, width
from ..text.text import one_line, shorten
from .header import location_line
from .runs import run_style

_NAME_CELLS_MIN = 12
_SENTENCE_CELLS_MIN = 24
_KEYS_CELLS = 43  # of the keys beside the sentence


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    """Where somebody is in the past of a run.

    Attributes:
        at: the instant that is shown, microseconds UTC.
        now: the present.
        seq: the number of the event that was the last by then; ``head`` that of the last so far.
        event: that event, if it is one of this run.
        speed: seconds of the night in a second; 0: time stands still.
    """

    at: int
    now: int
    seq: int
    head: int
    event: Event | None = None
    speed: int = 0


def format_instant(visit: ReplayPosition) -> str:
    """``03:11:24``; of another day than today, with the day."""
    day = wall_day(visit.at, None)
    return wall(visit.at, None) if day[:5] == wall_day(visit.now, None)[:5] else day


def replay_line(visit: ReplayPosition, board: Board, address: str, key: str, size: int, glyphs: Glyphs) -> Line:
    """In place of the run's line: when, which event of how many, the key that leads back; then the run as it was."""
    sign = f"{glyphs.play if visit.speed else glyphs.past} {format_instant(visit)}"
    speed = f" {glyphs.times}{visit.speed}" if visit.speed else ""
    event = f"event {number(visit.seq)} of {number(visit.head)}"
    banner = Piece(f" {sign}{speed} {glyphs.dot} {event} {glyphs.dot} {key}: now ", Role.CURSOR)
    right = [*join(_facts(visit, board, glyphs)), Piece(" ")]
    room = size - width([banner]) - width(right) - 2
    if room < 0:
        return fit([banner], size, glyphs.more)
    left = location_line(board, address, room, glyphs) if room >= _NAME_CELLS_MIN else []
    return [banner, Piece(" "), *fit(left, room + 1, glyphs.more), *right]


def _facts(visit: ReplayPosition, board: Board, glyphs: Glyphs) -> list[Line]:
    run, look = board.fold.run, run_style(board.fold.run)
    state = [Piece(f"{glyphs.of(look.glyph)} {look.word}", look.role)]
    return [[*state, Piece(f" {board.finished}/{board.total}")], [Piece(clock(visit.at - run.started_at).strip())]]


def describe_last_event(event: Event | None, size: int) -> str:
    """What happened last by then, in as much of a sentence as leaves room for the keys."""
    if event is None:
        return ""
    said = one_line(f"{event_subject(event)}: {describe_event(event)}")
    return shorten(said, max(size - _KEYS_CELLS, _SENTENCE_CELLS_MIN))


def describe_read_only(visit: ReplayPosition, key: str) -> str:
    """Why nothing can be changed here, in one sentence."""
    return f"this is {format_instant(visit)} and not now: {key} returns to the present"
