"""The executor's end of a process that a zygote forked, in which one attempt runs at a time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Protocol

import msgspec

from ..core.outcome import LostWith
from ..domain.event_payloads import AttemptSigkill, AttemptSigterm
from ..errors import StateFileError
from . import process, protocol, reaper, stack
from .attempt import AttemptBackend
from .channels import FrameSocket, Pipe, StackPipe
from .usage import UsageSubject

C_CODE_TICKS = 2  # of CPU: Python code would have answered
READ_DELAY_SECONDS = 0.02  # most attempts have ended by then, and what they wrote is read once


class ProcessRequest(Protocol):
    """A process that a zygote was asked for: one of these is called, once."""

    def started(self, started: protocol.Started, fds: list[int]) -> ForkedProcess:
        """Return the executor's end of the started process; it gets the exit, which the next frame may report."""

    def failed(self, error: OSError) -> None:
        """Handle a process that was not forked, or whose zygote is gone."""


class ForkedProcess(AttemptBackend):
    """A process that a zygote has forked, and its channels: the backend of one attempt with ``isolation="process"``.

    ``open_results``: makes the channel of the frames from its descriptor, for a process that gets frames as well.
    """

    def __init__(
        self, started: protocol.Started, fds: list[int], open_results: Callable[[int], FrameSocket] | None = None
    ) -> None:
        super().__init__(started.pid, started.start_ticks)
        self.number = started.number
        self.pidfd, results, output, stack_fd = fds
        self._ticks = 0  # of CPU that its main thread had used when it was asked for its stacks
        self._own_pidfd = self.pidfd  # of the process that the zygote forked; a worker may have a program below it
        self.output = Pipe(output, self._handle_output)
        self.stack = StackPipe(stack_fd)
        self._results = Pipe(results, self._handle_results) if open_results is None else open_results(results)
        self.written: list[Pipe | FrameSocket] = [self._results, self.output]  # what the task writes
        self._reader = protocol.FrameReader(protocol.ATTEMPT_LIMIT)
        self._read_timer: asyncio.TimerHandle | None = None
        if open_results is None:
            self._read_timer = asyncio.get_running_loop().call_later(READ_DELAY_SECONDS, self.resume)
        else:
            self.resume()

    # --- Channels -----------------------------------------------------------------------------------------------------

    def _handle_results(self, data: bytes) -> None:
        try:
            for payload in self._reader.feed(data):
                self._running.handle_frame(protocol.decode_attempt_frame(payload))
        except (protocol.ProtocolError, msgspec.DecodeError, StateFileError):
            self._results.close()  # the task wrote into the pipe: no frame can be found any more

    def _handle_output(self, data: bytes) -> None:
        if self.attempt is not None:
            self.attempt.handle_output(data)

    def drain(self) -> None:
        """Read all that was written. After the death of the process nothing is missing."""
        for channel in self.written:
            channel.drain()
        self.stack.pipe.drain()

    def pause(self) -> None:
        """Stop reading: the task blocks once a pipe is full."""
        self._cancel_read_timer()
        for channel in self.written:
            channel.pause()

    def resume(self) -> None:
        """Read whenever something is written."""
        for channel in self.written:
            channel.resume()
        self.stack.pipe.resume()

    def _cancel_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def close(self) -> None:
        """Close the channels."""
        self._cancel_read_timer()
        for channel in self.written:
            channel.close()
        self.stack.pipe.close()
        os.close(self._own_pidfd)
        self._own_pidfd = self.pidfd = -1

    # --- Facts --------------------------------------------------------------------------------------------------------

    def has_ended(self) -> bool:
        """Whether the process has ended, although the zygote may not have reported it yet."""
        return self._own_pidfd < 0 or process.has_ended(self._own_pidfd)

    @property
    def is_busy(self) -> bool:
        """Whether an attempt lives in it that has not leaked."""
        return self.attempt is not None and not self.has_ended()

    @property
    def attempt_count(self) -> int:
        """The number of attempts that end with it, leaked ones included."""
        return int(self.attempt is not None)

    def subject(self, line: str | None) -> UsageSubject:
        """Return the processes to inspect."""
        return UsageSubject(self.pid, line=line, start_ticks=self.start_ticks)

    async def dump_stack(self) -> str:
        """Return the stacks of all threads; empty for a program without a handler: the signal would end it."""
        self._ticks = process.thread_use(self.pid, self.pid)[1]
        return stack.without_engine(await self.stack.collect(self._request_stacks))

    def _request_stacks(self) -> bool:
        """Ask the process for its stacks. Returns False if it cannot be asked."""
        is_asked = process.writes_stack(self.pid) and not self.has_ended()
        return is_asked and reaper.signal_process(self.pidfd, process.STACK_SIGNAL)

    async def dump_c_code(self) -> str:
        """Return the stack of the main thread, if it is in C code."""
        return stack.without_engine(await self.dump_thread(self.pid, self._ticks))

    async def dump_thread(self, thread: int, ticks: int) -> str:
        """Return the stack of a thread that is in C code; empty for one that may be in Python code.

        It is in C code if it has not answered, although it sleeps, or has run since: then it had used ``ticks``.
        """
        return await self.stack.collect(lambda: self._request_stack_of(thread, ticks))

    def _request_stack_of(self, thread: int, ticks: int) -> bool:
        state, used = process.thread_use(self.pid, thread)
        is_in_c_code = state == b"S" or used - ticks >= C_CODE_TICKS
        is_asked = is_in_c_code and process.writes_stack(self.pid, process.C_STACK_SIGNAL) and not self.has_ended()
        return is_asked and process.signal_thread(self.pid, thread, process.C_STACK_SIGNAL)

    # --- The end of its attempt ---------------------------------------------------------------------------------------

    def on_reported(self, is_in_time: bool) -> None:
        """Wait for the exit, which proves the end."""
        if is_in_time:
            self._running.expect_exit()

    def terminate(self, reason: str) -> None:
        """Send SIGTERM to the process group."""
        process.signal_group(self.pidfd, self.pid, signal.SIGTERM)
        self._running.report(AttemptSigterm(reason, self._running.order.spec.grace_seconds))

    def kill(self, reason: str) -> None:
        """Send SIGKILL to the process group and to every descendant."""
        victims = process.descendants(self.pid)
        if not process.signal_group(self.pidfd, self.pid, signal.SIGKILL):
            victims = []  # the pid was reused when they were read, or they are out of reach as well
        process.kill_all(victims)
        self._running.report(AttemptSigkill(reason, [self.pid, *victims]))

    def release(self) -> None:
        """Close all: the process ran this attempt alone."""
        self.close()

    # --- Reports of the zygote ----------------------------------------------------------------------------------------

    def exited(self, exited: protocol.Exited) -> None:
        """End the attempt: the process was reaped."""
        attempt = self._running  # what is drained may be its report, which ends it
        self.drain()
        attempt.exited(exited, "" if exited.signal is None else stack.without_engine(self.stack.text()))

    def kill_at_once(self) -> list[int]:
        """SIGKILL it without a report. Returns its pidfd, to wait for, unless it is closed."""
        if self._own_pidfd < 0:
            return []
        process.signal_group(self.pidfd, self.pid, signal.SIGKILL)
        return [self._own_pidfd]

    def lose(self, why: str, *, is_blameless: bool) -> None:
        """End the attempt as LOST: the zygote is gone, and the process with it."""
        self._running.lose(why, is_blameless=is_blameless, lost_with=LostWith.ZYGOTE)
