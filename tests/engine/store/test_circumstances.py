"""The same failure again is a proof only where nothing else made a difference (SPEC part 4, 1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from redrive.console.text.event_text import describe_event, lines_of_event
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import TaskSpec
from redrive.engine.runner.zygote.interpreter import environment_hash
from redrive.engine.store import claims
from redrive.engine.store.claims import ClaimOrder
from redrive.engine.store.executors import ExecutorIdentity
from redrive.engine.store.settle import settle

from .conftest import RUN, SECOND, StateFile

SPEC = TaskSpec("a", retry=RetryPolicy(max_attempts=9))
HERE = ExecutorIdentity("executor-1", "ops-1", "code-1", image_hash="image-1")
BOOM = Failure("ZeroDivisionError", "boom", FailureClass.UNCLASSIFIED, Fingerprint("strict", "loose"))


@pytest.fixture
def one_task(state_file: StateFile) -> StateFile:
    state_file.create({"a": ""})
    return state_file


def fail(state_file: StateFile, identity: ExecutorIdentity, failure: Failure = BOOM) -> str:
    """Run it once, as an executor in these circumstances does."""
    order = ClaimOrder("a", state_file.column("a", "generation"), SPEC)
    (claim,) = state_file.write(lambda j: claims.dispatch(j, RUN, {"a": order.generation}, [order], identity))
    outcome = Outcome(OutcomeKind.ERROR, failure)
    state_file.write(lambda j: settle(j, claim, SPEC, outcome, lambda low, high: low))
    state_file.now += SECOND
    return str(state_file.column("a", "state"))


def test_twice_the_same_with_nothing_changed_is_a_dead_letter(one_task: StateFile) -> None:
    assert [fail(one_task, HERE) for _ in range(2)] == ["RETRYING", "DEAD_LETTER"]
    assert one_task.column("a", "dead_letter_kind") == "poison"


@pytest.mark.parametrize(
    ("change", "word"),
    [({"host": "ops-2"}, "host"), ({"image_hash": "image-2"}, "packages"), ({"code_hash": "c2"}, "code")],
)
def test_where_something_changed_it_is_tried_once_more_and_reported(
    one_task: StateFile, change: dict[str, Any], word: str
) -> None:
    there = replace(HERE, **change)
    assert [fail(one_task, HERE), fail(one_task, there)] == ["RETRYING", "RETRYING"]
    event = one_task.emitted[-1]
    assert list(event.payload.changed) == [word]
    assert f"the {word} changed since its last such failure" in describe_event(event)
    assert any(line.endswith(f" changed={word}") for line in lines_of_event(event))
    assert fail(one_task, there) == "DEAD_LETTER"


def test_of_another_failure_nobody_says_that_something_changed(one_task: StateFile) -> None:
    fail(one_task, HERE)
    other = replace(BOOM, fingerprint=Fingerprint("strict-2", "loose-2"))
    assert fail(one_task, replace(HERE, host="ops-2"), other) == "RETRYING"
    assert not one_task.emitted[-1].payload.changed


def test_an_environment_is_the_packages_by_name_and_version_wherever_they_lie(tmp_path: Path) -> None:
    for folder, version in (("one", "2.31.0"), ("two", "2.31.0"), ("three", "2.32.0")):
        (tmp_path / folder / f"requests-{version}.dist-info").mkdir(parents=True)
    one, two, three = (
        environment_hash([str(tmp_path / name), "", "/no/such/folder"]) for name in ("one", "two", "three")
    )
    assert one == two != three
    assert len(one) == 12 and environment_hash() == environment_hash() != one
