"""Nights of several flows under a clock that is moved, against an own count.

With edits, pauses, moves, kills, a second supervisor that stands by, files that cannot be read, prunes, restores of
older state files, backfills, flows after other flows, and starts that operators ask for, also while nobody serves.

The count enumerates days and hours itself: which times were due, by the schedule that the flow had then. Each has run
once or stands in the ledger with its reason: none is lost, none runs twice, none is untold.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from redrive.engine.core.spec import FlowSpec, ScheduleSpec, TaskSpec
from redrive.engine.errors import FlowError
from redrive.engine.executor.opening import Machine
from redrive.engine.executor.run_options import RunOptions
from redrive.engine.schedule.flow_service import FlowService
from redrive.engine.schedule.supervision import Launched, Supervision
from redrive.engine.statefile import supervisor_file
from redrive.engine.statefile.paths import supervisor_path
from redrive.engine.statefile.pruning import RetentionRule, prune_step
from redrive.engine.statefile.start_requests import StartRequest, read_requests, remove, write_request
from redrive.engine.statefile.supervisor_file import FOREVER, Fate
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import backfill, database, runs, schedules
from redrive.engine.store.schedules import ServedFlow, served_flow
from redrive.engine.store.supervisor_writer import SupervisorFile
from support.marks import parametrize_mostly_long

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
STEPS_MAX = 5_000
BACKFILL_MAX = 20  # of those that ran before their time a supervisor knows the latest 40, if the file is restored
HOLIDAYS = ("2026-03-02", "2026-03-10", "2026-03-29")
#: Expression and zone -> its times within a day, in seconds; the second spelling of each means the same.
RHYTHMS = {
    ("every 3h", "every 180m", "UTC"): range(0, 86_400, 10_800),
    ("0 2 * * *", "00 02 * * *", "UTC"): [7200],
    ("30 3,15 * * *", "30 3,15 */1 * *", "UTC"): [12_600, 55_800],
    ("0 */6 * * *", "0 0-23/6 * * *", "UTC"): range(0, 86_400, 21_600),
    ("every 90m", "every 5400s", "UTC"): range(0, 86_400, 5400),
    ("every 10s", "every 0m10s", "UTC"): range(0, 86_400, 10),
    ("15 5 * * *", "15 05 * * 0-6", "Europe/Berlin"): [18_900],
    ("45 23 * * *", "45 23 1-31 * *", "America/New_York"): [85_500],
}
EVERY_DAY = ("every 3h", ("UTC", range(0, 86_400, 10_800)))
BY = (time(6), time(14, 30), time(22))
ACTS = [*["nothing"] * 6, "edit", "edit", "spell", "pause", "unpause", "skip", "move", "die", "kill", "ask", "ask"]
ACTS += ["ahead", "stand by", "stand by", "break", "break", "mend", "prune", "restore", "backfill", "start", "start"]
ACTS += ["ask nobody", "ask again"]


class Killed(BaseException):
    """The supervisor is killed at this instant."""


class PlayedClock:
    """A wall clock that is set by hand."""

    def __init__(self, now: int) -> None:
        self.now = now

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1e6

    def uniform(self, low: float, high: float) -> float:
        return low


Rhythm = tuple[str, Sequence[int]]


def times_between(rhythm: Rhythm, after: int, until: int) -> list[int]:
    """The own count."""
    zone, seconds = ZoneInfo(rhythm[0]), rhythm[1]
    first, last = (datetime.fromtimestamp(at // SECOND, zone).date() for at in (after, until))
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    found = [at for day in days if day.isoformat() not in HOLIDAYS for at in times_of_day(day, zone, seconds)]
    return [at for at in found if after < at <= until]


def times_of_day(day: date, zone: ZoneInfo, seconds: Sequence[int]) -> list[int]:
    if zone.key == "UTC":
        midnight = midnight_of(day, zone)
        return [midnight + second * SECOND for second in seconds]
    walls = [datetime(day.year, day.month, day.day, *divmod(second // 60, 60), tzinfo=zone) for second in seconds]
    return [round(wall.timestamp()) * SECOND for wall in walls]


def midnight_of(day: date, zone: ZoneInfo) -> int:
    return round(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()) * SECOND


@dataclass
class PlayedFlow:
    """A flow, what its file says, and what was due."""

    name: str
    expression: str
    rhythm: Rhythm
    misfire: str
    target: str
    begin: int
    holds_from: int
    due: list[int] = field(default_factory=list)
    started: list[int] = field(default_factory=list)
    ahead: set[int] = field(default_factory=set)  # those that started while the clock was ahead
    asked: set[str] = field(default_factory=set)  # starts that an operator asked for
    answered: list[str] = field(default_factory=list)  # those of them that have started
    refused: set[str] = field(default_factory=set)  # and those that failed to start, as the list says
    service: FlowService | None = None
    second: FlowService | None = None  # of the supervisor that stands by
    is_broken: bool = False
    before: tuple[PlayedFlow, ...] = ()  # the flows that it comes after
    by: time = BY[0]
    started_early: list[int] = field(default_factory=list)  # days of which a run before it had not started

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.rhythm[0])

    @property
    def served(self) -> ServedFlow:
        spec = ScheduleSpec(self.expression, self.rhythm[0], self.misfire, holidays=HOLIDAYS)  # type: ignore[arg-type]
        served = served_flow(FlowSpec(self.name, (TaskSpec("a"),), schedule=spec))
        assert served is not None
        return served

    def due_until(self, now: int) -> set[int]:
        if self.before:
            return {midnight_of(day, self.zone) for day in self.days(now)}
        return {*self.due, *times_between(self.rhythm, self.holds_from, now)}

    def times_on(self, day: date) -> list[int]:
        """The logical times of a day by the schedules that it had, and by the one that it has."""
        first, last = midnight_of(day, self.zone), midnight_of(day + timedelta(days=1), self.zone) - 1
        coming = times_between(self.rhythm, max(first - 1, self.holds_from), last)
        return [*(at for at in self.due if first <= at <= last), *coming]

    def days(self, now: int) -> list[date]:
        """The days of a flow after others that have begun, and on which one of those has a time."""
        first, last = (datetime.fromtimestamp(at // SECOND, self.zone).date() for at in (self.begin, now))
        days = (first + timedelta(days=number) for number in range((last - first).days + 1))
        return [
            day for day in days if day.isoformat() not in HOLIDAYS and any(one.times_on(day) for one in self.before)
        ]

    def follow(self, before: Sequence[PlayedFlow], by: time) -> None:
        self.before, self.by = tuple(before), by
        self.expression = f"after {', '.join(one.name for one in before)}; by {by:%H:%M}"

    def late_at(self, day: date) -> int:
        """The first time of day ``by`` after the last run before it is due."""
        last = max([midnight_of(day, self.zone), *(at for one in self.before for at in one.times_on(day))])
        wall = datetime.fromtimestamp(last // SECOND, self.zone)
        found = datetime.combine(wall.date(), self.by, self.zone)
        found = found if found > wall else datetime.combine(wall.date() + timedelta(days=1), self.by, self.zone)
        return round(found.timestamp()) * SECOND

    def edit(self, expression: str, rhythm: Rhythm, at: int) -> None:
        if rhythm != self.rhythm:
            self.due += times_between(self.rhythm, self.holds_from, at)
            self.holds_from, self.rhythm = at, rhythm
        self.expression = expression


class Nights:
    """The flows, their supervisor and the operators, by dice."""

    def __init__(self, folder: Path, seed: int, flows: int, begin: int) -> None:
        self.dice = random.Random(seed)
        self.begin = self.latest = begin
        self.clock = PlayedClock(begin)
        self.folder = folder
        self.flows = []
        for number in range(flows):
            misfire = self.dice.choice(["one", "all", "skip"])
            self.add(f"f{number}", *(self.rhythm_for(misfire) if number else EVERY_DAY), misfire)
        for number in range(1 + flows // 4):
            zone, misfire = self.dice.choice(["UTC", "Europe/Berlin"]), self.dice.choice(["one", "all", "skip"])
            self.add(f"g{number}", "", (zone, ()), misfire)
            self.follow(self.flows[-1])
        self.is_ahead = False
        self.lives = 0
        self.kill_at = 0  # the supervisor is killed in so many calls of its file or of a start
        self.open()

    def rhythm_for(self, misfire: str) -> tuple[str, Rhythm]:
        """An expression and its times; few, if all that are missed run."""
        known = [(first, (zone, seconds)) for (first, _, zone), seconds in RHYTHMS.items()]
        return self.dice.choice([one for one in known if misfire != "all" or len(one[1][1]) < 100])

    def add(self, name: str, expression: str, rhythm: Rhythm, misfire: str) -> None:
        target = f"/flows/{name}.py:flow"
        self.flows.append(PlayedFlow(name, expression, rhythm, misfire, target, self.begin, self.begin))

    def follow(self, flow: PlayedFlow) -> None:
        """Let a flow come after others: the first one, which has times on each day, and another one."""
        other = self.dice.choice([one for one in self.flows[1:] if not one.before and one is not flow])
        flow.follow([self.flows[0], other], self.dice.choice(BY))

    def open(self) -> None:
        self.shared = self.supervision()
        self.second: Supervision | None = None

    def supervision(self) -> Supervision:
        self.lives += 1
        file = SupervisorFile(supervisor_path(), str(self.lives))
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
            day = datetime.fromtimestamp(options.logical_time // SECOND, flow.zone).date()
            lasts = [max(times) for one in flow.before if (times := one.times_on(day))]
            started = {at for one in flow.before for at in one.started}
            if options.served and not set(lasts) <= started:
                flow.started_early.append(options.logical_time)
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
            if flow.before:
                service.wake()  # a run before it may have ended
            service.wake_at = service.wake_at if service.wake_at is None else min(service.wake_at, self.clock.now)
            for _ in range(STEPS_MAX):
                if service.wake_at is None or service.wake_at > self.clock.now:
                    break
                await service.step()
            else:
                raise AssertionError(f"{flow.name} does not come to rest")
            if flow.before and not service.is_standby:
                self.check_late(flow, service)

    def check_late(self, flow: PlayedFlow, service: FlowService) -> None:
        """A day that waits beyond its time is late, and was paged."""
        row = next(row for row in self.shared.file.stored() if row.id == service.row.id)
        days = {day: midnight_of(day, flow.zone) for day in flow.days(self.clock.now)[-3:]}
        decided = {*flow.started, row.skip_logical}  # a day that an operator leaves out is not late
        waiting = [day for day, at in days.items() if at > row.ledger_until and at not in decided]
        late = [day for day in waiting if max(row.paused_until, self.begin) < flow.late_at(day) < self.clock.now]
        if late:
            with database.reading(self.state_path(flow)) as connection:
                sql = "SELECT logical_time FROM sla WHERE dag_name = ? AND promise = 'start'"
                told = {at for (at,) in connection.execute(sql, (flow.name,))}
            assert {midnight_of(day, flow.zone) for day in late} <= told, (flow.name, late, "not told late")

    async def turn(self) -> None:
        """Let something happen, and then time pass. No edit comes while the clock repeats what was decided."""
        flow, act = self.dice.choice(self.flows), self.dice.choice(ACTS)
        if flow.before and act == "spell":
            act = "edit"
        if act in ("edit", "spell"):
            self.clock.now = self.latest = max(self.clock.now, self.latest + MINUTE)
        match act:
            case "edit" if flow.before:
                self.follow(flow)
                self.read_again(flow)
            case "edit":
                flow.edit(*self.rhythm_for(flow.misfire), self.clock.now)
                self.read_again(flow)
            case "spell":
                names = next(names for names, seconds in RHYTHMS.items() if (names[-1], seconds) == flow.rhythm)
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
            case "ask nobody" if flow.service is not None:
                self.die()
                self.die()
                asked = write_request(flow.name, self.state_path(flow), None, {}, "eva@here", self.clock.now)
                flow.asked.add(asked.name)
                self.pass_time(self.dice.choice([2 * MINUTE, 50 * MINUTE, 3 * HOUR]))
                self.check_asked(flow, asked)
            case "ask again":
                for one in read_requests():
                    if one.flow == flow.name and one.is_stale(self.clock.now):
                        remove(one)
                        again = write_request(flow.name, self.state_path(flow), None, {}, "bo@here", self.clock.now)
                        flow.asked = {*flow.asked, again.name} - {one.name}
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

    def check_asked(self, flow: PlayedFlow, asked: StartRequest) -> None:
        """A start that nobody takes stands in the list of its flow."""
        (row,) = (row for row in supervisor_file.read_schedules().schedules if row.flow == flow.name)
        assert asked in row.requests
        assert asked.needs_human(self.clock.now) or self.clock.now - asked.asked_at <= MINUTE

    async def change_runs(self, flow: PlayedFlow, act: str) -> None:
        path, copy, now = self.state_path(flow), Path(f"{self.state_path(flow)}.copy"), self.clock.now
        undone = sorted(flow.due_until(now) - set(flow.started))[-200:]
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
                for slot in backfill.backfill_slots(path, flow.served, max(since, flow.holds_from + 1), now)[
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


def noon_of(month: int, day: int) -> int:
    return round(datetime(2026, month, day, 12, tzinfo=UTC).timestamp()) * SECOND


FEBRUARY = noon_of(2, 9)
#: How many flows for how many nights from when on: American clocks change on March 8, European ones on March 29.
SIZES = [
    (3, 3, FEBRUARY),
    (5, 12, noon_of(2, 28)),
    (5, 30, noon_of(2, 28)),
    (5, 50, FEBRUARY),
    (5, 50, FEBRUARY),
    (8, 30, FEBRUARY),
]


@parametrize_mostly_long("seed", range(len(SIZES)), daily=2)
async def test_no_start_is_lost_doubled_or_untold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Path(supervisor_path()).parent.mkdir(parents=True)
    flows, days, begin = SIZES[seed]
    nights = Nights(tmp_path, seed, flows, begin)
    await nights.settle()
    end = begin + days * DAY
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
    assert flow.started_early == [], (flow.name, "before a run that it comes after")
    rows = supervisor_file.read_ledger(flow.service.row.id)
    given_up = [row for row in rows if row.fate != Fate.RUN]
    counted = sum(row.times for row in rows if row.fate == Fate.RUN)  # one that ran ahead counts when its time comes
    waits_from = decided_until(flow) if flow.before else nights.clock.now  # a run of a later day counts as one ahead
    decided = [at for at in flow.started if at not in flow.ahead and at <= waits_from]
    assert len(decided) <= counted <= len(flow.started)
    singles = {row.first for row in given_up if row.times == 1}
    assert singles <= due - set(flow.started), sorted(singles - (due - set(flow.started)))
    if flow.before:
        due -= waiting_days(nights, flow, due)
    assert sum(row.times for row in given_up) == len(due - set(flow.started)), (flow.name, "lost")
    assert len(set(flow.answered)) == len(flow.answered), "a start by hand, twice"
    listed = {one.name for one in read_requests() if one.flow == flow.name}
    assert flow.asked - set(flow.answered) - flow.refused <= listed, "a start by hand, lost"
    assert all(row.why or row.who for row in given_up) and all(
        row.listed == row.times for row in given_up if row.fate == Fate.MISSED
    ), "untold"


def decided_until(flow: PlayedFlow) -> int:
    return next(row.ledger_until for row in supervisor_file.read_known() if row.flow == flow.name)


def waiting_days(nights: Nights, flow: PlayedFlow, due: set[int]) -> set[int]:
    """The days of a flow that wait for the runs before it. The list says why the latest one does."""
    waiting = sorted(at for at in due - set(flow.started) if at > decided_until(flow))
    ready = [at for at in waiting if all(has_run_on(nights, one, flow, at) for one in flow.before)]
    assert waiting[:1] != ready[:1] if flow.misfire == "all" and waiting else not ready, (flow.name, "lost", ready)
    (row,) = (row for row in supervisor_file.read_schedules().schedules if row.flow == flow.name)
    assert not waiting or any(one.waits for one in row.after), (flow.name, "untold", waiting)
    return set(waiting)


def has_run_on(nights: Nights, before: PlayedFlow, flow: PlayedFlow, at: int) -> bool:
    """Whether the last run of a day is in the state file, which may be an older copy."""
    times = before.times_on(datetime.fromtimestamp(at // SECOND, flow.zone).date())
    with database.reading(nights.state_path(before)) as connection:
        return not times or max(times) in backfill.runs_of(connection, before.name, max(times), max(times))
