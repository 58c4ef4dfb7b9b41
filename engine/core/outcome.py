"""The end of an attempt and its failure: values that the runner reports and ``decide`` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from ..domain.states import DEADLINE_MODE
from ..domain.text import sha1_hex
from ..errors import PermanentError
from .advice import Progress


class OutcomeKind(StrEnum):
    """The kinds of ends of an attempt; the words in ``attempt.outcome``."""

    SUCCESS = "success"
    ERROR = "error"  # it raised, or its process ended by an exit code or by a signal that the engine did not send
    TIMED_OUT = "timed_out"
    LOST = "lost"  # its executor, its zygote or its host died; its progress is unknown
    CANCELLED = "cancelled"
    DEFERRED = "deferred"  # a sensor: not yet
    SKIPPED = "skipped"  # the task decided that its branch is not taken


class LostWith(StrEnum):
    """What ended with a lost attempt, while its executor lives."""

    PROCESS = "process"  # the process in which it ran; its zygote lives
    ZYGOTE = "zygote"  # the process that forks the attempts: the next attempt runs apart


class FailureClass(StrEnum):
    """Whether a retry can help."""

    TRANSIENT = "transient"  # the next attempt might work
    PERMANENT = "permanent"  # the next attempt will not work
    AMBIGUOUS = "ambiguous"  # unknown: a small budget, then permanent
    VALIDATION = "validation"  # the input is wrong
    AUTH = "auth"  # the credential is refused
    TIMEOUT = "timeout"  # killed by the engine at its deadline
    OUT_OF_MEMORY = "oom"
    UNCLASSIFIED = "unclassified"  # no rule names the exception: retried, and listed for the operator


#: Classes of failures that the downstream causes. The others come from the task, its input or its credential.
OUTAGE_CLASSES = frozenset([FailureClass.TRANSIENT, FailureClass.TIMEOUT, FailureClass.AMBIGUOUS])


#: Columns of the environment of an attempt, and their names in sentences. A failure that repeats in the same
#: environment will repeat again; in another environment it counts as the first.
ENVIRONMENT_FIELDS: Mapping[str, str] = {
    "code_hash": "code",
    "input_hash": "input",
    "params_hash": "parameters",
    "image_hash": "packages",
    "host": "host",
}


class FailureMode(StrEnum):
    """Transient, hang, slow and poisoned need different actions of the on-call; the rest is lost, late or other."""

    TRANSIENT = "transient"
    HANG = "hang"
    SLOW = "slow"  # its timeout is too short
    POISONED = "poisoned"
    LOST = "lost"
    DEADLINE = DEADLINE_MODE  # the deadline of the run ended it
    OTHER = "other"


class Fingerprint(msgspec.Struct, frozen=True):
    """The identity of a failure. ``strict``: same code at the same place; ``loose``: same cause across versions."""

    strict: str  # 12 hex digits
    loose: str
    v1: str = ""  # a hash of the type and the innermost frame alone
    explain: str = ""  # in words, for the console: "ZeroDivisionError settle.py:87 in settle"
    parts: tuple[str, ...] = ()  # what ``strict`` is the hash of
    fields: tuple[tuple[str, str], ...] = ()  # what ``loose`` is the hash of: (name, value), as ("status", "404")


#: The fact that only the text of a program's output decided the class: weak evidence, as texts quote and count.
BY_TEXT_FACT = "by_text"

NOT_STARTED = "start"  # the loose fingerprint of an attempt whose process could not be started


class Failure(msgspec.Struct, frozen=True):
    """The reason why an attempt did not succeed. Computed in the attempt's own process, which has the exception."""

    error_type: str  # module.qualname; "exit:3", "signal:11:unknown", "TimeoutError"
    message: str
    failure_class: FailureClass
    fingerprint: Fingerprint
    traceback: str = ""
    diagnostic: str | None = None
    retry_after_seconds: float | None = None
    facts: Mapping[str, object] = {}  # types, status, grpc, sqlstate, exit_code: for rules

    @property
    def is_by_text(self) -> bool:
        """Whether only the text of a program's output decided the class: no exit code, exception or protocol did."""
        return bool(self.facts.get(BY_TEXT_FACT))


