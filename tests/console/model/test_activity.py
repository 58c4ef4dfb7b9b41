"""When a run did something: attempts and their waits count, and what lies between is a pause."""

from __future__ import annotations

from redrive.console.model.activity import PAUSES_MAX, Pause, activity_of
from redrive.engine.domain.events import Event

from .runs import START, S, Story, projection_of


def story_of(*names: str) -> Story:
    return Story(projection_of([(name, []) for name in names]))


def apply(story: Story, events: Event | list[Event]) -> None:
    for event in events if isinstance(events, list) else [events]:
        story.projection.apply(event)


def activity(story: Story):
    return activity_of(story.projection.tasks.values(), START)


def test_time_between_two_tasks_is_a_pause():
    story = story_of("first", "second")
    apply(story, story.start("first"))
    apply(story, story.after(5).succeed("first"))
    apply(story, story.after(60).start("second"))
    apply(story, story.after(5).succeed("second"))
    assert activity(story) == ((Pause(START + 5 * S, START + 65 * S),), START + 70 * S, False)


def test_a_wait_between_attempts_is_no_pause():
    story = story_of("first")
    apply(story, story.start("first"))
    apply(story, story.after(5).fail("first", "RETRYING", next_retry_at=START + 100 * S))
    assert activity(story).is_active
    apply(story, story.after(95).start("first"))
    apply(story, story.after(1).succeed("first"))
    assert activity(story) == ((), START + 101 * S, False)


def test_the_wait_for_a_requeue_is_a_pause():
    story = story_of("first")
    apply(story, story.start("first"))
    apply(story, story.after(5).fail("first", "DEAD_LETTER"))
    apply(story, story.after(600).move("first", "PENDING", generation=1))
    apply(story, story.start("first", generation=1))
    assert activity(story) == ((Pause(START + 5 * S, START + 605 * S),), START + 605 * S, True)


def test_a_task_that_runs_leaves_no_pause_below_it():
    story = story_of("long", "short")
    apply(story, story.start("long"))
    apply(story, story.after(50).start("short"))
    apply(story, story.after(1).succeed("short"))
    assert activity(story).pauses == ()


def test_only_the_longest_pauses_are_returned_in_order():
    names = [f"task_{number}" for number in range(PAUSES_MAX + 5)]
    story = story_of(*names)
    for number, name in enumerate(names):
        apply(story, story.after(number + 1).start(name))
        apply(story, story.succeed(name))
    pauses = activity(story).pauses
    assert len(pauses) == PAUSES_MAX and list(pauses) == sorted(pauses)
    assert min(pause.end - pause.start for pause in pauses) > 5 * S
