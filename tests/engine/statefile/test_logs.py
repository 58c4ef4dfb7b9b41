"""The output of attempts: whole up to the limit of the run, compressed, in order whoever reads it."""

from __future__ import annotations

import random
import zlib

import pytest
from redrive.engine.errors import CorruptFileError
from redrive.engine.statefile import logs
from redrive.engine.statefile.logs import AttemptText, LogChunk

from ..store.conftest import RUN, StateFile


def write(state_file: StateFile, *texts: str) -> None:
    for text in texts:
        state_file.write(lambda transaction, text=text: logs.append(transaction, RUN, "a", 1, text))


def started(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    state_file.claim("a")


def read_all(state_file: StateFile) -> list[LogChunk]:
    return logs.read(state_file.connection, RUN, "a", 1, limit=100_000)


def dropped(state_file: StateFile, name: str = "a") -> int:
    attempt = state_file.projection().tasks[name].attempts[1]
    return attempt.output_dropped_bytes


def test_small_output_is_kept_to_the_letter(state_file: StateFile) -> None:
    started(state_file)
    emitted_before = len(state_file.emitted)
    write(state_file, "début\n", "\x1b[2J[red]\n", "", "end")
    pieces = read_all(state_file)
    assert [piece.text for piece in pieces] == ["début\n", "\x1b[2J[red]\n", "end"]
    assert state_file.projection().tasks["a"].attempts[1].output_bytes == len("début\n\x1b[2J[red]\nend".encode())
    assert len(state_file.emitted) == emitted_before


def shuffled_lines(count: int) -> str:
    """Text that hardly shrinks."""
    dice = random.Random(3)
    return "".join(f"{number} {dice.getrandbits(400):x}\n" for number in range(count))


def write_in_parts(state_file: StateFile, whole: str, limit_bytes: int = logs.LIMIT_BYTES, name: str = "a") -> None:
    dice = random.Random(4)
    position = 0
    while position < len(whole):
        size = dice.choice([10, 1_000, 40_000, 300_000])
        text = whole[position : position + size]
        state_file.write(
            lambda transaction, text=text: logs.append(transaction, RUN, name, 1, text, limit_bytes=limit_bytes)
        )
        position += size


def read_whole(state_file: StateFile, name: str = "a") -> list[LogChunk]:
    found: list[LogChunk] = []
    while page := logs.read(state_file.connection, RUN, name, 1, after=found[-1].id if found else 0):
        found += page
    return found


def stored_bytes(state_file: StateFile) -> int:
    ((size,),) = state_file.connection.execute("SELECT sum(coalesce(length(packed), bytes)) FROM log")
    ((counted,),) = state_file.connection.execute("SELECT bytes FROM log_size")
    assert counted == size
    return int(size)


def test_output_is_kept_whole_and_takes_a_fraction_of_its_size(state_file: StateFile) -> None:
    started(state_file)
    whole = "".join(f"03:10:{number % 60:02} settle INFO batch {number} settled\n" for number in range(100_000))
    write_in_parts(state_file, whole)
    state_file.write(lambda transaction: logs.finish(transaction, RUN, "a", 1))
    pieces = read_whole(state_file)
    assert "".join(piece.text for piece in pieces) == whole
    assert not any(piece.dropped for piece in pieces)
    assert stored_bytes(state_file) < len(whole) / 5
    backward: list[LogChunk] = []
    while page := logs.read(state_file.connection, RUN, "a", 1, before=backward[0].id if backward else 2**62):
        backward = page + backward
    assert backward == pieces


def test_packing_keeps_the_place_of_a_reader_and_the_time_of_each_piece(state_file: StateFile) -> None:
    started(state_file)
    for number in range(300):
        state_file.now += 1
        write(state_file, f"{number} " + "x" * 500 + "\n")
        if number == 150:
            before = read_all(state_file)
    ((packed,),) = state_file.connection.execute("SELECT count(*) FROM log WHERE packed IS NOT NULL")
    assert packed
    pieces = read_whole(state_file)
    assert pieces[:151] == before
    assert logs.read(state_file.connection, RUN, "a", 1, after=before[100].id, limit=1) == [before[101]]
    assert len({piece.at for piece in pieces}) == 300


def test_above_its_limit_a_run_keeps_the_head_and_the_tail_of_a_running_attempt(state_file: StateFile) -> None:
    started(state_file)
    whole = shuffled_lines(20_000)
    write_in_parts(state_file, whole, limit_bytes=600_000)
    pieces = read_whole(state_file)
    (place,) = [number for number, piece in enumerate(pieces) if piece.dropped]
    head = "".join(piece.text for piece in pieces[:place])
    tail = "".join(piece.text for piece in pieces[place:])
    assert whole.startswith(head) and logs.HEAD_BYTES <= len(head) < logs.HEAD_BYTES + logs.CHUNK_BYTES
    assert whole.endswith(tail) and len(tail) > 200_000
    assert dropped(state_file) == pieces[place].dropped == len(whole) - len(head) - len(tail)
    assert stored_bytes(state_file) <= 600_000


def test_the_oldest_finished_attempts_go_first_and_those_that_succeeded_before_others(state_file: StateFile) -> None:
    state_file.create(dict.fromkeys("abcd", ""))
    for name in "abcd":
        state_file.move(name, "READY")
        state_file.claim(name)
    for name, outcome in (("a", "error"), ("b", "success"), ("c", "success")):
        state_file.now += 1
        write_in_parts(state_file, shuffled_lines(4_000), name=name)
        ended = {"outcome": outcome, "ended_at": state_file.now}
        state_file.write(lambda transaction, name=name, ended=ended: transaction.change_attempt(RUN, name, 1, ended))
    each = stored_bytes(state_file) // 3
    write_in_parts(state_file, shuffled_lines(3_000), limit_bytes=int(each * 3.3), name="d")
    kept = {name: sum(len(piece.text) for piece in read_whole(state_file, name)) for name in "abcd"}
    assert kept["a"] == kept["c"] == len(shuffled_lines(4_000)) and kept["d"] == len(shuffled_lines(3_000))
    assert kept["b"] < kept["a"] / 2
    assert dropped(state_file, "b") == kept["a"] - kept["b"]
    write_in_parts(state_file, "y" * 2_000_000, limit_bytes=each, name="d")
    assert [len(read_whole(state_file, name)) for name in "abc"] == [0, 0, 0]
    assert dropped(state_file, "b") == dropped(state_file, "a") == kept["a"]


def test_output_that_never_reached_the_file_is_reported_where_it_is_missing(state_file: StateFile) -> None:
    started(state_file)
    write(state_file, "x" * 600_000)
    state_file.write(lambda transaction: logs.append(transaction, RUN, "a", 1, "after\n", dropped=5_000))
    write(state_file, "y" * 300_000)
    assert [(piece.dropped, piece.text[:5]) for piece in read_whole(state_file) if piece.dropped] == [(5_000, "after")]
    assert dropped(state_file) == 5_000


def test_no_character_is_split(state_file: StateFile) -> None:
    started(state_file)
    whole = "x" + "€" * 300_000  # three bytes each, never in step with a power of two
    write(state_file, whole)
    assert "".join(piece.text for piece in read_whole(state_file)) == whole


def test_a_damaged_row_is_reported_in_one_sentence(state_file: StateFile) -> None:
    started(state_file)
    write(state_file, "x" * 600_000)
    for damage in (b"", b"x\x9cgarbage", zlib.compress(b"[[1, 2]]"), zlib.compress(b"[]"), zlib.compress(b" " * 10**8)):
        state_file.connection.execute("UPDATE log SET packed = ? WHERE packed IS NOT NULL", (damage,))
        with pytest.raises(CorruptFileError, match=r"row .* of its log cannot be read"):
            read_all(state_file)


def test_a_window_goes_forward_from_a_place_or_shows_the_end(state_file: StateFile) -> None:
    started(state_file)
    write(state_file, *(f"{number}\n" for number in range(10)))
    connection = state_file.connection
    first = logs.read(connection, RUN, "a", 1, limit=3)
    assert [piece.text for piece in first] == ["0\n", "1\n", "2\n"]
    rest = logs.read(connection, RUN, "a", 1, after=first[-1].id)
    assert [piece.text for piece in rest] == [f"{number}\n" for number in range(3, 10)]
    last = logs.read(connection, RUN, "a", 1, after=-1, limit=2)
    assert [piece.text for piece in last] == ["8\n", "9\n"]


def test_output_of_an_attempt_that_nobody_knows_is_dropped(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    write(state_file, "ghost")
    assert read_all(state_file) == []


def test_long_texts_are_read_on_demand(state_file: StateFile) -> None:
    started(state_file)
    texts = {"traceback": "Traceback ...", "diagnostic": "row 7"}
    state_file.write(lambda transaction: transaction.change_attempt(RUN, "a", 1, texts))
    found = logs.attempt_text(state_file.connection, RUN, "a", 1)
    assert found == AttemptText("Traceback ...", "", "row 7", "")
    assert logs.attempt_text(state_file.connection, RUN, "a", 2) == AttemptText("", "", "", "")
