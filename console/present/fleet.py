"""The machine as one picture: one state file in a row, what its hosts and disks need, and the flow under the cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...engine.core.views import run_style, run_view
from ...engine.core.waiting import RunnerKind, RunnerStatus, WaitReason
from ...engine.domain.rows import RunFacts
from ...engine.domain.text import counted, first_names
from ...engine.statefile.lists import NeedKind
from ...engine.statefile.needs import Need
from ..keys.keymap import shown_key
from ..model.inbox import InboxCause
from ..model.runs import FleetEntry, FleetOrder, latest_code, status_of
from ..model.session_status import runner_of
from ..text.columns import FILL, Column, Columns, ColumnText, Width, measured, row_line, screen_row, that_fit
from ..text.figures import age, need_human, number
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, indented, join, width
from ..text.text import cells, one_line
from .executors import executor_word
from .fleet_why import OF_MACHINE, alarms_of, is_here, now_us_of, place_of_need, why_line, why_of
from .inbox import mend_lines, mends_of, need_head, selection_lines, wait_of
from .needs import need_sentence, problem_of
from .next_start import CANNOT_START, NOT_SERVED, StartKind, start_of_entry, start_sentence, start_word
from .nights import NIGHTS, latest_style, night_signs
from .run_grid import run_words
from .schedules import schedule_state
from .states import RowContext, counts_line, named_rule, order_line, sign_and_word, state_bar
from .tasks import RunContext, task_line

_NEXT_FROM, _WHOLE_NEXT_FROM = 100, 160  # columns
_WHY_FROM = 62  # cells of a screen: what it and the columns that stay need at least
_WHOLE_NEXT = Width(6, 24, rank=3, gap=2)  # of what comes next: ``after`` a flow by its name


def executor_text(entry: FleetEntry) -> str:
    """Whether a process runs the file, or starts its runs."""
    file_row = entry.file_row
    unfinished = next((run for run in file_row.runs if run.ended_at is None), None)
    runner = runner_of(unfinished, status_of(file_row))
    if not entry.executor.alive and any(row.has_failed_start() for row in file_row.supervised):
        return CANNOT_START
    is_served = entry.executor.alive or file_row.service_pid is not None
    if not is_served and any(row.next_at is not None for row in file_row.schedules):
        return NOT_SERVED
    return executor_word(runner) if unfinished is not None or is_served else ""


def _next_text(entry: FleetEntry, context: RowContext) -> str:
    start = start_of_entry(entry, now_us_of(entry, context))
    return "" if start.kind is StartKind.NONE else start_sentence(start, now_us_of(entry, context))


def _next_word(entry: FleetEntry, context: RowContext) -> Piece:
    return start_word(start_of_entry(entry, now_us_of(entry, context)), now_us_of(entry, context))


def _since_us(run: RunFacts, runner: RunnerStatus, now_us: int) -> int:
    """For how long a run has been in its state."""
    gone_at = runner.gone_at if runner.kind is RunnerKind.LEFT else None
    known = (run.ended_at, run.blocked_since, run.paused_since, gone_at)
    return max(now_us - next((at for at in known if at is not None), run.started_at), 0)


# --- The flow under the cursor ---------------------------------------------------------------------------------------

_CAUSE_LINES_MAX = 5


def run_to_show(entry: FleetEntry) -> str | None:
    """The run that the row is about: the one that needs a human most, else the latest."""
    alarm = next((need.run_id for need in alarms_of(entry) if need.run_id is not None), None)
    return alarm or (entry.run and entry.run.run_id)


def name_line(entry: FleetEntry | None, glyphs: Glyphs, columns: int) -> Line:
    """The rule above the flow under the cursor, with its name and its file."""
    return named_rule(*("", "") if entry is None else (_flow_name(entry), entry.file_row.path), glyphs, columns)


def entry_lines(entry: FleetEntry, problem: str, now_us: int, columns: int) -> list[Line]:
    """The facts that need no run: needs and schedule of the entry. ``problem``: why its run cannot be read."""
    needs = [*alarms_of(entry), *(one for one in entry.needs if one.is_notice)][:_CAUSE_LINES_MAX]
    lines = [row for need in needs for row in indented(need_sentence(need, now_us), columns)]
    lines += _schedule_lines(entry, now_us, " ")
    if problem:
        return [*lines, *indented(problem, columns, Role.WARNING)]
    is_slow = entry.run is not None and not is_here(entry)
    return [*lines, [], [Piece(" reading its run ...", Role.DIM)]] if is_slow else lines


def _schedule_lines(entry: FleetEntry, now_us: int, indent: str) -> list[Line]:
    """Obstacles of the schedule; empty if nothing holds it up."""
    state = "" if entry.schedule is None else schedule_state(entry.schedule, now_us)
    return [[Piece(f"{indent}schedule: {state}", Role.DIM)]] if state else []


def run_lines(entry: FleetEntry, causes: Sequence[InboxCause], context: RunContext, columns: int) -> list[Line]:
    """The run under the cursor in a few lines: how it stands, its first cause, and the keys that act on it."""
    run, counts, now_us = context.board.projection.run, context.board.counts, context.now_us
    view = run_view(run, context.runner, now_us, counts)
    lines: list[Line] = [run_words(run, view, context.glyphs)]
    if causes:
        lines += _cause_lines(causes, context, columns)
    else:
        found = [(need, place_of_need(need, run.run_id)) for need in entry.needs if need.kind not in OF_MACHINE]
        can_resume = not entry.executor.may_live and is_here(entry)
        for need, where in sorted(found, key=lambda one: bool(one[1]))[:2]:
            if where:
                lines.append([Piece(f"   {need_sentence(need, now_us)}{one_line(where)}")])
            else:
                lines += need_head(need, context, columns, can_resume=can_resume, indent=3)
        if view.is_moving and (task := context.board.current_task()) is not None:
            lines.append(task_line(context.board.row(task), context, columns, cells(one_line(task))))
    return [*lines, *_schedule_lines(entry, now_us, "   ")]


def _cause_lines(causes: Sequence[InboxCause], context: RunContext, columns: int) -> list[Line]:
    names = causes[0].tasks
    lines = selection_lines(names, context, columns)
    if wait_of(names, context) is WaitReason.APPROVAL:  # here its keys only move and copy
        answers = f"opens it: {shown_key('copy')} approves, {shown_key('next')} rejects"
        lines.append(_by_key("open", answers))
    elif mends_of(names, context):
        lines += mend_lines(names, context, columns)
    if len(causes) > 1:
        lines.append(_by_key("view_inbox", f"lists {counted(len(causes) - 1, 'more cause')}"))
    return lines


def _by_key(action: str, sentence: str) -> Line:
    return [Piece("   "), Piece(shown_key(action), Role.KEY), Piece(f" {sentence}")]


def counts_bar(context: RunContext, columns: int) -> Line:
    """Progress of a run, where its drawing has no room."""
    counts = context.board.counts
    words = counts_line(counts, context.glyphs, runner=context.runner)
    return [
        Piece(" "),
        *state_bar(counts, context.glyphs, max(min(columns - width(words) - 4, 60), 1)),
        Piece("  "),
        *words,
    ]


# --- The frame -------------------------------------------------------------------------------------------------------


def fleet_heading(
    entries: Sequence[FleetEntry],
    shown: int,
    place: str,
    filter_text: str,
    order: FleetOrder,
    glyphs: Glyphs,
    columns: int,
) -> tuple[Line, Line]:
    """Left and right side of the line above the list: how many flows there are, and what they need.

    Where there is no room for all of it, the place and then the order are left out.
    """
    waiting = sum(entry.attention_count for entry in entries)  # the number of the inbox and of the metric
    paused, notices = sum(entry.is_paused for entry in entries), sum(entry.notice_count for entry in entries)
    files = sum(map(is_row, entries))
    is_known = files > 0 or not any(map(_is_connecting, entries))
    parts: list[Line] = []
    if filter_text:
        parts.append([Piece(f"/{one_line(filter_text)}: {number(shown)}", Role.MATCH)])
    if waiting:
        where = " in all" if filter_text else ""
        parts.append([Piece(f"{counted(waiting, 'thing')} {need_human(waiting)}{where}")])
    if paused:
        parts.append([Piece(f"{number(paused)} paused", Role.WAITING)])
    *left, right = that_fit(
        columns - 1,
        (0, [Piece(" "), Piece(counted(files, "state file") if is_known else "connecting", Role.STRONG)]),
        (2, [Piece(f" {'on' if is_known else 'to'} {one_line(place)}")]),
        (0, [piece for part in parts for piece in (Piece(f" {glyphs.dot} "), *part)]),
        (3, [Piece(f" {glyphs.dot} {counted(notices, 'notice')}")] if notices else []),
        (1, order_line(order, glyphs)),
    )
    return join(left, ""), right


def machine_lines(entries: Sequence[FleetEntry], now_us: int, glyphs: Glyphs) -> list[Line]:
    """Needs of hosts, disks and processes of the machine itself, each once, whatever flows it holds up."""
    found: dict[tuple[NeedKind, str], list[tuple[FleetEntry, Need]]] = {}
    for entry in entries:
        for need in entry.needs:
            if need.kind in OF_MACHINE:
                key = need.kind, "" if need.kind is NeedKind.SCHEDULER_DEAD else need.error
                found.setdefault(key, []).append((entry, need))
    waiting = [one_line(one.file_row.path) for one in entries if _is_connecting(one)]
    lines: list[Line] = [[Piece(f"   {address}  connecting ...", Role.DIM)] for address in waiting]
    for (first, need), *others in found.values():
        sentence = need_sentence(need, now_us + first.file_row.clock_offset_us)
        line: Line = [Piece(" "), Piece(glyphs.dead, Role.HUMAN)]
        if need.kind is not NeedKind.UNREACHABLE:  # whose sentence names the host
            names = first_names([first, *(entry for entry, _ in others)], 1, _name)
            line.append(Piece(f" {names} ", Role.STRONG))
        lines.append([*line, Piece(f" {sentence}")])
    return lines


def _name(entry: FleetEntry) -> str:
    return _flow_name(entry) if is_row(entry) else one_line(entry.file_row.path)


def search_text(entry: FleetEntry, now_us: int) -> str:
    """The text that filters search: flow, host, file, state and why, in lower case."""
    state, why = latest_code(entry.file_row), why_of(entry, now_us).sentence
    return f"{_flow_name(entry)} {entry.file_row.path} {state} {why}".casefold()


def legend(glyphs: Glyphs) -> list[Line]:
    """The signs of the list beside those of states."""
    heights = "".join(glyphs.spark[:6:2])
    return [
        [Piece("notice", Role.DIM), Piece(" something to look at, which can wait")],
        [Piece(heights, Role.DIM), Piece(" a night's duration beside the usual one")],
        [Piece(glyphs.spark[5], Role.WARNING), Piece(" far longer than usual")],
    ]


def is_row(entry: FleetEntry) -> bool:
    """Whether it has a row: a host that could not be reached has a line above the rows."""
    return entry.file_row.has_file or bool(entry.file_row.supervised)


def _is_connecting(entry: FleetEntry) -> bool:
    """Whether it is a host that has not answered yet."""
    return not is_row(entry) and entry.file_row.problem is None


def _needs_text(entry: FleetEntry) -> str:
    """Things that wait for a human; if none does, notices that nobody has acknowledged."""
    if entry.attention_count or not entry.notice_count:
        return number(entry.attention_count) if entry.attention_count else ""
    return "notice" if entry.notice_count == 1 else "notices"


def fleet_columns(entries: Sequence[FleetEntry], context: RowContext, size: int) -> Columns[FleetEntry, RowContext]:
    """The columns that these state files need, as wide as they need them.

    In less than ``_NEXT_FROM`` cells WHY says what comes next of a flow that needs nobody; it needs ``_WHY_FROM``.
    """
    if size >= _NEXT_FROM:
        wide = [one._replace(width=_WHOLE_NEXT) if one.name == "next_at" else one for one in FLEET_COLUMNS]
        return measured(wide if size >= _WHOLE_NEXT_FROM else FLEET_COLUMNS, entries, context)
    shown = [one._replace(screen=_why_or_next) if one.name == "why" else one for one in FLEET_COLUMNS]
    without = ("next_at",) if size >= _WHY_FROM else ("next_at", "why")
    return measured([one for one in shown if one.name not in without], entries, context)


def fleet_row(entry: FleetEntry, listed: Columns[FleetEntry, RowContext], context: RowContext, columns: int) -> Line:
    """One state file; of one that cannot be read, why. ``listed``: as of ``fleet_columns``."""
    if entry.file_row.problem is None:
        return screen_row(listed, entry, context, columns, context.glyphs.more)
    widths = {one.name: one.width for one in listed if one.width is not None}
    return row_line(
        columns,
        (widths["needs_human"], _needs_with_sign(entry, context)),
        (widths["flow"], _flow_name(entry)),
        (Width(0, FILL), Piece(problem_of(entry.file_row.path, entry.file_row.problem), Role.WARNING)),
        more=context.glyphs.more,
    )


def _flow_name(entry: FleetEntry, context: RowContext | None = None) -> str:
    """The host if there are several, the flow, and its file if that has another name."""
    file = one_line(entry.file_row.path.rpartition("/")[2])
    other = file if entry.flow is not None and entry.file_row.has_file and file != f"{entry.flow}.db" else ""
    return " ".join(filter(None, (entry.host, entry.flow or file, other)))


def _flow_or_place(entry: FleetEntry, context: RowContext) -> str:
    """The flow; where none is known, the name of the file or the address of the host."""
    return entry.flow or _name(entry)


def _needs(entry: FleetEntry, context: RowContext) -> Piece:
    return Piece(_needs_text(entry), Role.HUMAN if entry.attention_count else Role.DIM)


def _needs_with_sign(entry: FleetEntry, context: RowContext) -> Piece:
    needs = _needs(entry, context)
    return needs._replace(text=f"{context.glyphs.dead}{needs.text}") if entry.attention_count else needs


def _state_word(entry: FleetEntry, context: RowContext) -> ColumnText:
    run = entry.run
    return "" if run is None else Piece(latest_code(entry.file_row), run_style(run, entry.runner, entry.counts).role)


def _state_sign(entry: FleetEntry, context: RowContext) -> Piece:
    run = entry.run
    if run is None:
        return Piece("no run" if entry.file_row.has_file else "connecting", Role.DIM)
    return sign_and_word(run_style(run, entry.runner, entry.counts), context.glyphs)


def _fleet_done(entry: FleetEntry, context: RowContext) -> ColumnText:
    done = f"{number(entry.file_row.finished)}/{number(entry.file_row.tasks)}" if entry.run is not None else ""
    return Piece(done, Role.DIM)


def _since(entry: FleetEntry, context: RowContext) -> ColumnText:
    if entry.run is None:
        return ""
    return Piece(age(_since_us(entry.run, entry.runner, now_us_of(entry, context))), Role.DIM)


def _nights(entry: FleetEntry, context: RowContext) -> Line:
    return night_signs(entry.file_row.nights, latest_style(entry), context.glyphs)


def _executor(entry: FleetEntry, context: RowContext) -> Piece:
    word = executor_text(entry)
    return Piece(word, Role.DIM if word in ("alive", "served") else Role.WARNING)


def _waiting_runs(entry: FleetEntry, context: RowContext) -> list[str]:
    return [*dict.fromkeys(need.run_id for need in entry.needs if need.run_id and not need.is_notice)]


def _why_text(entry: FleetEntry, context: RowContext) -> str:
    return why_of(entry, now_us_of(entry, context)).sentence


def _why_or_problem(entry: FleetEntry, context: RowContext) -> str:
    """In the shell, which has no line above the rows for a host that cannot be reached."""
    return _why_text(entry, context) or one_line(entry.file_row.problem or "")


def _why(entry: FleetEntry, context: RowContext) -> Callable[[int], Line]:
    return lambda size: why_line(entry, context, size)


def _why_or_next(entry: FleetEntry, context: RowContext) -> Callable[[int], Line]:
    coming = _next_word(entry, context)
    words = coming._replace(text=f"next {coming.text}" if coming.text[:1].isdigit() else coming.text)
    return lambda size: why_line(entry, context, size) or [words]


_NEEDS = Width(5, 7)
_SINCE, _WHY = Width(5, rank=4, is_right=True), Width(30, FILL, 1, 2)

FLEET_COLUMNS: Columns[FleetEntry, RowContext] = (
    Column("needs_human", "NEEDS", lambda one, context: one.attention_count, _needs, _NEEDS, _needs_with_sign),
    Column("notices", None, lambda one, context: one.notice_count),
    Column("waiting_runs", None, _waiting_runs),
    Column("flow", "FLOW", lambda one, context: one.flow, _flow_or_place, Width(12, 24, is_name=True), _flow_name),
    Column(
        "state", "STATE", lambda one, context: latest_code(one.file_row) or None, _state_word, Width(9, 11), _state_sign
    ),
    Column("tasks", None, lambda one, context: one.file_row.tasks),
    Column(
        "finished", "DONE", lambda one, context: one.file_row.finished, _fleet_done, Width(5, 11, rank=5, is_right=True)
    ),
    Column("started_at", "SINCE", lambda one, context: one.run and one.run.started_at, _since, _SINCE),
    Column("ended_at", None, lambda one, context: one.run and one.run.ended_at),
    Column("executor_alive", "EXECUTOR", lambda one, context: one.executor.alive, _executor),
    Column("executor_pid", None, lambda one, context: one.executor.pid if one.executor.alive else None),
    Column("service_pid", None, lambda one, context: one.file_row.service_pid),
    Column(
        "nights",
        "LAST 14 NIGHTS",
        lambda entry, context: [one.state for one in entry.file_row.nights],
        _nights,
        NIGHTS,
        lambda entry, context: lambda size: _nights(entry, context)[-size:],
    ),
    Column("next_at", "NEXT", lambda one, context: one.next_at, _next_text, Width(6, 12, rank=3, gap=2), _next_word),
    Column("run_id", "RUN", lambda one, context: one.run and one.run.run_id),
    Column("state_file", "FILE", lambda one, context: one.file_row.path),
    Column("problem", None, lambda one, context: one.file_row.problem),
    Column("why", "WHY", lambda one, context: _why_text(one, context) or None, _why_or_problem, _WHY, _why),
)
