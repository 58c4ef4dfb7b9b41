"""The tasks of the timeline in sentences, its legend, and the critical path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ....engine.core.outlook import ALIVE, RunnerStatus
from ....engine.core.projection import AttemptRow, TaskRow
from ....engine.domain.states import FAILED_OUTCOMES
from ...model.board import Board
from ...model.graph.groups import GraphGroup
from ...model.group_activity import GroupActivity
from ...text.durations import SECOND, format_duration, number, wall
from ...text.glyphs import Glyphs
from ...text.pieces import Line, Piece, Role, fit, width
from ...text.text import cells, one_line, pad
from ...text.wrapping import wrap
from .. import counts
from ..states import STATE_STYLES, state_sign
from ..tasks import (
    Scene,
    attempts_text,
    describe_checks_before,
    duration_of,
    hang_of,
    latest_first,
    state_facts,
)


def task_lines(row: TaskRow, scene: Scene, columns: int, rows: int) -> list[Line]:
    """The selected task in sentences: its state, then its attempts, the latest first."""
    head = [Piece(" "), Piece(one_line(row.name), Role.TITLE), Piece("  ")]
    head.append(Piece(f"{state_sign(row.state, scene.glyphs)} ", STATE_STYLES[row.state].role))
    tried = attempts_text(row)
    head += [*state_facts(row, scene), Piece(f"   {tried}" if tried else "", Role.DIM)]
    lines = [fit(head, columns, scene.glyphs.more)]
    for attempt, checks in latest_first(row)[: rows - 1]:
        label = f"   #{attempt.attempt:<2} "
        text = describe_attempt(attempt, scene.now_us, scene.runner) + describe_checks_before(checks)
        lines += wrap([Piece(label, Role.DIM), Piece(one_line(text))], columns - 1, len(label))
    return [fit(line, columns, scene.glyphs.more) for line in lines[:rows]]


def group_lines(
    group: GraphGroup, activity: GroupActivity, worst: Sequence[str], scene: Scene, columns: int, rows: int
) -> list[Line]:
    """The selected group in sentences: its counts and its times, then its tasks, the worst first."""
    start, end = activity.first_start, activity.last_end
    facts = [f"{number(len(group.members))} tasks"]
    if start is not None and (activity.goes_on or end is None):
        facts.append(f"since {wall(start, None)}")
    elif start is not None and end is not None:
        facts.append(f"{wall(start, None)} to {wall(end, None)}")
    if end is not None:
        facts.append(f"{format_duration(activity.work_us)} of work")
    head = [Piece(" "), Piece(one_line(group.title), Role.TITLE), Piece("  ")]
    head += counts.counts_line(group.counts, scene.glyphs)
    for place, fact in enumerate(facts):
        text = ("   " if place == 0 else f" {scene.glyphs.dot} ") + fact
        if width(head) + cells(text) <= columns:
            head.append(Piece(text, Role.DIM))
    lines = [head]
    room = max((cells(one_line(name)) for name in worst), default=0)
    for name in worst:
        row = scene.board.row(name)
        sign = Piece(state_sign(row.state, scene.glyphs), STATE_STYLES[row.state].role)
        title = Piece(f" {pad(one_line(name), min(room, columns // 3))}  ")
        lines.append([Piece("   "), sign, title, *state_facts(row, scene)])
    return [fit(line, columns, scene.glyphs.more) for line in lines[:rows]]


def describe_attempt(attempt: AttemptRow, now_us: int, runner: RunnerStatus = ALIVE) -> str:
    """One attempt as a sentence."""
    duration = format_duration(duration_of(attempt, now_us))
    start = f"{wall(attempt.started_at, None)}, "
    if attempt.deadline_at is not None or attempt.sigterm_at is not None:
        return start + "; ".join(_describe_kill(attempt))
    if attempt.ended_at is None and not runner.is_alive:
        return f"{start}cut off with its executor"
    if attempt.ended_at is None:
        limit = f" of {format_duration(attempt.timeout_us)}" if attempt.timeout_us else ""
        return f"{start}runs for {duration}{limit}"
    why = attempt.explain or attempt.error or ""
    said = _OUTCOME_WORDS.get(attempt.outcome, attempt.outcome)
    text = f"{start}{said} after {duration}" + (f": {why}" if why else "")
    if attempt.delay_us is not None:
        ceiling = f" of up to {format_duration(attempt.ceiling_us)}" if attempt.ceiling_us else ""
        shortened = (
            f", shortened from {format_duration(attempt.shortened_us)} for the deadline" if attempt.shortened_us else ""
        )
        text += f"; then waited {format_duration(attempt.delay_us)}{ceiling}{shortened}"
    return text


_OUTCOME_WORDS: Mapping[str, str] = {
    "success": "succeeded",
    "error": "failed",
    "timed_out": "timed out",
    "lost": "lost with its executor",
    "cancelled": "stopped",
    "deferred": "checked, not ready,",
    "skipped": "skipped itself",
}


def legend_line(glyphs: Glyphs, columns: int, *, has_groups: bool = False) -> Line:
    """What the signs of the bars mean: as many entries as fit, the least important left out first."""
    entries = _legend_entries(glyphs, has_groups)
    shown: list[int] = []
    for place in sorted(range(len(entries)), key=lambda place: entries[place][0]):
        if width(_flow(entries, [*shown, place])) <= columns:
            shown.append(place)
    return _flow(entries, sorted(shown))


def bar_entries(glyphs: Glyphs) -> list[Line]:
    """What each sign of the bars means, also of the bars of groups."""
    entries = _legend_entries(glyphs, has_groups=True)
    return [_flow(entries, [place])[1:] for place in range(len(entries))]


def _group_entries(glyphs: Glyphs) -> Sequence[_LegendEntry]:
    return (1, "".join(glyphs.spark[:6:2]), Role.DONE, "few to many ran"), (4, glyphs.retrying, Role.WAITING, "retried")


_LegendEntry = tuple[int, str, Role, str]  # rank (1: the most important), sign, role, word


def _legend_entries(glyphs: Glyphs, has_groups: bool) -> Sequence[_LegendEntry]:
    return (
        *(_group_entries(glyphs) if has_groups else [(1, glyphs.run, Role.DONE, "ran")]),
        (4, glyphs.backoff, Role.WAITING, "waits"),
        (3, glyphs.run_fail, Role.FAILED, "failed"),
        (2, glyphs.dead, Role.HUMAN, "dead letter"),
        (5, glyphs.deadline, Role.WARNING, "timeout"),
        (7, glyphs.sigterm, Role.WARNING, "SIGTERM"),
        (6, glyphs.sigkill, Role.FAILED, "SIGKILL"),
        (8, glyphs.lost, Role.WAITING, "lost"),
    )


def _flow(entries: Sequence[_LegendEntry], places: Iterable[int]) -> Line:
    """The entries at these places."""
    line: Line = []
    for _, sign, role, word in (entries[place] for place in places):
        line += [Piece("  " if line else " "), Piece(sign, role), Piece(f" {word}", Role.DIM)]
    return line


def describe_path(board: Board, path: Sequence[str], now_us: int) -> str:
    """One sentence about the critical path: its time, its longest task, and what its failures cost."""
    rows = [board.row(name) for name in path]
    if not rows:
        return "no task has run yet"
    times = {row.name: sum(duration_of(attempt, now_us) for attempt in row.attempts.values()) for row in rows}
    longest = max(times, key=lambda name: times[name])
    decide = "1 task decides" if len(rows) == 1 else f"{len(rows)} tasks decide"
    words = f"{decide} the end: {format_duration(sum(times.values()))} of work"
    if times[longest]:
        words += f", the longest {one_line(longest)} {format_duration(times[longest])}"
    lost = sum(duration_of(a, now_us) for row in rows for a in row.attempts.values() if a.outcome in FAILED_OUTCOMES)
    return f"{words}; failed attempts cost {format_duration(lost)}" if lost else words


def _describe_kill(attempt: AttemptRow) -> Iterator[str]:
    """``deadline 3s passed at 02:29:27; SIGTERM; ignored for 2s; SIGKILL at 02:29:29; it was in demo.py:41``."""
    if attempt.deadline_at is not None:
        timeout = f"{format_duration(attempt.timeout_us)} " if attempt.timeout_us else ""
        yield f"deadline {timeout}passed at {wall(attempt.deadline_at, None)}"
    if attempt.sigterm_at is not None:
        yield "SIGTERM" if attempt.deadline_at is not None else f"SIGTERM at {wall(attempt.sigterm_at, None)}"
    if attempt.sigkill_at is not None:
        if attempt.sigterm_at is not None:
            yield f"ignored for {format_duration(attempt.sigkill_at - attempt.sigterm_at)}"
        yield f"SIGKILL at {wall(attempt.sigkill_at, None)}"
    elif attempt.sigterm_at is not None and attempt.ended_at is not None:
        after = attempt.ended_at - attempt.sigterm_at
        yield f"gone after {format_duration(after)}" if after >= SECOND // 20 else "gone at once"
    if hang := hang_of(attempt):
        yield hang
    elif attempt.where:
        yield f"it was in {attempt.where}"
