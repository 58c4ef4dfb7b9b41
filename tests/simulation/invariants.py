"""What must hold in every night, checked against each committed event and against the tables.

The rules stand here a second time, written from the design and without the engine's own tables.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec import structs
from redrive.console.model.board import Board
from redrive.console.model.inbox import Inbox
from redrive.engine.core.projection import RunProjection, TaskRow
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.event_payloads import BreakerChanged, OperatorActed, RunChanged, TaskMapped, TaskMoved
from redrive.engine.domain.events import Event
from redrive.engine.domain.rows import RunRow
from redrive.engine.runner.protocol import AttemptOrder
from redrive.engine.statefile.lists import BREAKERS, query
from redrive.engine.statefile.reader import events_query
from redrive.engine.store import runs

_MOVES = {
    # of the executor alone
    "PENDING": "READY UPSTREAM_FAILED SKIPPED CANCELLED",
    "READY": "RUNNING PENDING UPSTREAM_FAILED SKIPPED CANCELLED FAILED DEAD_LETTER",
    "RUNNING": "SUCCESS RETRYING FAILED DEAD_LETTER SENSING SKIPPED CANCELLED",
    "RETRYING": "READY PENDING DEAD_LETTER CANCELLED",
    "SENSING": "READY PENDING FAILED DEAD_LETTER CANCELLED",
    "DEAD_LETTER": "FAILED",
}
_ENDED = frozenset(["SUCCESS", "FAILED", "DEAD_LETTER", "UPSTREAM_FAILED", "SKIPPED", "CANCELLED"])
_OPERATED = _ENDED | {"PENDING", "READY", "RETRYING", "SENSING"}
_FAILED = frozenset(["FAILED", "CANCELLED", "UPSTREAM_FAILED"])


LATE_START_US = 1_000_000  # a claim before the deadline is on the disk by then


class Violation(Exception):
    """An invariant does not hold."""


@dataclass(slots=True)
class _Task:
    spec: TaskSpec
    parents: set[str]
    state: str = "PENDING"
    skip_cause: str | None = None
    attempt: int = 0
    generation: int = 0
    succeeded_in: int | None = None
    probes_since: int = 0


@dataclass(slots=True)
class Checker:
    """Follows the events of one night."""

    flow: FlowSpec
    run_id: str
    max_parallel: int
    seq: int = 0
    is_blocked: bool = False
    is_over: bool = False  # the deadline has passed, and no operator has lifted it since
    deadline_at: int | None = None
    tasks: dict[str, _Task] = field(init=False)
    breakers: dict[str, str] = field(default_factory=dict)
    answers: dict[str, object] = field(default_factory=dict)
    acted: Counter[str] = field(default_factory=Counter)
    effects: Counter[tuple[str, int]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    projection: RunProjection | None = None  # of the events up to ``seq``, from the first comparison on

    def __post_init__(self) -> None:
        self.tasks = {spec.name: _Task(spec, set(spec.parents)) for spec in self.flow.tasks}

    # --- Events ----------------------------------------------------------------------------------------------------

    def handle(self, events: Iterable[Event]) -> None:
        """Check committed events, in order. Events that were seen before are left out."""
        for event in events:
            if event.seq > self.seq:
                self._require(event.seq == self.seq + 1, f"event {event.seq} follows {self.seq}")
                self.seq = event.seq
                self._handle(event)
                if self.projection is not None:
                    self.projection.apply(event)
            else:
                self._require(event.seq == 0, f"event {event.seq} comes twice")

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Check the events of the file that no executor lived to report."""
        self.handle(map(event_of, connection.execute(*events_query(self.seq, 1_000_000))))

    def _handle(self, event: Event) -> None:
        payload = event.payload
        if isinstance(payload, TaskMoved):
            self._check_move(event, payload)
        elif isinstance(payload, TaskMapped):
            self._check_mapping(self.tasks[str(event.task)], payload)
        elif isinstance(payload, BreakerChanged):
            measured = any(spec.metrics_only for spec in self.flow.downstreams if spec.name == payload.downstream)
            self.breakers[payload.downstream] = "" if measured and payload.state == "OPEN" else payload.state
        elif isinstance(payload, OperatorActed) and payload.act is not None and event.command_id:
            self.acted[event.command_id] += 1
            self._require(self.acted[event.command_id] == 1, f"act {event.command_id} was applied twice")
        elif isinstance(payload, RunChanged):
            self.max_parallel = payload.set.get("max_parallel", self.max_parallel)
            self.is_blocked = payload.set.get("blocked_since", self.is_blocked or None) is not None
            self.is_over = payload.set.get("deadline_passed_at", self.is_over or None) is not None
            self.deadline_at = payload.set.get("deadline_at", self.deadline_at)

    def _check_move(self, event: Event, moved: TaskMoved) -> None:
        task = self.tasks[str(event.task)]
        old, new = str(event.old), str(event.new)
        self.counts[f"{old} -> {new}"] += 1
        self._require(old == task.state, f"{event.task} moves from {old}, but it is {task.state}")
        legal = new in _MOVES.get(old, "").split() or (self._is_of_operator(event, old) and new in _OPERATED)
        self._require(legal, f"{event.task} moves from {old} to {new}, actor {event.actor}")
        if new == "RUNNING":
            self._check_claim(event, task, moved)
        elif "attempt" in moved.set:
            self._require(moved.set["attempt"] == task.attempt, f"{event.task} changes its attempt without a claim")
        task.state, task.skip_cause = new, moved.set.get("skip_cause", task.skip_cause)
        task.generation = moved.set.get("generation", task.generation)
        if new == "SUCCESS" and old == "RUNNING":
            task.succeeded_in = task.generation

    def _check_mapping(self, task: _Task, mapped: TaskMapped) -> None:
        mapping = task.spec.map
        assert mapping is not None
        for name in mapped.came:
            spec = structs.replace(mapping.child, name=name)
            self.tasks.setdefault(name, _Task(spec, set(spec.parents)))
            self._require(name not in task.parents, f"{name} is added twice")
            task.parents.add(name)
        for name in mapped.gone:
            task.parents.remove(name)
        children = {parent for parent in task.parents if parent.startswith(f"{task.spec.name}[")}
        self._require(len(children) == mapped.size, f"{task.spec.name} has {len(children)} children of {mapped.size}")
        self._require(children == set(mapped.names), f"{task.spec.name} waits for others than those of its list")

    def _is_of_operator(self, event: Event, old: str) -> bool:
        """Also what follows from an act: a task above is free again, a canary has ended, a list has changed."""
        is_of_map = str(event.task).endswith("]") or self.tasks[str(event.task)].spec.map is not None
        if old in ("SUCCESS", "CANCELLED") and is_of_map:
            return True
        return event.actor is not None or old in ("UPSTREAM_FAILED", "SKIPPED", "DEAD_LETTER", "FAILED")

    def _rule(self, task: _Task, parent: str) -> str:
        """Return the rule by which a parent counts: that of the task, except around a map."""
        spec = task.spec
        over = spec.map.over if spec.map is not None else spec.item.over if spec.item is not None else None
        if parent == over:
            return "all_success_strict" if spec.rule == "all_success_strict" else "all_success"
        is_child = spec.map is not None and parent.startswith(f"{spec.name}[")
        return f"collect:{spec.map.collect or spec.rule}" if is_child and spec.map is not None else spec.rule

    def _check_claim(self, event: Event, task: _Task, moved: TaskMoved) -> None:
        name = str(event.task)
        self._require(task.spec.kind != "approval", f"{name} starts, and it is an approval")
        is_late = self.deadline_at is not None and event.at > self.deadline_at + LATE_START_US
        is_clean_up = any(self._rule(task, parent) == "all_done" for parent in task.spec.parents)
        self._require(is_clean_up or not (self.is_over or is_late), f"{name} starts after the deadline")
        self._require(moved.set["attempt"] == task.attempt + 1, f"{name}: attempt {task.attempt} and then {moved.set}")
        task.attempt += 1
        for parent in sorted(task.parents):
            above = self.tasks[parent]
            self._require(
                allows(self._rule(task, parent), above.state, above.skip_cause, self.is_over),
                f"{name} ({task.spec.rule}) starts while {parent} is {above.state} {above.skip_cause or ''}",
            )
        self._require(task.succeeded_in != task.generation, f"{name} starts again after its success")
        running = [other for other in self.tasks.values() if other.state == "RUNNING"]
        pool = task.spec.pool
        if pool is not None:
            used = sum(other.spec.pool_slots for other in running if other.spec.pool == pool) + task.spec.pool_slots
            self._require(used <= self.flow.pools[pool], f"{used} slots of {pool} are used at the start of {name}")
        if task.spec.downstream is not None:
            state = self.breakers.get(task.spec.downstream)
            self._require(
                state not in ("OPEN", "FORCED_OPEN"), f"{name} starts while {task.spec.downstream} is {state}"
            )

    # --- The runner ------------------------------------------------------------------------------------------------

    def check_start(self, order: AttemptOrder, running: Iterable[AttemptOrder]) -> None:
        """Check the start of a process; ``running``: those that have not ended."""
        others = list(running)
        self._require(
            len(others) < self.max_parallel, f"{len(others) + 1} attempts run, max_parallel {self.max_parallel}"
        )
        self._require(all(other.task != order.task for other in others), f"two attempts of {order.task} run")
        if order.spec.pool is not None:
            used = sum(other.spec.pool_slots for other in [*others, order] if other.spec.pool == order.spec.pool)
            self._require(used <= self.flow.pools[order.spec.pool], f"{used} slots of {order.spec.pool} run")
        if order.spec.effect:
            self.effects[order.task, order.generation] += 1
            self._require(self.effects[order.task, order.generation] == 1, f"the effect of {order.task} happens twice")

    # --- Acts ------------------------------------------------------------------------------------------------------

    def check_answer(self, command_id: str, answer: object) -> None:
        """Check that a repeated act gets its first answer."""
        if self.acted[command_id]:
            first = self.answers.setdefault(command_id, answer)
            self._require(first == answer, f"act {command_id} is answered {first}, and then {answer}")

    # --- Tables ----------------------------------------------------------------------------------------------------

    def check_tables(self, connection: sqlite3.Connection, memory: RunProjection | None = None) -> None:
        """Check that folding the events gives the tables; ``memory``: the executor's own projection, if it is idle."""
        now = runs.load_run(connection, self.run_id)
        if self.projection is None:
            self.projection = RunProjection(
                RunRow(self.run_id), parents={spec.name: spec.parents for spec in self.flow.tasks}
            )
            for name, row in now.tasks.items():
                place, attempts = row.position, row.max_attempts
                self.projection.tasks[name] = TaskRow(name, max_attempts=attempts, position=place, spec=row.spec)
            for event in map(event_of, connection.execute(*events_query(0, 1_000_000))):
                self.projection.apply(event)
        self._require(self.projection.seq == now.seq, f"event {now.seq} of the file was not checked")
        self._compare("the projection of the events", self.projection, now)
        if memory is not None and memory.seq == now.seq:
            self._compare("the executor's memory", memory, now)
        for name, task in self.tasks.items():
            row = now.tasks[name]
            self._require((row.state, row.attempt) == (task.state, task.attempt), f"{name} is {row.state} in the table")

    def _compare(self, what: str, before: RunProjection, now: RunProjection) -> None:
        for name, row in now.tasks.items():
            for attempt, other in zip(row.attempts.values(), before.tasks[name].attempts.values(), strict=False):
                if attempt.outcome == "running":  # its output is counted in an event at its end only
                    other.output_bytes, other.output_dropped_bytes = attempt.output_bytes, attempt.output_dropped_bytes
            if before.tasks[name] != row:
                raise Violation(f"{what}: {name}: {_differences(before.tasks[name], row)}")
        if before.run != now.run:
            raise Violation(f"{what}: {_differences(before.run, now.run)}")
        for name in before.tasks:
            ours, theirs = before.parents.get(name, ()), now.parents.get(name, ())
            self._require(ours == theirs, f"{what}: {name} has the parents {ours} and {theirs}")

    def check_end(self, connection: sqlite3.Connection, state: str) -> None:
        """Check that nobody waits for ever unseen: the run has ended, or something waits for a human."""
        states = Counter(task.state for task in self.tasks.values())
        if state == "BLOCKED":
            pages = connection.execute("SELECT count(*) FROM page WHERE state <> 'resolved'").fetchone()[0]
            self._require(bool(states["DEAD_LETTER"] or pages), f"blocked, and no human hears of it: {dict(states)}")
            self._check_inbox(connection)
            return
        self._require(state != "RUNNING", "the run neither ended nor waits for a human")
        moving = {name: task.state for name, task in self.tasks.items() if task.state not in _ENDED}
        self._require(not moving, f"the run is {state}, with {moving}")
        if state != "ABANDONED":
            self._require(self.is_over or not states["DEAD_LETTER"], f"the run is {state}, with dead letters")
            expected = self._expected_end()
            self._require(state in expected, f"the run is {state}, not {expected}: {dict(states)}")

    def _check_inbox(self, connection: sqlite3.Connection) -> None:
        """Check that each task that waits has a task above it, or itself, in the inbox of the console."""
        board = Board(runs.load_run(connection, self.run_id))
        board.update_lists(query(connection, BREAKERS, {}))
        listed = {name for cause in Inbox(board).causes() for name in cause.tasks}
        waiting = [name for name, task in self.tasks.items() if task.state not in _ENDED or task.state == "DEAD_LETTER"]
        for name in waiting:
            self._require(self._is_shown(name, listed), f"{name} waits, and the inbox lists {sorted(listed)}")

    def _is_shown(self, name: str, listed: Collection[str]) -> bool:
        """Whether the inbox lists a task, or all tasks that hold it: a skipped parent decides when all have ended."""
        task = self.tasks[name]
        unmet = [parent for parent in task.parents if self._is_unmet(task, parent)]
        holders = [parent for parent in unmet if self.tasks[parent].state != "SKIPPED"]
        return name in listed or (bool(holders) and all(self._is_shown(holder, listed) for holder in holders))

    def _is_unmet(self, task: _Task, parent: str) -> bool:
        above = self.tasks[parent]
        return not allows(task.spec.rule, above.state, above.skip_cause)

    def _expected_end(self) -> tuple[str, ...]:
        bad = [task for task in self.tasks.values() if task.state in _FAILED or task.state == "PENDING"]
        if any(not task.spec.optional for task in bad) or any(
            task.state == "DEAD_LETTER" for task in self.tasks.values()
        ):
            return ("FAILED",)
        skipped = any(task.state == "SKIPPED" and task.skip_cause == "operator" for task in self.tasks.values())
        return ("PARTIAL",) if bad or skipped else ("SUCCESS",)

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(what)


def allows(rule: str, state: str, skip_cause: str | None, is_over: bool = False) -> bool:
    """Whether a parent lets a child start; ``is_over``: the deadline has passed, and a dead letter counts as ended."""
    is_collected, rule = rule.startswith("collect:"), rule.removeprefix("collect:")
    if rule == "all_done":
        return state in _ENDED - (set() if is_over else {"DEAD_LETTER"})
    if is_collected and state == "SKIPPED":
        return rule != "all_success_strict" or skip_cause != "operator"
    if state == "SKIPPED":
        return skip_cause == "operator" if rule == "all_success" else rule == "none_failed"
    return state == "SUCCESS"


def _differences(before: msgspec.Struct | RunRow, now: object) -> str:
    names = before._fields if isinstance(before, RunRow) else before.__struct_fields__
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in names]
    return ", ".join(_difference(*pair) for pair in pairs if pair[1] != pair[2])


def _difference(name: str, before: object, after: object) -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        both = sorted(before.keys() & after.keys())
        changed = [f"{key}: {_differences(before[key], after[key])}" for key in both if before[key] != after[key]]
        return f"{name} {changed}, only one has {sorted(before.keys() ^ after.keys())}"
    return f"{name} {before!r}, in the table {after!r}"
