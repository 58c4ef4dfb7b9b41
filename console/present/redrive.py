"""The progress of a redrive in one line."""

from __future__ import annotations

from ...engine.core.outlook import RunnerStatus
from ..model.redrive import RedriveProgress
from ..text.durations import SECOND, format_duration, number
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role

_WIDE, _WIDEST = 110, 150  # columns for more than the count, and for all


def redrive_parts(progress: RedriveProgress, now_us: int, runner: RunnerStatus, undo_key: str) -> list[str]:
    """``redrive 182/1,080``, ``5/s``, ``3m left``, ``2 failed again``, ``z stops the rest``."""
    parts = [f"redrive {number(progress.started)}/{number(progress.total)}"]
    if not runner.is_alive and progress.unstarted:
        parts.append("no executor runs it")
    elif progress.unstarted:
        left_us = (progress.last_at or now_us) - now_us
        parts += [f"{progress.rate:g}/s"] if progress.rate else []
        parts += [f"{format_duration(left_us // SECOND * SECOND)} left"] if left_us > 0 else []
    parts += [f"{number(progress.failed_again)} failed again"] if progress.failed_again else []
    parts += [f"{undo_key} stops the rest"] if progress.unstarted and undo_key else []
    return parts


def redrive_line(
    progress: RedriveProgress, now_us: int, runner: RunnerStatus, undo_key: str, columns: int, glyphs: Glyphs
) -> Line:
    """The same in one line, with what has room beside the run in the header."""
    parts = redrive_parts(progress, now_us, runner, undo_key)
    shown = parts if columns >= _WIDEST else parts[:3] if columns >= _WIDE else parts[:1]
    role = Role.WARNING if progress.failed_again else Role.RUNNING
    return [Piece(f" {glyphs.dot} ".join(shown), role)]
