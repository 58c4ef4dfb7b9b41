"""The executor's end of one thread host: starts attempts, tracks leaked threads, and finds who ended the host."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence

from .. import kill, process, protocol
from ..attempt import AttemptListener, RunnerContext
from ..frame_socket import FrameSocket
from ..hang import stack
from ..pipes import Pipe, StackPipe
from ..protocol import AttemptOrder
from .attempt import HostView, ThreadAttempt


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
        on_output: Callable[[bytes], None],
    ) -> None:
        self.pid = started.pid
        self.is_retired = False  # takes no new attempts
        self.is_killed_by_rule = False  # killed by the rules of ``pool.py``
        self.leaked: dict[int, str] = {}  # number -> task, of threads that ignored their cancel token and still run
        self.attempts: dict[int, ThreadAttempt] = {}  # by number, leaked ones included
        self._pidfd, control, output, stack_fd = fds
        self._shared = shared
        self._oom_mark = shared.oom.mark()
        self._ignored = ""  # tasks whose leaked threads it was killed for
        self._on_change = on_change
        self._is_over = False
        self._output = Pipe(output, on_output)
        self._stack = StackPipe(stack_fd)
        self._link = FrameSocket(socket.socket(fileno=control), self._on_payload, on_gone)
        self._view = HostView(
            pid=started.pid,
            start_ticks=started.start_ticks,
            link=self._link,
            cancel=lambda number: self._link.send(protocol.CancelThread(number)),
            dump_stacks=self._dump_stacks,
            on_leak=self._leak,
            on_gone=self._forget,
        )

    # --- Attempts -----------------------------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """Whether the host keeps up with its requests."""
        return self._link.is_writable

    async def wait_writable(self) -> None:
        """Wait until the host keeps up with its requests, or is gone."""
        await self._link.wait_writable()

    def start(self, number: int, order: AttemptOrder, listener: AttemptListener) -> ThreadAttempt:
        """Run an attempt in a new thread."""
        self._link.send_soon(protocol.StartThread(number, order))
        attempt = ThreadAttempt(number, order, listener, self._shared, self._view)
        self.attempts[number] = attempt
        return attempt

    def _on_payload(self, payload: bytes) -> None:
        report = protocol.decode_host_report(payload)
        attempt = self.attempts.get(report.number)
        match report:
            case protocol.ThreadOutput():
                (fd,) = self._link.pop_fds(1)
                if attempt is not None:
                    attempt.open_output(fd)
                else:
                    os.close(fd)
            case protocol.FromThread(_, frame) if attempt is not None:
                attempt.handle(frame)
            case protocol.ThreadEnded() if attempt is not None:
                attempt.thread_ended()

    async def _dump_stacks(self) -> str:
        """Request the stacks of the host's main thread first: a signal that reads frames of running threads can crash.

        The main thread does not respond while C code holds the GIL; then no thread runs, and the signal is safe.
        """
        dump = await self._stack.collect(self._request_stacks)
        if dump:
            return dump
        return await self._stack.collect(lambda: kill.signal_process(self._pidfd, process.STACK_SIGNAL))

    def _request_stacks(self) -> bool:
        self._link.send(protocol.DumpThreads())
        return True

    @property
    def healthy_count(self) -> int:
        """How many attempts in this host have not leaked."""
        return len(self.attempts) - len(self.leaked)

    def _leak(self, number: int) -> None:
        self.leaked[number] = self.attempts[number].order.task
        self._on_change()

    def _forget(self, number: int) -> None:
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
        process.signal_group(self._pidfd, self.pid, signal.SIGKILL)
        return self._pidfd

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

    def mark_lost(self, why: str) -> None:
        """Settle all attempts as LOST: the zygote is gone, and the host with it."""
        self._is_over = True
        self._drain()
        for attempt in list(self.attempts.values()):
            attempt.lost_host(why, is_blameless=False)
        self._close()

    def _drain(self) -> None:
        self._link.drain()  # a result that was sent stands
        for attempt in list(self.attempts.values()):
            attempt.drain_output()
        self._output.drain()
        self._stack.pipe.drain()

    def _close(self) -> None:
        self.is_retired = True
        self._link.close()
        self._output.close()
        self._stack.pipe.close()
        os.close(self._pidfd)


def _crashed_attempt(inside: Sequence[ThreadAttempt], dump: str) -> ThreadAttempt | None:
    """Return the attempt that called ``os._exit``, crashed, or was alone in the host; None if unknown."""
    crashed = stack.crashed_thread(dump)
    for attempt in inside:
        if attempt.exit_code is not None or (crashed is not None and attempt.ident == crashed):
            return attempt
    return inside[0] if len(inside) == 1 else None
