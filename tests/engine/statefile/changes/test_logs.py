"""The output of attempts: whole while it is small, head and tail when it is not."""

from __future__ import annotations

import random

from redrive.engine.statefile.changes import logs

from ...store.conftest import RUN, StateFile


def write(state_file: StateFile, *texts: str) -> None:
    for text in texts:
        state_file.write(lambda transaction, text=text: logs.append(transaction, RUN, "a", 1, text))


def started(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.move("a", "READY")
    state_file.claim("a")


def read_all(state_file: StateFile) -> list[logs.LogPiece]:
    return logs.read(state_file.connection, RUN, "a", 1, limit=100_000)


def dropped(state_file: StateFile) -> int:
    attempt = state_file.fold().tasks["a"].attempts[1]
    return attempt.output_dropped_bytes


def test_small_output_is_kept_to_the_letter(state_file: StateFile) -> None:
    started(state_file)
    told = len(state_file.told)
    write(state_file, "début\n", "\x1b[2J[red]\n", "", "end")
    pieces = read_all(state_file)
    assert [piece.text for piece in pieces] == ["début\n", "\x1b[2J[red]\n", "end"]
    assert state_file.fold().tasks["a"].attempts[1].output_bytes == len("début\n\x1b[2J[red]\nend".encode())
    assert len(state_file.told) == told


def test_of_too_much_the_head_and_the_tail_are_kept_and_the_rest_is_counted(state_file: StateFile) -> None:
    started(state_file)
    dice = random.Random(3)
    whole = "".join(f"line {number} {'x' * dice.randrange(200)}\n" for number in range(20_000))
    position = 0
    while position < len(whole):
        size = dice.choice([10, 1_000, 40_000, 300_000])
        write(state_file, whole[position : position + size])
        position += size
    pieces = read_all(state_file)
    head = "".join(piece.text for piece in pieces if not piece.tail)
    tail = "".join(piece.text for piece in pieces if piece.tail)
    assert whole.startswith(head) and len(head) == logs.HEAD_BYTES
    assert whole.endswith(tail) and logs.TAIL_BYTES - logs.CHUNK_BYTES <= len(tail) <= logs.TAIL_BYTES
    assert dropped(state_file) == len(whole) - len(head) - len(tail)


def test_one_enormous_piece_is_bounded_as_well(state_file: StateFile) -> None:
    started(state_file)
    whole = "".join(chr(ord("a") + number % 26) for number in range(3_000_000))
    write(state_file, whole)
    text = "".join(piece.text for piece in read_all(state_file))
    assert len(text) <= logs.HEAD_BYTES + logs.TAIL_BYTES and whole.endswith(text[-1000:])
    assert dropped(state_file) == len(whole) - len(text)


def test_no_character_is_split_at_a_bound(state_file: StateFile) -> None:
    started(state_file)
    whole = "x" + "€" * 300_000  # three bytes each, never in step with a power of two
    write(state_file, whole)
    pieces = read_all(state_file)
    head = "".join(piece.text for piece in pieces if not piece.tail)
    assert whole.startswith(head) and logs.HEAD_BYTES - 3 < len(head.encode()) <= logs.HEAD_BYTES
    tail = "".join(piece.text for piece in pieces if piece.tail)
    assert set(tail) == {"€"}
    assert dropped(state_file) == len(whole.encode()) - len(head.encode()) - len(tail.encode())


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
    assert found == logs.AttemptTextRow("Traceback ...", "", "row 7", "")
    assert logs.attempt_text(state_file.connection, RUN, "a", 2) == logs.AttemptTextRow("", "", "", "")
