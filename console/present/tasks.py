"""One task in one row: attempts, word, and the most important fact about its state.

Untrusted text (names, errors) passes ``one_line`` first. Clocks keep their width, so that each second changes only
digits.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from ...engine.core import outcome, views
from ...engine.core.explain import error_name
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.core.waiting import ALIVE, RunnerStatus, WaitReason, needs_human
from ...engine.domain.elements import GONE, VANISHED
from ...engine.domain.liveness import TaskUsage
from ...engine.domain.states import MOVING, RAN, SkipCause, TaskState
from ...engine.domain.text import counted, format_bytes, format_duration
from ..model.board import Board
from ..model.inbox import failures_of
from ..model.log import printable_parts
from ..model.overdue import is_overdue, stalled_for_us
from ..model.runs import Pace
from ..text.columns import FILL, Width, row_line
from ..text.figures import SECOND, clock, column, countdown, wall
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, join, width
from ..text.text import added_message, cells, common_start, cut, one_line, shared_prefix, shorten_middle
from .states import DONE, RowContext, pace_piece, pace_role, row_sign, sign_of

# --- The names of a run's tasks in little room: without the prefix that all share, and no two of them alike ----------


_LOST_MAX = 6  # cells that a name loses at its end, if it begins as no other and ends without a number


class TaskNames:
    """Names of one run, or titles of its groups. ``prefix``: what all names begin with, and what rows leave out."""

    def __init__(self, names: Iterable[str] = (), prefix: str | None = None) -> None:
        self._lines = {name: one_line(name) for name in names}
        self.prefix = shared_prefix(list(self._lines.values())) if prefix is None else prefix
        self.longest = max((cells(line) for line in self._lines.values()), default=0) - cells(self.prefix)
        self._short: dict[tuple[int, str], dict[str, str]] = {}  # by cells and sign: the names that are shortened

    def short(self, name: str, size: int, more: str) -> str:
        """At most ``size`` cells of a name without the prefix, unlike those of every other name."""
        line = self._lines.get(name)
        if line is None:
            return shorten_middle(one_line(name), size, more)
        if (size, more) not in self._short:
            self._short[size, more] = self._shorten_all(size, more)
        return self._short[size, more].get(name) or line[len(self.prefix) :]

    def _shorten_all(self, size: int, more: str) -> dict[str, str]:
        rests = {name: line[len(self.prefix) :] for name, line in self._lines.items()}
        rests = {name: rest for name, rest in rests.items() if cells(rest) > size}
        starts = {name: cut(rest, 0, max(size - cells(more), 0)).rstrip() + more for name, rest in rests.items()}
        counts = Counter(starts.values())
        alike: defaultdict[str, list[str]] = defaultdict(list)
        for name, rest in rests.items():
            is_clear = counts[starts[name]] == 1 and cells(rest) - size <= _LOST_MAX and not rest[-1].isdigit()
            alike[starts[name] if is_clear else shorten_middle(rest, size, more)].append(name)
        found: dict[str, str] = {}
        for text, names in alike.items():
            texts = [text] if len(names) == 1 else _disambiguate([rests[name] for name in names], size, more)
            found.update(zip(names, texts, strict=True))
        if len(set(found.values())) < len(found):  # names that differ elsewhere are shortened to the same part
            names = [name for names in alike.values() if len(names) > 1 for name in names]
            found.update(zip(names, _numbered([rests[name] for name in names], size, more), strict=True))
        return found


def _disambiguate(lines: Sequence[str], size: int, more: str) -> list[str]:
    """Shorten lines that would read alike: to the part where they differ, or else with a number."""
    start = len(common_start(lines))
    room = size - 2 * cells(more)
    texts = [more + cut(line[start:], 0, room).rstrip() + more for line in lines]
    if room > 0 and len(set(texts)) == len(texts):
        return texts
    return _numbered(lines, size, more)


def _numbered(lines: Sequence[str], size: int, more: str) -> list[str]:
    """Shorten lines and end each with a number of its own."""
    width = len(str(len(lines)))
    return [
        cut(shorten_middle(line, max(size - width - 1, 1), more), 0, max(size - width - 1, 0)).rstrip() + f"#{place}"
        for place, line in enumerate(lines, 1)
    ]


# --- Rows of tasks ---------------------------------------------------------------------------------------------------


WORD_CELLS = 8
_BARS_FROM = 47  # cells for facts: narrower rows leave out bars
_NOT_READY = "deferred"  # outcome
_BAR_CELLS = 6


class RunContext(msgspec.Struct):
    """The context of a task's drawing. ``has_durations``: in the labels of a wide timeline."""

    board: Board
    now_us: int
    glyphs: Glyphs
    runner: RunnerStatus = ALIVE
    names: TaskNames = msgspec.field(default_factory=TaskNames)
    titles: TaskNames = msgspec.field(default_factory=TaskNames)  # of groups
    columns: int = 80  # of the terminal, for what is drawn over the screen
    has_durations: bool = True

    @property
    def row_context(self) -> RowContext:
        """The context of a row of a list."""
        return RowContext(self.now_us, self.glyphs)

    def since(self, at: int) -> str:
        """The time since ``at``, as text."""
        return self.row_context.since(at)

    def view(self, name: str) -> views.TaskView:
        """The view of a task at this instant."""
        return self.board.view(name, self.now_us, self.runner)

    def runner_among(self, members: Sequence[int]) -> RunnerStatus:
        """The runner of a group's tasks, by their numbers."""
        if not self.runner.unsaved:
            return self.runner
        names = set(self.board.dag.names_of(members))
        ends = {name: at for name, at in self.runner.unsaved.items() if name in names}
        return msgspec.structs.replace(self.runner, unsaved=ends)

    def attempt(self, attempt: AttemptRow) -> views.AttemptView:
        """The view of an attempt at this instant."""
        rows = map(self.board.row, self.runner.unsaved if attempt.ended_at is None else ())
        row = next((one for one in rows if one.latest is attempt), None)
        return views.attempt_view(attempt, self.now_us, self.runner, row)


