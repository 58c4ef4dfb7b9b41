"""Random sequences of operators' acts on random flows: the engine's own functions, step by step, against the model.

The real queue, dispatch, settlement, acts and verdict work on a real database; only the loop, the processes and the
time are left out, so that a thousand sequences take seconds. A sequence that fails is shrunk.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol, TypeVar

from redrive.engine.core.outcome import Failure, FailureClass, Fingerprint, Outcome, OutcomeKind
from redrive.engine.core.policy import RetryPolicy
from redrive.engine.core.projection import RunProjection, Successes
from redrive.engine.core.ready_queue import ReadyQueue, spec_of
from redrive.engine.core.run_outcome import evaluate_run, find_held_tasks
from redrive.engine.core.spec import FlowSpec, TaskSpec, map_task
from redrive.engine.core.waiting import NO_CONTEXT
from redrive.engine.domain.acts import Author, Command, Target
from redrive.engine.domain.event_payloads import TaskMapped
from redrive.engine.domain.states import TIMED, SkipCause
from redrive.engine.statefile import operator_actions
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import claims, endings, executors, making, runs
from redrive.engine.store.settle import settle

from .operators import ACTS, BY_BRANCH, BY_OPERATOR, MOVING, Difference, Model, Scripted

T = TypeVar("T")
RUN = "r"
START_US = 1_790_000_000_000_000
LIST_MAX = 3
_UNSTARTED = MOVING | {"UPSTREAM_FAILED"}
_STEPS_MAX = 3000
_ROUNDS_MAX = 60


@dataclass(frozen=True, slots=True)
class PlannedAct:
    """``after``: steps of the engine before it; None: it comes when the run rests. ``number``: its place at first.

    ``targets``: the tasks; empty: they are drawn when it comes, mostly among those to which it can be applied.
    """

    number: int
    act: str
    after: int | None
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sequence:
    """One flow, and what its operators do. ``slots``: attempts at once."""

    seed: int
    tasks: tuple[Scripted, ...]
    acts: tuple[PlannedAct, ...]
    slots: int = 2

    def without_task(self, name: str) -> Sequence:
        """Return the sequence without a task, and without the map tasks over it; its children lose a parent."""
        gone = {name, *(task.name for task in self.tasks if task.over == name)}
        kept = (task for task in self.tasks if task.name not in gone)
        tasks = (replace(one, parents=tuple(above for above in one.parents if above not in gone)) for one in kept)
        return replace(self, tasks=tuple(tasks))

    def __str__(self) -> str:
        lines = [f"seed {self.seed}, {self.slots} at once"]
        return "\n".join([*lines, *map(str, self.tasks), *map(str, self.acts)])


# --- Drawing -------------------------------------------------------------------------------------------------------

_SCRIPTS = (
    ("ok",),
    ("ok",),
    ("ok",),
    ("skip",),
    ("skip", "ok"),
    ("transient",),
    ("transient", "ok"),
    ("transient", "transient", "ok"),
    ("transient", "skip"),
    ("permanent",),
    ("permanent", "ok"),
    ("ok", "permanent"),
    ("ok", "transient"),
    ("wait", "ok"),
    ("wait", "skip"),
)
#: From this seed on, most flows have branches that are not taken at first, next to what waits for a human.
BRANCHES = 1_000_000
_BRANCH_SCRIPTS = (("skip", "ok"), ("skip", "ok"), ("skip", "ok"), ("permanent",), ("transient",), ("ok",), ("ok",))
#: From this seed on, some tasks are approvals.
APPROVALS = 2_000_000
_ASKING_SCRIPTS = (*_BRANCH_SCRIPTS, ("ask",), ("ask",), ("ask",), ("ok",))
_RULES = ("all_success", "all_success", "all_success_strict", "none_failed", "all_done")
_ACTS = {"requeue": 6, "cascade": 1, "skip": 4, "cancel": 4, "undo": 5}
_ANSWERS = {"approve": 6, "reject": 4}


def draw_sequence(seed: int) -> Sequence:
    """Draw the sequence of a seed."""
    dice = random.Random(seed)
    scripts = _SCRIPTS if seed < BRANCHES else _BRANCH_SCRIPTS if seed < APPROVALS else _ASKING_SCRIPTS
    tasks: list[Scripted] = []
    for number in range(dice.randint(2, 7)):
        earlier = [task.name for task in tasks]
        tasks.append(
            Scripted(
                f"t{number}",
                dice.choice(scripts),
                tuple(sorted(dice.sample(earlier, min(len(earlier), dice.choice((0, 1, 1, 2, 2, 3)))))),
                rule=dice.choice(_RULES),
                max_attempts=dice.choice((1, 1, 2, 3)),
                optional=dice.random() < 0.25,
            )
        )
    if dice.random() < 0.35 and seed < APPROVALS:
        tasks = _with_map(tasks, dice)
    count = dice.choice((1, 2, 3, 4, 6, 9))
    weights = _ACTS if seed < APPROVALS else {**_ACTS, **_ANSWERS}
    kinds = dice.choices(list(weights), list(weights.values()), k=count)
    acts = (PlannedAct(number, act, dice.choice((None, 0, 1, 3, 6, 12))) for number, act in enumerate(kinds))
    return Sequence(seed, tuple(tasks), tuple(acts), dice.choice((1, 2, 4)))


def _with_map(tasks: list[Scripted], dice: random.Random) -> list[Scripted]:
    """Return the tasks with one that maps over the list of another, and with one below it."""
    place = dice.randrange(len(tasks))
    lists = tuple(tuple(dice.randint(0, 2) for _ in range(dice.randint(0, LIST_MAX))) for _ in range(3))
    if "wait" in tasks[place].script:  # a sensor that returns an empty list is asked again
        lists = tuple(one or (0,) for one in lists)
    over = replace(tasks[place], lists=lists)
    others = [task.name for task in tasks if task.name != over.name]
    parents = tuple(dice.sample(others, min(len(others), dice.choice((0, 0, 0, 1)))))
    mapped = Scripted(
        "m", dice.choice(_SCRIPTS[:12]), parents, dice.choice(_RULES), dice.choice((1, 2)), over=over.name
    )
    mapped = replace(mapped, collect=random.Random(f"{dice.random()}").choice((None, None, *_RULES)))
    below = Scripted("n", ("ok",), ("m",), dice.choice(_RULES))
    return [*tasks[:place], over, *tasks[place + 1 :], mapped, below]


# --- The engine, without its loop ----------------------------------------------------------------------------------


class Engine:
    """One run in a database: each method is a transaction, as the executor or an operator makes it."""

    def __init__(self, sequence: Sequence) -> None:
        self._connection = _empty_database()
        self._sequence = sequence
        self._ticks = itertools.count(START_US, 1_000_000)
        self._ids = itertools.count(1)
        self.running: dict[str, claims.Claim] = {}
        self.sent: list[str] = []  # ids of the acts that changed something
        flow = FlowSpec("f", tuple(map(_spec_of, sequence.tasks)))
        self._write(
            lambda transaction: runs.create_run(
                transaction,
                run_id=RUN,
                flow=flow,
                max_parallel=sequence.slots,
                params={},
                at=transaction.at,
                deadline_at=None,
            ),
            is_new=True,
        )
        self.projection = runs.load_run(self._connection, RUN)
        self._queue = ReadyQueue(self.projection, {})

    def _write(self, item: Callable[[Transaction], T], *, is_new: bool = False, actor: str | None = None) -> T:
        self._connection.execute("BEGIN")
        transaction = Transaction(self._connection, next(self._ticks), Author(actor) if actor else Author())
        result = item(transaction)
        self._connection.execute("COMMIT")
        for event in () if is_new else transaction.events:
            before = self.projection.tasks.get(event.task or "")
            old = None if before is None else before.state
            row = self.projection.apply(event)
            if row is None or old is None:
                continue
            self._queue.apply_event(event.kind, row, old)
            if row.state in TIMED:
                self._queue.mark_due(row.name)
        self.mapped = [str(event.task) for event in transaction.events if isinstance(event.payload, TaskMapped)]
        return result

    def states(self) -> dict[str, str]:
        """Return the state of each task, from the table; of SKIPPED with who skipped it."""
        rows = self._connection.execute("SELECT name, state, skip_cause FROM task")
        return {name: SKIPPED[cause] if state == "SKIPPED" else state for name, state, cause in rows}

    def start_some(self) -> list[claims.Claim] | None:
        """Promote and claim what may start; None: nothing may."""
        picked = self._queue.pop_startable(self._sequence.slots - len(self.running), lambda row: True)
        promote = {name: self.projection.tasks[name].generation for name in self._queue.promotable}
        if not picked and not promote:
            return None
        rows = [self.projection.tasks[name] for name in picked]
        orders = [
            claims.ClaimOrder(row.name, row.generation, spec_of(row), row.state == "READY", row.attempt == 0)
            for row in rows
        ]
        claimed = self._write(lambda transaction: claims.dispatch(transaction, RUN, promote, orders, _IDENTITY))
        self._queue.release_claims(picked)
        self.running.update({claim.task: claim for claim in claimed})
        return claimed

    def end(self, name: str, outcome: Outcome) -> None:
        """Settle a running attempt."""
        claim = self.running.pop(name)
        spec = spec_of(self.projection.tasks[name])
        self._write(lambda transaction: settle(transaction, claim, spec, outcome, lambda low, high: low))

    def send(self, act: str, names: list[str], options: Mapping[str, object]) -> tuple[str, dict[str, str]]:
        """Send an act to some tasks; return its id, and by task how it was answered."""
        rows = [self.projection.tasks[name] for name in names]
        targets = tuple(Target(row.name, str(row.state), row.generation) for row in rows)
        command = Command(f"c{next(self._ids)}", act, RUN, targets, "ana@ops", "a reason", dict(options))
        answer = self._write(lambda transaction: operator_actions.apply(transaction, command), actor="ana@ops")
        outcomes = {result.task: result.outcome for result in answer.results}
        if "done" in outcomes.values():
            self.sent.append(command.id)
        return command.id, outcomes

    def rest(self) -> str:
        """Write the verdict of a run in which nothing may start, and return its state."""
        held = find_held_tasks(self.projection, START_US * 2, NO_CONTEXT)
        assert held or not self._queue.active_count
        verdict = evaluate_run(self.projection, held)
        run = self.projection.run
        if run.ended_at is None and not (verdict.is_blocked and run.blocked_since is not None):
            seq = self.projection.seq
            self._write(lambda transaction: endings.write_verdict(transaction, RUN, verdict, seq))
        return "BLOCKED" if self.projection.run.blocked_since is not None else str(self.projection.run.state)

    def read_part(self, *names: str) -> RunProjection:
        """Read what the inbox shows; of ``names``, what explains why these tasks wait."""
        return runs.load_part(self._connection, RUN, names or None, has_blockers=bool(names))

    def read_run(self, *, successes: Successes = "all") -> RunProjection:
        return runs.load_run(self._connection, RUN, successes=successes)

    def check_memory(self) -> None:
        """Check that the executor's memory is what the tables say."""
        stored = self.read_run()
        for name, row in stored.tasks.items():
            mine = self.projection.tasks[name]
            if (mine.state, mine.attempt, mine.blocked_by) != (row.state, row.attempt, row.blocked_by):
                raise Difference(
                    f"{name}: {mine.state} {mine.blocked_by} in memory, {row.state} {row.blocked_by} stored"
                )
        could_start = set(runs.ready_audit(self._connection, RUN, START_US * 2))
        if could_start != self._queue.promotable:
            raise Difference(f"the queue promotes {self._queue.promotable}, and {could_start} could start")


