"""Every row that shows a task: fits its place, keeps its columns, and lets nothing through that a task has written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace
from redrive.console.model.board import Board
from redrive.console.model.graph.drawing import LABEL_SIZES, SIGNS_ALONE, SPREAD_SIZES, TALL_SIZES
from redrive.console.model.graph.groups import ZoomStep
from redrive.console.model.graph.view import GROUP_ROWS, Graph
from redrive.console.model.inbox import AttemptTexts, EvidenceData, Inbox, compare, failures_of, fingerprint_of_task
from redrive.console.model.preview import preview_requeue, preview_skip
from redrive.console.model.runs import WaitingRun
from redrive.console.model.time_axis import Span
from redrive.console.present import detail, evidence, group, inbox, timeline, timeline_text
from redrive.console.present import states as counts
from redrive.console.present.graph import Highlight, drawing_row, graph_row, group_drawing, group_map_row, label_width
from redrive.console.present.header import run_line
from redrive.console.present.runs import RUN_COLUMNS, ListedRun, describe_params, incident_summary
from redrive.console.present.silhouette import critical_path_with_times, silhouette_lines, silhouette_marks
from redrive.console.present.states import RowContext
from redrive.console.present.tasks import (
    RunContext,
    TaskNames,
    attempts_text,
    name_role,
    named_task,
    node_facts,
    state_facts,
)
from redrive.console.text.columns import screen_row
from redrive.console.text.glyphs import ASCII, UTF8
from redrive.console.text.pieces import Role, count_rows, plain, width
from redrive.engine.core.projection import AttemptRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.core.waiting import ALIVE
from redrive.engine.domain.liveness import TaskUsage
from redrive.engine.domain.rows import RunFacts, RunRow, RunSummary
from redrive.engine.domain.states import DEADLINE_MODE, NEEDS_HUMAN, DeadLetterKind, TaskState
from redrive.engine.statefile.durations import DurationStats
from redrive.engine.statefile.lists import NeedKind
from redrive.engine.statefile.logs import AttemptText
from redrive.engine.statefile.needs import Need
from support.marks import for_each

from ..model.runs import START, EventBuilder, S, failed_task, projection_of, ran_task

EVIL = "a\x1b[31m\x9b2J\u202eb\u200b\x07\r\n[bold]x[/] 日本\ud800"
NOW = START + 100 * S


def board_of_all_states(text="name"):
    """One task in each state, with attempts, errors and relatives that hold ``text``."""
    names = {state: f"{text} {number}" for number, state in enumerate(TaskState)}
    parents = {state: [names[TaskState.DEAD_LETTER]] for state in (TaskState.PENDING, TaskState.UPSTREAM_FAILED)}
    pairs = [(names[state], parents.get(state, [])) for state in sorted(TaskState, key=lambda state: state in parents)]
    projection = projection_of(pairs, run_columns(text))
    projection.run = projection.run._replace(dag_name=text, run_id=text, paused_by=text)
    for state, name in names.items():
        row = projection.tasks[name]
        if state in NEEDS_HUMAN:
            failed_task(projection, name, str(state), error=text, at=NOW - 9 * S)
            row.attempts[2] = AttemptRow(2, started_at=NOW - 5 * S, ended_at=NOW - S, outcome="error", error=text)
            row.attempt = 2
        row.state, row.blocked_by, row.skip_cause = state, text, text
        row.dead_letter_kind = text if state is TaskState.DEAD_LETTER else None
        row.started_at, row.next_retry_at, row.deferrals = NOW - 41 * S, NOW + 7 * S, 3
        row.delay_us, row.ceiling_us = 7 * S, 16 * S
    running = projection.tasks[names[TaskState.RUNNING]]
    running.attempt = 1
    running.attempts[1] = AttemptRow(
        1,
        started_at=NOW - 41 * S,
        timeout_us=300 * S,
        deadline_at=NOW - 2 * S,
        sigterm_at=NOW - S,
        where=text,
        host=text,
    )
    return Board(projection)


def run_columns(text):
    return {f"{text} 1": {"downstream": text, "pool": text}}


def groups_and_silhouette(graph, context, columns):
    path = critical_path_with_times(graph.dag.names, context)
    silhouette = graph.silhouette(columns)
    for line in silhouette_lines(silhouette, path, 9, context):
        yield "silhouette", line
    yield "marks", silhouette_marks(silhouette, graph.selected, context.glyphs)
    drawn = group_drawing(graph, context, columns)
    assert drawn is not None
    for y in range(GROUP_ROWS * drawn.drawing.height):
        yield "group drawing", group_map_row(graph, drawn, y, 0, columns, context)
    for index in range(len(graph.groups.groups)):
        for line in group.group_page(graph, index, context, columns):
            yield "group page", line


def every_line(board, columns, glyphs):
    """(what, line) for each presenter of tasks."""
    context = RunContext(board, NOW, glyphs)
    graph = Graph(board, lambda name: label_width(name, context, graph.drawings.label_size))
    graph.resize(columns, 24)
    for zoom in (ZoomStep.GROUPS, ZoomStep.ROWS):
        graph.zoom = zoom
        for y in range(graph.height):
            yield f"{zoom.name} row", graph_row(graph, y, columns, context, Highlight())
    graph.zoom = ZoomStep.DRAWING
    for size in (*LABEL_SIZES, *TALL_SIZES, *SPREAD_SIZES, SIGNS_ALONE):
        graph.drawings.set_label_size(size)
        for y in range(graph.height):
            yield "drawing", drawing_row(graph, y, 0, columns, context, Highlight())
    yield from groups_and_silhouette(graph, context, columns)
    yield "header", run_line(board, "ssh://host/path/file.db", None, NOW, columns, glyphs)
    box, span = Inbox(board), Span(START, S, columns)
    for cause in box.causes():
        yield "cause", inbox.cause_row(cause, True, context, columns)
        for name in cause.tasks:
            yield "inbox task", inbox.task_row(box.entry(name), board.row(name), context, columns)
        for line in evidence.cause_page(cause, context, EvidenceData(), columns):
            yield "cause page", line
    for row in board.projection.tasks.values():
        yield "bar", timeline.bar_line(row, timeline.BarContext(span, NOW, glyphs), due_at=row.next_retry_at)
        yield "label", timeline.label_line(row, columns, context)
        for line in timeline_text.task_lines(row, context, columns, 6):
            yield "words", line
        for line in detail.summary_lines(row, context, columns, 4):
            yield "strip", line
        for line in detail.detail_page(row, context, EvidenceData(), columns):
            yield "page", line


#: These say themselves how wide they are; the others are cut by whoever paints them.
FITTED = {"GRAPH row", "drawing", "header", "cause", "inbox task", "bar", "words", "strip"}


@for_each("columns", [40, 80, 120, 200])
def test_no_row_takes_more_than_its_place(columns):
    for text in ("name", "日本語の名前がとても長い" * 3, "x" * 200):
        for what, line in every_line(board_of_all_states(text), columns, UTF8):
            if what in FITTED:
                assert width(line) <= columns, (what, plain(line))


@pytest.mark.parametrize("glyphs", [UTF8, ASCII], ids=["UTF-8", "ASCII"])
def test_nothing_that_a_task_wrote_steers_the_terminal(glyphs):
    for what, line in every_line(board_of_all_states(EVIL), 100, glyphs):
        assert all(piece.text.isprintable() for piece in line), (what, line)
    assert not set(incident_summary(board_of_all_states(EVIL), EVIL, NOW)) & set("\x1b\x9b\u202e\u200b\x07\r")


@pytest.mark.parametrize("columns", [43, 80])
def test_a_long_name_leaves_the_state_and_its_age_in_view(columns):
    board = board_of_all_states("test-integration / integration-test-windows-python-managed" * 2)
    context = RunContext(board, NOW, UTF8)
    row = next(row for row in board.projection.tasks.values() if row.state is TaskState.DEAD_LETTER)
    page = detail.detail_page(row, context, EvidenceData(), columns)
    assert plain(page[0]).rstrip().endswith("◆ DEAD for 9s")
    assert "◆ DEAD for 9s" in plain(detail.summary_lines(row, context, columns, 4)[0])


def two_failures_above_a_report():
    """A dead letter and a failed task; the report below both is stopped by the second."""
    pairs = [("clean_legacy", []), ("settle_home", []), ("load_legacy", ["clean_legacy"])]
    projection = projection_of([*pairs, ("report", ["load_legacy", "settle_home"])])
    failed_task(projection, "clean_legacy", at=START)
    failed_task(projection, "settle_home", "FAILED", at=START)
    environment = {"code_hash": "c", "input_hash": "i", "params_hash": "p", "host": "etl-night-1"}
    for name in ("clean_legacy", "settle_home"):
        row = projection.tasks[name]
        row.attempt = 2
        row.attempts = {number: structs.replace(row.attempts[1], attempt=number, **environment) for number in (1, 2)}
    projection.tasks["report"].state, projection.tasks["report"].blocked_by = TaskState.UPSTREAM_FAILED, "settle_home"
    return Board(projection)


def test_the_strip_of_a_task_cuts_no_sentence_while_it_has_rows():
    board = two_failures_above_a_report()
    context = RunContext(board, NOW, UTF8)
    dead = [plain(line) for line in detail.summary_lines(board.row("clean_legacy"), context, 80, 4)]
    assert dead[0].rstrip().endswith("same failure twice; nothing changed between")
    assert "(code, input" in plain(detail.summary_lines(board.row("clean_legacy"), context, 120, 4)[0])
    waiting = [plain(line) for line in detail.summary_lines(board.row("load_legacy"), context, 50, 4)]
    assert "…" not in "".join(waiting)
    assert board.explain("load_legacy", NOW, ALIVE) in " ".join(" ".join(waiting).split())


def test_80_columns_say_what_runs_again_before_that_the_deadline_has_passed():
    projection = projection_of([("load", []), ("report", ["load"])], deadline_at=START, deadline_passed_at=START)
    failed_task(projection, "load", at=START)
    board = Board(projection)
    previews = preview_requeue(board, ["load"]), preview_skip(board, ["load"])
    line, _ = inbox.consequence_lines(*previews)
    assert plain(line).startswith(" r requeue: 1 to run again; 1 may go on; deadline ")


@pytest.mark.parametrize(("names", "more"), [(["pay_out"], ""), (["pay_out", "refund", "fee"], ", and 2 more")])
def test_a_payment_that_may_have_happened_says_in_80_columns_what_to_look_for(names, more):
    projection = projection_of([(name, []) for name in names], {name: {"effect": True} for name in names})
    for name in names:
        failed_task(projection, name, at=START).dead_letter_kind = "indeterminate"
    _, verdict = inbox.selection_lines(names, RunContext(Board(projection), NOW, UTF8), 80)
    run_id = projection.run.run_id
    assert plain(verdict).strip() == f"Look for the key {run_id}/pay_out/0: it may have happened{more}."


def test_a_cause_does_not_repeat_its_title_as_its_message():
    projection = projection_of([("vacuum", [])])
    row = failed_task(projection, "vacuum", "FAILED", at=START)
    row.error = row.attempts[1].explain = "exit status 3: vacuum"
    board = Board(projection)
    (cause,) = Inbox(board).causes()
    assert plain(inbox.cause_row(cause, False, RunContext(board, NOW, UTF8), 120)).count("exit status 3: vacuum") == 1


def test_a_message_is_not_left_out_for_a_word_of_the_place():
    projection = projection_of([("push", [])])
    row = failed_task(projection, "push")
    row.error, row.attempts[1].explain = "push", "KeyError settle.py:87 in push"
    assert plain(state_facts(row, RunContext(Board(projection), NOW, UTF8))).endswith("KeyError settle.py:87  push")
    row.error = row.attempts[1].error = "87"
    assert plain(state_facts(row, RunContext(Board(projection), NOW, UTF8))).endswith("KeyError settle.py:87  87")
    row.error, row.attempts[1].explain = "no link", "OSError no link"
    assert plain(state_facts(row, RunContext(Board(projection), NOW, UTF8))).endswith("OSError no link")


def test_what_the_deadline_has_ended_is_not_counted_as_failed():
    projection = projection_of([(name, []) for name in ("load", "vacuum", "payroll", "notify")])
    failed_task(projection, "load", at=START)
    failed_task(projection, "vacuum", "FAILED", at=START)
    for name in ("payroll", "notify"):
        row = projection.tasks[name]
        row.state, row.failure_mode = TaskState.CANCELLED, DEADLINE_MODE
    board = Board(projection)
    left, _ = inbox.heading_line(Inbox(board), 0, "", RunContext(board, NOW, UTF8), 120)
    assert "1 dead letter · 1 failed · 2 by the deadline · oldest" in plain(left)


def test_the_sign_of_a_need_stands_before_the_pause_that_it_is():
    run = RunRow("r", "f", started_at=START, blocked_since=START + S, paused_since=START)
    waiting = WaitingRun(RunFacts("r", "f", START), Need(NeedKind.BLOCKED, "", START, "f", "r"))
    listed = ListedRun(RunSummary(run, {"READY": 1}), waiting=waiting)
    needs = [one for one in RUN_COLUMNS if one.name == "needs"]
    assert plain(screen_row(needs, listed, RowContext(NOW, UTF8), 40)).strip() == "◆ paused by an operator  1 ready"
    waiting = WaitingRun(waiting.run, Need(NeedKind.DEAD_LETTERS, "", START, "f", "r", counted=2))
    line = plain(screen_row(needs, ListedRun(RunSummary(run, {}), waiting=waiting), RowContext(NOW, UTF8), 60))
    assert "dead letter" in line and "  paused by an operator" in line


def test_a_run_without_a_schedule_names_no_logical_time():
    run = RunRow("r", params='{"logical_time": "", "day": "2026-11-26", "zone": ""}')
    assert describe_params(run) == "day=2026-11-26  zone="


def test_a_summary_counts_one_held_task_as_one():
    projection = projection_of([("load", []), ("report", ["load"])])
    failed_task(projection, "load", at=START)
    assert "`load`; holds 1 task, for 1m40" in incident_summary(Board(projection), "x.db", NOW)


def test_what_two_failures_hold_is_counted_once_and_fits_80_columns():
    board = two_failures_above_a_report()
    previews = preview_requeue(board, ["clean_legacy"]), preview_skip(board, ["clean_legacy"])
    lines = inbox.consequence_lines(*previews)
    assert list(map(plain, lines)) == [
        " r requeue: 1 to run again; 1 may go on; 1 to stay held by settle_home",
        " s skip: 1 to be skipped; 1 may go on; 1 to stay held by settle_home",
    ]
    assert all(width(line) <= 80 for line in inbox.selection_lines(["clean_legacy"], RunContext(board, NOW, UTF8), 80))
    head, _ = inbox.selection_lines(["settle_home"], RunContext(board, NOW, UTF8), 80)
    assert plain(head) == " settle_home ✗ failed · ValueError happened"


def test_members_of_a_group_have_the_cells_that_are_free():
    names = [f"load_part_{number:04}" for number in range(70)]
    projection = projection_of([(name, []) for name in names])
    failed_task(projection, "load_part_0007")
    board = Board(projection)
    context = RunContext(board, NOW, UTF8, names=TaskNames(names))
    graph = Graph(board, len)
    graph.resize(75, 24)
    rows = [plain(graph_row(graph, y, 75, context, Highlight())) for y in range(graph.height)]
    assert rows[1].startswith("     ◆ load_part_0007 ")


@pytest.mark.parametrize("word", ["load", "読込"])
def test_members_of_a_group_stand_in_columns_of_cells(word):
    projection = projection_of([(f"{word}_{number:02}", []) for number in range(70)])
    for row in projection.tasks.values():
        failed_task(projection, row.name).attempts[1].duration_us = S
    graph = Graph(Board(projection), len)
    page = group.group_page(graph, 0, RunContext(graph.board, NOW, UTF8), 75)
    took = {width(line) for line in page if plain(line).endswith(" 1s")}
    assert took == {36}


def test_every_state_says_its_word_or_when_it_goes_on():
    board = board_of_all_states()
    context = RunContext(board, NOW, UTF8)
    shown = {row.state: plain(state_facts(row, context)) for row in board.projection.tasks.values()}
    assert shown[TaskState.RETRYING].startswith("retry in  7s ")
    assert shown[TaskState.SENSING].startswith("sensing  next check in  7s")
    assert shown[TaskState.RUNNING].startswith("running    41s")
    assert shown[TaskState.DEAD_LETTER].startswith("DEAD")
    assert len(set(shown.values())) == len(shown)


def test_a_time_that_has_passed_is_reported_as_passed():
    board = board_of_all_states()
    late = RunContext(board, NOW + 11 * S, UTF8)
    row = next(row for row in board.projection.tasks.values() if row.state is TaskState.RETRYING)
    assert plain(state_facts(row, late)).startswith("retry due 4s ago")


def test_attempts_are_counted_as_the_budget_counts_them():
    projection = projection_of([("a", [])])
    row = projection.tasks["a"]
    assert attempts_text(row) == ""
    row.state, row.attempt, row.failures, row.max_attempts = TaskState.RUNNING, 3, 1, 5
    assert attempts_text(row) == "2/5", "a lost attempt was started and costs nothing"


# --- Counts ----------------------------------------------------------------------------------------------------------

found = st.dictionaries(st.sampled_from(list(TaskState)), st.integers(1, 5000), min_size=1)


def test_the_fingerprint_of_an_attempt_stands_whole_where_its_text_does_not():
    projection = projection_of([("load", [])])
    row = failed_task(projection, "load")
    row.attempts[1].explain = "ZeroDivisionError settle.py:87 in s.<locals>.read_the_rows_of_the_settlement_of_today"
    lines = [plain(line) for line in detail.summary_lines(row, RunContext(Board(projection), NOW, UTF8), 80, 4)]
    (attempt,) = [line for line in lines if "#1" in line]
    assert attempt.endswith("…  fp loose-ValueE") and len(attempt) == 80


def test_the_attempts_of_a_failure_have_the_fingerprint_that_commands_accept():
    projection = projection_of([("load", [])])
    row = failed_task(projection, "load")
    context = RunContext(Board(projection), NOW, UTF8)
    assert plain(evidence.attempt_line(row.attempts[1], context, 120)).endswith("  fp loose-ValueE")
    lines = [plain(line) for line in evidence.attempt_table(row, compare(failures_of(row)), context, 120)]
    found = {line[:13].strip(): line[13:].strip() for line in lines}
    assert found["fingerprint"] == "loose-ValueE" and "line by line" not in found


def test_a_hash_is_shown_where_it_differs_between_attempts():
    projection = projection_of([("load", [])])
    row = failed_task(projection, "load")
    row.attempts[2] = replace(row.attempts[1], attempt=2, code_hash="0ther", input_hash="1nput")
    row.attempts[1].code_hash, row.attempts[1].input_hash = "c0de", "1nput"
    context = RunContext(Board(projection), NOW, UTF8)
    lines = [plain(line).split() for line in evidence.attempt_table(row, compare(failures_of(row)), context, 120)]
    assert ["code", "c0de", "0ther", "changed"] in lines
    assert not [line for line in lines if line[:1] in (["input"], ["line"])]


def test_a_hang_without_an_exact_place_has_a_fingerprint_and_a_lost_attempt_has_none():
    row = failed_task(projection_of([("load", [])]), "load")
    row.failure_fingerprint = row.attempts[1].fingerprint = ""
    assert fingerprint_of_task(row) == row.attempts[1].fingerprint_loose
    row.attempts[1].fingerprint_loose = "lost"
    assert fingerprint_of_task(row) == ""


@given(found, st.integers(4, 60))
def test_a_bar_has_its_length_and_rounds_no_problem_away(states, size):
    line = counts.state_bar(states, UTF8, size)
    assert width(line) == size
    text = plain(line)
    assert (UTF8.dead in text) == (TaskState.DEAD_LETTER in states)
    failed = {TaskState.FAILED, TaskState.UPSTREAM_FAILED} & states.keys()
    assert (UTF8.failed in text) == bool(failed)


@given(found, st.integers(4, 60))
def test_a_bar_is_full_only_when_all_is_done(states, size):
    unfinished = set(states) - set(counts.DONE)
    assert (plain(counts.state_bar(states, UTF8, size)).count(UTF8.bar_quiet) == size) == (not unfinished)


# --- The bar on the timeline -----------------------------------------------------------------------------------------


def bar(row, now=NOW, start=NOW - 20 * S, cells=40):
    return plain(
        timeline.bar_line(row, timeline.BarContext(Span(start, S, cells), now, UTF8), due_at=row.next_retry_at)
    )


def test_a_retry_shows_its_failures_its_backoff_and_counts_down_behind_now():
    projection = projection_of([("a", [])])
    row = projection.tasks["a"]
    row.state, row.attempt, row.next_retry_at = TaskState.RETRYING, 2, NOW + 7 * S
    row.attempts[1] = AttemptRow(1, started_at=NOW - 18 * S, ended_at=NOW - 15 * S, outcome="error")
    row.attempts[2] = AttemptRow(2, started_at=NOW - 10 * S, ended_at=NOW - 8 * S, outcome="error")
    text = bar(row)
    assert text[:2] == "  "
    assert text[2:6] == "▆▆▆✗"
    assert set(text[6:10]) == {"┄"}
    assert text[10:13] == "▆▆✗"
    assert "▸ 7s" in text[20:]


def test_a_kill_shows_deadline_sigterm_grace_and_sigkill_in_this_order():
    projection = projection_of([("a", [])])
    row = projection.tasks["a"]
    row.state, row.attempt = TaskState.DEAD_LETTER, 1
    row.attempts[1] = AttemptRow(
        1,
        started_at=NOW - 18 * S,
        ended_at=NOW - 4 * S,
        outcome="timed_out",
        deadline_at=NOW - 10 * S,
        sigterm_at=NOW - 9 * S,
        sigkill_at=NOW - 4 * S,
    )
    text = bar(row)
    marks = [text.index(sign) for sign in (UTF8.deadline, UTF8.sigterm, UTF8.grace, UTF8.sigkill)]
    assert marks == sorted(marks)
    assert text.index(UTF8.deadline) == 10
    assert text.index(UTF8.sigkill) == 16


@given(st.integers(-50, 150), st.integers(1, 100), st.integers(1, 60))
def test_a_bar_has_exactly_the_cells_of_its_axis(start, seconds, cells):
    for row in board_of_all_states().projection.tasks.values():
        span = Span(START + start * S, seconds * S, cells)
        assert width(timeline.bar_line(row, timeline.BarContext(span, NOW, UTF8))) == cells
        assert width(timeline.bar_line(row, timeline.BarContext(span, None, UTF8))) == cells


def test_what_failed_is_counted_as_failed_wherever_it_is_shown():
    board = board_of_all_states()
    dead = next(row for row in board.projection.tasks.values() if row.state is TaskState.DEAD_LETTER)
    assert len(failures_of(dead)) == 2


# --- What is usual ---------------------------------------------------------------------------------------------------


def running_row(usual=None, progress=None, elapsed=41, **context):
    """The fact of a task that has been running for ``elapsed`` seconds, of five minutes at most."""
    projection = projection_of([("a", [])])
    row = projection.tasks["a"]
    row.state, row.attempt, row.started_at = TaskState.RUNNING, 1, NOW - elapsed * S
    row.attempts[1] = AttemptRow(1, started_at=row.started_at, timeout_us=300 * S)
    if progress is not None:
        row.progress_done, row.progress_total, row.changed_at = progress
    board = Board(projection)
    board.duration_stats = {"a": usual} if usual is not None else {}
    return plain(state_facts(row, RunContext(board, NOW, UTF8, **context))).removeprefix("running").strip()


@for_each(
    "usual, elapsed, shown",
    [
        (None, 41, "41s, timeout 5m00"),
        (DurationStats(130 * S, 160 * S, 9), 41, "41s of ~2m10, timeout 5m00"),
        (DurationStats(130 * S, 160 * S, 9), 170, "2m50 of ~2m10, timeout 5m00"),
        (DurationStats(130 * S, 160 * S, 9), 250, "4m10, usually 2m10"),
        (DurationStats(S // 2, S, 9), 5, "5s, timeout 5m00"),
        (DurationStats(S // 2, S, 9), 250, "4m10, usually 0.5s"),
    ],
)
def test_a_running_task_is_held_against_what_is_usual(usual, elapsed, shown):
    assert running_row(usual, elapsed=elapsed) == shown


@for_each(
    "took, shown, role",
    [
        (4, " ▒", Role.DIM),
        (1, " ░ 0.2× usual", Role.DIM),
        (8, " ▓ 2.0× usual", Role.TEXT),
        (46, " █ 12× usual", Role.WARNING),
    ],
)
def test_a_finished_task_is_shaded_by_how_long_it_took_beside_what_is_usual(took, shown, role):
    projection = projection_of([("a", [])])
    ran_task(projection, "a", NOW - 90 * S, took * S)
    context = RunContext(Board(projection), NOW, UTF8)
    row = projection.tasks["a"]
    assert plain(state_facts(row, context)).endswith("s")
    context.board.duration_stats = {"a": DurationStats(4 * S, 5 * S, 9)}
    assert plain(state_facts(row, context)).endswith(f"s{shown}")
    assert name_role(row, context) is role


def test_a_task_that_reports_how_far_it_is_and_no_more_is_said_to_stand_still():
    assert running_row(progress=(41, 100, NOW - 5 * S)).endswith("▕██░░░░▏ 41 % done")
    assert running_row(progress=(41, 100, NOW - 130 * S), elapsed=200).endswith("41 % done, no progress for 2m10")


def test_the_details_say_what_is_usual():
    projection = projection_of([("a", [])])
    board = Board(projection)
    for attempts, text in ((1, "2m10 · 1 attempt"), (20, "2m10, 95 of 100 within 4m00 · 20 attempts")):
        board.duration_stats = {"a": DurationStats(130 * S, 240 * S, attempts)}
        lines = detail.detail_page(projection.tasks["a"], RunContext(board, NOW, UTF8), EvidenceData(), 80)
        assert f" Usually  {text} in earlier runs" in [plain(line) for line in lines]


@pytest.mark.parametrize("columns", [44, 100])
def test_the_rules_of_a_task_stand_at_the_foot_of_its_page(columns):
    """Where one task has more neighbours than the other, what both have alike stays in its rows."""
    board = Board(projection_of([("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"])]))
    feet = []
    for name in "abcd":
        page = detail.detail_page(board.row(name), RunContext(board, NOW, UTF8), EvidenceData(), columns, 40)
        assert sum(count_rows(line, columns) for line in page) == 40
        feet.append([plain(line) for line in page[-3:]])
    assert feet[0][0].strip() == "Rules" and feet == feet[:1] * 4


def test_the_last_line_that_a_task_wrote_is_cut_below_the_list_and_not_wrapped():
    builder = EventBuilder(projection_of([("dump", [])]))
    for event in builder.start("dump", timeout_us=3600 * S):
        builder.projection.apply(event)
    board = Board(builder.projection)
    board.usage = {"dump": TaskUsage("dump", 0, 20_000_000, 0, "row 216000 of a million and some more")}
    lines = detail.summary_lines(board.row("dump"), RunContext(board, builder.at, UTF8), 80, 5)
    assert [plain(line).split()[0] for line in lines] == ["dump", "#1"] and plain(lines[0]).rstrip().endswith("…")
    for room, shown in ((80, True), (40, False)):  # what does not fit as a whole is left out
        assert ("20 MB" in plain(state_facts(board.row("dump"), RunContext(board, builder.at, UTF8), room))) is shown


def test_the_countdown_of_a_retry_stands_below_the_list_too():
    builder = EventBuilder(projection_of([("load", [])]))
    events = (*builder.start("load"), *builder.after(1).fail("load", "RETRYING", next_retry_at=builder.at + 11 * S))
    for event in events:
        builder.projection.apply(event)
    board = Board(builder.projection)
    head, *_ = detail.summary_lines(board.row("load"), RunContext(board, builder.at, UTF8), 80, 4)
    assert plain(head).startswith(" load  ↻ retry in 11s ")


def test_all_that_children_of_a_map_task_hold_names_the_same_one():
    names = [f"size[{number}]" for number in range(12)]
    projection = projection_of([*((name, []) for name in names), ("size", sorted(names)), ("total", ["size"])])
    for name in ("size[7]", "size[11]", "size[2]"):
        failed_task(projection, name)
    context = RunContext(Board(projection), NOW, UTF8)
    facts = {name: plain(state_facts(projection.tasks[name], context)) for name in ("size", "total")}
    assert all("held by size[2]" in fact for fact in facts.values()), facts


def test_the_rules_of_a_task_are_those_of_this_time():
    projection = projection_of([("a", [])], {"a": {"timeout": 30.0}})
    projection.tasks["a"].overrides = '{"max_attempts": 1, "params": {"day": 4}, "timeout": 1200}'
    board = Board(projection)
    shown = [
        plain(line).strip()
        for line in detail.detail_page(board.row("a"), RunContext(board, NOW, UTF8), EvidenceData(), 80)
    ]
    assert "requeued with timeout 20m00, one try, day=4, this time only" in shown
    assert any(line.startswith("1 attempt") for line in shown) and any("timeout 20m00, then" in line for line in shown)


def test_marks_below_a_long_line_of_code_are_left_out_of_a_traceback():
    traceback = f"x = {'y' * 80}\n{' ' * 60}~~~~~^~~~~~~~\n    a / b\n    ~~^~~\nZeroDivisionError"
    texts = [AttemptTexts(1, AttemptText(traceback=traceback))]
    lines = evidence.text_lines(texts, 5, RunContext(board_of_all_states(), NOW, UTF8), 70)
    assert [plain(line).strip() for line in lines][3:] == ["a / b", "~~^~~", "ZeroDivisionError"]


def test_the_evidence_says_what_a_cause_is_made_of():
    """Of a task and of a cause; an escape sequence in a field is not an escape sequence on the terminal."""
    fields = [
        ["type", "httpx.HTTPStatusError"],
        ["place", "fetch.py:get\x1b[2J"],
        ["status", "404"],
        ["class", "permanent"],
    ]
    text = AttemptTexts(1, AttemptText(fingerprint_detail=json.dumps({"fields": fields})))
    board = board_of_all_states("x")
    context, cause = RunContext(board, NOW, UTF8), Inbox(board).causes()[0]
    row = next(row for row in board.projection.tasks.values() if row.state is TaskState.DEAD_LETTER)
    found = EvidenceData((text,))
    for page in (
        detail.detail_page(row, context, found, 120),
        evidence.cause_page(cause, context, found, 120),
    ):
        (shown,) = [plain(line) for line in page if "taken from" in plain(line)]
        assert "type httpx.HTTPStatusError · place fetch.py:get" in shown
        assert "· status 404 · class permanent" in shown and "\x1b" not in shown


def test_a_task_that_waits_for_a_pool_of_the_machine_says_who_holds_it():
    projection = projection_of([("load", [])])
    projection.tasks["load"].state = TaskState.READY
    projection.tasks["load"].spec = TaskSpec("load", pool="warehouse")
    projection.run = projection.run._replace(pool_waits=json.dumps({"pools": {"warehouse": EVIL}}))
    board = Board(projection)
    shown = plain(state_facts(projection.tasks["load"], RunContext(board, NOW, UTF8)))
    assert "waits for pool warehouse, held by a" in shown and "\x1b" not in shown and "\n" not in shown
    projection.run = projection.run._replace(pool_waits="no JSON")
    assert plain(state_facts(projection.tasks["load"], RunContext(board, NOW, UTF8))).split() == ["ready"]


def test_attempts_of_a_skipped_task_are_counted_in_all():
    """Its generation has tried nothing; an attempt of an earlier one is there all the same."""
    projection = projection_of([("a", [])])
    failed_task(projection, "a", at=NOW - 9 * S)
    projection.tasks["a"].state, projection.tasks["a"].skip_cause = TaskState.SKIPPED, "operator"
    shown = [
        plain(line).strip()
        for line in detail.detail_page(
            projection.tasks["a"], RunContext(Board(projection), NOW, UTF8), EvidenceData(), 80
        )
    ]
    assert "1 in all     #1" in shown


@for_each("state", TaskState)
def test_the_colour_of_a_state_covers_its_sign_and_no_blank_before_it(state: TaskState) -> None:
    board = board_of_all_states()
    name = next(name for name, row in board.projection.tasks.items() if row.state is state)
    indent, sign, *_ = named_task(name, RunContext(board, NOW, UTF8))
    assert (indent.text.strip(), indent.role, sign.text.strip()) == ("", Role.TEXT, sign.text)


def test_checks_of_a_sensor_that_found_nothing_are_one_row():
    """A hundred of them would hide the failure before them, the log and the rules of the task."""
    projection = projection_of([("partner_file", [])])
    row = projection.tasks["partner_file"]
    row.state, row.attempt = TaskState.SENSING, 119
    for number in range(1, 120):
        outcome, error = ("error", "disk gone") if number == 2 else ("deferred", None)
        at = START + number * S
        row.attempts[number] = AttemptRow(number, started_at=at, ended_at=at, outcome=outcome, error=error)
    context = RunContext(Board(projection), NOW, UTF8)
    for lines in (
        detail.detail_page(row, context, EvidenceData(), 100),
        detail.summary_lines(row, context, 100, 8),
        timeline_text.task_lines(row, context, 100, 8),
    ):
        listed = [plain(line) for line in lines if plain(line).startswith("   #")]
        assert [line.split()[0] for line in listed] == ["#119", "#2", "#1"]
        assert "not ready" in listed[0] and ", as in 116 checks before" in listed[0]


@for_each("kind", DeadLetterKind)
def test_a_row_of_the_inbox_has_the_whole_word_of_a_dead_letter_at_80_columns(kind):
    projection = projection_of([("send_invoice", [])])
    failed_task(projection, "send_invoice")
    row = projection.tasks["send_invoice"]
    row.state, row.dead_letter_kind = TaskState.DEAD_LETTER, kind
    board = Board(projection)
    line = plain(inbox.task_row(Inbox(board).entry(row.name), row, RunContext(board, NOW, UTF8), 80))
    assert f" {kind} " in line


@pytest.mark.parametrize("columns", [56, 80])
def test_a_row_of_the_inbox_has_the_end_of_a_long_name_and_the_error(columns):
    shared = "NFCORE_VIRALRECON.ILLUMINA."
    ends = "ASSEMBLY_UNICYCLER.GUNZIP_GFA_67", "BAM_TRIM_PRIMERS.IVAR_TRIM_102", "MOSDEPTH"
    projection = projection_of([(f"{shared}{end}", []) for end in ends])
    for name in projection.tasks:
        failed_task(projection, name, error="bad input in the third lane")
    board = Board(projection)
    context = RunContext(board, NOW, UTF8, names=TaskNames(projection.tasks))
    for name in projection.tasks:
        line = plain(inbox.task_row(Inbox(board).entry(name), board.row(name), context, columns))
        assert name[-8:] in line and "NFCORE" not in line and "bad input" in line


def test_the_verdict_on_many_tasks_with_errors_of_their_own_fits_80_columns():
    projection = projection_of([(f"part_{number}", []) for number in range(190)])
    for number, name in enumerate(projection.tasks):
        row = failed_task(projection, name)
        row.error = f"bad header {number}"
        row.attempts[2] = structs.replace(row.attempts[1], attempt=2)
    board = Board(projection)
    _, verdict = inbox.selection_lines([*projection.tasks], RunContext(board, NOW, UTF8), 80)
    assert width(verdict) <= 80 and plain(verdict).endswith("nothing changed between.")


def test_a_cause_says_how_many_different_errors_its_tasks_have():
    projection = projection_of([(f"t{number}", []) for number in range(4)])
    for number, name in enumerate(projection.tasks):
        failed_task(projection, name)
        projection.tasks[name].error = f"row {number % 3} is bad"
    board = Board(projection)
    (cause,) = Inbox(board).causes()
    context, said = RunContext(board, NOW, UTF8), "3 different errors, the first: row 0 is bad"
    assert said in plain(inbox.cause_row(cause, False, context, 120))
    assert said in "\n".join(map(plain, evidence.cause_page(cause, context, EvidenceData(), 120)))


def test_the_bar_of_a_drawing_says_what_it_measures():
    projection = projection_of([("a", [])])
    row = projection.tasks["a"]
    row.state, row.attempt, row.started_at = TaskState.RUNNING, 1, NOW - 60 * S
    row.attempts[1] = AttemptRow(1, 0, NOW - 60 * S, timeout_us=3600 * S, outcome="running")
    row.progress_done, row.progress_total = 70, 100
    facts, _ = node_facts("a", RunContext(Board(projection), NOW, UTF8))
    assert plain(facts).endswith("70 % done") and "timeout" not in plain(facts)


@for_each("kind", DeadLetterKind)
def test_the_page_of_a_task_says_what_its_row_in_the_inbox_leads_to(kind):
    """Above all that an effect may have happened: whoever reads the page alone would repeat it."""
    projection = projection_of([("pay", [])], {"pay": {"effect": True}})
    failed_task(projection, "pay").dead_letter_kind = kind
    context = RunContext(Board(projection), NOW, UTF8)
    page = " ".join(
        " ".join(map(plain, detail.detail_page(projection.tasks["pay"], context, EvidenceData(), 100))).split()
    )
    said = " ".join(inbox.verdict_of(("pay",), context).split())
    assert said[1:] in page
    assert ("may have happened" in page) == (kind is DeadLetterKind.INDETERMINATE)


@for_each(
    "error_type, explain, said, place",
    [
        ("NotReady", "eu.load waited in vain", "eu.load waited in vain", "eu.load waited in vain"),
        ("exit:1", "exit status 1: host:5432 in x", "exit status 1: host:5432 in x", "exit status 1: host:5432 in x"),
        ("app.Timeout", "TimeoutError a.py:9 in f", "TimeoutError a.py:9", "TimeoutError a.py:9 in f"),
        ("builtins.KeyError", "KeyError a.py:9 in f", "KeyError a.py:9", "a.py:9 in f"),
    ],
)
def test_no_word_of_a_failure_is_taken_for_the_name_of_its_exception(error_type, explain, said, place):
    projection = projection_of([("eu.load", [])])
    row = failed_task(projection, "eu.load")
    row.attempts[1].error_type, row.attempts[1].explain = error_type, explain
    context = RunContext(Board(projection), NOW, UTF8)
    assert plain(state_facts(row, context)).strip().startswith(f"DEAD     {said}")
    lines = [plain(line) for line in evidence.attempt_table(row, compare(failures_of(row)), context, 120)]
    assert {line[:13].strip(): line[13:].strip() for line in lines}["place"] == place
