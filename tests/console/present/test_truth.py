"""All views of one board say the same of each task and of the run, and none speaks of what nobody does."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from redrive.console.model.board import Board
from redrive.console.model.eta import estimate
from redrive.console.model.graph.groups import ZoomStep
from redrive.console.model.graph.view import Graph
from redrive.console.model.inbox import EvidenceData, Inbox
from redrive.console.model.runs import FleetEntry, WaitingRun, fleet_entries
from redrive.console.model.session_status import Link, SessionStatus, runner_of
from redrive.console.model.time_axis import Span
from redrive.console.present.detail import detail_page, summary_lines, title_line
from redrive.console.present.evidence import cause_page
from redrive.console.present.fleet import FLEET_COLUMNS, executor_text, fleet_row, run_lines
from redrive.console.present.graph import Highlight, drawing_row, graph_row, label_width
from redrive.console.present.header import run_line
from redrive.console.present.inbox import cause_row, verdict_of
from redrive.console.present.inbox import task_row as inbox_task_row
from redrive.console.present.report import ReportData, graph_lines, headline, timeline_rows
from redrive.console.present.run_grid import run_words as run_words_of
from redrive.console.present.run_grid import view_of
from redrive.console.present.runs import RUN_COLUMNS, ListedRun, incident_summary
from redrive.console.present.states import RowContext, counts_text
from redrive.console.present.tasks import RunContext, named_task, node_facts, state_facts
from redrive.console.present.timeline import BarContext, bar_line, duration_text, label_line
from redrive.console.present.timeline_text import task_lines
from redrive.console.text.columns import shell_rows
from redrive.console.text.figures import column
from redrive.console.text.glyphs import UTF8
from redrive.console.text.pieces import Piece, Role, plain, table, width
from redrive.engine.core.projection import AttemptRow
from redrive.engine.core.ready_queue import spec_of
from redrive.engine.core.views import OperatorPrompt, run_code, run_view, state_code
from redrive.engine.core.waiting import WaitReason
from redrive.engine.domain.rows import ExecutorState, RunFacts, RunRow, RunSummary
from redrive.engine.domain.states import MOVING, NEEDS_HUMAN, TIMED, WITH_INSTANT, TaskState
from redrive.engine.statefile.durations import DurationStats
from redrive.engine.statefile.lists import NeedKind, ScheduleRow
from redrive.engine.statefile.needs import Need
from redrive.engine.statefile.state_files import FileRow
from redrive.engine.statefile.supervisor_file import FOREVER, ServedSchedule
from support.breakers import status_of

from ..conftest import run_text
from ..model.graphs import dags, edges
from ..model.runs import START, S, projection_of

NOW = START + 100 * S
SPAN = Span(START, S, 200)
GONE_AT = NOW - 60 * S
MANY = settings(max_examples=settings().max_examples // 2, deadline=None, suppress_health_check=[HealthCheck.too_slow])

EXECUTORS: dict[str, dict[str, Any]] = {
    "alive": {"executor": ExecutorState(True, pid=7, run_id="run-1")},
    "dead": {"executor": ExecutorState(gone_at=GONE_AT, pid=7, run_id="run-1")},
    "stopped": {"executor": ExecutorState(gone_at=GONE_AT, pid=7, run_id="run-1", stopped=True)},
    "never started": {},
    "runs another run": {"executor": ExecutorState(True, pid=7, run_id="run-2")},
    "served": {"service_pid": 8},
}
LINKS: dict[str, dict[str, Any]] = {
    "live": {"link": Link.LIVE},
    "late": {"link": Link.LIVE},
    "lost": {"link": Link.STALE, "problem": "the connection is lost", "data_age_seconds": 40.0},
    "file gone": {"link": Link.CLOSED, "problem": "there is no state file /x.db", "data_age_seconds": 40.0},
}


#: The states of the tasks of a run: any, and those of the rooms that are rarely entered.
ROOMS = [
    list(TaskState),
    [TaskState.SENSING, TaskState.RETRYING, TaskState.SUCCESS],  # it only waits
    [TaskState.READY, TaskState.PENDING, TaskState.SUCCESS],  # paused, or asked
    [TaskState.READY],
    [TaskState.CANCELLED, TaskState.SUCCESS],  # late
]


_DUE: list[int | None] = [NOW + 70 * S - 300_000, NOW - 7 * S]
INSTANTS = {**dict.fromkeys(TIMED, _DUE), TaskState.PENDING: [None, *_DUE]}


@st.composite
def boards(draw):
    """A board and the status of its session: any states, executors, pauses, breakers, instants, clocks and links."""
    dag = draw(dags(6))
    parents = {name: [above for above, below in edges(dag) if below == name] for name in dag.names}
    projection = projection_of(
        [(name, parents[name]) for name in dag.names], {name: {"downstream": "api"} for name in dag.names}
    )
    run = projection.run
    if draw(st.booleans()):
        run = run._replace(paused_since=NOW - 9 * S, paused_by="ana")
    run = run._replace(blocked_since=draw(st.sampled_from([None, NOW - 5 * S])))
    projection.run = run._replace(deadline_at=draw(st.sampled_from([None, NOW - 3 * S, NOW + 900 * S])))
    started_at = draw(st.sampled_from([NOW - 81 * S, NOW + 3600 * S]))  # the clock was set back by an hour
    room = draw(st.sampled_from(ROOMS))
    for row in projection.tasks.values():
        row.state = draw(st.sampled_from(room))
        row.next_retry_at = draw(st.sampled_from(INSTANTS[row.state])) if row.state in INSTANTS else None
        row.started_at, row.ended_at = started_at, None if row.state is TaskState.RUNNING else NOW - 70 * S
        row.attempt, row.delay_us, row.ceiling_us, row.failures = 1, 7 * S, 16 * S, draw(st.integers(0, 1))
        is_open = row.state is TaskState.RUNNING
        ended_at, outcome = (None, "running") if is_open else (NOW - 70 * S, "error")
        row.attempts[1] = AttemptRow(1, 0, started_at, ended_at=ended_at, outcome=outcome, timeout_us=300 * S)
        row.generation, row.refusals = draw(st.integers(0, 1)), draw(st.integers(0, 2))
        row.changed_at = draw(st.sampled_from([0, NOW - 40 * S]))  # unknown, where only states were read
        if row.state is TaskState.READY and not parents[row.name] and draw(st.booleans()):
            row.spec = replace(spec_of(row), kind="approval", downstream=None)
            row.attempt, row.attempts = 0, {}
    board = Board(projection)
    state = draw(st.sampled_from(["CLOSED", "OPEN", "HALF_OPEN", "FORCED_OPEN"]))
    board.snapshot.breakers["api"] = status_of(state, draw(st.sampled_from([None, NOW + 30 * S])))
    link = draw(st.sampled_from(list(LINKS)))
    status = SessionStatus(**EXECUTORS[draw(st.sampled_from(list(EXECUTORS)))], **LINKS[link])
    if link == "late":
        status = replace(status, executor=status.executor._replace(age_us=40_000_000))
    return board, status


# --- What the views say ----------------------------------------------------------------------------------------------

#: The sign of each word, as the legend lists them.
WORDS = {
    "·": "pending", "◌": "ready", "●": "running", "✓": "ok", "↻": "retry", "◷": "sensing",
    "✗": "failed", "◆": "DEAD", "⊘": "upstream", "»": "skipped", "⊗": "stopped", "○": "cut off",
}  # fmt: skip
_CODES = {
    "PENDING": "pending", "READY": "ready", "RUNNING": "running", "SUCCESS": "ok", "RETRYING": "retry",
    "SENSING": "sensing", "FAILED": "failed", "DEAD_LETTER": "DEAD", "UPSTREAM_FAILED": "upstream",
    "SKIPPED": "skipped", "CANCELLED": "stopped", "CUT OFF": "cut off", "NOT SEEN": "not seen",
}  # fmt: skip


#: How a sentence names a parent that has failed.
WORDED = {TaskState.FAILED: "failed", TaskState.UPSTREAM_FAILED: "upstream failed"}


def context_of(board, status, now_us):
    now_us = status.shown_at(now_us)
    return RunContext(board, now_us, UTF8, runner=runner_of(board.projection.run, status))


def graph_of(board, context, step):
    graph = Graph(board, lambda name: label_width(name, context))
    graph.selected = None
    graph.zoom = step
    return graph


def drawing_texts(board, context):
    graph = graph_of(board, context, ZoomStep.DRAWING)
    for name in graph.dag.names:
        x, y, size = graph.drawing.place(name)
        yield name, plain(drawing_row(graph, y, 0, graph.drawing.width, context, Highlight()))[x : x + size]


def row_texts(board, context):
    graph = graph_of(board, context, ZoomStep.ROWS)
    for y in range(graph.height):
        yield graph.rows.name_at(y), plain(graph_row(graph, y, 120, context, Highlight()))


def state_cell(entry, now_us):
    """The state of the latest run in the list of files."""
    titles, cells = shell_rows(FLEET_COLUMNS, [entry], RowContext(now_us, UTF8), 80)
    assert all(width(line) <= 80 for line in table([titles, cells]))
    cell = cells[titles.index("STATE")]
    return cell.text if isinstance(cell, Piece) else cell


def texts_by_task(board, status, now_us):
    """(view, task, text) of each view that shows a task's state. The text begins with its sign, or names its word."""
    context = context_of(board, status, now_us)
    yield from (("drawing", *found) for found in drawing_texts(board, context))
    yield from (("rows", *found) for found in row_texts(board, context))
    for name, row in board.projection.tasks.items():
        yield "details", name, plain(title_line(row, context, 80))
        yield "strip", name, plain(summary_lines(row, context, 120, 3)[0])
        yield "relatives", name, plain(named_task(name, context))
        yield "timeline", name, timeline_label(row, context)
        yield "timeline words", name, plain(task_lines(row, context, 120, 3)[0])
    data = report_of(board, status, now_us)
    yield from (("report drawing", *found) for found in texts_in(graph_lines(data), board))
    yield from (("report timeline", *found) for found in texts_in([row.line for row in timeline_rows(data)], board))


