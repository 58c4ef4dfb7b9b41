"""Runs one night: executors one after another, on one state file, until its run has ended or waits for a human."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import random
import shutil
import sqlite3
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redrive.engine.core.spec import FlowSpec
from redrive.engine.domain.acts import BY_NAME, Command, Scope, Target, parse_command
from redrive.engine.domain.event_codec import event_of
from redrive.engine.domain.events import Event
from redrive.engine.errors import StorageError
from redrive.engine.executor.executor import Executor
from redrive.engine.executor.run_end import RunResult
from redrive.engine.executor.run_options import RunOptions
from redrive.engine.runner.protocol import AttemptOrder
from redrive.engine.statefile import operator_actions
from redrive.engine.statefile.reader import events_query
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database
from redrive.engine.testing.played_machine import Crash, PlayedRunner, PlayedWriter, Stuck, VirtualClock
from redrive.engine.testing.playing import Stage

from .invariants import Checker, Violation
from .plan import BREAKER_HOWS, Plan, PlannedAct
from .scripts import script_of

RUN_ID = "night"
LIMIT_SECONDS = 3600.0  # of one executor; every wait of a plan is far shorter
SESSIONS_MAX = 60
CHECK_EVERY = 64  # commits between two comparisons of the events with the tables
_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None


@dataclass(slots=True)
class Report:
    """What came of a night. ``problem``: the invariant that does not hold; empty if all do."""

    seed: int
    problem: str = ""
    state: str = ""
    digest: str = ""
    events: int = 0
    executors: int = 0
    seconds: float = 0.0  # of virtual time
    counts: Counter[str] = field(default_factory=Counter)


def simulate(plan: Plan, show: Callable[[Event], None] | None = None) -> Report:
    """Run a night and report. Exceptions of the engine are problems of the night, too."""
    report = Report(plan.seed)
    folder = tempfile.mkdtemp(prefix="redrive-night-", dir=_FOLDER)
    try:
        simulation = _Simulation(plan, os.path.join(folder, "night.db"), report, show)
        try:
            report.state = simulation.run()
        except (Violation, Stuck) as error:
            report.problem = str(error)
        except Exception as error:
            report.problem = "".join(traceback.format_exception(error)[-4:])
        simulation.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report


class _Simulation:
    def __init__(
        self,
        plan: Plan,
        path: str,
        report: Report,
        show: Callable[[Event], None] | None,
    ) -> None:
        self.plan = plan
        self.path = path
        self.report = report
        self.clock = VirtualClock(plan.seed, plan.start_us)
        self.stage = Stage(
            self.clock,
            self._writer(),
            self._new_runner,
            self._read_flow,
            seed=plan.seed,
            heartbeat_seconds=plan.heartbeat_seconds,
        )
        self.checker = Checker(plan.flow, RUN_ID, plan.max_parallel)
        self._file_checker = Checker(plan.flow, RUN_ID, plan.max_parallel)
        self.acts = list(plan.acts)
        self._has_run = False
        self.unanswered: dict[str, Command] = {}  # by id: the executor died before it answered
        self.is_over = False  # the run stays blocked, and no act is left
        self.sent: list[str] = []  # ids of the acts of this night, for undo
        self._digest = hashlib.sha256()
        self._show = show
        self._steps = sorted(plan.clock_steps)
        self._dice = random.Random(f"{plan.seed}:night")
        self._commits = itertools.count(1)
        self._batches = 0

    def _writer(self) -> PlayedWriter:
        """Return a writer that counts the batches of the night, at some of which the executor dies or the disk is full.

        A crash comes before the COMMIT, or after it.
        """
        writer, crashes, dice = PlayedWriter(), dict(self.plan.crashes), random.Random(f"{self.plan.seed}:writer")

        def before() -> None:
            self._batches += 1
            if crashes.get(self._batches) is False:
                raise Crash(f"before commit {self._batches}")

        def after() -> None:
            if not writer.refuses():
                self._after_commit()
            if crashes.get(self._batches):
                raise Crash(f"after commit {self._batches}")

        writer.before_batch, writer.after_batch = before, after
        writer.refuses = lambda: self._batches in self.plan.refusals
        writer.delay_seconds = lambda: dice.choice((0.0, 0.0, 0.001, 0.02))
        return writer

    def _new_runner(self, executor_id: str) -> PlayedRunner:
        return PlayedRunner(executor_id, self._load_flow, partial(script_of, self.plan), self._check_start)

    def _load_flow(self, params: object, remembered: object) -> FlowSpec:
        return self.plan.flow

    async def _read_flow(self, target: str, params: object) -> FlowSpec:
        return self.plan.flow

    def run(self) -> str:
        """Return the state of the run at the end."""
        for _ in range(SESSIONS_MAX):
            self.report.executors += 1
            result = self._session()
            self._check_file()
            if self.is_over and self.checker.is_blocked:
                self._check_end("BLOCKED")
                return "BLOCKED"
            self.is_over = False  # a dead letter expired while the executor was asked to stop: the run goes on
            if result is None or result.interrupted:
                self.clock.seconds += self._dice.choice((0.0, 1.0, 100.0))
            elif not self._act_without_executor():
                self._check_end(result.state)
                return result.state
        raise Violation(f"the run has not ended after {SESSIONS_MAX} executors")

    def finish(self) -> None:
        self.report.digest = self._digest.hexdigest()[:16]
        self.report.events = self.checker.seq
        self.report.seconds = self.clock.seconds
        self.report.counts = self.checker.counts

    # --- One executor ----------------------------------------------------------------------------------------------

    def _session(self) -> RunResult | None:
        """Run one executor to its end. None: it died."""
        try:
            return self.stage.run(lambda: _Session(self).run())
        except StorageError:
            return None  # the disk refused the first write, or the last one

    def _options(self) -> RunOptions:
        """Return the options of the next executor: ``redrive serve`` starts a scheduled night, and then resumes it."""
        plan = self.plan
        if plan.logical_time is None:
            return RunOptions(max_parallel=plan.max_parallel, stay=plan.stays)
        is_new = not self._has_run
        logical_time = plan.logical_time if is_new else None
        return RunOptions(plan.max_parallel, stay=plan.stays, served=True, resume=not is_new, logical_time=logical_time)

    def _on_events(self, events: Iterable[Event]) -> None:
        try:
            self._record(events)
        except Violation as error:
            self._fail(error)

    def _record(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.seq > self.checker.seq:
                self.checker.handle([event])
                self._digest.update(_line(event).encode())
                if self._show is not None:
                    self._show(event)

    def _check_start(self, order: AttemptOrder) -> None:
        assert self.stage.runner is not None
        try:
            self.checker.check_start(order, [attempt.order for attempt in self.stage.runner.running.values()])
        except Violation as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the night with a problem: the engine must not catch it."""
        self.stage.fail(error)

    def _after_commit(self) -> None:
        """Compare the file before its events are reported."""
        if next(self._commits) % CHECK_EVERY:
            return
        with closing(self._connect()) as connection:
            if connection.execute("SELECT count(*) FROM run").fetchone()[0]:
                try:
                    self._file_checker.catch_up(connection)
                    self._file_checker.check_tables(connection)
                except Violation as error:
                    self._fail(error)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    # --- Between two executors -------------------------------------------------------------------------------------

    def _check_file(self) -> None:
        with closing(self._connect()) as connection:
            self._record(_events_after(connection, self.checker.seq))
            runs_count = connection.execute("SELECT count(*) FROM run").fetchone()[0]
            if runs_count > 1:
                raise Violation(f"{runs_count} runs of one scheduled time")
            if runs_count:
                self._has_run = True
                self.checker.check_tables(connection)

    def _check_end(self, state: str) -> None:
        with closing(self._connect()) as connection:
            self.checker.check_end(connection, state)

    def _act_without_executor(self) -> bool:
        """Apply acts as the shell does when no executor lives, until one changes something. False: none is left."""
        while self.unanswered or self.acts:
            if self.unanswered:
                command: Command | None = self.unanswered.pop(next(iter(self.unanswered)))
            else:
                planned = self.acts.pop(0)
                self.clock.seconds = max(self.clock.seconds, planned.at)
                command = self.choose(planned)
            if command is not None and self._apply(command):
                return True
        return False

    def _apply(self, command: Command) -> bool:
        """Apply an act, twice if the dice say so; return whether it changes something, or an executor shall look."""
        is_changed = self._dice.random() < 0.1
        with closing(database.open_for_writing(self.path)) as connection:
            for _ in range(self._dice.choice((1, 1, 2))):
                connection.execute("BEGIN IMMEDIATE")
                transaction = Transaction(connection, self.clock.now_us())
                answer = operator_actions.apply(transaction, command, is_abandoned=True)
                connection.execute("COMMIT")
                self._record(_events_after(connection, self.checker.seq))
                self.checker.check_answer(command.id, answer.as_json())
                is_changed |= answer.ok
            self.checker.check_tables(connection)
        return is_changed

    def choose(self, planned: PlannedAct) -> Command | None:
        """Choose the targets of an act by the states of the moment. None: it is not an act of an operator."""
        if planned.act not in BY_NAME:
            return None
        dice = random.Random(f"{self.plan.seed}:act:{planned.number}")
        names = list(self.checker.tasks)
        states = BY_NAME[planned.act].states
        chosen = [name for name in names if self.checker.tasks[name].state in states] or names
        count = dice.choice((1, 1, 2, len(chosen)))
        targets = chosen if BY_NAME[planned.act].scope is Scope.TASKS else []
        options: dict[str, Any] = {}
        if planned.act == "extend":
            targets = [name for name in names if self.checker.tasks[name].state == "RUNNING"] or names
            options["seconds"] = dice.choice((1.0, 30.0))
        elif planned.act == "postpone":
            options = dice.choice(({}, {"seconds": 5}, {"seconds": 100}, {"seconds": 3600}))
        elif planned.act == "undo":
            options["command"] = dice.choice(self.sent or ["none"])
        elif planned.act == "breaker":
            options = {"downstream": dice.choice(["system0", "system1"]), "how": dice.choice(BREAKER_HOWS)}
        elif planned.act in ("ack", "snooze"):
            options = {"pages": dice.sample(range(1, 5), 2), "seconds": 60}
        elif planned.act in ("requeue-rows", "discard-rows"):
            options["rows"] = dice.sample(range(1, 7), 3)
        elif planned.act == "note":
            options = {"fingerprint": "same failure:t0", "text": "a note"}
        elif planned.act == "stop":
            options["how"] = dice.choice(("drain", "now"))
        elif planned.act == "requeue":
            options = {
                "cascade": dice.random() < 0.3,
                "canary": dice.random() < 0.3,
                "new_key": dice.random() < 0.2,
                "not_before": dice.choice((0, 0, 20)),
                "single_shot": dice.random() < 0.1,
                "same_key": dice.random() < 0.2,
            }
        command_id = f"act{planned.number}"
        self.sent.append(command_id)
        seen = [self._target(name, dice) for name in dice.sample(targets, min(len(targets), count))]
        value = Command(command_id, planned.act, RUN_ID, tuple(seen), "ana@night", "a reason", options).as_json()
        return parse_command(json.loads(json.dumps(value)))

    def _target(self, name: str, dice: random.Random) -> Target:
        task = self.checker.tasks[name]
        return Target(name, task.state, task.generation - (dice.random() < 0.1))