#: The type of a failure to start the program of a command.
COMMAND_START_ERROR = "CommandStartError"


#: The type of a failure by ``memory=`` of the task.
MEMORY_LIMIT_ERROR = "MemoryLimit"
_EXCEEDED = "task exceeded "


def timeout_error(timeout_seconds: float, hang: str = "") -> str:
    """The error of an attempt that was killed at its timeout, with the sentence of its autopsy."""
    return f"{_EXCEEDED}{timeout_seconds:g}s" + (f": {hang}" if hang else "")


def hang_of(error: str) -> str:
    """The sentence of the autopsy in such an error; empty without one."""
    exceeded, _, hang = error.partition(": ")
    return hang if exceeded.startswith(_EXCEEDED) else ""


class KnownCauseError(PermanentError):
    """A permanent failure that the engine itself has found; no line of the user has raised it.

    ``cause``: what it is, for all tasks. ``error_type``: how the failure is named.
    """

    def __init__(self, cause: str, message: str, error_type: str = "PermanentError") -> None:
        super().__init__(message)
        self.cause = cause
        self.error_type = error_type

    def failure(self) -> Failure:
        """Return the failure, which is the same for all tasks of one cause."""
        digits = sha1_hex(self.cause.encode("utf-8", "backslashreplace"))[:12]
        fingerprint = Fingerprint(strict=digits, loose=digits, explain=self.cause)
        return Failure(self.error_type, str(self), FailureClass.PERMANENT, fingerprint)


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of one attempt, as the attempt itself reports it, or as its runner has seen it."""

    kind: OutcomeKind
    failure: Failure | None = None
    result: str | None = None  # JSON
    recheck_seconds: float | None = None  # DEFERRED
    defer_reason: str = ""  # DEFERRED: what the sensor said about its wait
    element_keys: Mapping[str, tuple[str, ...]] = {}  # map task -> the keys of its elements, as the flow has them
    skip_reason: str = ""  # SKIPPED: the reason that the task gave
    attempt_columns: Mapping[str, Any] = {}  # exit_code, signal, max_rss_kb, cpu_*, stack
    progress: Progress | None = None  # TIMED_OUT: what it had reported, if anything
    is_blameless: bool = False  # LOST, and the task is not known to have caused it: no counter of the task changes
    fence_seconds: float = 0.0  # CANCELLED by a stop: its process on another host may live so long
    lost_with: LostWith | None = None  # LOST, and it is known what ended


# --- Results that cannot be stored -----------------------------------------------------------------------------------
#
# The row of the task stores a marker with the reason in place of the result.
#
# The task is a success, because few functions return a value for their children. A child that needs the result fails
# with a sentence instead of working on with null.


RESULT_BYTES_MAX = 16 * 1024 * 1024  # of JSON; ``statefile/large_results.py`` keeps the large ones apart
_MARKER = "redrive:not-stored"
_MARKER_START = f'{{"{_MARKER}"'
_REASON_START = "its result was not stored: "
FILE_ADVICE = "; return the name of a file or table"  # the end of the reason of a result that is too large


def unstored_result(why: str) -> str:
    """Return the marker, as JSON. ``why``: ``result[3] is a Frame``."""
    return json.dumps({_MARKER: why})


def too_large_sentence(size: int) -> str:
    """Say that a result is over the limit. ``size``: bytes of JSON."""
    return f"over {RESULT_BYTES_MAX >> 20} MiB of JSON ({size} bytes){FILE_ADVICE}"


def reason_of_unstored(result: str | None) -> str | None:
    """Return why a result was not stored; None for a stored result."""
    if result is None or not result.startswith(_MARKER_START):
        return None
    return str(json.loads(result)[_MARKER])


def unstored_reason(why: str) -> str:
    """Return the reason that a child gets in place of the result."""
    return f"{_REASON_START}{why}"


def is_unstored_reason(why: str) -> bool:
    """True if a result is missing because it could not be stored, not because its task did not succeed."""
    return why.startswith(_REASON_START)
