"""What was told before a power cut, and whether the files that are left still say it."""

from __future__ import annotations

import json
import random
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.rows import RunRow
from redrive.engine.statefile.reader import events_query
from redrive.engine.store import runs

from .disk import Cut, Disk
from .recording import Call

SUFFIXES = ("", "-wal", "-journal")
_MOVE = re.compile(r"\] (\S+) (RUNNING|SUCCESS|RETRYING|DEAD_LETTER)")
_END = re.compile(r"\] run (\S+) (SUCCESS|FAILED|PARTIAL|BLOCKED)")


class Broken(Exception):
    """Something that was told is not in the file any more, or the file is not whole."""


def opened(state: Path) -> sqlite3.Connection | None:
    """Open what is left of a state file. None: it has no tables yet."""
    if not state.exists() or not state.stat().st_size:
        return None
    connection = sqlite3.connect(state)
    (found,) = connection.execute("PRAGMA integrity_check").fetchone()
    if found != "ok":
        raise Broken(f"integrity check: {found}")
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'event'").fetchone() is None:
        connection.close()
        return None
    return connection


@dataclass(slots=True)
class AcknowledgedNumbers:
    """What ``writer_under_trace.py`` has printed."""

    last: int = 0

    def follow(self, call: Call) -> None:
        if call.name == "write" and call.path.startswith("pipe:"):
            self.last = int(call.data)

    def check(self, state: Path) -> None:
        found: list[int] = []
        connection = opened(state)
        if connection is not None:
            with closing(connection):
                rows = connection.execute("SELECT json_extract(data, '$.what') FROM event ORDER BY seq").fetchall()
                found = [int(what) for (what,) in rows]
        if found != list(range(1, len(found) + 1)):
            raise Broken(f"the commits that are left have a gap: {found}")
        if len(found) < self.last:
            raise Broken(f"{self.last} was told, and the last is {len(found)}")


@dataclass(slots=True)
class AcknowledgedByRun:
    """What a run has told: by its lines, its answers, its pages, its effects and its exit code."""

    run_id: str
    executor: int  # its pid
    moves: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers: int = 0
    pages: set[str] = field(default_factory=set)
    effects: set[str] = field(default_factory=set)
    state: str = ""
    exit_code: int | None = None

    def follow(self, call: Call) -> None:
        if call.name == "exit_group" and call.pid == self.executor:
            self.exit_code = call.numbers[0]
        elif call.name == "sendto" and call.path.startswith("socket:") and b'"results"' in call.data:
            self.answers += 1
        elif call.name == "write" and call.path.startswith("pipe:") and call.pid == self.executor:
            output = call.data.decode(errors="replace")
            self.moves.update(match.groups() for match in _MOVE.finditer(output))  # type: ignore[misc]
            self.state = next((match[2] for match in _END.finditer(output)), self.state)
        elif call.name == "write" and call.path.endswith("/paged"):
            self.pages.add(call.data.decode().strip())
        elif call.name == "write" and call.path.endswith("/paid"):
            self.effects.add(call.data.decode().strip())

    def check(self, state: Path) -> None:
        connection = opened(state)
        if connection is None:
            if self.moves or self.answers or self.effects:
                raise Broken("the file is empty, and something was told")
            return
        with closing(connection):
            self._check_tables(connection)
            self._check_acknowledged(connection)

    def _check_tables(self, connection: sqlite3.Connection) -> None:
        if connection.execute("SELECT count(*) FROM run").fetchone()[0]:
            now = runs.load_run(connection, self.run_id)
            projection = _projection(connection, now)
            for name, row in now.tasks.items():
                for attempt, other in zip(row.attempts.values(), projection.tasks[name].attempts.values(), strict=True):
                    if attempt.outcome == "running":  # its output is counted in an event at its end only
                        other.output_bytes = attempt.output_bytes
            if (projection.tasks, projection.run) != (now.tasks, now.run):
                raise Broken(f"the projection of the events is {projection}, the tables are {now}")

    def _check_acknowledged(self, connection: sqlite3.Connection) -> None:
        moved = "SELECT task, new, count(*) FROM event WHERE task IS NOT NULL AND new IS NOT NULL GROUP BY 1, 2"
        found = Counter({(task, new): count for task, new, count in connection.execute(moved)})
        if missing := self.moves - found:
            raise Broken(f"told, and not in the file: {missing}")
        acts = connection.execute("SELECT count(DISTINCT command_id) FROM event").fetchone()[0]
        if acts < self.answers:
            raise Broken(f"{self.answers} acts were answered, {acts} are in the file")
        began = connection.execute("SELECT data FROM event WHERE kind = 'attempt.effect'").fetchall()
        if missing_keys := self.effects - {json.loads(data)["key"] for (data,) in began}:
            raise Broken(f"effects that nobody knows of: {missing_keys}")
        keys = {key for (key,) in connection.execute("SELECT cause || '/' || episode FROM page")}
        if missing_pages := self.pages - keys:
            raise Broken(f"pages that nobody knows of: {missing_pages}")
        if self.state or self.exit_code is not None:
            (ended,) = connection.execute("SELECT state FROM run").fetchone()
            if (self.state and ended != self.state) or (self.exit_code == 0 and ended != "SUCCESS"):
                raise Broken(f"told {self.state}, exit code {self.exit_code}; the file says {ended}")


def _projection(connection: sqlite3.Connection, now: RunProjection) -> RunProjection:
    """Fold the events; only what no event tells is taken from the tables."""
    projection = RunProjection(RunRow(now.run.run_id), parents=dict(now.parents))
    for name, row in now.tasks.items():
        projection.tasks[name] = TaskRow(name, max_attempts=row.max_attempts, position=row.position, spec=row.spec)
    for event in map(event_of, connection.execute(*events_query(0, 1_000_000))):
        projection.apply(event)
    return projection


Acknowledged = AcknowledgedNumbers | AcknowledgedByRun


def cut_everywhere(
    calls: Sequence[Call],
    cuts: Sequence[Cut],
    state: Path,
    acknowledged: Acknowledged,
    place: Path,
    see: Callable[[Path], None] = lambda state: None,
) -> list[str]:
    """Check every cut in a new folder in ``place``, and return what is broken. ``see`` gets the files of each."""
    disk = Disk(str(state.parent), frozenset(f"{state}{suffix}" for suffix in SUFFIXES))
    broken: list[str] = []
    left = list(reversed(cuts))
    for number, call in enumerate(calls):
        disk.follow(number, call)
        acknowledged.follow(call)
        while left and left[-1].number == number:
            cut, folder = left.pop(), place / str(len(left))
            folder.mkdir()
            disk.cut(folder, cut.left, random.Random(cut.seed))
            try:
                acknowledged.check(folder / state.name)
            except Exception as error:
                broken.append(f"{cut}: {type(error).__name__}: {error}")
            else:
                see(folder / state.name)
            shutil.rmtree(folder)
    return broken
