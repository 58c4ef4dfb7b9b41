"""The same sequences by the executor itself: its loop, processes and threads, and a new one after each act."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from redrive.engine import Executor, Flow, NotReady, PermanentError, RetryPolicy, RunOptions, SkipTask, TaskDef
from redrive.engine.core.projection import RunProjection
from redrive.engine.domain.acts import Author, Command, Target
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.event_payloads import TaskChanged, TaskMapped, TaskMoved
from redrive.engine.domain.events import Event
from redrive.engine.errors import TransientError
from redrive.engine.statefile import operator_actions
from redrive.engine.statefile.reader import events_query
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database, runs

from .operators import Model, Scripted
from .sequences import LIST_MAX, RUN, SKIPPED, Night, Sequence


class RealNight(Night):
    """A sequence whose acts come between two executors."""

    def __init__(self, sequence: Sequence, path: Path) -> None:
        self._executor = RealExecutor(sequence, path)
        super().__init__(sequence, self._executor)

    def work(self) -> None:
        self._executor.run(self.model)
        self._check()


class RealExecutor:
    """A state file, executors one after another, and acts while none is alive."""

    def __init__(self, sequence: Sequence, path: Path) -> None:
        self.running: dict[str, object] = {}
        self.mapped: list[str] = []
        self.sent: list[str] = []
        self._flow = _flow_of(sequence)
        self._path = path
        self._ids = itertools.count(1)
        self._seq = 0
        self._state = ""

    def run(self, model: Model) -> None:
        """Run an executor to its end, and tell the model what it did."""
        options = RunOptions(resume=self._path.exists())
        if self._state not in ("", "BLOCKED", "RUNNING"):
            return  # the act has not reopened the run
        result = Executor(run_id=RUN, flow=self._flow, state=self._path, options=options).run_result()
        self._state = result.state
        for event in self._new_events():
            _tell(model, event)

    def _new_events(self) -> list[Event]:
        with database.reading(str(self._path)) as connection:
            events = list(map(event_of, connection.execute(*events_query(self._seq, 1_000_000))))
        self._seq = events[-1].seq if events else self._seq
        return events

    def _projection(self) -> RunProjection:
        with database.reading(str(self._path)) as connection:
            return runs.load_run(connection, RUN)

    def states(self) -> dict[str, str]:
        """Return the state of each task; of SKIPPED with who skipped it."""
        rows = self._projection().tasks.values()
        return {row.name: SKIPPED[row.skip_cause or ""] if row.state == "SKIPPED" else str(row.state) for row in rows}

    def send(self, act: str, names: list[str], options: Mapping[str, object]) -> tuple[str, dict[str, str]]:
        """Apply an act as the shell does when no executor is alive."""
        tasks = self._projection().tasks
        targets = tuple(Target(name, str(tasks[name].state), tasks[name].generation) for name in names)
        command = Command(f"c{next(self._ids)}", act, RUN, targets, "ana@ops", "a reason", dict(options))
        with closing(database.open_for_writing(str(self._path))) as connection:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection, 1_790_000_000_000_000 + self._seq, Author("ana@ops"))
            answer = operator_actions.apply(transaction, command, is_abandoned=True)
            connection.execute("COMMIT")
            run = runs.load_run(connection, RUN).run
        self._state = "BLOCKED" if run.blocked_since is not None else str(run.state)
        self.mapped = [str(event.task) for event in self._new_events() if isinstance(event.payload, TaskMapped)]
        outcomes = {result.task: result.outcome for result in answer.results}
        if "done" in outcomes.values():
            self.sent.append(command.id)
        return command.id, outcomes

    def rest(self) -> str:
        """Return the state in which the executor left the run."""
        return self._state

    def check_memory(self) -> None:
        """There is none between two executors."""


def _tell(model: Model, event: Event) -> None:
    """Tell the model of one event of an executor."""
    name, payload = str(event.task), event.payload
    if isinstance(payload, TaskMapped):
        model.expand(name)
    if isinstance(payload, TaskMoved):
        if event.new == "RUNNING":
            model.start(name, payload.set["attempt"])
        elif event.old == "RUNNING":
            model.end(name)
        cause = payload.set.get("skip_cause") or ""
        model.states[name] = SKIPPED[cause] if event.new == "SKIPPED" else str(event.new)
    elif isinstance(payload, TaskChanged) and payload.set.get("skip_cause"):
        model.states[name] = SKIPPED[payload.set["skip_cause"] or ""]


# --- The flow ------------------------------------------------------------------------------------------------------


def _flow_of(sequence: Sequence) -> Flow:
    flow = Flow("sequence", max_parallel=sequence.slots)
    for number, task in enumerate(sequence.tasks):
        flow.add(
            TaskDef(
                task.name,
                _child_body(task) if task.over is not None else _body(task),
                list(task.parents),
                rule=task.rule,  # type: ignore[arg-type]
                kind="sensor" if "wait" in task.script and task.over is None else "python",
                map_over=task.over,
                max_size=LIST_MAX,
                recheck_seconds=0.05,
                isolation="process" if number == 0 else "thread",
                timeout_seconds=60,
                optional=task.optional,
                retry=RetryPolicy(max_attempts=task.max_attempts, base=0.01, cap=0.02, poison_after=None),
            )
        )
    return flow


def _body(task: Scripted) -> Callable[..., Any]:
    def body(ctx: Any) -> object:
        return _do(task, ctx.attempt)

    return body


def _child_body(task: Scripted) -> Callable[..., Any]:
    def body(element: int, ctx: Any) -> object:
        return _do(task, ctx.attempt)

    return body


def _do(task: Scripted, attempt: int) -> object:
    does = task.does(attempt)
    if does in _ERRORS:
        raise _ERRORS[does]("as scripted")
    return json.loads(json.dumps(task.list_of(attempt))) if task.lists else 1


_ERRORS: dict[str, type[BaseException]] = {
    "skip": SkipTask,
    "wait": NotReady,
    "transient": TransientError,
    "permanent": PermanentError,
}
