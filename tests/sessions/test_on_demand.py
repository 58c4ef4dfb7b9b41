"""Texts, lists, logs and usage, which every kind of session reads on demand."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redrive.console.sessions.session import LiveSession
from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.acts import Command, Target
from redrive.engine.domain.event_payloads import ExecutorChanged, OperatorActed, TaskMoved
from redrive.engine.domain.liveness import TaskUsage
from redrive.engine.domain.states import TaskState
from redrive.engine.errors import RedriveError, RefusedError
from redrive.engine.executor import host
from redrive.engine.runner.protocol import BadRow
from redrive.engine.statefile import lists, logs
from redrive.engine.statefile.durations import DurationStats
from redrive.engine.statefile.logs import LogChunk
from redrive.engine.store import claims, quarantined, runs
from support.state_file import StateFileBuilder

from .conftest import OpenSession
from .session_helpers import command, read_events


async def test_output_is_read_a_window_at_a_time(
    open_session: OpenSession, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    run_file = make_run_file()
    run_file.finish("task_00000", text="".join(f"line {number}\n" for number in range(20_000)))
    session = await open_session(run_file.path)
    first = await session.log("night-1", "task_00000", 1, limit=2)
    rest = await session.log("night-1", "task_00000", 1, after=first[-1].id)
    (last,) = await session.log("night-1", "task_00000", 1, after=-1, limit=1)
    assert first[0].text.startswith("line 0\n")
    assert last == rest[-1] and last.text.endswith("line 19999\n")
    ids = [chunk.id for chunk in [*first, *rest]]
    assert ids == sorted(set(ids))


async def test_long_texts_are_read_on_demand(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path)
    assert (await session.attempt_text("night-1", "task_00002", 1)).traceback == "Traceback: of task_00002"
    assert (await session.attempt_text("night-1", "task_00005", 1)).traceback == ""


async def test_lists_beside_a_run_are_values(open_session: OpenSession, run_file: StateFileBuilder) -> None:
    session = await open_session(run_file.path)
    run_file.write(lambda transaction: transaction.emit(OperatorActed(what="ack"), "night-1"), actor="ana@desk")
    (act,) = await session.rows(lists.JOURNAL, run_id="night-1", acts=1)
    assert (act.actor, act.data) == ("ana@desk", '{"what":"ack"}')
    assert [row.attempt for row in await session.rows(lists.HISTORY, task="task_00002")] == [1]
    assert [] == await session.rows(lists.BREAKERS) == await session.rows(lists.SCHEDULES)
    with pytest.raises(RedriveError, match="colour"):
        await session.rows(lists.PAGES, colour="red")


async def test_quarantined_rows_are_listed_by_the_group_and_by_the_window(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    rows = [BadRow(row_key=f"c-{number}", payload="p" * 900, error="KeyError", fingerprint="f") for number in range(9)]
    run_file.write(
        lambda transaction: quarantined.add_rows(transaction, claims.Claim("night-1", "task_00002", 1, 0, ""), rows)
    )
    session = await open_session(run_file.path)
    (group,) = await session.rows(lists.QUARANTINE_GROUPS, run_id="night-1")
    assert ("task_00002", "f", 9, 9) == (group.name, group.fingerprint, group.provisional, group.total)
    found = await session.rows(
        lists.QUARANTINE_ROWS, run_id="night-1", task="task_00002", fingerprint="f", skip=7, limit=100
    )
    assert ["c-7", "c-8"] == [row.row_key for row in found]
    assert all(len(row.payload or "") < 900 for row in found)
    assert [] == await session.rows(lists.PAGE_HEADS) == await session.rows(lists.PAGES, id=1)


async def test_the_past_of_a_run_is_read_a_window_at_a_time(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    """Also while events are followed, and without the other runs of the file."""
    session = await open_session(run_file.path)
    following = session.events(0)
    events = await read_events(following, run_file.head())
    run_file.write(lambda transaction: transaction.emit(ExecutorChanged("stopped")))
    run_file.write(lambda transaction: transaction.emit(TaskMoved(), "night-2", "task_00000"))
    run_file.emit_idle_events(3)
    found: list[Any] = []
    while window := await session.run_events("night-1", found[-1].seq if found else 0, 4):
        assert len(window) <= 4
        found += window
    later = await read_events(following, run_file.head())
    assert found == [event for event in [*events, *later] if event.run_id == "night-1"]


async def test_how_long_tasks_took_before_is_reported_of_runs_before(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await open_session(run_file.path)
    assert await session.duration_stats("night-1") == {}
    flow = FlowSpec("nightly", (TaskSpec("task_00000"), TaskSpec("new")))
    run_file.write(
        lambda transaction: runs.create_run(
            transaction, run_id="night-2", flow=flow, max_parallel=4, params={}, at=transaction.at, deadline_at=None
        )
    )
    assert await session.duration_stats("night-2") == {
        "task_00000": DurationStats(p50_us=1000, p95_us=1000, attempts=1)
    }
    with pytest.raises(RefusedError, match="no run 'night-3'"):
        await session.duration_stats("night-3")


async def test_what_an_act_would_do_is_reported_without_doing_it(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    session = await open_session(run_file.path)
    found = await session.preview(
        Command("c1", "requeue", "night-1", (Target("task_00002", "DEAD_LETTER", 0),), "ana@desk")
    )
    assert found.ok and found.run_again == ["task_00002"]
    assert (await session.snapshot()).tasks["task_00002"].state is TaskState.DEAD_LETTER


async def test_what_came_of_a_cause_and_the_notes_on_it_are_stored(
    open_session: OpenSession, run_file: StateFileBuilder
) -> None:
    """Asked for before anything else: the far side learns what it needs for it."""
    sql = "UPDATE attempt SET fingerprint = 'f1', fingerprint_loose = 'f0' WHERE name = 'task_00002'"
    run_file.write(lambda transaction: transaction.connection.execute(sql))
    session = await open_session(run_file.path)
    (found,) = await session.cause_histories("night-1", [("f0", None)])
    assert (found.episodes, found.notes) == ((), ())
    noted = {"fingerprint": "f0", "downstream": None, "text": "reload the schema\x1b[31m first"}
    assert (await session.send(command("note", id="n1", **noted))).ok
    assert (await session.send(command("skip", ("task_00002", "DEAD_LETTER", 0)))).ok
    (found,) = await session.cause_histories("night-1", [("f0", None)])
    assert [note.text for note in found.notes] == ["reload the schema [31m first"]
    ((decision, tasks, reason),) = [(one.decision, one.tasks, one.reason) for one in found.episodes]
    assert (decision, tasks, reason) == ("skip", 1, "because")


async def all_chunks(session: LiveSession) -> list[LogChunk]:
    found: list[LogChunk] = []
    while page := await session.log("night-1", "task_00000", 1, after=found[-1].id if found else 0):
        found += page
    return found


async def test_a_log_says_where_output_was_dropped_and_how_much(
    open_session: OpenSession, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    """More than is kept: a head, a tail, and the engine's own count of what lay between."""
    run_file = make_run_file()
    append = partial(logs.append, run_id="night-1", name="task_00000", limit_bytes=400_000)
    attempt = run_file.start("task_00000")
    drawn = [random.Random(n).random() for n in range(5_000)]
    for number in range(20):
        text = "".join(f"{number} {each}\n" for each in drawn)
        run_file.write(partial(append, attempt=attempt, text=text))
    session = await open_session(run_file.path)
    chunks = await all_chunks(session)
    (counted,) = await session.rows(lists.OUTPUT, run_id="night-1", task="task_00000", attempt=1)
    (gap,) = [chunk.dropped for chunk in chunks if chunk.dropped]
    assert gap == counted.output_dropped_bytes == counted.output_bytes - sum(len(chunk.text) for chunk in chunks) > 0
    assert not chunks[0].dropped and not chunks[-1].dropped


