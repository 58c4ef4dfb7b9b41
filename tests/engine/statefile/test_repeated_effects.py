"""An effect that has happened is repeated only by an operator who says with which key."""

from __future__ import annotations

from typing import Any

import pytest
from redrive.engine.statefile.dry_run import preview

from ..store.conftest import StateFile
from .act_helpers import results, sentence

EFFECT = {"email": {"effect": True, "idempotent": False}}
STAYS = "email: an effect that has happened; it stays as it is (--same-key or --new-key runs it again)"
SAME = "email: an effect that has happened runs again with its key night/email/0; --new-key gives it a new one"
NEW = "email: an effect that has happened runs again with the new key night/email/1"


@pytest.fixture
def night(state_file: StateFile) -> StateFile:
    """load (with a held row) -> email -> receipt, load -> report; all succeeded."""
    state_file.create({"load": "", "email": "load", "report": "load", "receipt": "email"}, **EFFECT)
    for name in state_file.states():
        state_file.set_state(name, "SUCCESS", attempt=1)
    state_file.connection.execute(
        "INSERT INTO quarantine (run_id, name, attempt, generation, row_key, payload, error, fingerprint, state, at)"
        " VALUES ('night', 'load', 1, 0, 'k', '{}', 'bad', 'fp', 'held', 1)"
    )
    return state_file


def cascade(night: StateFile, act: str, **options: Any) -> dict[str, Any]:
    if act == "requeue-rows":
        options["rows"] = [1]
    return night.command(act, "load", cascade=True, **options)


@pytest.mark.parametrize("act", ["requeue", "requeue-rows"])
@pytest.mark.parametrize(
    ("options", "state", "key_generation", "note"),
    [({}, "SUCCESS", 0, STAYS), ({"same_key": True}, "PENDING", 0, SAME), ({"new_key": True}, "PENDING", 1, NEW)],
)
def test_a_cascade_repeats_an_effect_only_with_a_named_key(
    night: StateFile, act: str, options: dict[str, bool], state: str, key_generation: int, note: str
) -> None:
    command = cascade(night, act, **options)
    seen = preview(night.connection, command, night.now)
    assert list(seen.notes) == [note]
    answer = night.send(command)
    assert note in answer["message"]
    assert (night.states()["email"], night.column("email", "key_generation")) == (state, key_generation)
    assert night.states()["report"] == "PENDING"
    assert ("email" in results(answer)) is (state == "PENDING")
    assert night.column("email", "stale") == (1 if state == "SUCCESS" else 0)
    # Behind an effect that stays, nothing would wait for the task that runs again.
    assert (night.states()["receipt"], night.column("receipt", "stale")) == (state, night.column("email", "stale"))


def test_an_effect_that_is_named_itself_is_refused_without_a_key(night: StateFile) -> None:
    refused = "an effect that has happened: --same-key repeats it with its key night/email/0, --new-key with a new one"
    assert sentence(night.act("requeue", "email"), "email") == refused
    assert night.states()["email"] == "SUCCESS"
    assert SAME in night.act("requeue", "email", same_key=True)["message"]


@pytest.mark.parametrize("state", ["FAILED", "DEAD_LETTER", "CANCELLED"])
def test_an_effect_that_has_not_succeeded_is_requeued_as_before(night: StateFile, state: str) -> None:
    night.set_state("email", state)
    assert results(night.act("requeue", "email")) == {"email": "done"}
    assert night.column("email", "key_generation") == 0


@pytest.mark.parametrize("act", ["requeue", "requeue-rows"])
def test_two_keys_are_refused(night: StateFile, act: str) -> None:
    answer = night.send(cascade(night, act, same_key=True, new_key=True))
    assert not answer["ok"] and "give one of --same-key and --new-key" in answer["message"]
