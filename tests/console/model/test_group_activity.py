"""The activity of a group in the cells of an axis, against counting task by task."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.group_activity import CellActivity, GroupActivity
from redrive.engine.core.projection import AttemptRow, TaskRow
from redrive.engine.domain.states import FAILED_OUTCOMES, TIMED, TaskState

NAMES = ("a", "b", "c")


@st.composite
def task_rows(draw: st.DrawFn, name: str) -> TaskRow:
    """A task with up to four attempts one after the other; the last one may still run."""
    instants = sorted(draw(st.lists(st.integers(0, 99), max_size=8)))
    row = TaskRow(name, state=draw(st.sampled_from([TaskState.DEAD_LETTER, TaskState.FAILED, TaskState.RETRYING])))
    for number in range((len(instants) + 1) // 2):
        start, *end = instants[2 * number : 2 * number + 2]
        outcome = draw(st.sampled_from(["error", "success", "timed_out"])) if end else "running"
        row.generation = max(row.generation, draw(st.integers(0, 1)))
        row.attempts[number] = AttemptRow(number, row.generation, start, end[0] if end else None, outcome=outcome)
    row.attempt = len(row.attempts) - 1
    row.next_retry_at = 120
    return row


def counted(rows: list[TaskRow], start: int, end: int) -> CellActivity:
    """The activity from ``start`` to before ``end``, counted."""
    running = waiting = retried = failures = dead_letters = 0
    for row in rows:
        attempts = list(row.attempts.values())
        for place, attempt in enumerate(attempts):
            later = attempts[place + 1] if place + 1 < len(attempts) else None
            running += attempt.started_at < end and (attempt.ended_at is None or attempt.ended_at >= start)
            if attempt.ended_at is None:
                continue
            final = row.state if later is None else None
            ends_here = start <= attempt.ended_at < end
            dead_letters += ends_here and final is TaskState.DEAD_LETTER
            failures += ends_here and final is TaskState.FAILED
            is_retried = final not in (TaskState.DEAD_LETTER, TaskState.FAILED)
            retried += ends_here and is_retried and attempt.outcome in FAILED_OUTCOMES
            if later is not None and later.generation == attempt.generation:
                waiting += attempt.ended_at < end and later.started_at >= start
            elif later is None and row.state in TIMED and attempt.generation == row.generation:
                waiting += attempt.ended_at < end
    return CellActivity(running, waiting, retried, failures, dead_letters)


@given(
    before=st.tuples(*map(task_rows, NAMES)),
    after=st.tuples(*map(task_rows, NAMES)),
    borders=st.lists(st.integers(0, 120), min_size=2, max_size=12, unique=True).map(sorted),
)
def test_cells_hold_what_happens_in_them_also_after_changes(
    before: tuple[TaskRow, ...], after: tuple[TaskRow, ...], borders: list[int]
) -> None:
    activity = GroupActivity(before)
    for row in after:
        activity.update(row)
    expected = [counted(list(after), start, end) for start, end in pairwise(borders)]
    assert activity.cells(borders) == expected


def test_a_group_knows_when_it_began_what_goes_on_and_what_is_due() -> None:
    waiting = TaskRow("a", TaskState.RETRYING, next_retry_at=30)
    waiting.attempts[1] = AttemptRow(1, started_at=5, ended_at=9, outcome="error")
    running = TaskRow("b", TaskState.RUNNING)
    running.attempts[1] = AttemptRow(1, started_at=7)
    activity = GroupActivity([waiting, running])
    assert (activity.first_start, activity.last_end, activity.oldest_running, activity.next_due) == (5, 9, 7, 30)
    assert activity.work_us == 4
    assert activity.is_active