def section(heading: str, note: str = "") -> Iterator[Line]:
    """An empty line, and a heading with a note beside it."""
    yield []
    yield [Piece(f" {heading} ", Role.STRONG), *([Piece(f" {note}", Role.DIM)] if note else ())]


def waited_text(attempt: AttemptRow) -> str:
    """The delay after an attempt, of its ceiling, and by how much the deadline shortened it; empty without one."""
    if attempt.delay_us is None:
        return ""
    ceiling = f" of up to {format_duration(attempt.ceiling_us)}" if attempt.ceiling_us else ""
    before = attempt.shortened_us
    shortened = "" if before is None else f", shortened from {format_duration(before)} for the deadline"
    return f"{format_duration(attempt.delay_us)}{ceiling}{shortened}"


def latest_first(row: TaskRow) -> list[tuple[AttemptRow, int]]:
    """The attempts in the order of every list of them; only what runs from left to right has the first one first.

    Of checks of a sensor in a row that found nothing only the latest is there, with the number of the others.
    """
    found: list[tuple[AttemptRow, int]] = []
    for number in sorted(row.attempts, reverse=True):
        attempt = row.attempts[number]
        if attempt.outcome == _NOT_READY and found and found[-1][0].outcome == _NOT_READY:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((attempt, 0))
    return found


def describe_checks_before(count: int) -> str:
    """The checks that ``latest_first`` leaves out, as the end of a sentence; empty if there are none."""
    return f", as in {counted(count, 'check')} before" if count else ""


def named_task(name: str, context: RunContext) -> Line:
    """A task in a list of tasks: the sign of its state, its name, the word of its state."""
    style = views.row_style(context.board.row(name), context.runner)
    shown = one_line(name).removeprefix(context.names.prefix)
    return [Piece("   "), sign_of(style, context.glyphs), Piece(f" {shown}"), Piece(f"  {style.word}", Role.DIM)]


