"""Random rows of a state file are the same values to the engine, through each session, and in a shell."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import re
import socket
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs
from redrive.console.cli.state_files import file_row_of_session
from redrive.console.model.inbox import Inbox, has_fingerprint
from redrive.console.sessions.session import listed_events
from redrive.console.text.text import json_line
from redrive.engine.core.projection import TaskRow
from redrive.engine.domain.event_codec import PAYLOAD_TYPES, event_of, row_of
from redrive.engine.domain.events import Event, EventKind, EventRow
from redrive.engine.domain.states import FINISHED, TaskState
from redrive.engine.errors import CorruptFileError
from redrive.engine.statefile import lists, lock_file
from redrive.engine.statefile.lock_file import LockHolder, lock_path
from redrive.engine.statefile.processes import boot_id, identity
from redrive.engine.statefile.reader import events_query
from redrive.engine.statefile.state_files import file_row_of
from redrive.engine.store import runs
from support.commands import invoke_redrive
from support.marks import parametrize_mostly_long
from support.state_file import StateFileBuilder

from .conftest import OpenSession
from .session_helpers import read_events, wait_for_status

SEEDS = range(8)
#: What another version, or another program, may have written; ``json`` reads all of it.
_ODD_TEXTS = ['{"later": NaN}', '{"why": "\\ud800"}', '{"set": null}', "{ }", '{"one": 1, "one": 2}']
_VALUES: list[Any] = [None, 0, 1, 2**40, -3, 0.5, "", "x", "\u2028\x1b[31m", True, [], ["a"], {}, {"a": 1}]


def write_event(connection: sqlite3.Connection, dice: random.Random) -> None:
    """Insert an event whose payload has the fields of its kind, with values that may be of another type."""
    kind = dice.choice([*PAYLOAD_TYPES, "a.kind.of.tomorrow"])
    fields = getattr(PAYLOAD_TYPES.get(kind), "_fields", ("what", "set"))
    data = {dice.choice([field, "later"]): dice.choice(_VALUES) for field in fields if dice.random() < 0.4}
    text = dice.choice(_ODD_TEXTS) if dice.random() < 0.1 else json.dumps(data)
    row = (
        *(dice.randrange(10**15), kind, "night-1", dice.choice([None, "task_00001", "no-such"]), None, None),
        *(dice.choice([None, 1]), dice.choice([None, 0]), None, dice.choice([None, "why"]), None, text),
    )
    try:
        event_of((0, *row))
    except (CorruptFileError, ValueError):
        return  # an error of the file, which no session follows
    columns = ", ".join(EventRow._fields[1:])
    connection.execute(f"INSERT INTO event ({columns}) VALUES ({','.join('?' * len(row))})", row)


def texts(events: list[Event]) -> list[str]:
    """The events as texts: NaN is not equal to itself."""
    return list(map(repr, events))


@parametrize_mostly_long("seed", SEEDS, daily=3)
async def test_an_event_is_the_same_through_each_door(
    open_session: OpenSession, run_file: StateFileBuilder, seed: int
) -> None:
    dice, connection = random.Random(seed), run_file.connection
    for _ in range(60):
        write_event(connection, dice)
    expected = [event_of(row) for row in connection.execute(*events_query(0, 1000))]
    session = await open_session(run_file.path)
    followed = await read_events(session.events(expected[0].seq - 1), expected[-1].seq)
    assert texts(followed) == texts(expected)
    assert texts(list(await session.run_events("night-1", 0, 1000))) == texts(expected)
    assert texts(await listed_events(session, lists.JOURNAL, run_id="night-1")) == texts(expected)
    of_kind = await listed_events(session, lists.EVENTS_OF_KIND, run_id="night-1", kind=EventKind.PAGE)
    assert texts(of_kind) == texts([event for event in expected if event.kind == EventKind.PAGE])
    result = await asyncio.to_thread(invoke_redrive, "events", "--state", run_file.path, "--json")
    assert [without_schema(line) for line in result.stdout.splitlines()] == [
        without_schema(json_line(row_of(event))) for event in expected
    ]


def without_schema(line: str) -> str:
    return json.dumps({key: value for key, value in json.loads(line).items() if key != "schema"})


# --- Tasks and attempts ---------------------------------------------------------------------------------------------


def scramble(connection: sqlite3.Connection, table: str, dice: random.Random, kept: set[str]) -> None:
    """Give the columns of each row random values that they may have."""
    columns = [row for row in connection.execute(f"PRAGMA table_info({table})").fetchall() if row[1] not in kept]
    for (key,) in connection.execute(f"SELECT name FROM {table}").fetchall():
        for _, column, kind, is_needed, *_ in columns:
            choices: list[Any] = [0, 1, 7, 10**15] if kind == "INTEGER" else ["", "x", "two words", "\u00e9\x1b"]
            value = dice.choice(choices if is_needed else [*choices, None])
            if dice.random() < 0.5:
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE name = ?", (value, key))


@parametrize_mostly_long("seed", SEEDS, daily=3)
async def test_a_task_and_its_attempts_are_the_same_through_each_door(
    open_session: OpenSession, make_run_file: Callable[..., StateFileBuilder], seed: int
) -> None:
    dice, run_file = random.Random(seed), make_run_file()
    for number in range(6):
        run_file.finish(f"task_{number:05}")
    scramble(run_file.connection, "task", dice, {"run_id", "name", "state", "rule", "spec", "position"})
    for number in range(6):
        run_file.connection.execute(
            "UPDATE task SET state = ? WHERE name = ?", (str(dice.choice([*TaskState])), f"task_{number:05}")
        )
    scramble(run_file.connection, "attempt", dice, {"run_id", "name", "attempt", "outcome"})
    expected = runs.load_run(run_file.connection, "night-1")
    session = await open_session(run_file.path)
    assert await session.snapshot() == expected


# --- The executor ---------------------------------------------------------------------------------------------------


def draw_lock(path: Path, connection: sqlite3.Connection, dice: random.Random) -> int | None:
    """Leave the lock file and the row of an executor that may live, be silent, have ended, or be of another host.

    Returns the descriptor that holds the lock, if it is held.
    """
    ticks, _ = identity(os.getpid())
    holder = LockHolder(
        "e1",
        os.getpid(),
        dice.choice([ticks, 1]),
        boot_id(),
        dice.choice([socket.gethostname(), "elsewhere"]),
        10**15,
        dice.choice([None, "night-1"]),
        dice.choice([None, None, 2 * 10**15]),
    )
    lock = Path(lock_path(str(path)))
    lock.write_text(json.dumps(holder._asdict()))
    columns = {
        **holder._asdict(),
        "version": "0",
        "heartbeat_at": 10**15,
        "stopped_at": holder.released_at,
        "state_path": os.path.realpath(path),
    }
    del columns["released_at"]
    connection.execute(
        f"INSERT INTO executor ({','.join(columns)}) VALUES ({','.join('?' * len(columns))})", [*columns.values()]
    )
    seen_at = time.time() - dice.choice([0, 3600])
    os.utime(lock, (seen_at, seen_at))
    if dice.random() < 0.5:
        return None
    descriptor = os.open(lock, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@parametrize_mostly_long("seed", range(16), daily=4)
async def test_an_executor_is_the_same_through_each_door(
    open_session: OpenSession, run_file: StateFileBuilder, seed: int
) -> None:
    """One that is silent holds its lock: it has not ended, whoever asks."""
    descriptor = draw_lock(run_file.path, run_file.connection, random.Random(seed))
    try:
        session = await open_session(run_file.path)
        expected = lock_file.executor_of(str(run_file.path), False, time.time_ns() // 1000, None)
        status = await wait_for_status(session, lambda status: status.executor.pid is not None)
        assert status.executor._replace(age_us=None) == expected._replace(age_us=None)
        assert expected.alive == (descriptor is not None and may_live(run_file.path))
        for file_row in (file_row_of(str(run_file.path)), await file_row_of_session(session)):
            assert file_row.executor == expected._replace(age_us=None)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def may_live(path: Path) -> bool:
    holder = lock_file.last_holder(str(path))
    return holder is not None and holder.is_alive()


# --- Causes ---------------------------------------------------------------------------------------------------------


@parametrize_mostly_long("seed", range(20), quick=3, daily=6)
def test_a_cause_is_the_same_by_the_board_and_by_the_list_of_a_file(
    make_run_file: Callable[..., StateFileBuilder], seed: int
) -> None:
    dice, run_file = random.Random(seed), make_run_file()
    for number in range(6):
        run_file.finish(f"task_{number:05}")
    for number in range(6):
        name, marks = f"task_{number:05}", [None, "", "lost", "one", "two"]
        columns = [dice.choice(["DEAD_LETTER", "DEAD_LETTER", "FAILED"]), dice.choice(marks), dice.choice([None, 5])]
        sql = "UPDATE task SET state = ?, failure_fingerprint = ?, ended_at = ? WHERE name = ?"
        run_file.connection.execute(sql, (*columns, name))
        sql = "UPDATE attempt SET fingerprint = ?, fingerprint_loose = ?, outcome = 'error' WHERE name = ?"
        run_file.connection.execute(sql, (dice.choice(marks), dice.choice(marks), name))
    listed = {one.fingerprint: one.counted for one in lists.query(run_file.connection, lists.DEAD_LETTER_GROUPS, {})}
    inbox = Inbox(runs.load_run(run_file.connection, "night-1"))
    shown: Counter[str | None] = Counter()
    for cause in inbox.causes():
        if cause.dead:
            is_named = has_fingerprint(cause, inbox.board.projection.tasks)
            shown[cause.fingerprint if is_named else None] += cause.dead
    assert dict(shown) == listed


# --- Shell, metrics and report --------------------------------------------------------------------------------------


@parametrize_mostly_long("seed", SEEDS, daily=3)
def test_a_task_is_the_same_in_lists_metrics_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run_file: Callable[..., StateFileBuilder], seed: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "redrive").mkdir()
    dice, run_file = random.Random(seed), make_run_file("redrive/nightly.db")
    for number in range(6):
        run_file.finish(f"task_{number:05}")
    kept = {"run_id", "name", "state", "rule", "spec", "position", "attempt", "claim_token"}
    texts_of_json = {"overrides", "element", "element_keys", "aside", "checkpoint", "result"}
    scramble(run_file.connection, "task", dice, kept | texts_of_json)
    scramble(run_file.connection, "attempt", dice, {"run_id", "name", "attempt", "outcome", "token"})
    for number in range(6):
        place = (str(dice.choice([*TaskState])), f"task_{number:05}")
        run_file.connection.execute("UPDATE task SET state = ? WHERE name = ?", place)
    projection = runs.load_run(run_file.connection, "night-1")
    expected = {name: as_json(row) for name, row in projection.tasks.items()}
    listed = [json.loads(line) for line in output_of("tasks", "--state", run_file.path, "--json")]
    assert {one["name"]: {key: one[key] for key in expected[one["name"]]} for one in listed} == expected
    attempts = Counter(one.outcome for row in projection.tasks.values() for one in row.attempts.values())
    counted: Counter[str] = Counter()
    for line in output_of("metrics"):
        if found := re.match(r'redrive_run_attempts\{.*outcome="(\w+)".*\} ([\d.]+)', line):
            counted[found[1]] += round(float(found[2]))
    assert counted == attempts
    ended = sum(row.state in FINISHED for row in projection.tasks.values())
    assert f"{ended} of 6 done" in "\n".join(output_of("report", "--short", "--state", run_file.path))


def as_json(row: TaskRow) -> dict[str, Any]:
    """The columns of a task and of its attempts as a list prints them, where texts are safe for a terminal."""
    columns = {**structs.asdict(row), "attempts": [structs.asdict(one) for one in row.attempts.values()]}
    for left_out in ("spec", "result"):
        del columns[left_out]
    return cast("dict[str, Any]", json.loads(json_line(columns)))


def output_of(*words: object) -> list[str]:
    result = invoke_redrive(*words)
    assert result.exception is None, result.output
    return result.stdout.splitlines()
