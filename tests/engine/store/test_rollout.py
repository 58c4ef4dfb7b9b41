"""Requeue of many with one cause: the first alone, and what follows from its end (SPEC part 4, fix and verify)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import DownstreamSpec, TaskSpec
from redrive.engine.domain.event_payloads import CanaryEnded
from redrive.engine.statefile.changes.dry_run import preview
from redrive.engine.store import claims, recovery, runs
from redrive.engine.store.claims import Claim, ClaimOrder
from redrive.engine.store.settle import settle

from .conftest import RUN, SECOND, START, StateFile

LOADS = ("load_1", "load_2", "load_3", "load_4")
SUCCESS = Outcome(OutcomeKind.SUCCESS)
PATIENT = RetryPolicy(max_attempts=9, base=2)


def failing(loose: str, failure_class: FailureClass = FailureClass.TRANSIENT) -> Outcome:
    return Outcome(OutcomeKind.ERROR, Failure("Boom", "boom", failure_class, Fingerprint(f"strict-{loose}", loose)))


def end(state_file: StateFile, name: str, outcome: Outcome) -> None:
    """Run a task once, to this outcome."""
    generation = state_file.column(name, "generation")
    token = f"token-{name}-{generation}-{state_file.column(name, 'attempt')}"
    state_file.write(lambda j: runs.promote(j, RUN, {name: generation}))
    state_file.write(lambda j: runs.wake(j, RUN, {name: generation}))
    attempt = state_file.claim(name, token)
    assert attempt, f"{name} is {state_file.column(name, 'state')}"
    claim, spec = Claim(RUN, name, attempt, generation, token), TaskSpec(name, retry=PATIENT)
    state_file.write(lambda j: settle(j, claim, spec, outcome, lambda low, high: low))


@pytest.fixture
def night(state_file: StateFile) -> StateFile:
    """Four dead letters of one cause, each with a child that waits."""
    children = {f"after_{name}": name for name in LOADS}
    state_file.create({**dict.fromkeys(LOADS, ""), **children}, **{name: {"retry": PATIENT} for name in LOADS})
    for name in LOADS:
        end(state_file, name, failing("schema", FailureClass.PERMANENT))
    assert [state_file.states()[name] for name in LOADS] == ["DEAD_LETTER"] * 4
    return state_file


def column(state_file: StateFile, what: str) -> list[Any]:
    return [state_file.column(name, what) for name in LOADS]


def told(state_file: StateFile) -> list[tuple[str, list[str]]]:
    payloads = [event.payload for event in state_file.told]
    return [(payload.what, list(payload.tasks)) for payload in payloads if isinstance(payload, CanaryEnded)]


def test_the_first_runs_and_the_others_stay_what_they_are(night: StateFile) -> None:
    answer = night.act("requeue", *LOADS, canary=True)
    assert answer["message"] == "1 requeued; 3 follow when load_1 has succeeded"
    assert [word for _, word, _ in answer["results"]] == ["done", "held", "held", "held"]
    assert column(night, "state") == ["PENDING", "DEAD_LETTER", "DEAD_LETTER", "DEAD_LETTER"]
    assert column(night, "canary") == [None, "load_1", "load_1", "load_1"]
    assert column(night, "generation") == [1, 0, 0, 0]


def test_its_success_lets_the_others_run_at_the_rate_in_the_name_of_who_sent_it(night: StateFile) -> None:
    night.act("requeue", *LOADS, canary=True, rate_per_second=2, timeout=1200)
    night.now += 60 * SECOND
    end(night, "load_1", SUCCESS)
    assert column(night, "state") == ["SUCCESS", "PENDING", "PENDING", "PENDING"]
    waits = [at and (at - night.now) / SECOND for at in column(night, "next_retry_at")]
    assert waits == [None, None, 0.5, 1.0]
    assert column(night, "canary") == [None] * 4
    moves = [event for event in night.told if event.new == "PENDING" and event.task in LOADS[1:] and event.generation]
    assert {(event.actor, event.reason) for event in moves} == {("ana@ops", "the vendor has fixed it")}
    assert [json.loads(text)["timeout"] for text in column(night, "overrides")] == [1200] * 4
    assert told(night) == [("released", list(LOADS[1:]))]


def test_without_a_rate_the_others_come_one_by_one_all_the_same(night: StateFile) -> None:
    night.act("requeue", *LOADS, canary=True)
    end(night, "load_1", SUCCESS)
    assert [at and (at - night.now) / SECOND for at in column(night, "next_retry_at")] == [None, None, 0.2, 0.4]


def test_the_same_failure_again_is_the_answer_and_costs_no_further_attempt(night: StateFile) -> None:
    """Transient now, and eight attempts are left: but it is the failure that the fix was for."""
    night.act("requeue", *LOADS, canary=True)
    end(night, "load_1", failing("schema"))
    assert column(night, "state") == ["DEAD_LETTER"] * 4
    assert column(night, "canary") == [None] * 4
    event = next(event for event in reversed(night.told) if event.task == "load_1" and event.new == "DEAD_LETTER")
    assert "the fix did not help" in (event.payload.why or "")
    assert told(night) == [("not-fixed", list(LOADS[1:]))]
    assert night.states()["after_load_1"] == "PENDING"
    title = night.connection.execute("SELECT title FROM page ORDER BY id DESC").fetchone()[0]
    assert title == "not fixed on load_1"


def test_another_failure_is_retried_and_the_others_go_on_waiting(night: StateFile) -> None:
    night.act("requeue", *LOADS, canary=True)
    end(night, "load_1", failing("network"))
    assert column(night, "state")[0] == "RETRYING" and column(night, "canary")[1:] == ["load_1"] * 3
    end(night, "load_1", SUCCESS)
    assert column(night, "state") == ["SUCCESS", "PENDING", "PENDING", "PENDING"]


def test_a_canary_that_dies_of_something_else_leaves_the_others_to_a_human(night: StateFile) -> None:
    night.act("requeue", *LOADS, canary=True)
    end(night, "load_1", failing("credential", FailureClass.AUTH))
    assert column(night, "state") == ["DEAD_LETTER"] * 4 and column(night, "canary") == [None] * 4
    assert told(night) == [("failed", list(LOADS[1:]))]


def test_one_of_the_others_that_fails_as_before_brings_back_those_that_have_not_begun(night: StateFile) -> None:
    before = column(night, "error")
    night.act("requeue", *LOADS, canary=True, rate_per_second=0.01)
    end(night, "load_1", SUCCESS)
    night.now += 100 * SECOND
    generation = night.column("load_4", "generation")
    night.write(lambda j: runs.promote(j, RUN, {"load_4": generation}))
    night.claim("load_4", "begun")
    end(night, "load_2", failing("schema"))
    assert column(night, "state") == ["SUCCESS", "DEAD_LETTER", "DEAD_LETTER", "RUNNING"]
    assert (night.column("load_3", "generation"), night.column("load_3", "error")) == (0, before[2])
    assert night.column("load_3", "next_retry_at") is None
    assert told(night)[-1] == ("not-fixed", ["load_3"])


def test_what_had_failed_for_good_does_so_again_when_it_is_put_back(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "c": "", "below_c": "c"})
    for name in "abc":
        end(state_file, name, failing("schema", FailureClass.PERMANENT))
    state_file.put("c", "FAILED")
    state_file.put("below_c", "UPSTREAM_FAILED", blocked_by="c")
    state_file.act("requeue", "a", "b", "c", canary=True, rate_per_second=0.01)
    end(state_file, "a", SUCCESS)
    assert state_file.states() == {"a": "SUCCESS", "b": "PENDING", "c": "PENDING", "below_c": "PENDING"}
    end(state_file, "b", failing("schema"))
    assert state_file.states() == {"a": "SUCCESS", "b": "DEAD_LETTER", "c": "FAILED", "below_c": "UPSTREAM_FAILED"}


@pytest.mark.parametrize("act", ["skip", "cancel"])
def test_who_decides_otherwise_about_the_first_sets_the_others_free(night: StateFile, act: str) -> None:
    night.act("requeue", *LOADS, canary=True)
    night.act(act, "load_1")
    assert column(night, "canary") == [None] * 4
    assert column(night, "state")[1:] == ["DEAD_LETTER"] * 3


def test_one_of_the_others_can_be_decided_about_by_itself(night: StateFile) -> None:
    night.act("requeue", *LOADS, canary=True)
    night.act("skip", "load_2")
    night.act("requeue", "load_3")
    end(night, "load_1", SUCCESS)
    assert column(night, "state") == ["SUCCESS", "SKIPPED", "PENDING", "PENDING"]
    assert column(night, "generation") == [1, 0, 1, 1] and night.column("load_3", "next_retry_at") is None


def test_a_canary_is_taken_back_with_all_that_wait_for_it(night: StateFile) -> None:
    before = night.projection().tasks
    command = night.command("requeue", *LOADS, canary=True)
    night.send(command)
    assert night.act("undo", command=command["id"])["ok"]
    after = night.projection().tasks
    for row in after.values():
        row.changed_seq, row.changed_at = before[row.name].changed_seq, before[row.name].changed_at
    assert after == before


def test_the_release_of_the_others_is_an_act_that_can_be_taken_back(night: StateFile) -> None:
    night.act("requeue", *LOADS, canary=True)
    end(night, "load_1", SUCCESS)
    sql = "SELECT command_id FROM event WHERE kind = 'operator' ORDER BY seq DESC LIMIT 1"
    (release,) = night.connection.execute(sql).fetchone()
    assert night.act("undo", command=release)["ok"]
    assert column(night, "state") == ["SUCCESS", "DEAD_LETTER", "DEAD_LETTER", "DEAD_LETTER"]
    assert column(night, "canary") == [None] * 4


def test_a_canary_outlives_its_executor(night: StateFile) -> None:
    night.act("requeue", *LOADS, canary=True)
    night.write(lambda j: runs.promote(j, RUN, {"load_1": 1}))
    night.claim("load_1", "lost")
    night.write(lambda j: recovery.recover(j, "executor-2", lambda low, high: low))
    assert column(night, "state")[0] == "RETRYING" and column(night, "canary")[1:] == ["load_1"] * 3
    end(night, "load_1", SUCCESS)
    assert column(night, "state") == ["SUCCESS", "PENDING", "PENDING", "PENDING"]


def test_a_canary_that_a_breaker_turns_away_leaves_nobody_waiting_for_it(night: StateFile) -> None:
    night.act("requeue", *LOADS, canary=True)
    order = ClaimOrder("load_1", 1, TaskSpec("load_1", downstream=DownstreamSpec("api").name))
    night.write(lambda j: claims.reject(j, RUN, order, "dead_letter"))
    assert column(night, "state") == ["DEAD_LETTER"] * 4 and column(night, "canary") == [None] * 4


def test_only_what_has_failed_takes_part(night: StateFile) -> None:
    answer = night.act("requeue", "after_load_1", *LOADS, canary=True)
    assert answer["results"][0][:2] == ["after_load_1", "refused"]
    night.put("after_load_1", "SUCCESS")
    answer = night.act("requeue", "after_load_1", "load_2", canary=True)
    assert [(name, word) for name, word, _ in answer["results"]] == [("after_load_1", "refused"), ("load_2", "done")]


def test_a_preview_of_a_canary_shows_what_runs_and_what_waits(night: StateFile) -> None:
    shown = preview(night.connection, night.command("requeue", *LOADS, canary=True), START)
    assert shown["run_again"] == ["load_1"] and "3 follow when load_1 has succeeded" in shown["message"]
    assert column(night, "canary") == [None] * 4
