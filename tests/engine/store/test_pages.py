"""One page per cause and episode, written with the change that causes it (SPEC 4.13)."""

import json
import shlex
import subprocess
from typing import Any

import pytest
from redrive.engine.clock import SystemClock
from redrive.engine.core.causes import EPISODE_SILENCE_US, STORM_PAGES, STORM_WINDOW_US
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.projection import RunProjection
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.event_payloads import ClockMoved, PageChanged
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.states import DeadLetterKind
from redrive.engine.notifications.notifier import MessageOrigin, Notifier, page_message
from redrive.engine.statefile.clock_steps import shift_times
from redrive.engine.store import claims, pages
from redrive.engine.store.claims import Claim, ClaimOrder
from redrive.engine.store.settle import settle
from support.waiting import wait_until_async

from .conftest import RUN, SECOND, START, StateFile

SPEC: dict[str, Any] = {"retry": RetryPolicy(max_attempts=1), "timeout": 30.0}


def blip(loose: str = "cause-1") -> Outcome:
    return failed(FailureClass.TRANSIENT, loose)


def failed(failure_class: FailureClass, loose: str = "cause-1", diagnostic: str | None = None) -> Outcome:
    mark = Fingerprint(f"strict-{loose}", loose, explain="Boom settle.py:87 in settle")
    return Outcome(OutcomeKind.ERROR, Failure("ZeroDivisionError", "boom", failure_class, mark, diagnostic=diagnostic))


SUCCESS = Outcome(OutcomeKind.SUCCESS)


def end(state_file: StateFile, name: str, outcome: Outcome, **spec) -> None:
    """Run a task once, to this outcome."""
    generation = state_file.column(name, "generation")
    state_file.write(lambda j: claims.promote(j, RUN, {name: generation}))
    attempt = state_file.claim(name, f"token-{name}-{generation}")
    assert attempt, f"{name} is {state_file.column(name, 'state')}"
    claim = Claim(RUN, name, attempt, generation, f"token-{name}-{generation}")
    task = TaskSpec(name, **{**SPEC, **spec})
    state_file.write(lambda j: settle(j, claim, task, outcome, lambda low, high: low))


def table(state_file: StateFile, columns: str = "cause, episode, count, state") -> list[tuple]:
    return state_file.connection.execute(f"SELECT {columns} FROM page ORDER BY id").fetchall()


def page_steps(state_file: StateFile) -> list[str]:
    return [event.payload.what for event in state_file.emitted if isinstance(event.payload, PageChanged)]


@pytest.fixture
def siblings(state_file: StateFile) -> StateFile:
    """Four tasks side by side, one below the first."""
    state_file.create({"a": "", "b": "", "c": "", "d": "", "below": "a", "far_below": "below"})
    return state_file


def test_a_thousand_failures_of_one_cause_are_one_page_with_a_counter(siblings):
    """000.29, 003.43."""
    for name in "abcd":
        end(siblings, name, blip())
    assert [("cause-1", 1, 4, "open")] == table(siblings)
    assert ["opened", "folded", "folded", "folded"] == page_steps(siblings)


def test_two_causes_are_two_pages(siblings):
    end(siblings, "a", blip("one"))
    end(siblings, "b", blip("two"))
    assert [("one", 1, 1, "open"), ("two", 1, 1, "open")] == table(siblings)


def test_the_page_belongs_to_the_transaction_of_the_failure(siblings):
    """SPEC 4.13: no failure without its page, and no page without its failure."""
    siblings.write(lambda j: claims.promote(j, RUN, {"a": 0}))
    claim = Claim(RUN, "a", siblings.claim("a"), 0, "token")
    with pytest.raises(ZeroDivisionError):
        siblings.write(lambda j: (settle(j, claim, TaskSpec("a", **SPEC), blip(), lambda low, high: low), 1 / 0))
    assert ("RUNNING", []) == (siblings.column("a", "state"), table(siblings))


def test_a_page_says_what_the_on_call_must_know(siblings):
    """000.03, 004.09, 4.13: mode, diagnostic, what changed, what is held, the command."""
    end(siblings, "a", failed(FailureClass.PERMANENT, diagnostic="scope 'invoices:read' is missing"), owner="billing")
    ((severity, title, text),) = table(siblings, "severity, title, body")
    body = json.loads(text)
    assert ("high", "permanent on a") == (severity, title)
    assert "scope 'invoices:read' is missing" == body["diagnostic"]
    assert ("permanent", "permanent", "billing", 2) == (body["kind"], body["class"], body["owner"], body["held"])
    assert shlex.split(body["command"])[:4] == ["redrive", "requeue", f"{siblings.path}@{RUN}", "--resume"]
    assert "a" == shlex.split(body["command"])[-1]


