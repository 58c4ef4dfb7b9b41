"""The tasks and groups of the timeline in sentences, the legend of its bars, and the critical path."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from ...engine.core import views
from ...engine.core.projection import AttemptRow, TaskRow
from ...engine.domain.states import FAILED_OUTCOMES
from ...engine.domain.text import counted, format_duration
from ..model.graph.groups import GraphGroup
from ..model.group_activity import GroupActivity
from ..text.columns import longest_cells, that_fit
from ..text.figures import SECOND, number, wall
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, fit, join, wrap
from ..text.text import one_line
from . import states, tasks
from .states import row_sign
from .tasks import RunContext
from .timeline import NAME_AT_BAR_CELLS, place_of


def task_lines(row: TaskRow, context: RunContext, columns: int, rows: int) -> list[Line]:
    """The selected task in sentences: its state, then its attempts, the latest first."""
    name = context.names.short(row.name, max(columns // 3, NAME_AT_BAR_CELLS), context.glyphs.more)
    head = [Piece(" "), Piece(name, Role.TITLE), Piece("  ")]
    head += [row_sign(row, context.glyphs, context.runner), Piece(" ")]
    tried = tasks.attempts_text(row)
    head += [*tasks.state_facts(row, context), Piece(f"   {tried}" if tried else "", Role.DIM)]
    lines = [fit(head, columns, context.glyphs.more)]
    for attempt, checks in tasks.latest_first(row)[: rows - 1]:
        label = f"   #{attempt.attempt:<2} "
        text = describe_attempt(attempt, context.attempt(attempt)) + tasks.describe_checks_before(checks)
        lines += wrap([Piece(label, Role.DIM), Piece(one_line(text))], columns - 1, len(label))
    if len(lines) > rows:
        lines[rows - 1] = [*lines[rows - 1], Piece(f" {context.glyphs.more}", Role.DIM)]
    return [fit(line, columns, context.glyphs.more) for line in lines[:rows]]


def group_lines(
    group: GraphGroup, activity: GroupActivity, worst: Sequence[str], context: RunContext, columns: int, rows: int
) -> list[Line]:
    """The selected group in sentences: its counts and its times, then its tasks, the worst first."""
    start, end = activity.first_start, activity.last_end
    facts = [f"{number(len(group.members))} tasks"]
    if start is not None and (activity.is_active or end is None):
        facts.append(f"since {wall(start)}")
    elif start is not None and end is not None:
        facts.append(f"{wall(start)} to {wall(end)}")
    if end is not None:
        facts.append(f"{format_duration(activity.work_us)} of work")
    head = [Piece(" "), Piece(one_line(group.title), Role.TITLE), Piece("  ")]
    head += states.counts_line(group.counts, context.glyphs, runner=context.runner_among(group.members))
    separators = ["   ", *[f" {context.glyphs.dot} "] * len(facts)]
    ranked = [(place, [Piece(f"{separators[place - 1]}{fact}", Role.DIM)]) for place, fact in enumerate(facts, 1)]
    longest = longest_cells(worst)
    lines = (tasks.task_line(context.board.row(name), context, columns, longest) for name in worst)
    return [
        fit(join(that_fit(columns, (0, head), *ranked), ""), columns, context.glyphs.more),
        *islice(lines, rows - 1),
    ]


def describe_attempt(attempt: AttemptRow, view: views.AttemptView) -> str:
    """One attempt as a sentence."""
    duration = format_duration(view.clock)
    start = f"{wall(attempt.started_at)}, "
    if attempt.deadline_at is not None or attempt.sigterm_at is not None:
        return start + "; ".join(_describe_kill(attempt))
    if attempt.ended_at is None:
        limit = f" of {format_duration(attempt.timeout_us)}" if attempt.timeout_us else ""
        return f"{start}{view.style.verb} for {duration}{limit}" if view.is_moving else f"{start}{view.style.verb}"
    why = attempt.explain or attempt.error or ""
    text = f"{start}{view.style.verb} after {duration}" + (f": {why}" if why else "")
    return f"{text}; then waited {waited}" if (waited := tasks.waited_text(attempt)) else text


def bar_legend(
    painted: Iterable[Line], glyphs: Glyphs, columns: int, rows: int = 1, *, has_groups: bool = False
) -> list[Line]:
    """The legend of the signs in these lines, in ``rows`` rows at most; one row leaves out the least important."""
    signs = {(sign, piece.role) for line in painted for piece in line for sign in piece.text}
    entries = [(rank, entry) for rank, entry in _legend_entries(glyphs, has_groups) if _is_painted(entry[0], signs)]
    if rows > 1:
        return states.flow([entry for _, entry in entries], columns - 1, 0, gap=1)[:rows]
    ranked = [(rank, [Piece("  " if place else " "), *entry]) for place, (rank, entry) in enumerate(entries)]
    return [join(that_fit(columns, *ranked), "")]


def _is_painted(entry: Piece, signs: Collection[tuple[str, str]]) -> bool:
    """Whether one of the signs of an entry is there, in its role; a mark of what may come is dim, and so are names."""
    roles = (entry.role, Role.DIM) if not entry.text.isalnum() else (entry.role,)
    return any((sign, role) in signs for sign in entry.text for role in roles)


def bar_entries(glyphs: Glyphs) -> list[Line]:
    """The meaning of each sign of the bars, also of the bars of groups."""
    return [entry for _, entry in _legend_entries(glyphs, has_groups=True)]


def _legend_entries(glyphs: Glyphs, has_groups: bool) -> Iterator[tuple[int, Line]]:
    """Each with its rank, 1 for the most important."""
    few = (1, "".join(glyphs.spark[:6:2]), Role.DONE, "few to many ran"), (4, glyphs.retrying, Role.WAITING, "retried")
    for rank, sign, role, word in (
        *(few if has_groups else [(1, glyphs.run, Role.DONE, "ran")]),
        (4, glyphs.backoff, Role.WAITING, "waits"),
        (3, glyphs.failed, Role.FAILED, "failed"),
        (2, glyphs.dead, Role.HUMAN, "dead letter"),
        (5, glyphs.deadline, Role.WARNING, "timeout"),
        (7, glyphs.sigterm, Role.WARNING, "SIGTERM"),
        (9, glyphs.grace, Role.DIM, "grace"),
        (6, glyphs.sigkill, Role.FAILED, "SIGKILL"),
        (8, glyphs.lost, Role.WAITING, "lost"),
        (10, glyphs.sensing, Role.WAITING, "not ready"),
        (11, glyphs.cut_off, Role.WAITING, views.CUT_OFF.word),
    ):
        yield rank, [Piece(sign, role), Piece(f" {word}", Role.DIM)]


def describe_path(path: Sequence[str], context: RunContext) -> str:
    """One sentence about the critical path: its time, its longest task, and what its failures cost."""
    rows = [context.board.row(name) for name in path]
    if not rows:
        return "no task has run yet"
    times = {row.name: views.work_us(row, context.now_us, context.runner) for row in rows}
    longest = max(times, key=lambda name: times[name])
    words = f"critical path: {counted(len(rows), 'task')}, {format_duration(sum(times.values()))} of work"
    if times[longest]:
        words += f", the longest {one_line(longest)} {format_duration(times[longest])}"
        attempts = len(context.board.row(longest).attempts)
        words += f" in {attempts} attempts" if attempts > 1 else ""
    failed = (one for row in rows for one in row.attempts.values() if one.outcome in FAILED_OUTCOMES)
    lost = sum(context.attempt(one).clock for one in failed)
    return f"{words}; failed attempts cost {format_duration(lost)}" if lost else words


def _describe_kill(attempt: AttemptRow) -> Iterator[str]:
    """``timeout 3s passed at 02:29:27; it was in demo.py:41; SIGTERM; ignored for 2s; SIGKILL at 02:29:29``."""
    steps, place = views.describe_kill(attempt), place_of(attempt)
    yield from filter(None, (*steps[:1], place, *steps[1:]))
    if attempt.sigkill_at is None and attempt.sigterm_at is not None and attempt.ended_at is not None:
        after = attempt.ended_at - attempt.sigterm_at
        yield f"gone after {format_duration(after)}" if after >= SECOND // 20 else "gone at once"
