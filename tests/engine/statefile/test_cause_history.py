"""Attempts and events alone tell what came of a cause: who decided, why, with what end (SPEC part 4, 10)."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from redrive.engine.core.causes import CauseHistory, describe_last_incident, describe_note
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.event_payloads import AnswerFields
from redrive.engine.errors import RefusedError
from redrive.engine.statefile import causes
from redrive.engine.store import claims, endings, runs
from redrive.engine.store.claims import Claim
from redrive.engine.store.settle import settle

from ..store.conftest import SECOND, START, StateFile

DAY = 86_400 * SECOND
SUCCESS = Outcome(OutcomeKind.SUCCESS)
LOADS = ("load_1", "load_2", "load_3")


def failing(loose: str = "schema", failure_class: FailureClass = FailureClass.PERMANENT) -> Outcome:
    return Outcome(OutcomeKind.ERROR, Failure("Boom", "boom", failure_class, Fingerprint(f"strict-{loose}", loose)))


class RunHistory:
    """Runs of one flow in one file, each of the same tasks."""

    def __init__(self, state_file: StateFile) -> None:
        self.state_file = state_file
        self._ids = itertools.count(1)

    def begin(self, run_id: str, dag_name: str = "settlement", downstream: str | None = None) -> None:
        tasks = tuple(TaskSpec(name, downstream=downstream) for name in LOADS)
        flow = FlowSpec(dag_name, tasks)
        at = self.state_file.now
        self.state_file.write(
            lambda transaction: runs.create_run(
                transaction, run_id=run_id, flow=flow, max_parallel=4, params={}, at=at, deadline_at=None
            )
        )

    def row_of(self, run_id: str, name: str) -> tuple[str, int, int]:
        sql = "SELECT state, generation, attempt FROM task WHERE run_id = ? AND name = ?"
        found: tuple[str, int, int] = self.state_file.connection.execute(sql, (run_id, name)).fetchone()
        return found

    def end(self, run_id: str, outcome: Outcome, *names: str, retry: RetryPolicy | None = None) -> None:
        """Run each once, to this outcome."""
        for name in names:
            _, generation, attempt = self.row_of(run_id, name)
            self.state_file.write(lambda j, n=name, g=generation: claims.promote(j, run_id, {n: g}))
            self.state_file.write(lambda j, n=name, g=generation: claims.wake(j, run_id, {n: g}))
            token = f"{run_id}-{name}-{generation}-{attempt}"
            number = self.state_file.write(
                lambda j, n=name, g=generation, t=token: claims.claim(j, run_id, n, g, t, {"executor_id": "executor-1"})
            )
            assert number, f"{name} is {self.row_of(run_id, name)}"
            claim = Claim(run_id, name, number, generation, token)
            spec = TaskSpec(name, retry=retry or RetryPolicy(max_attempts=1))
            self.state_file.write(lambda j, c=claim, s=spec: settle(j, c, s, outcome, lambda low, high: low))

    def act(self, run_id: str, act: str, *names: str, actor: str = "ana@ops", **options: Any) -> AnswerFields:
        reason = options.pop("reason", "schema reloaded")
        command = {
            "id": f"command-{next(self._ids)}",
            "act": act,
            "run_id": run_id,
            "targets": [[name, *self.row_of(run_id, name)[:2]] for name in names],
            "actor": actor,
            "reason": reason,
            "options": options,
        }
        return self.state_file.send(command)

    def read(self, run_id: str, loose: str = "schema", downstream: str | None = None) -> CauseHistory:
        (row,) = causes.read_cause_histories(self.state_file.connection, run_id, [[loose, downstream]])
        return msgspec.convert(row, CauseHistory)

    def last_time(self, run_id: str, loose: str = "schema") -> str | None:
        return describe_last_incident(self.read(run_id, loose), self.state_file.now)

    def wait(self, microseconds: int) -> None:
        self.state_file.now += microseconds


@pytest.fixture
def history(state_file: StateFile) -> RunHistory:
    """One night on which all three loads are dead letters of one cause."""
    history = RunHistory(state_file)
    history.begin("first")
    history.end("first", failing(), *LOADS)
    assert {history.row_of("first", name)[0] for name in LOADS} == {"DEAD_LETTER"}
    return history


def test_a_requeue_that_healed_is_reported_with_who_and_why_and_after_how_long(history: RunHistory) -> None:
    history.wait(60 * SECOND)
    history.act("first", "requeue", *LOADS)
    history.wait(120 * SECOND)
    history.end("first", SUCCESS, *LOADS[:2])
    history.wait(240 * SECOND)
    history.end("first", SUCCESS, LOADS[2])
    history.wait(2 * DAY)
    history.begin("second")
    history.end("second", failing(), "load_2")
    assert history.last_time("second") == (
        "last time 14 November: 3 tasks, requeued by ana 'schema reloaded', healed after 6m00"
    )
    known = history.read("second")
    assert (known.runs, known.first_at) == (1, START)


def test_what_waits_for_a_decision_in_this_run_is_no_memory_and_in_another_run_it_is(history: RunHistory) -> None:
    assert history.read("first").is_new
    history.wait(DAY)
    history.begin("second")
    assert history.last_time("second") == "last time 14 November: 3 tasks, undecided"
    history.wait(DAY)
    history.end("second", failing(), *LOADS)
    history.begin("third")
    assert history.last_time("third") == "last time 14 November: 6 tasks in 2 runs, undecided"


def test_runs_without_a_decision_do_not_hide_what_helped(history: RunHistory) -> None:
    history.act("first", "skip", *LOADS, reason="a holiday")
    for number in range(7):
        history.wait(DAY)
        history.begin(f"later_{number}")
        history.end(f"later_{number}", failing(), *LOADS)
    assert [one.decision for one in history.read("later_6").episodes] == ["skip"]
    assert history.last_time("later_6") == "last time 14 November: 3 tasks, skipped by ana 'a holiday'"


def test_a_fix_that_was_none_is_reported_within_the_same_run(history: RunHistory) -> None:
    history.act("first", "requeue", *LOADS)
    history.end("first", failing(), *LOADS[:2])
    assert history.last_time("first") == (
        f"last time at {clock(START)}: 3 tasks, requeued by ana 'schema reloaded', 2 failed again, 1 not done yet"
    )
    history.end("first", failing("another"), LOADS[2])
    sentence = history.last_time("first")
    assert sentence is not None and sentence.endswith("2 failed again, 1 ended otherwise")


def test_each_decision_is_an_episode_of_its_own_and_the_latest_comes_first(history: RunHistory) -> None:
    history.wait(SECOND)
    history.act("first", "skip", "load_1", actor="bob@desk", reason="vendor down")
    history.wait(SECOND)
    history.act("first", "requeue", "load_2", reason="by key, without a note")
    history.end("first", failing(), "load_2")
    history.wait(SECOND)
    history.act("first", "cancel", "load_2", actor="eve@x", reason="enough")
    found = history.read("first").episodes
    assert [(one.decision, one.tasks, one.actor, one.again) for one in found] == [
        ("cancel", 1, "eve@x", 0),
        ("requeue", 1, "ana@ops", 1),
        ("skip", 1, "bob@desk", 0),
    ]
    assert history.last_time("first") == f"last time at {clock(START + 2 * SECOND)}: 1 task, cancelled by eve 'enough'"


def test_a_dead_letter_that_expired_is_reported_as_that(history: RunHistory) -> None:
    history.state_file.connection.execute("UPDATE task SET expires_at = 1 WHERE run_id = 'first'")
    history.state_file.write(lambda transaction: endings.expire(transaction, "first", dict.fromkeys(LOADS, 0)))
    history.wait(DAY)
    history.begin("second")
    assert history.last_time("second") == "last time 14 November: 3 tasks, undecided until they expired"


def test_a_canary_and_those_that_followed_it_are_one_decision(history: RunHistory) -> None:
    history.act("first", "requeue", *LOADS, canary=True)
    history.end("first", SUCCESS, "load_1")
    history.wait(10 * SECOND)
    history.end("first", SUCCESS, *LOADS[1:])
    (episode,) = history.read("first").episodes
    assert (episode.decision, episode.tasks, episode.healed, episode.actor) == ("requeue", 3, 3, "ana@ops")


def test_an_act_that_was_taken_back_is_forgotten(history: RunHistory) -> None:
    history.act("first", "requeue", *LOADS)
    history.act("first", "undo", command="command-1")
    assert history.read("first").episodes == ()
    history.act("first", "requeue", *LOADS, actor="bob@desk")
    (episode,) = history.read("first").episodes
    assert (episode.actor, episode.open) == ("bob@desk", 3)


def test_what_a_retry_healed_asked_nobody_and_is_no_episode(history: RunHistory) -> None:
    patient = RetryPolicy(max_attempts=3)
    history.wait(DAY)
    history.begin("second")
    history.end("second", failing("flaky", FailureClass.TRANSIENT), "load_1", "load_2", retry=patient)
    history.end("second", SUCCESS, "load_1")
    assert history.read("second", "flaky").is_new


def test_a_task_that_went_on_to_fail_otherwise_belongs_to_the_other_cause(history: RunHistory) -> None:
    history.begin("second")
    history.end("second", failing("flaky", FailureClass.TRANSIENT), "load_1", retry=RetryPolicy(max_attempts=3))
    history.end("second", failing("worse"), "load_1")
    history.act("second", "skip", "load_1")
    assert history.read("second", "flaky").episodes == ()
    assert [one.decision for one in history.read("second", "worse").episodes] == ["skip"]


def test_another_downstream_and_another_flow_are_another_cause(history: RunHistory) -> None:
    history.act("first", "skip", *LOADS)
    history.begin("payments", downstream="payments-api")
    history.end("payments", failing(), "load_1")
    history.act("payments", "skip", "load_1")
    history.begin("elsewhere", dag_name="another")
    history.end("elsewhere", failing(), "load_1")
    assert len(history.read("payments").episodes) == 2
    assert [one.run_id for one in history.read("payments", downstream="payments-api").episodes] == ["payments"]
    assert history.read("payments", downstream="ledger").episodes == ()
    assert history.read("elsewhere").is_new


def test_failures_without_a_mark_of_their_own_share_no_memory(history: RunHistory) -> None:
    history.begin("second")
    for nothing in ("", "lost"):
        history.end("second", failing(nothing), "load_1")
        history.act("second", "requeue", "load_1")
        assert history.read("second", nothing).is_new


def test_many_causes_are_answered_in_their_order_and_a_run_that_is_not_there_is_refused(history: RunHistory) -> None:
    histories = causes.read_cause_histories(history.state_file.connection, "first", [["b", None], ["a", "x"]])
    assert [(one["fingerprint"], one["downstream"]) for one in histories] == [("b", None), ("a", "x")]
    with pytest.raises(RefusedError, match="there is no run 'gone'"):
        causes.read_cause_histories(history.state_file.connection, "gone", [["a", None]])


# --- Notes ---------------------------------------------------------------------------------------------------------


def write(
    history: RunHistory, text: Any, run_id: str = "first", fingerprint: str = "schema", **more: Any
) -> AnswerFields:
    return history.act(run_id, "note", fingerprint=fingerprint, text=text, reason="", **more)


def test_a_note_is_shown_in_its_run_and_in_later_ones(history: RunHistory) -> None:
    assert write(history, "reload schema v7 first")["ok"]
    history.wait(DAY)
    history.begin("second")
    assert write(history, "ask the vendor", run_id="second", actor="bob@desk")["ok"]
    known = history.read("second")
    assert [describe_note(note, history.state_file.now) for note in known.notes] == [
        f"note by bob, at {clock(history.state_file.now)}: ask the vendor",
        "note by ana, 14 November: reload schema v7 first",
    ]
    assert not known.is_new


def test_a_note_on_one_downstream_is_not_shown_for_another(history: RunHistory) -> None:
    write(history, "of payments", downstream="payments-api")
    write(history, "of all")

    def shown(downstream: str | None) -> list[str]:
        return [note.text for note in history.read("first", downstream=downstream).notes]

    assert shown("ledger") == ["of all"]
    assert shown("payments-api") == shown(None) == ["of all", "of payments"]


def test_the_text_of_a_note_is_data_on_one_line(history: RunHistory) -> None:
    write(history, "  a\n\tb \x1b[31mred\x1b[0m [bold]c[/] \u202egnp\x07'; DROP TABLE event; --")
    (note,) = history.read("first").notes
    assert note.text == "a b [31mred [0m [bold]c[/] gnp '; DROP TABLE event; --"


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        (" \n", {}, "say what to remember"),
        (7, {}, "text is a text, not 7"),
        ("x" * 1001, {}, "a note has at most 1000 characters, this one has 1001"),
        ("x", {"fingerprint": "unknown"}, "nothing in this state file failed with that fingerprint"),
        ("x", {"fingerprint": ["schema"]}, "fingerprint is a text, not a list"),
        ("x", {"downstream": "d" * 201}, "a downstream is a name of 1 to 200 characters"),
        ("x", {"run_id": "gone"}, "there is no such run"),
    ],
)
def test_a_note_that_cannot_be_is_refused_in_a_sentence(
    history: RunHistory, text: Any, options: dict[str, Any], sentence: str
) -> None:
    answer = write(history, text, **options)
    assert not answer["ok"] and sentence in answer["message"]
    assert history.read("first").notes == ()


def test_a_note_that_arrives_twice_is_one(history: RunHistory) -> None:
    command = {
        "id": "same",
        "act": "note",
        "run_id": "first",
        "actor": "ana@ops",
        "options": {"fingerprint": "schema", "text": "once"},
    }
    first, second = (history.state_file.send(command) for _ in range(2))
    assert first == second and first["ok"]
    assert [note.text for note in history.read("first").notes] == ["once"]


def clock(at: int) -> str:
    return f"{datetime.fromtimestamp(at / 1e6, UTC).astimezone():%H:%M}"
