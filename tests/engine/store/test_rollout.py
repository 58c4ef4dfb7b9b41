"""Requeue of many with one cause: the first alone, and what follows from its end (SPEC part 4, 4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import DownstreamSpec, TaskSpec
from redrive.engine.domain.event_payloads import CanaryEnded
from redrive.engine.statefile.dry_run import preview
from redrive.engine.store import claims, recovery
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
    state_file.write(lambda j: claims.promote(j, RUN, {name: generation}))
    state_file.write(lambda j: claims.wake(j, RUN, {name: generation}))
    attempt = state_file.claim(name, token)
    assert attempt, f"{name} is {state_file.column(name, 'state')}"
    claim, spec = Claim(RUN, name, attempt, generation, token), TaskSpec(name, retry=PATIENT)
    state_file.write(lambda j: settle(j, claim, spec, outcome, lambda low, high: low))


@pytest.fixture
def blocked(state_file: StateFile) -> StateFile:
    """Four dead letters of one cause, each with a child that waits."""
    children = {f"after_{name}": name for name in LOADS}
    state_file.create({**dict.fromkeys(LOADS, ""), **children}, **{name: {"retry": PATIENT} for name in LOADS})
    for name in LOADS:
        end(state_file, name, failing("schema", FailureClass.PERMANENT))
    assert [state_file.states()[name] for name in LOADS] == ["DEAD_LETTER"] * 4
    return state_file


def column(state_file: StateFile, what: str) -> list[Any]:
    return [state_file.column(name, what) for name in LOADS]


def canary_ends(state_file: StateFile) -> list[tuple[str, list[str]]]:
    payloads = [event.payload for event in state_file.emitted]
    return [(payload.what, list(payload.tasks)) for payload in payloads if isinstance(payload, CanaryEnded)]


def test_the_first_runs_and_the_others_stay_what_they_are(blocked: StateFile) -> None:
    answer = blocked.act("requeue", *LOADS, canary=True)
    assert answer["message"] == "1 requeued; 3 follow when load_1 has succeeded"
    assert [word for _, word, _ in answer["results"]] == ["done", "held", "held", "held"]
    assert column(blocked, "state") == ["PENDING", "DEAD_LETTER", "DEAD_LETTER", "DEAD_LETTER"]
    assert column(blocked, "canary") == [None, "load_1", "load_1", "load_1"]
    assert column(blocked, "generation") == [1, 0, 0, 0]


def test_its_success_lets_the_others_run_at_the_rate_in_the_name_of_who_sent_it(blocked: StateFile) -> None:
    blocked.act("requeue", *LOADS, canary=True, rate_per_second=2, timeout=1200)
    blocked.now += 60 * SECOND
    end(blocked, "load_1", SUCCESS)
    assert column(blocked, "state") == ["SUCCESS", "PENDING", "PENDING", "PENDING"]
    waits = [at and (at - blocked.now) / SECOND for at in column(blocked, "next_retry_at")]
    assert waits == [None, None, 0.5, 1.0]
    assert column(blocked, "canary") == [None] * 4
    moves = [
        event for event in blocked.emitted if event.new == "PENDING" and event.task in LOADS[1:] and event.generation
    ]
    assert {(event.actor, event.reason) for event in moves} == {("ana@ops", "the vendor has fixed it")}
    assert [json.loads(text)["timeout"] for text in column(blocked, "overrides")] == [1200] * 4
    assert canary_ends(blocked) == [("released", list(LOADS[1:]))]


def test_without_a_rate_the_others_come_one_by_one_all_the_same(blocked: StateFile) -> None:
    blocked.act("requeue", *LOADS, canary=True)
    end(blocked, "load_1", SUCCESS)
    assert [at and (at - blocked.now) / SECOND for at in column(blocked, "next_retry_at")] == [None, None, 0.2, 0.4]


def test_the_same_failure_again_is_the_answer_and_costs_no_further_attempt(blocked: StateFile) -> None:
    """Transient now, and eight attempts are left: but it is the failure that the fix was for."""
    blocked.act("requeue", *LOADS, canary=True)
    end(blocked, "load_1", failing("schema"))
    assert column(blocked, "state") == ["DEAD_LETTER"] * 4
    assert column(blocked, "canary") == [None] * 4
    event = next(event for event in reversed(blocked.emitted) if event.task == "load_1" and event.new == "DEAD_LETTER")
    assert "the fix did not help" in (event.payload.why or "")
    assert canary_ends(blocked) == [("not-fixed", list(LOADS[1:]))]
    assert blocked.states()["after_load_1"] == "PENDING"
    title = blocked.connection.execute("SELECT title FROM page ORDER BY id DESC").fetchone()[0]
    assert title == "not fixed on load_1"


def test_another_failure_is_retried_and_the_others_go_on_waiting(blocked: StateFile) -> None:
    blocked.act("requeue", *LOADS, canary=True)
    end(blocked, "load_1", failing("network"))
    assert column(blocked, "state")[0] == "RETRYING" and column(blocked, "canary")[1:] == ["load_1"] * 3
    end(blocked, "load_1", SUCCESS)
    assert column(blocked, "state") == ["SUCCESS", "PENDING", "PENDING", "PENDING"]


def test_a_canary_that_dies_of_something_else_leaves_the_others_to_a_human(blocked: StateFile) -> None:
    blocked.act("requeue", *LOADS, canary=True)
    end(blocked, "load_1", failing("credential", FailureClass.AUTH))
    assert column(blocked, "state") == ["DEAD_LETTER"] * 4 and column(blocked, "canary") == [None] * 4
    assert canary_ends(blocked) == [("failed", list(LOADS[1:]))]


def test_one_of_the_others_that_fails_as_before_brings_back_those_that_have_not_begun(blocked: StateFile) -> None:
    before = column(blocked, "error")
    blocked.act("requeue", *LOADS, canary=True, rate_per_second=0.01)
    end(blocked, "load_1", SUCCESS)
    blocked.now += 100 * SECOND
    generation = blocked.column("load_4", "generation")
    blocked.write(lambda j: claims.promote(j, RUN, {"load_4": generation}))
    blocked.claim("load_4", "begun")
    end(blocked, "load_2", failing("schema"))
    assert column(blocked, "state") == ["SUCCESS", "DEAD_LETTER", "DEAD_LETTER", "RUNNING"]
    assert (blocked.column("load_3", "generation"), blocked.column("load_3", "error")) == (0, before[2])
    assert blocked.column("load_3", "next_retry_at") is None
    assert canary_ends(blocked)[-1] == ("not-fixed", ["load_3"])


def test_what_had_failed_for_good_does_so_again_when_it_is_put_back(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": "", "c": "", "below_c": "c"})
    for name in "abc":
        end(state_file, name, failing("schema", FailureClass.PERMANENT))
    state_file.set_state("c", "FAILED")
    state_file.set_state("below_c", "UPSTREAM_FAILED", blocked_by="c")
    state_file.act("requeue", "a", "b", "c", canary=True, rate_per_second=0.01)
    end(state_file, "a", SUCCESS)
    assert state_file.states() == {"a": "SUCCESS", "b": "PENDING", "c": "PENDING", "below_c": "PENDING"}
    end(state_file, "b", failing("schema"))
    assert state_file.states() == {"a": "SUCCESS", "b": "DEAD_LETTER", "c": "FAILED", "below_c": "UPSTREAM_FAILED"}


@pytest.mark.parametrize("act", ["skip", "cancel"])
def test_who_decides_otherwise_about_the_first_sets_the_others_free(blocked: StateFile, act: str) -> None:
    blocked.act("requeue", *LOADS, canary=True)
    blocked.act(act, "load_1")
    assert column(blocked, "canary") == [None] * 4
    assert column(blocked, "state")[1:] == ["DEAD_LETTER"] * 3


def test_one_of_the_others_can_be_decided_about_by_itself(blocked: StateFile) -> None:
    blocked.act("requeue", *LOADS, canary=True)
    blocked.act("skip", "load_2")
    blocked.act("requeue", "load_3")
    end(blocked, "load_1", SUCCESS)
    assert column(blocked, "state") == ["SUCCESS", "SKIPPED", "PENDING", "PENDING"]
    assert column(blocked, "generation") == [1, 0, 1, 1] and blocked.column("load_3", "next_retry_at") is None


def test_a_canary_is_taken_back_with_all_that_wait_for_it(blocked: StateFile) -> None:
    before = blocked.projection().tasks
    command = blocked.command("requeue", *LOADS, canary=True)
    blocked.send(command)
    assert blocked.act("undo", command=command["id"])["ok"]
    after = blocked.projection().tasks
    for row in after.values():
        row.changed_seq, row.changed_at = before[row.name].changed_seq, before[row.name].changed_at
    assert after == before


def test_the_release_of_the_others_is_an_act_that_can_be_taken_back(blocked: StateFile) -> None:
    blocked.act("requeue", *LOADS, canary=True)
    end(blocked, "load_1", SUCCESS)
    sql = "SELECT command_id FROM event WHERE kind = 'operator' ORDER BY seq DESC LIMIT 1"
    (release,) = blocked.connection.execute(sql).fetchone()
    assert blocked.act("undo", command=release)["ok"]
    assert column(blocked, "state") == ["SUCCESS", "DEAD_LETTER", "DEAD_LETTER", "DEAD_LETTER"]
    assert column(blocked, "canary") == [None] * 4


def test_a_canary_outlives_its_executor(blocked: StateFile) -> None:
    blocked.act("requeue", *LOADS, canary=True)
    blocked.write(lambda j: claims.promote(j, RUN, {"load_1": 1}))
    blocked.claim("load_1", "lost")
    blocked.write(lambda j: recovery.recover(j, "executor-2", lambda low, high: low))
    assert column(blocked, "state")[0] == "RETRYING" and column(blocked, "canary")[1:] == ["load_1"] * 3
    end(blocked, "load_1", SUCCESS)
    assert column(blocked, "state") == ["SUCCESS", "PENDING", "PENDING", "PENDING"]


def test_a_canary_that_a_breaker_turns_away_leaves_nobody_waiting_for_it(blocked: StateFile) -> None:
    blocked.act("requeue", *LOADS, canary=True)
    order = ClaimOrder("load_1", 1, TaskSpec("load_1", downstream=DownstreamSpec("api").name))
    blocked.write(lambda j: claims.reject(j, RUN, order, "dead_letter"))
    assert column(blocked, "state") == ["DEAD_LETTER"] * 4 and column(blocked, "canary") == [None] * 4


def test_only_what_has_failed_takes_part(blocked: StateFile) -> None:
    answer = blocked.act("requeue", "after_load_1", *LOADS, canary=True)
    assert answer["results"][0][:2] == ["after_load_1", "refused"]
    blocked.set_state("after_load_1", "SUCCESS")
    answer = blocked.act("requeue", "after_load_1", "load_2", canary=True)
    assert [(name, word) for name, word, _ in answer["results"]] == [("after_load_1", "refused"), ("load_2", "done")]


def test_a_preview_of_a_canary_shows_what_runs_and_what_waits(blocked: StateFile) -> None:
    shown = preview(blocked.connection, blocked.command("requeue", *LOADS, canary=True), START)
    assert shown.run_again == ["load_1"] and "3 follow when load_1 has succeeded" in shown.message
    assert column(blocked, "canary") == [None] * 4
