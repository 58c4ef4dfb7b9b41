"""From a dead letter to a rule of the flow: made, tried on real runs, pasted, and obeyed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from redrive.engine import Executor, Flow, RetryPolicy
from redrive.engine.errors import RedriveError
from support.commands import invoke_redrive
from support.state_file import copy_state_file

ORDERS = ("orders", "refunds", "invoices")


class HttpError(Exception):
    """As a library raises it: the answer is an attribute."""

    def __init__(self, status: int) -> None:
        super().__init__(f"\x1b[31m{status} for /orders/17")
        self.response = type("Response", (), {"status_code": status, "headers": {}})()


def run(tmp_path: Path, run_id: str, broken: bool = True, declare: str = "", downstream: str | None = "shop") -> str:
    """Three tasks that one service turns away. ``declare``: a line of the flow."""
    flow = Flow("nightly")
    if declare:
        eval(declare, {"flow": flow})
    elif downstream is not None:
        flow.downstream(downstream, rules=[{"status": 418, "class": "permanent"}])

    def fetch() -> None:
        if broken:
            raise HttpError(410)

    for name in ORDERS:
        flow.task(fetch, name=name, timeout=30, downstream=downstream, retry=RetryPolicy(max_attempts=2, base=0.01))
    return Executor(run_id=run_id, flow=flow, state=tmp_path / "state.db").run()


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three dead letters two healed when they were requeued, and one was skipped; the next night they are back."""
    tmp_path = tmp_path_factory.mktemp("nights")
    path = tmp_path / "state.db"
    run(tmp_path, "first")
    invoke_redrive("requeue", "--state", path, "--run", "first", *ORDERS[:2], "--reason", "it is back")
    invoke_redrive("skip", "--state", path, "--run", "first", ORDERS[2], "--reason", "not wanted")
    run(tmp_path, "first", broken=False)
    run(tmp_path, "second")
    return path


@pytest.fixture
def state(two_runs: Path, tmp_path: Path) -> Path:
    return copy_state_file(two_runs, tmp_path)


def mark(state: Path) -> str:
    (cause,) = map(json.loads, invoke_redrive("inbox", state, "--json").output.splitlines())
    return str(cause["fingerprint"])


def classify(state: Path, *more: object, as_: str = "transient") -> Result:
    return invoke_redrive("classify", "--state", state, "--fingerprint", mark(state), "--as", as_, *more)


def test_it_prints_the_rule_the_text_of_the_flow_and_what_it_would_have_done(state):
    lines = classify(state).output.splitlines()
    assert lines[0] == "rule     status 410 on shop is transient"
    rules = "[{'status': 410, 'class': 'transient'}, {'status': 418, 'class': 'permanent'}]"
    assert lines[1] == f"paste    flow.downstream('shop', rules={rules})"
    assert lines[2].startswith("history  it fits 6 failures of 6, in 2 runs, the first at ")
    assert lines[-1].startswith("cause    type ") and lines[-1].endswith(" · status 410 · class permanent")
    assert [line.strip() for line in lines[3:-1]] == [
        "it would have changed 6 past decisions:",
        "3 dead-lettered -> retried: not decided yet",
        "2 dead-lettered -> retried: healed when requeued",
        "1 dead-lettered -> retried: skipped",
    ]


def test_what_is_pasted_is_obeyed(state, tmp_path):
    text = classify(state).output.splitlines()[1].removeprefix("paste    ")
    no_breaker = text.removesuffix(")") + ", metrics_only=True)"  # which would hold tasks whose calls all fail
    assert run(tmp_path, "third", declare=no_breaker) == "FAILED"  # retried, and no dead letter
    with sqlite3.connect(state) as connection:
        rows = connection.execute("SELECT DISTINCT state, attempt, failure_class FROM task WHERE run_id = 'third'")
        assert rows.fetchall() == [("FAILED", 2, "transient")]


def test_it_changes_nothing(state):
    def all_records() -> list[Any]:
        with sqlite3.connect(state) as connection:
            return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("event", "task", "run")]

    before = all_records()
    assert classify(state).return_value == 0
    assert all_records() == before


def test_another_condition_can_be_tried_in_its_place(state):
    lines = classify(state, "--when", "status=500").output.splitlines()
    assert lines[0] == "rule     status 500 on shop is transient"
    assert "it fits 0 failures of 6" in lines[2] and lines[3].strip() == "it would have changed no past decision"


def test_as_json_it_is_for_programs(state):
    answer = json.loads(classify(state, "--json", as_="ambiguous").output)
    assert answer["rule"] == {"status": 410, "class": "ambiguous"}
    assert (answer["downstream"], answer["effect"]["fits"]) == ("shop", 6)


def test_without_a_downstream_it_says_that_rules_belong_to_one(tmp_path):
    run(tmp_path, "first", downstream=None)
    lines = classify(tmp_path / "state.db").output.splitlines()
    assert lines[0] == "rule     status 410 is transient"
    assert "these tasks name no downstream" in lines[2] and "it fits 3 failures of 3" in lines[3]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--when", "status"), "write NAME=VALUE"),
        (("--when", "status=many"), "status is a number"),
        (("--when", "colour=red"), "no condition is called 'colour'"),
    ],
)
def test_a_condition_that_cannot_be_is_one_sentence(state, more, sentence):
    done = classify(state, *more)
    assert done.exception is not None and sentence in str(done.exception)


def test_a_fingerprint_that_nothing_has_is_one_sentence(state):
    done = invoke_redrive("classify", "--state", state, "--fingerprint", "00ff", "--as", "transient")
    assert isinstance(done.exception, RedriveError)
    assert str(done.exception) == "nothing of flow nightly failed with fingerprint 00ff"
