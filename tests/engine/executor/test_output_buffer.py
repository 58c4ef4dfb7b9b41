"""A task that prints without end, a disk that takes nothing: memory stays bounded, both ends of output are kept."""

import resource
import sqlite3

import pytest
from redrive.engine import Executor, Flow
from redrive.engine.executor.output_buffer import HEAD_CHARACTERS, TAIL_CHARACTERS, Unwritten
from redrive.engine.statefile.changes import logs


def test_what_is_little_is_taken_as_it_came_and_once():
    unwritten = Unwritten()
    for text in ("one ", "two ", "three"):
        unwritten.add(text)
    printed = unwritten.take()
    assert ("one two three", 0, "") == (printed.text, printed.dropped, printed.rest)
    assert 0 == unwritten.characters
    assert not unwritten.take()


def test_of_what_is_too_much_the_first_and_the_last_are_kept_and_the_rest_is_counted():
    unwritten = Unwritten()
    total = 0
    for number in range(2000):
        text = f"{number:06}é" * 200
        unwritten.add(text)
        total += len(text.encode())
        assert unwritten.characters <= HEAD_CHARACTERS + TAIL_CHARACTERS + 2 * len(text)
    printed = unwritten.take()
    assert printed.text.startswith("000000é") and printed.rest.endswith("001999é")
    assert total == len(printed.text.encode()) + printed.dropped + len(printed.rest.encode())
    assert len(printed.text) >= logs.HEAD_BYTES and len(printed.rest) >= logs.TAIL_BYTES


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
        ((printed, dropped),) = connection.execute("SELECT output_bytes, output_dropped_bytes FROM attempt")
        texts = [text for (text,) in connection.execute("SELECT text FROM log ORDER BY id")]
    kept = sum(len(text.encode()) for text in texts)
    assert printed == dropped + kept
    assert texts[0].startswith("first\n") and texts[-1].endswith("last\n")
    assert kept <= logs.HEAD_BYTES + logs.TAIL_BYTES + logs.CHUNK_BYTES
    assert max(most) - before < 100_000  # kB; two gigabytes are printed meanwhile on a quick machine