def texts_in(lines, board):
    """The texts of lines from the sign of each task that they name."""
    for line in map(plain, lines):
        for name in board.projection.tasks:
            if found := re.search(rf"\S {re.escape(name)}(?!\w)", line):
                yield name, line[found.start() :]


def told(text):
    """The words that a text says of its task: by its first sign, and by the word beside it if there is one."""
    sign = next(character for character in text if character in WORDS)
    beside = [word for word in WORDS.values() if re.search(rf"(?<![\w ]) ?{word}\b|{sign} {word}\b", text)]
    return WORDS[sign], beside


# --- The parts of today ----------------------------------------------------------------------------------------------


def timeline_label(row, context):
    return plain(label_line(row, 40, context))


def report_of(board, status, now_us):
    return ReportData(board, "/x.db", now_us, runner=runner_of(board.projection.run, status))


def ticking_texts(board, status, now_us):
    """(view, task, text) of each view with a clock or a countdown of a task."""
    context = context_of(board, status, now_us)
    yield from (("drawing", *found) for found in drawing_texts(board, context))
    yield from (("rows", *found) for found in row_texts(board, context))
    for name, row in board.projection.tasks.items():
        yield (
            "bars",
            name,
            re.sub(
                "[│┄ ]",
                "",
                plain(
                    bar_line(row, BarContext(SPAN, context.now_us, UTF8, context.runner), context.view(name).instant)
                ),
            ),
        )
        yield "took", name, duration_text(row, context)


