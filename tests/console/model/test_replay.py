"""Any moment of a night is what folding every event up to it gives, however the reel keeps it."""

from __future__ import annotations

import random
from datetime import datetime

import pytest
from redrive.console.model.board import Board
from redrive.console.model.replay import NUMBER_MAX, ReplayIndex, initial_projection, is_step, parse_when, problem_of
from redrive.console.model.snapshot import RunSnapshot
from redrive.engine.core.projection import RunProjection
from redrive.engine.domain.events import Event, EventKind
from redrive.engine.domain.rows import RunRow
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import RedriveError
from support.marks import for_each

from .runs import MINUTE, START, EventBuilder, S, projection_of

PAIRS = [("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"])]


def created(builder: EventBuilder) -> Event:
    columns = {"dag_name": "flow", "started_at": builder.at, "state": "RUNNING", "max_parallel": 4}
    return builder.event(EventKind.RUN, new="RUNNING", data={"what": "created", "set": columns, "tasks": 4})


def random_events(count: int, seed: int = 1) -> list[Event]:
    """Attempts that fail and succeed, progress, breakers, pages and events of other runs between them."""
    dice = random.Random(seed)
    builder = EventBuilder(projection_of(PAIRS))
    events = [created(builder)]
    while len(events) < count:
        builder.after(dice.choice([0.01, 1, 30, -2]))
        name = dice.choice("abcd")
        match dice.randrange(6):
            case 0:
                events += [*builder.start(name), *builder.after(3).fail(name, next_retry_at=builder.at + 5 * S)]
            case 1:
                events += [*builder.start(name), *builder.after(1).succeed(name)]
            case 2:
                change = {"set": {"progress_done": dice.randrange(99)}}
                events.append(builder.event(EventKind.TASK_CHANGED, name, data=change))
            case 3:
                breaker = {"downstream": "bank", "state": dice.choice(["OPEN", "CLOSED"]), "reopens_at": builder.at + S}
                events.append(builder.event(EventKind.BREAKER, data=breaker))
            case 4:
                events.append(builder.event(EventKind.PAGE, name, data={"cause": "f00d", "what": "opened"}))
            case _:
                events.append(builder.event(EventKind.TASK, "a", new="RUNNING")._replace(run_id="another"))
    return events


def folded(events: list[Event], seq: int) -> RunSnapshot:
    """From nothing, one by one."""
    moment = RunSnapshot(initial_projection(projection_of(PAIRS)), is_past=True)
    for event in events:
        if event.run_id == "run-1" and event.seq <= seq:
            moment.apply(event)
    return moment


def reel_of(events: list[Event], **options: int) -> ReplayIndex:
    reel = ReplayIndex(projection_of(PAIRS), **options)
    reel.extend(events)
    return reel


def stretch_of(reel: ReplayIndex, events: list[Event], seq: int) -> list[Event]:
    """What a session would give."""
    after, limit = reel.window_for(seq)
    return [event for event in events if event.run_id == reel.run_id and event.seq > after][:limit]


def moment_of(reel: ReplayIndex, events: list[Event], seq: int) -> RunSnapshot:
    return reel.snapshot_at(seq, stretch_of(reel, events, seq))


# --- Moments ---------------------------------------------------------------------------------------------------------


@for_each("frame_events, frames_max", [(1, 128), (7, 128), (5, 4), (1, 2), (1000, 128)])
def test_every_moment_is_what_folding_all_events_up_to_it_gives(frame_events: int, frames_max: int):
    events = random_events(150)
    reel = reel_of(events, frame_events=frame_events, frames_max=frames_max)
    for event in events:
        if event.run_id == "run-1":
            assert moment_of(reel, events, event.seq) == folded(events, event.seq)


