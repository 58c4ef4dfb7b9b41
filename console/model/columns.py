"""The columns of each list that an operator can choose from. The column that names a row always stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..keys.actions import ScreenName


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
    ScreenName.DOWNSTREAMS.value: (
        Column("failed", "calls of a downstream that failed, of all"),
        Column("retries", "how many retries the budget of a downstream has left"),
        Column("holds", "how many tasks its breaker holds"),
    ),
    ScreenName.HISTORY.value: (
        Column("usual", "how long the task takes usually"),
        Column("trend", "its duration in each run as a small chart, on wide screens"),
    ),
    FLEET: (
        Column("executor", "whether a process runs the file"),
        Column("next", "when its next run starts"),
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
        """The names of the columns of a list."""
        known = frozenset(column.name for column in COLUMNS[name])
        return known & self._chosen.get(name, known)

    def choose(self, name: str, columns: Iterable[str]) -> None:
        """Show these columns alone."""
        self._chosen[name] = frozenset(columns)

    def as_dict(self) -> dict[str, list[str]]:
        """What was chosen, for the file."""
        return {name: sorted(columns) for name, columns in sorted(self._chosen.items())}
