"""The session for a state file on this machine, with or without a living executor; also the start of one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Self, cast

from ...engine.domain.events import Event
from ...engine.errors import CorruptFileError, ExecutorBusyError, SnapshotNeeded, StateFileError
from ...engine.statefile import reader
from ...engine.store import database
from .file_session import FileSession, Result

HEARTBEAT_SECONDS = 1.0  # between two empty batches, which redraw the ages on the screen


class LocalSession(FileSession):
    """Created by ``open``. Reads in threads, so that a slow disk does not block the screen."""

    def __init__(self, path: str, read_only: bool = False) -> None:
        super().__init__(path, read_only)
        self._connecting: asyncio.Task[None] | None = None
        self._watched_descriptor: int | None = None

    @classmethod
    async def open(cls, path: str, *, read_only: bool = False) -> Self:
        """Check that the file can be read. Raises StateFileError or a subclass of it."""
        session = cls(os.path.abspath(path), read_only)
        session._uuid = await session._read(database.file_uuid)
        session._connecting = asyncio.create_task(session._connect())
        return session

    async def close(self) -> None:
        """Disconnect. The run continues."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        await super().close()

    # --- Requests -------------------------------------------------------------------------------------------------

    async def _call(self, function: Callable[[], Result]) -> Result:
        return await asyncio.to_thread(function)

    async def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Yield batches of events after ``since``; an empty one each second. See ``LiveSession``."""
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
        pending: asyncio.Future[list[Event]] | None = None
        try:
            while True:
                pending = pending or asyncio.ensure_future(anext(batches))
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

    # --- Executor ---------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Hold a connection to the executor, whose end is seen at once."""
        try:
            while True:
                self._executor_connection.refresh()
                self._watch_socket()
                await asyncio.sleep(HEARTBEAT_SECONDS)
        finally:
            self._unwatch_socket()
            self._executor_connection.close()

    def _watch_socket(self) -> None:
        descriptor = self._executor_connection.descriptor
        if descriptor != self._watched_descriptor:
            self._unwatch_socket()
            if descriptor is not None:
                asyncio.get_running_loop().add_reader(descriptor, self._on_readable)
            self._watched_descriptor = descriptor

    def _on_readable(self) -> None:
        self._unwatch_socket()
        self._executor_connection.receive()
        self._watch_socket()

    def _unwatch_socket(self) -> None:
        if self._watched_descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._watched_descriptor)
            self._watched_descriptor = None


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
