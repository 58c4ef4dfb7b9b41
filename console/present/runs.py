"""Runs in one row each, with their executor and their schedule; a run in a few lines; a fleet."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from ...engine.core.decide import passed_reason
from ...engine.core.part import describe_part
from ...engine.core.projection import RunRow, TaskRow
from ...engine.core.spec import LOGICAL_TIME
from ...engine.core.views import (
    PROBLEMS,
    RUN_STYLES,
    RunView,
    Sign,
    counted_state,
    describe_run,
    run_code,
    run_style,
    run_view,
)
from ...engine.core.waiting import ALIVE, RunnerStatus
from ...engine.domain.states import FINISHED, RunState, TaskState
from ...engine.domain.text import counted, first_names, format_duration, format_seconds, shell_command
from ...engine.statefile.lists import ScheduleRow, SlaRow
from ...engine.statefile.needs import NeedKind
from ..model.board import Board, SessionStatus
from ..model.inbox import Inbox, has_fingerprint
from ..model.runs import FleetEntry, FleetOrder, WaitingRun
from ..sessions.address import parse
from ..text.figures import DAY, SECOND, age, clock, column, number, wall, wall_day
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit, plain, width
from ..text.text import cells, one_line, pad, shorten_middle
from . import states
from .states import SEVERITY, order_line, row_sign, sign_and_word
from .tasks import Scene, attempt_of, attempts_text, duration_of, state_facts

_WORD_CELLS = 8
_BAR_CELLS, _WIDE_BAR_CELLS = 8, 24
_BAR_ENDS_CELLS = 2
_NAME_CELLS = (12, 40)
_OTHER_COLUMNS_CELLS = 56  # state, bar, progress, how long and counts
_WIDEST, _WIDE, _WORDS_FROM, _NARROW = 150, 112, 96, 64
_SIGNS_CELLS = 16
_NAMED_RUNS_MAX = 2
#: What hidden columns leave to the names.
_UNREMARKABLE = (TaskState.SUCCESS, TaskState.PENDING)


class RunListEntry(msgspec.Struct, frozen=True):
    """A run, its counts, and who runs it."""

    run: RunRow
    counts: states.Counts
    runner: RunnerStatus = ALIVE

    def view(self, now_us: int) -> RunView:
        """What is true of the run; the word has room for eight cells."""
        return run_view(self.run, self.runner, now_us, self.counts)


def deadline_note(run: RunRow) -> str:
    """That the deadline has ended a run, to follow its state; empty if it has not."""
    passed = passed_reason(run)
    return "" if passed is None else f" ({passed})"


def run_name(run: RunRow, glyphs: Glyphs) -> str:
    """Flow and run."""
    return f"{one_line(run.dag_name)} {glyphs.dot} {one_line(run.run_id)}"


def place_line(run: RunRow | None, address: str) -> str:
    """Flow, run and state file: the first line of every listing and answer; without a run, the state file."""
    if run is None:
        return one_line(address)
    part = f", {words}" if (words := describe_part(run.options)) else ""
    return one_line(f"{run.dag_name} {run.run_id} in {address}{part}")


def waiting_sentence(waiting: Sequence[WaitingRun]) -> str:
    """Which other runs of the file need a human, in a few words; those that are notices if none does."""
    alarms = [one for one in waiting if not one.is_notice]
    shown = alarms or waiting
    named = first_names(shown, _NAMED_RUNS_MAX, waiting_text)
    need = f"need{'s' if len(shown) == 1 else ''} a human" if alarms else _not_acknowledged(len(shown))
    return f"{counted(len(shown), 'other run')} {need}: {named}"


def _need(count: int) -> str:
    return "needs" if count == 1 else "need"


def _not_acknowledged(count: int) -> str:
    return f"{'is' if count == 1 else 'are'} not acknowledged"


def waiting_text(one: WaitingRun) -> str:
    """A run and why it needs a human: ``night-1 (BLOCKED, 2 dead letters)``."""
    run, need = one.run, one.need
    is_late = need.kind is NeedKind.LATE
    whys = ["BLOCKED" if run.blocked_since is not None else "no executor" if one.is_lost else "late" if is_late else ""]
    whys += [str(run.state)] if run.ended_at is not None and not is_late else []
    whys += [counted(one.dead, "dead letter")] if one.dead else []
    asked, failed = one.count_of(NeedKind.APPROVAL), one.count_of(NeedKind.FAILED_TASKS)
    whys += [counted(asked, "approval")] if asked else []
    whys += [f"{number(failed)} failed"] if failed else []
    whys += [f"{counted(need.later_successes, 'later run')} succeeded"] if need.later_successes else []
    return f"{one_line(run.run_id)} ({', '.join(filter(None, whys))})"


def needing_sentence(waiting: Sequence[WaitingRun]) -> str:
    """How many runs of a file need a human, and how many ended badly before others succeeded; empty if none."""
    notices = sum(one.is_notice for one in waiting)
    count = len(waiting) - notices
    parts = [f"{counted(count, 'run')} need{'s' if count == 1 else ''} a human"] if count else []
    parts += [f"{counted(notices, 'run')} {_not_acknowledged(notices)}"] if notices else []
    return ", ".join(parts)


def heading_line(
    shown: int, known: int, waiting: int, filter_text: str, sort: str, glyphs: Glyphs, coming: str = ""
) -> tuple[Line, Line]:
    """Left and right side of the line above the list.

    ``waiting``: number of runs that need a human; ``coming``: the next scheduled run.
    """
    dot = Piece(f" {glyphs.dot} ", Role.DIM)
    left = [Piece(" "), Piece(counted(known, "run"), Role.STRONG)]
    if filter_text:
        left += [dot, Piece(f"/{one_line(filter_text)}: {number(shown)}", Role.MATCH)]
    left += states.waiting_pieces(waiting, glyphs)
    if coming:
        left += [dot, Piece(coming)]
    return left, states.order_line(sort, glyphs)


def run_row(
    view: RunListEntry,
    now_us: int,
    columns: int,
    glyphs: Glyphs,
    longest_name: int = 0,
) -> Line:
    """State, name, progress, duration and counts. ``longest_name``: of all rows, in cells."""
    run, shown_view = view.run, view.view(now_us)
    total = sum(view.counts.values())
    done = sum(view.counts.get(state, 0) for state in FINISHED)
    elapsed = clock(shown_view.clock) if shown_view.is_moving else column(shown_view.clock)
    if columns < _NARROW:
        return _narrow_row(view, shown_view, f"{done}/{total}", columns, glyphs)
    low, high = _NAME_CELLS
    name_cells, room = min(longest_name or high, high), columns - _OTHER_COLUMNS_CELLS
    bar = _bar_cells(name_cells, room, columns)
    progress = f" {f'{done}/{total}':>{9 if columns >= _WORDS_FROM else 7}}"
    fixed: Line = [
        *(states.bar(view.counts, glyphs, bar) if bar else ()),
        Piece(f"{progress}  {elapsed}  "),
        *_counted(view.counts, columns, glyphs, view.runner),
        *_notes(view, shown_view, now_us, columns),
    ]
    cells = max(min(room if bar else room + _BAR_CELLS + _BAR_ENDS_CELLS, name_cells), low)
    name = shorten_middle(run_name(run, glyphs), cells, glyphs.more)
    line = [*_lead(shown_view, glyphs), Piece(f"{pad(name, cells)} "), *fixed]
    if columns < _WIDE:
        return line
    return [*fit(line, columns - 16, glyphs.more), Piece(f" {wall_day(run.started_at)}", Role.DIM)]


def _notes(view: RunListEntry, shown: RunView, now_us: int, columns: int) -> Line:
    """How late the run is, and why it makes no progress."""
    notes = [
        lateness(view.run, now_us),
        "paused" if shown.is_paused else "",
        shown.fact if shown.sign is Sign.CUT_OFF else "",
    ]
    gap = Piece("  " if columns >= _WORDS_FROM else "")
    return [piece for note in notes if note for piece in (gap, Piece(note, Role.WARNING))]


def _bar_cells(name_cells: int, room: int, columns: int) -> int:
    """Width of the bar; 0 if names need its room, because runs of one flow must stay distinguishable."""
    if columns >= _WIDEST:
        return _WIDE_BAR_CELLS
    return _BAR_CELLS if name_cells <= room else 0


def _narrow_row(view: RunListEntry, shown: RunView, progress: str, columns: int, glyphs: Glyphs) -> Line:
    """A row without bar, for narrow screens."""
    signs = states.counts_signs(_problems(view.counts), glyphs, 10)
    right: Line = [Piece(f" {progress} "), *signs]
    room = columns - _WORD_CELLS - 4 - width(right)
    name = pad(shorten_middle(run_name(view.run, glyphs), room, glyphs.more), room)
    return [*_lead(shown, glyphs), Piece(name), *right]


def _lead(view: RunView, glyphs: Glyphs) -> Line:
    """Sign and word of a run, as a column."""
    return [Piece(" "), sign_and_word(view, glyphs), Piece(" " * (_WORD_CELLS - len(view.word) + 1))]


def _counted(found: states.Counts, columns: int, glyphs: Glyphs, runner: RunnerStatus) -> Line:
    """Counts of states that are neither done nor pending; as signs where words have no room."""
    if columns >= _WORDS_FROM:
        return states.counts_line(found, glyphs, without=_UNREMARKABLE, runner=runner)
    noted = {state: count for state, count in found.items() if state not in _UNREMARKABLE}
    return states.counts_signs(noted, glyphs, _SIGNS_CELLS, runner)


def _problems(found: states.Counts) -> states.Counts:
    return {state: count for state, count in found.items() if state in PROBLEMS}


# --- The executor ----------------------------------------------------------------------------------------------------
#
# Whether an executor runs a run, in one sentence: empty if so, else since when not, and the command to resume.
#
# A run whose executor is dead is still in state RUNNING. So every list, and every JSON value about a run or one of its
# tasks, has this sentence beside the state (SPEC 4.9).


SILENT_SECONDS = 5.0  # without a heartbeat, due every second: the process is stopped or starved, or its disk hangs


def executor_advice(run: RunRow, status: SessionStatus, target: str, now_us: int) -> str:
    """Why an unfinished run makes no progress, and the command to resume it; empty if an executor runs it."""
    if run.ended_at is not None:
        return ""
    if status.has_executor_of(run):
        silent_seconds = status.executor.silent_seconds
        is_silent, lasts = silent_seconds >= SILENT_SECONDS, format_seconds(round(silent_seconds))
        return f"executor {status.executor.pid} silent for {lasts}: redrive doctor" if is_silent else ""
    if status.executor.original is not None:
        return one_line(f"{status.copy_sentence}: act there")
    if status.service_pid is not None and run.blocked_since is not None:
        return f"redrive serve (pid {status.service_pid}) resumes it after a decision"
    return f"{describe_executor_loss(run, status, now_us)}; {resume_command(run, status, target)}"


def describe_executor_loss(run: RunRow, status: SessionStatus, now_us: int) -> str:
    """Why no executor runs an unfinished run."""
    if status.executor.original is not None:
        return one_line(status.copy_sentence)
    if status.executor.alive:
        return f"no executor runs it: executor {status.executor.pid} runs {status.executor.run_id}"
    if status.executor.gone_at is None:
        return "no executor runs it"
    since = (wall if now_us - status.executor.gone_at < DAY else wall_day)(status.executor.gone_at)
    if status.executor.run_id not in (None, run.run_id):
        return f"no executor since {since}"
    pid = "its process" if status.executor.pid is None else f"pid {status.executor.pid}"
    if status.executor.elsewhere is not None:
        return f"no sign since {since} of its executor ({pid} on {one_line(status.executor.elsewhere)})"
    return (
        f"no executor since {since} ({pid} stopped)"
        if status.executor.stopped
        else f"executor dead since {since} ({pid} gone)"
    )


def resume_command(run: RunRow, status: SessionStatus, target: str) -> str:
    """The command that resumes a run, on the host of its state file."""
    host, path = "", target
    if target.startswith("ssh://"):
        authority, _, _ = target.removeprefix("ssh://").partition("/")
        host, path = f"on {authority}: ", parse(target).path  # over there it is a path, without %20
    wait = ["--wait"] if status.executor.alive else []
    return host + shell_command(["redrive", "resume", path, "--run", run.run_id, *wait])


def executor_json(run: RunRow, status: SessionStatus, target: str, now_us: int) -> dict[str, object]:
    """The same for JSON: ``alive`` is about this run; ``advice`` is None if there is nothing to do."""
    return {
        "alive": status.has_executor_of(run),
        "pid": status.executor.pid,
        "gone_at": status.executor.gone_at,
        "stopped": status.executor.stopped,
        "advice": executor_advice(run, status, target, now_us) or None,
    }


# --- Sentences about schedules in the list of runs: the next run, and runs that did not start in time ----------------


_STARTS_US = 5 * SECOND  # the time that a due run takes to start
_RECENT_US = DAY
_NAMED_MAX = 3


def describe_next_runs(rows: Sequence[ScheduleRow], now_us: int) -> list[str]:
    """One sentence per schedule: ``revenue: next 02:00 Asia/Kolkata, in 3 h 12 min``."""
    return [f"{one_line(row.dag_name)}: {_describe_next(row, now_us)}" for row in rows]


def describe_next_run(rows: Iterable[ScheduleRow], now_us: int, *, is_served: bool = True) -> str:
    """The next run of all schedules; empty if there is none. ``is_served``: a process will start it."""
    coming = [(row.next_at, place, row) for place, row in enumerate(rows) if row.next_at is not None]
    return _describe_next(min(coming)[2], now_us, is_served=is_served) if coming else ""


def _describe_next(row: ScheduleRow, now_us: int, *, is_served: bool = True) -> str:
    if row.next_at is None or not row.next_local:
        return "nothing comes any more"
    wall, left_us = datetime.fromisoformat(row.next_local), row.next_at - now_us
    if left_us < -_STARTS_US:
        return f"due {format_duration(-left_us)} ago and not started"
    today = datetime.fromtimestamp(now_us / SECOND, wall.tzinfo).date()
    day = "" if wall.date() - today <= timedelta(days=1) and left_us < DAY else f"{wall:%d %b} "
    left = f", in {format_duration(max(left_us, 0))}" if is_served else ""
    return f"next {day}{_clock(wall)} {one_line(row.timezone)}{left}"


def _clock(wall: datetime) -> str:
    return f"{wall:%H:%M:%S}" if wall.second else f"{wall:%H:%M}"


def describe_missed_starts(rows: Iterable[SlaRow], now_us: int) -> list[str]:
    """Runs of the last day that did not start in time, the latest first."""
    late = [row for row in rows if row.promise == "start" and now_us - row.promised_at < _RECENT_US]
    lines = [
        f"{one_line(row.dag_name)}: the run of {_local_time(row.logical_time)} did not start as promised"
        for row in late[:_NAMED_MAX]
    ]
    return lines if len(late) <= _NAMED_MAX else [*lines, f"and {len(late) - _NAMED_MAX} before it"]


def _local_time(at: int) -> str:
    return f"{datetime.fromtimestamp(at // SECOND).astimezone():%d %b %H:%M}"


def lateness(run: RunRow, now_us: int) -> str:
    """How late a run is, or that its deadline has ended it; empty if it is in time."""
    if run.deadline_at is None:
        return ""
    if run.deadline_passed_at is not None:
        return "at deadline"
    late_us = (run.ended_at if run.ended_at is not None else now_us) - run.deadline_at
    return f"late {format_duration(late_us)}" if late_us > 0 else ""


# --- The selected run ------------------------------------------------------------------------------------------------
#
# The selected run of the list in a few rows: its parameters, then its tasks, what needs a human first.


_NAME_CELLS_MAX = 48
_VALUE_CHARACTERS = 40
_ATTEMPTS_FROM = 64  # columns
#: Consequences and what has not begun: the other tasks say why.
_LEFT_OUT = frozenset([TaskState.UPSTREAM_FAILED, TaskState.PENDING, TaskState.SKIPPED])


def preview_lines(scene: Scene, columns: int, rows: int) -> list[Line]:
    """At most ``rows`` rows; of tasks in the same state the one with the longest latest attempt comes first."""
    tasks = [row for row in scene.board.projection.tasks.values() if row.state not in _LEFT_OUT]
    shown = heapq.nsmallest(rows - 1, tasks, key=lambda row: _rank(row, scene.now_us))
    name_cells = min(max((cells(one_line(row.name)) for row in shown), default=0), _NAME_CELLS_MAX, columns * 2 // 5)
    has_attempts = columns >= _ATTEMPTS_FROM
    task_lines = (_task_line(row, name_cells, scene, has_attempts=has_attempts) for row in shown)
    lines = [_heading(scene.board.projection.run, scene.glyphs), *task_lines]
    return [fit(line, columns, scene.glyphs.more) for line in lines]


def _rank(row: TaskRow, now_us: int) -> tuple[int, int, int]:
    attempt = attempt_of(row)
    ran_us = duration_of(attempt, now_us) if attempt is not None else 0
    return SEVERITY.index(counted_state(row)), -ran_us, row.position


def _heading(run: RunRow, glyphs: Glyphs) -> Line:
    return [Piece(" "), Piece(run_name(run, glyphs), Role.TITLE), Piece(f"  {describe_params(run)}", Role.DIM)]


def describe_params(run: RunRow) -> str:
    """The parameters of a run: ``day=2026-04-25  limit=100``."""
    try:
        values = json.loads(run.params)
    except ValueError:
        return ""
    named = values.items() if isinstance(values, dict) else ()
    known = [(name, value) for name, value in named if value != "" or name != LOGICAL_TIME]  # of an unscheduled run
    return "  ".join(f"{one_line(name)}={_value(value)}" for name, value in known)


def _value(value: object) -> str:
    text = one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}..."


def _task_line(row: TaskRow, name_cells: int, scene: Scene, *, has_attempts: bool) -> Line:
    sign = row_sign(row, scene.glyphs, scene.runner)
    tried = f"{attempts_text(row):<5}  " if has_attempts else ""
    return [Piece("   "), sign, Piece(f" {pad(one_line(row.name), name_cells)}  {tried}"), *state_facts(row, scene)]


# --- A run as a few lines of Markdown, for an incident channel or the next shift -------------------------------------


_CAUSES_MAX = 10
_NAMES_MAX = 5


def incident_summary(board: Board, address: str, now_us: int, runner: RunnerStatus = ALIVE) -> str:
    """State, counts, and each cause that needs a decision, with its tasks."""
    run = board.projection.run
    view, counts = run_view(run, runner, now_us, board.counts), states.counts_text(board.counts, runner)
    name = f"**{one_line(run.dag_name)}** `{_code(run.run_id)}`"
    lines = [
        f"{name} on `{_code(address)}`: {describe_run(view)}{deadline_note(run)}",
        f"{board.finished} of {board.total} done ({counts}), as of {wall(now_us)}",
    ]
    inbox = Inbox(board)
    causes = inbox.causes()
    for cause in causes[:_CAUSES_MAX]:
        names = first_names(cause.tasks, _NAMES_MAX, lambda name: f"`{_code(name)}`")
        mark = f"; fingerprint `{_code(cause.fingerprint)}`" if has_fingerprint(cause, board.projection.tasks) else ""
        lines.append(
            f"- {cause.count} x `{_code(cause.title)}`: {names}; holds {counted(cause.held, 'task')},"
            f" for {format_duration(now_us - cause.oldest)}{mark}"
        )
    if len(causes) > _CAUSES_MAX:
        lines.append(f"- {len(causes) - _CAUSES_MAX} more causes")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Make a text safe between backticks."""
    return one_line(text).replace("`", "'")


