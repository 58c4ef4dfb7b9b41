"""No statement of the doors and of the executor reads a whole table that grows with every run.

Every statement is recorded while it runs, and SQLite explains it: a new query is examined without being named here.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redrive.console.sessions.local import LocalSession
from redrive.engine.statefile import lists
from support.commands import invoke_redrive
from support.rich_state import LISTINGS, RUN, write_rich_state

GROWING = ("event", "attempt", "log", "task", "edge", "page_task")
#: The list of runs counts the tasks of all runs; an index without other columns holds them.
COUNTS = "SELECT run_id, state, count(*) FROM task GROUP BY run_id, state"
_SCAN = re.compile(rf"SCAN ({'|'.join(GROWING)})\b(?: USING (?:COVERING )?INDEX (\w+))?")


class Recorder:
    """The statements that are run on every connection of this process, with their values in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: set[str] = set()
        connect = sqlite3.connect

        def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            connection.set_trace_callback(self.statements.add)
            return connection

        monkeypatch.setattr(sqlite3, "connect", traced)
        self._connect = connect

    def scans(self, path: Path) -> dict[str, str]:
        """The statements that scan a growing table, with the step of their plan."""
        found: dict[str, str] = {}
        with closing(self._connect(path)) as connection:
            partial = "SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'"
            small = {name for (name,) in connection.execute(partial)}  # indexes of the few rows that matter
            for statement in self.statements:
                if statement == COUNTS or not re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", statement):
                    continue
                for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}"):
                    if (scan := _SCAN.search(step)) and scan[2] not in small:
                        found[" ".join(statement.split())[:300]] = step
        return found


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "night.db"
    write_rich_state(path)
    return path


def test_recorder_finds_a_scan(recorder: Recorder, state: Path) -> None:
    with closing(sqlite3.connect(state)) as connection:
        connection.execute("SELECT count(*) FROM event WHERE task = 'x'").fetchall()
        connection.execute("SELECT * FROM event WHERE run_id = 'x' ORDER BY seq").fetchall()
    assert list(recorder.scans(state)) == ["SELECT count(*) FROM event WHERE task = 'x'"]


def test_no_listing_of_the_shell_scans_a_growing_table(recorder: Recorder, state: Path) -> None:
    for words in LISTINGS:
        if words != ("doctor",):  # it examines every row
            invoke_redrive(*words, state)
    assert recorder.scans(state) == {}


async def test_no_request_of_the_console_scans_a_growing_table(recorder: Recorder, state: Path) -> None:
    session = await LocalSession.open(str(state))
    projection = await session.snapshot()
    await session.runs()
    async for _ in session.events(0):
        break
    await session.run_events(RUN, 0, 100)
    await session.duration_stats(RUN)
    for listing in lists.LISTINGS.values():
        await session.rows(listing)
    failed = projection.tasks["broken"]
    await session.cause_histories(RUN, [(str(failed.failure_fingerprint), None), ("other", "api")])
    await session.log(RUN, "broken", 1)
    await session.attempt_text(RUN, "broken", 1)
    await session.close()
    assert recorder.scans(state) == {}


def test_no_statement_of_the_executor_scans_a_growing_table(recorder: Recorder, tmp_path: Path) -> None:
    write_rich_state(tmp_path / "night.db")
    assert recorder.scans(tmp_path / "night.db") == {}
