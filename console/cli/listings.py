"""``redrive tasks``, ``why``, ``runs`` and ``fleet``, and the inbox of one run: the console's views as text or JSON.

Every state is a word, so that grep finds it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import click

from ...engine.core.causes import CauseHistory, describe_history, describe_last_incident
from ...engine.core.explain import explain_task
from ...engine.core.projection import RunProjection, TaskRow
from ...engine.core.views import counted_states, row_style, run_code, run_style, state_code
from ...engine.core.waiting import ALIVE, RunnerStatus, WaitReason, is_undecided, pause_author, waits_for_approval
from ...engine.domain.rows import RunRow
from ...engine.domain.states import MOVING, NEEDS_HUMAN, DeadLetterKind, TaskState, cut_off_cause, effect_key
from ...engine.domain.text import advised, counted, format_duration
from ...engine.errors import RedriveError
from ...engine.statefile import lists
from ...engine.statefile.lists import NeedKind
from ...engine.statefile.needs import Need
from ...engine.statefile.state_files import file_rows
from ..keys.actions import shell_line
from ..model.board import Board
from ..model.inbox import Inbox, InboxCause, has_fingerprint
from ..model.runs import WaitingRun, fleet_entries, is_lost, usual_durations, waiting_runs
from ..model.session_status import runner_of
from ..present import runs as present
from ..present.executors import executor_advice, executor_json
from ..present.needs import need_sentence
from ..present.next_start import start_sentence, starts_of_file
from ..present.tasks import attempt_label, describe_skip, stale_text
from ..sessions.address import Endpoint
from ..sessions.cause_histories import load_cause_histories
from ..sessions.once import read_once, with_session
from ..sessions.session import (
    Query,
    Session,
    board_query,
    causes_query,
    machine_now_us,
    part_query,
    rows_query,
    runs_query,
)
from ..sessions.target import is_host
from ..text.columns import Column, Columns, field, json_value, with_fields
from ..text.figures import FINGERPRINT_DIGITS
from ..text.glyphs import glyphs_for
from ..text.pieces import Line, Piece, Role, stripped
from ..text.text import added_message, cells, is_remote, json_line, one_line, shorten
from . import options as shared
from .group import ExitCode, command
from .output import ReadRows, Shown, list_lines, print_lines, print_list, shell_context, with_schema
from .state_files import files_of

_TASK_LINE_CELLS = 240  # of a task in the inbox: what to check before an effect runs again fits in
_PAGES_MAX = 100  # the latest pages, for sentences that name who acknowledged a failure


def print_view(
    endpoint: Endpoint, read: ReadRows, *, follow: bool, as_json: bool, queries: Sequence[Query] = ()
) -> int:
    """Print the lines that ``read`` returns; with ``follow``, again whenever they change. ``queries``: sent ahead."""
    if follow:
        from .following import follow_view  # here: it imports the event loop

        return follow_view(endpoint, read, as_json=as_json)
    print_lines(read_once(endpoint, read, queries))
    return 0


@command("tasks")
@shared.of_tasks
@shared.json_option
@shared.follow_option
def tasks(file: shared.NamedFile, as_json: bool, follow: bool) -> int:
    """TASK may be a glob, as 'load_*'; left out: every task."""
    return print_tasks(file.to_read(), file.tasks, as_json, follow=follow)


def print_tasks(endpoint: Endpoint, patterns: Sequence[str], as_json: bool, *, follow: bool = False) -> int:
    """Print one line per task, in the order of the flow."""

    async def read(session: Session) -> Iterable[Shown]:
        projection = await session.snapshot(session.run_id, successes="all" if as_json else "states")
        run, now_us, address = projection.run, session.now_us(), session.address
        board = Board(projection)
        breakers, pages = await session.rows(lists.BREAKERS), await session.rows(lists.PAGES, limit=_PAGES_MAX)
        board.update_lists(breakers, pages)
        runner = runner_of(run, session.status)
        about = TasksContext(projection, lambda name: board.explain(name, now_us, runner), runner)
        if as_json:
            executor = executor_json(run, session.status, address, now_us)
            return task_lines(projection, as_json, {"executor": executor, "state_file": address}, patterns, about)
        about = about._replace(before=await _last_times(session, board))
        lines = task_lines(projection, as_json, {}, patterns, about)
        return [present.place_line(run, address), *lines, *_notes_below(run, session)]

    queries = [board_query(), rows_query(lists.BREAKERS), rows_query(lists.PAGES, limit=_PAGES_MAX)]
    queries += [] if as_json else [causes_query()]
    return print_view(endpoint, read, follow=follow, as_json=as_json, queries=queries)


def _notes_below(run: RunRow | None, session: Session) -> list[str]:
    """Below a list, why no task starts, and the advice for its run without an executor; JSON has it in each line."""
    status, now_us, sentences = session.status, session.now_us(), list[str]()
    if (since := status.health.storage_since) is not None:
        lasted, why = format_duration(now_us - since), status.health.storage_why
        sentences.append(f"the state file cannot be written for {lasted}, and no task starts: {why}")
    if run is not None and run.paused_since is not None and run.ended_at is None:
        lasted, unpause = format_duration(now_us - run.paused_since), advised("unpause", session.address, run.run_id)
        sentences.append(f"paused for {lasted} {pause_author(run)}, and no task starts: {unpause}")
    if run is not None:
        sentences += filter(None, [executor_advice(run, status, session.address, now_us)])
    return list(map(one_line, sentences))


async def _last_times(session: Session, board: Board) -> dict[str, str]:
    """For each task that needs a human, how its cause ended last time."""
    causes = Inbox(board).causes()
    known = await load_cause_histories(session, session.run_id, causes, are_all=True)
    incidents = {key: describe_last_incident(history, session.now_us()) for key, history in known.items()}
    return {name: words for cause in causes if (words := incidents.get(cause.key)) for name in cause.tasks}


class TasksContext(NamedTuple):
    """The context of the rows of a list of tasks.

    ``why``: why a task waits, or since when a RUNNING one has no executor; ``before``: by task that needs a human, how
    its cause ended last time.
    """

    projection: RunProjection
    why: Callable[[str], str]
    runner: RunnerStatus = ALIVE
    before: Mapping[str, str] = MappingProxyType({})


def task_lines(
    projection: RunProjection,
    as_json: bool,
    place: Mapping[str, object],
    patterns: Sequence[str] = (),
    about: TasksContext | None = None,
) -> Iterable[Shown]:
    """The lines of the tasks of these names and globs. ``place``: further keys of each JSON value."""
    about = about or TasksContext(projection, lambda name: explain_task(projection, name, 0))
    return list_lines("tasks", TASK_COLUMNS, shared.rows_like(projection, patterns), about, as_json=as_json, **place)


_WAITING = MOVING - {TaskState.RUNNING}


def _why(row: TaskRow, about: TasksContext) -> str | None:
    return about.why(row.name) if row.state in _WAITING or about.runner.keeps_end_of(row) else None


def _state(row: TaskRow, about: TasksContext) -> Piece:
    return Piece(state_code(row, about.runner), row_style(row, about.runner).role)


def _notes(row: TaskRow, about: TasksContext) -> str:
    return " · ".join(filter(None, (_note(row, about.why), stale_text(row), about.before.get(row.name))))


#: JSON has the columns of the table in the file that may be shown, and what belongs to the task in other tables.
TASK_COLUMNS: Columns[TaskRow, TasksContext] = with_fields(
    (
        field("name", "TASK"),
        field("state", "STATE", _state),
        field("attempt", "ATTEMPT", lambda row, about: attempt_label(row)),
        Column("note", "NOTE", None, _notes),
        Column("why", value=_why),
        Column("owner_note", value=lambda row, about: row.spec and row.spec.owner),
        Column("run_id", value=lambda row, about: about.projection.run.run_id),
        Column("parents", value=lambda row, about: about.projection.parents.get(row.name, ())),
        Column("attempts", value=lambda row, about: [*row.attempts.values()]),
    ),
    [name for name in TaskRow.__struct_fields__ if name != "spec"],
)


def _note(row: TaskRow, why: Callable[[str], str]) -> str:
    if row.state in MOVING:
        return why(row.name) + (f" · {row.error}" if row.error and row.state is TaskState.RETRYING else "")
    if row.state in NEEDS_HUMAN:
        kind = f"{row.dead_letter_kind}: " if row.state is TaskState.DEAD_LETTER else ""
        return f"{kind}{row.error or ''}"
    if row.state is TaskState.UPSTREAM_FAILED:
        return f"because of {row.blocked_by}"
    if row.state is TaskState.SKIPPED:
        return describe_skip(row)
    if row.state is TaskState.CANCELLED:
        return row.error or ""
    return ""


PEACE_OF_RUN = "nothing in this run needs a human"


def inbox_queries(run_id: str | None = None) -> Sequence[Query]:
    """The queries of ``inbox_of_run``, and of what is read before it."""
    return [part_query(run_id), rows_query(lists.BREAKERS), causes_query(run_id), runs_query(run_id)]


async def inbox_of_run(
    session: Session, projection: RunProjection, need: Need | None, *, as_json: bool, peace: str = PEACE_OF_RUN
) -> list[Shown]:
    """The lines of one run, the first with its name. ``need``: its own; ``peace``: what is said if it needs nobody."""
    run, groups = projection.run, Inbox(await load_board(session, projection)).causes()
    known = await load_cause_histories(session, run.run_id, groups, are_all=True)
    status, address, now_us = session.status, session.address, session.now_us()
    advice, has_no_executor = executor_advice(run, status, address, now_us), is_lost(run, status)
    (summary,) = await session.runs(run.run_id)  # a part of a run has only what its inbox shows
    if as_json:
        executor = executor_json(run, status, address, now_us)
        fields = {"run_id": run.run_id, "state_file": address, "executor": executor}
        values = [cause_value(group, need, fields, known.get(group.key)) for group in groups]
        if has_no_executor:
            moving = sum(summary.counts.get(state, 0) for state in MOVING)
            title = f"run {run.run_id} has no executor"
            lost = cause_without_tasks(cut_off_cause(run.run_id), title, advice, run.started_at, held=moving)
            values.append(cause_value(lost, need, fields))
        return [*values]
    lines: list[Shown] = []
    for group in groups:
        lines += cause_lines(group, projection, known.get(group.key), now_us)
        lines += act_lines(group, projection, session, ANY_REASON)
    may_be_acknowledged = need is not None and run.ended_at is not None
    is_lost_by_advice = has_no_executor or (need is not None and need.kind is NeedKind.LOST)
    if not lines and not is_lost_by_advice and not may_be_acknowledged:
        lines = [*filter(None, [peace if need is None else need_sentence(need, now_us)])]
    acknowledge = "or acknowledge" if lines else "none of its tasks needs a human; acknowledge"
    lines += filter(None, [one_line(advice)])
    if may_be_acknowledged:
        lines.append(f"{acknowledge} it: {advised('ack', address, run.run_id, session.ssh_arguments)}")
    if has_no_executor and status.executor.original is None:
        abandon = advised("abandon", address, run.run_id, session.ssh_arguments)
        lines.append(one_line(f"or end it: {abandon}"))
    runner = runner_of(run, status)
    counts = counted_states(summary.counts, summary.asked)
    state = Piece(run_code(run, runner, counts), run_style(run, runner, counts).role)
    return [[Piece(f"{present.place_line(run, address)}: "), state], *lines]


#: The acts that the inbox names, each with its reason.
ANY_REASON = dict.fromkeys(("requeue", "approve", "reject", "unpause"), "TEXT")


def act_lines(
    cause: InboxCause, projection: RunProjection, session: Session, reasons: Mapping[str, str]
) -> Iterator[str]:
    """The commands of ``reasons`` that decide about a cause; none for another wait, whose message names the command."""
    row = projection.tasks[cause.tasks[0]]
    is_paused = cause.fingerprint == WaitReason.PAUSE
    decisions = ("requeue", "skip") if row.state in NEEDS_HUMAN else ()
    acts = ("unpause",) if is_paused else ("approve", "reject") if waits_for_approval(row) else decisions
    by_cause = len(cause.tasks) > 1 and has_fingerprint(cause, projection.tasks)
    has_ended = runner_of(projection.run, session.status).has_ended
    options: dict[str, object] = {"resume": has_ended and not is_paused and not is_remote(session.address)}
    options |= {"fingerprint": cause.fingerprint[:FINGERPRINT_DIGITS]} if by_cause else {}
    place = session.address, projection.run.run_id, cause.tasks
    for act in filter(reasons.get, acts):
        line = shell_line(act, *place, reasons[act], options, session.ssh_arguments)
        if line is not None:
            yield f"  {one_line(line)}"


async def load_board(session: Session, projection: RunProjection) -> Board:
    """The board of a run with the breakers that may hold its tasks."""
    board = Board(projection)
    board.update_lists(await session.rows(lists.BREAKERS))
    return board


def cause_without_tasks(fingerprint: str, title: str, message: str, since: int, held: int = 0) -> InboxCause:
    """A need of a human that is not about tasks, in the form of a cause."""
    return InboxCause(fingerprint, None, title, message, (), 0, held, since, since, since)


@command("why")
@shared.of_tasks
@shared.json_option
def print_explanations(file: shared.NamedFile, as_json: bool) -> int:
    """TASK may be a glob, as 'load_*'; left out: every task that waits or needs a human."""

    async def read(session: Session) -> list[Shown]:
        projection = await session.part(session.run_id, file.tasks, has_blockers=True) if file.tasks else None
        if projection is None or not projection.tasks.keys() >= set(file.tasks):  # a glob
            projection = await session.snapshot(session.run_id)
        rows = shared.rows_like(projection, file.tasks)
        waiting = [row.name for row in rows if file.tasks or row.state in _EXPLAINED]
        board = await load_board(session, projection)
        run, now_us, address = board.projection.run, session.now_us(), session.address
        runner = runner_of(run, session.status)
        chains = {name: board.blocking_chain(name, now_us, runner) for name in waiting}
        if as_json:
            return [_explanation_value(board, name, chain, address) for name, chain in chains.items()]
        lines = [line for chain in chains.values() for line in _explanation_lines(board, chain, runner)]
        none = [] if lines else ["no task waits or needs a human"]
        return [present.place_line(run, address), *lines, *none, *_notes_below(run, session)]

    run_query = part_query(names=file.tasks, has_blockers=True) if file.tasks else board_query()
    queries = [run_query, rows_query(lists.BREAKERS)]
    return print_view(file.to_read(), read, follow=False, as_json=as_json, queries=queries)


_EXPLAINED = NEEDS_HUMAN | _WAITING


def _explanation_lines(board: Board, chain: Sequence[tuple[str, str]], runner: RunnerStatus) -> Iterator[Line]:
    """The task, then indented what holds it, each with its state, its reason and its error."""
    depth = 0
    for name, sentence in chain:
        row = board.row(name)
        error = f" · {row.error}" if row.error and f" {row.error};" not in f" {sentence};" else ""
        state = Piece(state_code(row, runner), row_style(row, runner).role)
        yield [Piece(f"{'  ' * depth}{one_line(name)} "), state, Piece(f": {one_line(sentence + error)}")]
        depth += not is_undecided(row)  # which waits for no task: the next one holds the same task


def _explanation_value(board: Board, name: str, chain: Sequence[tuple[str, str]], address: str) -> str:
    links = [{"task": task, "state": str(board.row(task).state), "why": sentence} for task, sentence in chain]
    place = {"run_id": board.projection.run.run_id, "state_file": address}
    return json_line(with_schema("why", {"task": name, "state": links[0]["state"], "chain": links, **place}))


def cause_value(
    cause: InboxCause, need: Need | None, place: Mapping[str, object], history: CauseHistory | None = None
) -> str:
    """A cause as JSON, with the need that it is part of; None: the run needs nothing."""
    from ..present.inbox import CAUSE_COLUMNS  # here: text does without

    kind = {"need": None if need is None else need.kind.value, "is_notice": need is not None and need.is_notice}
    value = json_value(CAUSE_COLUMNS, cause, None)
    return json_line(with_schema("inbox", {**value, "memory": history, **kind, **place}))


def cause_lines(
    cause: InboxCause, projection: RunProjection, history: CauseHistory | None, now_us: int
) -> Iterator[Line]:
    """A cause that needs a human, what is known about it, and its tasks. The accent is on the cause."""
    downstream = f" · {one_line(cause.downstream)}" if cause.downstream else ""
    holds = f" · holds {cause.held}" if cause.held else ""
    fingerprint = f"  (fp {cause.fingerprint[:FINGERPRINT_DIGITS]})" if has_fingerprint(cause, projection.tasks) else ""
    count = Piece(f"{len(cause.tasks)} ×", Role.HUMAN if cause.dead else Role.FAILED)
    title = Piece(one_line(cause.title), Role.STRONG)
    yield [count, Piece(" "), title, Piece(f"{downstream}{holds}"), Piece(fingerprint, Role.DIM)]
    for when, what in describe_history(history, now_us) if history is not None else ():
        yield [Piece(f"  {one_line(when + what)}")]
    for name in cause.tasks:
        row = projection.tasks[name]
        kind = f" {row.dead_letter_kind}" if row.dead_letter_kind else ""
        key = _doubtful_key(row, projection.run.run_id)
        error = f"{key}{added_message(cause.title, row.error or cause.message)}"
        line = one_line(f"{name} {attempt_label(row)}{kind}{': ' if error else ''}{error}")
        state = f"  {row.state} "
        yield [Piece(state, Role.DIM), Piece(shorten(line, _TASK_LINE_CELLS - cells(state)))]


def _doubtful_key(row: TaskRow, run_id: str) -> str:
    """The idempotency key of an effect that may have happened: by it the other side is asked."""
    is_doubtful = row.dead_letter_kind == DeadLetterKind.INDETERMINATE and row.spec is not None and row.spec.effect
    return f"key {effect_key(run_id, row.name, row.key_generation)}: " if is_doubtful else ""


# --- ``redrive runs``: the runs of a state file and its next scheduled ones ------------------------------------------


_RUNS_MAX = 20  # on a terminal


@command("runs")
@shared.of_file
@shared.json_option
@shared.follow_option
@click.option("--all", "everything", is_flag=True, help=f"On a terminal, more than the last {_RUNS_MAX}.")
@click.option("--tasks", "has_tasks", is_flag=True, help="Each task in each run: what was slower than usual.")
def print_runs(file: shared.NamedFile, as_json: bool, follow: bool, everything: bool, has_tasks: bool) -> int:
    if has_tasks and follow:
        raise click.UsageError("--tasks does not go with --follow")
    if has_tasks:
        print_lines(with_session(file.to_read(), partial(_tasks_of_runs, as_json=as_json)))
        return ExitCode.SUCCESS

    async def read(session: Session) -> Sequence[Shown]:
        schedule_lines, summaries = await _schedule_lines(session), await session.runs()
        status, address, now_us = session.status, session.address, session.now_us()
        waiting, durations = {} if as_json else await _waiting_by_run(session), usual_durations(summaries)
        shown = summaries if everything or as_json or not sys.stdout.isatty() else summaries[:_RUNS_MAX]
        rows = [
            present.ListedRun(
                one,
                runner_of(one.run, status),
                durations[one.run.dag_name],
                waiting.get(one.run.run_id),
                executor_json(one.run, status, address, now_us),
            )
            for one in shown
        ]
        place = {"state_file": address} if as_json else {}
        listed = present.without_flow(rows) if sys.stdout.isatty() and not as_json else present.RUN_COLUMNS
        table = list_lines("runs", listed, rows, shell_context(now_us), as_json=as_json, **place)
        if as_json:
            return [*table]
        command = advised("runs", address, None, [*session.ssh_arguments, "--all"])
        more = [f"{counted(len(summaries) - len(shown), 'earlier run')}: {command}"] if shown != summaries else []
        advised_runs = ((one.run.run_id, executor_advice(one.run, status, address, now_us)) for one in shown)
        notes = [one_line(f"{run_id}: {advice}") for run_id, advice in advised_runs if advice]
        lines = [present.place_line(None, address), *table, *more, *notes]
        return [*lines, *_needing_lines(session, waiting), *_notes_below(None, session), *schedule_lines]

    queries = [runs_query(), rows_query(lists.SCHEDULES)]
    queries += [] if as_json else [rows_query(lists.ATTENTION_RUNS)]
    return print_view(file.to_read(), read, follow=follow, as_json=as_json, queries=queries)


_COLUMNS_OF_FILES = 160  # where the output is not a terminal


async def _tasks_of_runs(session: Session, *, as_json: bool) -> list[Shown]:
    """Each task in the last runs of the flow of the latest run."""
    from ..present.run_grid import grid_lines, history_value  # here: the list of runs does without
    from ..sessions.run_grid_reader import RunGridReader

    runs = await session.runs()
    if not runs:
        raise RedriveError("no run has been recorded yet")
    grid = await RunGridReader(session).read(runs, runs[0].run.dag_name)
    if as_json:
        values = ({"flow": grid.flow, **history_value(task, grid)} for task in grid.tasks)
        return [json_line(with_schema("run_tasks", value)) for value in values]
    from shutil import get_terminal_size  # here: only a grid fits itself to the terminal

    columns = get_terminal_size((_COLUMNS_OF_FILES, 0)).columns
    lines = grid_lines(grid, columns, session.now_us(), glyphs_for(sys.stdout.encoding), session.status)
    return [*map(stripped, lines), *_needing_lines(session, await _waiting_by_run(session))]


async def _waiting_by_run(session: Session) -> dict[str, WaitingRun]:
    rows = await session.rows(lists.ATTENTION_RUNS)
    return {one.run.run_id: one for one in waiting_runs(rows, session.status, session.now_us())}


def _needing_lines(session: Session, waiting: Mapping[str, WaitingRun]) -> list[str]:
    """Count the runs that need a human; no line if none does."""
    command = advised("inbox", session.address, None, session.ssh_arguments)
    return [f"{present.needing_sentence([*waiting.values()])}: {command}"] if waiting else []


async def _schedule_lines(session: Session) -> list[str]:
    """Lines about the next scheduled runs, and whether a process serves them."""
    unserved = "; no process serves it" if session.status.service_pid is None else ""
    rows, now_us = await session.rows(lists.SCHEDULES), session.now_us()
    starts = starts_of_file(rows, await session.supervised() if rows else (), session.status.service_pid, now_us)
    coming = [start_sentence(start, now_us) for start in starts]
    return [f"{one_line(row.dag_name)}: {words}{unserved}" for row, words in zip(rows, coming, strict=True)]


# --- ``redrive fleet`` -----------------------------------------------------------------------------------------------


@command("fleet")
@shared.TargetWords(run=False, hosts=True).declare
@shared.json_option
def print_fleet(file: shared.NamedFile, as_json: bool) -> int:
    """A line has the latest run, and what needs a human in any run."""
    target = file.name
    if target is not None and not is_host(target):
        raise click.UsageError(f"{target}: a fleet is all state files of a host: write ssh://host, or nothing")
    found = files_of(file.name, file.ssh, file.hosts) if target or file.hosts else file_rows()
    now_us = machine_now_us()
    from ..present.fleet import FLEET_COLUMNS  # here: the lists of one file do without

    entries = fleet_entries(found, now_us)
    empty = f"there is no state file in the default place of {target or ', '.join(file.hosts) or 'this machine'}"
    print_list("fleet", FLEET_COLUMNS, entries, shell_context(now_us), as_json=as_json, empty=empty)
    is_known = all(need.kind is not NeedKind.UNREACHABLE for entry in entries for need in entry.needs)
    return ExitCode.SUCCESS if is_known else ExitCode.NOT_REACHED
