"""Maps what is known of the end of an attempt to its outcome, by pure functions: each way to end is a row of a test.

A final frame that came in time decides, even if the process failed afterwards; without one the exit status decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from signal import SIGKILL, SIGTERM

import msgspec
from msgspec.structs import replace

from ...domain.text import format_bytes
from ..advice import Progress
from ..outcome import (
    MEMORY_LIMIT_ERROR,
    NOT_STARTED,
    Failure,
    FailureClass,
    Fingerprint,
    LostWith,
    Outcome,
    OutcomeKind,
    timeout_error,
)
from .classify import by_rules, classify_signal, parse_rules
from .facts import Classification, ErrorFacts
from .failure import PROGRESS_FACT, failure_of_end, failure_of_exit
from .fingerprint import fingerprint_of_signal, fingerprint_of_stack, innermost_of_stack

DIED_WITHOUT_RESULT = "child died without sending result"
KILLED_FROM_OUTSIDE = "killed from outside (SIGKILL)"


class KillReason(Enum):
    """Why redrive ended the attempt."""

    NONE = "none"
    DEADLINE = "deadline"
    CANCEL = "cancel"
    MEMORY = "memory"


class AttemptEnd(msgspec.Struct, frozen=True):
    """The facts about the end of one attempt.

    ``reported``: the outcome in the final frame, if that came before redrive began to end the attempt.
    """

    reported: Outcome | None = None
    kill_reason: KillReason = KillReason.NONE
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    memory_bound: str = ""  # how much memory there was, in words
    memory_used: int = 0  # bytes, the most that was seen
    memory_limit: int = 0  # bytes, of the task
    command: str | None = None  # the shell line of a command task
    start_problem: str = ""  # why its program could not be started, if it could not
    result: str | None = None  # of a command
    result_error: str = ""  # why the result of a command cannot be used
    timeout: float | None = None  # seconds that were allowed when the deadline passed
    stack: str = ""
    hang: str = ""  # one sentence: what the attempt was doing when it was ended
    progress: Progress | None = None  # at its deadline
    output_tail: str = ""
    project_root: str | None = None
    rules: tuple[Mapping[str, object], ...] = ()
    usage: Mapping[str, object] = {}


def outcome_of(end: AttemptEnd) -> Outcome:
    """Return the outcome of an attempt whose process was reaped, or whose thread ended."""
    return replace(_outcome_of(end), attempt_columns=end.usage)


def _outcome_of(end: AttemptEnd) -> Outcome:
    if end.reported is not None and end.reported.kind is OutcomeKind.CANCELLED:  # by a SIGTERM of others
        return Outcome(OutcomeKind.ERROR, signal_failure(end, SIGTERM))
    if end.reported is not None:
        return end.reported
    if end.kill_reason is KillReason.DEADLINE:
        return Outcome(OutcomeKind.TIMED_OUT, timeout_failure(end), progress=end.progress)
    if end.kill_reason is KillReason.MEMORY:
        return Outcome(OutcomeKind.ERROR, memory_limit_failure(end))
    if end.kill_reason is KillReason.CANCEL:
        return Outcome(OutcomeKind.CANCELLED)
    if end.command is not None and end.exit_code == 0 and not end.result_error:
        return Outcome(OutcomeKind.SUCCESS, result=end.result)
    if end.signal == SIGKILL and not end.out_of_memory:
        return lost_outcome(KILLED_FROM_OUTSIDE, lost_with=LostWith.PROCESS)
    return Outcome(OutcomeKind.ERROR, _exit_failure(end))


def was_killed(exit_code: int | None, signal: int | None, output: str) -> bool:
    """Return whether a SIGKILL ended the attempt, or a program of it as its shell reports."""
    return signal == SIGKILL or exit_code == 128 + SIGKILL or (bool(exit_code) and _SHELL_SAYS_KILLED in output)


_SHELL_SAYS_KILLED = "Killed"


def lost_outcome(
    why: str,
    usage: Mapping[str, object] | None = None,
    *,
    is_blameless: bool = False,
    lost_with: LostWith | None = None,
) -> Outcome:
    """Return LOST: the process of the attempt or its parent is gone, and its progress is unknown.

    ``is_blameless``: something other than this task may have ended the process.
    """
    fingerprint = Fingerprint(strict="", loose="lost", explain=why)
    failure = Failure("lost", why, FailureClass.UNCLASSIFIED, fingerprint)
    return Outcome(
        OutcomeKind.LOST,
        failure,
        attempt_columns=usage or {},
        is_blameless=is_blameless,
        lost_with=lost_with,
    )


def not_started_outcome(error: OSError) -> Outcome:
    """Return a transient error: no process, memory or descriptor was available."""
    name = type(error).__name__
    fingerprint = Fingerprint(strict=f"start:{error.errno}", loose=NOT_STARTED, explain=f"{name} before it started")
    message = f"its process could not be started: {error}"
    return Outcome(OutcomeKind.ERROR, Failure(name, message, FailureClass.TRANSIENT, fingerprint))


def refused_outcome(why: str) -> Outcome:
    """Return a permanent error: the flow as installed there cannot be run."""
    fingerprint = Fingerprint(strict="refused", loose="refused", explain=why)
    return Outcome(OutcomeKind.ERROR, Failure("FlowError", why, FailureClass.PERMANENT, fingerprint))


def timeout_failure(end: AttemptEnd) -> Failure:
    """Describe an attempt that was killed at its timeout."""
    hang, progress, frame = end.hang, end.progress, innermost_of_stack(end.stack)
    return failure_of_end(
        "TimeoutError",  # SPEC 000 names it so
        timeout_error(end.timeout or 0, hang),
        Classification(FailureClass.TIMEOUT),
        fingerprint_of_stack(end.stack, end.project_root, end.command, hang),
        str(progress or "") or (f"it was at {frame}" if frame is not None and not hang else ""),
        {} if progress is None else {PROGRESS_FACT: progress.done},
    )


def memory_limit_failure(end: AttemptEnd) -> Failure:
    """Describe an attempt that was ended because it held more bytes than its task allows."""
    return failure_of_end(
        MEMORY_LIMIT_ERROR,
        f"used {format_bytes(end.memory_used)} of {format_bytes(end.memory_limit)} allowed",
        Classification(FailureClass.OUT_OF_MEMORY),
        fingerprint_of_signal(SIGKILL, "limit", end.stack, end.project_root, end.command),
    )


def _exit_failure(end: AttemptEnd) -> Failure:
    if end.out_of_memory:
        return signal_failure(end, SIGKILL)
    if end.signal is not None:
        return signal_failure(end, end.signal)
    if end.command is not None and end.exit_code == 0:
        return _result_failure(end.result_error)
    code = end.exit_code if end.exit_code is not None else 1
    failure = failure_of_exit(code, stderr=end.output_tail, rules=end.rules, command=end.command)
    if end.command is not None:
        problem = end.start_problem
        return replace(failure, message=f"{failure.message} ({problem})") if problem else failure
    return replace(failure, message=f"{DIED_WITHOUT_RESULT} (exit code {code})")


def _result_failure(why: str) -> Failure:
    fingerprint = Fingerprint(strict="result", loose="result", explain="a result that cannot be used")
    return Failure("ResultError", why, FailureClass.PERMANENT, fingerprint)


def signal_failure(end: AttemptEnd, number: int) -> Failure:
    """Describe a process that was killed by a signal that redrive did not send."""
    sender = "oom" if end.out_of_memory else "unknown"
    fingerprint = fingerprint_of_signal(number, sender, end.stack, end.project_root, end.command)
    found = Classification(FailureClass.OUT_OF_MEMORY if end.out_of_memory else classify_signal(number))
    verdict = by_rules(parse_rules(end.rules), ErrorFacts(), "", number) or found
    kind, diagnostic = f"signal:{number}:{sender}", _memory_text(end) if end.out_of_memory else ""
    return failure_of_end(kind, fingerprint.explain, verdict, fingerprint, diagnostic, {"signal": number})


def _memory_text(end: AttemptEnd) -> str:
    max_rss_kb = end.usage.get("max_rss_kb")
    held = f"it held at most {(max_rss_kb if isinstance(max_rss_kb, int) else 0) / 1024:.0f} MiB"
    return f"{held} of the {end.memory_bound}" if end.memory_bound else held
