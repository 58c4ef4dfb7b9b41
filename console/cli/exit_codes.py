"""Exit codes of all commands, by error and by the end of a run."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from ...engine.errors import (
    ExecutorBusyError,
    FlowError,
    NotFoundError,
    RedriveError,
    RefusedError,
    StartInterrupted,
    StateFileError,
)

if TYPE_CHECKING:
    from ...engine.domain.command import Answer
    from ...engine.domain.states import RunState


class ExitCode(IntEnum):
    """The exit codes of ``redrive``."""

    SUCCESS = 0
    FAILED = 1
    BAD_USAGE = 2  # also a flow or a state file that cannot be used
    PARTIAL_OR_BLOCKED = 3
    BUSY = 75  # another executor owns the state file; EX_TEMPFAIL: try again later
    INTERRUPTED = 130


#: The first class that an error is an instance of decides.
EXIT_CODES: tuple[tuple[type[RedriveError], ExitCode], ...] = (
    (ExecutorBusyError, ExitCode.BUSY),
    (StartInterrupted, ExitCode.INTERRUPTED),
    (FlowError, ExitCode.BAD_USAGE),
    (StateFileError, ExitCode.BAD_USAGE),
    (NotFoundError, ExitCode.BAD_USAGE),
    (RefusedError, ExitCode.FAILED),
    (RedriveError, ExitCode.BAD_USAGE),
)

_OF_ENDED_RUN = {
    "SUCCESS": ExitCode.SUCCESS,
    "FAILED": ExitCode.FAILED,
    "PARTIAL": ExitCode.PARTIAL_OR_BLOCKED,
    "ABANDONED": ExitCode.FAILED,
}


def code_of_error(error: RedriveError) -> ExitCode:
    """The exit code of a command that ended with ``error``."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


def code_of_answers(*answers: Answer) -> ExitCode:
    """The exit code of acts: 1 if one changed nothing, 3 if one was refused for some of its targets."""
    from ...engine.domain.command import REFUSED

    if not all(answer.ok for answer in answers):
        return ExitCode.FAILED
    refused = any(result.outcome == REFUSED for answer in answers for result in answer.results)
    return ExitCode.PARTIAL_OR_BLOCKED if refused else ExitCode.SUCCESS


def code_of_run(state: RunState, *, interrupted: bool, blocked: bool) -> ExitCode:
    """The exit code of ``run``, ``resume`` and ``demo``. A run that goes on in another process counts as SUCCESS."""
    if interrupted:
        return ExitCode.INTERRUPTED
    if blocked:
        return ExitCode.PARTIAL_OR_BLOCKED
    return _OF_ENDED_RUN.get(state, ExitCode.SUCCESS)