def test_what_changed_between_the_attempts_is_in_the_page(siblings):
    """SPEC part 4, 1; 004.36."""
    poisoned = failed(FailureClass.UNCLASSIFIED)
    retrying = {"retry": RetryPolicy(max_attempts=5, base=0, cap=0)}
    end(siblings, "a", poisoned, **retrying)
    siblings.write(lambda j: claims.wake(j, RUN, {"a": 0}))
    end(siblings, "a", poisoned, **retrying)
    ((text,),) = table(siblings, "body")
    assert ([], "poisoned") == (json.loads(text)["changed"], json.loads(text)["mode"])


def test_a_task_name_cannot_break_out_of_the_command(state_file):
    name = "a; rm -rf ~ 'x'\n\x1b[2J"
    state_file.create({name: ""})
    end(state_file, name, blip())
    ((text,),) = table(state_file, "body")
    command = json.loads(text)["command"]
    assert command.isprintable()
    printed = subprocess.run(["sh", "-c", f"redrive() {{ printf '%s|' \"$@\"; }}; {command}"], capture_output=True)
    assert printed.stdout.decode().split("|")[-2] == name


def test_a_page_names_the_run_and_the_commands_that_open_and_requeue_it(siblings):
    end(siblings, "a", blip())
    (message,) = pages.read_pages(siblings.connection, [1])
    text = str(page_message(message, MessageOrigin("flow", RUN, ""))["text"]).splitlines()
    path = siblings.connection.execute("PRAGMA database_list").fetchone()[2]
    assert f"flow, run {RUN}: " in text[1]
    assert [
        ["redrive", "attach", f"{path}@{RUN}"],
        ["redrive", "requeue", f"{path}@{RUN}", "--resume", "--reason", "...", "--", "a"],
    ] == [shlex.split(line) for line in text[-2:]]


# --- Episodes -------------------------------------------------------------------------------------------------------


def test_the_success_of_the_same_task_resolves_its_page(siblings):
    end(siblings, "a", blip())
    siblings.act("requeue", "a")
    assert [("cause-1", 1, 1, "open")] == table(siblings)
    end(siblings, "a", SUCCESS)
    assert [("cause-1", 1, 1, "resolved")] == table(siblings)


def test_a_page_is_over_only_with_the_last_of_its_tasks(siblings):
    for name in "abc":
        end(siblings, name, blip())
    siblings.act("requeue", "a")
    end(siblings, "a", SUCCESS)
    siblings.act("skip", "b")
    assert "open" == table(siblings, "state")[0][0]
    siblings.act("skip", "c")
    assert "resolved" == table(siblings, "state")[0][0]


@pytest.mark.parametrize("act", ["skip", "requeue"])
def test_the_undo_of_an_act_restores_its_pages(siblings, act):
    """The dead letter is there again: its page must not say that somebody has decided."""
    for name in "ab":
        end(siblings, name, blip())
    siblings.act("ack", "a")
    columns = "page.id, state, rearmed, acked_by, page_task.task, done"
    sql = f"SELECT {columns} FROM page JOIN page_task ON page_id = id ORDER BY 1, 5"
    before = siblings.connection.execute(sql).fetchall()
    command = siblings.command(act, "a", "b")
    assert siblings.send(command)["ok"] and siblings.connection.execute(sql).fetchall() != before
    assert siblings.act("undo", command=command["id"])["ok"]
    assert siblings.connection.execute(sql).fetchall() == before
    assert page_steps(siblings)[-1] == "reopened"


def test_the_undo_of_a_skip_goes_over_to_the_episode_that_has_begun_since(siblings):
    end(siblings, "a", blip())
    command = siblings.command("skip", "a")
    siblings.send(command)
    end(siblings, "b", blip())
    assert siblings.act("undo", command=command["id"])["ok"]
    assert [("cause-1", 1, 1, "resolved"), ("cause-1", 2, 1, "open")] == table(siblings)
    siblings.act("skip", "b")
    assert "open" == table(siblings)[-1][-1]
    siblings.act("skip", "a")
    assert "resolved" == table(siblings)[-1][-1]