def run_words(board, status, now_us):
    """(view, word) of each view of the run."""
    run, runner, counts = board.projection.run, runner_of(board.projection.run, status), board.counts
    asked = counts[OperatorPrompt.APPROVAL]
    summary = board.summary
    yield "header", run_word(plain(run_line(board, "x.db", None, now_us, 200, UTF8, runner=runner)))
    yield "runs", run_word(run_text(ListedRun(summary, runner), now_us))
    executor = ExecutorState(
        status.executor.alive, 0, status.executor.gone_at, status.executor.pid, status.executor.run_id,
        status.executor.stopped,
    )  # fmt: skip
    working = counts[TaskState.READY] + asked + counts[TaskState.RUNNING]
    waits = sum(counts[state] for state in WITH_INSTANT)
    unfinished = RunFacts(
        run.run_id,
        "flow",
        START,
        None,
        "RUNNING",
        run.blocked_since,
        run.paused_since,
        working=working,
        waiting=waits,
        asked=asked,
    )
    file_row = FileRow("/x.db", "flow", unfinished, runs=(unfinished,), executor=executor)
    entry = fleet_entries([file_row._replace(service_pid=status.service_pid)], now_us)[0]
    yield "fleet", run_word(plain(fleet_row(entry, FLEET_COLUMNS, RowContext(now_us, UTF8), 150)).partition("flow")[2])
    yield "redrive fleet", run_word(state_cell(entry, now_us))
    yield "summary", run_word(incident_summary(board, "x.db", now_us, runner).splitlines()[0])
    yield "report", run_word(headline(report_of(board, status, now_us)))
    yield "redrive runs", run_word(run_code(run, runner, counts))
    yield "words", run_word(plain(run_words_of(run, view_of(summary, status, now_us), UTF8)).removeprefix(" run-1"))


