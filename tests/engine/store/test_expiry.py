"""dead_letter_ttl: what nobody decides about becomes FAILED, so that no run hangs for ever (SPEC 4.7)."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from redrive.engine import Executor, Flow, FlowError, PermanentError, RunOptions
from redrive.engine.core.explain import explain_task
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.event_payloads import RunChange, RunChanged
from redrive.engine.store import claims
from redrive.engine.store.claims import Claim, ClaimOrder
from redrive.engine.store.endings import expire
from redrive.engine.store.settle import settle

from .conftest import RUN, SECOND, START, StateFile

REFUSED = Outcome(OutcomeKind.ERROR, Failure("Boom", "boom", FailureClass.PERMANENT, Fingerprint("strict", "loose")))
HOUR = 3600


def create(state_file: StateFile, ttl: float | None = 2 * HOUR, deadline: float | None = None) -> None:
    state_file.create({"a": "", "b": "a", "other": ""})
    options = {} if ttl is None else {"dead_letter_ttl": ttl}
    deadline_at = None if deadline is None else START + round(deadline * SECOND)
    state_file.connection.execute("UPDATE run SET options = ?, deadline_at = ?", (json.dumps(options), deadline_at))


def die(state_file: StateFile, name: str = "a") -> None:
    generation = state_file.column(name, "generation")
    state_file.write(lambda j: claims.promote(j, RUN, {name: generation}))
    attempt = state_file.claim(name, f"token-{name}-{generation}")
    claim = Claim(RUN, name, attempt, generation, f"token-{name}-{generation}")
    state_file.write(lambda j: settle(j, claim, TaskSpec(name), REFUSED, lambda low, high: low))
    assert state_file.states()[name] == "DEAD_LETTER"


@pytest.mark.parametrize(
    ("ttl", "deadline", "expected"),
    [
        (None, None, None),
        (None, HOUR, None),
        (2 * HOUR, None, 2 * HOUR),
        (2 * HOUR, HOUR, HOUR),
        (2 * HOUR, 3 * HOUR, 2 * HOUR),
        (2 * HOUR, -HOUR, 2 * HOUR),  # the deadline has passed: there is still time to decide
    ],
)
def test_a_dead_letter_expires_after_its_time_or_at_the_deadline_that_is_still_to_come(
    state_file: StateFile, ttl: float | None, deadline: float | None, expected: float | None
) -> None:
    create(state_file, ttl, deadline)
    die(state_file)
    assert state_file.column("a", "expires_at") == (None if expected is None else START + expected * SECOND)


def test_what_a_breaker_turned_away_expires_as_well(state_file: StateFile) -> None:
    create(state_file)
    order = ClaimOrder("a", 0, TaskSpec("a", downstream="api"))
    state_file.write(lambda j: claims.reject(j, RUN, order, "dead_letter"))
    assert state_file.column("a", "expires_at") == START + 2 * HOUR * SECOND


def test_an_expired_dead_letter_fails_and_takes_its_children_along(state_file: StateFile) -> None:
    create(state_file)
    die(state_file)
    state_file.now += 2 * HOUR * SECOND
    state_file.write(lambda j: expire(j, RUN, {"a": 0}))
    assert state_file.states() == {"a": "FAILED", "b": "UPSTREAM_FAILED", "other": "PENDING"}
    assert (state_file.column("a", "dead_letter_kind"), state_file.column("a", "expires_at")) == ("permanent", None)
    event = next(event for event in state_file.emitted if event.new == "FAILED")
    assert event.payload.why == "no operator has decided about it for 2h00: dead_letter_ttl"
    titles = [title for (title,) in state_file.connection.execute("SELECT title FROM page ORDER BY id")]
    assert titles[-1] == "dead letter expired on a"
    assert state_file.act("requeue", "a")["ok"] and state_file.states()["b"] == "PENDING"


def test_a_blocked_run_goes_on_with_the_commit_that_expires_its_dead_letter(state_file: StateFile) -> None:
    """Or no service would resume it if the executor died now."""
    create(state_file)
    die(state_file)
    blocked = RunChanged(RunChange.BLOCKED, {"blocked_since": START})
    state_file.write(lambda j: j.change_run(RUN, blocked))
    state_file.write(lambda j: expire(j, RUN, {"a": 0}))
    assert state_file.run_column("blocked_since") is None


def test_whoever_decides_in_time_is_not_overtaken(state_file: StateFile) -> None:
    create(state_file)
    die(state_file)
    state_file.act("requeue", "a")
    assert state_file.column("a", "expires_at") is None
    die(state_file)
    state_file.write(lambda j: expire(j, RUN, {"a": 0}))  # of the generation before
    assert state_file.states()["a"] == "DEAD_LETTER"
    state_file.act("skip", "a")
    assert (state_file.states()["a"], state_file.column("a", "expires_at")) == ("SKIPPED", None)


def test_what_waits_for_a_canary_does_not_expire_meanwhile(state_file: StateFile) -> None:
    create(state_file)
    die(state_file, "other")
    die(state_file, "a")
    state_file.act("requeue", "other", "a", canary=True)
    state_file.write(lambda j: expire(j, RUN, {"a": 0}))
    assert (state_file.states()["a"], state_file.column("a", "canary")) == ("DEAD_LETTER", "other")


def test_how_long_there_is_to_decide_is_in_the_sentence(state_file: StateFile) -> None:
    create(state_file)
    die(state_file)
    explanation = explain_task(state_file.projection(), "a", START + HOUR * SECOND + 60 * SECOND)
    assert explanation.endswith("requeue it after a fix, or skip it, before it counts as failed in 59m00")


def test_a_time_below_nothing_is_refused() -> None:
    with pytest.raises(FlowError, match="dead_letter_ttl is a duration of 0 or more"):
        Flow("f", dead_letter_ttl=-1)


def test_with_no_time_at_all_a_cleanup_runs_below_a_dead_letter_and_one_page_reports_it(tmp_path: Path) -> None:
    flow = Flow("f", dead_letter_ttl=0, timeout=60)
    flow.command("broken", "no-such-program")
    flow.command("below", "true", after="broken")
    flow.command("cleanup", "true", after="below", rule="all_done")
    result = Executor(run_id="r", flow=flow, state=tmp_path / "f.db").run_result()
    assert result.states == {"broken": "FAILED", "below": "UPSTREAM_FAILED", "cleanup": "SUCCESS"}
    assert result.state == "FAILED"
    with sqlite3.connect(tmp_path / "f.db") as connection:
        assert connection.execute("SELECT title, count FROM page").fetchall() == [("permanent on broken", 1)]


def run(path: Path, ttl: float, **options: Any) -> Any:
    flow = Flow("f", dead_letter_ttl=ttl)

    @flow.task
    def broken() -> None:
        raise PermanentError("no")

    flow.task(lambda: None, name="child", after=broken)
    return Executor(run_id="r", flow=flow, state=path, options=RunOptions(**options)).run_result()


def test_a_run_that_waits_for_an_operator_ends_by_itself(tmp_path: Path) -> None:
    began = time.monotonic()
    assert run(tmp_path / "state.db", 1.0, stay=True).state == "FAILED"
    assert time.monotonic() - began >= 1.0
    with sqlite3.connect(tmp_path / "state.db") as connection:
        rows = connection.execute("SELECT name, state FROM task").fetchall()
    assert dict(rows) == {"broken": "FAILED", "child": "UPSTREAM_FAILED"}


def test_a_run_that_was_left_blocked_is_found_expired_when_it_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    assert run(path, 3600.0).blocked
    with sqlite3.connect(path) as connection:  # as if the hour had passed
        connection.execute("UPDATE task SET expires_at = 1 WHERE name = 'broken'")
    assert run(path, 3600.0).state == "FAILED"
