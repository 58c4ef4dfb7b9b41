"""Names without their numbers: what makes ``load_part_0001`` and ``load_part_0002`` one family."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

_BRACKETS = re.compile(r"\s*[(\[{].*[)\]}]\s*$", re.DOTALL)
_NUMBERS = re.compile(r"(?:[-_.:/#@ ]*(?:ID|id)?\d+)+$")
_WORD = re.compile(r"[-_.:/ ]")
_LOOSE_MAX = 6  # families of one that may stand side by side before they are gathered


def stem(name: str) -> str:
    """The name without trailing numbers and brackets; a name that is nothing else stays as it is."""
    return _NUMBERS.sub("", _BRACKETS.sub("", name)) or name


def families(names: Sequence[str]) -> list[str]:
    """By name: what its group is called. Many families of one are gathered by their first word, or as ``others``."""
    stems = [stem(name) for name in names]
    sizes = Counter(stems)
    loose = [one for one in stems if sizes[one] == 1]
    if len(loose) <= _LOOSE_MAX:
        return stems
    heads = Counter(_head(one) for one in loose)
    return [_gathered(one, heads) if sizes[one] == 1 else one for one in stems]


def _head(name: str) -> str:
    return _WORD.split(name, maxsplit=1)[0]


def _gathered(name: str, heads: Counter[str]) -> str:
    head = _head(name)
    return f"{head}…" if head and heads[head] > 1 else "others"