# --- State files of a fleet ------------------------------------------------------------------------------------------
#
# One state file of a fleet in one row: what needs a human, its flow, how its latest run stands, its executor, how its
# last days ended, and its next start.


FLEET_COLUMNS = ("NEEDS", "FLOW", "STATE", "DONE", "SINCE", "EXECUTOR", "NIGHTS", "NEXT", "RUN", "FILE")

_COUNT_CELLS, _STATE_CELLS, _DONE_CELLS, _SINCE_CELLS, _EXECUTOR_CELLS, _NIGHTS_CELLS = 6, 11, 9, 5, 12, 14
_FLEET_NAME_CELLS = (12, 32)
_FLEET_CELLS = _COUNT_CELLS + _STATE_CELLS + _DONE_CELLS + _SINCE_CELLS + _EXECUTOR_CELLS + _NIGHTS_CELLS + 8
_NEXT_FROM, _NEXT_CELLS = 96, 18  # columns
_FLEET_WIDE, _FILE_CELLS = 150, 32
_WITHOUT_EXECUTOR, _NOT_SERVED, _CANNOT_START = "no executor", "not served", "cannot start"


def executor_text(entry: FleetEntry) -> str:
    """Whether a process runs the file, or starts its runs."""
    if entry.executor.alive:
        return "alive"
    if any(facts.failed_since is not None for facts in entry.offer.supervised):
        return _CANNOT_START
    if entry.offer.service_pid is not None:
        return "served"
    if any(row.next_at is not None for row in entry.offer.schedules):
        return _NOT_SERVED
    return _WITHOUT_EXECUTOR if any(run.ended_at is None for run in entry.offer.runs) else ""