def test_a_requeue_re_arms_and_the_next_failure_is_a_new_episode(siblings):
    end(siblings, "a", blip())
    siblings.act("ack", "a")
    siblings.act("requeue", "a")
    end(siblings, "a", blip())
    assert [("cause-1", 1, 1, "resolved"), ("cause-1", 2, 1, "open")] == table(siblings)
    assert "rearmed" in page_steps(siblings)


def test_what_still_waits_goes_over_to_the_new_episode(siblings):
    for name in "abc":
        end(siblings, name, blip())
    siblings.act("requeue", "a")
    end(siblings, "a", blip())
    siblings.act("skip", "a", "b")
    assert "open" == table(siblings, "state")[1][0]
    siblings.act("skip", "c")
    assert "resolved" == table(siblings, "state")[1][0]


def test_a_failure_after_a_long_silence_is_a_new_episode(siblings):
    """Three nights running: each night pages, although nobody answered the night before."""
    end(siblings, "a", blip())
    siblings.now += EPISODE_SILENCE_US - SECOND
    end(siblings, "b", blip())
    assert 1 == len(table(siblings))
    siblings.now += EPISODE_SILENCE_US + SECOND
    end(siblings, "c", blip())
    assert [1, 2] == [episode for (episode,) in table(siblings, "episode")]


def test_a_failure_of_a_page_that_was_acknowledged_only_counts(siblings):
    end(siblings, "a", blip())
    siblings.act("ack", "a")
    end(siblings, "b", blip())
    assert [("cause-1", 1, 2, "acked")] == table(siblings)


# --- Downstreams ----------------------------------------------------------------------------------------------------


def open_breaker(state_file: StateFile, downstream: str) -> None:
    state_file.connection.execute(
        "INSERT INTO breaker (downstream, state, changed_at) VALUES (?, 'OPEN', ?)", (downstream, START)
    )


def test_failures_against_an_open_downstream_are_its_page_whatever_they_look_like(siblings):
    end(siblings, "a", blip("before"), downstream="api")
    open_breaker(siblings, "api")
    end(siblings, "b", blip("one"), downstream="api")
    end(siblings, "c", blip("two"), downstream="api")
    assert [("before", 1), ("downstream:api", 2)] == table(siblings, "cause, count")


@pytest.mark.parametrize(("how", "state"), [("fail", "FAILED"), ("dead_letter", "DEAD_LETTER")])
def test_tasks_that_were_turned_away_share_the_page_of_their_downstream(siblings, how, state):
    """000.51: the document's first reading, FAIL immediately."""
    for name in "bcd":
        order = ClaimOrder(name, 0, TaskSpec(name, downstream="api", **SPEC))
        siblings.write(lambda j, order=order: claims.reject(j, RUN, order, how))
    assert {state} == {siblings.column(name, "state") for name in "bcd"}
    assert [("downstream:api", 1, 3, "open")] == table(siblings)


# --- What the projection makes of it --------------------------------------------------------------------------------


def test_what_happens_to_a_page_changes_nothing_in_its_task(siblings):
    """The projection reads every event: "acked" is the state of the page and never the task's."""
    before = siblings.projection()
    siblings.emitted.clear()
    end(siblings, "a", blip())
    siblings.act("ack", "a")
    siblings.act("snooze", "a", seconds=60)
    projection = RunProjection(before.run, before.tasks, before.parents, before.children, before.seq)
    for event in siblings.emitted:
        projection.apply(event)
    assert "FAILED" == projection.tasks["a"].state
    assert siblings.projection().tasks == projection.tasks


# --- The outbox -----------------------------------------------------------------------------------------------------


def test_the_outbox_holds_what_is_open_and_what_sleeps(siblings):
    for name in "abcd":
        end(siblings, name, blip(name))
    siblings.act("ack", "b")
    siblings.act("snooze", "c", seconds=60)
    siblings.act("skip", "d")
    found = siblings.write(lambda j: pages.read_outbox(j, RUN))
    assert [(1, "open"), (3, "snoozed")] == [(page.id, page.state) for page in found]


@pytest.mark.parametrize("step", [0, 3600, -3600])
def test_a_snooze_that_is_over_pages_once_more(siblings, step):
    end(siblings, "a", blip())
    siblings.write(lambda j: pages.write_sent(j, {1: 1}, "page"))
    siblings.act("snooze", "a", seconds=60)
    for seconds, state in ((59, "snoozed"), (2, "open")):
        siblings.now += seconds * SECOND + step * SECOND
        siblings.write(lambda j: shift_times(j, [RUN], step * SECOND))
        (found,) = siblings.write(lambda j: pages.read_outbox(j, RUN))
        assert state == found.state
    assert found.sent_at is None


