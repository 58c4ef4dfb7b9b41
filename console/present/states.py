"""The style of each state and outcome: a sign, a word and a role. No two task states share sign and word, so that
they can be told apart without colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...engine.domain.states import RunState, TaskState
from ..text.glyphs import Glyph, Glyphs
from ..text.pieces import Line, Piece, Role, width


class StateStyle(NamedTuple):
    """How a state is shown. ``word``: at most eight cells for task states."""

    glyph: Glyph
    word: str
    role: Role


STATE_STYLES: dict[TaskState, StateStyle] = {
    TaskState.PENDING: StateStyle(Glyph.PENDING, "pending", Role.PENDING),
    TaskState.READY: StateStyle(Glyph.READY, "ready", Role.WAITING),
    TaskState.RUNNING: StateStyle(Glyph.RUNNING, "running", Role.RUNNING),
    TaskState.SUCCESS: StateStyle(Glyph.DONE, "ok", Role.DONE),
    TaskState.RETRYING: StateStyle(Glyph.RETRYING, "retry", Role.WAITING),
    TaskState.SENSING: StateStyle(Glyph.SENSING, "sensing", Role.WAITING),
    TaskState.FAILED: StateStyle(Glyph.FAILED, "failed", Role.FAILED),
    TaskState.DEAD_LETTER: StateStyle(Glyph.DEAD, "DEAD", Role.HUMAN),
    TaskState.UPSTREAM_FAILED: StateStyle(Glyph.UPSTREAM, "upstream", Role.FAILED),
    TaskState.SKIPPED: StateStyle(Glyph.SKIPPED, "skipped", Role.SKIPPED),
    TaskState.CANCELLED: StateStyle(Glyph.CANCELLED, "stopped", Role.SKIPPED),
}

OUTCOME_STYLES: dict[str, StateStyle] = {
    "running": StateStyle(Glyph.RUNNING, "running", Role.RUNNING),
    "success": StateStyle(Glyph.DONE, "ok", Role.DONE),
    "error": StateStyle(Glyph.FAILED, "failed", Role.FAILED),
    "timed_out": StateStyle(Glyph.SIGKILL, "timed out", Role.FAILED),
    "lost": StateStyle(Glyph.LOST, "lost", Role.WAITING),
    "cancelled": StateStyle(Glyph.CANCELLED, "stopped", Role.SKIPPED),
    "deferred": StateStyle(Glyph.SENSING, "not ready", Role.WAITING),
    "skipped": StateStyle(Glyph.SKIPPED, "skipped", Role.SKIPPED),
}

#: The worst first: where there is room for one state only, the first is shown.
SEVERITY: tuple[TaskState, ...] = (
    TaskState.DEAD_LETTER,
    TaskState.FAILED,
    TaskState.UPSTREAM_FAILED,
    TaskState.RUNNING,
    TaskState.RETRYING,
    TaskState.SENSING,
    TaskState.READY,
    TaskState.CANCELLED,
    TaskState.SKIPPED,
    TaskState.SUCCESS,
    TaskState.PENDING,
)

RUN_STYLES: dict[RunState, StateStyle] = {
    RunState.RUNNING: StateStyle(Glyph.RUNNING, "running", Role.RUNNING),
    RunState.SUCCESS: StateStyle(Glyph.DONE, "success", Role.DONE),
    RunState.FAILED: StateStyle(Glyph.FAILED, "FAILED", Role.FAILED),
    RunState.PARTIAL: StateStyle(Glyph.SKIPPED, "partial", Role.WAITING),
    RunState.ABANDONED: StateStyle(Glyph.CANCELLED, "abandoned", Role.FAILED),
}

BLOCKED = StateStyle(Glyph.DEAD, "BLOCKED", Role.HUMAN)
NO_EXECUTOR = StateStyle(Glyph.READY, "no executor", Role.WAITING)
IDLE = StateStyle(Glyph.READY, "idle", Role.WAITING)
SERVED = StateStyle(Glyph.READY, "served", Role.WAITING)
PAUSED = StateStyle(Glyph.READY, "paused", Role.WAITING)


def sign_of(style: StateStyle, glyphs: Glyphs) -> Piece:
    """The sign of a style, in its role."""
    return Piece(glyphs.of(style.glyph), style.role)


def sign_and_word(style: StateStyle, glyphs: Glyphs) -> Piece:
    """The sign and the word of a style, in its role."""
    return Piece(f"{glyphs.of(style.glyph)} {style.word}", style.role)


def state_sign(state: TaskState, glyphs: Glyphs) -> str:
    """The one-cell sign of a task state."""
    return glyphs.of(STATE_STYLES[state].glyph)


# --- The legend -------------------------------------------------------------------------------------------------------

_ENTRY_CELLS = 15
_GAP = "  "


def legend_lines(glyphs: Glyphs, columns: int, bars: Sequence[Line]) -> list[Line]:
    """The legend in lines of at most ``columns``. ``bars``: the entries of the timeline."""
    outcomes = [OUTCOME_STYLES[name] for name in ("timed_out", "lost")]
    states = [[sign_and_word(style, glyphs)] for style in (*STATE_STYLES.values(), BLOCKED, *outcomes)]
    marks = [
        [Piece(sign, role), Piece(f" {words}")]
        for sign, role, words in (
            (f"{glyphs.dead}2", Role.HUMAN, "so many need a human"),
            (glyphs.mark, Role.MARK, "marked for an act on many"),
            (glyphs.up, Role.WARNING, "slower than usual"),
            (f"{glyphs.open}{glyphs.closed}", Role.DIM, "open, folded"),
            (glyphs.elided, Role.DIM, "more than is drawn"),
            ("~12s", Role.DIM, "an estimate"),
        )
    ]
    flows = *_flow(states, columns, _ENTRY_CELLS), *_flow(marks, columns, 0), *_flow(bars, columns, 0)
    return [[Piece("Signs", Role.STRONG)], *flows]


def _flow(entries: Sequence[Line], columns: int, least: int) -> list[Line]:
    """As many entries in a line as fit, each at least ``least`` cells wide."""
    lines: list[Line] = []
    for entry in entries:
        padded = [*entry, Piece(" " * max(least - width(entry), 0))]
        if not lines or width(lines[-1]) + len(_GAP) + width(entry) > columns:
            lines.append([Piece(_GAP), *padded])
        else:
            lines[-1] += [Piece(_GAP), *padded]
    return lines
