"""The executor's end of a socket: nothing that is sent waits for ever, and no descriptor stays behind."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator, Sequence

import pytest
from redrive.engine.runner import protocol
from redrive.engine.runner.channels import HIGH_WATER, FrameSocket

LARGE = protocol.OpenFailed("FlowError", "x" * 2 * HIGH_WATER, "", [])


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


class Gift:
    """The end of a pipe that is given away."""

    def __init__(self) -> None:
        self.read, self.end = os.pipe()
        os.set_blocking(self.read, False)

    def is_held(self) -> bool:
        """Whether anybody can still write into it."""
        try:
            return os.read(self.read, 1) != b""
        except BlockingIOError:
            return True


@pytest.fixture
def gift() -> Iterator[Gift]:
    gift = Gift()
    yield gift
    os.close(gift.read)


def link_at(end: socket.socket) -> FrameSocket:
    return FrameSocket(end, lambda payload: None, lambda: None)


async def test_what_was_meant_for_one_that_is_gone_is_closed_and_keeps_nobody_waiting(
    ends: tuple[socket.socket, socket.socket], gift: Gift
) -> None:
    link = link_at(ends[0])
    ends[1].close()
    link.send(LARGE, [gift.end])
    assert link.is_closed
    assert not gift.is_held()
    await asyncio.wait_for(link.wait_writable(), 30)


async def test_what_comes_after_the_end_is_closed(ends: tuple[socket.socket, socket.socket], gift: Gift) -> None:
    link = link_at(ends[0])
    link.close()
    link.send(LARGE, [gift.end])
    assert not gift.is_held()


async def test_what_waits_at_the_end_is_closed(ends: tuple[socket.socket, socket.socket], gift: Gift) -> None:
    link = link_at(ends[0])
    link.send(LARGE)  # more than the socket takes
    link.send(LARGE, [gift.end])
    assert gift.is_held()
    link.close()
    assert not gift.is_held()


async def test_frames_and_descriptors_arrive_in_order_however_slow_the_other_end(
    ends: tuple[socket.socket, socket.socket], gift: Gift
) -> None:
    sender = link_at(ends[0])
    sender.send(LARGE)
    sender.send(protocol.StartShared(7), [gift.end])
    received: list[bytes] = []
    over = asyncio.Event()

    def receive(payload: bytes) -> None:
        received.append(payload)
        if len(received) == 2:
            over.set()

    receiver = FrameSocket(ends[1], receive, lambda: None)
    async with asyncio.timeout(30):
        await over.wait()
        await sender.wait_writable()
    assert protocol.decode_zygote_frame(received[0]) == LARGE
    (fd,) = receiver.pop_fds(1)
    assert gift.is_held()
    os.close(fd)
    assert not gift.is_held()
    receiver.close()
    sender.close()


async def test_frames_of_one_turn_of_the_loop_are_one_message(ends: tuple[socket.socket, socket.socket]) -> None:
    sent: list[int] = []

    class Counted(FrameSocket):
        def _try_send(self, data: memoryview, fds: Sequence[int]) -> int:
            sent.append(len(data))
            return super()._try_send(data, fds)

    sender = Counted(ends[0], lambda payload: None, lambda: None)
    for number in range(100):
        sender.send_soon(protocol.StartShared(number))
    sender.send(protocol.StartShared(100))
    received: list[int] = []
    over = asyncio.Event()

    def receive(payload: bytes) -> None:
        frame = protocol.decode_executor_frame(payload)
        assert isinstance(frame, protocol.StartShared)
        received.append(frame.number)
        if len(received) == 101:
            over.set()

    receiver = FrameSocket(ends[1], receive, lambda: None)
    await asyncio.wait_for(over.wait(), 30)
    assert received == list(range(101))
    assert len(sent) == 1
    receiver.close()
    sender.close()
    sender.send_soon(protocol.StartShared(1))
    await asyncio.sleep(0)
    assert len(sent) == 1
