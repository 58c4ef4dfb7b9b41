"""What happened, in sentences; what is kept of it; and the command lines that do acts again."""

from __future__ import annotations

import shlex
from typing import cast

import pytest
from redrive.console.model import replay as module
from redrive.console.model.lists import parse_filter
from redrive.console.model.replay import EventJournal, command_line
from redrive.console.text.event_text import describe_event, event_subject
from redrive.console.text.figures import wall
from redrive.engine.domain.event_payloads import TaskMoved
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.states import TaskState

from .runs import EventBuilder, S, projection_of

KINDS = sorted(value for name, value in vars(EventKind).items() if not name.startswith("_"))


@pytest.fixture
def builder() -> EventBuilder:
    return EventBuilder(projection_of([("a", []), ("b", ["a"])]))


def act(builder: EventBuilder, what: str = "requeue", names: tuple[str, ...] = ("a",), **options: object) -> Event:
    results = [[name, "done", "runs again"] for name in names]
    answer = {"ok": True, "message": f"{len(names)} {what}d", "results": results}
    data = {"act": what, "options": options, "answer": answer}
    return builder.event(EventKind.OPERATOR, actor="ana@ops-1", reason="it's mended", command_id="c1", data=data)


def numbered(builder: EventBuilder, count: int) -> list[Event]:
    return [builder.event(EventKind.CLOCK, data={"moved_us": number * S}) for number in range(count)]


# --- Sentences -------------------------------------------------------------------------------------------------------


def test_a_failure_says_what_comes_next_before_it_says_why(builder: EventBuilder) -> None:
    builder.start("a")
    (event,) = builder.fail("a", delay_us=9 * S, ceiling_us=16 * S, next_retry_at=builder.at + 9 * S)
    assert describe_event(event) == "attempt 1 failed, again in 9s of 16s: ValueError settle.py:87 in settle"


def test_a_wait_that_the_deadline_shortened_says_so(builder: EventBuilder) -> None:
    builder.start("a")
    (event,) = builder.fail("a", delay_us=31 * S, ceiling_us=62 * S, shortened_us=240 * S)
    event = event._replace(payload=cast(TaskMoved, event.payload)._replace(due_at=1_777_000_000 * S))
    due = wall(1_777_000_000 * S)
    assert describe_event(event).startswith(
        f"attempt 1 failed, again in 31s of 1m02, shortened from 4m00: the run is due {due}"
    )


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (EventKind.RUN, {"what": "created", "tasks": 12}, "run began: 12 tasks"),
        (EventKind.RUN, {"what": "paused"}, "paused: nothing new starts"),
        (EventKind.ATTEMPT_DEADLINE, {"timeout": 10.0}, "timeout of 10s passed"),
        (EventKind.ATTEMPT_SIGTERM, {"grace_seconds": 5.0}, "SIGTERM sent; 5s to end"),
        (EventKind.ATTEMPT_SIGKILL, {"pids": [1, 2, 3]}, "SIGKILL sent to 3 processes"),
        (EventKind.ATTEMPT_SWEPT, {"pids": [7]}, "1 process left behind, killed"),
        (EventKind.ATTEMPT_STACK, {"where": "match re.py:1"}, "it was in match re.py:1"),
        (EventKind.EXECUTOR, {"what": "started", "host": "ops-1", "pid": 9}, "started on ops-1, process 9"),
        (EventKind.EXECUTOR, {"what": "lost", "pid": 8}, "process 8 is gone: what it ran counts as lost"),
        (EventKind.EXECUTOR, {"what": "lost"}, "is gone: what it ran counts as lost"),
        (
            EventKind.EXECUTOR,
            {"what": "started", "host": "ops-1", "pid": 9, "warnings": ["a", "b"], "printed": "one\ntwo\n"},
            "started on ops-1, process 9; warning: a; warning: b; the import printed: two",
        ),
        (
            EventKind.EXECUTOR,
            {"what": "zygote-died", "pid": 9, "how": "signal 11", "printed": ""},
            "process 9, which forks the attempts, died (signal 11): what it ran counts as lost",
        ),
        (
            EventKind.EXECUTOR,
            {"what": "threads-killed", "pid": 9, "leaked": ["a"], "lost": ["b"]},
            "process 9 killed: a ignored the cancel token; b ran in it too and will run again",
        ),
        (
            EventKind.EXECUTOR,
            {"what": "worker-retired", "pid": 9, "how": "task 'a' changed the umask"},
            "worker 9 ends and is replaced: task 'a' changed the umask",
        ),
        (
            EventKind.ATTEMPT_EXTENDED,
            {"seconds": 600.0, "attempt": {"timeout_us": 1200 * S}},
            "given 10m00 more: 20m00 in all",
        ),
        (EventKind.CANARY, {"what": "released", "tasks": ["b"]}, "it succeeded: 1 other of its cause may run"),
        (EventKind.CANARY, {"what": "not-fixed", "tasks": ["b", "c"]}, "the fix did not help: 2 others held"),
        (EventKind.TASK_CHANGED, {"set": {"canary": "a"}}, "runs after a has succeeded"),
        (EventKind.TASK_CHANGED, {"set": {"cancel_requested_at": 1}}, "cancel requested"),
        (
            EventKind.RUN,
            {"what": "params", "changed": {"day": [1, 2]}, "removed": {"zone": "eu"}},
            "parameters: day was 1, is 2, zone=eu is gone from the flow",
        ),
        (EventKind.BREAKER, {"downstream": "api", "state": "OPEN", "why": "6 of 8"}, "breaker open: 6 of 8"),
        (EventKind.PAGE, {"what": "opened", "title": "poison on a"}, "page opened: poison on a"),
        (EventKind.QUARANTINE, {"what": "held", "count": 3}, "3 rows held in quarantine"),
        (EventKind.CLOCK, {"moved_us": -3_600_000_000}, "the clock moved by -1h00"),
        (EventKind.OPERATOR, {"what": "attach", "present": []}, "attach"),  # of an earlier redrive
        (EventKind.OPERATOR, {"what": "breaker", "downstream": "api", "how": "close"}, "breaker api: close"),
        (EventKind.EXECUTOR, {"what": "worker-retired", "pid": 9}, "worker 9 ends and is replaced: ?"),
        ("a.kind.of.tomorrow", {"what": "new"}, "a.kind.of.tomorrow: new"),
    ],
)
def test_each_kind_has_its_words(builder: EventBuilder, kind: str, data: dict[str, object], message: str) -> None:
    assert describe_event(builder.event(kind, data=data)) == message


