"""Tasks of a run that fail alike: what counts, who is ended with them, and how little of the file is read for it."""

from __future__ import annotations

import re

import pytest
from redrive.engine.core.decide import Siblings
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.store.settle import end_siblings, read_siblings

from .conftest import RUN, StateFile

SAME = {"failure_fingerprint": "same", "failures": 1}
DEAD = {**SAME, "dead_letter_kind": "poison"}
FAILURE = Failure("KeyError", "'sum'", FailureClass.UNCLASSIFIED, Fingerprint("same", "loose"))


@pytest.fixture
def siblings(state_file: StateFile) -> StateFile:
    """Three dead letters, and others in all states."""
    names = ("dead1", "dead2", "dead3", "waits", "due", "runs", "changed", "other", "fresh", "healed")
    state_file.create({**dict.fromkeys(names, ""), "asked": ""}, asked={"retry": RetryPolicy(poison_after=5)})
    for name in names[:3]:
        state_file.set_state(name, "DEAD_LETTER", **DEAD)
    for name, state in {"waits": "RETRYING", "due": "READY", "runs": "RUNNING", "asked": "RETRYING"}.items():
        state_file.set_state(name, state, **SAME)
    state_file.set_state("changed", "RETRYING", **SAME, overrides='{"timeout": 5}')
    state_file.set_state("other", "RETRYING", failure_fingerprint="other", failures=1)
    return state_file


def end_all(state_file: StateFile, failure: Failure = FAILURE) -> dict[str, str]:
    state_file.write(lambda transaction: end_siblings(transaction, RUN, "dead3", failure))
    return {name: str(state) for name, state in state_file.states().items()}


def test_others_are_counted_up_to_three(siblings: StateFile) -> None:
    assert read_siblings(siblings.connection, RUN, "runs", "same") == Siblings(3, 3, 0)
    assert read_siblings(siblings.connection, RUN, "dead1", "same") == Siblings(3, 2, 0)
    assert read_siblings(siblings.connection, RUN, "runs", "other") == Siblings(1, 0, 0)
    siblings.set_state("healed", "SUCCESS", **SAME)
    assert read_siblings(siblings.connection, RUN, "runs", "same") == Siblings(3, 3, 1)


def test_who_waits_for_a_retry_is_ended_with_them(siblings: StateFile) -> None:
    before = siblings.states()
    after = end_all(siblings)
    ended = {name for name in after if after[name] != before[name]}
    assert ended == {
        "waits",
        "due",
    }  # not who runs, asked for another rule, was changed by an operator, failed otherwise
    assert {after[name] for name in ended} == {"DEAD_LETTER"}
    assert siblings.column("waits", "dead_letter_kind") == "poison"
    ((count,),) = siblings.connection.execute("SELECT count FROM page").fetchall()
    assert count == 2  # one page for both


@pytest.mark.parametrize("reason", ["one healed", "two are dead", "no evidence by its type"])
def test_nobody_is_ended_without_proof(siblings: StateFile, reason: str) -> None:
    failure = FAILURE
    if reason == "one healed":
        siblings.set_state("healed", "SUCCESS", **SAME)
    elif reason == "two are dead":
        siblings.set_state("dead1", "SKIPPED", failure_fingerprint=None)
    else:
        failure = Failure("RuntimeError", "?", FailureClass.UNCLASSIFIED, Fingerprint("same", "loose"))
    before = siblings.states()
    assert end_all(siblings, failure) == before


def test_no_statement_walks_the_tasks_of_the_run(siblings: StateFile) -> None:
    """It is done at each such failure: of 10,000 siblings, 10,000 times."""
    statements: set[str] = set()
    siblings.connection.set_trace_callback(statements.add)
    end_all(siblings)
    siblings.connection.set_trace_callback(None)
    asked = [text for text in statements if "failure_fingerprint = " in text and text.startswith("SELECT")]
    steps = [step for text in asked for *_, step in siblings.connection.execute(f"EXPLAIN QUERY PLAN {text}")]
    of_tasks = [step for step in steps if re.search(r"\btask\b", step)]
    allowed = r"USING COVERING INDEX idx_task_failure|PRIMARY KEY \(run_id=\? AND name=\?\)"
    assert len(asked) == 2 and of_tasks
    assert [step for step in of_tasks if not re.search(allowed, step)] == []
