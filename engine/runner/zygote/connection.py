"""The executor's end of one zygote: opens the flow in it, asks it for processes, and buries it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ... import errors
from ...core.spec import FlowSpec
from .. import kill, process, protocol
from ..frame_socket import FrameSocket
from ..pipes import Pipe
from .launch import ZygoteProcess

OUTPUT_BYTES_KEPT = 64 * 1024
STACK_WAIT_SECONDS = 0.1
END_SECONDS = 10.0

OnStarted = Callable[[protocol.Started, list[int]], None]


@dataclass(slots=True)
class _Pending:
    """A process that was asked for. ``on_started`` runs before the next frame is looked at: it may be its exit."""

    on_started: OnStarted
    done: asyncio.Future[None]


class ZygoteConnection:
    """Speaks with one zygote from its start to its end.

    ``on_exited`` hears of every process that it reaped. ``on_gone`` is called once when it can no longer be spoken
    with, unless ``close`` was called.
    """

    def __init__(
        self,
        zygote: ZygoteProcess,
        *,
        on_exited: Callable[[protocol.Exited], None],
        on_gone: Callable[[], None],
        on_output: Callable[[bytes], None],
    ) -> None:
        self.pid = zygote.pid
        self._said = b""  # the latest of what the zygote and the import printed
        self._zygote = zygote
        self._on_exited = on_exited
        self._on_gone = on_gone
        self._on_output = on_output
        self._pending: dict[int, _Pending] = {}
        self._opened: asyncio.Future[protocol.FlowOpened] = asyncio.get_running_loop().create_future()
        self._closing = False
        self._ending: asyncio.Task[int | None] | None = None
        self._pipe = Pipe(zygote.output, self._handle_output)
        self._link = FrameSocket(zygote.control, self._take, self._link_closed)

    @property
    def is_closed(self) -> bool:
        """True once nothing can be asked any more."""
        return self._link.is_closed

    # --- Asking -------------------------------------------------------------------------------------------------------

    async def open(self, request: protocol.Open, seconds: float) -> tuple[FlowSpec, protocol.FlowOpened]:
        """Have the flow imported. Raises FlowError, also when it takes longer than ``seconds`` or kills the process."""
        target = request.target
        try:
            self._link.send(request)
        except (TypeError, ValueError, OverflowError) as error:  # bytes that are no text, an object
            raise errors.FlowError(f"the path of the flow or a parameter is no text: {error}") from None
        try:
            opened = await asyncio.wait_for(asyncio.shield(self._opened), seconds)
        except ConnectionResetError:
            printed, status = self.printed(), await self.end_in_words()
            raise errors.FlowImportError(f"the process that imported {target!r} ended ({status})", printed) from None
        except TimeoutError:
            kill.signal_process(self._zygote.pidfd, process.STACK_SIGNAL)
            await asyncio.sleep(STACK_WAIT_SECONDS)
            message = f"importing {target!r} did not end within {seconds:g} s"
            raise errors.FlowImportError(message, self.printed()) from None
        return flow_spec(opened.spec), opened

    async def start(self, frame: protocol.Start | protocol.StartHost, on_started: OnStarted) -> None:
        """Have a process forked. Raises OSError when there can be none."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._link.wait_writable()
        if self._link.is_closed:
            raise ProcessLookupError("the zygote is gone")
        self._pending[frame.number] = _Pending(on_started, done)
        self._link.send(frame)
        await done

    # --- Hearing ------------------------------------------------------------------------------------------------------

    def _take(self, payload: bytes) -> None:
        match protocol.decode_zygote_frame(payload):
            case protocol.Started() as started:
                self._handle_started(started, self._link.pop_fds(4))
            case protocol.Exited() as exited:
                self._on_exited(exited)
            case protocol.Refused(number, message):
                pending = self._pending.pop(number)
                if not pending.done.done():
                    pending.done.set_exception(OSError(message))
            case protocol.FlowOpened() as opened:
                self._opened.set_result(opened)
            case protocol.OpenFailed() as failed:
                self._opened.set_exception(flow_error(failed))

    def _handle_started(self, started: protocol.Started, fds: list[int]) -> None:
        pending = self._pending.pop(started.number)
        if pending.done.done():  # whoever asked has been cancelled
            kill.signal_process(fds[0], signal.SIGKILL)
            for fd in fds:
                os.close(fd)
            return
        pending.on_started(started, fds)
        pending.done.set_result(None)

    def _handle_output(self, data: bytes) -> None:
        self._said = (self._said + data)[-OUTPUT_BYTES_KEPT:]
        self._on_output(data)

    def printed(self) -> str:
        """The latest of what the zygote and the import printed."""
        self._pipe.drain()
        return self._said.decode("utf-8", "replace")

    def _link_closed(self) -> None:
        for pending in self._pending.values():
            if not pending.done.done():
                pending.done.set_exception(ProcessLookupError("the zygote is gone"))
        self._pending.clear()
        if not self._opened.done():
            self._opened.set_exception(ConnectionResetError("the zygote is gone"))
            self._opened.exception()  # it may be that nobody waits any more
        elif not self._closing and self._opened.exception() is None:
            self._on_gone()
        self._closing = True

    # --- The end ------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Without a word: what it was about no longer matters."""
        kill.signal_process(self._zygote.pidfd, signal.SIGKILL)

    async def end(self) -> int | None:
        """Have everything below killed and wait until the zygote is gone. Its exit code, negative for a signal."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        return await asyncio.shield(self._ending)

    async def end_in_words(self) -> str:
        """The same, and how it ended in words."""
        return status_in_words(await self.end())

    async def _end(self) -> int | None:
        self._closing = True
        self._link.close()
        if not await self._gone_within(END_SECONDS):
            kill.signal_process(self._zygote.pidfd, signal.SIGKILL)
            if not await self._gone_within(END_SECONDS):
                return None  # not even SIGKILL: stuck in the kernel; the lock keeps its proof
        self._pipe.drain()
        self._pipe.close()
        os.close(self._zygote.pidfd)
        return self._zygote.reap()

    async def _gone_within(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        gone: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._zygote.pidfd, _resolve, gone)
        try:
            await asyncio.wait([gone], timeout=seconds)
        finally:
            loop.remove_reader(self._zygote.pidfd)
        return gone.done()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def flow_spec(text: bytes) -> FlowSpec:
    """Raises FlowError where a flow gave a value of the wrong kind."""
    try:
        return msgspec.json.decode(text, type=FlowSpec)
    except msgspec.ValidationError as error:
        tasks = msgspec.json.decode(text)["tasks"]
        why = re.sub(
            r"`\$\.tasks\[(\d+)\]\.(.+)`", lambda at: f"{at[2]} of task {tasks[int(at[1])]['name']!r}", str(error)
        )
        raise errors.FlowError(f"the flow cannot be used: {why}") from None


def flow_error(failed: protocol.OpenFailed) -> errors.FlowError:
    """The exception of errors.py that the zygote described."""
    if failed.error == "CycleError":
        return errors.CycleError(failed.cycle)
    if failed.error == "FlowError":
        return errors.FlowError(failed.message)
    return errors.FlowImportError(failed.message, failed.traceback)


def status_in_words(exit_code: int | None) -> str:
    """How a process ended; None: it has not."""
    if exit_code is None:
        return "still there"
    return f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"
