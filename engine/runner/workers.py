"""The executor's side of warm workers: processes that run attempts one after another, and the pool of each flow.

A free worker takes the next attempt, else the zygote forks a new one. An attempt in a worker is ended like one in a
process of its own. A clean success is settled at the report of the worker (``WorkerChecked``), else its exit decides.
The program of a command is a child of its worker: it is what the attempt shows, signals and kills while it runs, and
its end is settled at the report of the worker.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable

import msgspec

from ..core.outcome import OutcomeKind
from ..domain.event_payloads import ExecutorChange, ExecutorChanged
from ..errors import StateFileError
from . import process, protocol
from .attempt import STDOUT, Attempt, RunnerContext
from .channels import FrameSocket, Pipe
from .command import encoded_variables, has_stdout, read_result
from .forked_process import ForkedProcess
from .protocol import AttemptListener, AttemptOrder, ignore
from .usage import UsageSubject

EXIT_SECONDS = 5.0  # for the exit functions of a worker that is no longer needed
IDLE_SECONDS = 60.0  # a worker that had no attempt for so long ends: its memory is worth more than its fork
END_SECONDS = 1.0  # for the exit functions of idle workers, when the flow is closed

CpuTimes = tuple[int, int]  # user and system, in microseconds


class Worker(ForkedProcess):
    """A process of a pool, which runs at most one attempt at a time. The zygote reports its exit (``exited``)."""

    def __init__(self, started: protocol.Started, fds: list[int], shared: RunnerContext, pool: WorkerPool) -> None:
        super().__init__(started, fds, self._open_link)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shared = shared
        self._pool = pool
        self._cpu_us: CpuTimes = (0, 0)  # of the attempts that have ended
        self._checked: CpuTimes | None = None  # so far: it takes the next attempt when the present one is over
        self._is_reusable = True
        self._own = (self.pid, self.start_ticks)  # while these are of its program
        self._stdout_tail = b""  # of its program, if that is apart
        self._timer: asyncio.TimerHandle | None = None

    def _open_link(self, fd: int) -> FrameSocket:
        self.link = FrameSocket(socket.socket(fileno=fd), self._on_payload, ignore, protocol.ATTEMPT_LIMIT)
        return self.link

    # --- Attempts -----------------------------------------------------------------------------------------------------

    @property
    def can_start(self) -> bool:
        """Whether it lives and takes an attempt."""
        return self.attempt is None and not self.link.is_closed and not self.has_ended()

    def start(self, order: AttemptOrder, listener: AttemptListener) -> Attempt:
        sent_at = asyncio.get_running_loop().time()  # before: it may end the attempt at once
        self.link.send(protocol.Start(self.number, protocol.encode_order(order), encoded_variables(order)))
        return Attempt(order, listener, self._shared, self, sent_at)

    def _on_payload(self, payload: bytes) -> None:
        frame, attempt = protocol.decode_worker_frame(payload), self.attempt
        if attempt is None:
            return
        if isinstance(frame, protocol.WorkerChecked):
            self._handle_checked(frame, attempt)
            return
        if isinstance(frame, protocol.Started):
            self._begin_program(frame, attempt)
            return
        try:
            attempt.handle_frame(frame)
        except StateFileError:
            self.link.close()  # the task wrote into the socket: no frame can be found any more

    def _handle_checked(self, report: protocol.WorkerChecked, attempt: Attempt) -> None:
        """End the attempt at the end of its program, or at a clean success of its function; else the exit decides."""
        if report.findings:
            self._pool.on_findings(self, attempt.order.spec.declared_name, report.findings)
        is_program = attempt.order.spec.kind == "command"
        is_success = is_program or (attempt.reported is not None and attempt.reported.kind is OutcomeKind.SUCCESS)
        is_clean = is_success and not report.findings and not attempt.is_terminating and self._is_reusable
        if not (is_program or is_clean):
            self.link.close()  # ends the worker, if a finding does not
            return
        if is_clean:
            self._checked = report.cpu_user_us, report.cpu_system_us
        for pipe in self.written[1:]:  # not the link: this was its last frame
            pipe.drain()
        attempt.exited(report.exited if is_program else self._share_of(report.exited), "")

    def _share_of(self, exited: protocol.Exited) -> protocol.Exited:
        """Return an end with the CPU times of the present attempt alone."""
        user_us, system_us = self._cpu_us
        cpu_us = {"cpu_user_us": exited.cpu_user_us - user_us, "cpu_system_us": exited.cpu_system_us - system_us}
        return msgspec.structs.replace(exited, **cpu_us)

    async def dump_stack(self) -> str:
        """Return the stacks of all threads."""
        self._is_reusable = False  # the signal may come late
        return await super().dump_stack()

    def pause(self) -> None:
        """Stop reading: the task blocks once a pipe is full."""
        self._is_reusable = False
        super().pause()

    def on_reported(self, is_in_time: bool) -> None:
        """Wait for the report or the exit. The report mostly comes with the final frame: then no timer is needed."""
        if is_in_time:
            asyncio.get_running_loop().call_soon(self._running.expect_exit)

    # --- The program of a command -------------------------------------------------------------------------------------

    @property
    def _has_program(self) -> bool:
        return self.pidfd != self._own_pidfd

    def _begin_program(self, started: protocol.Started, attempt: Attempt) -> None:
        self.pid, self.start_ticks = started.pid, started.start_ticks
        self.pidfd, *stdout = self.link.pop_fds(2 if has_stdout(attempt.order) else 1)
        for descriptor in stdout:
            self.written.insert(1, pipe := Pipe(descriptor, self._handle_stdout))  # before stderr, which has the reason
            pipe.resume()
        attempt.started()
        if attempt.is_terminating:  # the SIGTERM was sent to the worker
            process.signal_group(self.pidfd, self.pid, signal.SIGTERM)

    def _handle_stdout(self, data: bytes) -> None:
        self._stdout_tail = (self._stdout_tail + data)[-2 * protocol.SMALL_LIMIT :]
        self._running.handle_output(data, STDOUT)

    def _forget_program(self) -> None:
        """Become the backend of the worker process itself again."""
        if self._has_program:
            os.close(self.pidfd)
        (self.pid, self.start_ticks), self.pidfd = self._own, self._own_pidfd
        for stdout in self.written[1:-1]:
            stdout.close()
        del self.written[1:-1]
        self._stdout_tail = b""

    def subject(self, line: str | None) -> UsageSubject:
        """Return the processes to inspect."""
        return msgspec.structs.replace(super().subject(line), worker=self._own[0] if self._has_program else None)

    def close_stdout(self) -> None:
        """Close the pipe that is the stdout of a command."""
        self._is_reusable = False
        self.written[1].close()

    def command_result(self) -> str | None:
        """Return the result of a command, as JSON. Raises ResultError."""
        return read_result(self._running.order, self._stdout_tail)

    def kill(self, reason: str) -> None:
        """End the task, then a worker that does not report its end."""
        super().kill(reason)
        if self._has_program and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EXIT_SECONDS, self.kill_at_once)

    def kill_at_once(self) -> list[int]:
        """SIGKILL it and its program without a report. Returns their pidfds, to wait for, unless they are closed."""
        if not self._has_program:
            return super().kill_at_once()
        process.signal_group(self._own_pidfd, self._own[0], signal.SIGKILL)  # first: else it reports the kill below
        return [*super().kill_at_once(), self.pidfd]

    def release(self) -> None:
        """Take the next attempt, or end."""
        folder = self._running.order.folder
        if self._running.order.spec.kind == "command":
            self._forget_program()
        self.attempt, checked, self._checked = None, self._checked, None
        if checked is None or self.gone.done():
            if folder:
                shutil.rmtree(folder, ignore_errors=True)  # else the worker does, and the event loop waits for no disk
            self.retire()
            return
        self._cpu_us = checked
        self._pool.on_free(self)

    # --- The end ------------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """End it in order: it runs its exit functions. ``exited`` follows."""
        self.link.close()
        if self._timer is None and not self.gone.done():
            self._timer = asyncio.get_running_loop().call_later(EXIT_SECONDS, self.kill_at_once)

    def exited(self, exited: protocol.Exited) -> None:
        """End the attempt of the reaped worker."""
        self.gone.set_result(None)
        if self.attempt is not None:
            super().exited(self._share_of(exited))
        self._close()

    def lose(self, why: str, *, is_blameless: bool) -> None:
        """End its attempt as LOST: the zygote is gone, and the worker with it."""
        self.gone.set_result(None)
        if self.attempt is not None:
            super().lose(why, is_blameless=is_blameless)
        self._close()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.close()


class WorkerPool:
    """The workers of one flow. ``idle_max``: more of them do not wait for attempts.

    ``on_retired(payload)``: an attempt left something behind in a worker, which ends; reported once for each task and
    finding.
    """

    def __init__(self, *, on_retired: Callable[[ExecutorChanged], object], idle_max: int) -> None:
        self._on_retired = on_retired
        self._idle_max = idle_max
        self._idle: dict[Worker, float] = {}  # since when, the latest one last: it has the warmest caches
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_retired = False
        self._reported: set[tuple[str, str]] = set()

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def start_at_once(self, order: AttemptOrder, listener: AttemptListener) -> Attempt | None:
        """Run an attempt in an idle worker; None: there is none."""
        while self._idle:
            worker, _ = self._idle.popitem()
            if worker.can_start:
                return worker.start(order, listener)
        return None

    @property
    def idle_count(self) -> int:
        """Workers that wait for an attempt."""
        return len(self._idle)

    def on_free(self, worker: Worker) -> None:
        """The attempt of a worker was a clean success."""
        if self._is_retired or len(self._idle) >= self._idle_max:
            worker.retire()
            return
        loop = asyncio.get_running_loop()
        self._idle[worker] = loop.time()
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(IDLE_SECONDS, self._retire_idle)

    def on_findings(self, worker: Worker, task: str, findings: list[str]) -> None:
        """An attempt left something behind in a worker, which ends. ``task``: whose function it has called."""
        new = [finding for finding in findings if (task, re.sub(r"\d+", "", finding)) not in self._reported]
        self._reported.update((task, re.sub(r"\d+", "", finding)) for finding in new)
        if new:
            how = f"task {task!r} {', '.join(new)}"
            self._on_retired(ExecutorChanged(ExecutorChange.WORKER_RETIRED, pid=worker.pid, how=how))

    # --- The end ------------------------------------------------------------------------------------------------------

    def _retire_idle(self) -> None:
        now = asyncio.get_running_loop().time()
        self._idle_timer = None
        for worker, since in list(self._idle.items()):
            if now - since >= IDLE_SECONDS:
                self._retire(worker)
        if self._idle:
            oldest = next(iter(self._idle.values()))
            self._idle_timer = asyncio.get_running_loop().call_at(oldest + IDLE_SECONDS, self._retire_idle)

    def _retire(self, worker: Worker) -> None:
        del self._idle[worker]
        worker.retire()

    def retire(self) -> None:
        """Take no new attempts: workers end when their attempt has ended."""
        self._is_retired = True
        for worker in list(self._idle):
            self._retire(worker)

    async def close(self) -> None:
        """End the idle workers in order, so that their exit functions run."""
        leaving = [worker.gone for worker in self._idle]
        self.retire()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if leaving:
            await asyncio.wait(leaving, timeout=END_SECONDS)
