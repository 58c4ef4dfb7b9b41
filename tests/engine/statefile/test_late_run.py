"""Acts on a run after its deadline: what an operator runs again runs, with what follows from it; and ``postpone``."""

from __future__ import annotations

import json

import pytest
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.text import format_clock
from redrive.engine.statefile.dry_run import preview
from redrive.engine.store import claims, endings
from redrive.engine.store.claims import Claim
from redrive.engine.store.settle import settle

from ..store.conftest import RUN, SECOND, START, StateFile
from .act_helpers import results

DUE = START + 3600 * SECOND
WHY = f"deadline {format_clock(DUE)} passed"
BROKEN = Outcome(OutcomeKind.ERROR, Failure("E", "no", FailureClass.PERMANENT, Fingerprint("strict", "loose")))

#: broken -> below -> both <- long <- after
NIGHT = {"broken": "", "below": "broken", "long": "", "both": "below long", "after": "long"}


def begin(state_file: StateFile, name: str) -> Claim:
    state_file.write(lambda j: claims.promote(j, RUN, {name: state_file.column(name, "generation")}))
    attempt = state_file.claim(name, f"token-{name}")
    return Claim(RUN, name, attempt, state_file.column(name, "generation"), f"token-{name}")


def end(state_file: StateFile, claim: Claim, outcome: Outcome) -> None:
    state_file.write(lambda j: settle(j, claim, TaskSpec(claim.task), outcome, lambda low, high: low))


def late(state_file: StateFile) -> Claim:
    """A run at its deadline: one dead letter, one task that is being ended, the others cancelled."""
    state_file.create(NIGHT)
    state_file.connection.execute("UPDATE run SET deadline_at = ?", (DUE,))
    end(state_file, begin(state_file, "broken"), BROKEN)
    long = begin(state_file, "long")
    state_file.now = DUE
    state_file.write(lambda j: endings.pass_deadline(j, RUN))
    return long


def over(state_file: StateFile) -> None:
    """The run some hours later: it has FAILED."""
    end(state_file, late(state_file), Outcome(OutcomeKind.CANCELLED))
    state_file.write(lambda j: endings.end_at_deadline(j, RUN))
    assert state_file.run_column("state") == "FAILED"
    state_file.now = DUE + 6 * 3600 * SECOND


def test_a_requeue_lifts_the_deadline_and_brings_back_what_it_had_cancelled_below(state_file: StateFile) -> None:
    over(state_file)
    answer = state_file.act("requeue", "broken")
    assert state_file.states() == {
        "broken": "PENDING",
        "below": "PENDING",
        "long": "CANCELLED",
        "both": "UPSTREAM_FAILED",  # also below long
        "after": "CANCELLED",
    }
    columns = [state_file.run_column(name) for name in ("state", "ended_at", "deadline_at", "deadline_passed_at")]
    assert columns == ["RUNNING", None, None, None]
    assert f"2 cancelled by the deadline, to run again; {WHY}: it goes on without one" in answer["message"]


def test_a_deadline_that_has_passed_is_lifted_also_while_the_clock_is_set_back_before_it(state_file: StateFile) -> None:
    over(state_file)
    state_file.now = DUE - 1800 * SECOND
    assert "it goes on without one" in state_file.act("requeue", "broken")["message"]
    assert [state_file.run_column(name) for name in ("deadline_at", "deadline_passed_at")] == [None, None]


def test_the_tasks_that_it_ended_run_again_one_by_one_as_well(state_file: StateFile) -> None:
    over(state_file)
    state_file.act("requeue", "broken")
    state_file.act("requeue", "long")
    assert set(state_file.states().values()) == {"PENDING"}


def test_a_preview_says_that_the_deadline_is_lifted(state_file: StateFile) -> None:
    over(state_file)
    found = preview(state_file.connection, state_file.command("requeue", "broken"), state_file.now)
    assert found.notes == [f"{WHY}: it goes on without one"]
    assert (found.run_again, found.unblocked) == (["broken"], ["below"])
    assert state_file.run_column("state") == "FAILED"


def test_a_skip_after_the_deadline_lets_the_children_run(state_file: StateFile) -> None:
    over(state_file)
    state_file.act("skip", "broken")
    assert (state_file.states()["below"], state_file.run_column("deadline_at")) == ("PENDING", None)


def test_an_undo_brings_the_end_at_the_deadline_back(state_file: StateFile) -> None:
    over(state_file)
    before = state_file.connection.execute("SELECT * FROM run").fetchone(), state_file.states()
    requeue = state_file.command("requeue", "broken")
    state_file.send(requeue)
    assert state_file.send(state_file.command("undo", command=requeue["id"]))["ok"]
    assert before == (state_file.connection.execute("SELECT * FROM run").fetchone(), state_file.states())


