"""The thread host: one long-lived process in which tasks with ``isolation="thread"`` run, a thread for each attempt.

A thread costs no fork and cannot be killed: it is cancelled through its token (SPEC 000, strategy B). It shares its
environment and working folder with its neighbours, and dies with them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import NoReturn, TextIO

from ...errors import TaskTerminated
from .. import protocol
from ..call import CallPlan, DescribeError, call, context_for, ending_of_error, ending_of_value
from ..child import Channels, FlowFacts, detach, forward_retries, reset_forked_state
from ..context import Context
from ..per_attempt_import import FreshImport

RECEIVE_BYTES = 64 * 1024
MAX_DESCRIPTORS = 16

#: Sent to everybody by a terminal or a service manager. The host lives as long as the executor wants it to; a handler
#: and not "ignored", because the programs that its tasks start would inherit that.
_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_exit = os._exit


class _CancelToken:
    """The cancel token of one thread."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._loop_cancel: Callable[[], object] | None = None
        self._lock = threading.Lock()

    def set(self) -> None:
        with self._lock:
            self.event.set()
            if self._loop_cancel is not None:
                self._loop_cancel()

    def bind(self, loop_cancel: Callable[[], object] | None) -> None:
        """Also call ``loop_cancel`` when the token is set; None: no longer."""
        with self._lock:
            self._loop_cancel = loop_cancel


class _ThreadOutput:
    """stdout and stderr of the host: output of a task's thread goes to the pipe of its attempt."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, host: TextIO, threads: dict[int, _AttemptThread]) -> None:
        self._host = host
        self._threads = threads

    def write(self, text: str) -> int:
        attempt = self._threads.get(threading.get_ident())
        if attempt is None:
            return self._host.write(text)
        protocol.write_all(attempt.output, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self._host.flush()

    def fileno(self) -> int:
        return self._host.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    @property
    def buffer(self) -> object:
        return self._host.buffer


class _AttemptThread:
    """One attempt in its thread."""

    def __init__(
        self, start: protocol.StartThread, facts: FlowFacts, fds: tuple[int, int], threads: dict[int, _AttemptThread]
    ) -> None:
        self.token = _CancelToken()
        self._order = start.order
        self._facts = facts
        self._results, self.output = fds
        self._threads = threads
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def start(self, on_done: Callable[[], object]) -> None:
        """Start the thread. If that fails, the attempt fails."""
        thread = threading.Thread(target=self._run, args=(on_done,), name=self._order.task, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self.send(ending_of_error(error, self._facts.describer(self._order)))
            self._close()
            on_done()

    def _run(self, on_done: Callable[[], object]) -> None:
        ident = threading.get_ident()
        self._threads[ident] = self
        try:
            self.send(protocol.TaskBegan(time.monotonic(), ident, threading.get_native_id()))
            ending = self._ending()
            if os.getpid() != self._pid:  # a process that the task forked has returned from the function
                os._exit(0)
            self.send(ending)
        except OSError:
            return  # the executor has closed the pipe
        finally:
            del self._threads[ident]
            self._close()
            on_done()

    def _close(self) -> None:
        os.close(self._results)  # tells the executor that the thread has ended
        os.close(self.output)

    def send(self, frame: protocol.Frame) -> None:
        """Send a frame to the executor. In a process that the task forked it does nothing.

        Raises OSError if the executor has closed the pipe.
        """
        if os.getpid() != self._pid:
            return  # also, the lock may have been held at the fork
        data = protocol.encode(frame)
        with self._lock:
            protocol.write_all(self._results, data)

    def _ending(self) -> protocol.Ending:
        describe = self._facts.describer(self._order)
        try:
            return ending_of_value(self._order, self._call(self._facts.plan(self._order.spec), describe))
        except BaseException as error:
            if self.token.event.is_set() and type(error).__name__ == "CancelledError":
                return protocol.Terminated()
            return ending_of_error(error, describe)

    def _call(self, plan: CallPlan, describe: DescribeError) -> object:
        def new_context() -> Context:
            return context_for(self._order, send=self.send, is_cancelled=self.token.event.is_set, describe=describe)

        return call(plan, self._order.task, new_context, self._run_coroutine)

    def _run_coroutine(self, coroutine: Coroutine[object, object, object]) -> object:
        import asyncio

        async def main() -> object:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            self.token.bind(lambda: loop.call_soon_threadsafe(task.cancel))
            try:
                return await coroutine
            finally:
                self.token.bind(None)

        if self.token.event.is_set():
            coroutine.close()
            raise TaskTerminated("cancelled before it began")
        return asyncio.run(main())


class _Host:
    """The main thread: starts attempts and sets cancel tokens."""

    def __init__(self, control: socket.socket, facts: FlowFacts) -> None:
        self._control = control
        self._facts = facts
        self._reader = protocol.FrameReader(protocol.CONTROL_LIMIT)
        self._fds: list[int] = []
        self._attempts: dict[int, _AttemptThread] = {}
        self._threads: dict[int, _AttemptThread] = {}  # by ident
        sys.stdout = _ThreadOutput(sys.stdout, self._threads)
        sys.stderr = _ThreadOutput(sys.stderr, self._threads)
        forward_retries(self._retried)
        os._exit = self._exit

    def run(self) -> None:
        """Serve until the executor closes the socket."""
        while True:
            data, fds, _, _ = socket.recv_fds(self._control, RECEIVE_BYTES, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
            if not data:
                return
            self._fds += fds
            for payload in self._reader.feed(data):
                match protocol.decode_host_frame(payload):
                    case protocol.StartThread() as start:
                        self._start(start)
                    case protocol.CancelThread(number):
                        self._cancel(number)
                    case protocol.DumpThreads():
                        # The main thread holds the GIL here, so no other thread runs while its frames are read.
                        faulthandler.dump_traceback(self._facts.stack_fd, all_threads=True)

    def _start(self, start: protocol.StartThread) -> None:
        fds = self._fds.pop(0), self._fds.pop(0)
        attempt = _AttemptThread(start, self._facts, fds, self._threads)
        self._attempts[start.number] = attempt
        attempt.start(on_done=lambda: self._attempts.pop(start.number, None))

    def _retried(self, data: Mapping[str, object]) -> None:
        attempt = self._threads.get(threading.get_ident())
        if attempt is not None:
            attempt.send(protocol.Retried(dict(data)))

    def _exit(self, status: int) -> NoReturn:
        """Replace ``os._exit``: first report which attempt ends the shared process."""
        attempt = self._threads.get(threading.get_ident())
        try:
            if attempt is not None:
                attempt.send(protocol.Exiting(int(status)))
        finally:
            _exit(status)

    def _cancel(self, number: int) -> None:
        attempt = self._attempts.get(number)
        if attempt is not None:
            attempt.token.set()


def run_host(facts: FlowFacts, channels: Channels, zygote_pid: int) -> NoReturn:
    """Run the forked host to its end. Never returns."""
    try:
        detach(channels, facts.stack_fd, zygote_pid)
        reset_forked_state()
        for number in _HANDLED_SIGNALS:
            signal.signal(number, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if isinstance(facts.plans, FreshImport):
            facts.plans.preload()  # in the main thread, as many imports require
        os.chdir(facts.project_root)
        _Host(socket.socket(fileno=channels.results), facts).run()
    except BaseException:  # no exception may reach the zygote's loop
        traceback.print_exc()
    finally:
        _exit(0)
