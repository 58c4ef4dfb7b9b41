"""The output of attempts, in pieces; pieces that were written before are packed and compressed.

A run keeps up to ``limit_bytes`` of output, as it is stored. Above this the oldest output of finished attempts goes
first, of those that succeeded before others; then the oldest output of the running attempt that has most. The first
HEAD_BYTES of an attempt, which say what it started, go last. Each piece says how much was dropped before it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import re
import sqlite3
import zlib
from typing import TYPE_CHECKING, Iterator, List, NamedTuple, Optional, Pattern, Tuple

from ..errors import CorruptFileError

if TYPE_CHECKING:  # a far host that reads gets no module that writes
    from .transitions import Transaction

# --- Output and long texts of attempts -------------------------------------------------------------------------------


class LogChunk(NamedTuple):
    """A piece of an attempt's output. ``dropped``: bytes that were dropped between the chunk before and this one."""

    id: int
    at: int  # microseconds UTC
    text: str
    dropped: int = 0


class AttemptText(NamedTuple):
    """The long texts of one attempt."""

    traceback: str = ""
    stack: str = ""
    diagnostic: str = ""
    fingerprint_detail: str = ""  # JSON


class FoundChunk(NamedTuple):
    """``found``: the chunk with the match; ``next``: where to go on, None at the end of the output."""

    found: Optional[int]
    next: Optional[int]


LIMIT_BYTES = 64 * 1024 * 1024  # of a run, unless its flow says otherwise
HEAD_BYTES = 256 * 1024
CHUNK_BYTES = 32 * 1024  # of one piece
PACK_BYTES = 128 * 1024  # of output in one compressed row
PACK_BYTES_MIN = 4 * 1024  # less is not worth packing at the end of an attempt
READ_CHARACTERS_MAX = 256 * 1024  # returned at once
UNPACKED_BYTES_MAX = 16 * 1024 * 1024  # a row of pieces of one byte each is below
ROOM_SHARE = 16  # what is dropped makes room for this share of the limit, so that it is done seldom

_KEY = "run_id = ? AND name = ? AND attempt = ?"
Key = Tuple[str, str, int]  # run, task, number of the attempt


# --- Writing -------------------------------------------------------------------------------------------------------


def append(
    transaction: "Transaction",
    run_id: str,
    name: str,
    attempt: int,
    text: str,
    dropped: int = 0,
    limit_bytes: int = LIMIT_BYTES,
) -> None:
    """Append to the output of an attempt, within the limit of its run. Emits no event.

    ``dropped``: bytes before ``text`` that never reached the state file.
    """
    data = text.encode("utf-8", "replace")
    connection, key = transaction.connection, (run_id, name, attempt)
    row = connection.execute("SELECT output_bytes FROM attempt WHERE " + _KEY, key).fetchone()
    if row is None or not data:
        return
    seen = row[0] + dropped
    _insert(transaction, key, data, seen, dropped)
    connection.execute(
        "UPDATE attempt SET output_bytes = ?, output_dropped_bytes = output_dropped_bytes + ? WHERE " + _KEY,
        (seen + len(data), dropped) + key,
    )
    _count(connection, run_id, len(data))
    if seen // PACK_BYTES != (seen + len(data)) // PACK_BYTES:
        _pack(connection, key, PACK_BYTES)
    _trim_to(connection, run_id, limit_bytes)


def finish(transaction: "Transaction", run_id: str, name: str, attempt: int) -> None:
    """Pack the rest of the output of an attempt that has ended."""
    _pack(transaction.connection, (run_id, name, attempt), PACK_BYTES_MIN)


def _insert(transaction: "Transaction", key: Key, data: bytes, seen: int, dropped: int) -> None:
    while data:
        is_head = seen < HEAD_BYTES
        cut = _boundary(data, CHUNK_BYTES)
        chunk, data = data[:cut], data[cut:]
        transaction.connection.execute(
            "INSERT INTO log (run_id, name, attempt, at, bytes, tail, dropped, text) VALUES (?,?,?,?,?,?,?,?)",
            key + (transaction.at, len(chunk), int(not is_head), dropped, chunk.decode("utf-8", "replace")),
        )
        seen, dropped = seen + len(chunk), 0


