"""The executor's ends of the channels of other processes, without blocking: pipes to read, sockets for frames.

A ``Pipe`` has the output of a process or the frames of an attempt, a ``StackPipe`` the stacks that a signal asks for.
A ``FrameSocket`` carries frames and descriptors to and from a zygote, a host of threads or a worker.
"""

from __future__ import annotations

import asyncio
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from . import protocol

READ_BYTES = 64 * 1024
DRAIN_BYTES = 1024 * 1024  # the default largest pipe of Linux: bounds the last read of a dead attempt
MAX_DESCRIPTORS = 64
DRAIN_ROUNDS = 16  # more than the buffer of a socket holds: bounds the last read from a task that goes on writing
_TRUNCATED = int(socket.MSG_CTRUNC)
HIGH_WATER = 1024 * 1024  # bytes in the queue above which senders wait


class Pipe:
    """Calls ``on_data`` with the data that arrives, and ``on_end`` once when the last writer is gone.

    It reads from ``resume`` on, and whenever it is drained.
    """

    def __init__(self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None] | None = None) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._on_data = on_data
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._is_reading = False
        self._ended = False

    def _read(self) -> bool:
        """Read once. Returns False if nothing is there, or at the end."""
        if self._ended:
            return False
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._on_data(data)
            return True
        self.pause()
        self._ended = True
        if self._on_end is not None:
            self._on_end()
        return False

    def drain(self) -> None:
        """Read all that is in the pipe. After the death of the writer nothing is missing."""
        for _ in range(DRAIN_BYTES // READ_BYTES):
            if not self._read():
                return

    def pause(self) -> None:
        """Stop reading: the writer blocks once the pipe is full."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Read whenever data arrives."""
        if not self._ended and not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._read)

    def close(self) -> None:
        """Close the descriptor. Safe to call twice."""
        self.pause()
        self._ended = True
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class StackPipe:
    """Collects stack dumps. A dump has no end mark: it is complete once the pipe is quiet for ``QUIET_SECONDS``."""

    BYTES_MAX = 256 * 1024
    WAIT_SECONDS = 0.1  # the longest that a kill waits for a stack
    QUIET_SECONDS = 0.01

    def __init__(self, fd: int) -> None:
        self._text = bytearray()
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        self.pipe = Pipe(fd, self._append, self._changed.set)

    def _append(self, data: bytes) -> None:
        self._text += data[: self.BYTES_MAX - len(self._text)]
        self._changed.set()

    async def collect(self, request: Callable[[], bool]) -> str:
        """Call ``request``, which sends the signal, and return the dump; empty if none came in time."""
        async with self._lock:
            self._text.clear()
            self.pipe.resume()
            if request():
                await self._wait_until_quiet()
            return self.text()

    async def _wait_until_quiet(self) -> None:
        loop = asyncio.get_running_loop()
        limit = loop.time() + self.WAIT_SECONDS
        while (remaining := limit - loop.time()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(
                    self._changed.wait(), min(remaining, self.QUIET_SECONDS) if self._text else remaining
                )
            except TimeoutError:
                return

    def text(self) -> str:
        """Return the dump that was collected last."""
        return self._text.decode("utf-8", "replace")


class FrameSocket:
    """Splits received data into payloads; queues frames that the socket does not accept yet.

    ``on_payload(payload)`` is called for each frame in order, ``on_closed()`` once, when the other end is gone or sends
    invalid data.
    """

    def __init__(
        self,
        endpoint: socket.socket,
        on_payload: Callable[[bytes], None],
        on_closed: Callable[[], None],
        limit: int = protocol.CONTROL_LIMIT,
    ) -> None:
        self._socket = endpoint
        self._socket.setblocking(False)
        self._on_payload = on_payload
        self._on_closed = on_closed
        self._reader = protocol.FrameReader(limit)
        self._loop = asyncio.get_running_loop()
        self._received: deque[int] = deque()
        self._queue: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._queued_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._loop.add_reader(self._socket, self._receive)

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    # --- In -----------------------------------------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Receive once. Returns False if nothing is there, or at the end."""
        try:
            data, fds, flags, _ = socket.recv_fds(self._socket, READ_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError:
            data, fds, flags = b"", [], 0
        self._received += fds
        if not data or flags & _TRUNCATED:  # truncated: out of descriptors, and the frames cannot be matched
            self.close()
            return False
        try:
            for payload in self._reader.feed(data):
                if self.is_closed:
                    return False
                self._on_payload(payload)
        except (protocol.ProtocolError, msgspec.DecodeError):
            self.close()
        return not self.is_closed

    def drain(self) -> None:
        """Receive all that is there. After the death of the other end nothing is missing."""
        for _ in range(DRAIN_ROUNDS):
            if self.is_closed or not self._receive():
                return

    def pause(self) -> None:
        """Stop receiving: the other end blocks once the socket is full."""
        if not self.is_closed:
            self._loop.remove_reader(self._socket)

    def resume(self) -> None:
        """Receive again."""
        if not self.is_closed:
            self._loop.add_reader(self._socket, self._receive)

    def pop_fds(self, count: int) -> list[int]:
        """Return the descriptors of the current frame; the caller closes them."""
        return [self._received.popleft() for _ in range(count)]

    # --- Out ----------------------------------------------------------------------------------------------------------

    def send_soon(self, frame: protocol.Frame) -> None:
        """Send a frame together with others of this turn of the event loop: one message instead of many."""
        if self.is_closed:
            return
        if not self._queue:
            self._loop.call_soon(self._flush_or_wait)
        self._enqueue(frame, ())

    def send(self, frame: protocol.Frame, fds: Sequence[int] = ()) -> None:
        """Send or queue a frame. This object closes ``fds``."""
        if self.is_closed:
            _close(fds)
            return
        idle = not self._queue
        self._enqueue(frame, fds)
        if idle:
            self._flush_or_wait()

    def _enqueue(self, frame: protocol.Frame, fds: Sequence[int]) -> None:
        data = memoryview(protocol.encode(frame))
        self._queue.append((data, fds))
        self._queued_bytes += len(data)
        if self._queued_bytes > HIGH_WATER:
            self._writable.clear()

    def _flush_or_wait(self) -> None:
        self._flush()
        if self._queue and not self.is_closed:
            self._loop.add_writer(self._socket, self._on_writable)
        elif not self._queue:
            self._writable.set()

    @property
    def is_writable(self) -> bool:
        """Whether less than ``HIGH_WATER`` is queued, or the other end is gone."""
        return self._writable.is_set()

    async def wait_writable(self) -> None:
        """Wait until less than ``HIGH_WATER`` is queued, or the other end is gone."""
        await self._writable.wait()

    def _flush(self) -> None:
        try:
            while self._queue:
                self._join_frames()
                data, fds = self._queue[0]
                sent = self._try_send(data, fds)
                self._queued_bytes -= sent
                if sent < len(data):
                    self._queue[0] = data[sent:], () if sent else fds
                    return
                self._queue.popleft()
        except OSError:
            self.close()

    def _join_frames(self) -> None:
        """Join the frames without descriptors at the head of the queue, so that one call sends them."""
        joined = []
        while self._queue and not self._queue[0][1]:
            joined.append(self._queue.popleft()[0])
        if joined:
            self._queue.appendleft((memoryview(b"".join(joined)) if len(joined) > 1 else joined[0], ()))

    def _on_writable(self) -> None:
        self._flush()
        if not self._queue and not self.is_closed:
            self._loop.remove_writer(self._socket)
            self._writable.set()

    def _try_send(self, data: memoryview, fds: Sequence[int]) -> int:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        try:
            sent = self._socket.sendmsg([data], rights)
        except BlockingIOError:
            return 0
        _close(fds)
        return sent

    # --- End ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close this end; a zygote then kills all its processes. Calls ``on_closed`` once."""
        if self.is_closed:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        _close([*self._received, *(fd for _, fds in self._queue for fd in fds)])
        self._received.clear()
        self._queue.clear()
        self._queued_bytes = 0
        self._writable.set()
        self._on_closed()


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
