"""Runs in one row each, with their executor; and a run in a few lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import msgspec

from ...engine.core.deadline import passed_reason
from ...engine.core.spec import LOGICAL_TIME
from ...engine.core.views import (
    HALTED,
    Counts,
    OperatorPrompt,
    RunView,
    counted_states,
    describe_run,
    run_code,
    run_style,
    run_view,
)
from ...engine.core.waiting import ALIVE, RunnerStatus, pause_author
from ...engine.domain.rows import RunRow, RunSummary
from ...engine.domain.states import FINISHED, TaskState
from ...engine.domain.text import counted, first_names, format_duration
from ...engine.statefile.durations import quantile
from ...engine.statefile.lists import NeedKind
from ...engine.statefile.needs import Need
from ..model.board import Board
from ..model.inbox import Inbox, has_fingerprint
from ..model.runs import Pace, WaitingRun, durations_beside, is_comparable, pace_of, run_cell
from ..text.columns import FILL, Column, Columns, Width, field, measured, with_fields
from ..text.figures import clock, column, need_human, number, times_text, wall, wall_day
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, join
from ..text.text import one_line
from . import states
from .states import RowContext, order_line, sign_and_word

_NAMED_RUNS_MAX = 2


def deadline_note(run: RunRow) -> str:
    """The words after the state of a run that the deadline has ended; empty for another run."""
    passed = passed_reason(run)
    return "" if passed is None else f" ({passed})"


def place_line(run: RunRow | None, address: str) -> str:
    """Flow, run and state file: the first line of every listing and answer; without a run, the state file."""
    if run is None:
        return one_line(address)
    return one_line(f"{run.dag_name} {run.run_id} in {address}")


def waiting_sentence(waiting: Sequence[WaitingRun]) -> str:
    """The other runs of the file that need a human, in a few words; notices if none does."""
    alarms = [one for one in waiting if not one.is_notice]
    shown = alarms or waiting
    named = first_names(shown, _NAMED_RUNS_MAX, waiting_text)
    need = need_human(len(shown)) if alarms else _not_acknowledged(len(shown))
    return f"{counted(len(shown), 'other run')} {need}: {named}"


def _not_acknowledged(count: int) -> str:
    return f"{'is' if count == 1 else 'are'} not acknowledged"


def waiting_text(waiting_run: WaitingRun) -> str:
    """A run and why it needs a human: ``night-1 (BLOCKED, 2 dead letters)``."""
    run, need = waiting_run.run, waiting_run.need
    whys = ["BLOCKED" if run.blocked_since is not None else "late" if need.kind is NeedKind.LATE else ""]
    whys += [str(run.state)] if run.ended_at is not None and need.kind is not NeedKind.LATE else []
    whys.append(_text_of(_need_counts(waiting_run)))
    whys += [f"{counted(need.later_successes, 'later run')} succeeded"] if need.later_successes else []
    return f"{one_line(run.run_id)} ({', '.join(filter(None, whys))})"


#: What the tasks of a run need, and the run itself beside what its state says: one of it, several.
_NEED_WORDS: Mapping[NeedKind, tuple[str, str]] = {
    NeedKind.DEAD_LETTERS: ("dead letter", "dead letters"),
    NeedKind.APPROVAL: ("approval", "approvals"),
    NeedKind.FAILED_TASKS: ("failed", "failed"),
}
_Counted = tuple[str, str]  # a number, empty for what is not counted, and what it counts


def _need_counts(waiting_run: WaitingRun) -> list[_Counted]:
    kinds = dict.fromkeys(need.kind for need in (waiting_run.need, *waiting_run.others))
    counts = [(waiting_run.count_of(kind), _NEED_WORDS[kind]) for kind in kinds if kind in _NEED_WORDS]
    found = [(number(count), words[count != 1]) for count, words in counts]
    return [*found, ("", "no executor")] if NeedKind.LOST in kinds else found


def _text_of(counts: Sequence[_Counted]) -> str:
    return ", ".join(f"{count} {words}".strip() for count, words in counts)


def needing_sentence(waiting: Sequence[WaitingRun]) -> str:
    """The number of runs of a file that need a human, and of those that ended badly before others succeeded; empty if
    there are none."""
    notices = sum(one.is_notice for one in waiting)
    count = len(waiting) - notices
    parts = [f"{counted(count, 'run')} {need_human(count)}"] if count else []
    parts += [f"{counted(notices, 'run')} {_not_acknowledged(notices)}"] if notices else []
    return ", ".join(parts)


def heading_line(
    shown: int, known: int, waiting: int, filter_text: str, sort: str, glyphs: Glyphs, more: Sequence[Line] = ()
) -> tuple[Line, Line]:
    """Left and right side of the line above the list.

    ``waiting``: number of runs that need a human; ``more``: of the grid, and of the next scheduled run.
    """
    dot = f" {glyphs.dot} "
    left = [Piece(" "), Piece(counted(known, "run"), Role.STRONG)]
    if filter_text:
        left += [Piece(dot, Role.DIM), Piece(f"/{one_line(filter_text)}: {number(shown)}", Role.MATCH)]
    left += states.waiting_pieces(waiting, glyphs)
    return join([left, *more], dot), order_line(sort, glyphs)


# --- A run in one row: the columns of the screen, of the shell and of JSON -------------------------------------------


class ListedRun(msgspec.Struct, frozen=True):
    """A run, who runs it, and what it needs.

    ``durations``: of the successes of its flow, ascending; ``executor``: as of ``executor_json``.
    """

    summary: RunSummary
    runner: RunnerStatus = ALIVE
    durations: Sequence[int] = ()
    waiting: WaitingRun | None = None
    executor: Mapping[str, object] = {}

    @property
    def run(self) -> RunRow:
        return self.summary.run

    @property
    def counts(self) -> Counts:
        """Its tasks by state, without those that wait for an approval as READY ones."""
        return counted_states(self.summary.counts, self.summary.asked)

    def view(self, now_us: int) -> RunView:
        """The view of the run at ``now_us``."""
        return run_view(self.run, self.runner, now_us, self.counts)

    def pace(self, now_us: int) -> Pace | None:
        """The duration so far beside the other runs of the flow; a run that goes on is not quick."""
        view = self.view(now_us)
        if not is_comparable(self.run, view.is_moving):
            return None
        pace = pace_of(view.clock, self._others)
        return pace._replace(is_quick=False) if pace is not None and view.is_moving else pace

    def usual_sentence(self, now_us: int) -> str:
        """The duration beside the other runs of the flow; empty if there are none."""
        pace = self.pace(now_us)
        if pace is None:
            return ""
        usual, runs = format_duration(quantile(self._others, 0.5)), counted(len(self._others), "other run")
        return f"{times_text(pace.times)} times the usual {usual} ({runs})"

    @property
    def _others(self) -> Sequence[int]:
        return durations_beside(run_cell(self.run), self.durations)


def _state_code(row: ListedRun, place: RowContext) -> str:
    return run_code(row.run, row.runner, row.counts)


def _state(row: ListedRun, place: RowContext) -> Piece:
    return Piece(_state_code(row, place), Role(run_style(row.run, row.runner, row.counts).role))


def _done(row: ListedRun, place: RowContext) -> str:
    total = sum(row.counts.values())
    return f"{number(sum(row.counts.get(state, 0) for state in FINISHED))}/{number(total)}"


def _took(row: ListedRun, place: RowContext) -> str:
    view = row.view(place.now_us)
    return clock(view.clock) if view.is_moving else column(view.clock)


def _beside_usual(row: ListedRun, place: RowContext) -> Piece:
    """The duration as a multiple of the usual one; a sign and a colour mark one far above or below it."""
    pace, glyphs = row.pace(place.now_us), place.glyphs
    if pace is None:
        return Piece("")
    sign = f"{glyphs.up} " if pace.is_slow else f"{glyphs.down} " if pace.is_quick else ""
    return Piece(f"{sign}{times_text(pace.times)}{glyphs.times}", Role.WARNING if sign else Role.DIM)


def _needs(row: ListedRun, place: RowContext) -> Line:
    """The duty of a human, the lateness of the run and why it makes no progress, then what its tasks do."""
    waiting, shown = row.waiting, row.view(place.now_us)
    parts: list[Line] = []
    is_held = row.run.paused_since is not None and row.run.ended_at is None
    paused = "paused " * (shown.is_paused or waiting is not None) + one_line(pause_author(row.run)) if is_held else ""
    notes = [note for note in (lateness(row.run, place.now_us), paused) if note]
    if waiting is not None:
        counts = _need_counts(waiting)
        if not counts and row.run.ended_at is not None:
            counts = _end_counts(waiting.need)
        elif not counts:
            counts, notes = [("", note) for note in notes[:1]], notes[1:]
        parts.append([Piece(_text_of(counts), Role.DIM)] if waiting.is_notice else _alarm(counts, place.glyphs))
    notes += [shown.fact] if shown.style in HALTED and waiting is None else []
    parts += [[Piece(note, Role.WARNING)] for note in notes]
    known = (TaskState.FAILED, TaskState.UPSTREAM_FAILED) if waiting is not None else ()
    parts.append(states.counts_line(row.counts, place.glyphs, (*_UNREMARKABLE, *known), row.runner))
    return join([part for part in parts if part])


def _end_counts(need: Need) -> list[_Counted]:
    """The need of an ended run: somebody who has seen how it ended."""
    failed = [(number(need.counted), "failed")] if need.kind is NeedKind.FAILED else []
    return [*failed, ("", "not acknowledged")]


def _alarm(counts: Sequence[_Counted], glyphs: Glyphs) -> Line:
    count = counts[0][0] if counts else ""
    rest = _text_of([("", counts[0][1]), *counts[1:]]) if counts else ""
    return [Piece(f"{glyphs.dead}{count}", Role.HUMAN), Piece(f" {rest}")]


_UNREMARKABLE = (TaskState.SUCCESS, TaskState.PENDING, TaskState.DEAD_LETTER, OperatorPrompt.APPROVAL)


def _sign_and_word(row: ListedRun, place: RowContext) -> Piece:
    return sign_and_word(row.view(place.now_us).style, place.glyphs)


def _params(row: ListedRun, place: RowContext) -> Piece:
    return Piece(describe_params(row.run))  # a text would lose the second blank between two parameters


_STARTED = Width(14, rank=6, gap=2, is_spare=True)
_RUN_FIELDS: Columns[ListedRun, RowContext] = (
    Column("run_id", "RUN", lambda row, place: row.run.run_id, None, Width(10, 40, is_name=True)),
    Column("dag_name", "FLOW", lambda row, place: row.run.dag_name, None, Width(8, 24, rank=3, is_name=True)),
    Column("state", "STATE", _state_code, _state, Width(11), _sign_and_word),
    Column("done", "DONE", None, _done, Width(7, 11, rank=4, is_right=True)),
    Column("took", "TOOK", None, _took, Width(5, rank=1, is_right=True)),
    Column("usual", "USUAL", None, _beside_usual, Width(6, 8, rank=2, is_right=True)),
    Column("needs", "NEEDS", None, _needs, Width(16, 48, gap=2)),
    Column("params", "PARAMS", lambda row, place: row.run.params, _params, Width(12, FILL, rank=5, gap=2)),
    Column("started", "STARTED", None, lambda row, place: wall_day(row.run.started_at), _STARTED),
    Column("counts", value=lambda row, place: row.summary.counts),
    Column("dead_letters", value=lambda row, place: row.summary.dead_letters),
    field("executor"),
)
RUN_COLUMNS = with_fields(_RUN_FIELDS, RunRow._fields, lambda row: row.run)


def run_columns(rows: Sequence[ListedRun], place: RowContext) -> Columns[ListedRun, RowContext]:
    """The columns that these rows need, as wide as they need them."""
    has_params = any(describe_params(row.run) for row in rows)
    return measured([one for one in without_flow(rows) if has_params or one.name != "params"], rows, place)


def without_flow(rows: Sequence[ListedRun]) -> Columns[ListedRun, RowContext]:
    """The columns for a reader: where all runs are of one flow, none repeats it."""
    is_alike = len({row.run.dag_name for row in rows}) < 2
    return [one for one in RUN_COLUMNS if not (is_alike and one.name == "dag_name")]


def lateness(run: RunRow, now_us: int) -> str:
    """The lateness of a run, or that its deadline has ended it; empty if it is in time."""
    if run.deadline_at is None:
        return ""
    if run.deadline_passed_at is not None:
        return "at deadline"
    late_us = (run.ended_at if run.ended_at is not None else now_us) - run.deadline_at
    return f"late {format_duration(late_us)}" if late_us > 0 else ""


# --- The parameters of a run -----------------------------------------------------------------------------------------


_VALUE_CHARACTERS = 40


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
