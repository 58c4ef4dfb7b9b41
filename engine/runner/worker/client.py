"""The executor's end of one warm worker, and of the attempt in it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable

import msgspec

from ...core.outcome import Outcome
from ...errors import StateFileError
from .. import process, protocol
from ..attempt import RunnerContext
from ..frame_socket import FrameSocket
from ..listener import AttemptListener
from ..outcome_of_exit import Force, outcome_of
from ..pipes import Pipe, StackPipe
from ..process_attempt import ForkedAttempt
from ..protocol import AttemptOrder
from ..task_environment import encoded_variables

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
    ) -> None:
        self.number = started.number
        self.pid = started.pid
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.attempt: WorkerAttempt | None = None
        self.start_ticks = started.start_ticks
        self.pidfd, control, output, stack_fd = fds
        self._shared = shared
        self._on_free = on_free
        self._on_findings = on_findings
        self.cpu_us = (0, 0)  # of the attempts that have ended
        self._timer: asyncio.TimerHandle | None = None
        self.stack = StackPipe(stack_fd)
        self.output = Pipe(output, self._handle_output)
        link = socket.socket(fileno=control)
        self.link = FrameSocket(link, self._on_payload, lambda: None, protocol.ATTEMPT_LIMIT)

    # --- Attempts -----------------------------------------------------------------------------------------------------

    @property
    def can_start(self) -> bool:
        """Whether it lives and takes an attempt."""
        return self.attempt is None and not self.link.is_closed and not process.has_ended(self.pidfd)

    def start(self, number: int, order: AttemptOrder, listener: AttemptListener) -> WorkerAttempt:
        """Run an attempt."""
        sent_at = asyncio.get_running_loop().time()
        self.link.send(protocol.Start(number, protocol.encode_order(order), encoded_variables(order)))
        self.attempt = WorkerAttempt(number, order, listener, self._shared, self, sent_at)
        return self.attempt

    def _on_payload(self, payload: bytes) -> None:
        attempt = self.attempt
        if attempt is not None and (findings := attempt.handle(payload)):
            self._on_findings(self, attempt.order.task, findings)

    def _handle_output(self, data: bytes) -> None:
        if self.attempt is not None:
            self.attempt.handle_output(data)

    def attempt_over(self, cpu_us: tuple[int, int] | None) -> None:
        """Take the next attempt. ``cpu_us``: the CPU time so far, user and system; None: it can take no other."""
        self.attempt = None
        if cpu_us is None or self.gone.done():
            self.retire()
            return
        self.cpu_us = cpu_us
        self._on_free(self)

    # --- The end ------------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """End it in order: it runs its exit functions. ``exited`` follows."""
        self.link.close()
        if self._timer is None and not self.gone.done():
            self._timer = asyncio.get_running_loop().call_later(EXIT_SECONDS, self.kill)

    def kill(self) -> int:
        """SIGKILL it with its group; ``exited`` follows while the zygote lives. Returns the pidfd, to wait for."""
        process.signal_group(self.pidfd, self.pid, signal.SIGKILL)
        return self.pidfd

    def exited(self, exited: protocol.Exited) -> None:
        """Settle the attempt of the reaped worker."""
        self.gone.set_result(None)
        if self.attempt is not None:
            self.attempt.exited(exited)
        self._close()

    def mark_lost(self, why: str, *, is_blameless: bool) -> None:
        """Settle its attempt as LOST: the zygote is gone, and the worker with it."""
        self.gone.set_result(None)
        if self.attempt is not None:
            self.attempt.lost(why, is_blameless=is_blameless)
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.link.close()
        self.output.close()
        self.stack.pipe.close()
        os.close(self.pidfd)


class WorkerAttempt(ForkedAttempt):
    """An attempt in a worker: killed like an attempt in a process of its own.

    A clean success is settled at the report of the worker (``WorkerChecked``), any other end at the exit of the worker.
    ``sent_at``: monotonic seconds, before the order was sent: the worker may end the attempt at once.
    """

    def __init__(
        self,
        number: int,
        order: AttemptOrder,
        listener: AttemptListener,
        shared: RunnerContext,
        worker: Worker,
        sent_at: float,
    ) -> None:
        super().__init__(number, order, listener, shared, sent_at, worker.pid, worker.pidfd, worker.stack)
        self._worker = worker
        self._is_reusable = True
        self._is_settled = False
        self._results = worker.link
        self._output = worker.output
        self._arm()
        listener.started(worker.pid, worker.start_ticks)

    async def dump_stack(self) -> str:
        """Return the stacks of all threads."""
        self._is_reusable = False  # the signal may come late
        return await super().dump_stack()

    def pause_output(self) -> None:
        """Stop reading the pipes: the task blocks once one is full."""
        self._is_reusable = False
        super().pause_output()

    def handle(self, payload: bytes) -> list[str]:
        """Handle one frame. Returns what the worker found after the attempt. Raises DecodeError."""
        frame = protocol.decode_worker_frame(payload)
        if isinstance(frame, protocol.WorkerChecked):
            self._handle_checked(frame)
            return frame.findings
        try:
            self._handle_frame(frame)
        except StateFileError:
            self._results.close()  # the task wrote into the socket: no frame can be found any more
        return []

    def _on_ending(self, in_time: bool) -> None:
        if in_time:  # the report of the worker mostly comes with the ending: then no timer is needed
            self._loop.call_soon(self._watch_exit)

    def _watch_exit(self) -> None:
        if not self._is_settled:
            super()._on_ending(True)

    def _handle_checked(self, report: protocol.WorkerChecked) -> None:
        is_success = isinstance(self._ending, protocol.Succeeded)
        if report.findings or not is_success or not self._is_reusable or self._force_applied is not Force.NONE:
            self._results.close()  # ends the worker, if a finding does not
            return
        self._output.drain()
        user_us, system_us = self._worker.cpu_us
        usage = {
            "max_rss_kb": report.max_rss_kb,
            "cpu_user_us": report.cpu_user_us - user_us,
            "cpu_system_us": report.cpu_system_us - system_us,
            "duration_us": round((report.ended_at - self._started_at) * 1e6),
        }
        self._settle(outcome_of(self._evidence(usage)), (report.cpu_user_us, report.cpu_system_us))

    def exited(self, exited: protocol.Exited) -> None:
        """Settle the attempt: the worker was reaped."""
        self._results.drain()
        if self._is_settled:
            return
        user_us, system_us = self._worker.cpu_us
        super().exited(
            msgspec.structs.replace(
                exited, cpu_user_us=exited.cpu_user_us - user_us, cpu_system_us=exited.cpu_system_us - system_us
            )
        )

    def _close(self, outcome: Outcome) -> None:
        self._settle(outcome, None)

    def _settle(self, outcome: Outcome, cpu_us: tuple[int, int] | None) -> None:
        if self._is_settled:
            return
        self._is_settled = True
        self._worker.attempt_over(cpu_us)
        self._finish(outcome)

    def _release_output(self) -> None:
        """Leave the pipe open: it belongs to the worker."""