async def test_the_output_is_searched_where_it_is_kept(
    open_session: OpenSession, make_run_file: Callable[..., StateFileBuilder]
) -> None:
    """Forward and backward, in slices, and as the lines that match alone."""
    run_file = make_run_file()
    run_file.finish(
        "task_00000", text="".join(f"row {number:06} \x1b[32mset\x1b[0mtled\n" for number in range(100_000))
    )
    session = await open_session(run_file.path)
    where = ("night-1", "task_00000", 1)

    async def search(pattern: str, after: int = 0, before: int | None = None) -> str:
        place: int | None = after if before is None else before
        while place is not None:
            if before is None:
                found, place = await session.find_in_log(*where, pattern, after=place)
            else:
                found, place = await session.find_in_log(*where, pattern, before=place)
            if found is not None:
                (chunk,) = await session.log(*where, after=found - 1, limit=1)
                return chunk.text
        return ""

    assert "row 090000" in await search(r"row 09000\d SETTLED$")
    assert "row 099999" in await search("settled", before=2**62)
    assert await search("row 100000") == ""


FLOW_THAT_SPINS = """
import time
from redrive.engine import Flow
flow = Flow("f")
@flow.task(timeout=120)
def spin():
    print("spinning", flush=True)
    while True:
        sum(range(20_000))
        time.sleep(0.005)
"""


async def test_what_a_running_task_uses_is_read_by_its_executor(open_session: OpenSession, tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(FLOW_THAT_SPINS)
    pid = host.spawn(flow=str(tmp_path / "f.py"), state=str(tmp_path / "f.db"), run_id="r", options={})
    try:
        session = await open_session(tmp_path / "f.db")
        found: Sequence[TaskUsage] = ()
        for _ in range(900):
            found = await session.usage()
            if found and found[0].cpu_percent is not None and found[0].last_line == "spinning":
                break
            await asyncio.sleep(0.1)
        (one,) = found
        assert one.task == "spin" and one.memory_bytes and one.cpu_percent
    finally:
        os.kill(pid, signal.SIGKILL)
    await session.close()
