"""The choices of an operator in a list: rows by a filter, and their order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import TypeVar

import msgspec

from ...engine.core.projection import TaskRow
from ...engine.core.views import STATE_STYLES

# --- The filter that the operator types after ``/``: required words, and excluded words with ``!`` -------------------
#
# ``load !timeout`` matches text with "load" and without "timeout"; case does not matter; a quoted phrase is one word.
# Every input is a valid filter.


class Filter(msgspec.Struct, frozen=True):
    """Words in lower case. An empty filter matches every text."""

    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.required or self.excluded)

    def matches(self, text: str) -> bool:
        """Whether a text matches. ``text`` must be in lower case (``casefold``): rows cache theirs."""
        return all(word in text for word in self.required) and not any(word in text for word in self.excluded)


def parse_filter(typed: str) -> Filter:
    """Parse what was typed. ``!`` alone is ignored, so that the list does not flicker during typing."""
    words = [word for word in _words(typed.casefold()) if word.removeprefix("!")]
    return Filter(
        tuple(word for word in words if not word.startswith("!")),
        tuple(word[1:] for word in words if word.startswith("!")),
    )


def searched_text(row: TaskRow) -> str:
    """The text that filters of tasks search: name, state, and the word for it on the screen."""
    return f"{row.name} {row.state} {STATE_STYLES[row.state].word}".casefold()


def search_pattern(typed: str) -> re.Pattern[str]:
    """The pattern of a search in lines: the very text; case does not matter."""
    return re.compile(re.escape(typed), re.IGNORECASE)


def _words(typed: str) -> list[str]:
    """Split at spaces outside double quotes; an unclosed quote reaches to the end."""
    return [word.replace('"', "") for word in re.findall(r'(?:[^ "]|"[^"]*"?)+', typed)]


# --- Orders ----------------------------------------------------------------------------------------------------------


def places_after(count: int, after: int, step: int, *, wraps: bool = True) -> Iterator[int]:
    """The places of a list after ``after``, with a ``step`` of -1 backwards. ``wraps``: go on at the other end."""
    for distance in range(1, count + 1):
        place = after + step * distance
        if not wraps and not 0 <= place < count:
            return
        yield place % count


Order = TypeVar("Order", bound=Enum)


def next_order(order: Order) -> Order:
    """The order after this one; after the last, the first."""
    orders = list(type(order))
    return orders[(orders.index(order) + 1) % len(orders)]
