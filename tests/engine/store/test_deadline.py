"""The deadline of a run in the state file: what it ends, in one transaction, and what becomes of what it ended."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.event_payloads import RunChange
from redrive.engine.domain.text import format_clock
from redrive.engine.store import claims, endings, recovery
from redrive.engine.store.claims import Claim
from redrive.engine.store.settle import settle

from .conftest import RUN, SECOND, START, StateFile

DUE = START + 3600 * SECOND
WHY = f"deadline {format_clock(DUE)} passed"
CANCELLED = Outcome(OutcomeKind.CANCELLED)
BROKEN = Outcome(OutcomeKind.ERROR, Failure("E", "no", FailureClass.PERMANENT, Fingerprint("strict", "loose")))


def create(state_file: StateFile, edges: dict[str, str], options: dict[str, Any] | None = None, **specs: Any) -> None:
    state_file.create(edges, **specs)
    state_file.connection.execute("UPDATE run SET deadline_at = ?, options = ?", (DUE, json.dumps(options or {})))


def start(state_file: StateFile, name: str) -> Claim:
    state_file.write(lambda j: claims.promote(j, RUN, {name: state_file.column(name, "generation")}))
    attempt = state_file.claim(name, f"token-{name}")
    return Claim(RUN, name, attempt, state_file.column(name, "generation"), f"token-{name}")


def end(state_file: StateFile, claim: Claim, outcome: Outcome, **spec: Any) -> None:
    state_file.write(lambda j: settle(j, claim, TaskSpec(claim.task, **spec), outcome, lambda low, high: low))


def pass_deadline(state_file: StateFile, after: int = 0) -> bool:
    state_file.now = DUE + after * SECOND
    return state_file.write(lambda j: endings.pass_deadline(j, RUN))


def pages(state_file: StateFile) -> list[tuple[Any, ...]]:
    return state_file.connection.execute("SELECT cause, title, severity, count, state FROM page ORDER BY id").fetchall()


def test_nothing_ends_before_the_deadline(state_file: StateFile) -> None:
    create(state_file, {"a": ""})
    state_file.now = DUE - 1
    assert not state_file.write(lambda j: endings.pass_deadline(j, RUN))
    assert state_file.states() == {"a": "PENDING"}


def test_what_has_not_started_is_cancelled_with_the_reason_and_what_runs_is_asked_to_end(
    state_file: StateFile,
) -> None:
    create(state_file, {"long": "", "below": "long", "ready": "", "clean": "below"}, clean={"rule": "all_done"})
    start(state_file, "long")
    state_file.write(lambda j: claims.promote(j, RUN, {"ready": 0}))
    assert pass_deadline(state_file)
    assert state_file.states() == {"long": "RUNNING", "below": "CANCELLED", "ready": "CANCELLED", "clean": "PENDING"}
    assert {state_file.column(name, "error") for name in ("long", "below", "ready")} == {WHY}
    assert state_file.column("long", "cancel_requested_at") == DUE
    sentence = f"{WHY}: long is ended, 2 tasks are cancelled, clean cleans up"
    assert [event.payload.why for event in state_file.emitted if event.kind == "run"][-1] == sentence
    assert pages(state_file) == [(f"deadline:{RUN}", "deadline missed", "critical", 1, "open")]


def test_it_ends_nothing_a_second_time(state_file: StateFile) -> None:
    create(state_file, {"a": ""})
    assert pass_deadline(state_file)
    assert not pass_deadline(state_file, after=1)
    assert pages(state_file)[0][3] == 1


def test_a_deadline_that_only_pages_ends_nothing(state_file: StateFile) -> None:
    create(state_file, {"a": ""}, {"deadline_action": "page"})
    assert not pass_deadline(state_file)
    assert state_file.states() == {"a": "PENDING"}


def test_an_attempt_that_the_deadline_ended_is_cancelled_and_its_page_stays_open(state_file: StateFile) -> None:
    create(state_file, {"long": "", "below": "long"})
    claim = start(state_file, "long")
    pass_deadline(state_file)
    end(state_file, claim, CANCELLED)
    assert state_file.states() == {"long": "CANCELLED", "below": "CANCELLED"}
    columns = [state_file.column("long", column) for column in ("error", "failure_mode", "cancel_requested_at")]
    assert columns == [WHY, "deadline", None]
    assert [page[-1] for page in pages(state_file)] == ["open"]


def test_an_attempt_that_still_succeeds_is_a_success(state_file: StateFile) -> None:
    create(state_file, {"long": ""})
    claim = start(state_file, "long")
    pass_deadline(state_file)
    end(state_file, claim, Outcome(OutcomeKind.SUCCESS))
    assert state_file.states() == {"long": "SUCCESS"}
    assert (state_file.column("long", "error"), state_file.column("long", "failure_mode")) == (None, None)


@pytest.mark.parametrize("outcome", [CANCELLED, Outcome(OutcomeKind.LOST)])
def test_an_effect_that_it_interrupts_waits_for_a_human(state_file: StateFile, outcome: Outcome) -> None:
    """Nobody knows whether it has happened."""
    effect = {"effect": True, "idempotent": False}
    create(state_file, {"pay": "", "below": "pay"}, pay=effect)
    claim = start(state_file, "pay")
    pass_deadline(state_file)
    end(state_file, claim, outcome, **effect)
    assert state_file.states() == {"pay": "DEAD_LETTER", "below": "CANCELLED"}
    assert state_file.column("pay", "dead_letter_kind") == "indeterminate"
    assert state_file.column("pay", "error").startswith(f"{WHY}; its process died after the effect began: look for")


def test_a_task_that_fails_while_it_is_ended_is_not_retried(state_file: StateFile) -> None:
    create(state_file, {"long": ""})
    claim = start(state_file, "long")
    pass_deadline(state_file)
    transient = Failure("E", "busy", FailureClass.TRANSIENT, Fingerprint("strict", "loose"))
    end(state_file, claim, Outcome(OutcomeKind.ERROR, transient))
    assert state_file.states() == {"long": "CANCELLED"}


def test_an_executor_that_dies_while_it_ends_attempts_leaves_nothing_that_runs_again(state_file: StateFile) -> None:
    create(state_file, {"long": "", "below": "long"})
    start(state_file, "long")
    pass_deadline(state_file)
    state_file.write(lambda j: recovery.recover(j, "executor-2", lambda low, high: low))
    assert state_file.states() == {"long": "CANCELLED", "below": "CANCELLED"}
    assert state_file.column("long", "error") == WHY


def test_an_executor_that_was_down_at_the_deadline_ends_what_it_lost(state_file: StateFile) -> None:
    create(state_file, {"long": "", "below": "long"})
    start(state_file, "long")
    state_file.now = DUE + 60 * SECOND
    state_file.write(lambda j: recovery.recover(j, "executor-2", lambda low, high: low))
    assert state_file.states()["long"] == "RETRYING"
    assert pass_deadline(state_file, after=61)
    assert state_file.states() == {"long": "CANCELLED", "below": "CANCELLED"}


def test_a_dead_letter_stays_for_a_human_and_the_run_fails_all_the_same(state_file: StateFile) -> None:
    create(state_file, {"a": "", "b": "a"})
    end(state_file, start(state_file, "a"), BROKEN)
    pass_deadline(state_file)
    assert state_file.states() == {"a": "DEAD_LETTER", "b": "CANCELLED"}
    state_file.write(lambda j: endings.end_at_deadline(j, RUN))
    assert state_file.run_column("state") == "FAILED"
    ended = [event.payload for event in state_file.emitted if event.kind == "run"][-1]
    assert (ended.what, ended.why) == (RunChange.ENDED, WHY)


def test_a_run_is_not_ended_while_a_task_of_it_runs(state_file: StateFile) -> None:
    create(state_file, {"long": ""})
    start(state_file, "long")
    pass_deadline(state_file)
    state_file.write(lambda j: endings.end_at_deadline(j, RUN))
    assert state_file.run_column("state") == "RUNNING"


def test_a_dead_letter_with_a_ttl_expires_at_the_deadline_without_a_page_of_its_own(state_file: StateFile) -> None:
    create(state_file, {"a": "", "b": "a"}, {"dead_letter_ttl": 36_000})
    end(state_file, start(state_file, "a"), BROKEN)
    pass_deadline(state_file)
    assert state_file.states() == {"a": "FAILED", "b": "UPSTREAM_FAILED"}
    assert [page[1] for page in pages(state_file)] == ["permanent on a", "deadline missed"]
