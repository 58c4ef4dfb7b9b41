"""The warm workers of one flow: a free one takes the next attempt, else the zygote forks a new one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from ...domain.event_changes import ExecutorChange
from ...domain.event_payloads import ExecutorChanged
from .. import protocol
from ..attempt import Fork, RunnerContext
from ..listener import AttemptListener
from ..protocol import AttemptOrder
from .client import Worker, WorkerAttempt

IDLE_SECONDS = 60.0  # a worker that had no attempt for so long ends: its memory is worth more than its fork
END_SECONDS = 1.0  # for the exit functions of idle workers, when the flow is closed


class WorkerPool:
    """All living workers. ``idle_max``: more of them do not wait for attempts.

    ``on_retired(payload)``: an attempt left something behind in a worker, which ends; reported once for each task and
    finding.
    """

    def __init__(
        self,
        shared: RunnerContext,
        fork: Fork,
        *,
        on_retired: Callable[[ExecutorChanged], object],
        idle_max: int,
    ) -> None:
        self._shared = shared
        self._fork = fork
        self._on_retired = on_retired
        self._idle_max = idle_max
        self._workers: dict[int, Worker] = {}  # by number
        self._idle: dict[Worker, float] = {}  # since when, the latest one last: it has the warmest caches
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_retired = False
        self._reported: set[tuple[str, str]] = set()

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def start_at_once(self, number: int, order: AttemptOrder, listener: AttemptListener) -> WorkerAttempt | None:
        """Run an attempt in an idle worker; None: there is none."""
        while self._idle:
            worker, _ = self._idle.popitem()
            if worker.can_start:
                return worker.start(number, order, listener)
        return None

    async def start(self, number: int, order: AttemptOrder, listener: AttemptListener) -> WorkerAttempt:
        """Run an attempt in a new worker. Raises OSError if no process can be started."""
        attempts: list[WorkerAttempt] = []

        def begin(started: protocol.Started, fds: list[int]) -> None:
            worker = Worker(
                started,
                fds,
                self._shared,
                on_free=self._on_free,
                on_findings=self._on_findings,
            )
            self._workers[worker.number] = worker
            attempts.append(worker.start(number, order, listener))

        await self._fork(begin)
        return attempts[0]

    @property
    def busy_count(self) -> int:
        """Workers that run an attempt, or whose end is not reported yet."""
        return len(self._workers) - len(self._idle)

    def _on_free(self, worker: Worker) -> None:
        if self._is_retired or len(self._idle) >= self._idle_max:
            worker.retire()
            return
        loop = asyncio.get_running_loop()
        self._idle[worker] = loop.time()
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(IDLE_SECONDS, self._retire_idle)

    def _on_findings(self, worker: Worker, task: str, findings: list[str]) -> None:
        task = re.sub(r"\[\d+\]$", "", task)  # the children of a map task run the same function
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
        self.retire()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        leaving = [worker.gone for worker in self._workers.values() if worker.attempt is None]
        if leaving:
            await asyncio.wait(leaving, timeout=END_SECONDS)

    def exited(self, exited: protocol.Exited) -> bool:
        """Settle the attempt of a reaped process. Returns False if it was no worker."""
        worker = self._workers.pop(exited.number, None)
        if worker is None:
            return False
        self._idle.pop(worker, None)
        worker.exited(exited)
        return True

    def kill(self) -> list[int]:
        """SIGKILL all workers at once, because the zygote is gone. Returns their pidfds, to wait for."""
        return [worker.kill() for worker in self._workers.values()]

    @property
    def busy(self) -> list[Worker]:
        """Workers that run an attempt."""
        return [worker for worker in self._workers.values() if worker.attempt is not None]

    def mark_lost(self, why: str, *, is_blameless: bool) -> None:
        """Settle all attempts as LOST: the zygote is gone, and every worker with it."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        workers, self._workers = list(self._workers.values()), {}
        self._idle.clear()
        for worker in workers:
            worker.mark_lost(why, is_blameless=is_blameless)
