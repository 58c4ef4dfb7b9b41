"""Maps the evidence of an attempt's end to its outcome: pure functions, so that each way to end is a row of a test.

A final frame that came in time decides, even if the process failed afterwards; without one the exit status decides.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from signal import SIGKILL, SIGTERM

import msgspec
from msgspec.structs import replace

from ..core.advice import Progress
from ..core.failures.failure import describe_exit, describe_memory_limit, describe_signal, describe_timeout
from ..core.outcome import NOT_STARTED, Failure, FailureClass, Fingerprint, Outcome, OutcomeKind

DIED_WITHOUT_RESULT = "child died without sending result"
KILLED_FROM_OUTSIDE = "killed from outside (SIGKILL)"


class KillReason(Enum):
    """Why redrive ended the attempt."""

    NONE = "none"
    DEADLINE = "deadline"
    CANCEL = "cancel"
    MEMORY = "memory"


class Evidence(msgspec.Struct, frozen=True):
    """The facts about the end of one attempt.

    ``ending``: the final frame, if it came before ``force``; ``force``: set once a signal was sent or a token set.
    """

    ending: Outcome | None = None
    force: KillReason = KillReason.NONE
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


def outcome_of(evidence: Evidence) -> Outcome:
    """Return the outcome of an attempt whose process was reaped, or whose thread ended."""
    return replace(_outcome_of(evidence), attempt_columns=evidence.usage)


def _outcome_of(evidence: Evidence) -> Outcome:
    if evidence.ending is not None and evidence.ending.kind is OutcomeKind.CANCELLED:  # by a SIGTERM of others
        return Outcome(OutcomeKind.ERROR, _killed(evidence, SIGTERM))
    if evidence.ending is not None:
        return evidence.ending
    if evidence.force is KillReason.DEADLINE:
        return Outcome(OutcomeKind.TIMED_OUT, _timeout(evidence), progress=evidence.progress)
    if evidence.force is KillReason.MEMORY:
        return Outcome(OutcomeKind.ERROR, _over_limit(evidence))
    if evidence.force is KillReason.CANCEL:
        return Outcome(OutcomeKind.CANCELLED)
    if evidence.command is not None and evidence.exit_code == 0 and not evidence.result_error:
        return Outcome(OutcomeKind.SUCCESS, result=evidence.result)
    if evidence.signal == SIGKILL and not evidence.out_of_memory:
        return lost(KILLED_FROM_OUTSIDE, is_with_process=True)
    return Outcome(OutcomeKind.ERROR, _death(evidence))


def was_killed(exit_code: int | None, signal: int | None, output: str) -> bool:
    """Return whether a SIGKILL ended the attempt, or a program of it as its shell reports."""
    return signal == SIGKILL or exit_code == 128 + SIGKILL or (bool(exit_code) and _SHELL_SAYS_KILLED in output)


_SHELL_SAYS_KILLED = "Killed"


def lost(
    why: str,
    usage: Mapping[str, object] | None = None,
    *,
    is_blameless: bool = False,
    is_with_zygote: bool = False,
    is_with_process: bool = False,
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
        is_with_zygote=is_with_zygote,
        is_with_process=is_with_process,
    )


def not_started(error: OSError) -> Outcome:
    """Return a transient error: no process, memory or descriptor was available."""
    name = type(error).__name__
    fingerprint = Fingerprint(strict=f"start:{error.errno}", loose=NOT_STARTED, explain=f"{name} before it started")
    message = f"its process could not be started: {error}"
    return Outcome(OutcomeKind.ERROR, Failure(name, message, FailureClass.TRANSIENT, fingerprint))


def refused(why: str) -> Outcome:
    """Return a permanent error: the flow as installed there cannot be run."""
    fingerprint = Fingerprint(strict="refused", loose="refused", explain=why)
    return Outcome(OutcomeKind.ERROR, Failure("FlowError", why, FailureClass.PERMANENT, fingerprint))


def _timeout(evidence: Evidence) -> Failure:
    return describe_timeout(
        evidence.timeout or 0, evidence.stack, evidence.project_root, evidence.hang, evidence.command, evidence.progress
    )


def _over_limit(evidence: Evidence) -> Failure:
    return describe_memory_limit(
        evidence.memory_used, evidence.memory_limit, evidence.stack, evidence.project_root, evidence.command
    )


def _death(evidence: Evidence) -> Failure:
    if evidence.out_of_memory:
        return _killed(evidence, SIGKILL)
    if evidence.signal is not None:
        return _killed(evidence, evidence.signal)
    if evidence.command is not None and evidence.exit_code == 0:
        return _bad_result(evidence.result_error)
    code = evidence.exit_code if evidence.exit_code is not None else 1
    failure = describe_exit(code, stderr=evidence.output_tail, rules=evidence.rules, command=evidence.command)
    if evidence.command is not None:
        problem = evidence.start_problem
        return replace(failure, message=f"{failure.message} ({problem})") if problem else failure
    return replace(failure, message=f"{DIED_WITHOUT_RESULT} (exit code {code})")


def _bad_result(why: str) -> Failure:
    fingerprint = Fingerprint(strict="result", loose="result", explain="a result that cannot be used")
    return Failure("ResultError", why, FailureClass.PERMANENT, fingerprint)


def _killed(evidence: Evidence, number: int) -> Failure:
    return describe_signal(
        number,
        "oom" if evidence.out_of_memory else "unknown",
        stack_text=evidence.stack,
        project_root=evidence.project_root,
        rules=evidence.rules,
        diagnostic=_memory(evidence) if evidence.out_of_memory else "",
        command=evidence.command,
    )


def _memory(evidence: Evidence) -> str:
    max_rss_kb = evidence.usage.get("max_rss_kb")
    held = f"it held at most {(max_rss_kb if isinstance(max_rss_kb, int) else 0) / 1024:.0f} MiB"
    return f"{held} of the {evidence.memory_bound}" if evidence.memory_bound else held


# --- Detects whether a SIGKILL that redrive did not send came from the kernel's out-of-memory killer -----------------
#
# The kernel counts such kills per cgroup. If the own cgroup has no count, that of the whole machine is used; it also
# counts kills of unrelated processes at the same time.


MARK_SECONDS = 1.0  # a younger mark is reused for the next attempt: reading the counter is slow
NEAR_LIMIT = 0.95
UNLIMITED_BYTES = 1 << 60  # cgroup version 1 reports a larger number where there is no limit

_LIMITS = ("memory.max", "memory.limit_in_bytes")  # cgroups of version 2 and 1
_COUNTS = ("memory.events", "memory.oom_control")


class OutOfMemoryWatch:
    """Compares the kernel's count of out-of-memory kills before and after an attempt.

    ``bound``: how much memory there is, in words. ``root``: the folder of /proc and /sys.
    """

    def __init__(self, root: str = "/") -> None:
        groups = list(_groups(Path(root)))
        self._counts = [group / name for group in groups[:1] for name in _COUNTS] + [Path(root, "proc/vmstat")]
        self._limit_kb = min((kb for group in groups if (kb := _limit_kb(group)) is not None), default=None)
        self.bound = _bound(self._limit_kb)
        self._mark = self._kills()
        self._marked_at = time.monotonic()

    def mark(self) -> int:
        """Return the count, at most ``MARK_SECONDS`` old."""
        now = time.monotonic()
        if now - self._marked_at > MARK_SECONDS:
            self._mark, self._marked_at = self._kills(), now
        return self._mark

    def explains(self, mark: int, max_rss_kb: int) -> bool:
        """Return whether the kernel killed since ``mark``, or the process came close to the limit of the cgroup."""
        if self._kills() > mark:
            return True
        return self._limit_kb is not None and max_rss_kb >= NEAR_LIMIT * self._limit_kb

    def _kills(self) -> int:
        """Return the first count that is available."""
        found = (count for path in self._counts if (count := count_kills(path)) is not None)
        return next(found, 0)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroup and its parents that limit memory, innermost first."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        ours = mount / path.lstrip("/")
        for folder in (ours, *ours.parents):
            if any((folder / name).exists() for name in _LIMITS):
                yield folder
            if folder == mount:  # in a container it may be the only one that is visible
                break


def _limit_kb(group: Path) -> int | None:
    for name in _LIMITS:
        text = read_text(group / name).strip()
        if text.isdigit() and int(text) < UNLIMITED_BYTES:
            return int(text) // 1024
    return None


def _bound(limit_kb: int | None) -> str:
    if limit_kb is not None:
        return f"{limit_kb / 1024:.0f} MiB that its cgroup may hold"
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{machine_bytes / 1024**2:.0f} MiB that this machine has"


def count_kills(path: Path) -> int | None:
    """Return the kernel's count of out-of-memory kills in a file of a cgroup; None: it has none."""
    words = (line.split() for line in read_text(path).splitlines())
    return next((int(line[1]) for line in words if line[:1] == ["oom_kill"] and len(line) == 2), None)


def read_text(path: Path) -> str:
    """Return what the kernel says in a file; empty if it says nothing."""
    try:
        return path.read_text()
    except OSError:
        return ""
