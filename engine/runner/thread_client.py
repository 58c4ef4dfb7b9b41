"""The executor's end of the thread host: starts attempts in it and keeps count of the threads that leaked."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from . import process, protocol
from .attempt import AttemptListener, Surroundings
from .link import FrameLink
from .pipes import Pipe, StackPipe
from .protocol import AttemptOrder
from .thread_attempt import HostView, ThreadAttempt


class ThreadHost:
    """One host process and the attempts in it."""

    def __init__(
        self,
        started: protocol.Started,
        fds: list[int],
        shared: Surroundings,
        *,
        on_freed: Callable[[], None],
        on_gone: Callable[[], None],
        on_output: Callable[[bytes], None],
    ) -> None:
        self.leaked: set[int] = set()
        self._pidfd, control, output, stack = fds
        self._shared = shared
        self._on_freed = on_freed
        self._attempts: dict[int, ThreadAttempt] = {}
        self._output = Pipe(output, on_output)
        self._stack = StackPipe(stack)
        self._link = FrameLink(socket.socket(fileno=control), lambda payload: None, on_gone)
        self._view = HostView(
            pid=started.pid,
            start_ticks=started.start_ticks,
            cancel=lambda number: self._link.send(protocol.CancelThread(number)),
            dump_stacks=self._dump_stacks,
            on_leak=self.leaked.add,
            on_gone=self._forget,
        )

    async def start(self, number: int, order: AttemptOrder, inputs: str, listener: AttemptListener) -> ThreadAttempt:
        """Run an attempt in a new thread. Raises OSError when the host is gone or descriptors are."""
        await self._link.wait_for_room()
        if self._link.is_closed:
            raise ProcessLookupError("the thread host is gone")
        results, output = _two_pipes()
        started_at = asyncio.get_running_loop().time()
        ours, theirs = (results[0], output[0]), [results[1], output[1]]
        attempt = ThreadAttempt(number, order, listener, self._shared, self._view, ours, started_at)
        self._attempts[number] = attempt
        self._link.send(protocol.StartThread(number, order, inputs), theirs)
        for fd in theirs:
            os.close(fd)
        return attempt

    async def _dump_stacks(self) -> str:
        """The host's main thread is asked first: a signal that reads the frames of threads that run can crash them.

        It does not answer while C code holds the GIL; then nothing moves, and the signal is safe.
        """
        told = await self._stack.collect(self._ask_for_stacks)
        if told:
            return told
        return await self._stack.collect(lambda: process.signal_process(self._pidfd, process.STACK_SIGNAL))

    def _ask_for_stacks(self) -> bool:
        self._link.send(protocol.DumpThreads())
        return True

    def _forget(self, number: int) -> None:
        """A thread has ended. If it had leaked, its slot is free again."""
        self._attempts.pop(number, None)
        if number in self.leaked:
            self.leaked.discard(number)
            self._on_freed()

    def died(self, why: str) -> None:
        """The process is gone."""
        for attempt in list(self._attempts.values()):
            attempt.host_died(why)
        self._link.close()
        self._output.drain()
        self._output.close()
        self._stack.pipe.close()
        os.close(self._pidfd)


def _two_pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Both or none. Raises OSError."""
    first = os.pipe()
    try:
        return first, os.pipe()
    except OSError:
        os.close(first[0])
        os.close(first[1])
        raise
