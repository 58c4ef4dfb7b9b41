"""The screen and JSON say the same of one cause of the inbox."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.cli.listings import cause_lines
from redrive.console.model.board import Board
from redrive.console.model.inbox import InboxCause
from redrive.console.present.inbox import CAUSE_COLUMNS, cause_row
from redrive.console.present.tasks import RunContext
from redrive.console.text.columns import json_value
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.domain.states import TaskState
from support.marks import for_each

from .runs import START, projection_of

CONTEXT = RunContext(Board(projection_of([(f"t{number}", []) for number in range(5)])), START, UTF8)
CAUSES = st.builds(
    InboxCause,
    fingerprint=st.just("a" * 12),
    downstream=st.none() | st.just("api"),
    title=st.just("HTTP 503"),
    message=st.sampled_from(["", "HTTP 503", "no answer"]),
    tasks=st.integers(1, 5).map(lambda count: tuple(f"t{number}" for number in range(count))),
    dead=st.integers(0, 5),
    held=st.integers(0, 2000),
    first_seen=st.just(START),
    last_seen=st.just(START),
    oldest=st.integers(START - 10**12, START),
    messages=st.integers(1, 3),
)


@given(CAUSES, st.booleans())
def test_all_say_the_same_of_a_cause(cause, is_open):
    value, row = json_value(CAUSE_COLUMNS, cause, None), plain(cause_row(cause, is_open, CONTEXT, 120))
    of_one_task = {"kind", "wait", "search_text"}
    assert value == {name: getattr(cause, name) for name in InboxCause.__struct_fields__ if name not in of_one_task}
    assert row.split()[2] == str(len(cause.tasks)) and cause.title in row
    assert (" api" in row) == (value["downstream"] is not None)
    assert ("no answer" in row) == (value["message"] == "no answer")
    assert (f"holds {cause.held:,}" in row) == bool(value["held"]) and row.endswith(CONTEXT.since(cause.oldest))


@for_each(
    "title, message, said",
    [
        ("MemoryError odd.py:77 in memory", "MemoryError", "MemoryError odd.py:77 in memory"),
        ("KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt"),
        ("MemoryErrorOfMine odd.py:77", "MemoryError", "MemoryErrorOfMine odd.py:77  MemoryError"),
        ("'gen' returned a generator", "task 'gen' returned a generator: use a list",
         "task 'gen' returned a generator: use a list"),
        ("KeyError odd.py:3 in f", "'id'", "KeyError odd.py:3 in f  'id'")
    ],
)  # fmt: skip
def test_a_row_says_a_thing_once(title, message, said):
    cause = InboxCause("a" * 12, None, title, message, ("t0",), 1, 0, START, START, START)
    assert plain(cause_row(cause, False, CONTEXT, 120)).split(maxsplit=3)[3].rpartition("  ")[0].strip() == said
    assert json_value(CAUSE_COLUMNS, cause, None)["message"] == message
    heading, task = map(plain, cause_lines(cause, failed_projection(message), None, START))
    assert title in heading
    assert task == f"  DEAD_LETTER t0 0/3{'' if message in title.split() else f': {message}'}"


def failed_projection(error: str):
    projection = projection_of([("t0", [])])
    projection.tasks["t0"].state, projection.tasks["t0"].error = TaskState.DEAD_LETTER, error
    return projection
