"""The door to a state file on this machine, whoever writes it: an executor that lives, or nobody any more."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar, cast

from ...engine.agent import command_client
from ...engine.core.cause_history import Memory, memory_of
from ...engine.core.projection import RunFold
from ...engine.domain.command import Answer, Command
from ...engine.domain.events import Event
from ...engine.errors import CorruptFileError, LinkError, NotFoundError, SnapshotNeeded, StateFileError
from ...engine.statefile import duration_stats, lock_file, queries
from ...engine.statefile.changes import dry_run, logs
from ...engine.statefile.on_demand import cause_history, failure_queries
from ...engine.statefile.queries import Row
from ...engine.statefile.reader import head_of
from ...engine.store import database, follow, runs
from . import run_decoder
from .identity import me, others
from .session import AttemptText, Cause, Link, LogChunk, RunSummary, SessionStatus

BEAT_SECONDS = 1.0  # an empty batch so often: the ages on the screen are due again
LOOK_SECONDS = 1.0  # between two looks at the lock: a look takes it for an instant

Result = TypeVar("Result")


class FileSession:
    """Made by ``open``. Reading happens in threads: a slow disk holds up no screen."""

    def __init__(self, path: str, actor: str, read_only: bool) -> None:
        self._path = path
        self._actor = actor
        self._damage: str | None = None  # what a look at the events has found
        self._told_read_only = "opened read-only" if read_only else None
        self._attendance = command_client.Attendance(path, actor)
        self._attending: asyncio.Task[None] | None = None
        self._watched: int | None = None
        self._uuid: str | None = None  # of the file as it was read last
        self._alive = False
        self._holder: lock_file.LockHolder | None = None  # the latest executor, alive or not
        self._service_pid: int | None = None
        self._looked_at = 0.0
        self._closed = False

    @classmethod
    async def open(cls, path: str, *, actor: str | None = None, read_only: bool = False) -> FileSession:
        """Look whether the file can be read. Raises StateFileError or one of its kinds."""
        session = cls(os.path.abspath(path), actor or me(), read_only)
        session._uuid = await session._read(database.file_uuid)
        session._attending = asyncio.create_task(session._attend())
        return session

    @property
    def address(self) -> str:
        """The file."""
        return self._path

    @property
    def status(self) -> SessionStatus:
        """As of now; cheap."""
        self._look()
        seen_at = command_client.heartbeat_at(self._path)
        age_seconds = None if seen_at is None else max(0.0, time.time() - seen_at / 1e6)
        return SessionStatus(
            link=Link.CLOSED if self._closed else Link.STALE if self._damage else Link.LIVE,
            trouble=self._damage if os.path.exists(self._path) else f"there is no state file {self._path}",
            executor_alive=self._alive,
            heartbeat_age_seconds=age_seconds if self._alive else None,
            executor_gone_at=None if self._alive else seen_at,
            executor_pid=None if self._holder is None else self._holder.pid,
            executor_run_id=None if self._holder is None else self._holder.run_id,
            executor_stopped=self._holder is not None and self._holder.released_at is not None,
            service_pid=self._service_pid,
            storage_trouble=self._attendance.storage_trouble,
            read_only=self._told_read_only or command_client.why_read_only(self._path),
            others=others(self._attendance.names, self._actor),
        )

    async def close(self) -> None:
        """Leave. The run goes on."""
        self._closed = True
        if self._attending is not None:
            self._attending.cancel()
            await asyncio.wait({self._attending})

    # --- What people ask -------------------------------------------------------------------------------------------

    async def runs(self) -> Sequence[RunSummary]:
        """Every run of the file, latest first."""
        found = await self._read(runs.list_runs)
        return [RunSummary(one.run, one.counts, one.counts.get("DEAD_LETTER", 0)) for one in found]

    async def snapshot(self, run_id: str | None = None, patience_seconds: float | None = None) -> RunFold:
        """A run, by default the latest, as of ``fold.seq``."""

        def load(connection: sqlite3.Connection) -> tuple[str, RunFold]:
            wanted = run_id if run_id is not None else runs.latest_run_id(connection)
            if wanted is None:
                raise NotFoundError(f"no run has been recorded in {self._path} yet")
            return database.file_uuid(connection), runs.load_fold(connection, wanted)

        self._uuid, fold = await self._read(load)
        return fold

    async def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Batches of what came after ``since``; an empty one each second. See ``Session``."""
        seq = since
        while True:
            try:
                head = await self._head_of_the_same_file()
                async with aclosing(self._follow(seq)) as batches:
                    async for batch in batches:
                        seq = batch[-1].seq if batch else seq
                        self._damage = None
                        if batch or seq >= head:
                            yield batch
            except CorruptFileError as error:
                self._damage = str(error)
                raise  # no waiting mends it
            except StateFileError:
                # ``status`` says what is wrong. The file may come back, and may be another one then.
                await asyncio.sleep(BEAT_SECONDS)

    async def _head_of_the_same_file(self) -> int:
        """The latest event. Raises SnapshotNeeded where another file is in the place of the one that was read."""
        uuid, head = await self._read(lambda connection: (database.file_uuid(connection), head_of(connection)))
        if uuid != self._uuid:
            raise SnapshotNeeded(f"another state file is in the place of {self._path}")
        return head

    async def _follow(self, since: int) -> AsyncGenerator[Sequence[Event], None]:
        """What ``tail`` tells, and an empty batch where it tells nothing for BEAT_SECONDS."""
        batches = follow.follow(self._path, since)
        pending: asyncio.Task[list[Event]] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(_next(batches))
                done, _ = await asyncio.wait({pending}, timeout=BEAT_SECONDS)
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

    async def past(self, run_id: str, after: int, limit: int) -> Sequence[Event]:
        """A window of what happened; see ``Session``."""
        return await self._read(
            lambda connection: [run_decoder.event_of(row) for row in queries.past(connection, run_id, after, limit)]
        )

    async def usual(self, run_id: str) -> Mapping[str, duration_stats.Usual]:
        """How long its tasks took before; see ``Session``."""
        return await self._read(lambda connection: duration_stats.read(duration_stats.of_run(connection, run_id)))

    async def send(self, command: Command) -> Answer:
        """Ask for an act: of the executor, or with none alive by the same rules under its lock."""
        refused = self.status.read_only
        if refused is not None:
            raise StateFileError(f"read-only: {refused}")
        return await command_client.send(self._path, command)

    async def attempt_text(self, run_id: str, task: str, attempt: int) -> AttemptText:
        """Traceback, stack and diagnostic of one attempt."""
        return AttemptText(*await self._read(lambda connection: logs.attempt_text(connection, run_id, task, attempt)))

    async def log(self, run_id: str, task: str, attempt: int, after: int = 0, limit: int = 500) -> Sequence[LogChunk]:
        """A window of its output; see ``Session``."""
        pieces = await self._read(lambda connection: logs.read(connection, run_id, task, attempt, after, limit))
        return [LogChunk(piece.id, piece.at, piece.text, piece.tail) for piece in pieces]

    async def query(self, listing: queries.Listing[Row], **options: queries.Option) -> Sequence[Row]:
        """The rows of a list beside a run; see ``Session``."""
        return await self._read(lambda connection: queries.query(connection, listing, options))

    async def memory(self, run_id: str, causes: Sequence[Cause]) -> Sequence[Memory]:
        """What came of causes before; see ``Session``."""
        found = await self._read(lambda connection: cause_history.of_causes(connection, run_id, causes))
        return [memory_of(row) for row in found]

    async def failures(
        self, run_id: str, downstream: str | None, names: Sequence[str] = ()
    ) -> Sequence[failure_queries.FailedTask]:
        """What failed against a downstream; see ``Session``."""
        return await self._read(lambda connection: failure_queries.against(connection, run_id, downstream, names))

    async def preview(self, command: Command) -> Mapping[str, object]:
        """What an act would do; see ``Session``."""
        return await self._read(lambda connection: dry_run.preview(connection, command.as_json()))

    async def _read(self, use: Callable[[sqlite3.Connection], Result]) -> Result:
        def read() -> Result:
            with database.reading(self._path) as connection:
                return use(connection)

        if self._closed:
            raise LinkError("this door was closed", final=True)
        return await asyncio.to_thread(read)

    # --- Who else is there -----------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        if self._looked_at and now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        holder = lock_file.probe(self._path)
        self._holder = holder or lock_file.last_holder(self._path)
        self._service_pid = command_client.service_pid(self._path)
        # Its children may hold on to the lock while they die; and who lost his lock file may be heard all the same.
        self._alive = self._attendance.descriptor is not None or (holder is not None and holder.is_alive())

    async def _attend(self) -> None:
        """Be seen by the others who are attached, and see them."""
        try:
            while True:
                self._attendance.greet()
                self._watch()
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            self._unwatch()
            self._attendance.leave()

    def _watch(self) -> None:
        descriptor = self._attendance.descriptor
        if descriptor != self._watched:
            self._unwatch()
            if descriptor is not None:
                asyncio.get_running_loop().add_reader(descriptor, self._hear)
            self._watched = descriptor

    def _hear(self) -> None:
        descriptor = self._attendance.descriptor
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            self._watched = None
        self._attendance.hear()
        self._watch()

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None


async def _next(batches: AsyncIterator[list[Event]]) -> list[Event]:
    return await anext(batches)
