"""The executor's side of an attempt in a warm worker: killed like an attempt in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ...core.outcome import Outcome
from ...errors import StateFileError
from .. import protocol
from ..attempt import AttemptListener, RunnerContext
from ..frame_socket import FrameSocket
from ..outcome_of_exit import Force, outcome_of
from ..pipes import Pipe, StackPipe
from ..process_attempt import ForkedAttempt
from ..protocol import AttemptOrder


@dataclass(frozen=True, slots=True)
class WorkerView:
    """The part of the worker that its attempt uses."""

    pid: int
    start_ticks: int
    sent_at: float  # monotonic seconds, before the order was sent: the worker may end the attempt at once
    pidfd: int
    link: FrameSocket
    output: Pipe
    stack: StackPipe
    cpu_before: tuple[int, int]  # microseconds of its earlier attempts: user, system
    on_over: Callable[[tuple[int, int] | None], None]  # CPU so far if it can take another attempt


class WorkerAttempt(ForkedAttempt):
    """An attempt in a worker.

    A clean success is settled at the report of the worker (``WorkerChecked``), any other end at the exit of the worker.
    """

    def __init__(
        self, number: int, order: AttemptOrder, listener: AttemptListener, shared: RunnerContext, worker: WorkerView
    ) -> None:
        super().__init__(number, order, listener, shared, worker.sent_at, worker.pid, worker.pidfd, worker.stack)
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

    def handle_output(self, data: bytes) -> None:
        """Handle output on stdout or stderr."""
        self._handle_output(data)

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
        user_us, system_us = self._worker.cpu_before
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
        user_us, system_us = self._worker.cpu_before
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
        self._worker.on_over(cpu_us)
        self._finish(outcome)

    def _release_output(self) -> None:
        """Leave the pipe open: it belongs to the worker."""