def run_word(text):
    """The first word of a state in a text."""
    found = re.search("blocked|paused|cut off|silent|no executor|idle|served|waiting|running", text.lower())
    return found[0] if found else text


# --- What must hold --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
@MANY
@given(boards())
def test_all_views_say_the_same_word_of_a_task(found):
    board, status = found
    said: dict[str, dict[str, str]] = {}
    for view, name, text in texts_by_task(board, status, NOW):
        word, beside = told(text)
        said.setdefault(name, {})[view] = word
        assert not beside or word in beside, (view, text)
    for name, by_view in said.items():
        assert len(set(by_view.values())) == 1, (name, by_view, status)


def is_moved(row, board, status):
    """Whether somebody takes the next step of a task without a human."""
    run = board.projection.run
    has_executor = status.has_executor_of(run)
    breaker = board.snapshot.breakers["api"].breaker
    is_held = breaker.state in ("OPEN", "FORCED_OPEN") and breaker.reopens_at is None
    is_held = run.paused_since is not None or is_held or breaker.state == "FORCED_OPEN"
    return row.state in MOVING and has_executor and (row.state is TaskState.RUNNING or not is_held)


@pytest.mark.timeout(900)
@MANY
@given(boards())
def test_no_clock_ticks_where_nothing_moves(found):
    board, status = found
    before = {(view, name): text for view, name, text in ticking_texts(board, status, NOW)}
    later = replace(status, data_age_seconds=status.data_age_seconds + 11) if status.link is not Link.LIVE else status
    for view, name, text in ticking_texts(board, later, NOW + 11 * S):
        if status.link is not Link.LIVE or not is_moved(board.row(name), board, status):
            assert text == before[view, name], (view, status, board.row(name).state)


@pytest.mark.timeout(900)
@MANY
@given(boards())
def test_the_node_the_row_and_the_page_count_down_alike(found):
    board, status = found
    context = context_of(board, status, NOW)
    for name, row in board.projection.tasks.items():
        sentence = board.explain(name, context.now_us, context.runner)
        texts = [plain(state_facts(row, context)), *map(plain, node_facts(name, context)), sentence]
        left = {duration for text in texts for duration in re.findall(r"\bin +(\d\w*)", text)}
        assert context.view(name).reason is WaitReason.PARENTS or len(left) <= 1, texts
        if not context.runner.is_alive and row.state in MOVING:
            assert not left, texts


COUNTDOWN = re.compile(r"\bin +\d|\bdue\b|▸")


@pytest.mark.timeout(900)
@MANY
@given(boards())
def test_no_view_counts_down_to_what_nobody_does(found):
    board, status = found
    for view, name, text in ticking_texts(board, status, NOW):
        if not is_moved(board.row(name), board, status):
            assert not COUNTDOWN.search(text), (view, text)


@pytest.mark.timeout(900)
@MANY
@given(boards())
def test_all_views_say_the_same_word_of_the_run(found):
    board, status = found
    words = dict(run_words(board, status, NOW))
    assert len(set(words.values())) == 1, words


def said_of_the_run(board, status, now_us):
    """Texts about a run as a whole: lists, summary, inbox."""
    runner = runner_of(board.projection.run, status)
    context = context_of(board, status, now_us)
    yield incident_summary(board, "x.db", now_us, runner)
    yield headline(report_of(board, status, now_us))
    yield plain(run_line(board, "x.db", None, now_us, 200, UTF8, runner=runner))
    yield run_text(ListedRun(board.summary, runner), now_us)
    for cause in Inbox(board).causes():
        yield plain(cause_row(cause, True, context, 120))
        yield from map(plain, cause_page(cause, context, EvidenceData(), 100))
        for name in cause.tasks:
            yield from map(plain, detail_page(board.row(name), context, EvidenceData(), 100))
            yield plain(inbox_task_row(Inbox(board).entry(name), board.row(name), context, 120))