class AnyEngine(Protocol):
    """What a night needs of an engine."""

    sent: list[str]
    mapped: list[str]

    def states(self) -> dict[str, str]: ...

    def send(self, act: str, names: list[str], options: Mapping[str, object]) -> tuple[str, dict[str, str]]: ...

    def rest(self) -> str: ...

    def check_memory(self) -> None: ...


_IDENTITY = executors.ExecutorIdentity("e", "host", "code")
SKIPPED = {str(SkipCause.OPERATOR): BY_OPERATOR, str(SkipCause.CONDITION): BY_BRANCH, str(SkipCause.CASCADE): BY_BRANCH}
_RETRY = RetryPolicy(base=0.0, cap=0.0, jitter="none")


def _spec_of(task: Scripted) -> TaskSpec:
    is_sensor = "wait" in task.script and task.over is None
    spec = TaskSpec(
        task.name,
        task.parents,
        kind="approval" if task.script == ("ask",) else "sensor" if is_sensor else "python",
        rule=task.rule,  # type: ignore[arg-type]
        optional=task.optional,
        retry=RetryPolicy(task.max_attempts, base=0.0, cap=0.0, jitter="none"),
    )
    if task.over is None:
        return spec
    child = TaskSpec(
        task.name,
        tuple(dict.fromkeys((task.over, *task.parents))),
        rule=task.rule,  # type: ignore[arg-type]
        optional=task.optional,
        retry=spec.retry,
    )
    return map_task(child, task.over, LIST_MAX, collect=task.collect)  # type: ignore[arg-type]


