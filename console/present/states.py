"""How each state looks: a sign, a word and a role. Colour comes last, so no two states share sign and word."""

from __future__ import annotations

from typing import NamedTuple

from ...engine.core.states import RunState, TaskState
from .glyphs import Glyphs
from .pieces import Role


class Look(NamedTuple):
    """``glyph`` is the name of a field of ``Glyphs``; ``word`` fits in eight cells."""

    glyph: str
    word: str
    role: Role


LOOKS: dict[TaskState, Look] = {
    TaskState.PENDING: Look("pending", "pending", Role.PENDING),
    TaskState.READY: Look("ready", "ready", Role.WAITING),
    TaskState.RUNNING: Look("running", "running", Role.RUNNING),
    TaskState.SUCCESS: Look("done", "ok", Role.DONE),
    TaskState.RETRYING: Look("retrying", "retry", Role.WAITING),
    TaskState.SENSING: Look("sensing", "sensing", Role.WAITING),
    TaskState.FAILED: Look("failed", "failed", Role.FAILED),
    TaskState.DEAD_LETTER: Look("dead", "DEAD", Role.HUMAN),
    TaskState.UPSTREAM_FAILED: Look("upstream", "upstream", Role.FAILED),
    TaskState.SKIPPED: Look("skipped", "skipped", Role.SKIPPED),
    TaskState.CANCELLED: Look("cancelled", "stopped", Role.SKIPPED),
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
    RunState.RUNNING: Look("running", "running", Role.RUNNING),
    RunState.SUCCESS: Look("done", "success", Role.DONE),
    RunState.FAILED: Look("failed", "FAILED", Role.FAILED),
    RunState.PARTIAL: Look("skipped", "partial", Role.WAITING),
}

BLOCKED = Look("dead", "BLOCKED", Role.HUMAN)
PAUSED = Look("ready", "paused", Role.WAITING)


def sign(state: TaskState, glyphs: Glyphs) -> str:
    """The one-cell sign of a state."""
    return str(getattr(glyphs, LOOKS[state].glyph))
