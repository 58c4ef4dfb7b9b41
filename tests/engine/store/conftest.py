"""A state file on disk with one small run in it, and short words to move it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redrive.engine.core.projection import RunProjection
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.acts import Answer, Author, parse_command
from redrive.engine.domain.event_payloads import AnswerFields
from redrive.engine.domain.events import Event
from redrive.engine.statefile import operator_actions
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import claims, database, runs

T = TypeVar("T")
SECOND = 1_000_000
START = 1_700_000_000 * SECOND
RUN = "night"


class StateFile:
    """One open state file with its run ``night``. The clock ``now`` is set by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = database.open_for_writing(path)
        self.connection.execute("PRAGMA synchronous=OFF")  # no power fails here
        self.now = START
        self.emitted: list[Event] = []
        self._ids = itertools.count(1)

    def write(self, item: Callable[..., T], **who: str) -> T:
        """One transaction, as the writer makes it."""
        self.connection.execute("BEGIN IMMEDIATE")
        transaction = Transaction(self.connection, self.now, Author(**who))
        try:
            result = item(transaction)
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        self.emitted += transaction.events
        return result

    def create(self, edges: Mapping[str, str], **specs: Any) -> None:
        """A run of tasks, each with its parents in one string: ``{"a": "", "b": "a"}``.

        ``specs``: fields of a task by name, as ``b={"rule": "all_done"}``.
        """
        tasks = tuple(TaskSpec(name, tuple(parents.split()), **specs.get(name, {})) for name, parents in edges.items())
        self.write(
            lambda transaction: runs.create_run(
                transaction,
                run_id=RUN,
                flow=FlowSpec("settlement", tasks),
                max_parallel=4,
                params={},
                at=self.now,
                deadline_at=None,
            )
        )

    def set_state(self, name: str, state: str, **columns: Any) -> None:
        """Set a row to any state, as no code of ours would."""
        columns["state"] = state
        assignments = ", ".join(f"{column} = ?" for column in columns)
        self.connection.execute(
            f"UPDATE task SET {assignments} WHERE run_id = ? AND name = ?", (*columns.values(), RUN, name)
        )

    def move(self, name: str, *states: str, **columns: Any) -> None:
        """Move a task along these states; ``columns`` go with the last move."""
        for state in states:
            old, generation = self.column(name, "state"), self.column(name, "generation")
            last = columns if state == states[-1] else None
            assert self.write(lambda j, o=old, s=state, g=generation, c=last: j.move(RUN, name, o, s, g, set=c))

    def claim(self, name: str, token: str = "token") -> int:
        """Start the next attempt of a READY task."""
        generation = self.column(name, "generation")
        return self.write(lambda j: claims.claim(j, RUN, name, generation, token, {"executor_id": "executor-1"}))

    def column(self, name: str, column: str) -> Any:
        """One value of a task's row."""
        sql = f"SELECT {column} FROM task WHERE run_id = ? AND name = ?"
        return self.connection.execute(sql, (RUN, name)).fetchone()[0]

    def run_column(self, column: str) -> Any:
        """One value of the run's row."""
        return self.connection.execute(f"SELECT {column} FROM run WHERE run_id = ?", (RUN,)).fetchone()[0]

    def states(self) -> dict[str, str]:
        """Every task and its state."""
        return dict(self.connection.execute("SELECT name, state FROM task WHERE run_id = ?", (RUN,)).fetchall())

    def projection(self) -> RunProjection:
        """The run as of now."""
        return runs.load_run(self.connection, RUN)

    def command(self, act: str, *names: str, actor: str = "ana@ops", **options: Any) -> dict[str, Any]:
        """A command of an operator who sees the tasks as they are now."""
        targets = [[name, self.column(name, "state"), self.column(name, "generation")] for name in names]
        return {
            "id": f"command-{next(self._ids)}",
            "act": act,
            "run_id": RUN,
            "targets": targets,
            "actor": actor,
            "reason": "the vendor has fixed it",
            "options": options,
        }

    def send(self, command: dict[str, Any], is_abandoned: bool = False) -> AnswerFields:
        """Have a command applied, and its answer as it goes over the wire."""
        try:
            read = parse_command(command)
        except ValueError as error:
            return Answer(False, str(error)).as_json()
        return self.write(lambda transaction: operator_actions.apply(transaction, read, is_abandoned)).as_json()

    def act(self, act: str, *names: str, **options: Any) -> AnswerFields:
        """Make a command and have it applied."""
        return self.send(self.command(act, *names, **options))


@pytest.fixture
def state_file(tmp_path: Path) -> Iterator[StateFile]:
    """An empty state file."""
    opened = StateFile(tmp_path / "state.db")
    yield opened
    opened.connection.close()


@pytest.fixture
def make_state_file(tmp_path: Path) -> Iterator[Callable[[str], StateFile]]:
    """As many state files as a test wants."""
    opened: list[StateFile] = []

    def make(name: str) -> StateFile:
        opened.append(StateFile(tmp_path / name))
        return opened[-1]

    yield make
    for state_file in opened:
        state_file.connection.close()
