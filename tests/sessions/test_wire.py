"""What the far side sends as rows: taken where each value is of its type, and refused in one sentence where not."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

import pytest
from redrive.console.sessions.answers import row_of, rows_of
from redrive.engine.core.causes import CauseHistory, PastIncident
from redrive.engine.domain.rows import BreakerRow, RunRow, RunSummary
from redrive.engine.domain.states import RunState
from redrive.engine.errors import LinkError
from support.marks import for_each


class Kept(NamedTuple):
    """A row with columns of each type."""

    flow: str
    time: int
    promise: str
    promised_at: int
    run_id: str | None
    at: int


KEPT = Kept("f", 1, "start", 2, None, 3)
BREAKER = BreakerRow("api", "OPEN", 5, [[1, 2, 3, 4]], 2.5, {"why": "6 of 7 failed"}, 7)


@pytest.mark.parametrize("row", [KEPT, BREAKER])
def test_a_row_comes_back_as_it_was_sent(row: tuple[object, ...]) -> None:
    assert rows_of(type(row), json.loads(json.dumps([row, row]))) == [row, row]


def test_what_comes_as_an_object_comes_back_with_its_types() -> None:
    summary = [["r", "f", 1, None, "PARTIAL"], {"SUCCESS": 2}, 0]
    assert row_of(RunSummary, summary) == RunSummary(RunRow("r", "f", 1, None, RunState.PARTIAL), {"SUCCESS": 2})
    memory = {"fingerprint": "c0ffee", "episodes": [{"run_id": "r", "at": 1, "tasks": 2, "decision": "skip"}]}
    assert row_of(CauseHistory, memory) == CauseHistory("c0ffee", episodes=(PastIncident("r", 1, 2, "skip"),))


@for_each(
    "sent",
    [None, 5, "text", "\ud800", {}, [], ["f"], ["f", "1", "start", 2, None, 3], [*KEPT, 8], ["f", 1, "start", 2, 9, 3]],
)
def test_what_is_no_such_row_is_a_sentence_and_ends_the_connection(sent: object) -> None:
    with pytest.raises(LinkError, match="sent a Kept that cannot be read") as caught:
        row_of(Kept, sent)
    assert caught.value.final
    with pytest.raises(LinkError, match="sent a list of Kept that cannot be read"):
        rows_of(Kept, [KEPT, sent])


TWO_READERS = """
import enum, threading
from typing import NamedTuple
from redrive.console.sessions.answers import row_of

class Kind(enum.Enum):
    FIRST = "first"

class Row(NamedTuple):
    kind: Kind

def convert():
    assert row_of(Row, ["first"]).kind is Kind.FIRST

begun, going_on, set_attribute = threading.Event(), threading.Event(), enum.EnumType.__setattr__

def hold(kind, name, value):  # as the machine may, between two instructions of Python
    if not begun.is_set():
        begun.set()
        assert going_on.wait(60)
    set_attribute(kind, name, value)

enum.EnumType.__setattr__ = hold
threads = [threading.Thread(target=convert) for _ in range(2)]
threads[0].start()
assert begun.wait(60)
threads[1].start()
threads[1].join(0.2)
assert threads[1].is_alive()
going_on.set()
"""


def test_a_thread_waits_while_another_decodes_the_first_row_of_a_kind() -> None:
    """Without the wait the console crashed: msgspec has half of the kind then."""
    done = subprocess.run([sys.executable, "-c", TWO_READERS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
