"""Results over 64 KiB: compressed, apart from the rows that everybody reads, and the same value for each child."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, PermanentError
from redrive.engine.statefile import large_results
from support.commands import run_redrive

LINES = [f"line {number}" for number in range(20_000)]  # about 260 kB of JSON


def flow_of(folder: Path) -> Flow:
    flow = Flow("f", pools={"one": 1})

    @flow.task
    def lines() -> list[str]:
        return LINES

    @flow.task(after=lines)
    def forked(lines: list[str]) -> bool:
        return lines == LINES

    @flow.task(after=lines, isolation="thread")
    def thread(lines: list[str]) -> list[str]:
        return lines[:10_000]

    @flow.task(after=lines, isolation="worker")
    def worker(lines: list[str]) -> list[str]:
        return lines[10_000:]

    flow.command("shell", "cp $REDRIVE_INPUTS $REDRIVE_RESULT", after=[thread])

    @flow.map(over=thread, max_size=10)
    def too_many(line: str) -> str:
        return line

    @flow.task(after=[forked, thread, worker, "shell"])
    def last(forked: bool, thread: list[str], worker: list[str], shell: dict[str, list[str]]) -> bool:
        if (folder / "broken").exists():
            raise PermanentError("no")
        return forked and thread + worker == LINES and shell == {"thread": thread}

    return flow


def stored(folder: Path, task: str) -> str:
    with closing(sqlite3.connect(folder / "s.db")) as connection:
        return str(connection.execute("SELECT result FROM task WHERE name = ?", (task,)).fetchone()[0])


def test_each_kind_of_attempt_gets_the_value_and_no_row_or_event_has_it(tmp_path: Path) -> None:
    result = Executor(run_id="r", flow=flow_of(tmp_path), state=tmp_path / "s.db").run_result()
    assert result["last"] is True
    assert result["lines"] == LINES
    assert result.states["too_many"] == "DEAD_LETTER"  # its list was read: it is too long
    assert json.loads(stored(tmp_path, "lines"))["redrive:large"]["bytes"] == len(
        json.dumps(LINES, separators=(",", ":"))
    )
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        assert connection.execute("SELECT max(length(data)) FROM event").fetchone()[0] < 3000
        sizes = dict(connection.execute("SELECT name, length(data) FROM large_result"))
    assert sizes.keys() == {"lines", "thread", "worker", "shell"}
    assert sizes["lines"] < 100_000


def test_a_later_executor_reads_it(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    state = tmp_path / "s.db"
    assert Executor(run_id="r", flow=flow_of(tmp_path), state=state).run_result().states["last"] == "DEAD_LETTER"
    (tmp_path / "broken").unlink()
    run_redrive("requeue", "last", "--state", state, "--reason", "mended")
    assert Executor(run_id="r", flow=flow_of(tmp_path), state=state).run_result()["last"] is True


def test_a_map_over_a_large_list_has_its_elements(tmp_path: Path) -> None:
    flow = Flow("f")

    @flow.task
    def pages() -> list[str]:
        return [letter * 40_000 for letter in "abc"]

    @flow.map(over=pages)
    def first(page: str) -> str:
        return page[0]

    result = Executor(run_id="r", flow=flow, state=tmp_path / "s.db").run_result()
    assert (result.state, result["first"]) == ("SUCCESS", ["a", "b", "c"])


@pytest.mark.long
def test_without_its_data_a_child_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    state = tmp_path / "s.db"
    Executor(run_id="r", flow=flow_of(tmp_path), state=state).run()
    with closing(sqlite3.connect(state)) as connection, connection:
        connection.execute("DELETE FROM large_result WHERE name = 'worker'")
    run_redrive("requeue", "last", "--state", state, "--reason", "again")
    Executor(run_id="r", flow=flow_of(tmp_path), state=state).run()
    why = run_redrive("tasks", "--json", state).stdout
    assert "asks for the result of 'worker', and its result was not stored: it is gone" in why
    assert "return plain values" not in why


def test_pruned_runs_leave_nothing(tmp_path: Path) -> None:
    flow = Flow("f")

    @flow.task
    def lines() -> list[str]:
        return LINES

    for run_id in ("one", "two"):
        assert Executor(run_id=run_id, flow=flow, state=tmp_path / "s.db").run() == "SUCCESS"
    run_redrive("prune", tmp_path / "s.db", "--keep", "1")
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection:
        assert connection.execute("SELECT DISTINCT run_id FROM large_result").fetchall() == [("two",)]


@pytest.fixture
def connection() -> sqlite3.Connection:
    return sqlite3.connect(":memory:")


def test_small_texts_stay_where_they_are(connection: sqlite3.Connection) -> None:
    text = json.dumps("ä" * 30_000, ensure_ascii=False)
    assert large_results.store(connection, "r", "a", text) is text
    assert not large_results.exist(connection)


def test_an_undo_finds_the_results_of_before(connection: sqlite3.Connection) -> None:
    texts = [json.dumps(str(number) * 70_000) for number in range(5)]
    markers = [large_results.store(connection, "r", "a", text) for text in texts]
    found = [large_results.load(connection, "r", "a", marker) for marker in markers]
    assert found == [None, None, *texts[2:]]
    large_results.delete(connection, "r")
    assert large_results.load(connection, "r", "a", markers[4]) is None
