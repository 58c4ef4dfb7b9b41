"""A run with a map task in a state file, and what an observer of its events has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.projection import RunProjection
from redrive.engine.core.ready_queue import ReadyQueue
from redrive.engine.core.spec import FlowSpec, TaskSpec, map_task
from redrive.engine.store import claims, runs
from redrive.engine.store.claims import Claim, ClaimOrder
from redrive.engine.store.executors import ExecutorIdentity
from redrive.engine.store.settle import settle

from .conftest import RUN, StateFile

IDENTITY = ExecutorIdentity("executor-1", "here", None)
CHILD = TaskSpec("load", ("list", "other"), retry=RetryPolicy(max_attempts=2), timeout=5.0, pool="api")
TASKS = (
    TaskSpec("list"),
    TaskSpec("other"),
    map_task(CHILD, "list", 12),
    TaskSpec("report", ("load",), requires=("load",)),
)


FAILURE = Failure("E", "no", FailureClass.PERMANENT, Fingerprint("a" * 32, "a" * 32))


class Mapped:
    """A run with a map task, and what an observer of its events has."""

    def __init__(self, state_file: StateFile, tasks: Sequence[TaskSpec] = TASKS) -> None:
        self.file = state_file
        state_file.write(
            lambda transaction: runs.create_run(
                transaction,
                run_id=RUN,
                flow=FlowSpec("orders", tuple(tasks)),
                max_parallel=4,
                params={},
                at=state_file.now,
                deadline_at=None,
            )
        )
        self.events: RunProjection
        self.queue: ReadyQueue
        self.reload()

    def claim(self, name: str) -> Claim | None:
        order = ClaimOrder(name, self.file.column(name, "generation"), self.file.projection().tasks[name].spec or CHILD)
        found = self.file.write(lambda transaction: claims.dispatch(transaction, RUN, {}, [order], IDENTITY))
        self.see()
        return found[0] if found else None

    def run(self, name: str, result: object = None, *, is_failure: bool = False, keys: Any = None) -> None:
        claim = self.claim(name)
        assert claim is not None, name
        element_keys = {} if keys is None else {"load": tuple(keys)}
        outcome = Outcome(OutcomeKind.SUCCESS, result=json.dumps(result), element_keys=element_keys)
        self.end(claim, Outcome(OutcomeKind.ERROR, FAILURE) if is_failure else outcome)

    def end(self, claim: Claim, outcome: Outcome) -> None:
        spec = self.file.projection().tasks[claim.task].spec or CHILD
        self.file.write(lambda transaction: settle(transaction, claim, spec, outcome, lambda low, high: low))
        self.see()

    def act(self, act: str, *names: str, **options: Any) -> None:
        assert self.file.act(act, *names, **options)["ok"]
        self.see()

    def reload(self) -> None:
        """Read the file anew, as a resume does."""
        self.events = self.file.projection()
        self.queue = ReadyQueue(self.events, {})

    def see(self) -> None:
        """Apply the new events as the executor does, and compare with the tables."""
        for event in self.file.emitted:
            old = self.events.tasks[event.task].state if event.task in self.events.tasks else None
            row = self.events.apply(event)
            if row is not None and old is not None:
                self.queue.apply_event(event.kind, row, old)
        now = self.file.projection()
        assert list(now.tasks) == list(self.events.tasks)
        assert now.tasks == self.events.tasks
        assert (now.parents, now.children) == (self.events.parents, self.events.children)
        fresh = ReadyQueue(now, {})
        assert (self.queue.unmet_counts, self.queue.counts) == (fresh.unmet_counts, fresh.counts)
        assert self.queue.promotable == fresh.promotable == set(runs.ready_audit(self.file.connection, RUN))

    @property
    def states(self) -> dict[str, str]:
        return {name: str(row.state) for name, row in self.file.projection().tasks.items() if name.startswith("load")}