def fleet_cells(entry: FleetEntry, now_us: int, glyphs: Glyphs) -> Sequence[str | Piece]:
    """The columns of FLEET_COLUMNS for a table of text."""
    run, offer = entry.run, entry.offer
    known = (_state_piece(run, entry), _done_text(entry), age(_since_us(run, now_us))) if run else ("", "", "")
    coming = _next_text(entry, now_us)
    nights = plain(_night_signs(entry, glyphs))
    place = (run.run_id if run else "", offer.problem or offer.path)
    needs = Piece(_needs_text(entry), Role.HUMAN if entry.attention_count else Role.DIM)
    return (needs, entry.flow or "", *known, executor_text(entry), nights, coming, *place)


def _next_text(entry: FleetEntry, now_us: int) -> str:
    """The next start; that none comes while the schedules are paused, and no countdown to what nobody will start."""
    if entry.is_paused:
        return "paused"
    return describe_next_run(entry.coming, now_us, is_served=entry.offer.service_pid is not None)


def _state_piece(run: RunRow, entry: FleetEntry) -> Piece:
    return Piece(_state(entry), run_style(run, entry.runner, entry.counts).role)


def _done_text(entry: FleetEntry) -> str:
    return f"{number(entry.offer.finished)}/{number(entry.offer.tasks)}"


