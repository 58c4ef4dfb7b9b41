"""Says on the rules around a view how many of its rows are hidden above and below: ``▴ 3 more``, ``▾ 5 more``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..text.durations import number
from ..text.glyphs import Glyphs
from ..widgets.bars import Rule
from ..widgets.line_view import LineView

_MARGIN = 2  # cells of the rule right of the words


def hidden_row_marks(rule: Rule, rules: Sequence[Rule], views: Iterable[LineView], glyphs: Glyphs) -> dict[int, str]:
    """The marks of ``rule``, column -> sign, for the views for which it is the nearest of ``rules``."""
    marks: dict[int, str] = {}
    for view in views:
        for words in _rule_texts(rule, rules, view, glyphs):
            end = view.region.right - _MARGIN
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