@pytest.mark.timeout(900)
@MANY
@given(boards())
def test_no_text_counts_from_the_beginning_of_time(found):
    board, status = found
    for text in said_of_the_run(board, status, NOW):
        assert not re.search(r"\b\d{4,}d", text), text


@pytest.mark.timeout(900)
@MANY
@given(boards())
def test_the_inbox_calls_nothing_failed_that_has_not_failed(found):
    board, status = found
    context = context_of(board, status, NOW)
    for cause in Inbox(board).causes():
        if not any(board.row(name).state in NEEDS_HUMAN for name in cause.tasks):
            page = " ".join("\n".join(map(plain, cause_page(cause, context, EvidenceData(), 100))).split())
            above = {parent for name in cause.tasks for parent in board.dag.ancestors(name)}
            for name in above:
                page = page.replace(f"{name}, {WORDED.get(board.row(name).state)},", name)
            assert " failed" not in page.replace("othing failed", ""), page
            assert "failure" not in page, page


@pytest.mark.parametrize("state", ["FAILED", "UPSTREAM_FAILED"])
def test_the_inbox_does_not_say_that_nothing_failed_below_a_failure(state):
    projection = projection_of([("above", []), ("below", ["above"])])
    projection.tasks["above"].state = TaskState(state)
    projection.run = projection.run._replace(blocked_since=NOW - 5 * S)
    context = context_of(
        Board(projection), SessionStatus(Link.LIVE, executor=ExecutorState(alive=True, run_id="run-1")), NOW
    )
    (cause,) = [cause for cause in Inbox(context.board).causes() if cause.tasks == ("below",)]
    page = " ".join("\n".join(map(plain, cause_page(cause, context, EvidenceData(), 100))).split())
    assert f"Waits for above, {WORDED[TaskState(state)]}, which will not end the wait" in page
    assert "othing failed" not in page


@given(
    is_paused=st.booleans(),
    is_served=st.booleans(),
    is_new=st.booleans(),
    left=st.integers(-3600, 3600),
    other=st.sampled_from([None, "b"]),
)
def test_a_start_is_counted_down_only_where_a_process_will_start_it(is_paused, is_served, is_new, left, other):
    local = datetime.fromtimestamp((NOW + left * S) / S, UTC).isoformat()
    rows = [
        ScheduleRow(n, "* * * * *", "UTC", "latest", None, 0, 0, NOW + left * S, local) for n in "a" + (other or "")
    ]
    facts = [ServedSchedule(1, "a.py:a", "a.py", "a", "a", "/x.db", paused_until=FOREVER * is_paused)]
    if is_new:  # in no file yet: its flow runs by hand since before it was served
        due = NOW + left * S
        rows, facts = rows[1:], [facts[0]._replace(expression="* * * * *", next_at=due, next_logical=due)]
    file_row = FileRow("/x.db", "a", schedules=rows, supervised=facts, service_pid=7 if is_served else None)
    (entry,) = fleet_entries([file_row], NOW)
    assert is_paused or entry.next_at == NOW + left * S
    context = RowContext(NOW, UTF8)
    for text in (
        plain(fleet_row(entry, FLEET_COLUMNS, context, 150)),
        str(shell_rows(FLEET_COLUMNS, [entry], context)[1]),
    ):
        assert ("paused" in text) == (is_paused and other is None)
        assert is_served or not re.search(r"\bin \d", text), text
        assert not (is_paused and other is None) or "next" not in text


def test_what_another_run_needs_is_not_said_of_the_run_that_is_shown():
    lost = Need(NeedKind.LOST, "/x.db", NOW, "a", "night-0")
    entry = FleetEntry(FileRow("/x.db", "a"), [lost])
    lines = run_lines(entry, [], RunContext(run_of("RUNNING"), NOW, UTF8), 80)
    assert "   no executor runs it, in run night-0" in "\n".join(map(plain, lines))


# --- Faults that were seen -------------------------------------------------------------------------------------------


