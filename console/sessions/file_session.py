"""The session for a state file on this machine that a command reads once: in this thread, without an event loop."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ...engine.agent import executor_socket
from ...engine.clock import wall_time_us
from ...engine.domain.liveness import TaskUsage
from ...engine.domain.rows import NO_EXECUTOR, NO_HEALTH
from ...engine.errors import LinkError, NoAnswerError, StateFileError
from ...engine.statefile import lock_file, reader
from ...engine.statefile.copies import Original, original_of
from ...engine.statefile.health_file import read_health, stuck_run
from ...engine.statefile.reader import stamps_of
from ...engine.store import database, runs
from ..model.session_status import OPENED_READ_ONLY, Link, SessionStatus
from .answers import Value, rows_of
from .session import Query, Session, unanswered

if TYPE_CHECKING:
    from ...engine.core.projection import RunProjection, Successes
    from ...engine.domain.acts import Answer, Command

LOCK_POLL_SECONDS = 1.0  # between two probes of the lock; a probe holds the lock for an instant

Result = TypeVar("Result")
_read_files: list[str] = []  # the state files of this machine that this process has opened


class FileSession(Session):
    """All that it awaits is there at once. ``LocalSession`` adds what takes time: threads, events, searches."""

    def __init__(self, path: str, read_only: bool = False) -> None:
        _read_files.append(path)
        self._path = path
        self._damage: str | None = None  # the error that the latest read of events raised
        self._read_only_reason = OPENED_READ_ONLY if read_only else None
        self._executor_connection = executor_socket.ExecutorConnection(path)
        self._uuid: str | None = None  # of the file that was read last
        self._executor = NO_EXECUTOR  # the latest one, alive or not
        self._original: Original | None = None  # the file is a copy of this one
        self._checked_stamps: object = None  # of the file, when ``_original`` was looked for
        self._service_pid: int | None = None
        self._stuck_run: str | None = None
        self._health = NO_HEALTH
        self._refreshed_at = 0.0
        self._readable_at = time.monotonic()  # when the file was last known to be there and whole
        self._is_closed = False

    @classmethod
    async def open_once(cls, path: str) -> FileSession:
        """Check that the file can be read. Raises StateFileError or a subclass of it."""
        session = cls(os.path.abspath(path))
        session._uuid = await session._read(database.file_uuid)
        session._executor_connection.refresh()
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
            stuck_run=self._stuck_run,
            health=self._health,
            read_only=self._read_only_reason or executor_socket.read_only_reason(self._path),
            data_age_seconds=time.monotonic() - self._readable_at,
            is_missing=is_missing,
        )

    def has_executor(self) -> bool:
        """Whether an executor lives, without waiting for the next poll of the lock."""
        self._refreshed_at = 0.0
        return self.status.executor.alive

    async def close(self) -> None:
        """Disconnect. The run continues."""
        self._is_closed = True
        self._executor_connection.close()

    # --- Requests -------------------------------------------------------------------------------------------------

    async def read(self, decode: Callable[[Any], Value], query: Query) -> Value:
        """Ask one of ``READS``."""
        return await self._read(lambda connection: self._decoded(decode, reader.read(connection, *query)))

    def prefetch(self, queries: Iterable[Query]) -> None:
        """The answers are at hand when they are read."""

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
        return await self._load(partial(runs.load_run, run_id=run_id, successes=successes))

    async def part(
        self, run_id: str | None = None, names: Sequence[str] | None = None, *, has_blockers: bool = False
    ) -> RunProjection:
        return await self._load(partial(runs.load_part, run_id=run_id, names=names, has_blockers=has_blockers))

    async def _load(self, load: Callable[[sqlite3.Connection], RunProjection]) -> RunProjection:
        self._uuid, projection = await self._read(lambda connection: (database.file_uuid(connection), load(connection)))
        return projection

    async def send(self, command: Command) -> Answer:
        """Send a command to the executor; without one, apply it by the same rules under the lock of the state file."""
        from ...engine.agent.command_client import send_blocking

        reason = self.status.read_only
        if reason is not None:
            raise StateFileError(f"read-only: {reason}")
        try:
            return await self._call(partial(send_blocking, self._path, command))
        except NoAnswerError as error:
            raise unanswered(command, self, error) from None

    async def usage(self) -> Sequence[TaskUsage]:
        from ...engine.agent.command_client import read_usage

        return rows_of(TaskUsage, await self._call(partial(read_usage, self._path)))

    async def _read(self, use: Callable[[sqlite3.Connection], Result]) -> Result:
        def read() -> Result:
            with database.reading(self._path) as connection:
                return use(connection)

        if self._is_closed:
            raise LinkError("this session was closed", final=True)
        return await self._call(partial(reader.read_whole, self._path, read))

    async def _call(self, function: Callable[[], Result]) -> Result:
        """Call what may wait for the disk or the executor."""
        return function()

    def _refresh_executor(self) -> None:
        now = time.monotonic()
        if self._refreshed_at and now - self._refreshed_at < LOCK_POLL_SECONDS:
            return
        self._refreshed_at = now
        self._service_pid = lock_file.service_pid(self._path)
        self._stuck_run = None if self._service_pid is None else stuck_run(self._path)
        self._health = read_health(self._path) or NO_HEALTH
        # Dying children of an executor may still hold its lock; an executor without its lock file still has a socket.
        is_attached = self._executor_connection.descriptor is not None
        self._executor = lock_file.executor_of(self._path, is_attached, wall_time_us(), None)
        found = None if self._executor.alive else stamps_of(self._path)
        if found != self._checked_stamps or self._original is not None:  # the executor of the original may have ended
            self._original = None if found is None else original_of(self._path)
        if self._original is not None:
            self._executor = lock_file.executor_of(self._path, is_attached, wall_time_us(), self._original)
        self._checked_stamps = found


def require_known_values() -> None:
    """Explain a failure of the program by the state file that it has read last.

    Raises CorruptFileError that names a row which no redrive has written. If the file is sound, the fault is ours.
    """
    for path in _read_files[-1:]:
        database.require_known_rows(path)
