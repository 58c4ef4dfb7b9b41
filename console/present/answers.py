"""The response to an act: one line in all, and one line per task, refusals first."""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.domain.command import REFUSED, TargetResult
from ..text.glyphs import Glyphs
from ..text.pieces import Line, Piece, Role
from ..text.text import one_line, pad

_NAME_CELLS = 30


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
    """What was refused; a task that waits for a canary or for its executor is not."""
    return [result for result in results if result.outcome == REFUSED]


def result_lines(results: Sequence[TargetResult], glyphs: Glyphs) -> list[Line]:
    """One line per task, refusals first."""
    ordered = [*refusals(results), *(result for result in results if result.outcome != REFUSED)]
    return [_result_line(result, glyphs) for result in ordered]


def _result_line(result: TargetResult, glyphs: Glyphs) -> Line:
    task, word, sentence = result
    done = word != REFUSED
    return [
        Piece(f"{glyphs.done if done else glyphs.failed} ", Role.DONE if done else Role.WARNING),
        Piece(pad(one_line(task), _NAME_CELLS), Role.TEXT),
        Piece(f" {one_line(sentence.replace(f'{task} ', 'it ', 1)) or word}", Role.DIM if done else Role.TEXT),
    ]
