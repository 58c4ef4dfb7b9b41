"""When a run did something: attempts and their waits count, and what lies between is a pause."""

from __future__ import annotations

from redrive.console.model.time_axis import PAUSES_MAX, Pause, activity_of
from redrive.engine.core.waiting import ALIVE
from redrive.engine.domain.events import Event

from .runs import START, EventBuilder, S, projection_of


def builder_of(*names: str) -> EventBuilder:
    return EventBuilder(projection_of([(name, []) for name in names]))


def apply(builder: EventBuilder, events: Event | list[Event]) -> None:
    for event in events if isinstance(events, list) else [events]:
        builder.projection.apply(event)


def activity(builder: EventBuilder):
    return activity_of(builder.projection.tasks.values(), START, ALIVE)


def test_time_between_two_tasks_is_a_pause():
    builder = builder_of("first", "second")
    apply(builder, builder.start("first"))
    apply(builder, builder.after(5).succeed("first"))
    apply(builder, builder.after(60).start("second"))
    apply(builder, builder.after(5).succeed("second"))
    assert activity(builder) == ((Pause(START + 5 * S, START + 65 * S),), START + 70 * S, False, None)


def test_a_wait_between_attempts_is_no_pause():
    builder = builder_of("first")
    apply(builder, builder.start("first"))
    apply(builder, builder.after(5).fail("first", "RETRYING", next_retry_at=START + 100 * S))
    assert activity(builder).is_active
    apply(builder, builder.after(95).start("first"))
    apply(builder, builder.after(1).succeed("first"))
    assert activity(builder) == ((), START + 101 * S, False, None)


def test_the_wait_for_a_requeue_is_a_pause():
    builder = builder_of("first")
    apply(builder, builder.start("first"))
    apply(builder, builder.after(5).fail("first", "DEAD_LETTER"))
    apply(builder, builder.after(600).move("first", "PENDING", generation=1))
    apply(builder, builder.start("first", generation=1))
    assert activity(builder) == ((Pause(START + 5 * S, START + 605 * S),), START + 605 * S, True, None)


def test_a_task_that_runs_leaves_no_pause_below_it():
    builder = builder_of("long", "short")
    apply(builder, builder.start("long"))
    apply(builder, builder.after(50).start("short"))
    apply(builder, builder.after(1).succeed("short"))
    assert activity(builder).pauses == ()


def test_a_long_time_in_which_nothing_starts_or_ends_is_a_busy_pause_of_many_tasks():
    builder = builder_of("long", *(f"short_{number}" for number in range(30)))
    apply(builder, builder.start("long"))
    for number in range(30):
        apply(builder, builder.start(f"short_{number}"))
        apply(builder, builder.after(1).succeed(f"short_{number}"))
    found = activity(builder)
    assert found.pauses_until(START + 59 * S) == found.pauses, "shorter than what was before"
    assert found.pauses_until(START + 60 * S)[-1] == Pause(START + 30 * S, START + 60 * S, is_busy=True)
    apply(builder, builder.after(70).succeed("long"))
    assert activity(builder).pauses[-1] == Pause(START + 30 * S, START + 100 * S, is_busy=True)


def test_attempts_that_ended_before_they_began_leave_their_pause_once():
    builder = builder_of("first", "second")
    for name in ("first", "second"):
        apply(builder, builder.after(3600).start(name))
        apply(builder, builder.after(-3600).succeed(name))  # the clock was set back
    assert activity(builder).pauses == (Pause(START, START + 3600 * S),)


def test_only_the_longest_pauses_are_returned_in_order():
    names = [f"task_{number}" for number in range(PAUSES_MAX + 5)]
    builder = builder_of(*names)
    for number, name in enumerate(names):
        apply(builder, builder.after(number + 1).start(name))
        apply(builder, builder.succeed(name))
    pauses = activity(builder).pauses
    assert len(pauses) == PAUSES_MAX and list(pauses) == sorted(pauses)
    assert min(pause.end - pause.start for pause in pauses) > 5 * S
