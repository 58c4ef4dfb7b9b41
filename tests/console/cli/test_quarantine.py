"""``redrive systems rows``: rows listed, sent back through their task, or dropped."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from redrive.engine import Executor, Flow
from redrive.engine.errors import RedriveError
from support.commands import invoke_redrive, quoted


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two rows of one task are held, one of another."""
    run(tmp_path, bad={"o-3", "o-7", "i-1"})
    return tmp_path / "state.db"


def run(tmp_path: Path, bad: set[str]) -> str:
    flow = Flow("night")

    def over(prefix: str) -> Any:
        def body(ctx: Any) -> None:
            for scope in ctx.rows([f"{prefix}-{number}" for number in range(10)], key=str):
                with scope as row:
                    if row in bad:
                        raise ValueError(f"{row}\n\x1b[31m is none")

        return body

    flow.task(over("o"), name="orders", timeout=30)
    flow.task(over("i"), name="invoices", timeout=30)
    return Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()


def held_keys(state: Path, *words: object) -> list[str]:
    return [
        json.loads(line)["row_key"]
        for line in invoke_redrive("systems", "rows", state, "--json", *words).output.splitlines()
    ]


def test_rows_are_a_table_that_a_row_cannot_break(state):
    _, *lines = invoke_redrive("systems", "rows", state).output.splitlines()
    assert ["TASK", "ROW", "STATE", "ATTEMPT", "ERROR"] == lines[0].split()
    assert 4 == len(lines)
    assert "\x1b" not in "".join(lines)


def test_rows_are_json_and_can_be_asked_for_by_their_task(state):
    assert {"o-3", "o-7", "i-1"} == set(held_keys(state))
    assert ["i-1"] == held_keys(state, "--task", "invoices")


def test_a_row_is_sent_back_by_its_key(state, tmp_path):
    done = invoke_redrive("systems", "rows", state, "--requeue", "o-3", "--reason", "repaired")
    assert 0 == done.return_value, done.output
    assert "orders: runs again over 1 of its rows" in done.output
    assert "SUCCESS" == run(tmp_path, bad={"o-7", "i-1"})
    assert {"o-7", "i-1"} == set(held_keys(state))


def test_the_same_words_with_an_id_send_rows_back_once(state):
    words = ["systems", "rows", state, "--requeue", "o-3", "--reason", "repaired", "--command-id", "rows-0001"]
    first, events = invoke_redrive(*words), invoke_redrive("events", state).output
    second = invoke_redrive(*words)
    assert (first.return_value, second.return_value) == (0, 0), second.output
    assert "orders: runs again over 1 of its rows" in first.output and "orders: runs again" in second.output
    assert invoke_redrive("events", state).output == events


def test_the_rows_that_stopped_a_task_are_listed_as_dropped(tmp_path):
    flow = Flow("strict")

    @flow.task(timeout=30, max_bad_rows=1)
    def parse(ctx: Any) -> None:
        for scope in ctx.rows(range(3), key=str):
            with scope:
                raise ValueError("is none")

    Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()
    lines = invoke_redrive("systems", "rows", tmp_path / "state.db").output.splitlines()[2:]
    assert ["dropped", "dropped"] == [line.split()[2] for line in lines]


@pytest.fixture
def with_report(tmp_path: Path) -> Path:
    """One row of ``parse`` is held; ``report`` has run below it."""
    flow = Flow("night")

    @flow.task(timeout=30)
    def parse(ctx: Any) -> None:
        for scope in ctx.rows(["o-1", "o-2"], key=str):
            with scope as row:
                assert row != "o-1"

    flow.task(lambda: None, name="report", after=[parse], timeout=30)
    Executor(run_id="r", flow=flow, state=tmp_path / "state.db").run()
    return tmp_path / "state.db"


def test_what_ran_without_the_rows_is_named_with_the_command_that_runs_it_again(with_report):
    output = invoke_redrive("systems", "rows", with_report, "--requeue", "all", "--reason", "repaired").output
    assert f"redrive requeue {quoted(with_report)}@r report runs them again" in output


def test_a_cascade_runs_what_is_below_again(with_report):
    output = invoke_redrive("systems", "rows", with_report, "--requeue", "all", "--reason", "x", "--cascade").output
    assert "report: runs again because parse does" in output and "stale" not in output


def test_a_cascade_belongs_to_a_requeue(with_report):
    done = invoke_redrive("systems", "rows", with_report, "--cascade")
    assert isinstance(done.exception, click.UsageError)


def test_all_rows_of_a_task_are_dropped_with_a_reason(state):
    done = invoke_redrive("systems", "rows", state, "orders", "--discard", "all", "--reason", "a test account")
    assert 0 == done.return_value, done.output
    assert ["i-1"] == held_keys(state)
    assert 3 == len(held_keys(state, "--all"))


def test_without_a_reason_nothing_happens(state):
    done = invoke_redrive("systems", "rows", state, "--discard", "all")
    assert isinstance(done.exception, click.UsageError) and "say why" in str(done.exception)
    assert 3 == len(held_keys(state))


def test_a_key_that_no_row_has_is_one_sentence(state):
    done = invoke_redrive("systems", "rows", state, "--requeue", "o-99", "--reason", "x")
    assert isinstance(done.exception, RedriveError) and "'o-99'" in str(done.exception)