def _since_us(run: RunRow, now_us: int) -> int:
    """For how long a run has been in its state."""
    began = next((at for at in (run.ended_at, run.blocked_since, run.paused_since) if at is not None), run.started_at)
    return max(now_us - began, 0)


def _night_signs(entry: FleetEntry, glyphs: Glyphs) -> Line:
    """A sign for each of the last days with runs; that of an unfinished day is the one of the latest run."""
    running = RUN_STYLES[RunState.RUNNING]
    latest = running if entry.run is None else run_style(entry.run, entry.runner, entry.counts)
    styles = [RUN_STYLES[RunState(state)] for state in entry.offer.nights]
    shown = [latest if style is running else style for style in styles]
    return [Piece(glyphs.of(style.sign), Role(style.role)) for style in shown]


def _needs_text(entry: FleetEntry) -> str:
    """What waits for a human; in brackets what is only listed until somebody has acknowledged it."""
    notices = f"({number(entry.notice_count)})" if entry.notice_count else ""
    return f"{number(entry.attention_count) if entry.attention_count else ''}{notices}"


def fleet_value(entry: FleetEntry) -> Mapping[str, object]:
    """One state file in JSON values; instants in microseconds UTC."""
    offer, executor = entry.offer, entry.executor
    return {
        "state_file": offer.path,
        "flow": entry.flow,
        "run_id": offer.run_id,
        "state": _state(entry) or None,
        "started_at": offer.started_at or None,
        "ended_at": offer.ended_at,
        "needs_human": entry.attention_count,
        "notices": entry.notice_count,
        "waiting_runs": [*dict.fromkeys(need.run_id for need in entry.needs if need.run_id and not need.is_notice)],
        "executor_alive": executor.alive,
        "executor_pid": executor.pid if executor.alive else None,
        "service_pid": offer.service_pid,
        "next_at": entry.next_at,
        "tasks": offer.tasks,
        "finished": offer.finished,
        "nights": list(offer.nights),
        "problem": offer.problem,
    }


