"""What happens next to a task or a run, who does it, and when: the rule behind every text about the future.

A countdown, an ETA or "starts next" is a promise, and only a living executor can fulfil it. ``outlook_of`` decides
whether there is one; headers, rows, sentences, bars and answers read its result and promise nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .waits import WAITS, EndedBy, WaitReason


class RunnerKind(StrEnum):
    """What became of the process that should run the tasks of a run."""

    ALIVE = "alive"
    SERVED = "served"  # no executor, but ``redrive serve`` starts one as soon as a task can run
    STOPPED = "stopped"  # the executor ended in order
    DEAD = "dead"  # the executor ended without cleaning up
    BUSY = "busy"  # the executor of the state file runs another run
    UNKNOWN = "unknown"  # no executor, and nothing is known of an earlier one


@dataclass(frozen=True, slots=True)
class RunnerStatus:
    """Who runs the tasks of a run.

    Attributes:
        gone_at: when the last executor ended, microseconds UTC; None while one is alive, or if unknown.
        pid: of the executor, alive or not; of ``redrive serve`` if SERVED.
        remedy: how to start an executor, as the end of a sentence.
    """

    kind: RunnerKind = RunnerKind.ALIVE
    gone_at: int | None = None
    pid: int | None = None
    remedy: str = "redrive resume starts an executor"

    @property
    def is_alive(self) -> bool:
        """Whether an executor lives and runs this run: only then may a text promise anything."""
        return self.kind is RunnerKind.ALIVE

    @property
    def absence(self) -> str:
        """Why nothing happens by itself, and what changes that; empty while an executor runs the run."""
        match self.kind:
            case RunnerKind.ALIVE:
                return ""
            case RunnerKind.SERVED:
                return f"redrive serve (pid {self.pid}) starts an executor for it"
            case RunnerKind.BUSY:
                return f"no executor runs it: executor {self.pid} runs another run"
            case _:
                return f"no executor runs it: {self.remedy}"


ALIVE = RunnerStatus()


class Actor(StrEnum):
    """Who takes the next step."""

    EXECUTOR = "executor"
    SERVICE = "redrive serve"
    OPERATOR = "operator"
    NOBODY = "nobody"


class Outlook(NamedTuple):
    """The next step of a task. ``due_at``: its instant (microseconds UTC), only if an executor lives to keep it."""

    actor: Actor | None  # None: the task has ended, and no step follows
    due_at: int | None = None

    @property
    def is_promised(self) -> bool:
        """Whether a text may speak of the step as of something that will happen."""
        return self.actor is Actor.EXECUTOR


def outlook_of(reason: WaitReason | None, due_at: int | None, runner: RunnerStatus) -> Outlook:
    """Who ends the wait of a task, and when. ``reason``: None for a task that has ended."""
    if reason is None:
        return Outlook(None)
    if WAITS[reason].ended_by is EndedBy.HUMAN:
        return Outlook(Actor.OPERATOR)
    if runner.is_alive:
        return Outlook(Actor.EXECUTOR, due_at)
    return Outlook(Actor.SERVICE if runner.kind is RunnerKind.SERVED else Actor.NOBODY)
