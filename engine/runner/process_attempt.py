"""Attempts that have a process for themselves while they run: signals end them, and their exit settles them.

The escalation: stack, SIGTERM to the process group, grace, SIGKILL to the group and to every descendant, sweep. A
result that arrived before the SIGTERM was sent stands, even in the same instant.
"""

from __future__ import annotations

import os
import shutil
import signal
from abc import abstractmethod
from dataclasses import replace

from ..core.outcome import Outcome
from ..domain.event_payloads import AttemptSigkill, AttemptSigterm, AttemptSwept
from . import command, kill, process, protocol
from .attempt import Attempt, RunnerContext
from .hang import stack
from .listener import AttemptListener
from .outcome_of_exit import Evidence, Force, lost, outcome_of, was_killed
from .pipes import StackPipe
from .protocol import AttemptOrder


class ForkedAttempt(Attempt):
    """An attempt that has a process for itself while it runs: signals end it, and the zygote reports the exit."""

    def __init__(
        self,
        number: int,
        order: AttemptOrder,
        listener: AttemptListener,
        shared: RunnerContext,
        started_at: float,
        pid: int,
        pidfd: int,
        stack_pipe: StackPipe,
    ) -> None:
        super().__init__(number, order, listener, shared, started_at)
        self.pid = pid
        self.pidfd = pidfd
        self._stack_pipe = stack_pipe
        self._oom_mark = shared.oom.mark()
        self._late_exit = False

    # --- The escalation -----------------------------------------------------------------------------------------------

    async def dump_stack(self) -> str:
        """Return the stacks of all threads; empty for a program without a handler: the signal would end it."""
        if not process.catches(self.pid, process.STACK_SIGNAL):
            return ""
        dump = await self._stack_pipe.collect(lambda: kill.signal_process(self.pidfd, process.STACK_SIGNAL))
        return stack.without_engine(dump)

    async def _escalate(self, reason: str) -> None:
        seen = await self._inspected()
        self._results.drain()
        if self._ending is not None or self._done.done():
            return
        self._emit_stack(seen, kernel=self._kernel_view())
        self._terminate(reason)
        if not await self._ended_within(self.order.spec.grace_seconds) and not self._has_exited():
            self._kill(reason)

    def _has_exited(self) -> bool:
        """Whether the process has ended, although the zygote has not reported it yet."""
        return process.has_ended(self.pidfd)

    def _kernel_view(self) -> str | None:
        return process.kernel_view(self.pid)

    def _terminate(self, reason: str) -> None:
        self._force_applied = self._force_requested
        process.signal_group(self.pidfd, self.pid, signal.SIGTERM)
        self._listener.step(AttemptSigterm(reason, self.order.spec.grace_seconds))

    def _kill(self, reason: str) -> None:
        victims = process.descendants(self.pid)
        if not process.signal_group(self.pidfd, self.pid, signal.SIGKILL):
            victims = []  # the pid was reused when they were read, or they are out of reach as well
        process.kill_all(victims)
        self._listener.step(AttemptSigkill(reason, [self.pid, *victims]))

    # --- The end ------------------------------------------------------------------------------------------------------

    def _on_results_closed(self) -> None:
        """Ignore it: the task may have closed the pipe. Only the exit proves the end."""

    def _on_ending(self, in_time: bool) -> None:
        if in_time:
            self._timer = self._loop.call_later(self.order.spec.grace_seconds, self._exit_is_late)

    def _exit_is_late(self) -> None:
        """Kill a process that sent its result but does not exit: a non-daemon thread, or a hanging exit function."""
        if not self._has_exited():
            self._late_exit = True
            self._kill("late exit")

    def exited(self, exited: protocol.Exited) -> None:
        """Settle the attempt: the zygote has reaped its process."""
        for pipe in (self._results, self._output, self._stack_pipe.pipe):
            pipe.drain()
        if exited.signal is not None and not self._stack:
            self._stack = stack.without_engine(self._stack_pipe.text())  # faulthandler wrote the stack of the crash
        if exited.swept:
            self._listener.step(AttemptSwept(exited.swept, exited.survivors))
        output = self._tail.decode("utf-8", "replace") if self.order.spec.kind == "command" else ""
        killed = was_killed(exited.exit_code, exited.signal, output)
        killed = killed and self._force_applied is Force.NONE and not self._late_exit
        evidence = self._evidence(
            self._usage(exited),
            exited,
            out_of_memory=killed and self._shared.oom.explains(self._oom_mark, exited.max_rss_kb),
        )
        self._close(outcome_of(self._completed(evidence)))

    def _completed(self, evidence: Evidence) -> Evidence:
        """Return the evidence with what is known after the exit alone."""
        return evidence

    def _usage(self, exited: protocol.Exited) -> dict[str, object]:
        usage: dict[str, object] = {
            "exit_code": exited.exit_code,
            "signal": exited.signal,
            "max_rss_kb": exited.max_rss_kb,
            "cpu_user_us": exited.cpu_user_us,
            "cpu_system_us": exited.cpu_system_us,
            "duration_us": round((exited.exited_at - self._started_at) * 1e6),
        }
        return {**usage, "late_exit": True} if self._late_exit else usage

    def kill(self) -> int:
        """SIGKILL the process at once, because the zygote is gone. Returns the pidfd, to wait for."""
        process.signal_group(self.pidfd, self.pid, signal.SIGKILL)
        return self.pidfd

    def lost(self, why: str, *, is_blameless: bool = False) -> None:
        """Settle the attempt as LOST, because its zygote is gone. A result that it had sent stands, as does
        an end by force."""
        self._results.drain()
        self._output.drain()
        usage = {"duration_us": round((self._loop.time() - self._started_at) * 1e6)}
        if self._ending is None and self._force_applied is Force.NONE:
            self._close(lost(why, usage, is_blameless=is_blameless))
        else:
            self._close(outcome_of(self._evidence(usage)))

    @abstractmethod
    def _close(self, outcome: Outcome) -> None:
        """Finish, and leave or close the channels of the process."""


class ProcessAttempt(ForkedAttempt):
    """An attempt in a process of its own."""

    def __init__(
        self,
        number: int,
        order: AttemptOrder,
        listener: AttemptListener,
        shared: RunnerContext,
        started: protocol.Started,
        fds: list[int],
    ) -> None:
        pidfd, results, output, stack_fd = fds
        super().__init__(number, order, listener, shared, started.forked_at, started.pid, pidfd, StackPipe(stack_fd))
        self._prints_result = command.prints_result(order.spec)
        self._stdout_tail = b""
        self._open(results, output)
        listener.started(started.pid, started.start_ticks)

    def _handle_results(self, data: bytes) -> None:
        if not self._prints_result:
            super()._handle_results(data)
            return
        self._stdout_tail = (self._stdout_tail + data)[-2 * protocol.RESULT_LIMIT :]
        self.handle_output(data)

    def _completed(self, evidence: Evidence) -> Evidence:
        """Add the result of a command, and remove its folder."""
        if self.order.spec.kind != "command":
            return evidence
        try:
            if evidence.exit_code == 0:
                return replace(evidence, result=command.read_result(self.order, self._stdout_tail))
        except command.ResultError as error:
            return replace(evidence, result_error=str(error))
        finally:
            shutil.rmtree(self.order.folder, ignore_errors=True)
        return evidence

    def _close(self, outcome: Outcome) -> None:
        self._results.close()
        self._stack_pipe.pipe.close()
        os.close(self.pidfd)
        self._finish(outcome)
