"""The result of a played night, with all that a test may ask of it."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from itertools import pairwise
from typing import Any, Protocol

from ..core.option_types import Duration, parse_duration
from ..core.projection import AttemptRow, RunProjection
from ..domain.event_codec import event_of
from ..domain.events import Event
from ..domain.rows import PageRow
from ..statefile.lists import PAGES, query
from ..statefile.reader import events_query
from ..store import database, runs
from .bodies import StageError
from .director import AttemptStart, Times
from .faults import DownstreamFault, Fault

VIEW_GROUP = "redrive.night_view"  # of entry points: what shows a night as the console does


@dataclass(frozen=True, slots=True)
class Stored:
    """A night as it is kept: its state file, and what only the stage knows. Instants in microseconds UTC."""

    folder: tempfile.TemporaryDirectory[str]
    path: str
    start_us: int
    end_us: int
    starts: tuple[AttemptStart, ...]
    answers: tuple[tuple[str, bool, str], ...]  # act, whether it changed something, the answer
    faults: tuple[Fault, ...]
    times: Times


@dataclass(frozen=True, slots=True)
class NightCause:
    """A row of the inbox: tasks that failed alike.

    Attributes:
        title: what failed and where; ``message``: of the failure.
        kind: of the dead letter: "poison", "permanent", "auth", ...; None if the tasks are FAILED.
        evidence: why its first task waits, as its detail says.
        tasks: by name.
    """

    title: str
    message: str
    kind: str | None
    evidence: str
    tasks: Sequence[str]


class NightView(Protocol):
    """Shows one run of a night as the console does. ``at``: microseconds UTC."""

    def timeline(self) -> str: ...
    def header(self, at: int) -> str: ...
    def why(self, task: str, at: int) -> str: ...
    def inbox(self, at: int) -> Sequence[NightCause]: ...
    def summary(self) -> str: ...
    def journal(self) -> Sequence[str]: ...
    def exit_code(self) -> int: ...


OpenView = Callable[[RunProjection, Sequence[Event], sqlite3.Connection, int], NightView]


class Night:
    """A run of a night; ``runs`` has all of them. Seconds count from the start of the night.

    Attributes:
        run_id: the name of the run, which is the latest one of the night.
    """

    def __init__(self, stored: Stored, run_ids: tuple[str, ...]) -> None:
        self._stored = stored
        self._run_ids = run_ids
        self.run_id = run_ids[-1]

    @property
    def runs(self) -> Sequence[Night]:
        """The runs of the night, in order."""
        return [Night(self._stored, self._run_ids[: place + 1]) for place in range(len(self._run_ids))]

    # --- The file ----------------------------------------------------------------------------------------------------

    @property
    def state_file(self) -> str:
        """The path of the state file, which exists as long as this object; ``play(..., keep=)`` keeps a copy."""
        return self._stored.path

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy the state file."""
        shutil.copyfile(self._stored.path, path)

    def _connect(self) -> closing[sqlite3.Connection]:
        return closing(database.open_beside_writer(self._stored.path))

    @cached_property
    def projection(self) -> RunProjection:
        """The run as its tables have it."""
        with self._connect() as connection:
            return runs.load_run(connection, self.run_id)

    @cached_property
    def events(self) -> Sequence[Event]:
        """All events of the run and of the file itself, in order."""
        with self._connect() as connection:
            found = connection.execute(*events_query(0, 2**40, self.run_id))
            return list(map(event_of, found))

    def query(self, sql: str, *values: object) -> list[Any]:
        """Rows of the state file."""
        with self._connect() as connection:
            return connection.execute(sql, values).fetchall()

    # --- The run -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """SUCCESS, FAILED, PARTIAL, ABANDONED; BLOCKED if it waits for a human; RUNNING if it was stopped."""
        run = self.projection.run
        return "BLOCKED" if run.ended_at is None and run.blocked_since is not None else str(run.state)

    @property
    def seconds(self) -> float:
        """Seconds from the start of the run to its end, or until it is blocked, or to the end of the night."""
        return (self._end_us - self.projection.run.started_at) / 1e6

    @property
    def _end_us(self) -> int:
        run = self.projection.run
        return run.ended_at or run.blocked_since or self._stored.end_us

    @property
    def states(self) -> dict[str, str]:
        """The state of each task."""
        return {name: str(row.state) for name, row in self.projection.tasks.items()}

    def attempts(self, task: str) -> list[AttemptRow]:
        """The attempts of a task, in order, as the table ``attempt`` has them."""
        return list(self._row(task).attempts.values())

    def result(self, task: str) -> Any:
        """The value that a task returned."""
        text = self._row(task).result
        return None if text is None else json.loads(text)

    def _row(self, task: str) -> Any:
        try:
            return self.projection.tasks[task]
        except KeyError:
            raise StageError(f"run {self.run_id!r} has no task {task!r}") from None

    def starts(self, task: str | None = None) -> int:
        """The number of attempts that were started, of all tasks, or of one with the children of that map task."""
        return len(self._starts(task))

    def start_seconds(self, task: str | None = None) -> list[float]:
        """The starts of these attempts, in seconds."""
        return [start.seconds for start in self._starts(task)]

    def _starts(self, task: str | None) -> list[AttemptStart]:
        ours = [start for start in self._stored.starts if start.run_id == self.run_id]
        return [start for start in ours if task is None or task in (start.task, start.declared)]

    def calls(self, downstream: str) -> list[float]:
        """The calls of a downstream by the attempts of its tasks, in seconds."""
        return [start.seconds for start in self._starts(None) if start.downstream == downstream]

    def waits(self, task: str) -> list[float]:
        """The seconds between the end of each attempt of a task and the start of the next."""
        pairs = pairwise(self.attempts(task))
        return [(later.started_at - earlier.ended_at) / 1e6 for earlier, later in pairs if earlier.ended_at is not None]

    @property
    def answers(self) -> Sequence[tuple[str, bool, str]]:
        """The answers to the acts: the act, whether it changed something, and the sentence."""
        return self._stored.answers

    @property
    def pages(self) -> list[PageRow]:
        """The pages of the run, the first one first."""
        with self._connect() as connection:
            pages = query(connection, PAGES, {})
        return sorted((page for page in pages if page.run_id == self.run_id), key=lambda page: page.id)

    # --- When it healed ----------------------------------------------------------------------------------------------

    def healed_after(self, after: str | None = None) -> float:
        """Return the seconds from the end of the last fault of a downstream to the end of the run.

        ``after``: the downstream; None: from the end of the last fault of any. 0: the run ended before. Infinite: the
        run has not succeeded.
        """
        if self.state != "SUCCESS":
            return math.inf
        run_end = (self._end_us - self._stored.start_us) / 1e6
        return max(0.0, run_end - self._recovery_seconds(after))

    def healed_within(self, duration: Duration, *, after: str | None = None) -> bool:
        """Whether the run has succeeded so soon after the end of the last fault of a downstream."""
        return self.healed_after(after) <= parse_duration(duration)

    def _recovery_seconds(self, downstream: str | None) -> float:
        faults = [fault for fault in self._stored.faults if isinstance(fault, DownstreamFault)]
        named = [fault.when for fault in faults if downstream in (None, fault.downstream)]
        ends = [self._stored.times.span(when)[1] for when in named if when.lasts is not None]
        if not ends:
            raise StageError(f"the night has no fault of {downstream or 'a downstream'} that ends")
        return max(ends)

    # --- As the console shows it -------------------------------------------------------------------------------------

    @cached_property
    def _view(self) -> NightView:
        found = list(entry_points(group=VIEW_GROUP))
        if not found:
            raise StageError("what the console shows needs the installed package: pip install redrive (or -e . again)")
        open_view: OpenView = found[0].load()
        with self._connect() as connection:
            return open_view(self.projection, self.events, connection, self._stored.end_us)

    @property
    def timeline(self) -> str:
        """The timeline of the console as text."""
        return self._view.timeline()

    @property
    def summary(self) -> str:
        """The last lines of ``redrive run``."""
        return self._view.summary()

    @property
    def journal(self) -> Sequence[str]:
        """The events as lines."""
        return self._view.journal()

    @property
    def exit_code(self) -> int:
        """The exit code of ``redrive run``."""
        return self._view.exit_code()

    @property
    def inbox(self) -> Sequence[NightCause]:
        """The causes in the inbox at the end."""
        return self._view.inbox(self._stored.end_us)

    def inbox_at(self, at: object) -> Sequence[NightCause]:
        """The causes in the inbox at an instant."""
        return self._view.inbox(self._instant(at))

    def header(self, at: object) -> str:
        """The words of the header at an instant."""
        return self._view.header(self._instant(at))

    def why(self, task: str, at: object) -> str:
        """Why a task does not run at an instant, in one sentence."""
        self._row(task)
        return self._view.why(task, self._instant(at))

    def _instant(self, at: object) -> int:
        return self._stored.start_us + round(self._stored.times.seconds(at) * 1e6)

    def __repr__(self) -> str:
        return f"<run {self.run_id!r}: {self.state} after {self.seconds:.1f} s, {self.starts()} starts>"