def _state(entry: FleetEntry) -> str:
    run = entry.run
    if run is None:
        return ""
    return run_code(run, entry.runner, entry.counts)


def fleet_heading(
    entries: Sequence[FleetEntry], place: str, problem: str, order: FleetOrder, glyphs: Glyphs
) -> tuple[Line, Line]:
    """Left and right side of the line above the list. ``problem``: why the list is not that of now."""
    waiting = sum(entry.attention_count for entry in entries)  # the number of the inbox and of the metric
    left = [Piece(" "), Piece(counted(len(entries), "state file"), Role.STRONG)]
    left += [Piece(f" on {one_line(place)}")]
    if waiting:
        left += [Piece(f" {glyphs.dot} ", Role.DIM), Piece(f"{counted(waiting, 'thing')} {_need(waiting)} a human")]
    if problem:
        return left, [Piece(f"{one_line(problem)} ", Role.WARNING)]
    return left, order_line(order, glyphs)


def fleet_titles(columns: int, longest_name: int = 0) -> Line:
    """The titles above the rows of a fleet."""
    parts = [("NEEDS", _COUNT_CELLS), ("FLOW", _flow_cells(columns, longest_name)), ("STATE", _STATE_CELLS)]
    parts += [(f"{'DONE':>{_DONE_CELLS}}", _DONE_CELLS), (f"{'SINCE':>{_SINCE_CELLS}}", _SINCE_CELLS)]
    parts += [("EXECUTOR", _EXECUTOR_CELLS), ("LAST 14 NIGHTS", _NIGHTS_CELLS)]
    titles = [pad(title, cells) for title, cells in parts]
    last = " NEXT" if columns >= _NEXT_FROM else ""
    return [Piece(f" {' '.join(titles)}{last}", Role.DIM)]


