"""``redrive rehearse``: one night as the timeline shows it; no task runs."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from redrive.engine import Executor, Flow
from support.commands import invoke_redrive, run_redrive
from support.marks import parametrize_mostly_long

FLOW = """
from redrive.engine import Flow, RetryPolicy
flow = Flow("revenue", params={"day": "monday"})

@flow.task(timeout="5m", downstream="bank", retry=RetryPolicy(max_attempts=12))
def extract(day):
    raise AssertionError("no task runs")

flow.command("load", "psql -f load.sql", after=extract, timeout="10m")

@flow.map(over=extract, timeout="1m")
def fetch(extract):
    raise AssertionError("no task runs")
"""


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    path = tmp_path / "revenue.py"
    path.write_text(FLOW)
    return path


def rehearse(flow: Path, *words: str):
    return invoke_redrive("rehearse", flow, *words)


def test_one_night_is_a_sentence_and_the_timeline(flow):
    done = rehearse(flow, "--down", "bank=10s@0s", "--seed", "7")
    assert done.return_value == 0, done.output
    first, *rest = done.output.splitlines()
    assert first.startswith("SUCCESS after ") and "after bank was well again: 13 SUCCESS" in first
    assert any("✓ extract" in line for line in rest) and any("▆ ran" in line for line in rest)


def test_what_fails_is_shown_with_its_cause_and_its_page(flow):
    done = rehearse(flow, "--fail", "load=exit:3")
    assert done.return_value == 1
    assert "exit status 3 from: psql -f load.sql: load" in done.output
    assert "page: budget spent on load: 3 of 3 attempts failed" in done.output


def test_a_wrong_variable_of_sends_stops_no_executor_and_is_a_warning_once(flow):
    done = run_redrive("rehearse", flow, env={**os.environ, "DIGITALKIN_GRPC_TIMEOUT": "soon"})
    assert done.returncode == 0, done.stderr
    why = "DIGITALKIN_GRPC_TIMEOUT is a finite number of at least 0, not 'soon'; the executor uses its default"
    assert done.stderr == f"redrive: {why}\n"


def test_a_night_is_a_line_of_figures_that_is_the_same_for_its_seed(flow):
    lines = [json.loads(rehearse(flow, "--seed", "3", "--json").output) for _ in range(2)]
    assert lines[0] == lines[1] and lines[0]["seed"] == 3 and lines[0]["tasks"] == {"SUCCESS": 13}


def test_every_kind_of_fault_is_read(flow, tmp_path):
    words = [
        *("--down", "bank=30%:10m@1s", "--fail", "extract=TimeoutErrorx1"),
        *("--crash", "5s/1m", "--result", "extract=[1,2]", "--param", "day=tuesday", "--at", "2026-03-28T22:00+01:00"),
        *("--keep", str(tmp_path / "night.db")),
    ]
    done = rehearse(flow, *words)
    assert done.return_value == 0, done.output
    assert "5 SUCCESS" in done.output and (tmp_path / "night.db").exists()
    assert "tuesday" in invoke_redrive("runs", tmp_path / "night.db", "--json").output


@parametrize_mostly_long("task", ["load", "extract"])
@pytest.mark.parametrize("word", ["hang", "timeout"])
def test_a_hang_is_killed_at_the_timeout_of_its_task(flow, task, word):
    words = ("--fail", f"{task}={word}x1", "--result", "extract=[1]", "--json")
    night, fine = (json.loads(rehearse(flow, *one).output) for one in (words, words[2:]))
    assert night["state"] == "SUCCESS" and night["starts"] == fine["starts"] + 1
    assert night["seconds"] >= {"load": 600, "extract": 300}[task]


def test_tasks_take_as_long_as_in_earlier_runs(flow, tmp_path, monkeypatch):
    before = Flow("revenue")
    before.command("extract", "true", timeout=10)
    Executor(flow=before, state=tmp_path / "earlier.db").run()
    with closing(sqlite3.connect(tmp_path / "earlier.db")) as connection, connection:
        connection.execute("UPDATE attempt SET duration_us = 10000")  # whatever it took here
    usual, known = (
        json.loads(rehearse(flow, "--json", *words).output)["seconds"]
        for words in ((), ("--state", str(tmp_path / "earlier.db")))
    )
    assert known < usual - 0.5


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--down", "bank"), "write NAME=10m@2m"),
        (("--down", "bank=soon"), "--down: 'soon' is not a duration"),
        (("--down", "bink=10m"), "no task names the downstream 'bink'; the flow has: bank"),
        (("--fail", "load=KeyErr"), "Python has no exception 'KeyErr'"),
        (("--fail", "lod=503"), "the flow has no task 'lod'"),
        (("--result", "extract=[1"), "--result: not JSON"),
        (("--result", "load"), "write TASK=JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(flow, words, sentence):
    done = rehearse(flow, *words)
    assert sentence in str(done.exception)