def _boundary(data: bytes, at: int) -> int:
    """The last position at or before ``at`` that splits no character."""
    if at >= len(data):
        return len(data)
    while at > 0 and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _count(connection: sqlite3.Connection, run_id: str, size: int) -> None:
    """Add to the stored bytes of a run."""
    changed = connection.execute("UPDATE log_size SET bytes = bytes + ? WHERE run_id = ?", (size, run_id)).rowcount
    if not changed:
        connection.execute("INSERT INTO log_size (run_id, bytes) VALUES (?, ?)", (run_id, size))


# --- Packing -------------------------------------------------------------------------------------------------------


class _LogRow(NamedTuple):
    """A row of table ``log``. ``stored_bytes``: its size, perhaps packed; ``text``: where it is asked for."""

    id: int
    at: int
    bytes: int
    dropped: int
    tail: int
    stored_bytes: int
    text: str = ""


_LOG_ROWS = "SELECT id, at, bytes, dropped, tail, coalesce(length(packed), bytes){} FROM log WHERE " + _KEY


def _stored_rows(connection: sqlite3.Connection, key: Key) -> List[_LogRow]:
    return [_LogRow(*row) for row in connection.execute(_LOG_ROWS.format("") + " ORDER BY id", key)]


def _pack(connection: sqlite3.Connection, key: Key, least_bytes: int) -> None:
    """Replace rows by compressed ones of about PACK_BYTES, which keep the ids, times and texts of the pieces.

    ``least_bytes``: what is left at the end is packed from this size on. A gap is always before a row, never in one.
    """
    rows = connection.execute(_LOG_ROWS.format(", text") + " AND packed IS NULL ORDER BY id", key).fetchall()
    group: List[_LogRow] = []
    for row in map(_LogRow._make, rows):
        if group and (group[-1].tail != row.tail or row.dropped):
            _pack_group(connection, key[0], group, PACK_BYTES_MIN)
            group = []
        group.append(row)
        if sum(one.bytes for one in group) >= PACK_BYTES:
            _pack_group(connection, key[0], group, PACK_BYTES)
            group = []
    _pack_group(connection, key[0], group, least_bytes)


def _pack_group(connection: sqlite3.Connection, run_id: str, group: List[_LogRow], least_bytes: int) -> None:
    size = sum(row.bytes for row in group)
    if not group or size < least_bytes:
        return
    pieces = [(row.id, row.at, row.text) for row in group]
    packed = zlib.compress(json.dumps(pieces, separators=(",", ":")).encode(), 6)
    if len(packed) >= size:
        return
    connection.executemany("DELETE FROM log WHERE id = ?", [(row.id,) for row in group[:-1]])
    connection.execute(
        "UPDATE log SET at = ?, bytes = ?, dropped = ?, text = '', packed = ? WHERE id = ?",
        (group[0].at, size, group[0].dropped, packed, group[-1].id),
    )
    _count(connection, run_id, len(packed) - size)


def _unpack(row: "Tuple[int, int, str, int, Optional[bytes]]") -> List[LogChunk]:
    """The pieces of a row. Raises CorruptFileError."""
    identity, at, text, dropped, packed = row
    if packed is None:
        return [LogChunk(identity, at, text, dropped)]
    try:
        unpacked = zlib.decompressobj().decompress(packed, UNPACKED_BYTES_MAX)
        pieces = [LogChunk(int(one), int(at), str(text), 0) for one, at, text in json.loads(unpacked.decode())]
        return [pieces[0]._replace(dropped=dropped)] + pieces[1:]
    except (zlib.error, ValueError, TypeError, IndexError):
        raise CorruptFileError(f"the state file is damaged: row {identity} of its log cannot be read") from None


# --- The limit of a run --------------------------------------------------------------------------------------------

#: The attempt whose output goes first: the latest of them if all run, else the one that ended first.
_FINISHED = (
    "SELECT name, attempt FROM attempt WHERE run_id = ? AND outcome <> 'running'"
    " AND output_bytes > output_dropped_bytes ORDER BY outcome <> 'success', ended_at LIMIT 1"
)
_RUNNING = (
    "SELECT name, attempt FROM attempt WHERE run_id = ? AND outcome = 'running'"
    " ORDER BY output_bytes - output_dropped_bytes DESC LIMIT 1"
)


