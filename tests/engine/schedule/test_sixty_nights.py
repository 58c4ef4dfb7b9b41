"""Nights of several flows under a clock that is moved, against an own count.

With edits, pauses, moves, kills, a second supervisor that stands by, files that cannot be read, prunes, restores of
older state files, backfills, and starts that operators ask for.

The count enumerates days and hours itself: which times were due, by the schedule that the flow had then. Each has run
once or stands in the ledger with its reason: none is lost, none runs twice, none is untold.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from redrive.engine.core.spec import FlowSpec, ScheduleSpec, TaskSpec
from redrive.engine.errors import FlowError
from redrive.engine.executor.opening import Machine
from redrive.engine.executor.run_options import RunOptions
from redrive.engine.schedule.flow_service import FlowService, Launched, Supervision
from redrive.engine.statefile import paths, supervisor_file
from redrive.engine.statefile.pruning import RetentionRule, prune_step
from redrive.engine.statefile.start_requests import read_requests, write_request
from redrive.engine.statefile.supervisor_file import FOREVER, Fate, SupervisorFile
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database, runs, schedules
from redrive.engine.store.schedules import ServedFlow, served_flow
from support.marks import parametrize_mostly_long

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
BEGIN = round(datetime(2026, 2, 9, 12, tzinfo=UTC).timestamp()) * SECOND  # the clocks change in March
STEPS_MAX = 5_000
BACKFILL_MAX = 20  # of those that ran before their time a supervisor knows the latest 40, if the file is restored
HOLIDAYS = ("2026-02-16", "2026-03-02", "2026-03-29")
#: Expression and zone -> its times within a day, in minutes; the second spelling of each means the same.
RHYTHMS = {
    ("0 2 * * *", "00 02 * * *", "UTC"): [120],
    ("30 3,15 * * *", "30 3,15 */1 * *", "UTC"): [210, 930],
    ("0 */6 * * *", "0 0-23/6 * * *", "UTC"): [0, 360, 720, 1080],
    ("every 3h", "every 180m", "UTC"): [180 * number for number in range(8)],
    ("every 90m", "every 5400s", "UTC"): [90 * number for number in range(16)],
    ("15 5 * * *", "15 05 * * 0-6", "Europe/Berlin"): [315],
    ("45 23 * * *", "45 23 1-31 * *", "America/New_York"): [1425],
}


ACTS = [*["nothing"] * 6, "edit", "edit", "spell", "pause", "unpause", "skip", "move", "die", "kill", "ask", "ask"]
ACTS += ["ahead", "stand by", "stand by", "break", "break", "mend", "prune", "restore", "backfill", "start", "start"]


class Killed(BaseException):
    """The supervisor is killed at this instant."""


class PlayedClock:
    """A wall clock that is set by hand."""

    def __init__(self) -> None:
        self.now = BEGIN

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e6

    def uniform(self, low: float, high: float) -> float:
        return low


def times_between(rhythm: tuple[str, list[int]], after: int, until: int) -> list[int]:
    """The own count."""
    zone, minutes = ZoneInfo(rhythm[0]), rhythm[1]
    first, last = (datetime.fromtimestamp(at // SECOND, zone).date() for at in (after, until))
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    walls = [
        datetime(day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=zone)
        for day in days
        if day.isoformat() not in HOLIDAYS
        for minute in minutes
    ]
    found = [round(wall.timestamp()) * SECOND for wall in walls]
    return [at for at in found if after < at <= until]


@dataclass
class PlayedFlow:
    """A flow, what its file says, and what was due."""

    name: str
    expression: str
    rhythm: tuple[str, list[int]]
    misfire: str
    target: str = ""
    holds_from: int = BEGIN
    due: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    ahead: set[int] = field(default_factory=set)  # those that started while the clock was ahead
    asked: set[str] = field(default_factory=set)  # starts that an operator asked for
    answered: list[str] = field(default_factory=list)  # those of them that have started
    refused: set[str] = field(default_factory=set)  # and those that failed to start, as the list says
    service: FlowService | None = None
    second: FlowService | None = None  # of the supervisor that stands by
    is_broken: bool = False

    @property
    def served(self) -> ServedFlow:
        spec = ScheduleSpec(self.expression, self.rhythm[0], self.misfire, holidays=HOLIDAYS)  # type: ignore[arg-type]
        served = served_flow(FlowSpec(self.name, (TaskSpec("a"),), schedule=spec))
        assert served is not None
        return served

    def due_until(self, now: int) -> set[int]:
        return {*self.due, *times_between(self.rhythm, self.holds_from, now)}

    def edit(self, expression: str, rhythm: tuple[str, list[int]], at: int) -> None:
        if rhythm != self.rhythm:
            self.due += times_between(self.rhythm, self.holds_from, at)
            self.holds_from, self.rhythm = at, rhythm
        self.expression = expression


class Nights:
    """The flows, their supervisor and the operators, by dice."""

    def __init__(self, folder: Path, seed: int, flows: int) -> None:
        self.dice = random.Random(seed)
        self.clock, self.latest = PlayedClock(), BEGIN
        self.folder = folder
        self.flows = []
        for number in range(flows):
            (first, _, zone), minutes = self.dice.choice(list(RHYTHMS.items()))
            misfire = self.dice.choice(["one", "all", "skip"])
            self.flows.append(PlayedFlow(f"f{number}", first, (zone, minutes), misfire, f"/flows/f{number}.py:flow"))
        self.is_ahead = False
        self.lives = 0
        self.kill_at = 0  # the supervisor is killed in so many calls of its file or of a start
        self.open()

    def open(self) -> None:
        self.shared = self.supervision()
        self.second: Supervision | None = None

    def supervision(self) -> Supervision:
        self.lives += 1
        file = SupervisorFile(paths.supervisor_path(), str(self.lives))
        file.register(os.getpid(), "here", "[]", self.clock.now)
        machine = Machine(clock=self.clock, breakers_folder=lambda: None, pages_folder=lambda: None)
        nothing = lambda *words: None  # noqa: E731
        save = file.save

        def killed_save(*values: object, **options: object) -> None:
            self.count_down()
            save(*values, **options)  # type: ignore[arg-type]
            self.count_down()

        file.save = killed_save  # type: ignore[method-assign]
        return Supervision(str(self.lives), self.launch, file, machine, RunOptions(), nothing, nothing)

    def count_down(self) -> None:
        self.kill_at -= 1
        if self.kill_at == 0:
            raise Killed

    def serve(self, flow: PlayedFlow) -> None:
        """Read the file of a flow, as a supervisor does that begins."""
        flow.service = self.service_of(flow, self.shared)
        flow.service.acquire()
        flow.service.use_flow(flow.served, few_tasks=False)

    def service_of(self, flow: PlayedFlow, shared: Supervision) -> FlowService:
        return FlowService(flow.target, flow.served, self.state_path(flow), shared)

    def state_path(self, flow: PlayedFlow) -> str:
        return str(self.folder / f"{flow.name}.db")

    def stand_by(self) -> None:
        """Let a second supervisor read all files, and go on when the first one dies."""
        self.second = self.second or self.supervision()
        for flow in self.flows:
            if flow.service is not None and flow.second is None:
                flow.second = self.service_of(flow, self.second)
                flow.second.acquire()
                assert flow.second.is_standby
                flow.second.use_flow(flow.served, few_tasks=False)

    def die(self) -> None:
        """Lose what the supervisor has in memory; one that stands by goes on."""
        for flow in self.flows:
            if flow.service is not None:
                flow.service.release()
            flow.service, flow.second = flow.second, None
        self.shared.file.close()
        if self.second is None:
            self.open()
        else:
            self.shared, self.second = self.second, None

    async def launch(self, target: str | None, state_path: str, run_id: str, options: RunOptions) -> Launched:
        """A run that begins and ends here."""
        self.count_down()
        flow = next(one for one in self.flows if state_path == self.state_path(one))
        if flow.is_broken:
            flow.refused.add(run_id)
            raise FlowError("it cannot be read")
        self.run(flow, run_id, options)
        self.count_down()
        return Launched(None)

    def run(self, flow: PlayedFlow, run_id: str, options: RunOptions) -> None:
        served, state_path = flow.served, self.state_path(flow)
        with closing(database.open_for_writing(state_path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection, self.clock.now)
            if options.logical_time is not None:
                schedules.claim_slot(transaction, served, options.logical_time, run_id, again=not options.served)
            runs.create_run(
                transaction,
                run_id=run_id,
                flow=served.flow,
                max_parallel=1,
                params={},
                at=self.clock.now,
                deadline_at=None,
                logical_time=options.logical_time,
            )
            connection.execute("UPDATE run SET state = 'SUCCESS', ended_at = ?", (self.clock.now,))
            connection.execute("COMMIT")
        if options.logical_time is None:
            flow.answered.append(run_id)
        else:
            flow.started.append(options.logical_time)
            flow.ahead |= {options.logical_time} if self.is_ahead else set()

    # --- What happens ------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let the supervisor do all steps that are due."""
        for flow in self.flows:
            if flow.service is None:
                self.serve(flow)
            service = flow.service
            assert service is not None
            if service.is_standby:
                service.acquire()
            service.use_decisions({row.id: row for row in self.shared.file.stored()}[service.row.id])
            asked = [one for one in read_requests() if one.flow == flow.name and not one.is_stale(self.clock.now)]
            service.use_requests(tuple(asked))
            service.wake_at = service.wake_at if service.wake_at is None else min(service.wake_at, self.clock.now)
            for _ in range(STEPS_MAX):
                if service.wake_at is None or service.wake_at > self.clock.now:
                    break
                await service.step()
            else:
                raise AssertionError(f"{flow.name} does not come to rest")

    async def turn(self) -> None:
        """Let something happen, and then time pass. No edit comes while the clock repeats what was decided."""
        flow, act = self.dice.choice(self.flows), self.dice.choice(ACTS)
        if act in ("edit", "spell"):
            self.clock.now = self.latest = max(self.clock.now, self.latest + MINUTE)
        match act:
            case "edit":
                (first, _, zone), minutes = self.dice.choice(list(RHYTHMS.items()))
                flow.edit(first, (zone, minutes), self.clock.now)
                self.read_again(flow)
            case "spell":
                names = next(names for names, minutes in RHYTHMS.items() if (names[-1], minutes) == flow.rhythm)
                flow.edit(self.dice.choice(names[:-1]), flow.rhythm, self.clock.now)
                self.read_again(flow)
            case "pause" if flow.service is not None:
                until = self.dice.choice([FOREVER, self.clock.now + 30 * HOUR])
                supervisor_file.pause([flow.service.row.id], until, "", "ana@here")
            case "unpause" if flow.service is not None:
                supervisor_file.unpause([flow.service.row.id], self.clock.now)
            case "skip" if flow.service is not None:
                row = next(row for row in supervisor_file.read_schedules().schedules if row.flow == flow.name)
                supervisor_file.skip(flow.service.row.id, row.next_logical, "bo@here")
            case "move":
                flow.target = f"/flows/{self.dice.randrange(1000)}-{flow.name}.py:flow"
                if flow.service is not None:
                    flow.service.release()
                flow.service = flow.second = None
            case "die":
                self.die()
                self.pass_time(self.dice.choice([MINUTE, HOUR, 30 * HOUR]))
            case "kill":
                self.kill_at = self.dice.randint(1, 12)
            case "ask" if flow.service is not None:
                asked = write_request(flow.name, flow.service.state_path, None, {}, "eva@here", self.clock.now)
                flow.asked.add(asked.name)
            case "ahead":
                await self.boot_ahead()
            case "stand by":
                self.stand_by()
            case "break" if flow.service is not None:
                flow.is_broken = True
                flow.service.record_failure("it cannot be read", is_of_reading=True)
            case "mend":
                flow.is_broken = False
                self.read_again(flow)
            case "prune" | "restore" | "backfill" | "start" if os.path.exists(self.state_path(flow)):
                await self.change_runs(flow, act)
        self.pass_time(self.dice.choice([MINUTE, 20 * MINUTE, HOUR, 3 * HOUR, 7 * HOUR]))
        try:
            await self.settle()
        except Killed:
            self.die()
            await self.settle()

    async def change_runs(self, flow: PlayedFlow, act: str) -> None:
        path, copy, now = self.state_path(flow), Path(f"{self.state_path(flow)}.copy"), self.clock.now
        undone = sorted(flow.due_until(now) - set(flow.started))
        match act:
            case "prune":
                with closing(database.open_for_writing(path)) as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    while not prune_step(Transaction(connection, now), RetentionRule(runs=3)).is_last:
                        pass
                    connection.execute("COMMIT")
            case "restore" if copy.exists():  # what the ledger knows is not started again
                self.kill_at = 0
                await self.settle()
                for suffix in ("-wal", "-shm"):
                    Path(path + suffix).unlink(missing_ok=True)
                copy.rename(path)
            case "restore":
                with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(copy)) as target:
                    connection.backup(target)
            case "backfill" if undone:
                since = self.dice.choice(undone)
                for slot in schedules.backfill_slots(path, flow.served, max(since, flow.holds_from + 1), now)[
                    :BACKFILL_MAX
                ]:
                    if slot.run_id is None and slot.logical not in flow.started:
                        self.run(flow, f"b{slot.logical}", RunOptions(logical_time=slot.logical, served=False))
            case "start" if undone:  # twice, by two operators
                logical = self.dice.choice(undone)
                for who in ("eva@here", "bo@here"):
                    write_request(flow.name, path, logical, {}, who, now)

    async def boot_ahead(self) -> None:
        """Serve for a moment with a clock that is three days ahead."""
        now, self.is_ahead, self.kill_at = self.clock.now, True, 0
        self.die()
        self.clock.now += 3 * DAY
        await self.settle()
        self.die()
        self.clock.now, self.is_ahead = now, False

    def read_again(self, flow: PlayedFlow) -> None:
        """Nobody sees an edit while nothing serves: then it is of the moment when the next one reads the file."""
        if flow.service is None:
            self.serve(flow)
        for service in (flow.service, flow.second):
            if service is not None:
                service.use_flow(flow.served, few_tasks=False)

    def pass_time(self, elapsed: int) -> None:
        """Now and then the clock is set; it is never more than 50 minutes behind the latest time that it has shown."""
        step = self.dice.choice([0, 0, 0, 0, -50, -20, 20, 50]) * MINUTE
        self.clock.now = max(self.clock.now + elapsed + step, self.latest - 50 * MINUTE)
        self.latest = max(self.latest, self.clock.now)