def fleet_row(
    entry: FleetEntry,
    now_us: int,
    columns: int,
    glyphs: Glyphs,
    longest_name: int = 0,
) -> Line:
    """What needs a human, the flow, how its latest run stands, its executor, its last days and its next start.

    Where there is room, the name of the file. ``longest_name``: of all flows, in cells.
    """
    count, offer = entry.attention_count, entry.offer
    needs = f"{glyphs.dead if count else ' '}{_needs_text(entry)}" if entry.needs else ""
    line: Line = [Piece(" "), *_padded(Piece(needs, Role.HUMAN if count else Role.DIM), _COUNT_CELLS), Piece(" ")]
    if offer.problem is not None:
        name = file_name(entry) if offer.has_file else _flow_name(entry)
        return fit([*line, Piece(f"{name}  "), Piece(one_line(offer.problem), Role.WARNING)], columns)
    cells = _flow_cells(columns, longest_name)
    line += [
        Piece(f"{pad(shorten_middle(_flow_name(entry), cells, glyphs.more), cells)} "),
        *_latest_run_pieces(entry, now_us, glyphs),
        _executor_piece(entry),
        *_nights_pieces(entry, glyphs),
    ]
    if columns >= _NEXT_FROM:
        line.append(Piece(_next_text(entry, now_us)))
    if columns < _FLEET_WIDE:
        return fit(line, columns, glyphs.more)
    file = pad(shorten_middle(file_name(entry), _FILE_CELLS, glyphs.more), _FILE_CELLS)
    return [*fit(line, columns - _FILE_CELLS - 1, glyphs.more), Piece(f" {file}", Role.DIM)]


