"""How each state looks: a sign, a word and a role. Colour comes last, so no two states share sign and word."""

from __future__ import annotations

from typing import NamedTuple

from ...engine.domain.states import RunState, TaskState
from ..text.glyphs import Glyph, Glyphs
from ..text.pieces import Role


class Look(NamedTuple):
    """``word`` fits in eight cells."""

    glyph: Glyph
    word: str
    role: Role


LOOKS: dict[TaskState, Look] = {
    TaskState.PENDING: Look(Glyph.PENDING, "pending", Role.PENDING),
    TaskState.READY: Look(Glyph.READY, "ready", Role.WAITING),
    TaskState.RUNNING: Look(Glyph.RUNNING, "running", Role.RUNNING),
    TaskState.SUCCESS: Look(Glyph.DONE, "ok", Role.DONE),
    TaskState.RETRYING: Look(Glyph.RETRYING, "retry", Role.WAITING),
    TaskState.SENSING: Look(Glyph.SENSING, "sensing", Role.WAITING),
    TaskState.FAILED: Look(Glyph.FAILED, "failed", Role.FAILED),
    TaskState.DEAD_LETTER: Look(Glyph.DEAD, "DEAD", Role.HUMAN),
    TaskState.UPSTREAM_FAILED: Look(Glyph.UPSTREAM, "upstream", Role.FAILED),
    TaskState.SKIPPED: Look(Glyph.SKIPPED, "skipped", Role.SKIPPED),
    TaskState.CANCELLED: Look(Glyph.CANCELLED, "stopped", Role.SKIPPED),
}

#: The worst first: what counts, bars and strips show when there is room for one.
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

RUN_LOOKS: dict[RunState, Look] = {
    RunState.RUNNING: Look(Glyph.RUNNING, "running", Role.RUNNING),
    RunState.SUCCESS: Look(Glyph.DONE, "success", Role.DONE),
    RunState.FAILED: Look(Glyph.FAILED, "FAILED", Role.FAILED),
    RunState.PARTIAL: Look(Glyph.SKIPPED, "partial", Role.WAITING),
}

BLOCKED = Look(Glyph.DEAD, "BLOCKED", Role.HUMAN)
PAUSED = Look(Glyph.READY, "paused", Role.WAITING)


def sign(state: TaskState, glyphs: Glyphs) -> str:
    """The one-cell sign of a state."""
    return glyphs.of(LOOKS[state].glyph)