def named_tasks(heading: str, note: str, names: Sequence[str], most: int, context: RunContext) -> Iterator[Line]:
    """A section of tasks in lines, ``most`` of them; nothing without one."""
    if names:
        yield from section(heading, note)
        yield from (named_task(name, context) for name in names[:most])
        if len(names) > most:
            yield [Piece(f"   {context.glyphs.more} {len(names) - most:,} more", Role.DIM)]


def attempts_text(row: TaskRow) -> str:
    """``2/5``: counted attempts of this generation, of the allowed number; empty before the first."""
    has_skipped_itself = row.state is TaskState.SKIPPED and row.skip_cause == SkipCause.CONDITION
    if row.attempt == 0 or (row.state is TaskState.SKIPPED and not has_skipped_itself):
        return ""
    started = row.failures + (row.state in RAN or has_skipped_itself)
    return f"{max(started, 1)}/{row.max_attempts}"


def stale_text(row: TaskRow) -> str:
    """Why a result may be old; empty unless a task above ran again."""
    item = None if row.spec is None else row.spec.item
    why = VANISHED if item is not None and item.index == GONE else "a parent ran again"
    return f"stale: {row.notice or why}" if row.stale else ""


def attempt_label(row: TaskRow) -> str:
    """``2/5``; after a requeue also the number of the attempt in all generations: ``1/1, attempt 3``."""
    tried = attempts_text(row) if row.attempt else f"0/{row.max_attempts}"
    number = f"attempt {row.attempt}" if row.attempt and row.generation else ""
    return ", ".join(filter(None, (tried, number)))  # a skipped task has tried nothing in its generation


def state_facts(row: TaskRow, context: RunContext, room: int = 999) -> Line:
    """Word and fact. ``room``: the cells that they have; bars, and what a running task uses, need many."""
    view, has_room = context.view(row.name), room >= _BARS_FROM
    if view.instant is not None and row.state is TaskState.RETRYING:
        head: Line = [Piece(f"{view.style.word} {countdown(view.instant, context.now_us)}", Role(view.style.role))]
        has_bar = has_room and view.reason is WaitReason.RETRY
        return [*head, *_retrying(row, view, context, has_bar)]
    head = [Piece(view.style.word, Role(view.style.role)), Piece(" " * (WORD_CELLS + 1 - len(view.style.word)))]
    if row.state in MOVING:
        is_running = view.clock is not None and view.is_moving
        return [*head, *(_running(row, view, context, room) if is_running else _waiting(row, view, context))]
    describe = _FACTS.get(row.state)
    return [*head, *describe(row, view, context)] if describe is not None else head