def outcome_of(does: str, task: Scripted, attempt: int) -> Outcome:
    """Return how an attempt ends."""
    if does == "ok":
        return Outcome(OutcomeKind.SUCCESS, result=json.dumps(task.list_of(attempt)) if task.lists else "1")
    if does == "skip":
        return Outcome(OutcomeKind.SKIPPED, skip_reason="as scripted")
    if does == "wait":
        return Outcome(OutcomeKind.DEFERRED, recheck_seconds=0.0)
    kind = FailureClass.PERMANENT if does == "permanent" else FailureClass.TRANSIENT
    mark = Fingerprint(f"{task.name} {attempt}", f"{task.name} {attempt}")
    return Outcome(OutcomeKind.ERROR, Failure("flow.Trouble", "as scripted", kind, mark))


@cache
def _database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=2000)
    making.create_tables(connection)
    return connection


def _empty_database() -> sqlite3.Connection:
    connection = _database()
    if connection.in_transaction:
        connection.rollback()
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        connection.execute(f"DELETE FROM {table}")
    return connection


# --- One sequence --------------------------------------------------------------------------------------------------


class Night:
    """Drives an engine and the model together: acts while it rests, in the end those of a fair operator."""

    def __init__(self, sequence: Sequence, engine: AnyEngine) -> None:
        self.engine = engine
        self.model = Model.of(sequence.tasks)
        self._sequence = sequence
        self._acts = list(sequence.acts)
        self.log: list[str] = []

    def run(self) -> None:
        """Run to the end: all acts, then a fair operator who decides about each dead letter."""
        for _ in range(_ROUNDS_MAX):
            self.work()
            state = self.engine.rest()
            self.model.check_rest(state)
            self.engine.check_memory()
            if self._acts:
                self._act(self._acts.pop(0))
            elif state == "BLOCKED":
                self._decide()
            else:
                return
        raise Difference(f"the run has not ended after {_ROUNDS_MAX} rounds of a fair operator: {self.model.states}")

    def work(self) -> None:
        """Let the engine work until nothing runs and nothing may start."""
        raise NotImplementedError

    def _check(self) -> None:
        """Check the states after a transaction. The engine may expand a map task whenever it looks at it."""
        for name in self.engine.mapped:
            self.model.expand(name)
        self.model.check(self.engine.states())

    # --- Acts ------------------------------------------------------------------------------------------------------

    def _act(self, planned: PlannedAct) -> None:
        dice = random.Random(f"{self._sequence.seed}:act:{planned.number}")
        if planned.act == "undo":
            self._undo(dice)
            return
        act = "requeue" if planned.act == "cascade" else planned.act
        names = sorted(self.model.states)
        able = [name for name in names if self.model.states[name] in ACTS[act]]
        pool = able if able and dice.random() < 0.9 else names
        named = [name for name in planned.targets if name in self.model.states]
        chosen = named or dice.sample(pool, min(len(pool), dice.choice((1, 1, 1, 2, 3))))
        self._send(act, chosen, cascade=planned.act == "cascade")

    def _send(self, act: str, names: list[str], *, cascade: bool = False) -> dict[str, str]:
        command, outcomes = self.engine.send(act, names, {"cascade": True} if cascade else {})
        self.log.append(f"{command}: {act}{' with cascade' * cascade} {outcomes}")
        self.model.act(command, act, {name: outcomes[name] for name in names}, cascade=cascade)
        self._check()
        return outcomes

    def _undo(self, dice: random.Random) -> None:
        if not self.engine.sent:
            return
        undone = self.engine.sent[-1 - min(dice.choice((0, 0, 0, 1, 2)), len(self.engine.sent) - 1)]
        command, outcomes = self.engine.send("undo", [], {"command": undone})
        restored = [name for name, outcome in outcomes.items() if outcome == "done"]
        self.log.append(f"{command}: undo of {undone} {outcomes}")
        self.model.undo(command, undone, restored)
        self._check()

    def _decide(self) -> None:
        """Decide about the approvals and the dead letters, as a fair operator does."""
        if asked := self.model.asked():
            self._send("approve", asked)
            return
        dead = [name for name, state in self.model.states.items() if state == "DEAD_LETTER"]
        outcomes = self._send("skip", dead)
        if "done" not in outcomes.values():  # a map task requires a list: nobody needs it any more
            self._send("skip", [*dead, *(name for name, state in self.model.states.items() if state in _UNSTARTED)])


