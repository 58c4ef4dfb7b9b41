"""Nights of random work: the events alone give the tables again, and what must always hold always holds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.core.spec import TaskSpec
from redrive.engine.domain.acts import Answer
from redrive.engine.domain.states import MOVING, NEEDS_HUMAN, OPEN, TaskState
from redrive.engine.domain.task_options import load_overrides
from redrive.engine.statefile.dry_run import preview
from redrive.engine.store import claims
from redrive.engine.store.claims import Claim
from redrive.engine.store.settle import settle
from support.marks import parametrize_mostly_long

from .conftest import RUN, SECOND, StateFile

RULES = ["all_success"] * 4 + ["all_success_strict", "none_failed", "all_done"]
ACTS = ["requeue", "requeue", "requeue", "skip", "cancel", "hurry", "undo", "pause", "unpause"]
OUTCOMES = [OutcomeKind.SUCCESS] * 4 + [OutcomeKind.ERROR] * 4 + list(OutcomeKind)


class RandomRun:
    """A random flow, and one random step after another."""

    def __init__(self, state_file: StateFile, seed: int) -> None:
        self.file = state_file
        self.dice = random.Random(seed)
        names = [f"t{number}" for number in range(self.dice.randint(3, 12))]
        edges, specs = {}, {}
        for number, name in enumerate(names):
            parents = self.dice.sample(names[:number], min(number, self.dice.randint(0, 3)))
            edges[name] = " ".join(parents)
            retry = RetryPolicy(max_attempts=self.dice.randint(1, 3))
            specs[name] = {
                "rule": self.dice.choice(RULES),
                "idempotent": self.dice.random() < 0.9,
                "retry": retry,
            }
        state_file.create(edges, **specs)
        self.projection: RunProjection = state_file.projection()
        self.claims: dict[str, Claim] = {}
        self.commands: list[dict[str, Any]] = []
        self.steps: list[Callable[[], None]] = [self.dispatch, self.dispatch, self.settle, self.settle, self.operate]

    def step(self) -> None:
        """Something happens, and everybody takes the events."""
        self.file.now += self.dice.randint(0, 3 * SECOND)
        emitted = len(self.file.emitted)
        self.dice.choice(self.steps)()
        for event in self.file.emitted[emitted:]:
            self.projection.apply(event)

    def dispatch(self) -> None:
        names = list(self.projection.tasks)
        some = self.dice.sample(names, self.dice.randint(1, len(names)))
        generations = {name: self.file.column(name, "generation") for name in some}
        self.file.write(lambda transaction: claims.promote(transaction, RUN, generations))
        self.file.write(
            lambda transaction: claims.wake(transaction, RUN, {name: generations[name] for name in some[:2]})
        )
        for name in some[:3]:
            token, generation = f"token-{self.dice.random()}", self.file.column(name, "generation")
            if number := self.file.claim(name, token):
                self.claims[name] = Claim(RUN, name, number, generation, token)

    def settle(self) -> None:
        if not self.claims:
            return
        name = self.dice.choice(list(self.claims))
        claim = self.claims[name] if self.dice.random() < 0.1 else self.claims.pop(name)  # some end twice
        spec = self.projection.tasks[name].spec or TaskSpec(name)
        outcome = self.outcome()
        self.file.write(lambda transaction: settle(transaction, claim, spec, outcome, lambda low, high: low))

    def outcome(self) -> Outcome:
        kind = self.dice.choice(OUTCOMES)
        if kind not in (OutcomeKind.ERROR, OutcomeKind.TIMED_OUT):
            return Outcome(kind, result="1" if kind is OutcomeKind.SUCCESS else None)
        mark = self.dice.choice(["f1", "f2", "f3"])
        failure = Failure(
            self.dice.choice(("ZeroDivisionError", "Boom")),
            "boom",
            self.dice.choice(list(FailureClass)),
            Fingerprint(mark, mark),
        )
        return Outcome(kind, failure)

    def operate(self) -> None:
        name = self.dice.choice(ACTS)
        targets = self.dice.sample(list(self.projection.tasks), self.dice.randint(1, 3))
        options: dict[str, Any] = {"cascade": self.dice.random() < 0.3, "reset_count": self.dice.random() < 0.7}
        if name == "undo":
            options = {"command": self.dice.choice(self.commands)["id"] if self.commands else "none"}
        command = self.file.command(name, *targets, **options)
        if self.dice.random() < 0.2 and command["targets"]:
            command["targets"][0][1] = str(self.dice.choice(list(TaskState)))  # a stale look
        self.send(command)

    def send(self, command: dict[str, Any]) -> None:
        shown = preview(self.file.connection, command, self.file.now)
        answer = self.file.send(command)
        assert Answer(shown.ok, shown.message, tuple(shown.results)).as_json() == answer
        emitted = len(self.file.emitted)
        assert self.file.send(command) == answer and len(self.file.emitted) == emitted
        self.commands.append(command)

    def try_a_fix(self) -> None:
        """Requeue what has failed as a careful operator does, and see what comes of the first."""
        hurt = [name for name, state in self.file.states().items() if state in NEEDS_HUMAN]
        if len(hurt) < 2:
            return
        options: dict[str, Any] = {
            "single_shot": self.dice.random() < 0.3,
            "new_key": self.dice.random() < 0.3,
            "timeout": 5,
        }
        self.send(self.file.command("requeue", *hurt, canary=True, **options))
        for step in (self.dispatch, self.settle) * 4:
            step()

    def check(self) -> None:
        """What must hold at every moment."""
        assert self.projection == self.file.projection()
        for name, row in self.projection.tasks.items():
            if row.state is TaskState.UPSTREAM_FAILED:
                cause = self.projection.tasks[str(row.blocked_by)]
                assert cause.state in (TaskState.FAILED, TaskState.CANCELLED) or cause.skip_cause == "operator"
            if row.state is TaskState.RUNNING:
                assert row.attempts[row.attempt].outcome == "running"
            if row.state is TaskState.PENDING:
                assert not self.is_hopeless(name), name
            if row.state is TaskState.SKIPPED and row.skip_cause == "cascade":
                assert not self.has_open_parent(name), name
            assert row.attempt == len(row.attempts)
            if row.canary is not None:
                assert row.state in NEEDS_HUMAN and self.continues(self.projection.tasks[row.canary]), name

    def continues(self, first: TaskRow) -> bool:
        """True for a canary whose end is still to come, be it that its own cause is repaired first."""
        return "rollout" in load_overrides(first.overrides) and first.state in MOVING | {"UPSTREAM_FAILED", "SKIPPED"}

    def is_hopeless(self, name: str) -> bool:
        """True for one that waits although its parents have decided already that it will never start.

        A parent that stops it decides at once; one of a branch that is not taken, when all parents have ended.
        """
        rule = self.projection.tasks[name].spec.rule
        parents = self.parents(name)
        if rule == "all_done":
            return False
        by_operator = [parent for parent in parents if parent.state == "SKIPPED" and parent.skip_cause == "operator"]
        if any(parent.state in ("FAILED", "CANCELLED", "UPSTREAM_FAILED") for parent in parents):
            return True
        if rule == "all_success_strict" and by_operator:
            return True
        not_taken = sum(parent.state == "SKIPPED" for parent in parents) - len(by_operator)
        enough = len(parents) if rule == "none_failed" else 1
        return 0 < enough <= not_taken and not self.has_open_parent(name)

    def parents(self, name: str) -> list[TaskRow]:
        return [self.projection.tasks[parent] for parent in self.projection.parents[name]]

    def has_open_parent(self, name: str) -> bool:
        return any(parent.state in OPEN for parent in self.parents(name))

    def stuck(self) -> list[str]:
        """READY tasks that no claim can start and no claim has put right."""
        ready = [name for name, state in self.file.states().items() if state == TaskState.READY]
        return [name for name in ready if not self.file.claim(name) and self.file.states()[name] == TaskState.READY]


@pytest.mark.parametrize("careful", [False, True])
@parametrize_mostly_long("seed", [1703, 2042, 2170, 2503, *range(40)], quick=4, daily=10)  # four found a fault
def test_the_events_of_any_run_give_the_tables_again(state_file: StateFile, seed: int, careful: bool) -> None:
    random_run = RandomRun(state_file, seed)
    random_run.steps += [random_run.try_a_fix] * 2 if careful else []
    for _ in range(60):
        random_run.step()
        random_run.check()
    assert random_run.stuck() == []


def test_every_state_and_every_act_occurs_in_these_runs(make_state_file: Callable[[str], StateFile]) -> None:
    """The test above would prove little if its nights were quiet."""
    wanted = {*map(str, TaskState), "requeue", "skip", "cancel", "undo", "released", "failed", "not-fixed"}
    for seed in range(40):
        state_file = make_state_file(f"{seed}.db")
        random_run = RandomRun(state_file, seed)
        random_run.steps += [random_run.try_a_fix] * 2
        for _ in range(60):
            random_run.step()
        wanted -= {str(event.new) for event in state_file.emitted if event.kind == "task"}
        wanted -= {event.payload.act for event in state_file.emitted if event.kind == "operator" and event.payload.was}
        wanted -= {event.payload.what for event in state_file.emitted if event.kind == "canary"}
        if not wanted:
            return
    assert wanted == set()
