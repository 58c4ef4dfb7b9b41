"""The service of one flow, step by step."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redrive.engine import Flow
from redrive.engine.clock import SystemClock
from redrive.engine.core.spec import Misfire
from redrive.engine.errors import FlowError, StateFileError, StorageError, UnreadableFileError
from redrive.engine.executor import host
from redrive.engine.executor.opening import Machine
from redrive.engine.executor.run_options import RunOptions
from redrive.engine.schedule.flow_service import FlowService
from redrive.engine.schedule.supervision import Launched, Supervision
from redrive.engine.schedule.supervisor import Supervisor
from redrive.engine.statefile.supervisor_file import FOREVER
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import database, runs, schedules
from redrive.engine.store.schedules import ScheduleStatus, served_flow
from redrive.engine.store.supervisor_writer import SupervisorFile
from support.waiting import wait_until, wait_until_async

OWNER = "import sys; from redrive.engine.store import lock; held = lock.acquire(sys.argv[1], 'x'); print(); input()"


@pytest.fixture
def owner(tmp_path: Path) -> Any:
    """A process that owns the state file, as an executor does."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "f.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"\n"
    yield process
    process.kill()
    process.communicate()


async def test_an_executor_that_ends_while_a_step_reads_the_file_is_not_waited_for(
    tmp_path: Path, owner: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def launch(*request: object) -> Launched:
        raise AssertionError("nothing is started here")

    flow = Flow("f", schedule="0 0 1 1 *")
    flow.command("a", "true", timeout=10)
    served = served_flow(flow.spec())
    assert served is not None
    with closing(SupervisorFile(str(tmp_path / "schedules.supervisor"), "one")) as file:
        shared = Supervision("one", launch, file, Machine(), RunOptions(), lambda flow, line: None, lambda: None)
        service = FlowService("f.py:flow", served, str(tmp_path / "f.db"), shared)

        def load(now: int, known: object) -> ScheduleStatus:
            owner.kill()
            wait_until(lambda: service.watch.process is None)  # the loop has been told
            return ScheduleStatus(None)

        monkeypatch.setattr(service, "_load_status", load)
        service.acquire()
        try:
            await asyncio.wait_for(service.step(), 60)
            assert service.wake_at == 0
        finally:
            service.release()


BEGIN, HOUR = 1_800_000_000_000_000, 3_600_000_000  # on the hour


class CreepingClock(SystemClock):
    """A clock that moves on by a microsecond whenever it is read."""

    now = BEGIN

    def now_us(self) -> int:
        self.now += 1
        return self.now


@contextmanager
def service_of(flow: Flow, clock: CreepingClock, launch: Any, folder: Path) -> Iterator[FlowService]:
    """The service of a flow under a clock of its own; ``launch`` starts its runs."""
    flow.command("a", "true", timeout=10)
    served = served_flow(flow.spec())
    assert served is not None
    with closing(SupervisorFile(str(folder / "schedules.supervisor"), "one")) as file:
        machine = Machine(clock=clock)
        shared = Supervision("one", launch, file, machine, RunOptions(), lambda flow, line: None, lambda: None)
        yield FlowService("f.py:flow", served, str(folder / "f.db"), shared)


async def test_a_run_that_becomes_due_during_the_step_that_decides_to_wait_for_it_starts(tmp_path: Path) -> None:
    started = []

    async def launch(flow: str | None, state: str, run_id: str, options: RunOptions) -> Launched:
        started.append(options.logical_time)
        return Launched(None)

    clock = CreepingClock()
    with service_of(Flow("f", schedule="every 1m"), clock, launch, tmp_path) as service:
        service.acquire()
        try:
            while (due_at := service.wake_at or 0) <= clock.now:
                await service.step()
            clock.now = due_at - 2
            await service.step()
            clock.now = due_at
            assert service.wake_at == due_at and not started
            await service.step()
            assert started == [due_at]
        finally:
            service.release()


async def test_a_start_that_failed_is_tried_again_as_soon_if_the_clock_is_set_back(tmp_path: Path) -> None:
    tries = []

    async def launch(flow: str | None, state: str, run_id: str, options: RunOptions) -> Launched:
        tries.append(options.logical_time)
        raise FlowError("it cannot start")

    clock = CreepingClock()
    with service_of(Flow("f", schedule="every 1h"), clock, launch, tmp_path) as service:
        service.acquire()
        await steps(service)
        clock.now += 90 * 60_000_000
        await steps(service)
        clock.now -= 20 * 60_000_000
        service.shift_clock(-20 * 60_000_000)
        await steps(service)
        assert tries == [BEGIN + HOUR]
        clock.now += 60_000_000
        await steps(service)
        assert tries == [BEGIN + HOUR] * 2
        service.release()


async def test_what_became_due_while_the_machine_slept_says_so(tmp_path: Path) -> None:
    """Not that a run before it has taken so long: there was none."""

    async def launch(flow: str | None, state: str, run_id: str, options: RunOptions) -> Launched:
        return Launched(None)

    clock = CreepingClock()
    with service_of(Flow("f", schedule="every 1h", misfire="skip"), clock, launch, tmp_path) as service:
        file, gaps = service._shared.file, service._shared.gaps
        service.acquire()
        try:
            for _ in range(4):
                await service.step()
            slept_from = clock.now
            clock.now += 5 * 3_600_000_000 + 1_800_000_000
            gaps.append((slept_from, clock.now, "the machine slept"))
            service.wake()
            for _ in range(4):
                await service.step()
            with closing(sqlite3.connect(file.path)) as connection:
                found = connection.execute("SELECT fate, why, sum(times) FROM ledger GROUP BY fate, why").fetchall()
            assert found == [("missed", "the machine slept", 5)]
        finally:
            service.release()


async def test_one_that_stood_by_goes_on_from_what_the_first_one_has_written(tmp_path: Path) -> None:
    """It writes no time a second time, and lists none again that an operator has dismissed."""

    async def launch(flow: str | None, state: str, run_id: str, options: RunOptions) -> Launched:
        return Launched(None)

    clock, flow = CreepingClock(), Flow("f", schedule="every 1h", misfire="skip")
    with service_of(flow, clock, launch, tmp_path) as first:
        path, second_file = first._shared.file.path, SupervisorFile(first._shared.file.path, "two")
        shared = Supervision("two", launch, second_file, Machine(clock=clock), RunOptions(), print, lambda: None)
        second = FlowService("f.py:flow", first.served, first.state_path, shared)
        first.acquire()
        second.acquire()
        assert second.is_standby and second.stood_by
        await steps(first)
        clock.now += 3 * 3_600_000_000 + 1_800_000_000
        await steps(first)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE ledger SET fate = 'dropped', listed = 0")
            connection.commit()
            first.release()
            await steps(second)
            clock.now += 2 * 3_600_000_000
            await steps(second)
            second.release()
            found = connection.execute("SELECT fate, sum(times) FROM ledger GROUP BY fate").fetchall()
        second_file.close()
        assert found == [("dropped", 3), ("missed", 2)]


@contextmanager
def hourly(folder: Path, misfire: Misfire) -> Iterator[tuple[FlowService, CreepingClock, list[int]]]:
    """A service of a flow of each hour, its clock, and the logical times of the runs that it starts."""
    clock, started = CreepingClock(), list[int]()
    launch = launch_of(lambda: service, started)
    with service_of(Flow("f", schedule="0 * * * *", misfire=misfire), clock, launch, folder) as service:
        service.acquire()
        try:
            yield service, clock, started
        finally:
            service.release()


async def test_a_new_schedule_begins_while_another_process_owns_its_file(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    """Its next run is known, late when it is, and not lost when the file is free."""
    with hourly(tmp_path, "one") as (service, clock, started):
        await steps(service)
        assert (service.row.next_at, service.row.next_logical) == (BEGIN + HOUR, BEGIN + HOUR)
        assert service.row.late_since is None
        clock.now = BEGIN + 2 * HOUR - 60_000_000
        await steps(service)
        assert service.row.late_since == BEGIN + HOUR and not started
        owner.kill()
        owner.wait()
        await steps(service)
        assert started == [BEGIN + HOUR] and service.row.next_at == BEGIN + 2 * HOUR


async def test_a_paused_schedule_says_so_and_not_when_its_next_run_is(tmp_path: Path) -> None:
    with hourly(tmp_path, "one") as (service, clock, _):
        said = []
        for until in (FOREVER, clock.now + 2 * HOUR, 0):
            service.use_decisions(service.row._replace(paused_until=until))
            await steps(service)
            said.append(service._last_report[:15])
        assert said == ["is paused", "is paused until", "next 2027-01-15"]


async def test_a_run_ahead_of_the_clock_counts_when_its_time_has_come_also_after_an_edit(tmp_path: Path) -> None:
    """The schedule that holds then does not name its time; a later run ahead of the clock does not change the count."""
    with hourly(tmp_path, "one") as (service, clock, started):
        await steps(service)
        for minute in (30, 15, 45):
            await steps(service)
            clock.now += 72 * HOUR
            await steps(service)  # a run starts
            clock.now -= 72 * HOUR
            await steps(service)
            edit(service, f"{minute} * * * *")
            await steps(service)
        assert len(started) == 3
        assert ran(service) == 0
        clock.now += 80 * HOUR
        await steps(service)
        assert ran(service) == len(started)


async def test_an_older_copy_goes_on_by_the_schedule_that_the_ledger_has(tmp_path: Path) -> None:
    """Also if the supervisor begins anew before the copy is restored: its schedule was edited away."""
    copy = tmp_path / "copy"
    with hourly(tmp_path, "all") as (service, clock, started):
        await steps(service)
        copy_state(service, copy)
        edit(service, "30 */2 * * *")
        await steps(service)
        clock.now += 4 * HOUR
        await steps(service)
        clock.now += 2 * HOUR
        edit(service, "30 */2 * * *")  # its file is read again
        copy.rename(service.state_path)
        await steps(service)
        clock.now += 4 * HOUR
        await steps(service, 20)
        assert len(started) == len(set(started))
        assert {at // 60_000_000 % 120 for at in started} == {30}


async def test_a_run_of_a_time_that_was_not_due_yet_does_not_start_again_after_a_restore(tmp_path: Path) -> None:
    """As one by hand while the schedule was paused: the older copy does not have it, the supervisor has."""
    copy = tmp_path / "copy"
    with hourly(tmp_path, "all") as (service, clock, started):
        await steps(service)
        copy_state(service, copy)
        by_hand = next(service.served.schedule.after(clock.now + HOUR))
        await service._shared.launch(None, service.state_path, "by hand", RunOptions(logical_time=by_hand))
        await steps(service)
        copy.rename(service.state_path)
        await steps(service)
        clock.now += 3 * HOUR
        await steps(service, 10)
        assert by_hand in started
        assert len(started) == len(set(started)) == 3
        assert ran(service) == 3


async def test_a_run_that_has_ended_is_not_resumed_by_an_older_copy_in_which_it_goes_on(tmp_path: Path) -> None:
    """Its time is decided there as well. One that was requeued has an end in the file, and is resumed."""
    with hourly(tmp_path, "one") as (service, clock, started):
        await steps(service)
        clock.now += HOUR
        await steps(service)
        with closing(sqlite3.connect(service.state_path)) as connection:
            (run_id,) = connection.execute("SELECT run_id FROM run").fetchone()
            connection.execute("UPDATE run SET state = 'RUNNING', ended_at = NULL")
            connection.commit()
            await steps(service)
            assert len(started) == 1 and "older copy" in (service.row.stuck_error or "")
            event = (
                "INSERT INTO event (at, kind, run_id, old, new, data) VALUES (1, 'run', ?, 'RUNNING', 'SUCCESS', '{}')"
            )
            connection.execute(event, (run_id,))
            connection.commit()
        assert service._later_end(run_id) == ""


async def test_a_restore_leaves_what_the_ledger_has_while_the_clock_is_set_back_a_little(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with hourly(tmp_path, "skip") as (service, clock, started):
        await steps(service)
        copy_state(service, copy)
        clock.now += 3 * HOUR + HOUR // 4
        await steps(service)
        clock.now -= HOUR // 2
        copy.rename(service.state_path)
        await steps(service)
        assert given_up(service) == [BEGIN + hours * HOUR for hours in (1, 2, 3)]
        clock.now += 2 * HOUR
        await steps(service)
        assert given_up(service) == [BEGIN + hours * HOUR for hours in (1, 2, 3, 4)]
        assert not started


AHEAD = HOUR // 4 + 240 * HOUR


@pytest.mark.parametrize(
    ("moves", "due"),
    [
        ((HOUR // 4 + 72 * HOUR, -73 * HOUR, 2 * HOUR), 1),  # none from before the schedule began
        ((3 * HOUR + AHEAD, -240 * HOUR), 3),  # the range that was given up then begins before the true time
        ((3 * HOUR + AHEAD, -240 * HOUR, 2 * HOUR, 240 * HOUR, -240 * HOUR), 5),
    ],
)
async def test_times_that_a_clock_ahead_gave_up_are_undecided_again(
    tmp_path: Path, moves: tuple[int, ...], due: int
) -> None:
    with hourly(tmp_path, "skip") as (service, clock, _started):
        for moved in (0, *moves):
            clock.now += moved
            await steps(service)
        with closing(sqlite3.connect(service._shared.file.path)) as connection:
            found = connection.execute("SELECT sum(times), sum(listed), max(last) FROM ledger WHERE fate <> 'run'")
            times, listed, last = found.fetchone()
        assert (times, listed) == (due, due) and BEGIN + due * HOUR <= last <= clock.now and last % HOUR == BEGIN % HOUR


async def test_a_damaged_file_of_the_supervisor_is_no_failed_start_of_a_flow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    with hourly(tmp_path, "one") as (service, _clock, _started):
        supervisor = Supervisor([], RunOptions(), report=lambda flow, line: said.append((flow, line)))
        supervisor._stopping, supervisor._wake, supervisor._shared = False, asyncio.Event(), service._shared
        supervisor._services[service.target] = service
        monkeypatch.setattr(service._shared.file, "explain_loss", str)  # it is there
        service._shared.file.close()
        await supervisor._step(service, 0.0)
        (told,) = said
        assert told[0] == "" and service._shared.file.path in told[1]


async def test_a_step_that_was_planned_before_its_flow_was_renamed_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the schedule back under the old name, and nothing of the new one was written any more."""
    renamed = Flow("later", schedule="0 * * * *")
    renamed.command("a", "true", timeout=10)
    served = served_flow(renamed.spec())
    assert served is not None
    with hourly(tmp_path, "one") as (service, _clock, _started):
        supervisor = Supervisor([], RunOptions(), report=lambda flow, line: None)
        supervisor._stopping, supervisor._wake, supervisor._shared = False, asyncio.Event(), service._shared
        monkeypatch.setattr(service._shared.file, "explain_loss", str)  # it is there
        service.release()
        path = str(tmp_path / "later.db")
        later = supervisor._services[service.target] = FlowService(service.target, served, path, service._shared)
        later.acquire()
        try:
            await supervisor._step(service, 0.0)
            assert [row.flow for row in service._shared.file.stored()] == ["later"]
        finally:
            later.release()


def given_up(service: FlowService) -> list[int]:
    """The times that the ledger has as given up, one by one."""
    with closing(sqlite3.connect(service._shared.file.path)) as connection:
        return [at for (at,) in connection.execute("SELECT first FROM ledger WHERE fate <> 'run' ORDER BY first")]


def copy_state(service: FlowService, copy: Path) -> None:
    with closing(sqlite3.connect(service.state_path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)


def launch_of(service: Callable[[], FlowService], started: list[int]) -> Any:
    """What starts runs that begin and end at once."""

    async def launch(flow: str | None, state: str, run_id: str, options: RunOptions) -> Launched:
        served, now, logical = service().served, service()._clock.now_us(), options.logical_time
        assert logical is not None
        with closing(database.open_for_writing(state)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            transaction = Transaction(connection, now)
            schedules.claim_slot(transaction, served, logical, run_id)
            values: Any = {"run_id": run_id, "flow": served.flow, "max_parallel": 1, "params": {}, "deadline_at": None}
            runs.create_run(transaction, at=now, logical_time=logical, **values)
            connection.execute("UPDATE run SET state = 'SUCCESS', ended_at = ?", (now,))
            connection.execute("COMMIT")
        started.append(logical)
        return Launched(None)

    return launch


def ran(service: FlowService) -> int:
    """How many runs the ledger counts."""
    sql = "SELECT coalesce(sum(times), 0) FROM ledger WHERE fate = 'run'"
    with closing(sqlite3.connect(service._shared.file.path)) as connection:
        (times,) = connection.execute(sql).fetchone()
    return int(times)


def edit(service: FlowService, expression: str) -> None:
    spec = msgspec.structs.replace(service.served.spec, expression=expression)
    service.use_flow(schedules.with_schedule(service.served, spec), few_tasks=False)


async def steps(service: FlowService, times: int = 4) -> None:
    service.wake()
    for _ in range(times):
        await service.step()


async def test_a_flow_that_is_late_for_long_sends_a_digest_in_each_window(tmp_path: Path) -> None:
    async def launch(flow: str | None, state: str, run_id: str, options: RunOptions) -> Launched:
        raise FlowError("it cannot start")

    flow, clock, messages = Flow("f", schedule="every 1m", start_within="30s"), CreepingClock(), tmp_path / "messages"
    flow.page("command", line=f'echo "$REDRIVE_PAGE_TITLE" >> {messages}')
    with service_of(flow, clock, launch, tmp_path) as service:
        service.acquire()
        for _ in range(25):
            await steps(service)
            clock.now += 60_000_000
        service.release()
    assert messages.read_text().splitlines() == ["f has not started", *(f"f: 1 cause, {n} failures" for n in (11, 21))]


async def test_the_first_run_that_did_not_start_has_the_reason_of_those_after_it(tmp_path: Path) -> None:
    failing = True

    async def launch(flow: str | None, state: str, run_id: str, options: RunOptions) -> Launched:
        if failing:
            raise FlowError("it cannot start")
        return Launched(None)

    clock = CreepingClock()
    with service_of(Flow("f", schedule="every 1m"), clock, launch, tmp_path) as service:
        service.acquire()
        await steps(service)
        for _ in range(3):
            clock.now += 60_000_000
            await steps(service)
        failing = False
        clock.now += 60_000_000
        await steps(service, 8)
        service.release()
        with closing(sqlite3.connect(service._shared.file.path)) as connection:
            found = connection.execute("SELECT why, sum(times) FROM ledger WHERE fate <> 'run' GROUP BY why").fetchall()
    assert found == [("it cannot start", 3)]


def test_an_executor_reports_what_kind_of_error_stopped_its_start() -> None:
    """Only one of the storage is paged as such."""
    for error, kind in ((UnreadableFileError("x"), "StorageError"), (StateFileError("x"), "StateFileError")):
        read_end, write_end = os.pipe()
        host._StartReport(write_end).failed(error)
        with os.fdopen(read_end) as pipe:
            assert json.loads(pipe.read())["error"] == kind


async def test_a_state_file_that_refuses_a_start_is_paged_without_it_and_each_failed_step_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def launch(flow: str | None, state: str, run_id: str, options: RunOptions) -> Launched:
        raise StorageError("the disk is full")

    async def refuse(change: object) -> None:
        writes.append(change)
        raise StorageError("the disk is full")

    flow, clock, messages = Flow("f", schedule="every 1m", start_within="5s"), CreepingClock(), tmp_path / "messages"
    flow.page("command", line=f'echo "$REDRIVE_PAGE_TEXT" >> {messages}')
    writes: list[object] = []
    with service_of(flow, clock, launch, tmp_path) as service:
        service.acquire()
        await steps(service)
        monkeypatch.setattr(service, "_write", refuse)
        clock.now += 70_000_000
        turns = 0
        while (service.wake_at or 0) <= clock.now and turns < 9:
            await service.step()
            turns += 1
        assert (turns, len(writes)) == (1, 1), "no turn without end"
        service.page_storage()
        clock.now += 30_000_000
        service.page_storage()
        await wait_until_async(lambda: messages.exists() and "no run starts" in messages.read_text())
        await wait_until_async(lambda: service._storage_pager is not None and service._storage_pager._sent is not None)
        monkeypatch.undo()
        service._failures.current = None
        service.page_storage()
        await service._record()
        service.release()
    with closing(sqlite3.connect(tmp_path / "f.db")) as connection:
        assert ("f cannot write its state file",) in connection.execute("SELECT title FROM page").fetchall()
    assert "f on " in messages.read_text() and "the disk is full" in messages.read_text()
