"""One connection to an agent: a child process that takes questions and gives answers and events."""

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
from .bundle import first_parcel, sources
from .ssh_errors import explain, last_line, printable

HELLO_SECONDS = 60.0  # slow lines and slow shells; a host that does not answer at all is ssh's to give up
NOISE_BYTES_MAX = 1024 * 1024  # what a login may print before the agent's marker
LINE_BYTES_MAX = 256 * 1024 * 1024
READ_BYTES = 256 * 1024
STDERR_BYTES = 8192
LEAVE_SECONDS = 2.0

Message = Mapping[str, Any]


class Unpacker:
    """From the agent's output to messages: login noise, a marker, then one compressed stream of JSON lines."""

    def __init__(self, marker: str) -> None:
        self._marker = marker.encode() + b"\n"
        self._noise: bytearray | None = bytearray()
        self._stream = zlib.decompressobj()
        self._line = bytearray()

    @property
    def noise(self) -> str:
        """What came so far in place of the marker; "" once it has come."""
        return (self._noise or b"").decode("utf-8", "replace")

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take in a piece and give the messages that it completes. Raises LinkError for what is none of ours."""
        if self._noise is not None:
            self._noise += data
            before, found, data = bytes(self._noise).partition(self._marker)
            if len(before) > NOISE_BYTES_MAX:
                raise LinkError("the login over there prints without end instead of starting the agent", final=True)
            if not found:
                return
            self._noise = None
        while data:
            self._line += self._unpack(data)
            data = self._stream.unconsumed_tail
            yield from self._messages()

    def _unpack(self, data: bytes) -> bytes:
        try:
            return self._stream.decompress(data, READ_BYTES)
        except zlib.error as error:
            raise LinkError(f"something else writes into the agent's output: {error}") from error

    def _messages(self) -> Iterator[Message]:
        *lines, rest = self._line.split(b"\n")
        self._line = rest
        if len(rest) > LINE_BYTES_MAX:
            raise LinkError("the agent's answer has no end", final=True)
        for line in lines:
            yield json.loads(line)


class Pipe:
    """A running agent. ``ended`` is done when it has gone, and says why."""

    def __init__(self, address: SshAddress, python: str, on_message: Callable[[Message], None]) -> None:
        self.ended: asyncio.Future[LinkError] = asyncio.get_running_loop().create_future()
        self.heard_at = time.monotonic()
        self._where = address.destination
        self._login = address.login
        self._python = python
        self._on_message = on_message
        self._hello: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._learnt: set[str] = set()
        self._stderr = bytearray()
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]

    async def open(self, argv: Sequence[str], settings: Message) -> Message:
        """Start ``argv``, send the agent down its input and return the facts of its hello.

        Raises LinkError when there is no way, another RedriveError when the agent found something wrong.
        """
        marker = secrets.token_hex(16)
        parcel = first_parcel({**settings, "marker": marker})
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in the terminal is not for ssh
            )
        except OSError as error:
            raise LinkError(f"cannot start {argv[0]}: {error.strerror}", final=True) from error
        self._reading = asyncio.create_task(self._read(Unpacker(marker)))
        self._write(parcel)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                return _opened(await asyncio.shield(self._hello), self._where)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise LinkError(f"{self._where} took the connection but started no agent") from None
            raise

    async def ask(self, ask: str, **fields: Any) -> Any:
        """Put a question and wait for its answer. Raises LinkError if the agent goes before it has answered."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.tell(ask, id=number, **fields)
        try:
            return await answer
        finally:
            self._answers.pop(number, None)

    def tell(self, ask: str, **fields: object) -> None:
        """Say something that has no answer, in order with the questions."""
        if self.ended.done():
            raise self.ended.result()
        self._write(json.dumps({"ask": ask, **fields}).encode() + b"\n")

    def teach(self, modules: Iterable[str]) -> None:
        """Send those of the modules that have not gone over yet."""
        new = [module for module in modules if module not in self._learnt]
        if new:
            self._learnt.update(new)
            self.tell("learn", sources=sources(new))

    def kill(self) -> None:
        """End ssh and whatever it started for its connection, at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    async def close(self) -> None:
        """End the agent's input, which it obeys; kill the connection if it does not end."""
        self._hang_up()
        await asyncio.wait({self._reading}, timeout=LEAVE_SECONDS)
        self.kill()
        await asyncio.wait({self._reading})

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _write(self, data: bytes) -> None:
        """What is asked is little; what cannot be written any more shows in ``ended``."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def _read(self, unpacker: Unpacker) -> None:
        """The life of the connection."""
        collecting = asyncio.create_task(self._collect_stderr())
        trouble: LinkError | None = None
        assert self._process.stdout is not None
        try:
            while data := await self._process.stdout.read(READ_BYTES):
                self.heard_at = time.monotonic()
                for message in unpacker.feed(data):
                    self._take(message)
        except LinkError as error:
            trouble = error
            self.kill()
        except Exception as error:  # whatever it says is data, and this is what it did to who took it
            trouble = LinkError(f"{self._where} says what nobody here understands: {error!r}", final=True)
            self.kill()
        await collecting
        code = await self._process.wait()
        self._hang_up()
        stderr = self._stderr.decode("utf-8", "replace") or last_line(unpacker.noise)
        self._end(trouble or explain(self._where, self._python, code, stderr, self._login))

    async def _collect_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(READ_BYTES):
            self._stderr = (self._stderr + data)[-STDERR_BYTES:]

    def _take(self, message: Message) -> None:
        if not self._hello.done():
            self._hello.set_result(message)
        elif "id" in message:
            answer = self._answers.get(message["id"])
            if answer is not None and not answer.done():
                _settle(answer, message)
        else:
            self._on_message(message)

    def _end(self, error: LinkError) -> None:
        self.ended.set_result(error)
        for answer in [self._hello, *self._answers.values()]:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # seen: whoever asked may have left


def _opened(first: object, where: str) -> Message:
    """The facts of a hello. Raises what was refused instead."""
    said = first if isinstance(first, dict) else {}
    match said:
        case {"hello": dict(facts)}:
            return facts
        case {"refused": [str(kind), str(sentence)]}:
            raise error_of(kind, sentence)
    raise LinkError(f"what answers on {where} is not the agent", final=True)


def _settle(answer: asyncio.Future[object], message: Message) -> None:
    if "ok" in message:
        answer.set_result(message["ok"])
    else:
        answer.set_exception(error_of(*message["error"]))


def error_of(kind: str, sentence: str) -> RedriveError:
    """The error of ours that the agent named; anything else is something that the storage over there said."""
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, RedriveError):
        return known(printable(sentence))
    return StorageError(f"the agent could not do that: {printable(f'{kind}: {sentence}')}")
