"""What came of an attempt: values that the runner reports and ``decide`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class OutcomeKind(StrEnum):
    """How an attempt ended; the words in ``attempt.outcome``."""

    SUCCESS = "success"
    ERROR = "error"  # it raised, or its process exited with a code or by a signal that nobody of us sent
    TIMED_OUT = "timed_out"
    LOST = "lost"  # its executor, its zygote or its host died: nobody knows how far it came
    CANCELLED = "cancelled"
    DEFERRED = "deferred"  # a sensor: not yet
    SKIPPED = "skipped"  # the task decided that its branch is not taken


class FailureClass(StrEnum):
    """What a retry would be worth. Order and meaning: document 004."""

    TRANSIENT = "transient"  # the next attempt might work
    PERMANENT = "permanent"  # it will not
    AMBIGUOUS = "ambiguous"  # nobody can say: a small budget, then permanent
    VALIDATION = "validation"  # the input is wrong
    AUTH = "auth"  # the credential is refused
    TIMEOUT = "timeout"  # killed by us at its deadline
    OUT_OF_MEMORY = "oom"
    UNCLASSIFIED = "unclassified"  # an exception that no rule names: retried, and listed for the operator


class FailureMode(StrEnum):
    """The three that the on-call must tell apart (document 000), and what is none of them."""

    TRANSIENT = "transient"
    HANG = "hang"
    POISONED = "poisoned"
    LOST = "lost"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Which failure this is. ``strict``: same code at the same place; ``loose``: the same cause across versions."""

    strict: str  # 12 hex digits
    loose: str
    v1: str = ""  # as document 000 has it
    explain: str = ""  # in words, for the console: "ZeroDivisionError settle.py:87 in settle"
    parts: tuple[str, ...] = ()


NOT_STARTED = "start"  # the loose fingerprint of what certainly did nothing: no process could be made for it


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt did not succeed, as data: computed inside the attempt, where the exception still is one."""

    error_type: str  # module.qualname; "exit:3", "signal:11:unknown", "timeout"
    message: str
    failure_class: FailureClass
    fingerprint: Fingerprint
    traceback: str = ""
    diagnostic: str | None = None
    retry_after_seconds: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # what rules ask: types, status, grpc, sqlstate, exit_code


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt."""

    kind: OutcomeKind
    failure: Failure | None = None
    result: str | None = None  # JSON
    recheck_seconds: float | None = None  # DEFERRED
    skip_reason: str = ""  # SKIPPED: why, in the task's own words
    attempt_columns: Mapping[str, Any] = field(
        default_factory=dict
    )  # attempt columns: exit_code, signal, max_rss_kb, cpu_*, stack; needs_seconds: at the pace of its own progress
    is_blameless: bool = False  # LOST, and by somebody else's doing: costs the task nothing