class SteppedNight(Night):
    """A night of the engine without its loop, whose acts come between any two steps."""

    engine: Engine

    def __init__(self, sequence: Sequence) -> None:
        super().__init__(sequence, Engine(sequence))
        self._dice = random.Random(f"{sequence.seed}:night")
        self._steps = 0

    def work(self) -> None:
        for _ in range(_STEPS_MAX):
            if self._acts and self._acts[0].after is not None and self._steps >= self._acts[0].after:
                self._steps = 0
                self._act(self._acts.pop(0))
            if not self._step():
                return
            self._steps += 1
        raise Difference("the engine does not come to rest")

    def _step(self) -> bool:
        is_full = len(self.engine.running) >= self._sequence.slots
        if not is_full and (self._dice.random() < 0.6 or not self.engine.running):
            claimed = self.engine.start_some()
            if claimed is not None:
                self._started(claimed)
                return True
        if not self.engine.running:
            return False
        self._end(self._dice.choice(sorted(self.engine.running)))
        return True

    def _started(self, claimed: list[claims.Claim]) -> None:
        for claim in claimed:
            self.log.append(f"{claim.task} starts attempt {claim.attempt}")
            self.model.start(claim.task, claim.attempt)
        self._check()

    def _end(self, name: str) -> None:
        task = self.model.tasks[name]
        does = "cancel" if task.is_cancel_requested else self.model.does(name)
        self.log.append(f"{name} ends: {does}")
        is_cancelled = does == "cancel"
        outcome = Outcome(OutcomeKind.CANCELLED) if is_cancelled else outcome_of(does, task.script, task.attempts)
        self.engine.end(name, outcome)
        self.model.end(name)
        self._check()


