"""The connection to an agent behind ssh: it detects silence, reconnects, and ends on a permanent error."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import secrets
import signal
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from ...engine import errors
from ...engine.clock import wall_time_us
from ...engine.domain.events import Event
from ...engine.domain.states import RunState
from ...engine.errors import LinkError, NoAnswerError, RedriveError, StorageError
from ...engine.statefile.state_files import FileRow
from ..model.board import Link
from ..text.text import one_line
from .address import AROUND, SshAddress, SshOptions
from .bundle import boot_command, first_bundle, first_modules, packed_sources, with_imports
from .session import decoding, rows_of

STALE_SECONDS = 8.0  # the agent sends a heartbeat each 5 s: a missing one is detected within 10 s
DEAD_SECONDS = 25.0  # for an agent that hangs; ssh itself gives up after 15 s of silence
WATCH_SECONDS = 1.0
BACKOFF_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
JITTER = 0.25  # so that not all consoles reconnect to a host at once
REQUEST_TIMEOUT_SECONDS = 120.0  # includes the time to reconnect
SILENCE_SECONDS = 15.0  # of a host, until a command gives it up; a console goes on waiting
CLOCK_CHECK_SECONDS = 60.0  # between two comparisons of the clocks
CLOCK_PROBES = 3
TIME_US_MAX = 2**53  # microseconds UTC that a host may say


class Connection:
    """Keeps one agent reachable.

    ``on_hello`` and ``on_message`` receive its messages; ``on_change`` is called when ``link`` or ``problem`` changed.
    """

    def __init__(
        self,
        address: SshAddress,
        options: SshOptions,
        settings: AgentMessage,
        on_hello: Callable[[AgentMessage], None],
        on_message: Callable[[AgentMessage], None],
        on_change: Callable[[], None],
    ) -> None:
        self.problem: str | None = None
        self.clock_offset_seconds = 0.0  # remote clock minus local clock
        self._address = address
        self._options = options
        self._settings = settings
        self._on_hello = on_hello
        self._on_message = on_message
        self._on_change = on_change
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
        return Link.LIVE if self._agent is not None and self.age_seconds < STALE_SECONDS else Link.STALE

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
                if time.monotonic() - agent.received_at > DEAD_SECONDS:
                    agent.kill()
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
    taken = time.monotonic() - start
    with decoding("a clock time"):
        return taken, datetime.fromtimestamp(answer / 1e6, UTC).timestamp() - (wall + taken / 2)


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


# --- One ssh process with an agent behind it: sends requests, receives responses and events --------------------------


HELLO_TIMEOUT_SECONDS = 60.0  # for slow connections and shells; ssh itself gives up on a host that does not answer
NOISE_BYTES_MAX = 1024 * 1024  # that a login may print before the agent's marker
LINE_BYTES_MAX = 16 * 1024 * 1024  # of one message; a run of 10,000 tasks takes less than 1 MB
MESSAGES_PER_SECOND_MAX = 10_000  # an agent waits for acknowledgements and sends hundreds
BUSY_SECONDS = 0.005  # of handling messages without giving way to keys and the screen
READ_BYTES = 256 * 1024
STDERR_BYTES = 8192
CLOSE_TIMEOUT_SECONDS = 2.0

AgentMessage = Mapping[str, Any]


class MessageDecoder:
    """Decodes the agent's output: text of the login, a marker, then one compressed stream of JSON lines."""

    def __init__(self, marker: str) -> None:
        self._marker = marker.encode() + b"\n"
        self._before_marker: bytearray | None = bytearray()
        self._stream = zlib.decompressobj()
        self._line = bytearray()  # the unfinished message

    @property
    def noise(self) -> str:
        """The text received before the marker; "" after the marker."""
        return (self._before_marker or b"").decode("utf-8", "replace")

    def feed(self, data: bytes) -> Iterator[AgentMessage]:
        """Decode received bytes and yield each message that they complete. Raises LinkError for foreign data."""
        if self._before_marker is not None:
            self._before_marker += data
            before, found, data = bytes(self._before_marker).partition(self._marker)
            if len(before) > NOISE_BYTES_MAX:
                raise LinkError("the remote login prints without end instead of starting the agent", final=True)
            if not found:
                return
            self._before_marker = None
        while data:
            yield from self._complete_messages(self._unpack(data))
            data = self._stream.unconsumed_tail

    def _unpack(self, data: bytes) -> bytes:
        try:
            return self._stream.decompress(data, READ_BYTES)
        except zlib.error as error:
            raise LinkError(f"something else writes into the agent's output: {error}") from error

    def _complete_messages(self, unpacked: bytes) -> Iterator[AgentMessage]:
        """Yield the messages that end in ``unpacked``; only the new bytes are searched for ends."""
        start, *others = unpacked.split(b"\n")
        self._line += start
        if len(self._line) > LINE_BYTES_MAX:
            raise LinkError(f"a message of the agent has more than {LINE_BYTES_MAX:,} bytes", final=True)
        for rest in others:
            line, self._line = self._line, bytearray(rest)
            yield json.loads(line)


