"""``redrive systems pages``: what was paged, told as a table or as JSON, and quietened by two words."""

import json
import sqlite3
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow, PermanentError
from support.commands import invoke_redrive


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A night with two causes; nobody has heard of them."""
    monkeypatch.setattr("redrive.engine.executor.loop.LAST_TRIES_SECONDS", 0.0)
    flow = Flow("night")

    @flow.task(timeout=30)
    def refused() -> None:
        raise PermanentError("403 \x1b[31mforbidden")

    flow.command("wrong", "exit 64", timeout=30)
    flow.page("command", line="exit 1")
    Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()
    return tmp_path / "state.db"


def column(state: Path, column: str) -> list[object]:
    with sqlite3.connect(state) as connection:
        return [value for (value,) in connection.execute(f"SELECT {column} FROM page ORDER BY id")]


def test_pages_are_a_table(state):
    place, *lines = invoke_redrive("systems", "pages", state).output.splitlines()
    assert place == str(state)
    assert lines[0].split() == ["ID", "SEVERITY", "STATE", "COUNT", "AGE", "SENT", "TITLE"]
    *rows, last = lines[1:]
    assert {"permanent on refused", "permanent on wrong"} == {line.split("  ")[-1].strip() for line in rows}
    assert all("failed: command: exit status 1" in line for line in rows)
    assert "unsent: the next run, resume or serve on this state file sends it, within 24 h" == last


def test_pages_are_json_with_their_body(state):
    first, second = map(json.loads, invoke_redrive("systems", "pages", state, "--json").output.splitlines())
    assert {"refused", "wrong"} == {first["task"], second["task"]}
    assert "403" in {page["task"]: page for page in (first, second)}["refused"]["body"]["error"]


def test_a_page_is_acknowledged_by_its_number_and_another_snoozed(state):
    done = invoke_redrive("systems", "pages", state, "--ack", 1, "--snooze", 2, "2h")
    assert 0 == done.return_value, done.output
    assert ["acked", "snoozed"] == column(state, "state")
    shown = invoke_redrive("systems", "pages", state).output
    assert "acked by " in shown and "snoozed for " in shown


def test_a_page_that_is_not_there_cannot_be_acknowledged(state):
    done = invoke_redrive("systems", "pages", state, "--ack", 99)
    assert 1 == done.return_value
    assert "there is no such open page" in done.output


def test_resolved_pages_are_shown_on_request_only(state):
    invoke_redrive("skip", state, "--reason", "known", "refused", "wrong")
    assert "no pages are open" in invoke_redrive("systems", "pages", state).output
    assert 2 == invoke_redrive("systems", "pages", state, "--all").output.count(" resolved ")
