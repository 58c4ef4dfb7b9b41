"""A far host in this process: it takes the place of ssh and its agent, and answers with bytes that a test chooses."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

Send = Callable[[bytes], bytes]  # plain frames -> bytes of the stream
Answer = Callable[[Mapping[str, Any]], bytes]  # a request -> plain frames


class HostileHost:
    """Stands in for ``PipedProcess``. ``answer``: what it says to a request, before compression.

    ``spoil`` changes the compressed bytes. All of it ends when the console kills ssh.
    """

    def __init__(self, hello: bytes, answer: Answer, spoil: Send = lambda data: data) -> None:
        self.frames = 0
        self.connections = 0
        self._hello = hello
        self._answer = answer
        self._spoil = spoil

    def __call__(self, argv: object) -> _Process:
        self.connections += 1
        return _Process(self)

    def send(self, frames: bytes, packer: Any) -> bytes:
        self.frames += frames.count(b"\n")
        return self._spoil(packer.compress(frames) + packer.flush(zlib.Z_SYNC_FLUSH))

    def hello(self) -> bytes:
        return self._hello

    def answer(self, request: Mapping[str, Any]) -> bytes:
        return self._answer(request)


class _Process:
    """What ``AgentProcess`` uses of a process."""

    def __init__(self, host: HostileHost) -> None:
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self._host = host
        self._packer = zlib.compressobj()
        self._received = b""
        self._is_booted = False
        self._has_ended = False

    async def connect(self) -> None:
        """Do nothing."""

    def write(self, data: bytes) -> None:
        if self._has_ended:
            return
        self._received += data
        if not self._is_booted:
            self._boot()
            return
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            self._send(self._host.answer(json.loads(line)))

    def close(self) -> None:
        """End, as an agent does whose standard input is closed."""
        if not self._has_ended:
            self._has_ended = True
            self.stdout.feed_eof()
            self.stderr.feed_eof()

    kill = close

    async def wait(self) -> int:
        return 0

    def _boot(self) -> None:
        parts, rest = [], self._received
        for _ in range(2):
            size, _, rest = rest.partition(b"\n")
            parts.append(rest[: int(size)])
            rest = rest[int(size) :]
        settings = json.loads(zlib.decompress(parts[1]))["settings"]
        self._is_booted, self._received = True, rest
        self.stdout.feed_data(settings["marker"].encode() + b"\n")
        self._send(self._host.hello())

    def _send(self, frames: bytes) -> None:
        if frames:
            self.stdout.feed_data(self._host.send(frames, self._packer))
