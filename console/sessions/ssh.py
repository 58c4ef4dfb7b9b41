"""The session for a state file on another host: one ssh process, an agent sent through it, and reconnections.

The remote host needs Python 3.6 and nothing else; nothing is installed there. While disconnected, the screen keeps the
last known state, requests wait, and events continue after the last one that was received.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from ...engine.core.projection import RunProjection, Successes
from ...engine.domain.acts import Answer, Command, parse_answer
from ...engine.domain.events import OWN_INSTANT, Event
from ...engine.domain.liveness import TaskUsage
from ...engine.domain.rows import NO_EXECUTOR, NO_HEALTH, ExecutorState, Health
from ...engine.errors import LinkError, NoAnswerError, SnapshotNeeded, StateFileError
from ..model.session_status import OPENED_READ_ONLY, Link, SessionStatus
from ..text.text import one_line
from . import answers
from .address import DEFAULT_OPTIONS, SshAddress, SshOptions, parse
from .agent_process import AgentMessage, answered, clock_offset_us, file_rows_in
from .answers import Value, decoding
from .bundle import SENDING, module_of
from .connection import Connection, EventBuffer
from .login import Login
from .session import LiveSession, Query, board_query, part_query, unanswered

if TYPE_CHECKING:
    from ...engine.statefile.state_files import FileRow

ACKNOWLEDGED_EVENTS = 1000  # between two acknowledgements
WINDOW_TASKS = 500  # tasks of the first history window; doubled while windows arrive fast
WINDOW_SECONDS = 0.5


class AgentHeartbeat(msgspec.Struct, frozen=True):
    """A heartbeat of the agent. ``now``: microseconds UTC by its clock; ``path``: the file that it has open."""

    now: int = 0
    path: str | None = None
    problem: str | None = None
    read_only: str | None = None
    service_pid: int | None = None
    stuck_run: str | None = None
    health: Health | None = None
    executor: ExecutorState | None = None


class SshSession(LiveSession):
    """Created by ``open``."""

    def __init__(
        self,
        address: SshAddress,
        options: SshOptions,
        read_only: bool,
        settings: dict[str, Any],
        login: Login | None,
    ) -> None:
        self._address = address
        self._options = options
        self._path = address.path
        self._read_only = OPENED_READ_ONLY if read_only else None
        self._uuid: str | None = None
        self._heartbeat = AgentHeartbeat()
        self._buffer: EventBuffer | None = None
        self._reset: SnapshotNeeded | None = None  # received while no caller followed events
        self._partial: RunProjection | None = None  # returned by ``snapshot`` before it was complete
        self._completed: RunProjection | None = None  # the same projection with what arrived since
        self._loading: asyncio.Task[None] | None = None
        self._settings = settings  # of the agent
        self._prefetched: list[tuple[Query, Awaitable[Any]]] = []  # nobody has read their answers
        self._opening: dict[str, tuple[Sequence[Query], asyncio.Task[Any]]] = {}  # files that are opened ahead
        self._open_there = address.path  # the file that the agent opened last
        self.files: Sequence[FileRow] = ()  # of the host, if they were asked for
        self.is_whole = False
        self._acknowledged = 0  # the latest event of which the agent knows
        self._connection = Connection(
            address, options, self._settings, self._on_hello, self._on_message, self._tick, login
        )

    @classmethod
    async def open(
        cls,
        target: str,
        *,
        read_only: bool = False,
        is_console: bool = True,
        options: SshOptions = DEFAULT_OPTIONS,
        queries: Sequence[Query] = (),
        whole: str | None = None,
        is_list: bool = False,
        login: Login | None = None,
    ) -> SshSession:
        """Connect. ``is_console``: it stays open, and waits longer for a silent host than a command.

        ``queries``: they are answered with the greeting.
        ``whole``: a path that is opened in place of that of ``target`` if it is there; then ``is_whole`` is True.
        ``is_list``: of a host, whose ``files`` it lists; ``open_file`` opens one of them.
        ``login``: shared with other sessions.
        Raises AddressError, LinkError, or an error that the agent found with the file.
        """
        address = parse(target)
        settings = {"path": address.path, "is_console": is_console, "queries": queries, "whole": whole, "list": is_list}
        session = cls(address, options, read_only, settings, login)
        await session._connection.open()
        return session

    def open_ahead(self, path: str, queries: Sequence[Query]) -> None:
        """Begin ``open_file``, with queries about it: those of several files cost one round trip together."""
        opening = asyncio.create_task(self._request_file(parse(path).path, queries))
        opening.add_done_callback(_retrieve_error)
        self._opening[path] = queries, opening

    async def open_file(self, path: str) -> None:
        """Open the file of an ``FileRow.path`` of the host, in place of the one before. No events may be followed."""
        if path not in self._opening:
            self.open_ahead(path, ())
        queries, opening = self._opening.pop(path)
        opened = await opening
        self._settings["list"] = False
        self._uuid, self._heartbeat = None, AgentHeartbeat()
        with decoding("a state file"):
            self._on_hello(opened, queries)

    async def _request_file(self, path: str, queries: Sequence[Query]) -> Any:
        self._open_there = path
        return await self._connection.request("file", modules=[*map(module_of, queries)], path=path, queries=queries)

    @property
    def address(self) -> str:
        """Host and file, with the path that the agent resolved."""
        return str(replace(self._address, path=self._path))

    @property
    def ssh_arguments(self) -> Sequence[str]:
        return self._options.arguments

    @property
    def status(self) -> SessionStatus:
        """The current status; cheap. The agent sends each change of the executor at once."""
        heartbeat = self._heartbeat
        return SessionStatus(
            link=self._connection.link,
            problem=self._connection.problem or heartbeat.problem,
            retry_in_seconds=self._connection.retry_in_seconds,
            executor=heartbeat.executor or NO_EXECUTOR,
            service_pid=heartbeat.service_pid,
            stuck_run=heartbeat.stuck_run,
            health=heartbeat.health or NO_HEALTH,
            clock_offset_seconds=self._connection.clock_offset_seconds,
            read_only=self._read_only or heartbeat.read_only,
            data_age_seconds=self._connection.age_seconds,
            become=self._options.become,
        )

    async def close(self) -> None:
        """Disconnect. The run continues."""
        if self._loading is not None:
            self._loading.cancel()
        await self._connection.close()

    # --- Requests --------------------------------------------------------------------------------------------------

    async def read(self, decode: Callable[[Any], Value], query: Query) -> Value:
        return decode(await self._read(query))

    def prefetch(self, queries: Iterable[Query]) -> None:
        for query in queries:
            answer = asyncio.create_task(self._request(query))
            answer.add_done_callback(_retrieve_error)
            self._prefetched.append((query, answer))

    async def _read(self, query: Query) -> Any:
        for index, (prefetched, answer) in enumerate(self._prefetched):
            if prefetched == query:
                del self._prefetched[index]
                return await answer
        return await self._request(query)

    async def _request(self, query: Query) -> Any:
        if self._open_there != self._path:  # another file was opened ahead
            await self._request_file(self._path, ())
        what, options = query
        return await self._connection.request("read", modules=(module_of(query),), what=what, options=options)

    async def snapshot(
        self, run_id: str | None = None, patience_seconds: float | None = None, *, successes: Successes = "all"
    ) -> RunProjection:
        """Return a run (default: the latest) as of the event ``seq`` of the projection.

        On a slow connection the times of finished tasks, and very many edges, arrive later than the rest. With
        ``patience_seconds`` the projection is returned after that time at the latest; ``events`` raises
        SnapshotNeeded when more has arrived, and the next snapshot is the same projection with it.
        """
        filled, self._completed = self._completed, None
        if filled is not None and run_id in (None, filled.run.run_id):
            return filled
        board = await self._read(("board", {"run_id": run_id}) if patience_seconds else board_query(run_id))
        self._reset = None
        with decoding("a run"):
            projection = answers.decode_projection(board)
            is_partial = bool(board["done"] or board["parents"] is None)
        if is_partial:
            await self._load_rest_within(projection, board["parents"] is None, patience_seconds)
        return projection

    async def part(
        self, run_id: str | None = None, names: Sequence[str] | None = None, *, has_blockers: bool = False
    ) -> RunProjection:
        part = await self._read(part_query(run_id, names, has_blockers))
        with decoding("a part of a run"):
            return answers.decode_projection(part)

    async def events(self, since: int) -> AsyncIterator[Sequence[Event]]:
        """Yield batches of events after ``since``; see ``LiveSession``. A new call ends an earlier one."""
        if self._reset is not None:
            raise self._reset
        if self._buffer is not None:
            self._buffer.fail(SnapshotNeeded("a newer call follows the events of this session"))
        buffer = self._buffer = EventBuffer(since)
        self._connection.notify("follow", since=since)
        try:
            async for batch in buffer.batches(self._acknowledge):
                yield batch
        finally:
            if self._buffer is buffer:
                self._buffer = None
                self._connection.notify("follow", since=None)

    def _acknowledge(self, seq: int) -> None:
        """Say how far the events have come: now and then, long before the agent waits for it."""
        if not 0 <= seq - self._acknowledged < ACKNOWLEDGED_EVENTS:
            self._acknowledged = seq
            self._connection.notify("acknowledge", seq=seq)

    async def send(self, command: Command) -> Answer:
        """Send a command; resend it with the same id after a reconnection.

        Raises LinkError while disconnected, because the screen may be outdated.
        """
        if self.status.read_only is not None:
            raise StateFileError(f"read-only: {self.status.read_only}")
        if self._connection.link is not Link.LIVE:
            raise LinkError(f"not sent, the line is down: {self._connection.problem or 'the host is silent'}")
        try:
            answer = await self._connection.request("send", modules=(SENDING,), command=command.as_json())
        except LinkError as error:
            if self.status.link is Link.CLOSED or isinstance(error, NoAnswerError):
                raise unanswered(command, self, error) from None
            raise
        with decoding("an answer"):
            return parse_answer(answer)

    async def usage(self) -> Sequence[TaskUsage]:
        return answers.rows_of(TaskUsage, await self._connection.request("usage", modules=(SENDING,)))

    # --- The rest of a snapshot -------------------------------------------------------------------------------------

    async def _load_rest_within(
        self, projection: RunProjection, has_parents: bool, patience_seconds: float | None
    ) -> None:
        if self._loading is not None:
            self._loading.cancel()
        self._partial = None
        self._loading = asyncio.create_task(self._load_rest(projection, has_parents))
        done, _ = await asyncio.wait({self._loading}, timeout=patience_seconds)
        if done:
            self._loading.result()
        else:
            self._partial = projection
            self._loading.add_done_callback(_retrieve_error)

    async def _load_rest(self, projection: RunProjection, has_parents: bool) -> None:
        """Request windows one by one, so that events and responses do not wait behind all of them."""
        start: int | None = 0
        count = WINDOW_TASKS
        while start is not None:
            requested_at = time.monotonic()
            options = {"run_id": projection.run.run_id, "start": start, "count": count, "has_parents": has_parents}
            window = await self._read(("history", options))
            with decoding("a part of a run"):
                if not answers.merge_history(projection, window, start):
                    break  # the tasks of the run have changed
                following = window["next"]
                if following is not None and following <= start:
                    raise ValueError("it comes twice")
            if time.monotonic() - requested_at < WINDOW_SECONDS:
                count *= 2
            start = following
        if self._partial is projection:
            self._completed = projection
            if self._buffer is not None:
                self._buffer.fail(SnapshotNeeded("more of the run has arrived"))

    # --- Messages of the agent --------------------------------------------------------------------------------------

    def _on_hello(self, hello: AgentMessage, queries: Sequence[Query] | None = None) -> None:
        """Handle a hello; after a reconnection, continue after the last event if the file is still the same.

        ``queries``: those that it answers; None: those of the settings, which a reconnection does not repeat.
        """
        answered_queries = self._settings["queries"] if queries is None else queries
        self._settings["queries"] = ()
        if "files" in hello:
            self.files = file_rows_in(hello, self._address, clock_offset_us(hello))
            return
        with decoding("a greeting"):
            self._prefetched = [
                (one, answered(sent)) for one, sent in zip(answered_queries, hello["answers"], strict=True)
            ]
            # One that was sent after it may have been handled before.
            self._heartbeat = max(self._heartbeat, _heartbeat_of(hello["beat"]), key=lambda beat: beat.now)
        self._path = answers.row_of(str, hello["path"])
        self._settings["path"] = self._path  # a reconnection must not choose another default file
        if queries is None:
            self._open_there = self._path
        if self._settings.pop("whole", None) is not None:
            self.is_whole = bool(hello.get("whole"))
        before, self._uuid = self._uuid, hello["uuid"]
        if before not in (None, self._uuid):
            self._require_snapshot(SnapshotNeeded("another state file is in the place of the one before"))
        elif self._buffer is not None:
            self._connection.notify("follow", since=self._buffer.received)

    def _on_message(self, message: AgentMessage) -> None:
        if "events" in message:
            self._on_events(message["events"])
        elif "packed" in message:
            with decoding("events"):
                self._on_events([*unpacked_events(message["packed"])])
        elif "following" in message:
            if self._buffer is not None:
                self._buffer.start(message["following"])
        elif "beat" in message:
            heartbeat = _heartbeat_of(message["beat"])
            if self._uuid is None or heartbeat.path in (None, self._path):  # not of another file that was opened ahead
                self._heartbeat = heartbeat
            self._tick()
        elif "reset" in message:
            self._uuid = message["uuid"]
            self._require_snapshot(SnapshotNeeded(one_line(answers.row_of(str, message["reset"]))))

    def _on_events(self, rows: Sequence[Sequence[Any]]) -> None:
        if self._buffer is None:
            return
        try:
            events = answers.decode_events(rows)
        except StateFileError as error:  # a reconnection would not help
            self._buffer.fail(error)
        else:
            self._buffer.append(events)

    def _require_snapshot(self, needed: SnapshotNeeded) -> None:
        self._completed = None
        if self._buffer is not None:
            self._buffer.fail(needed)
        else:
            self._reset = needed

    def _tick(self) -> None:
        if self._buffer is not None:
            self._buffer.tick()


def unpacked_events(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """The rows of events, from what ``_packed`` of the agent has made of them."""
    seq = at = 0
    for more, later, *columns, payload in rows:
        seq, at = seq + more, at + later
        yield [seq, at, *columns, payload.replace(OWN_INSTANT, str(at)) if isinstance(payload, str) else payload]


def _heartbeat_of(sent: object) -> AgentHeartbeat:
    """Return the heartbeat with sentences that are safe to show in errors and in the status."""
    heartbeat = answers.row_of(AgentHeartbeat, sent)
    return msgspec.structs.replace(
        heartbeat,
        problem=heartbeat.problem and one_line(heartbeat.problem),
        read_only=heartbeat.read_only and one_line(heartbeat.read_only),
        health=heartbeat.health and heartbeat.health._replace(storage_why=one_line(heartbeat.health.storage_why)),
    )


def _retrieve_error(filling: asyncio.Task[None]) -> None:
    """Mark the exception as retrieved: the status shows a connection that has ended."""
    if not filling.cancelled():
        filling.exception()
