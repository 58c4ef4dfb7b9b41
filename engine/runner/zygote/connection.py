"""The executor's connection to one zygote: opens the flow, requests processes, and ends the zygote.

A zygote may stop answering without dying: somebody stops it (SIGSTOP), or it waits in the kernel for a disk.
So it is pinged, and given up when it does not answer: then it is killed, and the connection closed as if it had died.
Silence is counted in pings, not in seconds: an executor that was stopped itself must not blame its zygote for that.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from ... import errors
from ...core.spec import FlowSpec, collector_paused, decode_flow_spec
from .. import process, protocol, reaper
from ..channels import FrameSocket, Pipe
from ..forked_process import ForkedProcess, ProcessRequest
from .launch import ZygoteProcess

OUTPUT_BYTES_MAX = 64 * 1024
STACK_WAIT_SECONDS = 1.0  # for the stack of an import, whose process may wait for a processor
STACK_QUIET_SECONDS = 0.02  # after which a stack is complete: it has no end mark
END_SECONDS = 10  # for a zygote to kill its descendants and end
KILL_SECONDS = 5.0  # for a killed zygote to be gone: one that waits in the kernel is left behind
PING_SECONDS = 1.0
#: Pings in a row without an answer, after which a zygote is given up, by what is at stake.
UNANSWERED_MAX = 30  # an attempt lives, which would be lost
UNANSWERED_IDLE_MAX = 10  # none does
UNREPORTED_MAX = 3  # none does, and the end of one is not reported

#: A flow, and the answer without its text, which would stay in memory for the whole run.
Opened = tuple[FlowSpec, protocol.FlowOpened]
StartFrame = protocol.Start | protocol.StartShared


class ZygoteGone(ProcessLookupError):
    """The zygote died before it announced the process. ``is_blameless``: other attempts may have ended it."""

    def __init__(self, *, is_blameless: bool) -> None:
        super().__init__("the zygote is gone")
        self.is_blameless = is_blameless


class ZygoteConnection:
    """The connection to one zygote, from its start to its end.

    ``on_exit`` is called after each exit that the zygote reports, ``on_gone`` once, when the connection is lost before
    ``end`` was called. ``on_printed`` gets the output as it comes, which is kept otherwise.
    """

    def __init__(
        self,
        zygote: ZygoteProcess,
        *,
        on_exit: Callable[[], None],
        on_gone: Callable[[ZygoteConnection], None],
        on_printed: Callable[[bytes], None] | None = None,
    ) -> None:
        self.pid = zygote.pid
        self.forked: dict[int, ForkedProcess] = {}  # by number
        self._printed = b""  # the latest output of the zygote and the import
        self._zygote = zygote
        self._on_exit = on_exit
        self._on_gone = on_gone
        self._on_printed = on_printed
        self._is_asked = False  # for a stack, which it prints
        self._pending: dict[int, ProcessRequest] = {}
        self._unanswered = 0  # pings
        self._ping_timer: asyncio.TimerHandle | None = None
        self.silence: str | None = None  # why it was given up
        self.was_killed = False
        self._opened: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._ending: asyncio.Task[int | None] | None = None
        self._pipe = Pipe(zygote.output, self._handle_output)
        self._pipe.resume()
        self.link = FrameSocket(zygote.control, self._on_payload, self._on_closed)

    # --- Requests -----------------------------------------------------------------------------------------------------

    async def open(self, request: protocol.Open, seconds: float) -> Opened:
        """Import the flow. Raises FlowError, also if the import takes longer than ``seconds`` or ends the process."""
        target = request.target
        try:
            self.link.send(request)
        except (TypeError, ValueError, OverflowError) as error:  # bytes that are not text, an object
            raise errors.FlowError(f"the path of the flow or a parameter is not text: {error}") from None
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(self._zygote.pidfd, self._on_ended_import)
            try:
                return await asyncio.wait_for(asyncio.shield(self._opened), seconds)
            finally:
                loop.remove_reader(self._zygote.pidfd)
        except ConnectionResetError:
            printed, status = self.printed(), await self.exit_text()
            raise errors.FlowImportError(f"the process that imported {target!r} ended ({status})", printed) from None
        except TimeoutError:
            if not await self._stack_of_import():
                await self._stack_of_import(process.C_STACK_SIGNAL)
            message = f"importing {target!r} did not end within {seconds:g} s"
            raise errors.FlowImportError(message, self.printed()) from None

    def _on_ended_import(self) -> None:
        """Read what it has answered. A process that the import has started may hold its socket."""
        asyncio.get_running_loop().remove_reader(self._zygote.pidfd)
        self.link.drain()
        self.link.close()

    async def _stack_of_import(self, number: int = process.STACK_SIGNAL) -> str:
        """Request the stack of the import, and return what is written then; empty if none comes in time."""
        if not process.writes_stack(self.pid, number):
            return ""
        before, stack, self._is_asked = len(self.printed()), "", True
        reaper.signal_process(self._zygote.pidfd, number)
        limit = asyncio.get_running_loop().time() + STACK_WAIT_SECONDS
        while asyncio.get_running_loop().time() < limit:
            await asyncio.sleep(STACK_QUIET_SECONDS)
            earlier, stack = stack, self.printed()[before:]
            if stack and stack == earlier:
                break
        self._is_asked = False
        return stack

    def request(self, frame: StartFrame, request: ProcessRequest) -> None:
        """Fork a process."""
        if self.link.is_closed:
            request.failed(ZygoteGone(is_blameless=True))  # nothing was asked of it
            return
        self._pending[frame.number] = request
        self.link.send_soon(frame)

    @property
    def has_pending(self) -> bool:
        """Whether the zygote was asked for a process that it has not announced."""
        return bool(self._pending)

    # --- Silence ------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Ping the zygote from now on."""
        if self._unanswered >= UNREPORTED_MAX and self._unanswered >= self._unanswered_max():
            self._give_up()
            return
        self._unanswered += 1
        self.link.send(protocol.Ping())
        self._ping_timer = asyncio.get_running_loop().call_later(PING_SECONDS, self.watch)

    def _unanswered_max(self) -> int:
        forked = self.forked.values()
        if any(one.is_busy for one in forked):
            return UNANSWERED_MAX
        return UNREPORTED_MAX if any(one.has_ended() for one in forked) else UNANSWERED_IDLE_MAX

    def _give_up(self) -> None:
        seconds, state = self._unanswered * PING_SECONDS, process.kernel_view(self.pid) or "unknown"
        self.silence = f"it had not answered for {seconds:g} s; it was in state {state}"
        self.kill()
        self.link.close()  # a process that waits in the kernel does not end now

    # --- Responses ----------------------------------------------------------------------------------------------------

    def _on_payload(self, payload: bytes) -> None:
        self._unanswered = 0
        match protocol.decode_zygote_frame(payload):
            case protocol.Started(number) as started:
                self.forked[number] = self._pending[number].started(started, self.link.pop_fds(4))
                del self._pending[number]
            case protocol.Exited(number) as exited:
                forked = self.forked.pop(number, None)
                if forked is not None:
                    forked.exited(exited)
                self._on_exit()
            case protocol.Refused(number, message):
                self._pending.pop(number).failed(OSError(message))
            case protocol.FlowOpened() as opened:
                try:
                    self._opened.set_result((flow_spec(opened.spec), replace(opened, spec=b"")))
                except errors.FlowError as error:
                    self._opened.set_exception(error)
            case protocol.OpenFailed() as failed:
                self._opened.set_exception(flow_error(failed))

    def _handle_output(self, data: bytes) -> None:
        if self._on_printed is not None and not self._is_asked:
            self._on_printed(data)
            return
        self._printed = (self._printed + data)[-OUTPUT_BYTES_MAX:]

    def printed(self) -> str:
        """Return the latest output of the zygote and the import."""
        self._pipe.drain()
        return self._printed.decode("utf-8", "replace")

    def kill_forked(self) -> list[int]:
        """SIGKILL all that was forked, because the zygote is gone. Returns pidfds, to wait for."""
        return [pidfd for forked in self.forked.values() for pidfd in forked.kill_at_once()]

    def lose_all(self, why: str) -> None:
        """End what ran as LOST, when no process is left.

        Of several attempts none is known to have ended the zygote: the loss counts for none of them. A start without
        an answer that is alone always counts: it may be what the zygote hangs in.
        """
        pending, self._pending = self._pending, {}
        forked, self.forked = self.forked, {}
        is_shared = len(pending) + sum(one.attempt_count for one in forked.values()) > 1
        for request in pending.values():
            request.failed(ZygoteGone(is_blameless=is_shared))
        for one in forked.values():
            one.lose(why, is_blameless=is_shared or self.silence is not None)

    def _on_closed(self) -> None:
        if self._ping_timer is not None:
            self._ping_timer.cancel()
        if not self._opened.done():
            self._opened.set_exception(ConnectionResetError("the zygote is gone"))
            self._opened.exception()  # mark it as retrieved: ``open`` may be over
        elif not self._closing and self._opened.exception() is None:
            self._on_gone(self)
        self._closing = True

    # --- The end ------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        if self._ending is None or not self._ending.done():
            self.was_killed = True
            reaper.signal_process(self._zygote.pidfd, signal.SIGKILL)

    async def end(self) -> int | None:
        """End the zygote with all its processes. Returns its exit code, negative for a signal."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        return await asyncio.shield(self._ending)

    async def exit_text(self) -> str:
        """End the zygote, and return in words how it ended."""
        status = await self.end()
        if self.silence is None:
            return exit_status_text(status)
        return f"killed, because {self.silence}" + (" and is still there" if status is None else "")

    async def _end(self) -> int | None:
        self._closing = True
        self.link.close()
        if self.was_killed or not await self._ends_by_itself():
            self.kill()
            if not await self._gone_within(KILL_SECONDS):
                return None  # stuck in the kernel; it still holds the lock
        self._pipe.drain()
        self._pipe.close()
        os.close(self._zygote.pidfd)
        return self._zygote.reap()

    async def _ends_by_itself(self) -> bool:
        """Wait until the zygote has killed its descendants and ended. A stopped one does not."""
        for _ in range(END_SECONDS):
            if process.is_stopped(self.pid):
                return False
            if await self._gone_within(1.0):
                return True
        return False

    async def _gone_within(self, seconds: float) -> bool:
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._zygote.pidfd, gone.set)
        try:
            async with asyncio.timeout(seconds):
                await gone.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._zygote.pidfd)
        return True


def flow_spec(text: bytes) -> FlowSpec:
    """Decode a FlowSpec. Raises FlowError if the flow has a value of the wrong type."""
    try:
        with collector_paused():
            return decode_flow_spec(text)
    except msgspec.ValidationError as error:
        tasks = msgspec.json.decode(text)["tasks"]
        why = re.sub(
            r"`\$\.tasks\[(\d+)\]\.(.+)`", lambda at: f"{at[2]} of task {tasks[int(at[1])]['name']!r}", str(error)
        )
        raise errors.FlowError(f"the flow cannot be used: {why}") from None


def flow_error(failed: protocol.OpenFailed) -> errors.FlowError:
    """Build the exception of errors.py that the zygote reported."""
    if failed.error == "CycleError":
        return errors.CycleError(failed.cycle)
    if failed.error == "FlowError":
        return errors.FlowError(failed.message)
    return errors.FlowImportError(failed.message, failed.traceback)


def exit_status_text(exit_code: int | None) -> str:
    """Describe an exit code; None: the process still runs."""
    if exit_code is None:
        return "still there"
    return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"