def _trim_to(connection: sqlite3.Connection, run_id: str, limit_bytes: int) -> None:
    ((size,),) = connection.execute("SELECT bytes FROM log_size WHERE run_id = ?", (run_id,)).fetchall()
    wanted = size - limit_bytes + limit_bytes // ROOM_SHARE if size > limit_bytes else 0
    while wanted > 0:
        finished = connection.execute(_FINISHED, (run_id,)).fetchone()
        if finished is not None:
            wanted -= _drop_of_finished(connection, (run_id,) + tuple(finished), wanted)
            continue
        running = connection.execute(_RUNNING, (run_id,)).fetchone()
        if running is not None:
            key = (run_id,) + tuple(running)
            # The last row stays, because it records the gap before it.
            _drop(connection, key, _oldest([row for row in _stored_rows(connection, key) if row.tail][:-1], wanted))
        return


def _drop_of_finished(connection: sqlite3.Connection, key: Key, wanted: int) -> int:
    """Drop the oldest output behind the head; if that is not enough, all. Returns the stored bytes that it frees."""
    rows = _stored_rows(connection, key)
    chosen = _oldest([row for row in rows if row.tail], wanted)
    if len(chosen) < sum(row.tail for row in rows):
        return _drop(connection, key, chosen)
    freed = _drop(connection, key, rows)
    connection.execute("UPDATE attempt SET output_dropped_bytes = output_bytes WHERE " + _KEY, key)
    return freed


def _oldest(rows: List[_LogRow], wanted: int) -> List[_LogRow]:
    freed = 0
    for count, row in enumerate(rows):
        if freed >= wanted:
            return rows[:count]
        freed += row.stored_bytes
    return rows


def _drop(connection: sqlite3.Connection, key: Key, rows: List[_LogRow]) -> int:
    lost, freed = sum(row.bytes for row in rows), sum(row.stored_bytes for row in rows)
    connection.executemany("DELETE FROM log WHERE id = ?", [(row.id,) for row in rows])
    connection.execute(
        "UPDATE log SET dropped = dropped + ? WHERE id = (SELECT min(id) FROM log WHERE " + _KEY + " AND tail = 1)",
        (lost + sum(row.dropped for row in rows),) + key,
    )
    connection.execute(
        "UPDATE attempt SET output_dropped_bytes = output_dropped_bytes + ? WHERE " + _KEY, (lost,) + key
    )
    _count(connection, key[0], -freed)
    return freed


# --- Reading -------------------------------------------------------------------------------------------------------

_ID_MAX = 2**63 - 1
_COLUMNS = "SELECT id, at, text, dropped, packed FROM log WHERE " + _KEY


def read(
    connection: sqlite3.Connection,
    run_id: str,
    name: str,
    attempt: int,
    after: int = 0,
    limit: int = 500,
    before: Optional[int] = None,
    most: Optional[int] = None,
) -> List[LogChunk]:
    """Return a window of the output, in order: the first ``limit`` pieces after ``after``; or the last ones before
    ``before``; with ``after`` below 0, the last ones of all. ``most`` characters, or a bit more, end it
    as well."""
    key = (run_id, name, attempt)
    is_backward = before is not None or after < 0
    found: List[LogChunk] = []
    characters = 0
    for pieces in pieces_before(connection, key, before) if is_backward else pieces_after(connection, key, after):
        place = 0 if is_backward else len(found)
        found[place:place] = pieces
        characters += sum(len(piece.text) for piece in pieces)
        if len(found) >= limit or characters >= (most or READ_CHARACTERS_MAX):
            break
    return found[-limit:] if is_backward else found[:limit]


def pieces_after(connection: sqlite3.Connection, key: Key, after: int) -> Iterator[List[LogChunk]]:
    """Yield the pieces with higher ids, row by row."""
    for row in connection.execute(_COLUMNS + " AND id > ? ORDER BY id", key + (after,)):
        yield [piece for piece in _unpack(row) if piece.id > after]