class MessageThrottle:
    """Gives way to the event loop while messages are handled, and refuses a flood of them."""

    def __init__(self) -> None:
        self._gave_way_at = self._counts_since = time.monotonic()
        self._count = 0

    async def next(self) -> None:
        """Call after each message. Raises LinkError for more than MESSAGES_PER_SECOND_MAX."""
        now = time.monotonic()
        if now - self._counts_since > 1.0:
            self._counts_since, self._count = now, 0
        self._count += 1
        if self._count > MESSAGES_PER_SECOND_MAX:
            raise LinkError("the remote host sends messages without end", final=True)
        if now - self._gave_way_at > BUSY_SECONDS:
            await asyncio.sleep(0)
            self._gave_way_at = time.monotonic()


class AgentProcess:
    """A running agent. The future ``ended`` resolves with the reason when the process has exited."""

    def __init__(self, address: SshAddress, options: SshOptions, on_message: Callable[[AgentMessage], None]) -> None:
        self.ended: asyncio.Future[LinkError] = asyncio.get_running_loop().create_future()
        self.received_at = time.monotonic()
        self.is_malformed = False  # it sent what no agent sends: another connection would bring the same
        self.is_silent = False  # it has not said hello in time
        self._host = address.place
        self._login = options.login(address)
        self._python = options.python
        self._become = options.become or ""
        self._on_message = on_message
        self._hello: asyncio.Future[AgentMessage] = asyncio.get_running_loop().create_future()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._sent_modules: set[str] = set()
        self._stderr = bytearray()
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]

    async def open(
        self, argv: Sequence[str], settings: AgentMessage, *, silence_seconds: float = HELLO_TIMEOUT_SECONDS
    ) -> AgentMessage:
        """Start ``argv``, send the agent through standard input and return the facts of its hello.

        ``silence_seconds``: without a byte, until the host is given up.

        Raises LinkError when there is no connection, another RedriveError for an error that the agent found.
        """
        marker = secrets.token_hex(16)
        bundle = first_bundle({**settings, "marker": marker})
        self._sent_modules.update(first_modules(settings))
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # so that Ctrl-C does not reach ssh
            )
        except OSError as error:
            raise LinkError(f"cannot start {argv[0]}: {error.strerror}", final=True) from error
        self._reading = asyncio.create_task(self._read(MessageDecoder(marker)))
        self._write(bundle)
        answers_seconds = REQUEST_TIMEOUT_SECONDS if settings.get("asks") else 0.0  # they come with the greeting
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS + answers_seconds):
                while not (await asyncio.wait({self._hello}, timeout=silence_seconds))[0]:
                    if time.monotonic() - self.received_at >= silence_seconds:
                        raise TimeoutError
                return _facts_of_hello(self._hello.result(), self._host)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                self.is_silent = True
                raise silent_host(self._host, silence_seconds) from None
            raise

    async def request(self, ask: str, **fields: object) -> Any:
        """Send a request and await its response. Raises LinkError if the agent exits before."""
        number = next(self._numbers)
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        self.notify(ask, id=number, **fields)
        try:
            return await answer
        finally:
            self._pending.pop(number, None)

    def notify(self, ask: str, **fields: object) -> None:
        """Send a message without a response, in order with the requests."""
        if self.ended.done():
            raise self.ended.result()
        self._write(json.dumps({"ask": ask, **fields}).encode() + b"\n")

    def send_modules(self, modules: Iterable[str]) -> None:
        """Send those of the modules, and of what they import, that this agent does not have yet."""
        new = [module for module in with_imports(*modules) if module not in self._sent_modules]
        if new:
            self._sent_modules.update(new)
            self.notify("load", sources=packed_sources(new))

    def kill(self) -> None:
        """Kill ssh and its child processes; a shared connection that hangs keeps its pipes, which are read no more."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_SECONDS, self._reading.cancel)

    async def close(self) -> None:
        """Close the agent's input, so that it exits; kill ssh after CLOSE_TIMEOUT_SECONDS."""
        self._close_stdin()
        await asyncio.wait({self._reading}, timeout=CLOSE_TIMEOUT_SECONDS)
        self.kill()
        await asyncio.wait({self._reading})

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _write(self, data: bytes) -> None:
        """Write without draining: requests are small, and a broken pipe resolves ``ended``."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def _read(self, unpacker: MessageDecoder) -> None:
        """Read messages until the process exits, then fail what is pending."""
        collecting = asyncio.create_task(self._collect_stderr())
        try:
            error = await self._receive(unpacker, collecting)
        except asyncio.CancelledError:
            collecting.cancel()
            error = LinkError(f"{self._host} is silent, and so is the shared connection (ControlMaster) to it")
        self._close_stdin()
        self._fail_pending(error)

    async def _receive(self, unpacker: MessageDecoder, collecting: asyncio.Task[None]) -> LinkError:
        """Handle messages until the process exits; return why it did."""
        problem: LinkError | None = None
        pace = MessageThrottle()
        assert self._process.stdout is not None
        try:
            while data := await self._process.stdout.read(READ_BYTES):
                self.received_at = time.monotonic()
                for message in unpacker.feed(data):
                    self._handle(message)
                    await pace.next()
        except LinkError as error:
            problem = error
            self.kill()
        except Exception as error:  # a malformed message must not end the console
            problem = LinkError(f"{self._host} sent a message that cannot be read: {error!r}", final=True)
            self.kill()
        self.is_malformed = problem is not None and problem.final
        await collecting
        code = await self._process.wait()
        stderr = self._stderr.decode("utf-8", "replace") or last_line(unpacker.noise)
        return problem or link_error(self._host, self._python, code, stderr, self._login, self._become)

    async def _collect_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(READ_BYTES):
            self._stderr = (self._stderr + data)[-STDERR_BYTES:]

    def _handle(self, message: AgentMessage) -> None:
        if not self._hello.done():
            self._hello.set_result(message)
        elif "id" in message:
            answer = self._pending.get(message["id"])
            if answer is not None and not answer.done():
                _resolve(answer, message)
        else:
            self._on_message(message)

    def _fail_pending(self, error: LinkError) -> None:
        self.ended.set_result(error)
        for answer in [self._hello, *self._pending.values()]:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # mark as retrieved: the caller may have gone


def file_rows_in(message: AgentMessage, address: SshAddress, clock_offset_us: int) -> list[FileRow]:
    """The state files of a host that a message lists; their paths are whole addresses."""
    with decoding("a list of state files"):
        found = rows_of(FileRow, message["files"])
        for file_row in found:
            RunState(RunState.RUNNING if file_row.latest is None else file_row.latest.state)
        return [
            file_row._replace(path=str(replace(address, path=file_row.path)), clock_offset_us=clock_offset_us)
            for file_row in found
        ]


def clock_offset_us(hello: AgentMessage) -> int:
    """How far the clock of the host that has just said hello is ahead; 0 if it does not say."""
    now_us = hello.get("now")
    return now_us - wall_time_us() if isinstance(now_us, int) and abs(now_us) < TIME_US_MAX else 0


def _facts_of_hello(first: object, where: str) -> AgentMessage:
    """Return the facts of a hello. Raises the error of a refusal."""
    match first:
        case {"hello": dict(facts)}:
            return facts
        case {"refused": [str(kind), str(sentence)]}:
            raise error_of(kind, f"{where}: {sentence}")
    raise LinkError(f"what answers on {where} is not the agent", final=True)


def _resolve(answer: asyncio.Future[object], message: AgentMessage) -> None:
    if "ok" in message:
        answer.set_result(message["ok"])
    else:
        answer.set_exception(error_of(*message["error"]))


def answered(message: AgentMessage) -> asyncio.Future[object]:
    """Return an answer that has come with another message."""
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    _resolve(answer, message)
    answer.exception()  # mark as retrieved: it may not be read
    return answer


def error_of(kind: str, sentence: str) -> RedriveError:
    """Return the RedriveError that the agent named; any other error is a StorageError of the remote host."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, RedriveError):
        return known(one_line(sentence, _CHARACTERS))
    return StorageError(f"the agent could not do that: {one_line(f'{kind}: {sentence}', _CHARACTERS)}")


