"""The executor's end of a socket to the zygote or to the thread host: frames and descriptors, without waiting."""

from __future__ import annotations

import asyncio
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from . import protocol

RECEIVE_BYTES = 64 * 1024
MAX_DESCRIPTORS = 64
HIGH_WATER = 1024 * 1024  # bytes waiting to be sent above which a sender should wait


class FrameSocket:
    """Cuts what arrives into payloads; queues what the socket does not take yet.

    ``on_payload(payload)`` is called for each frame in order, ``on_closed()`` once when the other end is gone or sends
    what is no frame.
    """

    def __init__(
        self,
        endpoint: socket.socket,
        on_payload: Callable[[bytes], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._socket = endpoint
        self._socket.setblocking(False)
        self._on_payload = on_payload
        self._on_closed = on_closed
        self._reader = protocol.FrameReader(protocol.CONTROL_LIMIT)
        self._loop = asyncio.get_running_loop()
        self._received: deque[int] = deque()
        self._queue: deque[tuple[memoryview, Sequence[int]]] = deque()
        self._queued_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._loop.add_reader(self._socket, self._receive)

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    # --- In -----------------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            data, fds, flags, _ = socket.recv_fds(self._socket, RECEIVE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds, flags = b"", [], 0
        self._received += fds
        if not data or flags & socket.MSG_CTRUNC:  # cut: out of descriptors, and no way to know whose are missing
            self.close()
            return
        try:
            for payload in self._reader.feed(data):
                if self.is_closed:
                    return
                self._on_payload(payload)
        except (protocol.ProtocolError, msgspec.DecodeError):
            self.close()

    def pop_fds(self, count: int) -> list[int]:
        """The descriptors that came with the frame at hand; they are ours to close."""
        return [self._received.popleft() for _ in range(count)]

    # --- Out ----------------------------------------------------------------------------------------------------------

    def send(self, frame: protocol.Frame, fds: Sequence[int] = ()) -> None:
        """Send or queue. ``fds`` are ours to close from now on."""
        if self.is_closed:
            _close(fds)
            return
        data = memoryview(protocol.encode(frame))
        idle = not self._queue
        self._queue.append((data, fds))
        self._queued_bytes += len(data)
        if idle:
            self._flush()
            if self._queue:
                self._loop.add_writer(self._socket, self._flush_on)
        if self._queued_bytes > HIGH_WATER:
            self._room.clear()

    async def wait_writable(self) -> None:
        """Return once the other end keeps up, or is gone."""
        await self._room.wait()

    def _flush(self) -> None:
        try:
            while self._queue:
                data, fds = self._queue[0]
                sent = self._send_some(data, fds)
                self._queued_bytes -= sent
                if sent < len(data):
                    self._queue[0] = data[sent:], () if sent else fds
                    return
                self._queue.popleft()
        except OSError:
            self.close()

    def _flush_on(self) -> None:
        self._flush()
        if not self._queue and not self.is_closed:
            self._loop.remove_writer(self._socket)
            self._room.set()

    def _send_some(self, data: memoryview, fds: Sequence[int]) -> int:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        try:
            sent = self._socket.sendmsg([data], rights)
        except BlockingIOError:
            return 0
        _close(fds)
        return sent

    # --- End ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close our end; the zygote reads this as "kill everything". ``on_closed`` is called, once."""
        if self.is_closed:
            return
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        _close([*self._received, *(fd for _, fds in self._queue for fd in fds)])
        self._received.clear()
        self._queue.clear()
        self._queued_bytes = 0
        self._room.set()
        self._on_closed()


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
