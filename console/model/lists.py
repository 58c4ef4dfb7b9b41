"""What an operator chooses of a list: rows by a filter, their order, and columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from ...engine.domain.states import ABOUT_TO_START, TaskState
from ..keys.actions import ScreenName

# --- Filters ---------------------------------------------------------------------------------------------------------
#
# The filter that the operator types after ``/``: required words, and excluded words with ``!``.
#
# ``load !timeout`` matches text with "load" and without "timeout"; case does not matter; a quoted phrase is one word.
# Every input is a valid filter. Lists of tasks also know ``is:running``, ``is:waiting`` and ``is:problem``.


_IS = "is:"
#: Word behind ``is:`` -> the states of tasks that it stands for, in the order in which one key goes through them.
STATE_WORDS: Mapping[str, frozenset[TaskState]] = {
    "problem": frozenset({TaskState.DEAD_LETTER, TaskState.FAILED, TaskState.UPSTREAM_FAILED}),
    "running": frozenset({TaskState.RUNNING}),
    "waiting": ABOUT_TO_START,
}


_STATES_LEFT = {"problem": "problems", "running": "what runs", "waiting": "what waits"}


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


class RegexFilter(msgspec.Struct, frozen=True):
    """A filter that was typed as a regular expression."""

    pattern: re.Pattern[str]

    def matches(self, text: str) -> bool:
        return self.pattern.search(text) is not None


REGEX_SIGN = "~"  # typed before a regular expression


def parse_line_filter(typed: str) -> Filter | RegexFilter:
    """Parse a filter of lines: words, or a regular expression after ``~``; an unfinished one is a word."""
    pattern = _typed_pattern(typed)
    return RegexFilter(pattern) if pattern is not None else parse_filter(typed)


def search_pattern(typed: str) -> re.Pattern[str]:
    """What to search lines for: a regular expression after ``~``, else the very text; case does not matter."""
    return _typed_pattern(typed) or re.compile(re.escape(typed), re.IGNORECASE)


def _typed_pattern(typed: str) -> re.Pattern[str] | None:
    if not typed.startswith(REGEX_SIGN) or typed == REGEX_SIGN:
        return None
    try:
        return re.compile(typed[1:], re.IGNORECASE)
    except (re.error, OverflowError, RecursionError):
        return None


def line_regex(wanted: Filter | RegexFilter) -> str:
    """A filter of lines as a regular expression, for a search in the store."""
    if isinstance(wanted, RegexFilter):
        return wanted.pattern.pattern
    required = "".join(f"(?=.*{re.escape(word)})" for word in wanted.required)
    return f"^{required}" + "".join(f"(?!.*{re.escape(word)})" for word in wanted.excluded)


def parse_task_filter(typed: str) -> Filter:
    """Parse a filter of a list of tasks, with ``is:`` words; of several, any may hold."""
    found = parse_filter(typed)
    named = [word for word in found.required if word.removeprefix(_IS) in STATE_WORDS and word.startswith(_IS)]
    if not named:
        return found
    states = frozenset().union(*(STATE_WORDS[word.removeprefix(_IS)] for word in named))
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
    left = [words for word, words in _STATES_LEFT.items() if f"{_IS}{word}" in typed.split(" ")]
    return f"only {', '.join(left)}" if left else "all states"


def _words(typed: str) -> Iterable[str]:
    """Split at spaces outside double quotes; an unclosed quote reaches to the end."""
    word = ""
    quoted = False
    for character in typed:
        if character == '"':
            quoted = not quoted
        elif character == " " and not quoted:
            yield word
            word = ""
        else:
            word += character
    yield word


# --- Orders ----------------------------------------------------------------------------------------------------------


Order = TypeVar("Order", bound=Enum)


def next_order(order: Order) -> Order:
    """The order after this one; after the last, the first."""
    orders = list(type(order))
    return orders[(orders.index(order) + 1) % len(orders)]


# --- Columns ---------------------------------------------------------------------------------------------------------
#
# The columns of each list that an operator can choose from. The column that names a row always stays.


class Column(NamedTuple):
    """``name``: in the dialog and in ``columns.toml``; ``help``: what it shows."""

    name: str
    help: str


FLEET = "fleet"  # the list of state files, which is not a screen of the console

#: Name of a list -> its columns, in the order in which they are shown. Narrow lists leave some out by themselves.
COLUMNS: Mapping[str, tuple[Column, ...]] = {
    ScreenName.RUNS.value: (
        Column("bar", "how many tasks are done, run, wait or failed"),
        Column("done", "finished tasks, of all"),
        Column("took", "how long it has lasted"),
        Column("counts", "what runs, waits or failed, in numbers"),
        Column("notes", "how late it is, and why it makes no progress"),
        Column("started", "day and time of its start, on wide screens"),
    ),
    ScreenName.GRAPH.value: (
        Column("lines", "the lines to parents and children, where a list has room for them"),
        Column("attempts", "attempts so far, of all that are allowed"),
        Column("bars", "progress, backoff and the states of a group as bars"),
        Column("usage", "CPU, memory and the last line of what runs"),
    ),
    ScreenName.TIMELINE.value: (
        Column("done", "tasks of a group that are done or need a human, of all"),
        Column("took", "how long the attempts of a task ran, on wide screens"),
    ),
    ScreenName.INBOX.value: (
        Column("downstream", "the downstream that the tasks call"),
        Column("message", "the text of the failure"),
        Column("holds", "how many tasks wait below"),
        Column("age", "since when the first task waits for a decision"),
    ),
    ScreenName.JOURNAL.value: (
        Column("time", "since the start of the run, or by the clock"),
        Column("subject", "the task, or what else the event is about"),
        Column("actor", "who did it"),
        Column("reason", "why"),
    ),
    ScreenName.SYSTEMS.value: (
        Column("failed", "calls of a downstream that failed, of all"),
        Column("retries", "how many retries the budget of a downstream has left"),
        Column("holds", "how many tasks its breaker holds"),
    ),
    ScreenName.HISTORY.value: (
        Column("usual", "how long the task takes usually"),
        Column("trend", "a cell for each run: the darker, the longer it took"),
    ),
    FLEET: (
        Column("done", "finished tasks of its latest run, of all"),
        Column("since", "since when its latest run is in this state"),
        Column("executor", "whether a process runs the file"),
        Column("nights", "the worst end on each of the last 14 days with runs"),
        Column("next", "when its next run starts, on wide screens"),
        Column("file", "the name of the file, on wide screens"),
    ),
}


#: For rows outside the lists of the console.
ALL_COLUMNS = frozenset(column.name for columns in COLUMNS.values() for column in columns)


class ColumnChoice:
    """The columns that are shown in each list: all, unless an operator has chosen."""

    def __init__(self, chosen: Mapping[str, Iterable[str]] | None = None) -> None:
        self._chosen = {name: frozenset(columns) for name, columns in (chosen or {}).items()}

    def shown_in(self, name: str) -> frozenset[str]:
        known = frozenset(column.name for column in COLUMNS[name])
        return known & self._chosen.get(name, known)

    def choose(self, name: str, columns: Iterable[str]) -> None:
        """Show these columns alone."""
        self._chosen[name] = frozenset(columns)

    def as_dict(self) -> dict[str, list[str]]:
        """What was chosen, for the file."""
        return {name: sorted(columns) for name, columns in sorted(self._chosen.items())}
