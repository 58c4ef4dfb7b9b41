"""The executor's side of attempts in threads (``isolation="thread"``): for many tasks that mostly wait.

A thread can be told to end, but killed only with its process, the host, in which other attempts run. At its deadline
the cancel token of a thread is set. If it does not end within the grace, it is reported as leaked and its attempt ends;
its slot stays taken until the thread ends or its host is killed. So, in this order:

1. A host in which a thread has leaked takes no new attempts: the next one that wants a thread gets a new host.
2. It is killed as soon as only leaked threads run in it.
3. It is killed, with the healthy attempts in it, once other tasks have waited ``PATIENCE_SECONDS`` without a break for
   a slot that a leaked thread holds. The healthy attempts are LOST without blame: it counts as no attempt and no loss.

Without the third rule, one healthy attempt that never ends would hold the leaked slots forever.

When the host ends otherwise, the attempt that ended it fails, and the others are LOST without blame. If nobody can know
which one that was, or a process outside redrive killed the host, all are LOST, and it counts for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence

from ..core.failures.attempt_end import KILLED_FROM_OUTSIDE
from ..core.outcome import LostWith
from ..domain.event_payloads import AttemptLeaked, ExecutorChange, ExecutorChanged
from ..errors import StateFileError
from . import process, protocol, stack
from .attempt import Attempt, AttemptBackend, RunnerContext
from .channels import FrameSocket, Pipe
from .forked_process import ForkedProcess, ProcessRequest
from .protocol import AttemptListener, AttemptOrder
from .usage import UsageSubject

HOST_EXIT_SECONDS = 5.0  # how long a thread that ended without a result waits for the exit of the host
PATIENCE_SECONDS = 60.0


class AttemptThread(AttemptBackend):
    """A thread of a host: the backend of one attempt."""

    def __init__(self, number: int, host: ThreadHost) -> None:
        super().__init__(host.pid, host.start_ticks)
        self.number = number
        self.ident: int | None = None  # identifies the thread in a dump of all stacks
        self.exit_code: int | None = None  # announced by ``os._exit``, which ends the host
        self._native = self._ticks = 0  # its id in the kernel; as of a process
        self._host = host
        self._output: Pipe | None = None  # once something is written
        self._is_paused = False
        self._exit_timer: asyncio.TimerHandle | None = None

    @property
    def task(self) -> str:
        return self._running.order.task

    # --- Reports of the host ------------------------------------------------------------------------------------------

    def handle(self, frame: protocol.ThreadFrame) -> None:
        """Handle one frame. One that no event can be made of is ignored."""
        match frame:
            case protocol.Exiting(code):
                self.exit_code = code
                return
            case protocol.ThreadOutput():
                self._open_output(*self._host.link.pop_fds(1))
                return
            case protocol.ThreadEnded():
                self._thread_ended()
                return
            case protocol.TaskBegan(_, ident, native):
                self.ident, self._native = ident, native
        with contextlib.suppress(StateFileError):
            self._running.handle_frame(frame)

    def _open_output(self, fd: int) -> None:
        """Read the output of the thread from now on."""
        if self._running.is_over:
            os.close(fd)
            return
        self._output = Pipe(fd, self._running.handle_output)
        if not self._is_paused:
            self._output.resume()

    def _thread_ended(self) -> None:
        """Free the slot. Without a final frame, either the host is dying and its exit decides, or sending failed."""
        if self._running.is_over:
            self._host.forget(self)
        elif self._exit_timer is None:
            loop = asyncio.get_running_loop()
            self._exit_timer = loop.call_later(
                HOST_EXIT_SECONDS, self._running.lose, "its thread ended without sending a result"
            )

    def host_ended(self, exited: protocol.Exited, dump: str, *, out_of_memory: bool) -> None:
        """End the attempt whose thread ended the host."""
        if not self._running.is_over:
            shown = self._part_of(dump)
            usage = {
                **self._running.duration(),
                "exit_code": exited.exit_code,
                "signal": exited.signal,
                "max_rss_kb": exited.max_rss_kb,
            }
            self._running.end(usage, exited, crash_dump=shown, out_of_memory=out_of_memory)

    # --- As the backend of its attempt --------------------------------------------------------------------------------

    def subject(self, line: str | None) -> UsageSubject:
        """Return the thread, once it is known; not its neighbours in the process."""
        return UsageSubject(self.pid, self._native, line) if self._native else UsageSubject(0)

    async def dump_stack(self) -> str:
        """Return the stack of the thread."""
        self._ticks = process.thread_use(self.pid, self._native)[1]
        return self._part_of(await self._host.dump_stacks())

    async def dump_c_code(self) -> str:
        """Return the stack of the thread: the host does not answer while C code holds the GIL."""
        return stack.without_engine(await self._host.dump_thread(self._native, self._ticks))

    def _part_of(self, dump: str) -> str:
        if not dump:
            return ""
        return stack.without_engine(dump if self.ident is None else stack.of_thread(dump, self.ident))

    def drain(self) -> None:
        """Read the frames of all threads of the host, and the output of this one."""
        self._host.link.drain()
        if self._output is not None:
            self._output.drain()

    def pause(self) -> None:
        """Stop reading the output of the thread, and the frames of all threads of the host."""
        self._is_paused = True
        self._host.link.pause()
        if self._output is not None:
            self._output.pause()

    def resume(self) -> None:
        """Read them again."""
        self._is_paused = False
        self._host.link.resume()
        if self._output is not None:
            self._output.resume()

    def on_reported(self, is_in_time: bool) -> None:
        """End the attempt: the thread has nothing more to say."""
        if self._output is not None:
            self._output.drain()
        self._running.end(self._running.duration())

    def terminate(self, reason: str) -> None:
        """Set the cancel token."""
        self._host.link.send(protocol.CancelThread(self.number))

    def kill(self, reason: str) -> None:
        """End the attempt while its thread runs on. The host reports the end of the thread."""
        self._host.leaked[self.number] = self.task
        self._running.report(AttemptLeaked(reason))
        self._running.end(self._running.duration())
        self._host.apply_rules()

    def has_ended(self) -> bool:
        return self._host.has_ended()

    def release(self) -> None:
        """Free the slot, unless the thread runs on."""
        if self._exit_timer is not None:
            self._exit_timer.cancel()
        if self._output is not None:
            self._output.close()
        if self.number not in self._host.leaked:
            self._host.forget(self)


class ThreadHost(ForkedProcess):
    """A host process and the attempts in it. ``hosts``: those of the same flow, which apply the rules to it."""

    def __init__(self, started: protocol.Started, fds: list[int], shared: RunnerContext, hosts: ThreadHosts) -> None:
        self.is_retired = False  # takes no new attempts
        self.is_killed_by_rule = False
        self.threads: dict[int, AttemptThread] = {}  # by number, leaked ones included
        self.leaked: dict[int, str] = {}  # number -> task, of threads that ignored their cancel token and still run
        self._shared = shared
        self._oom_mark = shared.oom.mark()
        self._ignored = ""  # tasks whose leaked threads it was killed for
        self._hosts = hosts
        self._is_over = False
        super().__init__(started, fds, self._open_link)

    def _open_link(self, fd: int) -> FrameSocket:
        self.link = FrameSocket(socket.socket(fileno=fd), self._on_payload, lambda: self._hosts.on_gone(self))
        return self.link

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def start(self, number: int, order: AttemptOrder, listener: AttemptListener) -> Attempt:
        """Run an attempt in a new thread."""
        self.link.send_soon(protocol.Start(number, protocol.encode_order(order)))
        thread = self.threads[number] = AttemptThread(number, self)
        return Attempt(order, listener, self._shared, thread, asyncio.get_running_loop().time())

    def _on_payload(self, payload: bytes) -> None:
        report = protocol.decode_thread_frame(payload)
        thread = self.threads.get(report.number)
        if thread is not None:
            thread.handle(report.frame)
        elif isinstance(report.frame, protocol.ThreadOutput):
            os.close(*self.link.pop_fds(1))

    async def dump_stacks(self) -> str:
        """Return the stacks of all threads."""
        return await self.stack.collect(self._request_stacks)

    def _request_stacks(self) -> bool:
        self.link.send(protocol.DumpThreads())
        return True

    @property
    def healthy_count(self) -> int:
        """The number of attempts in this host that have not leaked."""
        return len(self.threads) - len(self.leaked)

    def forget(self, thread: AttemptThread) -> None:
        """Remove an attempt whose thread has ended; a leaked one frees its slot."""
        self.threads.pop(thread.number, None)
        self.leaked.pop(thread.number, None)
        self.apply_rules()

    def apply_rules(self) -> None:
        """A thread has leaked or ended."""
        if not self._is_over:
            self._hosts.on_change(self)

    # --- The end ------------------------------------------------------------------------------------------------------

    @property
    def attempt_count(self) -> int:
        """The number of attempts that end with it, leaked ones included."""
        return len(self.threads)

    @property
    def is_busy(self) -> bool:
        """Whether an attempt lives in it that has not leaked."""
        return self.healthy_count > 0 and not self.has_ended()

    def kill_by_rule(self) -> None:
        """Kill the host by the rules above, with all its threads. ``exited`` follows."""
        self.is_retired = self.is_killed_by_rule = True
        self._ignored = ", ".join(map(repr, self.leaked.values()))
        self.kill_at_once()

    def exited(self, exited: protocol.Exited) -> None:
        """End all attempts of the dead host; the one that ended it is blamed."""
        self._is_over = True
        inside = list(self.threads.values())
        self.drain()  # a result that was sent stands
        dump = self.stack.text() if exited.signal is not None else ""
        killed = exited.signal == signal.SIGKILL and not self.is_killed_by_rule
        out_of_memory = killed and self._shared.oom.explains(self._oom_mark, exited.max_rss_kb)
        was_killed = killed and not out_of_memory  # by a process outside redrive
        culprit = None if self.is_killed_by_rule or was_killed else _culprit(inside, dump)
        if culprit is not None:
            culprit.drain()
            culprit.host_ended(exited, dump, out_of_memory=out_of_memory)
        is_known = self.is_killed_by_rule or culprit is not None
        why = KILLED_FROM_OUTSIDE if was_killed else self._why(exited, culprit)
        self._end(why, is_blameless=is_known)

    def _why(self, exited: protocol.Exited, culprit: AttemptThread | None) -> str:
        if self.is_killed_by_rule:
            return f"the process that it shared was ended, because {self._ignored} ignored its cancel token"
        how = f"signal {exited.signal}" if exited.signal is not None else f"exit code {exited.exit_code}"
        if culprit is not None:
            return f"task {culprit.task!r} ended the process that they shared ({how})"
        return f"the process in which the tasks with isolation='thread' run died ({how})"

    def lose(self, why: str, *, is_blameless: bool) -> None:
        """End all attempts as LOST: the zygote is gone, and the host with it."""
        self._is_over = True
        self._end(why, is_blameless=is_blameless, lost_with=LostWith.ZYGOTE)

    def _end(self, why: str, *, is_blameless: bool, lost_with: LostWith = LostWith.PROCESS) -> None:
        for thread in list(self.threads.values()):
            assert thread.attempt is not None
            thread.attempt.lose(why, is_blameless=is_blameless, lost_with=lost_with)
        self.threads.clear()
        self.leaked.clear()
        self.is_retired = True
        self.close()
        self._hosts.on_exited(self)


def _culprit(inside: Sequence[AttemptThread], dump: str) -> AttemptThread | None:
    """Return the thread that called ``os._exit``, crashed, or was alone in the host; None if unknown."""
    crashed = stack.crashed_thread(dump)
    for thread in inside:
        if thread.exit_code is not None or (crashed is not None and thread.ident == crashed):
            return thread
    return inside[0] if len(inside) == 1 else None


class ThreadHosts:
    """The host that takes new attempts of a flow, and those that are retired.

    ``request``: asks the zygote for a host.
    ``on_freed()``: a slot that a leaked thread held may be free. ``on_killed(payload)``: a host was killed by the
    rules: its pid, the tasks with leaked threads, and the healthy ones that are lost.
    """

    def __init__(
        self,
        shared: RunnerContext,
        request: Callable[[ProcessRequest], None],
        *,
        on_freed: Callable[[], None],
        on_killed: Callable[[ExecutorChanged], object],
        patience_seconds: float,
    ) -> None:
        self._shared = shared
        self._request = request
        self._on_freed = on_freed
        self._on_killed = on_killed
        self._patience_seconds = patience_seconds
        self._hosts: list[ThreadHost] = []  # all living hosts
        self._current: asyncio.Future[ThreadHost] | None = None
        self._leak_timer: asyncio.TimerHandle | None = None

    # --- Attempts -----------------------------------------------------------------------------------------------------

    def start_at_once(self, number: int, order: AttemptOrder, listener: AttemptListener) -> Attempt | None:
        """Run an attempt in a thread of the current host; None: there is none, or it does not keep up."""
        if self._current is None or not self._current.done() or self._is_over(self._current):
            return None
        host = self._current.result()
        return host.start(number, order, listener) if host.link.is_writable else None

    async def start(self, number: int, order: AttemptOrder, listener: AttemptListener) -> Attempt:
        """Run an attempt in a thread. Raises OSError if no process can be started."""
        while True:
            host = await self._host()
            await host.link.wait_writable()
            if not host.is_retired:
                return host.start(number, order, listener)

    async def _host(self) -> ThreadHost:
        """Return the current host; fork one for the first attempt, and when the last one was retired."""
        if self._current is None or (self._current.done() and self._is_over(self._current)):
            self._current = asyncio.get_running_loop().create_future()
            self._request(self)
        return await asyncio.shield(self._current)

    @staticmethod
    def _is_over(host: asyncio.Future[ThreadHost]) -> bool:
        return host.exception() is not None or host.result().is_retired

    def started(self, started: protocol.Started, fds: list[int]) -> ThreadHost:
        assert self._current is not None
        host = ThreadHost(started, fds, self._shared, self)
        self._hosts.append(host)
        self._current.set_result(host)
        return host

    def failed(self, error: OSError) -> None:
        assert self._current is not None
        self._current.set_exception(error)

    # --- The rules ----------------------------------------------------------------------------------------------------

    @property
    def leaked_slots(self) -> int:
        """Threads that ignored their cancel token and still run."""
        return sum(len(host.leaked) for host in self._hosts)

    def retire(self) -> None:
        """Start no more attempts in the present hosts: each is killed once no healthy attempt runs in it."""
        for host in list(self._hosts):
            host.is_retired = True
            self.on_change(host)

    def set_slot_demand(self, has_demand: bool) -> None:
        """Set whether tasks wait for slots that leaked threads hold."""
        if not has_demand or not self.leaked_slots:
            self._cancel_leak_timer()
        elif self._leak_timer is None:
            loop = asyncio.get_running_loop()
            self._leak_timer = loop.call_later(self._patience_seconds, self._on_leak_timeout)

    def on_change(self, host: ThreadHost) -> None:
        """Apply rules 1 and 2: a thread of the host has leaked or ended."""
        if host.leaked:
            host.is_retired = True
        if host.is_retired and not host.healthy_count and not host.is_killed_by_rule:
            self._kill_by_rule(host)
        self._on_freed()

    def _cancel_leak_timer(self) -> None:
        if self._leak_timer is not None:
            self._leak_timer.cancel()
            self._leak_timer = None

    def _on_leak_timeout(self) -> None:
        """Apply rule 3."""
        self._leak_timer = None
        for host in list(self._hosts):
            if host.leaked and not host.is_killed_by_rule:
                self._kill_by_rule(host)

    def _kill_by_rule(self, host: ThreadHost) -> None:
        leaked = list(host.leaked.values())
        lost = [thread.task for number, thread in host.threads.items() if number not in host.leaked]
        host.kill_by_rule()
        if leaked:
            change = ExecutorChanged(ExecutorChange.THREADS_KILLED, pid=host.pid, leaked=leaked, lost=lost)
            self._on_killed(change)

    # --- The end ------------------------------------------------------------------------------------------------------

    def on_gone(self, host: ThreadHost) -> None:
        """Retire and kill a host whose connection is closed."""
        if not host.is_retired:
            host.is_retired = True
            host.kill_at_once()

    def on_exited(self, host: ThreadHost) -> None:
        self._hosts.remove(host)
        if not self._hosts:
            self._cancel_leak_timer()
        self._on_freed()
