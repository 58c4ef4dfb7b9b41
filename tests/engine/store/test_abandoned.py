"""Acts on what a dead executor left RUNNING: settled as lost first, and never while anything of it lives."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from redrive.engine.domain.event_payloads import AnswerFields
from redrive.engine.domain.events import EventKind
from redrive.engine.statefile.processes import identity

from .conftest import SECOND, StateFile


def crash(state_file: StateFile, **spec: Any) -> None:
    """Executor-1 is no more, and ``a``, which ``b`` waits for, was running."""
    state_file.create({"a": "", "b": "a"}, a=spec)
    state_file.connection.execute(
        "INSERT INTO executor (executor_id, pid, host, version, started_at, heartbeat_at)"
        " VALUES ('executor-1', 1, '', '', ?, ?)",
        (state_file.now, state_file.now),
    )
    state_file.move("a", "READY")
    state_file.claim("a")
    state_file.now += SECOND


def act(state_file: StateFile, name: str, **options: Any) -> AnswerFields:
    command = state_file.command(name, "a", **options)
    return state_file.send(command, is_abandoned=True)


@pytest.mark.parametrize(("name", "state"), [("requeue", "PENDING"), ("skip", "SKIPPED"), ("cancel", "CANCELLED")])
def test_an_act_finds_the_attempt_lost_and_is_done(state_file: StateFile, name: str, state: str) -> None:
    crash(state_file)
    answer = act(state_file, name)
    assert answer["ok"] and [result[1] for result in answer["results"]] == ["done"]
    row = state_file.projection().tasks["a"]
    assert (row.state, row.attempts[1].outcome, row.attempts[1].ended_at) == (state, "lost", state_file.now)
    events = [event for event in state_file.emitted if event.kind == EventKind.ATTEMPT_RECLAIMED]
    assert [(event.task, event.actor, event.payload.process) for event in events] == [("a", None, "gone")]
    assert state_file.column("a", "claim_token") is None


def test_more_time_is_refused_and_nothing_is_settled(state_file: StateFile) -> None:
    crash(state_file, timeout=60.0)
    answer = act(state_file, "extend", seconds=60)
    assert answer["results"] == [["a", "refused", "its executor is dead: nothing of it runs any more"]]
    assert state_file.states()["a"] == "RUNNING"


def test_a_living_executor_is_asked_to_cancel_first(state_file: StateFile) -> None:
    crash(state_file)
    assert state_file.act("requeue", "a")["message"] == "a: it runs: cancel it first, then requeue it"
    assert state_file.states()["a"] == "RUNNING"


def test_what_may_not_happen_twice_is_a_dead_letter_before_it_is_run_again(state_file: StateFile) -> None:
    """The operator saw RUNNING: only who has read that nobody knows may say "again"."""
    crash(state_file, idempotent=False)
    answer = act(state_file, "requeue")
    assert not answer["ok"] and "find out whether it happened" in answer["message"]
    row = state_file.projection().tasks["a"]
    assert (row.state, row.dead_letter_kind, row.losses) == ("DEAD_LETTER", "indeterminate", 1)
    assert act(state_file, "requeue")["ok"]
    assert state_file.states() == {"a": "PENDING", "b": "PENDING"}


def test_what_may_not_happen_twice_can_be_skipped_at_once(state_file: StateFile) -> None:
    crash(state_file, idempotent=False)
    assert act(state_file, "skip")["ok"]
    assert state_file.states()["a"] == "SKIPPED"


def test_nothing_is_done_while_a_process_of_the_attempt_lives(state_file: StateFile) -> None:
    crash(state_file)
    start_ticks, boot_id = identity(os.getpid())
    state_file.connection.execute("UPDATE attempt SET pid = ?, pid_start_ticks = ?", (os.getpid(), start_ticks))
    state_file.connection.execute("UPDATE executor SET boot_id = ?", (boot_id,))
    answer = act(state_file, "requeue")
    assert not answer["ok"] and f"process {os.getpid()} of it still lives" in answer["message"]
    assert state_file.states()["a"] == "RUNNING"
    state_file.connection.execute("UPDATE executor SET boot_id = 'another boot'")
    assert act(state_file, "requeue")["ok"]


def test_nothing_is_done_while_somebody_bears_the_token_of_the_dead_executor(state_file: StateFile) -> None:
    crash(state_file)
    heir = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, "REDRIVE_EXECUTOR": "executor-1"}
    )
    try:
        assert f"process {heir.pid} of it still lives" in act(state_file, "skip")["message"]
    finally:
        heir.communicate(b"\n")
    assert act(state_file, "skip")["ok"]


def test_on_a_dask_worker_an_attempt_may_live_until_its_lease_is_over(state_file: StateFile) -> None:
    crash(state_file, isolation="dask", grace_seconds=5.0)
    assert "it may still run on a Dask worker" in act(state_file, "requeue")["message"]
    state_file.now += 60 * SECOND
    assert act(state_file, "requeue")["ok"]


def test_a_loss_that_an_act_settles_forgets_those_of_other_days(state_file: StateFile) -> None:
    crash(state_file)
    state_file.connection.execute("UPDATE task SET losses = 2")
    assert act(state_file, "cancel")["ok"]
    assert state_file.column("a", "losses") == 1


def test_an_undo_takes_the_act_back_and_leaves_the_loss(state_file: StateFile) -> None:
    crash(state_file)
    command = state_file.command("requeue", "a")
    state_file.send(command, is_abandoned=True)
    undone = state_file.command("undo")
    undone["options"] = {"command": command["id"]}
    assert state_file.send(undone)["ok"]
    row = state_file.projection().tasks["a"]
    assert (row.state, row.generation, row.losses, row.attempts[1].outcome) == ("RETRYING", 0, 1, "lost")


# --- A refused credential ------------------------------------------------------------------------------------------


def refused(state_file: StateFile, kind: str = "auth", breaker: str = "OPEN", reopens_at: int | None = None) -> None:
    """``a`` is a dead letter, and the breaker of what it calls lets nobody through."""
    state_file.create({"a": ""}, a={"downstream": "vault"})
    state_file.set_state("a", "DEAD_LETTER", dead_letter_kind=kind)
    state_file.connection.execute(
        "INSERT INTO breaker (downstream, state, reopens_at, changed_at) VALUES ('vault', ?, ?, 0)",
        (breaker, reopens_at),
    )


def breaker(state_file: StateFile) -> Any:
    return state_file.connection.execute("SELECT state, reopens_at FROM breaker").fetchone()


def test_a_requeue_after_a_refused_credential_arms_one_probe_and_says_so(state_file: StateFile) -> None:
    refused(state_file)
    answer = act(state_file, "requeue")
    assert answer["message"] == "1 requeued; vault is asked with one call whether it takes the credential now"
    assert breaker(state_file) == ("OPEN", state_file.now)
    events = [event.payload for event in state_file.emitted if event.kind == EventKind.BREAKER]
    assert [(change.downstream, change.state, change.reopens_at) for change in events] == [
        ("vault", "OPEN", state_file.now)
    ]


def test_a_living_executor_is_asked_to_arm_its_own_breaker(state_file: StateFile) -> None:
    refused(state_file)
    state_file.act("requeue", "a")
    assert breaker(state_file) == ("OPEN", None)
    assert [event.payload.probes for event in state_file.emitted if event.kind == EventKind.OPERATOR] == [["vault"]]


@pytest.mark.parametrize(
    ("kind", "state", "word"),
    [("poison", "OPEN", "open until an operator closes it"), ("auth", "FORCED_OPEN", "which an operator holds open")],
)
def test_a_requeue_that_stays_held_says_by_what_and_the_way_out(
    state_file: StateFile, kind: str, state: str, word: str
) -> None:
    """A requeue of anything else says nothing of a credential, and nobody opens what a colleague holds."""
    refused(state_file, kind, state)
    message = act(state_file, "requeue")["message"]
    assert (
        message == f"1 requeued; 1 still held by the breaker of vault, {word}: redrive systems breakers --probe vault"
    )
    assert breaker(state_file) == (state, None)


def test_a_breaker_that_opens_by_itself_is_no_news(state_file: StateFile) -> None:
    refused(state_file, reopens_at=state_file.now + 60 * SECOND)
    assert act(state_file, "requeue")["message"] == "1 requeued"


@pytest.mark.parametrize(
    ("how", "state"), [("open", "FORCED_OPEN"), ("close", "CLOSED"), ("probe", "OPEN"), ("disable", "DISABLED")]
)
def test_breakers_can_be_set_with_no_executor_alive(state_file: StateFile, how: str, state: str) -> None:
    refused(state_file)
    command = {**state_file.command("breaker", downstream="vault", how=how)}
    answer = state_file.send(command, is_abandoned=True)
    assert answer["ok"] and breaker(state_file) == (state, state_file.now if how == "probe" else None)


def test_a_breaker_that_lets_calls_pass_is_not_probed(state_file: StateFile) -> None:
    state_file.create({"a": ""}, a={"downstream": "vault"})
    answer = state_file.send(state_file.command("breaker", downstream="vault", how="probe"), is_abandoned=True)
    assert (answer["ok"], answer["message"]) == (False, "vault lets every call through: there is nothing to probe")


def test_what_is_no_downstream_of_the_run_cannot_be_set(state_file: StateFile) -> None:
    state_file.create({"a": ""}, a={"downstream": "vault"})
    command = state_file.command("breaker", downstream="volt", how="close")
    answer = state_file.send(command, is_abandoned=True)
    assert answer["message"] == "this run has no downstream 'volt'; it has: vault"
