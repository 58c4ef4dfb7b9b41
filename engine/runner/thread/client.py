"""The executor's end of one thread host: starts attempts, tracks leaked threads, and finds who ended the host.

A thread can be cancelled, but killed only with its host.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence

from ...core.outcome import Outcome
from ...domain.event_payloads import AttemptLeaked
from ...errors import StateFileError
from .. import kill, process, protocol
from ..attempt import Attempt, RunnerContext
from ..frame_socket import FrameSocket
from ..hang import stack
from ..hang.autopsy import Subject
from ..listener import AttemptListener
from ..outcome_of_exit import Force, lost, outcome_of
from ..pipes import DrainedPipe, Pipe, StackPipe
from ..protocol import AttemptOrder

HOST_EXIT_SECONDS = 5.0  # how long a pipe that closed without a result waits for the exit of the host


class ThreadHost:
    """One host process and the attempts in it.

    ``on_change()``: a thread has leaked or ended. ``on_gone()``: the connection is closed. The zygote reports the exit
    of the process (``exited``).
    """

    def __init__(
        self,
        started: protocol.Started,
        fds: list[int],
        shared: RunnerContext,
        *,
        on_change: Callable[[], None],
        on_gone: Callable[[], None],
    ) -> None:
        self.pid = started.pid
        self.start_ticks = started.start_ticks
        self.is_retired = False  # takes no new attempts
        self.is_killed_by_rule = False  # killed by the rules of ``pool.py``
        self.leaked: dict[int, str] = {}  # number -> task, of threads that ignored their cancel token and still run
        self.attempts: dict[int, ThreadAttempt] = {}  # by number, leaked ones included
        self.pidfd, control, output, stack_fd = fds
        self._shared = shared
        self._oom_mark = shared.oom.mark()
        self._ignored = ""  # tasks whose leaked threads it was killed for
        self._on_change = on_change
        self._is_over = False
        self._output = Pipe(output, lambda data: None)  # of no attempt
        self._stack = StackPipe(stack_fd)
        self.link = FrameSocket(socket.socket(fileno=control), self._on_payload, on_gone)

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def start(self, number: int, order: AttemptOrder, listener: AttemptListener) -> ThreadAttempt:
        """Run an attempt in a new thread."""
        self.link.send_soon(protocol.StartThread(number, order))
        attempt = ThreadAttempt(number, order, listener, self._shared, self)
        self.attempts[number] = attempt
        return attempt

    def _on_payload(self, payload: bytes) -> None:
        report = protocol.decode_host_report(payload)
        attempt = self.attempts.get(report.number)
        match report:
            case protocol.ThreadOutput():
                (fd,) = self.link.pop_fds(1)
                if attempt is not None:
                    attempt.open_output(fd)
                else:
                    os.close(fd)
            case protocol.FromThread(_, frame) if attempt is not None:
                attempt.handle(frame)
            case protocol.ThreadEnded() if attempt is not None:
                attempt.thread_ended()

    def cancel(self, number: int) -> None:
        """Set the cancel token of an attempt."""
        self.link.send(protocol.CancelThread(number))

    async def dump_stacks(self) -> str:
        """Request the stacks of the host's main thread first: a signal that reads frames of running threads can crash.

        The main thread does not respond while C code holds the GIL; then no thread runs, and the signal is safe.
        """
        dump = await self._stack.collect(self._request_stacks)
        if dump:
            return dump
        return await self._stack.collect(lambda: kill.signal_process(self.pidfd, process.STACK_SIGNAL))

    def _request_stacks(self) -> bool:
        self.link.send(protocol.DumpThreads())
        return True

    @property
    def healthy_count(self) -> int:
        """How many attempts in this host have not leaked."""
        return len(self.attempts) - len(self.leaked)

    def leak(self, number: int) -> None:
        """Count an attempt as leaked, whose thread ignores its cancel token."""
        self.leaked[number] = self.attempts[number].order.task
        self._on_change()

    def forget(self, number: int) -> None:
        """Remove an attempt whose thread has ended; a leaked one frees its slot."""
        self.attempts.pop(number, None)
        self.leaked.pop(number, None)
        if not self._is_over:
            self._on_change()

    # --- The end ------------------------------------------------------------------------------------------------------

    def kill_by_rule(self) -> None:
        """Kill the host by the rules of ``pool.py``, with all its threads. ``exited`` follows."""
        self.is_retired = self.is_killed_by_rule = True
        self._ignored = ", ".join(map(repr, self.leaked.values()))
        self.kill()

    def kill(self) -> int:
        """SIGKILL the host; ``exited`` follows while the zygote lives. Returns the pidfd, to wait for."""
        process.signal_group(self.pidfd, self.pid, signal.SIGKILL)
        return self.pidfd

    def exited(self, exited: protocol.Exited) -> None:
        """Settle all attempts of the dead host; the one that ended it is blamed."""
        self._is_over = True
        inside = list(self.attempts.values())
        self._drain()
        dump = self._stack.text() if exited.signal is not None else ""
        killed = exited.signal == signal.SIGKILL and not self.is_killed_by_rule
        out_of_memory = killed and self._shared.oom.explains(self._oom_mark, exited.max_rss_kb)
        was_killed = killed and not out_of_memory  # by a process outside redrive
        crashed = None if self.is_killed_by_rule or was_killed else _crashed_attempt(inside, dump)
        is_known = self.is_killed_by_rule or crashed is not None
        why = self._why(exited, crashed)
        for attempt in list(self.attempts.values()):
            if attempt is crashed:
                attempt.ended_host(exited, dump, out_of_memory)
            else:
                attempt.lost_host(why, is_blameless=is_known)
        self._close()

    def _why(self, exited: protocol.Exited, crashed: ThreadAttempt | None) -> str:
        if self.is_killed_by_rule:
            return f"the process that it shared was ended, because {self._ignored} ignored its cancel token"
        how = f"signal {exited.signal}" if exited.signal is not None else f"exit code {exited.exit_code}"
        if crashed is not None:
            return f"task {crashed.order.task!r} ended the process that they shared ({how})"
        return f"the process in which the tasks with isolation='thread' run died ({how})"

    def mark_lost(self, why: str, *, is_blameless: bool) -> None:
        """Settle all attempts as LOST: the zygote is gone, and the host with it."""
        self._is_over = True
        self._drain()
        for attempt in list(self.attempts.values()):
            attempt.lost_host(why, is_blameless=is_blameless)
        self._close()

    def _drain(self) -> None:
        self.link.drain()  # a result that was sent stands
        for attempt in list(self.attempts.values()):
            attempt.drain_output()
        self._output.drain()
        self._stack.pipe.drain()

    def _close(self) -> None:
        self.is_retired = True
        self.link.close()
        self._output.close()
        self._stack.pipe.close()
        os.close(self.pidfd)


def _crashed_attempt(inside: Sequence[ThreadAttempt], dump: str) -> ThreadAttempt | None:
    """Return the attempt that called ``os._exit``, crashed, or was alone in the host; None if unknown."""
    crashed = stack.crashed_thread(dump)
    for attempt in inside:
        if attempt.exit_code is not None or (crashed is not None and attempt.ident == crashed):
            return attempt
    return inside[0] if len(inside) == 1 else None


class ThreadAttempt(Attempt):
    """An attempt in a thread of the host.

    At the deadline its cancel token is set. If it does not end within the grace period, it is reported as leaked and
    the attempt ends; its slot stays taken until the thread ends or its host is killed (``pool.py``).
    """

    def __init__(
        self, number: int, order: AttemptOrder, listener: AttemptListener, shared: RunnerContext, host: ThreadHost
    ) -> None:
        super().__init__(number, order, listener, shared, asyncio.get_running_loop().time())
        self.pid = host.pid
        self.ident: int | None = None  # identifies the thread in a dump of all stacks
        self._native = 0
        self._host = host
        self._leaked = False
        self._exit_timer: asyncio.TimerHandle | None = None
        self._results = host.link
        self._output = DrainedPipe()
        self._is_paused = False
        self._arm()
        listener.started(host.pid, host.start_ticks)

    def handle(self, frame: protocol.AttemptFrame) -> None:
        """Handle one frame. One that no event can be made of is ignored."""
        with contextlib.suppress(StateFileError):
            self._handle_frame(frame)

    def open_output(self, fd: int) -> None:
        """Read the output of the thread from now on."""
        if self._done.done():
            os.close(fd)
            return
        self._output = Pipe(fd, self.handle_output)
        if self._is_paused:
            self._output.pause()

    def pause_output(self) -> None:
        """Stop reading the output of the thread, and the frames of all threads of the host."""
        self._is_paused = True
        super().pause_output()

    def resume_output(self) -> None:
        """Read them again."""
        self._is_paused = False
        super().resume_output()

    def _handle_task_began(self, began: protocol.TaskBegan) -> None:
        super()._handle_task_began(began)
        self.ident, self._native = began.ident, began.native

    @property
    def _subject(self) -> Subject:
        """Only the thread of this attempt, once it is known; not its neighbours in the process."""
        return Subject(self.pid, self._native, f"task {self.order.task}") if self._native else Subject(0)

    async def dump_stack(self) -> str:
        """Return the stack of the thread."""
        dump = await self._host.dump_stacks()
        return stack.without_engine(dump if self.ident is None else stack.of_thread(dump, self.ident))

    # --- The escalation -----------------------------------------------------------------------------------------------

    async def _escalate(self, reason: str) -> None:
        seen = await self._inspected()
        self._results.drain()
        if self._ending is not None or self._done.done():
            return
        self._emit_stack(seen)
        self._force_applied = self._force_requested
        self._host.cancel(self.number)
        if not await self._ended_within(self.order.spec.grace_seconds):
            self._leak(reason)

    def _leak(self, reason: str) -> None:
        """End the attempt while its thread runs on. The host reports the end of the thread (``thread_ended``)."""
        self._leaked = True
        self._listener.step(AttemptLeaked(reason))
        self._finish(self._outcome())
        self._host.leak(self.number)

    # --- The end ------------------------------------------------------------------------------------------------------

    def _on_ending(self, in_time: bool) -> None:
        """Settle now: the thread has nothing more to say."""
        self._output.drain()
        self._finish(self._outcome())
        self._release()

    def _on_results_closed(self) -> None:
        """Nothing: the link belongs to the host."""

    def thread_ended(self) -> None:
        """Free the slot. Without a final frame, either the host is dying and its exit decides, or sending failed."""
        if self._done.done():
            self._release()
        elif self._exit_timer is None:
            self._exit_timer = self._loop.call_later(HOST_EXIT_SECONDS, self._on_exit_timeout)

    def _on_exit_timeout(self) -> None:
        self._output.drain()
        self._finish(self._outcome())
        self._release()

    def drain_output(self) -> None:
        """Read what was written before the host died."""
        if not self._done.done():
            self._output.drain()

    def ended_host(self, exited: protocol.Exited, dump: str, out_of_memory: bool) -> None:
        """Settle the attempt whose thread ended the host."""
        if dump and not self._stack:
            self._stack = stack.without_engine(dump if self.ident is None else stack.of_thread(dump, self.ident))
        usage = {
            **self._usage(),
            "exit_code": exited.exit_code,
            "signal": exited.signal,
            "max_rss_kb": exited.max_rss_kb,
        }
        self._end_with_host(outcome_of(self._evidence(usage, exited, out_of_memory=out_of_memory)))

    def lost_host(self, why: str, *, is_blameless: bool) -> None:
        """Settle an attempt whose thread died with the host."""
        is_forced = self._force_applied is not Force.NONE
        self._end_with_host(self._outcome() if is_forced else lost(why, self._usage(), is_blameless=is_blameless))

    def _end_with_host(self, outcome: Outcome) -> None:
        if not self._done.done():
            self._finish(outcome)
        self._release()

    def _outcome(self) -> Outcome:
        if self._ending is None and self._force_applied is Force.NONE:
            return lost("its thread ended without sending a result", self._usage())
        return outcome_of(self._evidence(self._usage()))

    def _finish(self, outcome: Outcome) -> None:
        if self._exit_timer is not None:
            self._exit_timer.cancel()
        super()._finish(outcome)

    def _release(self) -> None:
        self._host.forget(self.number)

    def _usage(self) -> dict[str, object]:
        return {"duration_us": round((self._loop.time() - self._started_at) * 1e6)}
