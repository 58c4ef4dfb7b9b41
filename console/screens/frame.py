"""What the frame of every screen shows: header, tabs, what locks the keys, where Esc leads, and hidden rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ...engine.domain.states import TaskState
from ..keys.actions import BY_NAME, VIEWS, ScreenName
from ..present.downstreams import compact
from ..present.header import Tab, executor_gone_line, run_line, status_lines, storage_line, waiting_fact
from ..present.replay import replay_line
from ..text.durations import number
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role, plain
from ..text.text import one_line
from ..widgets.bars import KeyHint, Rule
from ..widgets.line_view import LineView
from .console import Console

#: Actions that go through the past, each with the one that goes the other way.
_PAST_PAIRS = (
    ("step_back", "step_forward", "step"),
    ("problem_back", "problem_forward", "problem"),
    ("slower", "faster", "play"),
)
_WORDS_MARGIN = 2  # cells of a rule right of the words on it


def top_line(console: Console, columns: int) -> Line:
    """The first row of the header: the run, or the position in the past."""
    board, live, position = console.live.board, console.live, console.time_travel.position
    if board is None:
        return [Piece(" "), Piece(one_line(console.address), Role.TITLE), Piece(f"  {console.loading_message}")]
    if position is not None:
        key = console.keymap.label("back")
        return replay_line(position, board, console.address, key, columns, console.glyphs)
    waiting = console.redrive_line or waiting_fact(console.waiting_runs, columns, console.glyphs)
    return run_line(
        board, console.address, live.forecast, live.now_us, columns, console.glyphs, waiting, console.runner
    )


def status_texts(console: Console, columns: int) -> list[Line]:
    """The texts on the right of the tabs, longest first; in the past none of the executor as it is now."""
    live = console.live
    if console.time_travel.position is not None and not live.status.is_stale:
        return [[]]
    return status_lines(live.board, live.status, console.armed_seconds, columns)


def tabs_of(console: Console, active: ScreenName) -> list[Tab]:
    """The tabs, with the number of what needs a human in each."""
    board = console.live.board
    dead, waiting = board.dead_letters if board is not None else 0, console.waiting_runs
    counts = {
        ScreenName.RUNS: len(waiting),
        ScreenName.INBOX: dead + sum(one.weight for one in waiting),
        ScreenName.DOWNSTREAMS: console.attention_count,
    }
    badges = {view: f"{console.glyphs.dead}{compact(count)}" for view, count in counts.items() if count}
    failed = board.counts[TaskState.FAILED] if board is not None else 0
    if failed:
        found = (badges.get(ScreenName.INBOX), f"{console.glyphs.failed}{compact(failed)}")
        badges[ScreenName.INBOX] = " ".join(filter(None, found))
    label = console.keymap.label
    return [
        Tab(label(f"view_{view.value}"), view.value.capitalize(), view is active, badges.get(view, ""))
        for view in VIEWS
    ]


def rule_style(console: Console) -> tuple[str, Role]:
    """The sign and the role of the rules: they differ for stale data and for the past."""
    glyphs = console.glyphs
    if console.time_travel.position is not None:
        return glyphs.rule_past, Role.NOW
    return (glyphs.rule_stale, Role.WARNING) if console.live.status.is_stale else (glyphs.rule, Role.RULE)


def lock_sentence(console: Console) -> str | None:
    """Why keys that change the run do nothing now; None: they act."""
    board, status = console.live.board, console.live.status
    if console.lock_reason is not None or board is None:
        return console.lock_reason
    key = console.keymap.label("resume_here") if console.launch.state_path is not None else ""
    return plain(storage_line(status, console.address) or executor_gone_line(board, status, key)) or None


def back_label(console: Console, *, is_top_level: bool) -> str:
    """The label of the target of Esc; empty if Esc leads nowhere."""
    if not is_top_level:
        return "back"
    view = console.previous_view
    if view is None:
        return "all state files" if console.launch.is_of_fleet else ""
    return f"back to {view.value}"


def past_hints(console: Console, place: ScreenName) -> list[KeyHint]:
    """The keys that go through the past on a screen."""
    label = console.keymap.label
    here = [pair for pair in _PAST_PAIRS if place in BY_NAME[pair[0]].screens]
    return [(f"{label(one)} {label(other)}", word) for one, other, word in here if label(one) and label(other)]


def hidden_row_marks(rule: Rule, rules: Sequence[Rule], views: Iterable[LineView], glyphs: Glyphs) -> dict[int, str]:
    """The marks of ``rule``, column -> sign, for the views for which it is the nearest of ``rules``.

    They say how many rows of a view are hidden above and below: ``▴ 3 more``, ``▾ 5 more``.
    """
    marks: dict[int, str] = {}
    for view in views:
        for words in _rule_texts(rule, rules, view, glyphs):
            end = view.region.right - _WORDS_MARGIN
            while any(column in marks for column in range(end - len(words), end)):
                end = min(column for column in marks if column >= end - len(words))  # left of what stands there
            if end - len(words) > view.region.x:
                marks.update(enumerate(words, start=end - len(words)))
    return marks


def _rule_texts(rule: Rule, rules: Sequence[Rule], view: LineView, glyphs: Glyphs) -> Iterator[str]:
    above, below = view.hidden_rows
    if above and rule is max((one for one in rules if one.region.y < view.region.y), key=_row, default=None):
        yield f" {glyphs.rows_above} {number(above)} more "
    if below and rule is min((one for one in rules if one.region.y >= view.region.bottom), key=_row, default=None):
        yield f" {glyphs.rows_below} {number(below)} more "


def _row(rule: Rule) -> int:
    return rule.region.y