def test_a_moment_that_goes_forward_leaves_the_others_alone():
    """The rows that moments share are never written again, not by those who go on from one either."""
    events = random_events(120)
    reel = reel_of(events[:60], frame_events=10)
    middle = moment_of(reel, events, events[40].seq)
    before = repr(middle)
    reel.extend(events[60:])
    for event in events[20:100]:
        moment_of(reel, events, event.seq)
    assert repr(middle) == before


def test_a_stretch_is_never_longer_than_from_one_frame_to_the_next():
    events = [event for event in random_events(2_000) if event.run_id == "run-1"]
    reel = reel_of(events, frame_events=10, frames_max=8)
    spans = {reel.window_for(event.seq) for event in events}
    assert len(spans) <= 9
    assert max(limit for _, limit in spans) == min(limit for _, limit in spans) == 320
    for event in events:
        assert stretch_of(reel, events, event.seq)[-1].seq >= event.seq


def test_frames_share_the_rows_that_did_not_move():
    projection = projection_of([(f"t{number}", []) for number in range(50)])
    builder = EventBuilder(projection)
    events = [created(builder)]
    for number in range(40):
        events += [*builder.start(f"t{number}"), *builder.succeed(f"t{number}")]
    reel = ReplayIndex(projection, frame_events=3)
    reel.extend(events)
    one = reel.snapshot_at(60, stretch_of(reel, events, 60)).projection.tasks
    other = reel.snapshot_at(90, stretch_of(reel, events, 90)).projection.tasks
    shared = [name for name in one if one[name] is other[name]]
    assert {"t0", "t10", "t49"} <= set(shared) and "t25" not in shared


def test_what_comes_later_goes_on_where_the_reel_ends():
    events = random_events(200)
    reel = reel_of(events[:50], frame_events=16)
    reel.extend(events[30:150])  # what it has already is passed over
    reel.extend(events[150:])
    assert moment_of(reel, events, events[-1].seq) == folded(events, events[-1].seq)
    assert reel.step(10**6, -1) == max(event.seq for event in events if event.run_id == "run-1" and is_step(event))


@for_each(
    "changes, note",
    [
        (["opened", "rearmed"], "page open"),  # a requeue, perhaps undone: nobody has acknowledged it
        (["opened", "acked", "folded"], "page acked by ana@desk"),
        (["opened", "snoozed", "woken"], "page not sent"),
        (["opened", "rearmed", "resolved"], ""),
        (["folded"], "page open"),
    ],
)
def test_a_page_stays_open_until_it_is_acknowledged_or_resolved(changes, note):
    builder = EventBuilder(projection_of(PAIRS))
    board = Board(builder.projection)
    for what in changes:
        board.apply([builder.event(EventKind.PAGE, "a", actor="ana@desk", data={"cause": "f00d", "what": what})])
    assert board.snapshot.page_notes == {"f00d": note}


def test_breakers_and_pages_are_those_of_the_moment():
    builder = EventBuilder(projection_of(PAIRS))
    opened = builder.event(EventKind.BREAKER, data={"downstream": "bank", "state": "OPEN", "reopens_at": 7})
    events = [created(builder), opened._replace(seq=2), *builder.start("a")]
    closed = builder.event(EventKind.BREAKER, data={"downstream": "bank", "state": "CLOSED"})
    page = builder.event(EventKind.PAGE, "a", actor="ana@desk", data={"cause": "f00d", "what": "acked"})
    events = [*events, closed, page]
    for place, event in enumerate(events):
        events[place] = event._replace(seq=place + 1)
    reel = reel_of(events)
    breakers = [moment_of(reel, events, number).breakers["bank"].breaker for number in (3, 6)]
    assert [(one.state, one.reopens_at) for one in breakers] == [("OPEN", 7), ("CLOSED", None)]
    assert moment_of(reel, events, 6).page_notes == {"f00d": "page acked by ana@desk"}
    assert moment_of(reel, events, 1).breakers == {}


def test_a_run_whose_beginning_was_removed_has_no_past():
    events = random_events(30)
    reel = ReplayIndex(projection_of(PAIRS))
    with pytest.raises(RedriveError, match="was removed from the file"):
        reel.extend(events[5:])