def test_a_requeue_says_what_is_different_this_time(builder: EventBuilder) -> None:
    overrides = '{"max_attempts": 1, "params": {"day": 4}, "rollout": "c1", "timeout": 1200}'
    event = builder.move("a", "PENDING", overrides=overrides)
    requeued = event._replace(payload=cast(TaskMoved, event.payload)._replace(act="requeue"))
    assert describe_event(requeued) == "runs again: timeout 20m00, one try, day=4"


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_without_any_facts_still_has_a_sentence(builder: EventBuilder, kind: str) -> None:
    assert describe_event(builder.event(kind)).strip()
    assert event_subject(builder.event(kind)).strip()


@pytest.mark.parametrize("state", TaskState)
def test_every_move_has_a_sentence(builder: EventBuilder, state: TaskState) -> None:
    assert describe_event(builder.move("a", str(state))).strip()


def test_an_act_on_many_is_about_their_number(builder: EventBuilder) -> None:
    assert [event_subject(act(builder)), event_subject(act(builder, names=("a", "b")))] == ["a", "2 tasks"]
    assert event_subject(act(builder, "pause", ())) == "run"


# --- Command lines ---------------------------------------------------------------------------------------------------


def test_an_act_has_the_command_line_that_does_the_same(builder: EventBuilder) -> None:
    line = command_line(act(builder, names=("a", "b c"), rate_per_second=5), "/x/y z.db")
    assert line is not None
    words = "redrive|requeue|/x/y z.db@run-1|--rate|5/s|--reason|it's mended|--|a|b c"
    assert shlex.split(line) == words.split("|")


def test_what_is_no_act_or_has_no_command_has_no_line(builder: EventBuilder) -> None:
    assert command_line(builder.move("a", "READY"), "x.db") is None
    assert command_line(act(builder, "hurry"), "x.db") is None
    assert command_line(builder.event(EventKind.OPERATOR, data={"what": "attach"}), "x.db") is None


# --- What is kept ----------------------------------------------------------------------------------------------------


def test_events_come_once_and_in_order_whichever_way_they_come(builder: EventBuilder) -> None:
    events = numbered(builder, 6)
    journal = EventJournal("run-1")
    journal.append(events[3:4])
    journal.prepend(events[:5])
    journal.append(events[2:])
    assert journal.order == [event.seq for event in events]


def test_other_runs_are_left_out_and_what_belongs_to_none_is_not(builder: EventBuilder) -> None:
    journal = EventJournal("run-1")
    own, other, none = numbered(builder, 3)
    assert journal.append([own, other._replace(run_id="run-2"), none._replace(run_id=None)])
    assert journal.order == [own.seq, none.seq]


def test_a_filter_keeps_what_is_reported_later_as_well(builder: EventBuilder) -> None:
    journal = EventJournal("run-1")
    journal.set_filter(parse_filter("ana"))
    journal.append([*numbered(builder, 3), first := act(builder)])
    assert not journal.append(numbered(builder, 2))
    journal.append([second := act(builder)])
    assert journal.order == [first.seq, second.seq]
    assert journal.acts == 2
    journal.set_filter(parse_filter(""))
    assert len(journal.order) == len(journal) == 7


def test_what_is_notable_is_found_round_and_round(builder: EventBuilder) -> None:
    first, between = act(builder), numbered(builder, 2)
    dead = builder.move("a", "DEAD_LETTER")
    journal = EventJournal("run-1")
    journal.append([first, *between, dead])
    assert journal.next_notable(first.seq) == dead.seq
    assert journal.next_notable(dead.seq) == first.seq
    assert journal.next_notable(first.seq, -1) == dead.seq


def test_it_is_bounded_at_the_old_end_while_it_is_followed(
    builder: EventBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 100)
    monkeypatch.setattr(module, "_DROPPED_AT_ONCE", 10)
    journal = EventJournal("run-1")
    journal.is_complete = True
    events = numbered(builder, 101)
    for event in events:
        journal.append([event])
    assert journal.order == [event.seq for event in events[11:]]
    assert not journal.is_complete


def test_it_is_bounded_at_the_new_end_while_a_reader_is_at_the_old_end(
    builder: EventBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVENTS_MAX", 100)
    journal = EventJournal("run-1")
    events = numbered(builder, 130)
    journal.append(events[60:120])
    journal.prepend(events[:60])
    assert journal.order == [event.seq for event in events[:100]]
    assert not journal.append(events[120:])
    assert journal.newer_dropped == 30
