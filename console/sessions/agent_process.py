"""An ssh process with an agent behind it: sends requests, receives responses and events."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import signal
import subprocess
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ...engine import errors
from ...engine.clock import wall_time_us
from ...engine.domain.states import RunState
from ...engine.errors import LinkError, RedriveError, StorageError
from ...engine.statefile.state_files import FileRow
from ..text.text import one_line
from .address import SshAddress, SshOptions
from .answers import decoding, rows_of
from .bundle import first_bundle, first_modules, packed_sources, with_imports
from .ssh_errors import TEXT_CHARACTERS_MAX, last_line, link_error, silent_host

REQUEST_TIMEOUT_SECONDS = 120.0  # includes the time to reconnect
HELLO_TIMEOUT_SECONDS = 60.0  # for slow connections and shells; ssh itself gives up on a host that does not answer
NOISE_BYTES_MAX = 1024 * 1024  # that a login may print before the agent's marker
LINE_BYTES_MAX = 16 * 1024 * 1024  # of one message; a run of 10,000 tasks takes less than 1 MB
MESSAGES_PER_SECOND_MAX = 10_000  # an agent waits for acknowledgements and sends hundreds
BUSY_SECONDS = 0.005  # of handling messages without giving way to keys and the screen
READ_BYTES = 256 * 1024
STDERR_BYTES = 8192
CLOSE_TIMEOUT_SECONDS = 2.0
TIME_US_MAX = 2**53  # microseconds UTC that a host may say

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


class PipedProcess:
    """A program and its three pipes, which end when it is killed.

    asyncio's own subprocess goes on while anybody holds the other ends of its pipes, as a shared connection
    (ControlMaster) that hangs holds those of its ssh.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        """Start the program; ``connect`` connects its pipes. Raises OSError."""
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self._stdin: asyncio.WriteTransport
        self._outputs: list[asyncio.ReadTransport] = []
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that Ctrl-C does not reach ssh
        )

    async def connect(self) -> None:
        loop, process = asyncio.get_running_loop(), self._process
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        for reader, pipe in ((self.stdout, process.stdout), (self.stderr, process.stderr)):
            transport, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            self._outputs.append(transport)

    def write(self, data: bytes) -> None:
        """Write without waiting: what is sent is small, and where nobody reads it the outputs end."""
        self._stdin.write(data)

    def close(self) -> None:
        """End the standard input."""
        self._stdin.close()

    def kill(self) -> None:
        """Kill the program with its child processes, and end its pipes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._stdin.get_write_buffer_size():
            self._stdin.abort()
        for output in (self._stdin, *self._outputs):
            output.close()

    async def wait(self) -> int:
        """Wait until the program has exited. Returns its code."""
        return await asyncio.to_thread(self._process.wait)


class AgentProcess:
    """A running agent. The future ``ended`` resolves with the reason when the process has exited."""

    def __init__(self, address: SshAddress, options: SshOptions, on_message: Callable[[AgentMessage], None]) -> None:
        self.ended: asyncio.Future[LinkError] = asyncio.get_running_loop().create_future()
        self.received_at = time.monotonic()
        self.is_silent = False  # it has not said hello in time
        self._address = address
        self._options = options
        self._on_message = on_message
        self._hello: asyncio.Future[AgentMessage] = asyncio.get_running_loop().create_future()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._sent_modules: set[str] = set()
        self._stderr = bytearray()
        self._problem: LinkError | None = None  # for which ssh was killed
        self._process: PipedProcess
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
            self._process = PipedProcess(argv)
        except OSError as error:
            raise LinkError(
                f"cannot start {argv[0]} for {self._address.place}: {error.strerror}", final=True
            ) from error
        await self._process.connect()
        self._reading = asyncio.create_task(self._read(MessageDecoder(marker)))
        self._process.write(bundle)
        answers_seconds = REQUEST_TIMEOUT_SECONDS if settings.get("queries") else 0.0  # they come with the greeting
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS + answers_seconds):
                while not (await asyncio.wait({self._hello}, timeout=silence_seconds))[0]:
                    if time.monotonic() - self.received_at >= silence_seconds:
                        raise TimeoutError
                return _facts_of_hello(self._hello.result(), self._address.place)
        except TimeoutError:
            self.is_silent = True
            await self.close()
            raise silent_host(self._address.place, silence_seconds) from None
        except BaseException:
            await self.close()
            raise

    @property
    def is_malformed(self) -> bool:
        """Whether it sent what no agent sends: another connection would bring the same."""
        return self._problem is not None and self._problem.final

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
        self._process.write(json.dumps({"ask": ask, **fields}).encode() + b"\n")

    def send_modules(self, modules: Iterable[str]) -> None:
        """Send those of the modules, and of what they import, that this agent does not have yet."""
        new = [module for module in with_imports(*modules) if module not in self._sent_modules]
        if new:
            self._sent_modules.update(new)
            self.notify("load", sources=packed_sources(new))

    def kill_if_silent(self, seconds: float) -> None:
        """Kill ssh if nothing has come for so long, not even a sign of life."""
        if time.monotonic() - self.received_at > seconds:
            self.kill(LinkError(f"{self._address.place} has been silent for {seconds:g} s"))

    def kill(self, problem: LinkError | None = None) -> None:
        """Kill ssh. ``problem``: why; None: nobody asks."""
        self._problem = self._problem or problem
        self._process.kill()

    async def close(self) -> None:
        """Close the agent's input, so that it exits; kill ssh after CLOSE_TIMEOUT_SECONDS."""
        self._process.close()
        await asyncio.wait({self._reading}, timeout=CLOSE_TIMEOUT_SECONDS)
        self.kill()
        await asyncio.wait({self._reading})

    async def _read(self, decoder: MessageDecoder) -> None:
        """Read messages until the process exits, then fail what is pending."""
        collecting = asyncio.create_task(self._collect_stderr())
        try:
            await self._receive(decoder)
        except LinkError as error:
            self.kill(LinkError(f"{self._address.place}: {error}", final=error.final))
        except Exception as error:  # a malformed message must not end the console
            self.kill(LinkError(f"{self._address.place} sent a message that cannot be read: {error!r}", final=True))
        await collecting
        code = await self._process.wait()
        self._process.close()
        stderr = self._stderr.decode("utf-8", "replace") or last_line(decoder.noise)
        said = link_error(self._address, self._options, code, stderr)
        self._fail_pending(self._problem or said)

    async def _receive(self, decoder: MessageDecoder) -> None:
        pace = MessageThrottle()
        while data := await self._process.stdout.read(READ_BYTES):
            self.received_at = time.monotonic()
            for message in decoder.feed(data):
                self._handle(message)
                await pace.next()

    async def _collect_stderr(self) -> None:
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
    with decoding(f"a list of the state files of {address.place}"):
        found = rows_of(FileRow, message["files"])
        for file_row in found:
            RunState(RunState.RUNNING if file_row.latest is None else file_row.latest.state)
        return [
            file_row._replace(path=str(replace(address, path=file_row.path)), clock_offset_us=clock_offset_us)
            for file_row in found
        ]


def clock_offset_us(hello: AgentMessage) -> int:
    """Microseconds by which the clock of a host is ahead, by its hello; 0 if it does not say."""
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
        return known(one_line(sentence, TEXT_CHARACTERS_MAX))
    return StorageError(f"the agent could not do that: {one_line(f'{kind}: {sentence}', TEXT_CHARACTERS_MAX)}")