# --- From one to the next ------------------------------------------------------------------------------------------


@pytest.fixture
def events() -> list[Event]:
    """a succeeds; b fails twice of one cause within a moment and once more after ten minutes; c hangs; ana requeues."""
    builder = EventBuilder(projection_of(PAIRS))
    events = [created(builder), *builder.start("a")]
    events.append(builder.after(1).event(EventKind.TASK_CHANGED, "a", data={"set": {"progress_done": 3}}))
    events += [*builder.after(1).succeed("a"), *builder.start("b"), *builder.after(1).fail("b")]
    events += [*builder.start("b"), *builder.after(1).fail("b")]
    events += [*builder.after(600).start("b"), *builder.after(1).fail("b", "DEAD_LETTER")]
    events += builder.start("c")
    events.append(builder.after(9).event(EventKind.ATTEMPT_DEADLINE, "c", attempt=1))
    events += builder.after(5).fail("c", "FAILED", error="TimeoutError")
    requeue = {"act": "requeue", "answer": {"ok": True, "message": "1 requeued", "results": [["b", "done", ""]]}}
    events.append(builder.after(60).event(EventKind.OPERATOR, actor="ana@desk", data=requeue))
    events.append(builder.event(EventKind.OPERATOR, actor="ana@desk", data={"what": "detach"}))
    return events


def test_steps_pass_over_what_only_says_how_far_a_task_is(events: list[Event]):
    reel = reel_of(events)
    quiet = [event.seq for event in events if not is_step(event)]
    assert quiet == [4, 20]
    assert reel.step(5, -1) == 3 and reel.step(3, 1) == 5
    assert reel.step(4, -1) == 3 and reel.step(4, 1) == 5  # from where somebody went by number


def test_before_the_first_step_there_is_none_and_behind_the_last_is_the_present(events: list[Event]):
    reel = reel_of(events)
    assert reel.step(2, -5) == 1 and reel.step(1, -1) == 1
    assert reel.step(19, 1) is None


def test_problems_are_failures_hangs_and_acts_a_burst_of_one_cause_as_one(events: list[Event]):
    reel = reel_of(events)
    found, seq = [], 0
    while (seq := reel.next_problem(seq, 1) or 0) != 0:
        found.append(problem_of(events[seq - 1]))
    assert found == [
        "RETRYING loose-ValueError",
        "DEAD_LETTER loose-ValueError",
        "hang c",
        "FAILED loose-TimeoutError",
        "act 19",
    ]
    back, seq = 0, reel.seq + 1
    while (before := reel.next_problem(seq, -1)) is not None:
        back, seq = back + 1, before
    assert back == 5


def test_a_time_is_the_last_event_up_to_it(events: list[Event]):
    reel = reel_of(events)
    assert reel.seq_at(START + 2 * S) == 7  # the last of those that happened in that instant
    assert reel.seq_at(START + 5 * MINUTE) == 11
    assert reel.seq_at(START - MINUTE) == 1
    assert reel.seq_at(START + 60 * MINUTE) == reel.seq
    assert (reel.instant_of(11), reel.next_instant(11)) == (START + 4 * S, START + 604 * S)
    assert reel.next_instant(reel.seq) is None


def test_a_clock_that_went_back_does_not_reorder_the_run():
    builder = EventBuilder(projection_of(PAIRS))
    events = [
        created(builder),
        *builder.after(60).start("a"),
        *builder.after(-50).succeed("a"),
        *builder.after(90).start("b"),
    ]
    reel = reel_of(events)
    assert reel.instant_of(4) == START + 60 * S
    assert reel.seq_at(START + 59 * S) == 1
    assert reel.seq_at(START + 61 * S) == 4


# --- The board turned ------------------------------------------------------------------------------------------------


