"""What the inbox says of a run that is paused, late, without executor, or ended by its deadline."""

from __future__ import annotations

from redrive.console.model.board import Board
from redrive.console.model.inbox import Inbox
from redrive.console.present.act_results import result_lines
from redrive.console.present.inbox import cause_row, need_lines, run_line, selection_lines, task_row
from redrive.console.present.tasks import RunContext
from redrive.console.text.figures import wall
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.core.projection import RunProjection
from redrive.engine.domain.acts import REFUSED, TargetResult
from redrive.engine.domain.states import DEADLINE_MODE, DeadLetterKind, TaskState
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.needs import Need
from support.marks import for_each

from ..model.runs import START, S, projection_of

NOW = START + 700 * S
PASSED = f"deadline {wall(START + 60 * S)} passed"


def held(reason: str) -> RunProjection:
    """A run with one task that has started and one that has not, and both are held for one ``reason``."""
    projection = projection_of([("load", []), ("index", [])])
    projection.tasks["load"].started_at = START + 5 * S
    for row in projection.tasks.values():
        row.state, row.changed_at = TaskState.READY, START
        if reason == "deadline":
            row.state, row.failure_mode, row.error = TaskState.CANCELLED, DEADLINE_MODE, PASSED
    if reason == "pause":
        projection.run = projection.run._replace(paused_since=START, paused_by="ana@ops-1", blocked_since=START)
    return projection


@for_each("reason, said", [("pause", "held by a pause"), ("deadline", PASSED)])
def test_what_holds_all_tasks_is_said_once_and_each_row_says_how_far_its_task_came(reason, said):
    board = Board(held(reason))
    inbox, context = Inbox(board), RunContext(board, NOW, UTF8)
    (cause,) = inbox.causes()
    assert said in plain(cause_row(cause, True, context, 140))
    rows = {name: plain(task_row(inbox.entry(name), board.row(name), context, 140)) for name in cause.tasks}
    assert f"started at {wall(START + 5 * S)}" in rows["load"] and "has not started" in rows["index"]
    assert not any(said in text for text in rows.values())


def test_a_dead_letter_by_the_deadline_is_none_of_the_tasks_that_it_ended():
    projection = held("deadline")
    row = projection.tasks["load"]
    row.state, row.failure_mode, row.dead_letter_kind = TaskState.DEAD_LETTER, None, DeadLetterKind.DEADLINE
    row.error = "a retry would end too late"
    board = Board(projection)
    inbox, context = Inbox(board), RunContext(board, NOW, UTF8)
    assert sorted(cause.tasks for cause in inbox.causes()) == [("index",), ("load",)]
    assert row.error in plain(task_row(inbox.entry("load"), row, context, 140))


def test_under_the_list_the_deadline_that_ended_the_tasks_is_named_once():
    head, verdict = map(plain, selection_lines(["load", "index"], RunContext(Board(held("deadline")), NOW, UTF8), 80))
    assert "2 tasks ⊗ deadline" in head and PASSED not in head
    assert "The deadline of the run has ended it." in verdict


@for_each(
    "need, listed, beside",
    [
        (Need(NeedKind.LATE, "", START + 60 * S), f"late since {wall(START + 60 * S)}", "1m00 after"),
        (Need(NeedKind.LOST, "", START), "no executor runs it", "no executor runs it"),
    ],
)
def test_what_a_run_needs_as_a_whole_is_said_without_a_second_count(need, listed, beside):
    contexts = [RunContext(Board(projection_of([("load", [])])), now_us, UTF8) for now_us in (NOW, NOW + 9 * S)]
    context, said = contexts[0], {plain(run_line(need, one)) for one in contexts}
    assert len(said) == 1 and listed in said.pop()
    lines = [plain(line) for line in need_lines(need, context, 80, can_resume=True)]
    assert beside in lines[0] and not any("late by" in line for line in lines)


def test_no_word_of_an_answer_is_taken_for_the_name_of_its_task():
    (line,) = result_lines([TargetResult("the", REFUSED, "nothing failed: the run is paused: unpause it")], UTF8)
    assert plain(line).endswith("the nothing failed: the run is paused: unpause it")
