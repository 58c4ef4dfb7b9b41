"""A run as a few lines of Markdown, for an incident channel or the next shift."""

from __future__ import annotations

from ..model.board import Board
from ..model.inbox import Inbox
from ..text.durations import format_duration, wall
from ..text.text import one_line
from .runs import deadline_note, run_style
from .states import SEVERITY, STATE_STYLES

_CAUSES_MAX = 10
_NAMES_MAX = 5


def incident_summary(board: Board, address: str, now_us: int) -> str:
    """State, counts, and each cause that needs a decision, with its tasks."""
    run = board.projection.run
    elapsed = format_duration((run.ended_at if run.ended_at is not None else now_us) - run.started_at)
    counts = ", ".join(f"{board.counts[state]} {STATE_STYLES[state].word}" for state in SEVERITY if board.counts[state])
    name = f"**{one_line(run.dag_name)}** `{_code(run.run_id)}`"
    lines = [
        f"{name} on `{_code(address)}`: {run_style(run).word} after {elapsed}{deadline_note(run)}",
        f"{board.finished} of {board.total} done ({counts}), as of {wall(now_us, None)}",
    ]
    inbox = Inbox(board)
    causes = inbox.causes()
    for cause in causes[:_CAUSES_MAX]:
        names = ", ".join(f"`{_code(name)}`" for name in cause.tasks[:_NAMES_MAX])
        more = f" and {cause.count - _NAMES_MAX} more" if cause.count > _NAMES_MAX else ""
        lines.append(
            f"- {cause.count} x `{_code(cause.title)}`: {names}{more}; holds {cause.held} tasks,"
            f" for {format_duration(now_us - cause.oldest)}; fingerprint `{_code(cause.fingerprint)}`"
        )
    if len(causes) > _CAUSES_MAX:
        lines.append(f"- {len(causes) - _CAUSES_MAX} more causes")
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """Make a text safe between backticks."""
    return one_line(text).replace("`", "'")
