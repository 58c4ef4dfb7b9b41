"""What differs between the output of two attempts: lines that differ in numbers alone count as equal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from enum import Enum
from typing import NamedTuple

LINES_MAX = 2000  # of each output, the last ones; the time of a comparison grows with their product
_CONTEXT_LINES = 2
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:[.,:]\d+)*", re.IGNORECASE)


class Side(Enum):
    """Which of the two outputs has a line."""

    BOTH = " "
    BEFORE = "-"
    AFTER = "+"


class DiffLine(NamedTuple):
    """A line of a comparison; of lines that both have, that of the second. ``skipped``: it stands for so many."""

    side: Side
    text: str
    skipped: int = 0


def compare_output(before: Sequence[str], after: Sequence[str]) -> list[DiffLine]:
    """The last lines of two outputs side by side in one list; runs of equal lines are shortened."""
    before, after = before[-LINES_MAX:], after[-LINES_MAX:]
    # A line that is repeated often anchors no match: else the time would grow with the cube of the lines.
    matcher = SequenceMatcher(None, [_shape(line) for line in before], [_shape(line) for line in after])
    found: list[DiffLine] = []
    for kind, first, last, first_after, last_after in matcher.get_opcodes():
        if kind == "equal":
            found += _shortened(after[first_after:last_after], is_first=not found, is_last=last == len(before))
        else:
            found += [DiffLine(Side.BEFORE, line) for line in before[first:last]]
            found += [DiffLine(Side.AFTER, line) for line in after[first_after:last_after]]
    return found


def _shape(line: str) -> str:
    """The line without its numbers: times, ids and addresses differ in every attempt."""
    return _NUMBER.sub("0", line)


def _shortened(lines: Sequence[str], *, is_first: bool, is_last: bool) -> Iterator[DiffLine]:
    head, tail = 0 if is_first else _CONTEXT_LINES, 0 if is_last else _CONTEXT_LINES
    skipped = len(lines) - head - tail
    if skipped <= 1:
        head, skipped, tail = len(lines), 0, 0
    yield from (DiffLine(Side.BOTH, line) for line in lines[:head])
    if skipped:
        yield DiffLine(Side.BOTH, "", skipped)
    yield from (DiffLine(Side.BOTH, line) for line in lines[len(lines) - tail :] if tail)