# --- Errors of ssh and of the remote host, each as one sentence with what to do --------------------------------------


_CHARACTERS = 500  # of a text of another host

#: "retry": waiting may help. "sign in": a person has to answer ssh. "fix": the configuration has to change first.
Remedy = Literal["retry", "sign in", "fix"]


class _Rule(msgspec.Struct, frozen=True):
    """Applies when ``pattern`` matches the output of ssh."""

    pattern: str
    remedy: Remedy
    sentence: str


_RULES = (
    _Rule(
        "IDENTIFICATION HAS CHANGED",
        "fix",
        "the key of {host} is not the one known from before; ask who runs it before you trust the new one",
    ),
    _Rule("Host key verification failed", "sign in", "the key of {host} is not known here; run `{login}` once"),
    _Rule("Permission denied|Too many authentication", "sign in", "{host} does not let you in; run `{login}` once"),
    _Rule(
        "sudo: .*(password is|sorry|a terminal is)|not in the sudoers|not allowed to execute",
        "fix",
        "sudo on {host} needs a password, or a rule in sudoers that lets you become {become} without one",
    ),
    _Rule("sudo: .*unknown user", "fix", "{host} has no user {become}"),
    _Rule("sudo: .*command not found", "fix", "there is no {python} on {host} for sudo; name another: --python"),
    _Rule("sudo: (command )?not found|command: sudo", "fix", "there is no sudo on {host}, which --become needs"),
    _Rule("Bad configuration option|Bad owner|no argument after|command-line", "fix", "ssh does not take an option"),
    _Rule("invalid characters", "fix", "ssh refuses the host name {host}"),
    _Rule(
        "restricted",
        "fix",
        "{host} gives you a restricted shell, which starts no agent; log in there as another user: ssh://USER@HOST",
    ),
    _Rule("Could not resolve", "retry", "there is no host {host}, or no name service to ask"),
    _Rule("Connection refused", "retry", "no ssh server listens on {host}"),
    _Rule("timed out|Timeout, server", "retry", "{host} does not answer"),
    _Rule("No route to host|unreachable", "retry", "there is no way to {host} from here"),
    _Rule("No module named '?_?sqlite3", "fix", "{python} on {host} was built without SQLite; name another: --python"),
    _Rule(
        "no attribute 'buffer'|[Uu]nknown option: -I|needs Python 3|SyntaxError",
        "fix",
        "{python} on {host} is not Python 3.6 or later; name another: --python",
    ),
)


