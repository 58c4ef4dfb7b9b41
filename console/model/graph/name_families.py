"""Families of task names: names that differ only in their numbers, as ``load_part_0001`` and ``load_part_0002``."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile

_BRACKETS = re.compile(r"\s*[(\[{].*[)\]}]\s*$", re.DOTALL)
_NUMBERS = re.compile(r"(?:[-_.:/#@ ]*(?:ID|id)?\d+)+$")
_BRACKET_ENDS = frozenset(")]}" + string.whitespace)
_WORD = re.compile(r"[-_.:/ ]")
_SINGLES_MAX = 6  # families of one task that are listed before they are merged


_SEPARATORS = ".:/"
_PREFIX_MIN = 6  # characters; a shorter prefix is part of the names
_PREFIXED_MIN = 3  # names


def common_start(names: Sequence[str]) -> str:
    """Return the characters that all names begin with."""
    pairs = zip(min(names), max(names), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def shared_prefix(names: Sequence[str]) -> str:
    """Return what all names begin with, up to a separator; "" if it is very short or a whole name."""
    if len(names) < _PREFIXED_MIN:
        return ""
    shared = common_start(names)
    end = max(shared.rfind(separator) for separator in _SEPARATORS) + 1
    return shared[:end] if end >= _PREFIX_MIN and min(map(len, names)) > end else ""


def stem(name: str) -> str:
    """Return the name without trailing numbers and brackets, or the name itself if nothing else remains."""
    has_brackets = name[-1:] in _BRACKET_ENDS
    return _NUMBERS.sub("", _BRACKETS.sub("", name) if has_brackets else name) or name


def families(names: Sequence[str]) -> list[str]:
    """Return the family of each name. Many families of one are merged by their first word, or as ``others``."""
    stems = [stem(name) for name in names]
    sizes = Counter(stems)
    singles = [one for one in stems if sizes[one] == 1]
    if len(singles) <= _SINGLES_MAX:
        return stems
    heads = Counter(_head(one) for one in singles)
    return [_family_of_single(one, heads) if sizes[one] == 1 else one for one in stems]


def _head(name: str) -> str:
    return _WORD.split(name, maxsplit=1)[0]


def _family_of_single(name: str, heads: Counter[str]) -> str:
    head = _head(name)
    return f"{head}…" if head and heads[head] > 1 else "others"
