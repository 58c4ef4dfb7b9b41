"""No text speaks of a future that nobody brings about."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redrive.console.model.board import Board
from redrive.console.model.eta import estimate
from redrive.console.model.graph.groups import groups_of
from redrive.console.model.group_activity import GroupActivity
from redrive.console.model.inbox import EvidenceData
from redrive.console.model.session_status import Link, SessionStatus
from redrive.console.model.time_axis import Span
from redrive.console.present import detail
from redrive.console.present.header import executor_gone_line, run_line, status_lines
from redrive.console.present.tasks import RunContext, state_facts
from redrive.console.present.timeline import BarContext, bar_line, group_bar_line
from redrive.console.present.timeline_text import group_lines, task_lines
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import plain
from redrive.engine.core.explain import explain_task
from redrive.engine.core.projection import AttemptRow
from redrive.engine.core.views import task_view
from redrive.engine.core.waiting import ALIVE, ExplainContext, RunnerKind, RunnerStatus, needs_human
from redrive.engine.domain.rows import ExecutorState
from redrive.engine.domain.states import MOVING, TaskState
from redrive.engine.statefile.durations import DurationStats
from support.breakers import status_of

from ..model.graphs import dags, edges
from ..model.runs import START, S, projection_of

NOW = START + 100 * S
SPAN = Span(START, S, 200)
ABSENT = [kind for kind in RunnerKind if not RunnerStatus(kind).is_alive]
GONE = ExecutorState(gone_at=NOW - 60 * S, pid=4711)

#: What only a living executor can make true.
PROMISE = re.compile(
    r"\bin \d|\bin \d\d:|\beta\b|takes it next|starts in|starts as soon|due (in|\d)|next check|\bdue\b|▸|not before"
    r"|● running|running for|running:|runs for|will be|lets a probe|letting probes|the next retry|in [\d.]+ (s|min|h)\b"
)


@st.composite
def boards(draw):
    """Any graph with tasks in any states, with instants ahead or passed, breakers, pauses and full slots."""
    dag = draw(dags(8))
    parents = {name: [above for above, below in edges(dag) if below == name] for name in dag.names}
    projection = projection_of(
        [(name, parents[name]) for name in dag.names], {name: {"downstream": "api"} for name in dag.names}
    )
    run = projection.run._replace(max_parallel=draw(st.sampled_from([1, 4])))
    if draw(st.booleans()):
        run = run._replace(paused_since=NOW - 9 * S, paused_by="ana")
    projection.run = run._replace(blocked_since=draw(st.sampled_from([None, NOW - 5 * S])))
    for row in projection.tasks.values():
        row.state = draw(st.sampled_from(list(TaskState)))
        row.next_retry_at = draw(st.sampled_from([None, NOW + 7 * S, NOW - 7 * S]))
        row.started_at = row.ended_at = NOW - 41 * S
        row.expires_at = draw(st.sampled_from([None, NOW + 60 * S]))
        row.attempt, row.delay_us, row.ceiling_us, row.failures = 1, 7 * S, 16 * S, draw(st.integers(0, 1))
        is_open = row.state is TaskState.RUNNING
        ended_at = None if is_open else NOW - 30 * S
        outcome = "running" if is_open else "error"
        row.attempts[1] = AttemptRow(1, NOW - 41 * S, timeout_us=300 * S, ended_at=ended_at, outcome=outcome)
    board = Board(projection)
    state = draw(st.sampled_from(["CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN"]))
    board.snapshot.breakers["api"] = status_of(state, draw(st.sampled_from([None, NOW + 30 * S])))
    board.duration_stats = {name: DurationStats(20, 5 * S, 9 * S) for name in dag.names}
    return board


def texts_of(board: Board, runner: RunnerStatus, *, is_stopped: bool = False):
    """Every text of the header, the rows, the pages, the bars and the sentences."""
    context = RunContext(board, NOW, UTF8, runner=runner)
    forecast = estimate(board, NOW, board.duration_stats)
    yield plain(run_line(board, "x.db", forecast, NOW, 160, UTF8, runner=runner))
    status = SessionStatus(Link.LIVE, executor=ExecutorState(gone_at=runner.gone_at, stopped=is_stopped))
    yield from (plain(line) for line in status_lines(board, status, 120))
    yield plain(executor_gone_line(board, status, "R", NOW))
    for row in board.projection.tasks.values():
        yield plain(state_facts(row, context))
        yield board.explain(row.name, NOW, runner)
        yield from (sentence for _, sentence in board.blocking_chain(row.name, NOW, runner))
        yield from (plain(line) for line in detail.summary_lines(row, context, 120, 4))
        yield from (plain(line) for line in detail.detail_page(row, context, EvidenceData(), 120))
        yield plain(bar_line(row, BarContext(SPAN, NOW, UTF8, runner), context.view(row.name).instant))
        yield from (plain(line) for line in task_lines(row, context, 120, 6))
    activity = GroupActivity(board.projection.tasks.values())
    for group in groups_of(board).groups:
        yield plain(group_bar_line(group, activity, BarContext(SPAN, NOW, UTF8, runner)))
        yield from (plain(line) for line in group_lines(group, activity, list(board.projection.tasks), context, 120, 6))


@given(boards(), st.sampled_from(ABSENT), st.sampled_from([None, NOW - 60 * S]), st.booleans())
def test_without_an_executor_no_text_speaks_of_a_future(board, kind, gone_at, is_stopped):
    runner = RunnerStatus(kind, ExecutorState(gone_at=gone_at, pid=4711), remedy="R starts an executor")
    for text in texts_of(board, runner, is_stopped=is_stopped):
        assert not PROMISE.search(text), text


@given(boards(), st.sampled_from(ABSENT))
def test_a_task_that_only_an_executor_can_move_says_that_nobody_runs_it(board, kind):
    runner = RunnerStatus(kind, GONE, remedy="R starts an executor")
    context = ExplainContext(board.snapshot.breakers, runner)
    for name, row in board.projection.tasks.items():
        view = task_view(board.projection, name, NOW, context)
        assert not view.is_promised and view.instant is None
        if row.state in MOVING and not needs_human(view.reason):
            sentence = explain_task(board.projection, name, NOW, context)
            held = any(words in sentence for words in ("dead-lettered", "failed", "held by"))  # a human moves it first
            assert runner.absence in sentence or held


@pytest.mark.parametrize("kind", ABSENT)
def test_what_dead_letters_hold_no_executor_would_move(kind):
    projection = projection_of([("a", []), ("b", []), ("c", []), ("below", ["a", "b", "c"])])
    projection.tasks["b"].state = projection.tasks["c"].state = TaskState.DEAD_LETTER
    runner = RunnerStatus(kind, GONE, remedy="R starts an executor")
    sentence = Board(projection).explain("below", NOW, runner)
    assert sentence == "waits for a, b and c; held by b and c"


def test_with_an_executor_the_same_texts_promise():
    projection = projection_of([("a", [])])
    projection.tasks["a"].state = TaskState.READY
    board = Board(projection)
    assert board.explain("a", NOW, ALIVE).endswith("the executor starts it next")
    assert any(PROMISE.search(text) for text in texts_of(board, ALIVE))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (RunnerKind.GONE, "queued; no executor runs it: R starts an executor"),
        (RunnerKind.SERVED, "queued; redrive serve (pid 7) starts an executor for it"),
        (RunnerKind.BUSY, "queued; no executor runs it: executor 7 runs another run"),
    ],
)
def test_a_requeued_task_says_who_would_start_it(kind, words):
    board = Board(projection_of([("a", [])]))
    service_pid = 7 if kind is RunnerKind.SERVED else None
    runner = RunnerStatus(kind, ExecutorState(gone_at=NOW, pid=7), service_pid, "R starts an executor")
    assert board.explain("a", NOW, runner) == words


def test_an_executor_that_ended_by_design_is_not_called_gone():
    board = Board(projection_of([("a", [])]))
    status = SessionStatus(Link.LIVE, executor=ExecutorState(gone_at=NOW, stopped=True))
    assert "no executor" in plain(status_lines(board, status, 120)[0])
    board.projection.run = board.projection.run._replace(blocked_since=NOW)
    line = status_lines(board, status, 120)[0]
    assert re.fullmatch(r"ended \d\d:\d\d · waits for you", plain(line))
    assert {piece.role for piece in line} == {line[0].role}
    assert not executor_gone_line(board, status, "R", NOW)