def test_the_bell_rings_for_a_page_and_not_for_what_is_folded_into_it(siblings):
    """A digest says how many there are by now: no news of its own. After a snooze it is, because somebody asked."""

    def ring() -> int:
        page_steps = len(siblings.emitted)
        siblings.write(lambda j: pages.emit_bell(j, [1]))
        return len(siblings.emitted) - page_steps

    end(siblings, "a", blip())
    assert 1 == ring()
    siblings.write(lambda j: pages.write_sent(j, {1: 1}, "page"))
    end(siblings, "b", blip())
    assert 0 == ring()
    siblings.act("snooze", "a", seconds=60)
    siblings.now += 61 * SECOND
    siblings.write(lambda j: pages.read_outbox(j, RUN))
    assert 1 == ring()


class SetClock(SystemClock):
    """A wall clock that is set by hand."""

    now = START

    def now_us(self) -> int:
        return self.now


async def test_a_page_beyond_the_storm_cap_waits_no_longer_when_the_clock_is_set_back(siblings):
    def fail(number: int) -> None:
        siblings.act("requeue", "a")
        end(siblings, "a", blip(f"cause-{number}"))

    for number in range(STORM_PAGES + 1):
        fail(number)

    class DirectWriter:
        async def submit(self, item, durable=False):
            return siblings.write(item)

    def is_sent(how: str, count: int) -> bool:
        return count == sum(event.payload.how == how for event in siblings.emitted if event.kind == EventKind.PAGE)

    clock = SetClock()
    writer: Any = DirectWriter()
    notifier = Notifier([{"sender": "bell"}], MessageOrigin("f", RUN, ""), writer, clock)
    notifier.start()
    await wait_until_async(lambda: is_sent("digest", 1))
    fail(STORM_PAGES + 1)
    clock.now += STORM_WINDOW_US - 3600 * SECOND
    siblings.write(lambda j: j.emit(ClockMoved(-3600 * SECOND), RUN))
    notifier.handle_events(siblings.emitted[-1:])
    await wait_until_async(lambda: is_sent("page", STORM_PAGES + 1))
    await notifier.close()


def test_what_another_run_left_unsent_goes_out_for_a_day_and_not_later(siblings):
    end(siblings, "a", blip())
    assert 1 == len(siblings.write(lambda j: pages.read_outbox(j, "another-run")))
    siblings.now += pages.STALE_AFTER_US + SECOND
    assert [] == siblings.write(lambda j: pages.read_outbox(j, "another-run"))


def test_the_key_names_cause_and_episode(siblings):
    end(siblings, "a", blip())
    (message,) = siblings.write(lambda j: pages.read_pages(j.connection, [1]))
    assert "cause-1/1" == message.key


def test_a_task_that_nobody_knows_the_end_of_pages_for_itself(siblings):
    lost = Outcome(OutcomeKind.LOST)
    end(siblings, "a", lost, idempotent=False)
    assert DeadLetterKind.INDETERMINATE == siblings.column("a", "dead_letter_kind")
    assert [(f"unknown:{RUN}/a", "high")] == table(siblings, "cause, severity")


def test_a_page_says_what_came_of_its_cause_the_last_time_and_what_people_wrote_on_it(siblings):
    end(siblings, "a", blip())
    assert pages.read_pages(siblings.connection, [1])[0].body["memory"] is None
    siblings.send({**siblings.command("note", fingerprint="cause-1", text="look at the vendor's page"), "reason": ""})
    siblings.act("requeue", "a")
    siblings.now += 90 * SECOND
    end(siblings, "a", SUCCESS)
    siblings.now += 3600 * SECOND
    end(siblings, "b", blip())
    (message,) = pages.read_pages(siblings.connection, [2])
    lines = str(page_message(message, MessageOrigin("settlement", RUN, "x.db"))["text"]).splitlines()
    (line,) = [line for line in lines if line.startswith("last time ")]
    assert line.endswith(": 1 task, requeued by ana 'the vendor has fixed it', healed after 1m30")
    (line,) = [line for line in lines if line.startswith("note by ana, ")]
    assert line.endswith(": look at the vendor's page")
