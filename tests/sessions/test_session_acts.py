"""Acts through every kind of session, and who else is attached."""

from __future__ import annotations

import os
import sqlite3
import time

import pytest
from redrive.console.sessions.local import LocalSession
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import RedriveError
from redrive.engine.statefile import lock_file, paths
from redrive.engine.store import lock
from support.fake_executor import FakeExecutor
from support.ssh_host import SshHost
from support.state_file import StateFileBuilder

from .conftest import OpenSession
from .session_helpers import command, read_events, wait_for_status

# --- Acts ----------------------------------------------------------------------------------------------------------


async def test_an_act_changes_the_file_when_no_executor_lives(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    run_file.close()
    session = await open_session(run_file.path)
    answer = await session.send(command("requeue", ("task_00002", "DEAD_LETTER", 0)))
    assert answer.ok and answer.results[0][:2] == ("task_00002", "done")
    projection = await session.snapshot()
    assert (projection.tasks["task_00002"].state, projection.tasks["task_00002"].generation) == (TaskState.PENDING, 1)


async def test_an_act_that_comes_twice_is_done_once(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path)
    act = command("requeue", ("task_00002", "DEAD_LETTER", 0))
    first, second = await session.send(act), await session.send(act)
    assert first == second
    assert (await session.snapshot()).tasks["task_00002"].generation == 1


async def test_of_two_operators_the_second_gets_the_name_of_the_first(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await open_session(run_file.path)
    await session.send(command("requeue", ("task_00002", "DEAD_LETTER", 0), id="first"))
    answer = await session.send(command("skip", ("task_00002", "DEAD_LETTER", 0), id="second"))
    assert not answer.ok
    assert answer.results[0][1] == "refused" and "ana@desk" in answer.results[0][2]


async def test_an_act_reaches_the_living_executor(
    open_session: OpenSession, run_file: StateFileBuilder, executor: FakeExecutor
) -> None:
    session = await open_session(run_file.path)
    answer = await session.send(command("pause"))
    assert answer.ok
    (event,) = [
        event
        for event in await read_events(session.events(0), run_file.head())
        if event.command_id and event.new is None and event.kind == "run"
    ]
    assert event.actor == "ana@desk"


async def test_a_read_only_session_refuses_acts(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path, read_only=True)
    with pytest.raises(RedriveError, match="read-only"):
        await session.send(command("pause"))


async def test_a_hostile_name_is_only_a_name(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path)
    answer = await session.send(command("skip", ("x'; DROP TABLE task; --", "PENDING", 0)))
    assert not answer.ok
    assert len((await session.snapshot()).tasks) == 6


# --- The executor --------------------------------------------------------------------------------------------------


async def test_the_life_and_death_of_the_executor_is_seen(
    open_session: OpenSession, run_file: StateFileBuilder, executor: FakeExecutor
) -> None:
    session = await open_session(run_file.path)
    status = await wait_for_status(session, lambda status: status.executor.alive)
    assert status.executor.age_us is not None and status.executor.silent_seconds < 60
    executor.die()
    a_while_ago = time.time() - 20  # so long is no executor silent that lives
    os.utime(f"{run_file.path}.lock", (a_while_ago, a_while_ago))
    status = await wait_for_status(session, lambda status: not status.executor.alive)
    assert abs(status.executor.gone_at / 1e6 - time.time()) < 60


@pytest.mark.long
async def test_who_serves_a_file_and_the_run_that_it_cannot_resume_are_seen(
    open_session: OpenSession, run_file: StateFileBuilder, far: SshHost
) -> None:
    session = await open_session(run_file.path)
    folder = paths.default_folder() if isinstance(session, LocalSession) else far.home / ".local/state/redrive"
    os.makedirs(folder, exist_ok=True)
    with sqlite3.connect(f"{folder}/schedules.supervisor") as supervisor:
        supervisor.execute("CREATE TABLE schedule (state_path TEXT, stuck_run_id TEXT)")
        supervisor.execute("INSERT INTO schedule VALUES (?, 'r')", [str(run_file.path)])
    supervisor.close()
    service = lock.acquire(str(run_file.path) + lock_file.SERVICE, "service")
    await wait_for_status(session, lambda status: status.stuck_run == "r")
    os.unlink(f"{folder}/schedules.supervisor")
    assert (await wait_for_status(session, lambda status: status.service_pid)).service_pid == os.getpid()
    service.release()
    await wait_for_status(session, lambda status: status.service_pid is None)