def run_of(*states, **run):
    projection = projection_of([(f"t{n}", []) for n in range(len(states))], **run)
    for row, state in zip(projection.tasks.values(), states, strict=True):
        row.state, row.attempt, row.started_at, row.deferrals = state, 1, NOW - 60 * S, 116
        row.next_retry_at = NOW + 9 * S if state in TIMED else None
    return Board(projection)


def test_a_run_in_which_only_a_sensor_is_left_waits_and_has_no_eta():
    board = run_of(TaskState.SENSING, TaskState.SUCCESS)
    stats = {f"t{n}": DurationStats(600 * S, 900 * S, 20) for n in range(2)}
    forecast = estimate(board, NOW, stats)
    line = plain(run_line(board, "x.db", forecast, NOW, 160, UTF8))
    assert "◷ waiting 1/2" in line
    assert "waits for t0 (sensor, 116 checks)" in line
    assert "eta" not in line


def test_the_bar_of_a_retry_drains():
    board = run_of(TaskState.RETRYING)
    row = board.row("t0")
    row.delay_us, row.ceiling_us = 10 * S, 60 * S
    texts = [plain(state_facts(row, RunContext(board, NOW + at * S, UTF8))) for at in (0, 4, 8)]
    filled = [text.count(UTF8.bar_done) for text in texts]
    assert filled == sorted(filled, reverse=True)
    assert filled[0] > filled[1] > filled[2]
    assert not any("1m00" in text for text in texts)


def test_the_elapsed_time_is_that_of_the_work():
    board = run_of(TaskState.DEAD_LETTER)
    board.projection.run = board.projection.run._replace(blocked_since=START + 3 * S)
    assert "1m36" not in plain(run_line(board, "x.db", None, NOW, 160, UTF8)).partition(", for")[0]
    assert "BLOCKED 0/1  after 3s, for 1m37" in plain(run_line(board, "x.db", None, NOW, 160, UTF8))
    assert "BLOCKED after 3s, for 1m37" in incident_summary(board, "x.db", NOW)


def test_only_a_count_in_the_fleet_has_the_accent():
    file_row = FileRow("/x.db", "flow", RunFacts("run-1", "flow", START, NOW, "SUCCESS"))
    line = fleet_row(fleet_entries([file_row], NOW)[0], FLEET_COLUMNS, RowContext(NOW, UTF8), 120)
    assert not any(piece.role == Role.HUMAN and piece.text for piece in line)


def test_a_paused_run_is_paused_in_the_fleet():
    executor = ExecutorState(True, 0, None, 7, "run-1")
    paused = RunFacts("run-1", "flow", START, paused_since=NOW)
    file_row = FileRow("/x.db", "flow", paused, runs=(paused,), executor=executor)
    assert state_cell(fleet_entries([file_row], NOW)[0], NOW) == "PAUSED"


def test_the_summary_of_a_killed_run_names_its_end():
    board = run_of(TaskState.RUNNING)
    runner = runner_of(
        board.projection.run, SessionStatus(Link.LIVE, executor=ExecutorState(pid=7, gone_at=START + 60 * S))
    )
    text = incident_summary(board, "x.db", NOW, runner)
    assert "cut off after 1m00, no executor for 40s" in text
    assert "1 cut off" in text


def test_a_run_whose_executor_gives_no_sign_of_life_is_silent_and_not_running():
    board = run_of(TaskState.RUNNING)
    facts = RunFacts("run-1", "flow", START, working=1)
    executor = ExecutorState(True, pid=7, run_id="run-1", silent_since=NOW - 40 * S)
    runner = runner_of(board.projection.run, SessionStatus(Link.LIVE, executor=executor))
    assert run_code(board.projection.run, runner, board.counts) == "SILENT"
    (row,) = board.projection.tasks.values()
    assert state_code(row, runner) == "SILENT" and counts_text(board.counts, runner) == "1 silent"
    assert plain(state_facts(row, RunContext(board, NOW, UTF8, runner=runner))).startswith("silent")
    line = plain(run_line(board, "x.db", None, NOW, 200, UTF8, runner=runner))
    assert "silent 0/1" in line and "no sign of its executor for 40s" in line
    entry = fleet_entries([FileRow("/x.db", "flow", facts, runs=(facts,), executor=executor)], NOW)[0]
    assert "silent" in plain(fleet_row(entry, FLEET_COLUMNS, RowContext(NOW, UTF8), 150))
    assert executor_text(entry) == "silent"


