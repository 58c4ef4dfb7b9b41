"""How far a requeue of many tasks has come, from its event and the rows of its tasks."""

from redrive.console.model.board import Board
from redrive.console.model.preview import latest_redrive, progress_of
from redrive.console.present.act_results import redrive_parts
from redrive.engine.core.projection import AttemptRow
from redrive.engine.core.waiting import ALIVE, RunnerKind, RunnerStatus
from redrive.engine.domain.acts import Answer, TargetResult
from redrive.engine.domain.event_payloads import OperatorActed, TaskColumns
from redrive.engine.domain.events import EventKind
from redrive.engine.domain.states import TaskState

from .runs import START, EventBuilder, S, projection_of

NAMES = [f"t{number}" for number in range(6)]


def requeued() -> tuple[Board, OperatorActed]:
    """Six dead letters, requeued at one every two seconds."""
    projection = projection_of([(name, []) for name in NAMES])
    for number, row in enumerate(projection.tasks.values()):
        row.generation, row.next_retry_at = 1, START + 2 * number * S
    results = tuple(TargetResult(name, "done", "runs again") for name in NAMES)
    was: dict[str, TaskColumns] = {name: {"state": "DEAD_LETTER", "generation": 0} for name in NAMES}
    answer = Answer(True, "6 requeued", results).as_json()
    return Board(projection), OperatorActed("requeue", {"rate_per_second": 0.5}, answer, was=was)


def put(board: Board, name: str, state: TaskState, ended: bool = True) -> None:
    """A task has started in its new generation."""
    row = board.row(name)
    row.state, row.attempt = state, 2
    row.attempts[2] = AttemptRow(2, generation=1, started_at=START, ended_at=START + S if ended else None)


def test_the_line_counts_what_started_what_failed_again_and_what_is_left() -> None:
    board, acted = requeued()
    put(board, "t0", TaskState.SUCCESS)
    put(board, "t1", TaskState.DEAD_LETTER)
    put(board, "t2", TaskState.RUNNING, ended=False)
    progress = progress_of(acted, board)
    assert progress.unstarted == ("t3", "t4", "t5")
    words = ["redrive 3/6", "0.5/s", "6s left", "1 failed again", "z stops the rest"]
    assert redrive_parts(progress, START + 4 * S, ALIVE) == words
    gone = redrive_parts(progress, START + 4 * S, RunnerStatus(RunnerKind.GONE))
    assert gone == ["redrive 3/6", "no executor runs it", "1 failed again", "z stops the rest"]


def test_a_redrive_is_over_when_each_task_has_ended_or_was_taken_back() -> None:
    board, acted = requeued()
    for name in NAMES[:4]:
        put(board, name, TaskState.SUCCESS)
    for name in NAMES[4:]:
        board.row(name).generation = 0
    progress = progress_of(acted, board)
    assert (progress.total, progress.is_over) == (4, True)


def test_only_a_requeue_of_several_tasks_is_a_redrive() -> None:
    board, acted = requeued()
    builder = EventBuilder(board.projection)
    many = builder.event(EventKind.OPERATOR, payload=acted)
    one = acted._replace(was={"t0": acted.was["t0"]})
    skip = acted._replace(act="skip")
    others = [builder.event(EventKind.OPERATOR, payload=payload) for payload in (one, skip)]
    assert latest_redrive([many, *others]) is many
    assert latest_redrive(others) is None