@parametrize_mostly_long("seed", range(3))
async def test_no_start_is_lost_doubled_or_untold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Path(paths.supervisor_path()).parent.mkdir(parents=True)
    nights = Nights(tmp_path, seed, 3 if seed == 0 else 8)
    await nights.settle()
    end = BEGIN + (8 if seed == 0 else 60) * DAY
    while nights.clock.now < end:
        await nights.turn()
    nights.clock.now, nights.kill_at = nights.latest + HOUR, 0
    for flow in nights.flows:
        flow.is_broken = False
        nights.read_again(flow)
        assert flow.service is not None
        supervisor_file.unpause([flow.service.row.id], nights.clock.now)
    await nights.settle()
    await nights.settle()
    for flow in nights.flows:
        check(nights, flow)
    with suppress(Killed):
        nights.shared.file.close()


def check(nights: Nights, flow: PlayedFlow) -> None:
    assert flow.service is not None
    due = flow.due_until(nights.clock.now)
    assert [at for at, times in Counter(flow.started).items() if times > 1] == [], "twice"
    assert set(flow.started) - flow.ahead <= due, (flow.name, sorted(set(flow.started) - due))
    rows = supervisor_file.read_ledger(flow.service.row.id)
    given_up = [row for row in rows if row.fate != Fate.RUN]
    counted = sum(row.times for row in rows if row.fate == Fate.RUN)  # one that ran ahead counts when its time comes
    assert len(set(flow.started) - flow.ahead) <= counted <= len(flow.started)
    singles = {row.first for row in given_up if row.times == 1}
    assert singles <= due - set(flow.started), sorted(singles - (due - set(flow.started)))
    assert sum(row.times for row in given_up) == len(due - set(flow.started)), (flow, "lost")
    assert len(set(flow.answered)) == len(flow.answered), "a start by hand, twice"
    listed = {one.name for one in read_requests() if one.flow == flow.name}
    assert flow.asked - set(flow.answered) - flow.refused <= listed, "a start by hand, lost"
    assert all(row.why or row.who for row in given_up) and all(
        row.listed == row.times for row in given_up if row.fate == Fate.MISSED
    ), "untold"