def problem_of(sequence: Sequence) -> str:
    """Run a sequence; return what is wrong, with what happened; empty: nothing."""
    night = None
    try:
        night = SteppedNight(sequence)
        night.run()
    except Difference as error:
        return f"{error}\n" + "\n".join(night.log if night else ())
    except Exception as error:
        return "".join(traceback.format_exception(error)[-3:]) + "\n".join(night.log if night else ())
    return ""


# --- Shrinking -----------------------------------------------------------------------------------------------------


def shrink(sequence: Sequence) -> Sequence:
    """Return the smallest sequence that still fails."""
    while (smaller := next((one for one in _smaller(sequence) if problem_of(one)), None)) is not None:
        sequence = smaller
    return sequence


def _smaller(sequence: Sequence) -> Iterator[Sequence]:
    for place in range(len(sequence.acts)):
        yield replace(sequence, acts=sequence.acts[:place] + sequence.acts[place + 1 :])
    for task in reversed(sequence.tasks):
        if len(sequence.tasks) > 1:
            yield sequence.without_task(task.name)
    for place, task in enumerate(sequence.tasks):
        for simple in _simpler(task):
            yield replace(sequence, tasks=(*sequence.tasks[:place], simple, *sequence.tasks[place + 1 :]))
    if sequence.slots > 1:
        yield replace(sequence, slots=1)


def _simpler(task: Scripted) -> Iterator[Scripted]:
    for parent in task.parents:
        yield replace(task, parents=tuple(name for name in task.parents if name != parent))
    if len(task.script) > 1:
        yield replace(task, script=task.script[1:])
        if task.script[0] != "wait":
            yield replace(task, script=task.script[:1])
    if task.script != ("ok",):
        yield replace(task, script=("ok",))
    if task.rule != "all_success":
        yield replace(task, rule="all_success")
    if task.max_attempts > 1:
        yield replace(task, max_attempts=1)
    if task.optional:
        yield replace(task, optional=False)
