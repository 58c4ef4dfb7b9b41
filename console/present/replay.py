"""The screen at a past instant: a header that differs clearly from the present, and the last event before it."""

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
from .states import sign_and_word

_NAME_CELLS_MIN = 12
_SENTENCE_CELLS_MIN = 24
_KEYS_CELLS = 43  # of the keys beside the sentence


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    """A position in the past of a run.

    Attributes:
        at: the instant that is shown, microseconds UTC.
        now: the present, microseconds UTC.
        seq: the number of the last event before ``at``; ``head``: of the last event so far.
        event: the event ``seq``, if it belongs to this run.
        speed: recorded seconds per second; 0 if the replay is paused.
    """

    at: int
    now: int
    seq: int
    head: int
    event: Event | None = None
    speed: int = 0


def format_instant(position: ReplayPosition) -> str:
    """``03:11:24``; with the date if it is not today."""
    day = wall_day(position.at, None)
    return wall(position.at, None) if day[:5] == wall_day(position.now, None)[:5] else day


def replay_line(position: ReplayPosition, board: Board, address: str, key: str, size: int, glyphs: Glyphs) -> Line:
    """The run line of a past instant: time, number of the event, the key back to the present, the run's state."""
    sign = f"{glyphs.play if position.speed else glyphs.past} {format_instant(position)}"
    speed = f" {glyphs.times}{position.speed}" if position.speed else ""
    event = f"event {number(position.seq)} of {number(position.head)}"
    banner = Piece(f" {sign}{speed} {glyphs.dot} {event} {glyphs.dot} {key}: now ", Role.CURSOR)
    right = [*join(_facts(position, board, glyphs)), Piece(" ")]
    room = size - width([banner]) - width(right) - 2
    if room < 0:
        return fit([banner], size, glyphs.more)
    left = location_line(board, address, room, glyphs) if room >= _NAME_CELLS_MIN else []
    return [banner, Piece(" "), *fit(left, room + 1, glyphs.more), *right]


def _facts(position: ReplayPosition, board: Board, glyphs: Glyphs) -> list[Line]:
    run, style = board.projection.run, run_style(board.projection.run)
    return [
        [sign_and_word(style, glyphs), Piece(f" {board.finished}/{board.total}")],
        [Piece(clock(position.at - run.started_at).strip())],
    ]


def describe_last_event(event: Event | None, size: int) -> str:
    """The last event before the instant, shortened to leave room for the keys."""
    if event is None:
        return ""
    sentence = one_line(f"{event_subject(event)}: {describe_event(event)}")
    return shorten(sentence, max(size - _KEYS_CELLS, _SENTENCE_CELLS_MIN))


def describe_read_only(position: ReplayPosition, key: str) -> str:
    """Why no act is possible at a past instant."""
    return f"this is {format_instant(position)} and not now: {key} returns to the present"
