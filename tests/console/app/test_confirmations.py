"""Questions before acts: many tasks are not confirmed by a habit of the hand."""

from __future__ import annotations

import pytest
from redrive.console.app import confirmations
from redrive.console.app.confirmations import TYPED_ABOVE
from redrive.console.model.board import Board
from redrive.console.model.preview import preview_requeue, preview_skip
from redrive.console.present.tasks import RunContext
from redrive.console.text.glyphs import UTF8

from ..model.runs import START, failed_task, projection_of


@pytest.mark.parametrize("count", [1, TYPED_ABOVE, TYPED_ABOVE + 1])
def test_each_question_about_many_tasks_wants_their_number_typed(count: int) -> None:
    names = [f"load_{number:02}" for number in range(count)]
    projection = projection_of([(name, []) for name in names])
    for name in names:
        failed_task(projection, name)
    board = Board(projection)
    context = RunContext(board, START, UTF8)
    questions = [
        confirmations.preview_question("requeue", preview_requeue(board, names), context),
        confirmations.preview_question("skip", preview_skip(board, names), context),
        confirmations.stop_question(names, context),
        confirmations.hurry_question(names, context),
        confirmations.acknowledge_question(names, context),
        *(confirmations.answer_question(act, names, context) for act in ("approve", "reject")),
    ]
    wanted = str(count) if count > TYPED_ABOVE else None
    assert {question.type_exactly for question in questions} == {wanted}
    title = names[0] if count == 1 else f"{count} tasks"
    assert [question.title for question in questions] == [
        f"Requeue {title}",
        f"Skip {title}",
        f"Stop {title}",
        f"Retry {title} now",
        f"Acknowledge {title}",
        f"Approve {title}",
        f"Reject {title}",
    ]


def test_what_an_act_does_to_other_tasks_is_said_without_what_all_names_begin_with() -> None:
    names = [f"NFCORE_VIRALRECON.ILLUMINA.{end}" for end in ("FASTP", "FASTQC", "MULTIQC")]
    projection = projection_of([(names[0], []), (names[1], []), (names[2], names[:2])])
    for name in names[:2]:
        failed_task(projection, name)
    board = Board(projection)
    question = confirmations.preview_question(
        "requeue", preview_requeue(board, names[:2]), RunContext(board, START, UTF8)
    )
    assert "1 task may go on: MULTIQC." in question.facts
