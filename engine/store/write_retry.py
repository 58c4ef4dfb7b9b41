"""Three layers of retries for writes, each for the errors that the layer below has not handled.

- A: SQLite's own busy handler (``open_writing.BUSY_SECONDS``), invisible to the caller.
- B: ``run_with_retry`` repeats a statement or transaction if the file was locked for longer.
- C: ``writer.Writer``: repeats the flush of a batch after transient errors: full disk, input/output error, locked file.

The tries multiply (5 x 3 x 4), so each layer also limits the time since its own first try.
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

#: Another process holds a lock.
LOCKED_CODES = frozenset([sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED])

#: The storage refuses every write now and may accept it later.
TRANSIENT_CODES = LOCKED_CODES | {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
}

#: The file is damaged: retries do not help.
CORRUPTION_CODES = frozenset([sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB])


def is_transient(error: BaseException) -> bool:
    """True if a storage error may pass, so that a retry may succeed."""
    return isinstance(error, StorageError) or primary_code(error) in TRANSIENT_CODES


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Layer B: two retries after 50 and 100 ms, none later than ``elapsed_seconds`` after the first try."""

    delays_seconds: tuple[float, ...] = (0.05, 0.1)
    elapsed_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """Layer C. After ``retries`` retries, or ``elapsed_seconds``, the storage counts as degraded.

    A degraded writer keeps its batch and retries every ``cap_seconds``, so that tasks do not fail with the disk.
    """

    retries: int = 3
    backoff_seconds: float = 0.1
    cap_seconds: float = 5.0
    elapsed_seconds: float = 30.0
    batch: int = 2000  # limits memory and lock time; smaller batches were slower (measured)
    query: QueryLimits = field(default_factory=QueryLimits)

    def delays(self, uniform: Callable[[float, float], float]) -> Iterator[float]:
        """Yield the delays before retries in seconds, without end: doubling, plus up to 50 % jitter."""
        delay = self.backoff_seconds
        while True:
            yield delay + uniform(0.0, delay * 0.5)
            delay = min(delay * 2, self.cap_seconds)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> FlushLimits:
        """Read REDRIVE_SIGNAL_SEND_RETRIES and the other settings, or their names with DIGITALKIN_.

        The flush interval is not supported, because waiting for more items only added latency. Raises RedriveError.
        """
        default = cls()
        milliseconds = _read_setting(environment, "SIGNAL_SEND_BACKOFF_MS", default.backoff_seconds * 1000)
        return cls(
            retries=int(_read_setting(environment, "SIGNAL_SEND_RETRIES", default.retries)),
            backoff_seconds=milliseconds / 1000,
            elapsed_seconds=_read_setting(environment, "GRPC_TIMEOUT", default.elapsed_seconds),
            batch=max(1, int(_read_setting(environment, "SIGNAL_MAX_BATCH_SIZE", default.batch))),
        )


def _read_setting(environment: Mapping[str, str], name: str, default: float) -> float:
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


def run_with_retry(
    work: Callable[[], T],
    limits: QueryLimits = QueryLimits(),
    *,
    pause: Callable[[float], object] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> T:
    """Layer B: repeat ``work`` while the file is locked by another process.

    ``work`` is one statement or one whole transaction, and rolls back before it raises. Raises the last error once the
    tries or the time are spent, and other errors at once.
    """
    started = monotonic()
    for delay in limits.delays_seconds:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if primary_code(error) not in LOCKED_CODES or monotonic() - started + delay > limits.elapsed_seconds:
                raise
        pause(delay)
    return work()
