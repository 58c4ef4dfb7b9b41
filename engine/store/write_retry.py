"""Three independent layers between a write and the disk, each catching what the one below did not (document 002).

- A: SQLite's own busy handler (``open_writing.BUSY_SECONDS``), invisible to the caller.
- B: ``exec_query``: one statement or transaction again, when the file was locked for longer than that.
- C: ``writer.Writer``: the flush of a batch again, for whatever may pass: full disk, input/output error, locked file.

Together they could multiply (5 x 3 x 4 tries), so each layer also counts the time since its own first try and stops at
its own bound.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import RedriveError, StorageError
from .database import primary_code

T = TypeVar("T")

#: Somebody else holds the file for a moment.
CONTENTION = frozenset([sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED])

#: The storage refuses now and may accept later; says nothing about what was to be written.
STORAGE_TROUBLE = CONTENTION | {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
}

#: The file itself is damaged: no number of tries helps.
DAMAGE = frozenset([sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB])


def is_storage_trouble(error: BaseException) -> bool:
    """True where the disk or the file is at fault and another try may succeed."""
    return isinstance(error, StorageError) or primary_code(error) in STORAGE_TROUBLE


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Layer B: two more tries, 50 and 100 ms apart, none begun later than ``elapsed_seconds`` after the first."""

    delays_seconds: tuple[float, ...] = (0.05, 0.1)
    elapsed_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """Layer C. After ``retries`` more tries, or ``elapsed_seconds``, the storage counts as degraded.

    A degraded writer holds its batch and goes on trying every ``cap_seconds``: tasks do not fail because a disk did.
    """

    retries: int = 3
    backoff_seconds: float = 0.1
    cap_seconds: float = 5.0
    elapsed_seconds: float = 30.0
    batch: int = 2000  # bounds memory and the time that the file is locked; smaller batches only cost (measured)
    query: QueryLimits = field(default_factory=QueryLimits)

    def delays(self, uniform: Callable[[float, float], float]) -> Iterator[float]:
        """The waits before each further try in seconds, without end: doubling, plus up to half of itself."""
        delay = self.backoff_seconds
        while True:
            yield delay + uniform(0.0, delay * 0.5)
            delay = min(delay * 2, self.cap_seconds)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> FlushLimits:
        """Read the knobs of document 002: REDRIVE_SIGNAL_SEND_RETRIES, ..., or under their first names, DIGITALKIN_...

        Its flush interval has no counterpart: waiting for company only ever added latency. Raises RedriveError.
        """
        default = cls()
        milliseconds = _knob(environment, "SIGNAL_SEND_BACKOFF_MS", default.backoff_seconds * 1000)
        return cls(
            retries=int(_knob(environment, "SIGNAL_SEND_RETRIES", default.retries)),
            backoff_seconds=milliseconds / 1000,
            elapsed_seconds=_knob(environment, "GRPC_TIMEOUT", default.elapsed_seconds),
            batch=max(1, int(_knob(environment, "SIGNAL_MAX_BATCH_SIZE", default.batch))),
        )


def _knob(environment: Mapping[str, str], name: str, default: float) -> float:
    for prefix in ("REDRIVE_", "DIGITALKIN_"):
        text = environment.get(prefix + name)
        if text:
            try:
                value = float(text)
            except ValueError:
                value = -1.0
            if not 0 <= value < float("inf"):
                raise RedriveError(f"{prefix}{name} is a number from 0 up, not {text!r}")
            return value
    return default


def exec_query(
    work: Callable[[], T],
    limits: QueryLimits = QueryLimits(),
    *,
    pause: Callable[[float], object] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> T:
    """Layer B: run ``work`` again while the file is locked by somebody else.

    ``work`` is one statement or one whole transaction, and has rolled back whatever it began when it raises.
    Raises the last error once the tries or the time are spent; anything but a lock at once.
    """
    started = monotonic()
    for delay in limits.delays_seconds:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if primary_code(error) not in CONTENTION or monotonic() - started + delay > limits.elapsed_seconds:
                raise
        pause(delay)
    return work()
