"""What an operator chooses of a list: rows by a filter, and their order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from ...engine.domain.states import ABOUT_TO_START, TaskState

# --- The filter that the operator types after ``/``: required words, and excluded words with ``!`` -------------------
#
# ``load !timeout`` matches text with "load" and without "timeout"; case does not matter; a quoted phrase is one word.
# Every input is a valid filter. Lists of tasks also know ``is:running``, ``is:waiting`` and ``is:problem``.


_IS = "is:"
#: Word behind ``is:`` -> the states of tasks that it stands for, and what is left then; one key goes through them.
STATE_WORDS: Mapping[str, tuple[frozenset[TaskState], str]] = {
    "problem": (frozenset({TaskState.DEAD_LETTER, TaskState.FAILED, TaskState.UPSTREAM_FAILED}), "problems"),
    "running": (frozenset({TaskState.RUNNING}), "what runs"),
    "waiting": (ABOUT_TO_START, "what waits"),
}


class Filter(msgspec.Struct, frozen=True):
    """Words in lower case. An empty filter matches every text. ``states``: of tasks; None: any."""

    required: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    states: frozenset[TaskState] | None = None

    def __bool__(self) -> bool:
        return bool(self.required or self.excluded or self.states is not None)

    def matches_task(self, text: str, state: TaskState) -> bool:
        """Whether a task in ``state`` matches. ``text``: see ``matches``."""
        return (self.states is None or state in self.states) and self.matches(text)

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


def search_pattern(typed: str) -> re.Pattern[str]:
    """What to search lines for: the very text; case does not matter."""
    return re.compile(re.escape(typed), re.IGNORECASE)


def parse_task_filter(typed: str) -> Filter:
    """Parse a filter of a list of tasks, with ``is:`` words; of several, any may hold."""
    found = parse_filter(typed)
    named = [word for word in found.required if word.removeprefix(_IS) in STATE_WORDS and word.startswith(_IS)]
    if not named:
        return found
    states = frozenset().union(*(STATE_WORDS[word.removeprefix(_IS)][0] for word in named))
    return replace(found, required=tuple(word for word in found.required if word not in named), states=states)


def next_state_filter(typed: str) -> str:
    """The filter with the next ``is:`` word, or with none after the last; the other words stay."""
    words = typed.split(" ")
    cycle = ["", *(f"{_IS}{word}" for word in STATE_WORDS)]
    now = next((word for word in words if word in cycle[1:]), "")
    after = cycle[(cycle.index(now) + 1) % len(cycle)]
    return " ".join(filter(None, [after, *(word for word in words if word not in cycle)]))


def describe_state_filter(typed: str) -> str:
    """Which states a filter leaves, in words."""
    shown = [left for word, (_, left) in STATE_WORDS.items() if f"{_IS}{word}" in typed.split(" ")]
    return f"only {', '.join(shown)}" if shown else "all states"


def _words(typed: str) -> list[str]:
    """Split at spaces outside double quotes; an unclosed quote reaches to the end."""
    return [word.replace('"', "") for word in re.findall(r'(?:[^ "]|"[^"]*"?)+', typed)]


# --- Orders ----------------------------------------------------------------------------------------------------------


Order = TypeVar("Order", bound=Enum)


def next_order(order: Order) -> Order:
    """The order after this one; after the last, the first."""
    orders = list(type(order))
    return orders[(orders.index(order) + 1) % len(orders)]
