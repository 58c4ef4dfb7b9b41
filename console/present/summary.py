"""The run as a few lines of Markdown, for the incident's channel and for the next shift."""

from __future__ import annotations

from ..model.board import Board
from ..model.inbox import Inbox
from ..text.durations import brief, spoken, wall
from ..text.text import one_line
from .runs import look_of
from .states import LOOKS, SEVERITY

_CAUSES_MAX = 10
_NAMES_MAX = 5


def incident(board: Board, address: str, now_us: int) -> str:
    """State, counts, and every cause that needs a decision with its tasks."""
    run = board.fold.run
    took = brief((run.ended_at if run.ended_at is not None else now_us) - run.started_at)
    counts = ", ".join(f"{board.counts[state]} {LOOKS[state].word}" for state in SEVERITY if board.counts[state])
    lines = [
        f"**{one_line(run.dag_name)}** `{_code(run.run_id)}` on `{_code(address)}`: {look_of(run).word} after {took}",
        f"{board.finished} of {board.total} done ({counts}), as of {wall(now_us, None)}",
    ]
    inbox = Inbox(board)
    causes = inbox.groups()
    for cause in causes[:_CAUSES_MAX]:
        names = ", ".join(f"`{_code(name)}`" for name in cause.tasks[:_NAMES_MAX])
        more = f" and {cause.count - _NAMES_MAX} more" if cause.count > _NAMES_MAX else ""
        lines.append(
            f"- {cause.count} x `{_code(cause.title)}`: {names}{more}; holds {cause.held} tasks,"
            f" for {spoken(now_us - cause.oldest)}; fingerprint `{_code(cause.fingerprint)}`"
        )
    if len(causes) > _CAUSES_MAX:
        lines.append(f"- {len(causes) - _CAUSES_MAX} more causes")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Fit to stand between backticks."""
    return one_line(text).replace("`", "'")
