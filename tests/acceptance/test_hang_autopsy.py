"""A hang explains itself wherever somebody looks: one real run, a server that never answers (SPEC part 4, 3)."""

from __future__ import annotations

import io
import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from redrive.console.model.board import Board
from redrive.console.model.inbox import AttemptTexts, EvidenceData, Inbox
from redrive.console.present import detail
from redrive.console.present.tasks import RunContext, state_facts
from redrive.console.text.event_text import describe_event as told
from redrive.console.text.event_text import lines_of_event
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import Line
from redrive.engine import Executor, Flow, RetryPolicy
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.events import EventKind
from redrive.engine.notifications.notifier import MessageOrigin, page_message
from redrive.engine.statefile import logs
from redrive.engine.statefile.reader import events_query
from redrive.engine.store import pages, runs
from support.processes import inspect_at_leisure

HANG = "blocked in recv from 127.0.0.1:{port} at "
TRIES = 10  # where the machine stood still before the task came to its hang, or while it was inspected


@pytest.fixture
def server() -> Iterator[int]:
    """The port of one that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found.getsockname()[1]


def hung(folder: Path, port: int) -> Path:
    """The state file of a run whose only task hung there."""
    for number in range(TRIES):
        flow = Flow("nightly")

        @flow.task(timeout=1.5 + number, grace_seconds=5, retry=RetryPolicy(max_attempts=1))
        def load() -> None:
            socket.create_connection(("127.0.0.1", port)).recv(1)

        path = folder / f"{number}.db"
        with redirect_stdout(io.StringIO()), pytest.MonkeyPatch.context() as patch:
            if number:
                inspect_at_leisure(patch)
            Executor(run_id="r", flow=flow, state=path).run()
        with sqlite3.connect(path) as connection:
            (error,) = connection.execute("SELECT error FROM task").fetchone()
        if HANG.format(port=port) in error:
            return path
    raise AssertionError(f"not once in {TRIES} times: {error}")


def text_of(lines: list[Line]) -> str:
    """Without where it was folded."""
    return " ".join(" ".join("".join(piece.text for piece in line) for line in lines).split())


def test_the_sentence_stands_everywhere_and_the_evidence_has_all_of_it(tmp_path: Path, server: int) -> None:
    path, hang = hung(tmp_path, server), HANG.format(port=server)
    with sqlite3.connect(path) as connection:
        projection = runs.load_run(connection, "r")
        texts = logs.attempt_text(connection, "r", "load", 1)
        events = [event_of(row) for row in connection.execute(*events_query(0, 500))]
        page = page_message(pages.read_pages(connection, [1])[0], MessageOrigin("nightly", "r", str(path)))
        (body,) = connection.execute("SELECT body FROM page").fetchone()
    row, board = projection.tasks["load"], Board(projection)
    context = RunContext(board, projection.run.started_at + 60_000_000, UTF8)

    assert hang in (row.error or "") and hang in (row.attempts[1].error or "")
    assert hang in "\n".join(line for event in events for line in lines_of_event(event))
    assert hang in "\n".join(told(event) for event in events if event.kind == EventKind.ATTEMPT_STACK)
    assert hang in str(page["text"]) and hang in json.loads(body)["error"]
    assert hang in Inbox(board).entry("load").message
    assert f"timeout: {hang}" in text_of([state_facts(row, context)])

    found = EvidenceData([AttemptTexts(1, texts)])
    for columns in (80, 120):
        shown = text_of(detail.detail_page(row, context, found, columns))
        assert hang in shown and "(ESTABLISHED, 0 bytes unread, 0 bytes unsent)" in shown
        assert "Stack when it was ended" in shown and "What it did and held then" in shown
        assert f"tcp 127.0.0.1:{server}" in shown
