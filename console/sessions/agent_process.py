"""One ssh process with an agent behind it: sends requests, receives responses and events."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import signal
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...engine import errors
from ...engine.errors import LinkError, RedriveError, StorageError
from .address import SshAddress
from .bundle import first_bundle, module_sources
from .ssh_errors import last_line, link_error, printable

HELLO_TIMEOUT_SECONDS = 60.0  # for slow connections and shells; ssh itself gives up on a host that does not answer
NOISE_BYTES_MAX = 1024 * 1024  # that a login may print before the agent's marker
LINE_BYTES_MAX = 16 * 1024 * 1024  # of one message; a run of 10,000 tasks takes less than 1 MB
MESSAGES_PER_SECOND_MAX = 10_000  # an agent waits for acknowledgements and sends hundreds
BUSY_SECONDS = 0.005  # of handling messages without giving way to keys and the screen
READ_BYTES = 256 * 1024
STDERR_BYTES = 8192
CLOSE_TIMEOUT_SECONDS = 2.0

Message = Mapping[str, Any]


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

    def feed(self, data: bytes) -> Iterator[Message]:
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

    def _complete_messages(self, unpacked: bytes) -> Iterator[Message]:
        """Yield the messages that end in ``unpacked``; only the new bytes are searched for ends."""
        start, *others = unpacked.split(b"\n")
        self._line += start
        if len(self._line) > LINE_BYTES_MAX:
            raise LinkError(f"a message of the agent has more than {LINE_BYTES_MAX:,} bytes", final=True)
        for rest in others:
            line, self._line = self._line, bytearray(rest)
            yield json.loads(line)


class MessagePace:
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

    def __init__(self, address: SshAddress, python: str, on_message: Callable[[Message], None]) -> None:
        self.ended: asyncio.Future[LinkError] = asyncio.get_running_loop().create_future()
        self.received_at = time.monotonic()
        self.is_malformed = False  # it sent what no agent sends: another connection would bring the same
        self._host = address.destination
        self._login = address.login
        self._python = python
        self._on_message = on_message
        self._hello: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._sent_modules: set[str] = set()
        self._stderr = bytearray()
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]

    async def open(self, argv: Sequence[str], settings: Message) -> Message:
        """Start ``argv``, send the agent through standard input and return the facts of its hello.

        Raises LinkError when there is no connection, another RedriveError for an error that the agent found.
        """
        marker = secrets.token_hex(16)
        bundle = first_bundle({**settings, "marker": marker})
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
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_SECONDS):
                return _facts_of_hello(await asyncio.shield(self._hello), self._host)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise LinkError(f"{self._host} took the connection but started no agent") from None
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
        """Send those of the modules that this agent does not have yet."""
        new = [module for module in modules if module not in self._sent_modules]
        if new:
            self._sent_modules.update(new)
            self.notify("load", sources=module_sources(new))

    def kill(self) -> None:
        """Kill ssh and its child processes."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

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
        problem: LinkError | None = None
        pace = MessagePace()
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
        self._close_stdin()
        stderr = self._stderr.decode("utf-8", "replace") or last_line(unpacker.noise)
        self._fail_pending(problem or link_error(self._host, self._python, code, stderr, self._login))

    async def _collect_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(READ_BYTES):
            self._stderr = (self._stderr + data)[-STDERR_BYTES:]

    def _handle(self, message: Message) -> None:
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


def _facts_of_hello(first: object, where: str) -> Message:
    """Return the facts of a hello. Raises the error of a refusal."""
    match first:
        case {"hello": dict(facts)}:
            return facts
        case {"refused": [str(kind), str(sentence)]}:
            raise error_of(kind, sentence)
    raise LinkError(f"what answers on {where} is not the agent", final=True)


def _resolve(answer: asyncio.Future[object], message: Message) -> None:
    if "ok" in message:
        answer.set_result(message["ok"])
    else:
        answer.set_exception(error_of(*message["error"]))


def error_of(kind: str, sentence: str) -> RedriveError:
    """Return the RedriveError that the agent named; any other error is a StorageError of the remote host."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, RedriveError):
        return known(printable(sentence))
    return StorageError(f"the agent could not do that: {printable(f'{kind}: {sentence}')}")
