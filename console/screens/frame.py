"""The frame of every screen: header, tabs, the style of the rules, and what locks the keys."""

from __future__ import annotations

from ...engine.domain.states import TaskState
from ...engine.statefile.needs import attention_count
from ..keys.actions import BY_NAME, VIEWS, ScreenName
from ..keys.keymap import shown_key
from ..present import header
from ..present.systems import compact
from ..terminal.capabilities import SMALLEST_SIZE
from ..text.pieces import Line, Piece, Role, plain
from ..text.text import one_line
from ..widgets.bars import Bar, KeyHint
from ..widgets.line_view import LineView
from .console import Console

#: Actions that go through the past, each with the one that goes the other way.
_PAST_PAIRS = (
    ("step_back", "step_forward", "step"),
    ("problem_back", "problem_forward", "problem"),
    ("slower", "faster", "play"),
)


def top_line(console: Console, columns: int) -> Line:
    """The first row of the header: the run, or the position in the past."""
    board, live, position = console.live.board, console.live, console.time_travel.position
    address = live.session.address
    if board is None:
        reason = live.error_message or "reading ..."  # until the first snapshot has come
        return [Piece(" "), Piece(one_line(address), Role.TITLE), Piece(f"  {reason}")]
    if position is not None:
        return header.replay_line(position, board, address, columns, console.glyphs)
    waiting = console.redrive_line or header.waiting_fact(console.other_runs.waiting, columns, console.glyphs)
    return header.run_line(board, address, live.forecast, live.now_us, columns, console.glyphs, waiting, console.runner)


def status_texts(console: Console, columns: int) -> list[Line]:
    """The texts on the right of the tabs, longest first; in the past none of the executor as it is now."""
    live = console.live
    if console.time_travel.position is not None and not live.status.is_stale:
        return [[]]
    return header.status_lines(live.board, live.status, columns)


def tabs_of(console: Console, active: ScreenName) -> list[header.Tab]:
    """The tabs, with the number of what needs a human in each."""
    board = console.live.board
    waiting, is_seen = console.other_runs.waiting, board is None or board.projection.run.acknowledged_at is not None
    failed = 0 if board is None or is_seen else board.counts[TaskState.FAILED]
    own = max(attention_count(console.needs_of_run) - failed, 0)  # failed ones have a sign of their own
    counts = {
        ScreenName.RUNS: sum(not one.is_notice for one in waiting),
        ScreenName.INBOX: own + sum(one.weight for one in waiting),
        ScreenName.SYSTEMS: console.attention_count,
    }
    badges = {view: f"{console.glyphs.dead}{compact(count)}" for view, count in counts.items() if count}
    if failed:
        found = (badges.get(ScreenName.INBOX), f"{console.glyphs.failed}{compact(failed)}")
        badges[ScreenName.INBOX] = " ".join(filter(None, found))
    return [
        header.Tab(shown_key(f"view_{view.value}"), view.value.capitalize(), view is active, badges.get(view, ""))
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
    key = shown_key("resume_here") if console.launch.state_path is not None else ""
    address, gone = console.live.session.address, header.executor_gone_line(board, status, key, console.live.now_us)
    return plain(header.storage_line(status, address) or gone) or None


def past_hints(console: Console, place: ScreenName) -> list[KeyHint]:
    """The keys that go through the past on a screen."""
    here = [pair for pair in _PAST_PAIRS if place in BY_NAME[pair[0]].screens]
    return [(f"{shown_key(one)} {shown_key(other)}", word) for one, other, word in here]


class TooSmall(LineView):
    """The message of a terminal that is too small."""

    DEFAULT_CSS = "TooSmall { display: none; }"

    def line(self, y: int) -> Line:
        """Say in the first row which size is needed."""
        columns, rows = SMALLEST_SIZE
        return [Piece(f"needs {columns}x{rows}, has {self.app.size.width}x{self.app.size.height}")] if y == 0 else []


class TourBar(Bar):
    """The line of the demo's tour, in reverse video."""

    def row_role(self, y: int) -> str | None:
        return Role.CURSOR
