"""What the names of a run's tasks have in common, and rows leave out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

_SEPARATORS = ".:/"
_PREFIX_MIN = 6  # characters; a shorter prefix is part of the names
_PREFIXED_MIN = 3  # names


def common_start(names: Sequence[str]) -> str:
    """Return the characters that all names begin with."""
    pairs = zip(min(names), max(names), strict=False)
    return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def shared_prefix(names: Sequence[str], least: int = _PREFIXED_MIN) -> str:
    """Return what all names begin with, up to a separator; "" if it is very short or a whole name.

    ``least``: of fewer names, nothing is taken off.
    """
    if len(names) < least:
        return ""
    shared = common_start(names)
    end = max(shared.rfind(separator) for separator in _SEPARATORS) + 1
    return shared[:end] if end >= _PREFIX_MIN and min(map(len, names)) > end else ""