def _padded(piece: Piece, cells: int) -> Line:
    """A piece with blanks behind it that have no colour."""
    return [piece, Piece(" " * max(cells - width([piece]), 0))]


def _flow_cells(columns: int, longest_name: int) -> int:
    low, high = _FLEET_NAME_CELLS
    room = columns - _FLEET_CELLS - (_NEXT_CELLS if columns >= _NEXT_FROM else 0)
    return max(min(longest_name, high, room), low)


def _flow_name(entry: FleetEntry) -> str:
    name = entry.flow or file_name(entry)
    return one_line(f"{entry.host} {name}" if entry.host else name)


def _latest_run_pieces(entry: FleetEntry, now_us: int, glyphs: Glyphs) -> Line:
    run = entry.run
    if run is None:
        state, done, since = Piece("no run", Role.DIM), "", ""
    else:
        state = sign_and_word(run_style(run, entry.runner, entry.counts), glyphs)
        done, since = _done_text(entry), age(_since_us(run, now_us))
    facts = f"{done:>{_DONE_CELLS}} {since:>{_SINCE_CELLS}} "
    return [*_padded(state, _STATE_CELLS), Piece(" "), Piece(facts, Role.DIM)]


def _executor_piece(entry: FleetEntry) -> Piece:
    word = executor_text(entry)
    is_missing = word in (_WITHOUT_EXECUTOR, _NOT_SERVED, _CANNOT_START)
    return Piece(f"{word:{_EXECUTOR_CELLS}} ", Role.WARNING if is_missing else Role.DIM)


def _nights_pieces(entry: FleetEntry, glyphs: Glyphs) -> Line:
    signs = _night_signs(entry, glyphs)
    return [*signs, Piece(" " * (_NIGHTS_CELLS - width(signs) + 1))]


def file_name(entry: FleetEntry) -> str:
    """The last part of the path."""
    return one_line(entry.offer.path.rpartition("/")[2])


def name_cells(entries: Sequence[FleetEntry]) -> int:
    """The cells of the longest name of a flow."""
    return max((cells(_flow_name(entry)) for entry in entries), default=0)
