"""The output of attempts, in chunks. Of output above the limit, the head and the tail are kept.

The first lines say what a task started and the last ones how it ended; the bytes between them are dropped, and counted
in ``attempt.output_dropped_bytes``.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import sqlite3
from typing import List, NamedTuple

from .transitions import Transaction

HEAD_BYTES = 256 * 1024
TAIL_BYTES = 256 * 1024
CHUNK_BYTES = 32 * 1024  # the tail advances by whole chunks


class LogPiece(NamedTuple):
    """A piece of output. ``tail``: dropped bytes, if any, lie before the first chunk of the tail."""

    id: int
    at: int  # microseconds UTC
    text: str
    tail: bool


class AttemptTextRow(NamedTuple):
    """The long texts of one attempt."""

    traceback: str
    stack: str
    diagnostic: str
    fingerprint_detail: str  # JSON


def append(transaction: Transaction, run_id: str, name: str, attempt: int, text: str) -> None:
    """Append to the output of an attempt, within its limit. Emits no event."""
    data = text.encode("utf-8", "replace")
    row = transaction.connection.execute(
        "SELECT output_bytes, output_dropped_bytes FROM attempt WHERE run_id = ? AND name = ? AND attempt = ?",
        (run_id, name, attempt),
    ).fetchone()
    if row is None or not data:
        return
    seen, dropped = row
    cut = _boundary(data, max(0, HEAD_BYTES - seen))
    rest = _last(data[cut:], TAIL_BYTES)
    dropped += len(data) - cut - len(rest)
    _insert(transaction, run_id, name, attempt, data[:cut], 0)
    _insert(transaction, run_id, name, attempt, rest, 1)
    if seen + len(data) > HEAD_BYTES + TAIL_BYTES:
        dropped += _shorten_tail(transaction.connection, run_id, name, attempt)
    transaction.connection.execute(
        "UPDATE attempt SET output_bytes = ?, output_dropped_bytes = ? WHERE run_id = ? AND name = ? AND attempt = ?",
        (seen + len(data), dropped, run_id, name, attempt),
    )


def count_dropped(transaction: Transaction, run_id: str, name: str, attempt: int, size: int) -> None:
    """Count output bytes that were dropped before they reached the state file."""
    transaction.connection.execute(
        "UPDATE attempt SET output_bytes = output_bytes + ?, output_dropped_bytes = output_dropped_bytes + ?"
        " WHERE run_id = ? AND name = ? AND attempt = ?",
        (size, size, run_id, name, attempt),
    )


def _boundary(data: bytes, at: int) -> int:
    """The last position at or before ``at`` that splits no character."""
    if at >= len(data):
        return len(data)
    while at > 0 and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _last(data: bytes, size: int) -> bytes:
    """The end of ``data``, at most ``size`` bytes, that begins with a whole character."""
    start = max(0, len(data) - size)
    while start and start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _insert(transaction: Transaction, run_id: str, name: str, attempt: int, data: bytes, tail: int) -> None:
    while data:
        cut = _boundary(data, CHUNK_BYTES)
        chunk, data = data[:cut], data[cut:]
        transaction.connection.execute(
            "INSERT INTO log (run_id, name, attempt, at, bytes, tail, text) VALUES (?,?,?,?,?,?,?)",
            (run_id, name, attempt, transaction.at, len(chunk), tail, chunk.decode("utf-8", "replace")),
        )


def _shorten_tail(connection: sqlite3.Connection, run_id: str, name: str, attempt: int) -> int:
    key = (run_id, name, attempt)
    where = "run_id = ? AND name = ? AND attempt = ? AND tail = 1"
    rows = connection.execute(f"SELECT id, bytes FROM log WHERE {where} ORDER BY id", key).fetchall()
    excess, dropped, last = sum(size for _, size in rows) - TAIL_BYTES, 0, None
    for identity, size in rows:
        if dropped >= excess:
            break
        dropped, last = dropped + size, identity
    if last is not None:
        connection.execute(f"DELETE FROM log WHERE {where} AND id <= ?", (*key, last))
    return dropped


def read(
    connection: sqlite3.Connection, run_id: str, name: str, attempt: int, after: int = 0, limit: int = 500
) -> List[LogPiece]:
    """Return a window of the output, in order: the pieces after ``after``; below 0, the last ``limit`` ones."""
    order = "DESC" if after < 0 else "ASC"
    rows = connection.execute(
        "SELECT id, at, text, tail FROM log WHERE run_id = ? AND name = ? AND attempt = ? AND id > ?"
        f" ORDER BY id {order} LIMIT ?",
        (run_id, name, attempt, after, limit),
    ).fetchall()
    pieces = [LogPiece(identity, at, text, bool(tail)) for identity, at, text, tail in rows]
    return pieces[::-1] if after < 0 else pieces


def attempt_text(connection: sqlite3.Connection, run_id: str, name: str, attempt: int) -> AttemptTextRow:
    """Return the long texts of an attempt; empty ones where there are none."""
    row = connection.execute(
        "SELECT traceback, stack, diagnostic, fingerprint_detail FROM attempt"
        " WHERE run_id = ? AND name = ? AND attempt = ?",
        (run_id, name, attempt),
    ).fetchone()
    return AttemptTextRow(*(text or "" for text in row)) if row else AttemptTextRow("", "", "", "")