def test_a_board_that_is_turned_is_the_board_of_that_moment():
    """Counts, problems, what ticks and what is held: as if the board had been made there."""
    events = random_events(200, seed=5)
    reel = reel_of(events, frame_events=9)
    board = Board(folded(events, reel.seq).projection)
    dice = random.Random(2)
    for seq in [reel.seq, 1, *(dice.randrange(1, reel.seq) for _ in range(60))]:
        board.seek(moment_of(reel, events, seq))
        new = Board(folded(events, seq).projection)
        assert board.projection == new.projection
        assert (+board.counts, board.problems, board.active) == (+new.counts, new.problems, new.active)
        assert [board.waiting_below(name) for name in "abcd"] == [new.waiting_below(name) for name in "abcd"]


def test_a_seek_reports_only_the_rows_that_differ():
    builder = EventBuilder(projection_of(PAIRS))
    events = [created(builder), *builder.start("a"), *builder.after(1).fail("a", "DEAD_LETTER"), *builder.start("b")]
    reel = reel_of(events)
    board = Board(folded(events, reel.seq).projection)
    delta = board.seek(moment_of(reel, events, 3))
    assert delta.tasks == {"a", "b"} and delta.are_problems_changed and not delta.is_run_changed
    assert sorted(delta.moves) == [
        ("a", TaskState.DEAD_LETTER, TaskState.RUNNING),
        ("b", TaskState.RUNNING, TaskState.PENDING),
    ]
    assert not board.seek(moment_of(reel, events, 3))
    assert board.seek(moment_of(reel, events, 1)).tasks == {"a"}


# --- Times as they are typed -----------------------------------------------------------------------------------------


NEVER = 2**60  # every instant has come by then


def run_at(text: str) -> RunRow:
    return RunRow("r", started_at=round(datetime.fromisoformat(text).astimezone().timestamp() * S))


@for_each(
    "text, found",
    [
        ("23:30", "2026-04-25T23:30:00"),
        ("03:12", "2026-04-26T03:12:00"),
        (" 03:12:30 ", "2026-04-26T03:12:30"),
        ("22:59:59", "2026-04-26T22:59:59"),
        ("2026-04-25T23:45", "2026-04-25T23:45:00"),
    ],
)
def test_a_clock_time_is_the_first_such_time_after_the_start(text: str, found: str):
    expected = datetime.fromisoformat(found).astimezone()
    assert parse_when(text, run_at("2026-04-25T23:00:00"), NEVER) == round(expected.timestamp() * S)


def test_a_time_before_the_run_is_not_the_one_of_tomorrow():
    run = run_at("2026-04-25T23:00:00")
    with pytest.raises(RedriveError, match="22:45 is before run r began: 2026-04-25 23:00:00"):
        parse_when("22:45", run, run.started_at + 600 * S)
    assert parse_when("22:45", run, run.started_at + 86_400 * S) > run.started_at


def test_a_number_is_that_of_an_event():
    assert parse_when("412", RunRow("r"), NEVER) == 412 < NUMBER_MAX
    assert parse_when("9" * 40, RunRow("r"), NEVER) < NUMBER_MAX


@for_each("text", ["", "noon", "25:00", "03:12:99", "2026-13-01", "0001-01-01", "²"])
def test_what_is_no_time_is_refused_with_what_to_write(text: str):
    with pytest.raises(RedriveError, match="03:12:30"):
        parse_when(text, run_at("2026-04-25T23:00:00"), NEVER)


def test_nothing_has_happened_in_a_blank_run():
    projection = projection_of(PAIRS, {"a": {"timeout": 5.0}})
    board, builder = Board(projection), EventBuilder(projection)
    board.apply([*builder.start("a"), *builder.succeed("a")])
    empty: RunProjection = initial_projection(projection)
    assert {row.state for row in empty.tasks.values()} == {TaskState.PENDING}
    assert empty.tasks["a"].spec is projection.tasks["a"].spec and not empty.tasks["a"].attempts
