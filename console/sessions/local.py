"""The session for a state file on this machine, with or without a living executor; also one that starts executors."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sqlite3
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from ...engine.agent import executor_socket
from ...engine.clock import wall_time_us
from ...engine.domain.acts import STARTS_WORK
from ...engine.domain.events import Event
from ...engine.domain.rows import NO_EXECUTOR
from ...engine.errors import (
    CorruptFileError,
    ExecutorBusyError,
    LinkError,
    NotFoundError,
    RedriveError,
    SnapshotNeeded,
    StateFileError,
)
from ...engine.statefile import lock_file, reader
from ...engine.statefile.copies import Original, original_of
from ...engine.statefile.reader import stamps_of
from ...engine.store import database, runs
from ..model.board import Link, SessionStatus
from .session import Session, Value, current_actor, other_actors, rows_of

if TYPE_CHECKING:
    from ...engine.core.projection import RunProjection, Successes
    from ...engine.domain.acts import Answer, Command
    from ...engine.domain.states import TaskUsage

HEARTBEAT_SECONDS = 1.0  # between two empty batches, which redraw the ages on the screen
LOCK_POLL_SECONDS = 1.0  # between two probes of the lock; a probe holds the lock for an instant

Result = TypeVar("Result")


class LocalSession(Session):
    """Created by ``open``. Reads in threads, so that a slow disk does not block the screen."""

    def __init__(self, path: str, actor: str, read_only: bool, is_console: bool) -> None:
        self._path = path
        self._actor = actor
        self._damage: str | None = None  # the error that the latest read of events raised
        self._read_only_reason = "opened read-only" if read_only else None
        self._presence = executor_socket.Presence(path, actor if is_console else None)
        self._announcing: asyncio.Task[None] | None = None
        self._watched_descriptor: int | None = None
        self._uuid: str | None = None  # of the file that was read last
        self._executor = NO_EXECUTOR  # the latest one, alive or not
        self._original: Original | None = None  # the file is a copy of one whose executor lives
        self._looked_at: object = None  # what the file was when ``_original`` was looked for
        self._service_pid: int | None = None
        self._refreshed_at = 0.0
        self._readable_at = time.monotonic()  # when the file was last known to be there and whole
        self._is_closed = False
        self._searcher: LogSearcher | None = None

    @classmethod
    async def open(
        cls, path: str, *, actor: str | None = None, read_only: bool = False, is_console: bool = True
    ) -> Self:
        """Check that the file can be read. ``is_console``: the executor lists ``actor`` while the session is open.

        Raises StateFileError or a subclass of it.
        """
        session = cls(os.path.abspath(path), actor or current_actor(), read_only, is_console)
        session._uuid = await session._read(database.file_uuid)
        session._announcing = asyncio.create_task(session._announce())
        return session

    @property
    def address(self) -> str:
        return self._path

    @property
    def status(self) -> SessionStatus:
        """The current status; cheap."""
        self._refresh_executor()
        seen_at, is_missing = lock_file.heartbeat_at(self._path), not os.path.exists(self._path)
        if not (is_missing or self._damage):
            self._readable_at = time.monotonic()
        age_us = None if seen_at is None else max(0, wall_time_us() - seen_at)
        return SessionStatus(
            link=Link.CLOSED if self._is_closed else Link.STALE if self._damage or is_missing else Link.LIVE,
            problem=f"there is no state file {self._path}" if is_missing else self._damage,
            executor=self._executor._replace(age_us=age_us),
            service_pid=self._service_pid,
            storage_problem=self._presence.storage_problem,
            read_only=self._read_only_reason or executor_socket.read_only_reason(self._path),
            others=other_actors(self._presence.names, self._actor),
            data_age_seconds=time.monotonic() - self._readable_at,
        )

    async def close(self) -> None:
        """Disconnect. The run continues."""
        self._is_closed = True
        if self._announcing is not None:
            self._announcing.cancel()
            await asyncio.wait({self._announcing})
        if self._searcher is not None:
            await self._searcher.close()

    # --- Requests -------------------------------------------------------------------------------------------------

    async def read(self, decode: Callable[[Any], Value], what: str, /, **options: object) -> Value:
        """Read one of ``READS``; a search runs in a process of its own."""
        if what in SEARCHES:
            self._searcher = self._searcher or LogSearcher(self._path)
            return decode(await self._searcher.call(what, options))
        return await self._read(lambda connection: self._decoded(decode, reader.read(connection, what, options)))

    def _decoded(self, decode: Callable[[Any], Value], sent: Any) -> Value:
        """Decode what was read here. Raises CorruptFileError for a value that no redrive has written."""
        try:
            return decode(sent)
        except LinkError:
            database.require_known_rows(self._path)
            raise

    async def snapshot(
        self, run_id: str | None = None, patience_seconds: float | None = None, *, successes: Successes = "all"
    ) -> RunProjection:
        """Return a run (default: the latest) as of the event ``seq`` of the projection."""
        return await self._load(run_id, partial(runs.load_run, successes=successes))

    async def part(
        self, run_id: str | None = None, names: Sequence[str] | None = None, *, has_blockers: bool = False
    ) -> RunProjection:
        return await self._load(
            run_id, lambda connection, found: runs.load_part(connection, found, names, has_blockers=has_blockers)
        )

    async def _load(
        self, run_id: str | None, read: Callable[[sqlite3.Connection, str], RunProjection]
    ) -> RunProjection:
        def load(connection: sqlite3.Connection) -> tuple[str, RunProjection]:
            found = run_id if run_id is not None else runs.latest_run_id(connection)
            if found is None:
                raise NotFoundError(f"no run has been recorded in {self._path} yet")
            return database.file_uuid(connection), read(connection, found)

        self._uuid, projection = await self._read(load)
        return projection

    async def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Yield batches of events after ``since``; an empty one each second. See ``Session``."""
        seq = since
        while True:
            try:
                head = await self._last_seq_of_same_file(seq)
                async with aclosing(self._follow(seq)) as batches:
                    async for batch in batches:
                        seq = batch[-1].seq if batch else seq
                        self._damage = None
                        if batch or seq >= head:
                            yield batch
            except CorruptFileError as error:
                self._damage = str(error)
                raise  # waiting does not repair a damaged file
            except StateFileError:
                # ``status`` shows the problem. The file may come back, and may then be a different file.
                await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _last_seq_of_same_file(self, since: int) -> int:
        """``reader.last_seq_after``. Raises SnapshotNeeded if the file was replaced since the last read."""
        uuid, head = await self._read(
            lambda connection: (database.file_uuid(connection), reader.last_seq_after(connection, since))
        )
        if uuid != self._uuid:
            raise SnapshotNeeded(f"another state file is in the place of {self._path}")
        return head

    async def _follow(self, since: int) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the batches of ``follow``, and an empty one after HEARTBEAT_SECONDS without events."""
        from ...engine.store import follow

        batches = follow.follow(self._path, since)
        pending: asyncio.Task[list[Event]] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(_next(batches))
                done, _ = await asyncio.wait({pending}, timeout=HEARTBEAT_SECONDS)
                if not done:
                    yield ()
                    continue
                batch, pending = pending.result(), None
                yield batch
        finally:
            if pending is not None:
                pending.cancel()
                await asyncio.wait({pending})
            await cast("AsyncGenerator[list[Event]]", batches).aclose()

    async def send(self, command: Command) -> Answer:
        """Send a command to the executor; without one, apply it by the same rules under the lock of the state file."""
        from ...engine.agent.command_client import send_blocking

        reason = self.status.read_only
        if reason is not None:
            raise StateFileError(f"read-only: {reason}")
        return await asyncio.to_thread(send_blocking, self._path, command)

    async def usage(self) -> Sequence[TaskUsage]:
        from ...engine.agent import command_client
        from ...engine.domain.states import TaskUsage

        return rows_of(TaskUsage, await asyncio.to_thread(command_client.read_usage, self._path))

    async def _read(self, use: Callable[[sqlite3.Connection], Result]) -> Result:
        def read() -> Result:
            with database.reading(self._path) as connection:
                return use(connection)

        if self._is_closed:
            raise LinkError("this session was closed", final=True)
        return await asyncio.to_thread(read)

    # --- Executor and other consoles ---------------------------------------------------------------------------------

    def _refresh_executor(self) -> None:
        now = time.monotonic()
        if self._refreshed_at and now - self._refreshed_at < LOCK_POLL_SECONDS:
            return
        self._refreshed_at = now
        self._service_pid = lock_file.service_pid(self._path)
        # Dying children of an executor may still hold its lock; an executor without its lock file still has a socket.
        is_attached = self._presence.descriptor is not None
        self._executor = lock_file.executor_of(self._path, is_attached, wall_time_us(), None)
        found = None if self._executor.alive else stamps_of(self._path)
        if found != self._looked_at or self._original is not None:  # the executor of the original may have ended
            self._original = None if found is None else original_of(self._path)
        if self._original is not None:
            self._executor = lock_file.executor_of(self._path, is_attached, wall_time_us(), self._original)
        self._looked_at = found

    async def _announce(self) -> None:
        """Announce this console to the executor, and receive the names of the other consoles."""
        try:
            while True:
                self._presence.refresh()
                self._watch_socket()
                await asyncio.sleep(HEARTBEAT_SECONDS)
        finally:
            self._unwatch_socket()
            self._presence.close()

    def _watch_socket(self) -> None:
        descriptor = self._presence.descriptor
        if descriptor != self._watched_descriptor:
            self._unwatch_socket()
            if descriptor is not None:
                asyncio.get_running_loop().add_reader(descriptor, self._on_readable)
            self._watched_descriptor = descriptor

    def _on_readable(self) -> None:
        self._unwatch_socket()
        self._presence.receive()
        self._watch_socket()

    def _unwatch_socket(self) -> None:
        if self._watched_descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._watched_descriptor)
            self._watched_descriptor = None


async def _next(batches: AsyncIterator[list[Event]]) -> list[Event]:
    return await anext(batches)


# --- A run that this console started: an executor is started on demand ----------------------------------------------
#
# The executor exits when the run has ended. A command that reopens the run is applied under the lock of the state file;
# this session then starts a new executor for the run.


async def resume(path: str, run_id: str, options: Mapping[str, object]) -> None:
    """Start an executor for a run in a separate process; do nothing if another executor owns the state file.

    ``options`` are fields of RunOptions. Raises the error that kept the executor from starting.
    """
    from ...engine.executor import host

    settings = {**options, "resume": True, "stay": True}
    try:
        await asyncio.to_thread(host.spawn, flow=None, state=path, run_id=run_id, options=settings)
    except ExecutorBusyError:
        return


class EmbeddedSession(LocalSession):
    """Created by ``open``. ``run_options``: the fields of RunOptions for each executor that the session starts."""

    run_options: Mapping[str, object] = {}

    async def send(self, command: Command) -> Answer:
        """Send a command. If it creates work and no executor lives, start one."""
        answer = await super().send(command)
        if not answer.ok or command.act not in STARTS_WORK or command.run_id is None or self.has_executor():
            return answer
        try:
            await resume(self.address, command.run_id, self.run_options)
        except RedriveError as error:
            return answer._replace(message=f"{answer.message}; but no executor could be started: {error}")
        self.has_executor()
        return answer

    def has_executor(self) -> bool:
        """Whether an executor lives, without waiting for the next poll of the lock."""
        self._refreshed_at = 0.0
        return self.status.executor.alive


# --- Searches the output of attempts in a process of its own, which starts with the first search ---------------------


SEARCHES = ("find", "select")  # of READS
ANSWER_SECONDS_MAX = 20.0  # a slice takes at most 2 s of processor time; a process without an answer is stopped
_ANSWER_BYTES_MAX = 64 * 1024 * 1024


class LogSearcher:
    """The process for one state file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process: Process | None = None
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()

    async def call(self, name: str, options: Mapping[str, object]) -> Any:
        """Call a function of ``log_search``. Raises RedriveError."""
        async with self._lock:
            try:
                return await asyncio.wait_for(self._call(name, options), ANSWER_SECONDS_MAX)
            except (TimeoutError, OSError, ValueError) as error:
                await self._stop()
                raise RedriveError(f"the search of the log has stopped: {error or 'no answer'}; try again") from None

    async def close(self) -> None:
        """Stop the process."""
        async with self._lock:
            await self._stop()

    async def _call(self, name: str, options: Mapping[str, object]) -> Any:
        process = self._process or await self._start()
        assert process.stdin is not None and process.stdout is not None
        number = next(self._numbers)
        process.stdin.write(json.dumps([number, name, options]).encode() + b"\n")
        await process.stdin.drain()
        answered = 0
        while answered != number:  # answers to searches that were cancelled come first
            answered, value, *error = json.loads(await process.stdout.readline())
        if error:
            raise RedriveError(str(error[0]))
        return value

    async def _start(self) -> Process:
        command = (sys.executable, "-P", "-m", f"{__package__}.search_process", self._path)
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_ANSWER_BYTES_MAX, start_new_session=True
        )
        return self._process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
