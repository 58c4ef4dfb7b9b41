"""The answer to an act: a line in all, a line per task, refusals first, and the progress of a redrive."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.core.waiting import RunnerStatus
from ...engine.domain.acts import REFUSED, TargetResult
from ...engine.domain.event_payloads import OperatorActed
from ...engine.domain.events import Event
from ...engine.domain.text import format_duration
from ..keys.keymap import shown_key
from ..model.preview import RedriveProgress
from ..text.columns import FILL, Width, longest_cells, row_line
from ..text.figures import SECOND, number
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line


def describe_past_act(event: Event, acted: OperatorActed, now_us: int) -> str:
    """An earlier act, its operator and its answer: ``requeue by ana@ops 3m ago (1 task requeued)``."""
    ago = format_duration(now_us - event.at)
    return f"{acted.act} by {event.actor} {ago} ago ({acted.answer.get('message')})"


def answer_line(ok: bool, message: str, results: Sequence[TargetResult], glyphs: Glyphs) -> Line:
    """The message, and the first refusal if there are several results."""
    sign = Piece(f"{glyphs.done if ok else glyphs.failed} ", Role.DONE if ok else Role.WARNING)
    line = [sign, Piece(one_line(message), Role.TEXT if ok else Role.WARNING)]
    refused = refusals(results)
    if refused and len(results) > 1:
        task, _, sentence = refused[0]
        line.append(Piece(f" {glyphs.dot} {one_line(task)} {one_line(sentence)}", Role.WARNING))
    return line


def refusals(results: Sequence[TargetResult]) -> list[TargetResult]:
    """The targets that were refused; a task that waits for a canary or for its executor is none."""
    return [result for result in results if result.outcome == REFUSED]


def result_lines(results: Sequence[TargetResult], glyphs: Glyphs) -> list[Line]:
    """One line per task, refusals first."""
    ordered = [*refusals(results), *(result for result in results if result.outcome != REFUSED)]
    name = Width(min(longest_cells(result.task for result in results), 30), is_name=True)
    return [_result_line(result, name, glyphs) for result in ordered]


def _result_line(result: TargetResult, name: Width, glyphs: Glyphs) -> Line:
    task, word, sentence = result
    done = word != REFUSED
    said = one_line(sentence) or word
    return row_line(
        FILL,
        (Width(1, gap=0), Piece(glyphs.done if done else glyphs.failed, Role.DONE if done else Role.WARNING)),
        (name, task),
        (Width(0, FILL), Piece(said, Role.DIM if done else Role.TEXT)),
        more=glyphs.more,
    )


# --- The progress of a redrive in one line ---------------------------------------------------------------------------


_WIDE, _WIDEST = 110, 150  # columns for more than the count, and for all


def redrive_parts(progress: RedriveProgress, now_us: int, runner: RunnerStatus) -> list[str]:
    """``redrive 182/1,080``, ``5/s``, ``3m left``, ``2 failed again``, ``z stops the rest``."""
    parts = [f"redrive {number(progress.started)}/{number(progress.total)}"]
    if not runner.is_alive and progress.unstarted:
        parts.append("no executor runs it")
    elif progress.unstarted:
        left_us = (progress.last_at or now_us) - now_us
        parts += [f"{progress.rate:g}/s"] if progress.rate else []
        parts += [f"{format_duration(left_us // SECOND * SECOND)} left"] if left_us > 0 else []
    parts += [f"{number(progress.failed_again)} failed again"] if progress.failed_again else []
    parts += [f"{shown_key('undo')} stops the rest"] if progress.unstarted else []
    return parts


def redrive_line(progress: RedriveProgress, now_us: int, runner: RunnerStatus, columns: int, glyphs: Glyphs) -> Line:
    """The progress of a redrive in one line: as many of its parts as have room beside the run in the header."""
    parts = redrive_parts(progress, now_us, runner)
    shown = parts if columns >= _WIDEST else parts[:3] if columns >= _WIDE else parts[:1]
    role = Role.WARNING if progress.failed_again else Role.RUNNING
    return [Piece(f" {glyphs.dot} ".join(shown), role)]
