"""The connection to an agent behind ssh: it detects silence, reconnects, and ends on a permanent error."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from ...engine.domain.events import Event
from ...engine.errors import LinkError, NoAnswerError, RedriveError
from ..model.session_status import Link
from .address import AROUND, SshAddress, SshOptions
from .agent_process import HELLO_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS, AgentMessage, AgentProcess, clock_offset_us
from .answers import decoding
from .bundle import boot_command
from .login import Login
from .ssh_errors import SILENCE_SECONDS

LATE_HEARTBEAT_SECONDS = 8.0  # the agent sends a heartbeat each 5 s: a missing one is detected within 10 s
DEAD_SECONDS = 25.0  # for an agent that hangs; ssh itself gives up after 15 s of silence
WATCH_SECONDS = 1.0
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
JITTER = 0.25  # so that not all consoles reconnect to a host at once
CLOCK_CHECK_SECONDS = 60.0  # between two comparisons of the clocks
CLOCK_PROBES = 3


class Connection:
    """Keeps one agent reachable.

    ``on_hello`` and ``on_message`` receive its messages; ``on_change`` is called when ``link`` or ``problem`` changed.
    ``login``: has the options while its connection is there, and makes a lost one again; None: ssh logs in by itself.
    """

    def __init__(
        self,
        address: SshAddress,
        options: SshOptions,
        settings: AgentMessage,
        on_hello: Callable[[AgentMessage], None],
        on_message: Callable[[AgentMessage], None],
        on_change: Callable[[], None],
        login: Login | None = None,
    ) -> None:
        self.problem: str | None = None
        self.clock_offset_seconds = 0.0  # remote clock minus local clock
        self._address = address
        self._options = options
        self._settings = settings
        self._on_hello = on_hello
        self._on_message = on_message
        self._on_change = on_change
        self._login = login
        self._agent: AgentProcess | None = None
        self._is_ready = asyncio.Event()  # set while there is an agent, and after the final error
        self._final_error: RedriveError | None = None
        self._received_at = time.monotonic()
        self._retry_at: float | None = None
        self._maintaining: asyncio.Task[None] | None = None

    @property
    def link(self) -> Link:
        """The state of the connection."""
        if self._final_error is not None:
            return Link.CLOSED
        if self._maintaining is None:
            return Link.CONNECTING
        return Link.LIVE if self._agent is not None and self.age_seconds < LATE_HEARTBEAT_SECONDS else Link.STALE

    @property
    def age_seconds(self) -> float:
        """Seconds since the last message."""
        return time.monotonic() - (self._received_at if self._agent is None else self._agent.received_at)

    @property
    def retry_in_seconds(self) -> float | None:
        """Seconds until the next attempt to connect; None if none is planned."""
        return None if self._retry_at is None else max(0.0, self._retry_at - time.monotonic())

    async def open(self) -> None:
        """Connect for the first time. Raises AddressError, LinkError, or an error that the agent found."""
        try:
            agent = await self._connect()
        except LinkError:
            if AROUND not in self._options.added:
                raise
            agent = await self._connect()
        self._maintaining = asyncio.create_task(self._maintain(agent))

    async def close(self) -> None:
        """Close; no reconnection follows."""
        if self._maintaining is not None:
            self._maintaining.cancel()
            await asyncio.wait({self._maintaining})
        if self._agent is not None:
            await self._agent.close()
        self._close_finally(LinkError("this session was closed", final=True))

    async def request(self, ask: str, *, modules: Sequence[str] = (), **fields: object) -> Any:
        """Send an idempotent request and await the response; resend it after a reconnection.

        ``modules``: those that the agent imports for it. Raises NoAnswerError after REQUEST_TIMEOUT_SECONDS, of a
        command after SILENCE_SECONDS without a byte, and LinkError when the connection has ended finally.
        """
        asked_at = time.monotonic()
        asking = asyncio.create_task(self._request_until_answered(ask, modules, fields))
        try:
            while not (await asyncio.wait({asking}, timeout=WATCH_SECONDS))[0]:
                waited = time.monotonic() - asked_at
                is_dark = not self._is_console and min(self.age_seconds, waited) >= SILENCE_SECONDS
                if is_dark or waited >= REQUEST_TIMEOUT_SECONDS:
                    raise NoAnswerError(f"no answer from {self._address.place} for {waited:.0f} s")
            return asking.result()
        finally:
            asking.cancel()

    @property
    def _is_console(self) -> bool:
        return bool(self._settings.get("is_console", True))

    def notify(self, ask: str, **fields: object) -> None:
        """Send a message without a response; it is dropped while disconnected."""
        if self._agent is not None and not self._agent.ended.done():
            self._agent.notify(ask, **fields)

    async def _request_until_answered(self, ask: str, modules: Sequence[str], fields: dict[str, object]) -> object:
        while True:
            await self._is_ready.wait()
            agent = self._agent
            if agent is None:
                assert self._final_error is not None
                raise self._final_error
            try:
                agent.send_modules(modules)
                return await agent.request(ask, **fields)
            except LinkError:
                if not agent.ended.done():
                    raise  # the agent is there; it could not reach the executor
                if agent is self._agent:
                    self._is_ready.clear()

    # --- Life cycle ------------------------------------------------------------------------------------------------

    async def _connect(self) -> AgentProcess:
        if self._login is not None and AROUND not in self._options.added:
            self._options = await self._login.options()
        argv = self._options.argv(self._address, boot_command(self._options.python, self._options.become))
        agent = AgentProcess(self._address, self._options, self._on_message)
        is_patient = self._is_console and not await self._has_shared_connection()  # which is there: no login takes time
        silence = HELLO_TIMEOUT_SECONDS if is_patient else SILENCE_SECONDS
        try:
            hello = await agent.open(argv, self._settings, silence_seconds=silence)
        except LinkError as error:
            if not agent.is_silent or not await self._has_shared_connection():
                raise
            self._options = self._options._replace(added=(AROUND, *self._options.added))
            raise LinkError(f"{error}: the shared connection (ControlMaster) hangs, so ssh goes around it") from error
        try:
            self._agent, self.problem, self._retry_at = agent, None, None
            self._on_hello(hello)
            self.clock_offset_seconds = clock_offset_us(hello) / 1e6  # until ``_compare_clocks`` knows it better
        except (KeyError, TypeError, LinkError) as error:
            self._agent = None
            await agent.close()
            raise LinkError(f"what answers on {self._address.place} is not the agent", final=True) from error
        self._is_ready.set()
        return agent

    async def _has_shared_connection(self) -> bool:
        is_around = AROUND in self._options.added
        return not is_around and await asyncio.to_thread(self._options.has_shared_connection, self._address)

    async def _maintain(self, agent: AgentProcess) -> None:
        try:
            while True:
                error = await self._watch(agent)
                self._on_lost(error)
                if agent.is_malformed:
                    raise error
                agent = await self._reconnect()
        except RedriveError as error:
            self._close_finally(error)

    async def _watch(self, agent: AgentProcess) -> LinkError:
        """Wait until the agent has exited. ``link`` shows silence; after DEAD_SECONDS of it ssh is killed."""
        comparing = asyncio.create_task(self._compare_clocks(agent))
        link = self.link
        try:
            while not agent.ended.done():
                await asyncio.wait({agent.ended}, timeout=WATCH_SECONDS)
                agent.kill_if_silent(DEAD_SECONDS)
                if self.link is not link:
                    link = self.link
                    self._on_change()
        finally:
            comparing.cancel()
        return agent.ended.result()

    def _on_lost(self, error: LinkError) -> None:
        assert self._agent is not None
        self._received_at = self._agent.received_at
        self._agent = None
        self._is_ready.clear()
        self.problem = str(error)
        self._on_change()

    async def _reconnect(self) -> AgentProcess:
        """Retry until connected. Raises a permanent error."""
        for attempt in itertools.count():
            wait = BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
            wait *= 1 + random.uniform(-JITTER, JITTER)
            self._retry_at = time.monotonic() + wait
            await asyncio.sleep(wait)
            self._retry_at = None
            try:
                return await self._connect()
            except LinkError as error:
                if error.final:
                    raise
                self.problem = str(error)
            except RedriveError as error:  # the file is missing or incomplete: it may come back
                self.problem = str(error)
            self._on_change()
        raise AssertionError("unreachable: counting has no end")

    def _close_finally(self, error: RedriveError) -> None:
        self._final_error = self._final_error or error
        self.problem = str(self._final_error)
        self._agent = None
        self._is_ready.set()
        self._on_change()

    async def _compare_clocks(self, agent: AgentProcess) -> None:
        """Update the clock offset from the probe with the shortest round trip."""
        try:
            while True:
                probes = [await _probe(agent) for _ in range(CLOCK_PROBES)]
                round_trip_seconds, self.clock_offset_seconds = min(probes)
                agent.notify("pace", seconds=round_trip_seconds)
                await asyncio.sleep(CLOCK_CHECK_SECONDS)
        except LinkError:
            pass  # disconnected: ``_watch`` handles that


async def _probe(agent: AgentProcess) -> tuple[float, float]:
    """Return the seconds of the round trip and the clock offset in seconds, as if both ways took the same time."""
    wall, start = time.time(), time.monotonic()
    answer = await agent.request("clock")
    round_trip = time.monotonic() - start
    with decoding("a clock time"):
        return round_trip, datetime.fromtimestamp(answer / 1e6, UTC).timestamp() - (wall + round_trip / 2)


# --- A buffer of event batches between the connection and the screen -------------------------------------------------


Batch = Sequence[Event]


class EventBuffer:
    """Batches of events after ``since``, in order, each event once. The sender limits the number of waiting batches.

    An empty batch follows a heartbeat, but only when all earlier batches were consumed: it marks the end of the
    events that exist.
    """

    def __init__(self, since: int) -> None:
        self.received = since
        self._head: int | None = None  # the latest event when following started; None until known
        self._batches: deque[Batch] = deque()
        self._has_heartbeat = False
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def start(self, head: int) -> None:
        """Handle the start of the stream. ``head``: the latest event; if it is older than ours, a reset follows."""
        if head >= self.received:
            self._head = head
            self.tick()

    def append(self, batch: Batch) -> None:
        """Append a batch. Events that were received before a reconnection are dropped."""
        if batch and batch[0].seq <= self.received:
            batch = [event for event in batch if event.seq > self.received]
        if batch:
            self.received = batch[-1].seq
            self._batches.append(batch)
            self._changed.set()

    def tick(self) -> None:
        """Handle a heartbeat: wake the consumer, which polls the status."""
        self._has_heartbeat = True
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """End the stream with an error; waiting batches are discarded."""
        self._error = self._error or error
        self._changed.set()

    async def batches(self, acknowledge: Callable[[int], None]) -> AsyncIterator[Batch]:
        """Yield batches without end; when the next one is requested, ``acknowledge`` gets the last seq of a batch."""
        while True:
            while not self._error and not self._batches and not self._is_empty_batch_due():
                self._changed.clear()
                await self._changed.wait()
            if self._error:
                raise self._error
            if not self._batches:
                self._has_heartbeat = False
                yield ()
                continue
            batch = self._batches.popleft()
            yield batch
            acknowledge(batch[-1].seq)

    def _is_empty_batch_due(self) -> bool:
        return self._has_heartbeat and self._head is not None and self.received >= self._head