def test_an_undo_that_lets_a_task_run_lifts_the_deadline(state_file: StateFile) -> None:
    state_file.create({"a": "", "b": ""})
    state_file.connection.execute("UPDATE run SET deadline_at = ?", (DUE,))
    cancel = state_file.command("cancel", "a")
    state_file.send(cancel)
    state_file.now = DUE
    state_file.write(lambda j: endings.pass_deadline(j, RUN))
    assert state_file.send(state_file.command("undo", command=cancel["id"]))["ok"]
    assert (state_file.states(), state_file.run_column("deadline_at")) == ({"a": "PENDING", "b": "CANCELLED"}, None)


def test_an_act_before_the_deadline_leaves_it_alone(state_file: StateFile) -> None:
    state_file.create(NIGHT)
    state_file.connection.execute("UPDATE run SET deadline_at = ?", (DUE,))
    end(state_file, begin(state_file, "broken"), BROKEN)
    state_file.act("requeue", "broken")
    assert state_file.run_column("deadline_at") == DUE


def test_an_act_after_a_deadline_that_nobody_was_there_to_enforce_lifts_it(state_file: StateFile) -> None:
    """The executor was down: in the morning an operator requeues, and resumes then."""
    state_file.create(NIGHT)
    state_file.connection.execute("UPDATE run SET deadline_at = ?", (DUE,))
    end(state_file, begin(state_file, "broken"), BROKEN)
    state_file.now = DUE + 60 * SECOND
    state_file.act("requeue", "broken")
    assert not state_file.write(lambda j: endings.pass_deadline(j, RUN))
    assert state_file.states()["below"] == "PENDING"


def test_a_deadline_that_only_pages_is_not_lifted(state_file: StateFile) -> None:
    state_file.create(NIGHT)
    options = json.dumps({"deadline_action": "page"})
    state_file.connection.execute("UPDATE run SET deadline_at = ?, options = ?", (DUE, options))
    end(state_file, begin(state_file, "broken"), BROKEN)
    state_file.now = DUE + 60 * SECOND
    state_file.act("requeue", "broken")
    assert state_file.run_column("deadline_at") == DUE


# --- Postpone ------------------------------------------------------------------------------------------------------


def test_a_deadline_is_postponed_before_it_has_passed(state_file: StateFile) -> None:
    state_file.create({"a": ""})
    state_file.connection.execute("UPDATE run SET deadline_at = ?", (DUE,))
    answer = state_file.act("postpone", seconds=7200)
    later = START + 7200 * SECOND
    assert answer["message"] == f"the deadline is {format_clock(later)}, it was {format_clock(DUE)}"
    assert state_file.run_column("deadline_at") == later


def test_a_run_after_its_deadline_goes_on_with_all_that_it_had_cancelled(state_file: StateFile) -> None:
    over(state_file)
    answer = state_file.act("postpone", seconds=3600)
    assert state_file.states() == {**dict.fromkeys(NIGHT, "PENDING"), "broken": "DEAD_LETTER"}
    assert (state_file.run_column("state"), state_file.run_column("deadline_passed_at")) == ("RUNNING", None)
    assert "4 cancelled by the deadline, to run again" in answer["message"]
    pages = state_file.connection.execute("SELECT cause, state FROM page ORDER BY id").fetchall()
    assert pages[-1] == (f"deadline:{RUN}", "resolved")


def test_without_seconds_the_run_has_no_deadline_any_more(state_file: StateFile) -> None:
    over(state_file)
    assert state_file.act("postpone")["message"].startswith("the run has no deadline any more")
    assert state_file.run_column("deadline_at") is None


def test_a_postponed_deadline_is_undone(state_file: StateFile) -> None:
    over(state_file)
    before = state_file.states()
    postpone = state_file.command("postpone", seconds=3600)
    state_file.send(postpone)
    assert state_file.send(state_file.command("undo", command=postpone["id"]))["ok"]
    assert (state_file.states(), state_file.run_column("state")) == (before, "FAILED")
    assert state_file.run_column("deadline_at") == DUE


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ("deadline_at = NULL", {}, "the run has no deadline"),
        ("deadline_at = 1", {"seconds": 0}, "a deadline is in the future: give seconds above 0"),
        ("state = 'SUCCESS', ended_at = 1", {"seconds": 60}, "the run has ended: SUCCESS"),
    ],
)
def test_a_deadline_that_cannot_be_postponed_says_why(
    state_file: StateFile, columns: str, options: dict[str, int], expected: str
) -> None:
    state_file.create({"a": ""})
    state_file.connection.execute(f"UPDATE run SET {columns}")
    assert state_file.act("postpone", **options)["message"] == expected


def test_nothing_is_postponed_while_attempts_are_ended(state_file: StateFile) -> None:
    late(state_file)
    assert state_file.act("postpone", seconds=60)["message"] == (
        "the old deadline still ends 1 attempt: postpone it in a moment"
    )


def test_a_requeue_while_attempts_are_ended_does_not_save_them(state_file: StateFile) -> None:
    """They are cancelled with the reason, and an operator runs them again."""
    claim = late(state_file)
    state_file.act("requeue", "broken")
    end(state_file, claim, Outcome(OutcomeKind.CANCELLED))
    assert (state_file.states()["long"], state_file.column("long", "error")) == ("CANCELLED", WHY)
    assert results(state_file.act("requeue", "long")) == {"long": "done"}
