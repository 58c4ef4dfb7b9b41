"""The executor's end of one warm worker."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable

from .. import process, protocol
from ..attempt import AttemptListener, RunnerContext
from ..frame_socket import FrameSocket
from ..pipes import Pipe, StackPipe
from ..protocol import AttemptOrder
from .attempt import WorkerAttempt, WorkerView

EXIT_SECONDS = 5.0  # for the exit functions of a worker that is no longer needed


class Worker:
    """One process, which runs at most one attempt at a time.

    ``on_free(worker)``: its attempt was a clean success. ``on_findings(worker, task, findings)``: an attempt left
    something behind, so that the worker ends. The zygote reports its exit (``exited``).
    """

    def __init__(
        self,
        started: protocol.Started,
        fds: list[int],
        shared: RunnerContext,
        *,
        on_free: Callable[[Worker], None],
        on_findings: Callable[[Worker, str, list[str]], None],
        on_output: Callable[[bytes], None],
    ) -> None:
        self.number = started.number
        self.pid = started.pid
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.attempt: WorkerAttempt | None = None
        self._start_ticks = started.start_ticks
        self._pidfd, control, output, stack_fd = fds
        self._shared = shared
        self._on_free = on_free
        self._on_findings = on_findings
        self._on_output = on_output
        self._cpu_us = (0, 0)  # of the attempts that have ended
        self._timer: asyncio.TimerHandle | None = None
        self._stack = StackPipe(stack_fd)
        self._output = Pipe(output, self._handle_output)
        link = socket.socket(fileno=control)
        self._link = FrameSocket(link, self._on_payload, lambda: None, protocol.ATTEMPT_LIMIT)

    # --- Attempts -----------------------------------------------------------------------------------------------------

    @property
    def can_start(self) -> bool:
        """Whether it lives and takes an attempt."""
        return self.attempt is None and not self._link.is_closed and not process.has_ended(self._pidfd)

    def start(self, number: int, order: AttemptOrder, listener: AttemptListener) -> WorkerAttempt:
        """Run an attempt."""
        sent_at = asyncio.get_running_loop().time()
        self._link.send(protocol.Start(number, protocol.encode_order(order)))
        view = WorkerView(
            self.pid,
            self._start_ticks,
            sent_at,
            self._pidfd,
            self._link,
            self._output,
            self._stack,
            self._cpu_us,
            self._on_attempt_over,
        )
        self.attempt = WorkerAttempt(number, order, listener, self._shared, view)
        return self.attempt

    def _on_payload(self, payload: bytes) -> None:
        attempt = self.attempt
        if attempt is not None and (findings := attempt.handle(payload)):
            self._on_findings(self, attempt.order.task, findings)

    def _handle_output(self, data: bytes) -> None:
        if self.attempt is None:
            self._on_output(data)
        else:
            self.attempt.handle_output(data)

    def _on_attempt_over(self, cpu_us: tuple[int, int] | None) -> None:
        self.attempt = None
        if cpu_us is None or self.gone.done():
            self.retire()
            return
        self._cpu_us = cpu_us
        self._on_free(self)

    # --- The end ------------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """End it in order: it runs its exit functions. ``exited`` follows."""
        self._link.close()
        if self._timer is None and not self.gone.done():
            self._timer = asyncio.get_running_loop().call_later(EXIT_SECONDS, self.kill)

    def kill(self) -> int:
        """SIGKILL it with its group; ``exited`` follows while the zygote lives. Returns the pidfd, to wait for."""
        process.signal_group(self._pidfd, self.pid, signal.SIGKILL)
        return self._pidfd

    def exited(self, exited: protocol.Exited) -> None:
        """Settle the attempt of the reaped worker."""
        self.gone.set_result(None)
        if self.attempt is not None:
            self.attempt.exited(exited)
        self._close()

    def mark_lost(self, why: str) -> None:
        """Settle its attempt as LOST: the zygote is gone, and the worker with it."""
        self.gone.set_result(None)
        if self.attempt is not None:
            self.attempt.lost(why)
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._link.close()
        self._output.close()
        self._stack.pipe.close()
        os.close(self._pidfd)