def task_line(row: TaskRow, context: RunContext, columns: int, longest_name: int) -> Line:
    """A task below the line that it belongs to: sign, name, attempts and facts. ``longest_name``: in cells."""
    return row_line(
        columns,
        (Width(1, gap=3), row_sign(row, context.glyphs, context.runner)),
        (Width(min(longest_name, 48, columns * 2 // 5), is_name=True), row.name),
        (Width(5, rank=1, gap=2), attempts_text(row)),
        (Width(26, FILL, gap=2), state_facts(row, context)),
        more=context.glyphs.more,
    )


def part_over(name: str, context: RunContext) -> float | None:
    """The share of the attempt under way that is over, from 0 to 1; None if unknown."""
    usual = context.board.duration_stats.get(name)
    return views.part_done(context.board.row(name), context.view(name), usual.p50_us if usual is not None else None)


_NODE_BAR_CELLS = 8


def node_facts(name: str, context: RunContext) -> tuple[Line, Line]:
    """The facts below a name in the drawing, short and whole: progress, duration, place of the failure, wait.

    The message of the exception stands in the row, in the details and in the traceback.
    """
    row, view = context.board.row(name), context.view(name)
    tried = [Piece(attempts_text(row), Role.DIM)] if row.failures or row.generation else []
    error = [Piece(one_line(row.error or ""), Role.DIM)]
    if row.state is TaskState.RUNNING and view.is_moving:
        return _running_facts(row, context), join([tried, _usage(context.board.usage.get(name))[-1:]])
    if row.state is TaskState.RETRYING and not view.fact:
        return join([tried, [Piece(one_line(error_name(row)))]], " "), error
    if row.state in MOVING:
        return _waiting(row, view, context), tried
    if row.state is TaskState.SUCCESS:
        ended = wall(row.ended_at) if row.ended_at is not None else ""
        took = [Piece(took_text(name, context), Role.DIM)]
        return join([took, _beside_usual(row, context), tried], " "), [Piece(ended, Role.DIM)]
    describe = _FACTS.get(row.state)
    facts = describe(row, view, context) if describe is not None else []
    return (facts[:1], tried) if describe is _failure else (facts, error)


def _running_facts(row: TaskRow, context: RunContext) -> Line:
    attempt, part = row.latest, part_over(row.name, context)
    if attempt is not None and (kill_step := _kill_step(attempt, context)):
        return kill_step
    bars = progress_bar(part, context.glyphs, Role.RUNNING, _NODE_BAR_CELLS) if part is not None else []
    if row.progress_total and part is not None:
        return [*bars, Piece(f" {int(part * 100)} % done")]  # of its work, not of its time
    hint = _duration_hint(row, attempt, context, False)
    return [*bars, *(piece._replace(text=f" {piece.text.lstrip(', ')}") for piece in hint)]


def took_text(name: str, context: RunContext) -> str:
    """The duration of a task that succeeded; empty for others."""
    row = context.board.row(name)
    attempt = row.latest if row.state is TaskState.SUCCESS else None
    return column(context.attempt(attempt).clock).strip() if attempt is not None else ""


_NEGLIGIBLE_US = SECOND // 10
_QUIET = DONE | {TaskState.PENDING}


def pace(lasts_us: int, usual_us: int) -> Pace:
    """The pace of finished work beside what is usual; a difference that nobody notices is none."""
    return Pace(lasts_us / usual_us if abs(lasts_us - usual_us) >= _NEGLIGIBLE_US else 1.0, False, False)


def task_pace(row: TaskRow, context: RunContext) -> Pace | None:
    """The pace of a task that succeeded; None if nothing is known of earlier runs."""
    usual, attempt = context.board.duration_stats.get(row.name), row.latest
    if usual is None or not usual.p50_us or row.state is not TaskState.SUCCESS or attempt is None:
        return None
    lasts_us = context.attempt(attempt).clock
    return pace(lasts_us, usual.p50_us)._replace(is_slow=is_overdue(lasts_us, usual))


def name_role(row: TaskRow, context: RunContext) -> Role:
    """The role of a name with nothing to look at: of what finished, the brighter, the longer it took."""
    found = task_pace(row, context)
    if found is not None and (role := pace_role(found)) is not Role.DONE:
        return role
    return Role.DIM if row.state in _QUIET else Role.TEXT


def _beside_usual(row: TaskRow, context: RunContext) -> Line:
    found = task_pace(row, context)
    return [] if found is None else [pace_piece(found, context.glyphs)]


# --- By state ------------------------------------------------------------------------------------------------------


def _running(row: TaskRow, view: views.TaskView, context: RunContext, room: int) -> Line:
    attempt, line, has_room = row.latest, [Piece(clock(view.clock or 0))], room >= _BARS_FROM
    if attempt is not None and (kill_step := _kill_step(attempt, context)):
        return [*line, Piece("  "), *kill_step]
    line += _duration_hint(row, attempt, context, has_room)
    if row.progress_total:
        line += [Piece(" "), *_progress(row, context, has_room)]
    has_room = has_room and WORD_CELLS + 1 + width(line) + _USAGE_CELLS <= room
    return [*line, *_usage(context.board.usage.get(row.name))] if has_room else line


def _waiting(row: TaskRow, view: views.TaskView, context: RunContext) -> Line:
    """The obstacle of a task that does not run, and when it ends if anybody ends it."""
    when = "" if view.instant is None else countdown(view.instant, context.now_us)
    fact, role = one_line(view.fact), _FACT_ROLES.get(view.reason, Role.WAITING) if view.reason else Role.DIM
    if view.reason is WaitReason.SENSOR and when:
        return [Piece(f"next check {when}"), Piece(f" {context.glyphs.dot} {fact}", Role.DIM)]
    if view.reason is WaitReason.NOT_BEFORE and when:
        return [Piece(f"not before its time, {when}", Role.WAITING)]
    if view.reason is WaitReason.PARENTS:
        return [Piece(fact.replace(context.names.prefix, "") if context.names.prefix else fact, Role.DIM)]
    role = Role.WARNING if not context.runner.is_alive and not needs_human(view.reason) else role
    return [Piece(fact + (f", {_INSTANT_WORDS.get(view.reason, '')} {when}" if when and fact else ""), role)]


#: What happens at the instant of a wait, where the word does not say it.
_INSTANT_WORDS: Mapping[WaitReason | None, str] = {WaitReason.OUTAGE: "probe", WaitReason.RETRY_BUDGET: "next"}

#: The roles of facts about the run; those about a downstream have the colour of a wait.
_FACT_ROLES: Mapping[WaitReason | None, Role] = dict.fromkeys(
    (WaitReason.PAUSE, WaitReason.POOL, WaitReason.MACHINE_POOL, WaitReason.SLOT), Role.DIM
)


_USAGE_CELLS = 16  # without the last line


def _usage(usage: TaskUsage | None) -> Line:
    """``cpu 98% 340 MB`` and the last line: the time of a running task on one CPU, its memory, its output."""
    if usage is None:
        return []
    percent = f"cpu {usage.cpu_percent:2}%" if usage.cpu_percent is not None else " " * 7
    memory = f"{format_bytes(usage.memory_bytes):>6}" if usage.memory_bytes is not None else " " * 6
    return [Piece(f"  {percent} {memory}", Role.DIM), Piece(f"  {written_line(usage)}")]


def written_line(usage: TaskUsage) -> str:
    """The last line that a running task wrote."""
    return one_line(next(printable_parts(usage.last_line)))


def _duration_hint(row: TaskRow, attempt: AttemptRow | None, context: RunContext, has_room: bool) -> Line:
    """The usual duration in other runs, and the timeout if there is room for both."""
    limit = format_duration(attempt.timeout_us) if attempt is not None and attempt.timeout_us else ""
    usual = context.board.duration_stats.get(row.name)
    usual_duration = format_duration(usual.p50_us) if usual is not None else ""
    if usual is not None and is_overdue(context.now_us - (row.started_at or context.now_us), usual):
        return [Piece(f", usually {usual_duration}", Role.WARNING)]
    if usual is None or usual.p50_us < SECOND:
        return [Piece(f", timeout {limit}", Role.DIM)] if limit else []
    at_most = f", timeout {limit}" if limit and has_room and not row.progress_total else ""
    return [Piece(f" of ~{usual_duration}{at_most}", Role.DIM)]


def _kill_step(attempt: AttemptRow, context: RunContext) -> Line:
    """The current step of a kill."""
    steps, due_at = views.kill_steps(attempt), views.kill_ends_at(attempt)
    if not steps:
        return []
    next_step = f", SIGKILL {countdown(due_at, context.now_us)}" if due_at is not None else ""
    return [Piece(f"{steps[-1][0].now}{next_step}", Role.WARNING)]


def _progress(row: TaskRow, context: RunContext, bars: bool) -> Line:
    """A bar and a percentage, or for how long there has been no progress."""
    part = part_over(row.name, context) or 0.0
    still_us = stalled_for_us(row, context.now_us)
    if still_us is not None:
        return [Piece(f"{int(part * 100)} % done"), Piece(f", no progress for {clock(still_us).strip()}", Role.WARNING)]
    shown = [*progress_bar(part, context.glyphs, Role.RUNNING), Piece(" ")] if bars else []
    return [*shown, Piece(f"{int(part * 100):2} % done")]


def progress_bar(part: float, glyphs: Glyphs, role: Role, size: int = _BAR_CELLS) -> Line:
    """``size`` cells between two ends, filled to ``part``: wholly only if nothing is left."""
    full = min(round(part * size), size - (part < 1))
    return [
        Piece(glyphs.bar_left, Role.DIM),
        Piece(glyphs.bar_done * full, role),
        Piece(glyphs.bar_rest * (size - full), Role.DIM),
        Piece(glyphs.bar_right, Role.DIM),
    ]


def _retrying(row: TaskRow, view: views.TaskView, context: RunContext, bars: bool) -> Line:
    """A bar that drains until the retry, and the error; or what holds the retry."""
    line: Line = []
    if view.fact:
        return [Piece("  "), Piece(one_line(view.fact), _FACT_ROLES.get(view.reason, Role.WAITING))]
    if row.delay_us and bars and view.instant is not None:
        left = min(max((view.instant - context.now_us) / row.delay_us, 0.0), 1.0)
        line += [Piece(" "), *progress_bar(left, context.glyphs, Role.WAITING)]
    error = one_line(error_name(row))
    return [*line, Piece(f"  {error}")] if error else line


def _success(row: TaskRow, view: views.TaskView, context: RunContext) -> Line:
    lasts = None if row.latest is None else context.attempt(row.latest).clock
    if lasts is None and row.started_at is not None and row.ended_at is not None:
        lasts = row.ended_at - row.started_at  # an approval has no attempt
    line = join([[Piece(column(lasts or 0), Role.DIM)], _beside_usual(row, context)], " ")
    tried = [counted(row.failures, "failure")] if row.failures else []
    tried += [counted(row.refusals, "refused call")] if row.refusals else []
    if tried:
        line.append(Piece(f"  after {' and '.join(tried)}", Role.DIM))
    if row.stale:
        line.append(Piece(f"  {stale_text(row)}", Role.WARNING))
    return line


def _failure(row: TaskRow, view: views.TaskView, context: RunContext) -> Line:
    attempt = row.latest
    hung = hang_of(attempt) if attempt is not None else ""
    alike = [one for one in failures_of(row) if attempt is not None and one.fingerprint == attempt.fingerprint]
    times = f" {context.glyphs.times}{len(alike)}" if len(alike) > 1 else ""
    words = f"timeout: {hung}" if hung else _FUNCTION.sub(r"\1", one_line(view.fact))
    message = "" if hung else added_message(one_line(view.fact), one_line(row.error or ""))
    return [Piece(f"{words}{times}"), Piece(f"  {message}" if message else "", Role.DIM)]


#: The function in "KeyError load.py:9 in load", which has no room beside the name of the task; in no other text.
_FUNCTION = re.compile(r"^(\w+ \S+:\d+) in [\w.<>]+")


def hang_of(attempt: AttemptRow) -> str:
    """The autopsy sentence in the error of a timeout; empty if there is none."""
    return one_line(outcome.hang_of(attempt.error or "")) if attempt.outcome == "timed_out" else ""


def describe_skip(row: TaskRow) -> str:
    """Why a task was skipped, in the task's own words if it gave any."""
    if row.skip_cause == SkipCause.CONDITION and row.error:
        return one_line(row.error)
    return f"by {one_line(row.skip_cause)}" if row.skip_cause else ""


def _skipped(row: TaskRow, view: views.TaskView, context: RunContext) -> Line:
    return [Piece(words, Role.DIM)] if (words := describe_skip(row)) else []


_FACTS: dict[TaskState, Callable[[TaskRow, views.TaskView, RunContext], Line]] = {
    TaskState.SUCCESS: _success,
    TaskState.FAILED: _failure,
    TaskState.DEAD_LETTER: _failure,
    TaskState.UPSTREAM_FAILED: lambda row, view, context: [Piece(one_line(view.fact), Role.DIM)],
    TaskState.SKIPPED: _skipped,
}