class _Session:
    """One executor, with the operator who acts on it."""

    def __init__(self, simulation: _Simulation) -> None:
        self._simulation = simulation
        self._opened = asyncio.Event()
        self._executor = Executor(
            run_id=RUN_ID,
            flow="night.py",
            state=simulation.path,
            options=simulation._options(),
            machine=simulation.stage.machine,
            on_events=simulation._on_events,
            on_open=lambda run_id: self._opened.set(),
        )

    async def run(self) -> RunResult:
        simulation, loop = self._simulation, asyncio.get_running_loop()
        now = loop.time()
        loop.call_later(LIMIT_SECONDS, self._end_wait)
        for at, seconds in simulation._steps:
            if at >= now:
                loop.call_at(at, simulation.clock.step, seconds)
        simulation._steps = [step for step in simulation._steps if step[0] > now]
        operator = loop.create_task(self._operate())
        try:
            return await self._executor.run_here()
        finally:
            operator.cancel()
            with suppress(asyncio.CancelledError):
                await operator

    def _end_wait(self) -> None:
        states = {name: task.state for name, task in self._simulation.checker.tasks.items()}
        self._simulation._fail(Violation(f"somebody waits for ever: {states}"))

    async def _operate(self) -> None:
        """Send each act at its instant, and stop an executor that stays although no act is left."""
        simulation, loop = self._simulation, asyncio.get_running_loop()
        await self._opened.wait()
        sent = [loop.create_task(self._send(command)) for command in simulation.unanswered.values()]
        while simulation.acts:
            await asyncio.sleep(max(0.0, simulation.acts[0].at - loop.time()))
            planned = simulation.acts.pop(0)
            command = simulation.choose(planned)
            if command is not None:
                sent.append(loop.create_task(self._send(command)))  # others act at the same time
            elif planned.act == "zygote dies" and simulation.stage.runner is not None:
                simulation.stage.runner.lose_zygote()
        await asyncio.gather(*sent)
        while not simulation.checker.is_blocked:  # noqa: ASYNC110
            await asyncio.sleep(5.0)
        if simulation.plan.stays:
            simulation.is_over = True
            self._executor.stop()

    async def _send(self, command: Command) -> None:
        simulation = self._simulation
        simulation.unanswered[command.id] = command
        line = json.dumps(command.as_json()).encode()
        dice = random.Random(f"{simulation.plan.seed}:{command.id}:send")
        for _ in range(dice.choice((1, 1, 1, 2))):
            try:
                answer = dict(await self._executor.respond(line))
            except ConnectionError:
                return  # it leaves: the act is sent again to whoever comes next
            if "fault of redrive" in str(answer["message"]):
                simulation._fail(Violation(f"{command.act}: {answer['message']}"))
            if command.act not in ("cancel", "extend", "stop"):  # whose answer is that of the moment
                simulation.checker.check_answer(command.id, answer)
        del simulation.unanswered[command.id]


def _events_after(connection: sqlite3.Connection, seq: int) -> list[Event]:
    return list(map(event_of, connection.execute(*events_query(seq, 1_000_000))))


def _line(event: Event) -> str:
    """One event without what differs between two processes."""
    parts = [event.seq, event.at, event.kind, event.task, event.old, event.new, event.attempt, event.generation]
    payload = "" if event.kind == "executor" else event.payload
    return f"{parts} {event.actor} {payload}\n"