def pieces_before(connection: sqlite3.Connection, key: Key, before: Optional[int]) -> Iterator[List[LogChunk]]:
    """Yield the pieces with lower ids, the last row first; without ``before`` all."""
    last = _ID_MAX if before is None else _row_at(connection, key, before)
    for row in connection.execute(_COLUMNS + " AND id <= ? ORDER BY id DESC", key + (last,)):
        pieces = [piece for piece in _unpack(row) if before is None or piece.id < before]
        if pieces:
            yield pieces


def _row_at(connection: sqlite3.Connection, key: Key, identity: int) -> int:
    """The id of the row that holds a piece: the id of its last piece."""
    ((found,),) = connection.execute("SELECT min(id) FROM log WHERE " + _KEY + " AND id >= ?", key + (identity,))
    return _ID_MAX if found is None else int(found)


def attempt_text(connection: sqlite3.Connection, run_id: str, name: str, attempt: int) -> AttemptText:
    """Return the long texts of an attempt; empty ones where there are none."""
    row = connection.execute(
        "SELECT traceback, stack, diagnostic, fingerprint_detail FROM attempt WHERE " + _KEY, (run_id, name, attempt)
    ).fetchone()
    return AttemptText(*(text or "" for text in row)) if row else AttemptText()


# --- Searches the stored output of an attempt, a slice at a time: nothing but the place of a match leaves the file ---


SLICE_CHARACTERS = 2 * 1024 * 1024  # searched in one call
LINE_CHARACTERS_MAX = 4096  # of a line that pieces share

#: What a terminal does not show: CSI, terminated strings (OSC, DCS, ...), and two-character sequences.
SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x9b[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-NQ-WYZ\\`-~]"
)


def find(
    connection: sqlite3.Connection,
    run_id: str,
    name: str,
    attempt: int,
    pattern: str,
    after: int = 0,
    before: Optional[int] = None,
) -> FoundChunk:
    """Find the first line after the piece ``after`` that matches ``pattern``, or the last one before ``before``.

    ``pattern``: a regular expression; the case of letters does not matter.
    """
    key = (run_id, name, attempt)
    texts = _joined_after(connection, key, after) if before is None else _joined_before(connection, key, before)
    return _search(texts, re.compile(pattern, re.IGNORECASE | re.MULTILINE))


_Texts = List[Tuple[int, str]]


def _search(rows: Iterator[_Texts], wanted: Pattern[str]) -> FoundChunk:
    searched = 0
    last = None
    for texts in rows:
        whole = "".join(text for _, text in texts)
        if wanted.search(_searched(whole)):
            for identity, text in texts:
                if wanted.search(_searched(text)):
                    return FoundChunk(identity, identity)
        searched += len(whole)
        last = texts[-1][0]
        if searched >= SLICE_CHARACTERS:
            return FoundChunk(None, last)
    return FoundChunk(None, None)


def _searched(text: str) -> str:
    """The text as it is searched: lines as a person reads them."""
    return visible(text.replace("\r\n", "\n").rstrip("\r") if "\r" in text else text)


def visible(text: str) -> str:
    """The text without the sequences that steer a terminal."""
    return SEQUENCES.sub("", text) if "\x1b" in text or "\x9b" in text else text


def _joined_after(connection: sqlite3.Connection, key: Key, after: int) -> Iterator[_Texts]:
    rest = ""
    for pieces in pieces_after(connection, key, after):
        texts = []
        for piece in pieces:
            text = rest + piece.text
            rest = text[text.rfind("\n") + 1 :][-LINE_CHARACTERS_MAX:]
            texts.append((piece.id, text))
        yield texts


def _joined_before(connection: sqlite3.Connection, key: Key, before: int) -> Iterator[_Texts]:
    rest = ""
    for pieces in pieces_before(connection, key, before):
        texts = []
        for piece in reversed(pieces):
            texts.append((piece.id, piece.text + rest))
            rest = _first_line(piece, rest)
        yield texts


def _first_line(piece: LogChunk, rest: str) -> str:
    end = piece.text.find("\n")
    return (piece.text + rest if end < 0 else piece.text[:end])[:LINE_CHARACTERS_MAX]