def test_a_run_that_is_requeued_after_its_executor_left_is_idle_and_not_cut_off():
    board = run_of(TaskState.READY)
    run = board.projection.run = board.projection.run._replace(
        waited_us=95 * S
    )  # it ended after 3 s, and was requeued 2 s ago
    left = ExecutorState(pid=7, gone_at=START + 3 * S, run_id="run-1", stopped=True)
    for executor in (left, left._replace(run_id="run-2")):  # also if another run came after it
        runner = runner_of(run, SessionStatus(Link.LIVE, executor=executor))
        assert run_code(run, runner, board.counts) == "IDLE"
        assert run_view(run, runner, NOW, board.counts).clock == 3 * S
        assert "idle, no executor for 1m37\n" in incident_summary(board, "x.db", NOW, runner)
        line = plain(run_line(board, "x.db", None, NOW, 200, UTF8, runner=runner))
        assert "idle 0/1 · no executor for 1m37" in line.replace("  ", " · ") and "after" not in line
    facts = RunFacts("run-1", "flow", START, waited_us=95 * S, working=1)
    entry = fleet_entries([FileRow("/x.db", "flow", facts, runs=(facts,), executor=left)], NOW)[0]
    row = plain(fleet_row(entry, FLEET_COLUMNS, RowContext(NOW, UTF8), 150))
    assert "◌ idle" in row and " 1m" in row and "cut off" not in row
    run = run._replace(waited_us=0)  # nothing held the first run: the other one found it unfinished
    runner = runner_of(run, SessionStatus(Link.LIVE, executor=executor))
    assert run_code(run, runner, board.counts) == "CUT OFF"


def test_the_row_of_a_task_that_was_cut_off_says_what_its_explanation_says():
    board = run_of(TaskState.RUNNING)
    runner = runner_of(board.projection.run, SessionStatus(Link.LIVE, executor=ExecutorState(pid=7, gone_at=GONE_AT)))
    context = RunContext(board, NOW, UTF8, runner=runner)
    sentence = "executor ended"
    assert board.explain("t0", NOW, runner).startswith(f"its {sentence} 1m00 ago; ")
    assert plain(state_facts(board.row("t0"), context)) == f"cut off  {sentence}"


def test_what_took_less_than_a_millisecond_is_not_zero():
    assert column(400) == " <1ms"
    assert column(0) == "   0s"


def test_the_list_of_runs_adds_up_the_dead_letters_of_all_causes() -> None:
    """The needs of a run come by cause where the causes are known; its row says how many there are."""
    facts = RunFacts("run-0", "flow", START, dead_letters=3)
    need = Need(NeedKind.DEAD_LETTERS, "", START, "flow", "run-0")
    alike = [need._replace(counted=2, fingerprint="a"), need._replace(fingerprint="b")]
    both = WaitingRun(facts, alike[0], (alike[1],))
    row = ListedRun(RunSummary(RunRow("run-0", dag_name="flow", started_at=START), {}), waiting=both)
    titles, cells = shell_rows(RUN_COLUMNS, [row], RowContext(START, UTF8))
    needs = dict(zip(titles, cells, strict=True))["NEEDS"]
    assert isinstance(needs, Piece) and needs.text == f"{UTF8.dead}3 dead letters"


def test_a_task_that_never_failed_has_no_failure_in_its_verdict():
    projection = projection_of([("load", [])])
    projection.tasks["load"].state = TaskState.READY
    context = RunContext(Board(projection), NOW, UTF8)
    assert verdict_of(("load",), context).startswith("nothing failed: ")


def test_the_page_of_a_cause_stands_also_for_tasks_without_an_attempt():
    projection = projection_of([("first", []), ("second", [])])
    for row in projection.tasks.values():
        row.state, row.error, row.ended_at = TaskState.FAILED, "refused: the breaker of rates is open", NOW - S
    context = context_of(Board(projection), SessionStatus(Link.LIVE), NOW)
    (cause,) = Inbox(context.board).causes()
    page = "\n".join(map(plain, cause_page(cause, context, EvidenceData(), 100)))
    assert "refused: the breaker of rates is open" in page