def link_error(host: str, python: str, code: int | None, stderr: str, login: str = "", become: str = "") -> LinkError:
    """Return the error for an ssh that exited with ``code``, before or after the hello of the agent.

    ``login``: the command that a person types to log in; ``become``: the user over there who runs the agent. Of
    ``stderr`` only printable characters reach a terminal.
    """
    message = last_line(stderr)
    details = f" ({message})" if message else ""
    if code in (126, 127) and not re.search(
        "restricted|sudo", stderr
    ):  # of every shell for a program that it cannot run or find
        return LinkError(f"there is no {python} on {host}; name another: --python{details}", final=True)
    for rule in _RULES:
        if re.search(rule.pattern, stderr):
            words = {"host": host, "python": python, "login": login or f"ssh {host}", "become": become}
            return LinkError(
                rule.sentence.format(**words) + details, final=rule.remedy == "fix", locked=rule.remedy == "sign in"
            )
    if code == 0:
        why = f"{python} on {host} is not a Python (name another: --python), or sshd runs a command of its own there"
        return LinkError(f"{why}, as ForceCommand{details}", final=True)
    is_ours = "Traceback (most recent call last)" in stderr
    if code is not None and 0 < code < 126 and not is_ours:
        why = f"the command on {host} ended with {code}: a ForceCommand or a login shell runs something else there"
        return LinkError(f"{why}{details}")
    what = "the agent" if is_ours else "the connection"
    return LinkError(f"{what} on {host} ended{details}")


def silent_host(host: str, seconds: float) -> LinkError:
    """The error for a host that has answered ssh with nothing for ``seconds``."""
    return LinkError(f"{host} took the connection but started no agent for {seconds:g} s")


def last_line(text: str) -> str:
    """Return the last line that is not blank, safe for a terminal."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(lines[-1] if lines else "", _CHARACTERS)
