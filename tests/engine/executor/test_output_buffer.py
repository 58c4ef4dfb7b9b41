"""A task that prints without end, a disk that takes nothing: memory stays bounded, both ends of output are kept."""

import resource
import sqlite3

import pytest
from redrive.engine import Executor, Flow
from redrive.engine.executor.attempts import HEAD_CHARACTERS, TAIL_CHARACTERS, OutputBuffer
from redrive.engine.statefile import logs
from redrive.engine.statefile.logs import LogChunk


def test_what_is_little_is_taken_as_it_came_and_once():
    unwritten = OutputBuffer()
    for text in ("one ", "two ", "three"):
        unwritten.append(text)
    printed = unwritten.drain()
    assert ("one two three", 0, "") == (printed.head, printed.dropped_bytes, printed.tail)
    assert 0 == unwritten.characters
    assert not unwritten.drain()


def test_of_what_is_too_much_the_first_and_the_last_are_kept_and_the_rest_is_counted():
    unwritten = OutputBuffer()
    total = 0
    for number in range(5000):
        text = f"{number:06}é" * 200
        unwritten.append(text)
        total += len(text.encode())
        assert unwritten.characters <= HEAD_CHARACTERS + TAIL_CHARACTERS + 2 * len(text)
    printed = unwritten.drain()
    assert printed.head.startswith("000000é") and printed.tail.endswith("004999é")
    assert total == len(printed.head.encode()) + printed.dropped_bytes + len(printed.tail.encode())
    assert len(printed.head) >= HEAD_CHARACTERS and len(printed.tail) >= TAIL_CHARACTERS


@pytest.mark.long
def test_a_task_that_prints_faster_than_the_disk_writes_does_not_fill_the_memory_of_the_executor(tmp_path):
    flow = Flow("f")
    flow.command("loud", "echo first; timeout 3 yes 0123456789012345678901234567890123456789; echo last", timeout=60)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most = []

    def listen(events):
        most.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    executor = Executor(run_id="r", flow=flow, state=tmp_path / "state.db", on_events=listen)
    assert "SUCCESS" == executor.run()
    with sqlite3.connect(tmp_path / "state.db") as connection:
        ((printed, dropped_bytes),) = connection.execute("SELECT output_bytes, output_dropped_bytes FROM attempt")
        found = [LogChunk(0, 0, "", 0)]
        while pieces := logs.read(connection, "r", "loud", 1, after=found[-1].id):
            found += pieces
        ((stored,),) = connection.execute("SELECT sum(coalesce(length(packed), bytes)) FROM log")
    texts = [piece.text for piece in found[1:]]
    kept = sum(len(text.encode()) for text in texts)
    assert printed == dropped_bytes + kept
    assert texts[0].startswith("first\n") and texts[-1].endswith("last\n")
    assert stored <= logs.LIMIT_BYTES
    assert max(most) - before < 100_000  # kB; two gigabytes are printed meanwhile on a quick machine
