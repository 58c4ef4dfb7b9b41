"""The thread host: one long-lived process in which tasks with ``isolation="thread"`` run, a thread for each attempt.

A thread costs no fork and cannot be killed: it is cancelled through its token (SPEC 000, strategy B). It shares its
environment and working folder with its neighbours, and dies with them.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import NoReturn

from ..core.outcome import Outcome
from ..errors import TransientError
from . import own_stack, protocol
from .call import call_task, outcome_of_error
from .child import Channels, FlowFacts, FreshImport, OutputStream, detach, forward_retries, reseed, run_coroutine

RECEIVE_BYTES = 64 * 1024

#: Sent to everybody by a terminal or a service manager. The host lives as long as the executor wants it to; a handler
#: and not "ignored", because the programs that its tasks start would inherit that.
_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_exit = os._exit


class CancelToken:
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
        """Also call ``loop_cancel`` when the token is set, or at once if it is; None: no longer."""
        with self._lock:
            self._loop_cancel = loop_cancel
            if loop_cancel is not None and self.event.is_set():
                loop_cancel()


class _Reports:
    """Sends frames of all threads to the executor, which receives many of them at once when it is busy."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def send(self, *frames: protocol.FromThread, fd: int | None = None) -> None:
        """Send frames, and a descriptor with them. In a process that a task forked it does nothing.

        Raises OSError if the executor is gone.
        """
        if os.getpid() != self._pid:
            return  # also, the lock may have been held at the fork
        data = b"".join(map(protocol.encode, frames))
        with self._lock:
            sent = self._control.send(data) if fd is None else socket.send_fds(self._control, [data], [fd])
            if sent < len(data):
                self._control.sendall(data[sent:])


class _TaskThread:
    """An attempt in its thread."""

    def __init__(
        self, start: protocol.Start, facts: FlowFacts, reports: _Reports, threads: dict[int, _TaskThread]
    ) -> None:
        self.token = CancelToken()
        self._number = start.number
        self._order = protocol.decode_order(start.order)
        self._facts = facts
        self._reports = reports
        self._threads = threads
        self._output: int | None = None  # a pipe, once something is written
        self._pid = os.getpid()

    def start(self, on_done: Callable[[], object]) -> None:
        """Start the thread. If the machine has none left, the attempt fails, and is tried again."""
        thread = threading.Thread(target=self._run, args=(on_done,), name=self._order.task, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            refused = TransientError(f"its thread could not be started: {error}")
            self._end(outcome_of_error(refused, self._facts.failure_maker(self._order)))
            on_done()

    def _run(self, on_done: Callable[[], object]) -> None:
        ident = threading.get_ident()
        self._threads[ident] = self
        try:
            self.send(protocol.TaskBegan(time.monotonic(), ident, threading.get_native_id()))
            outcome = self._outcome()
            if os.getpid() != self._pid:  # a process that the task forked has returned from the function
                os._exit(0)
            self._end(outcome)
        except OSError:
            return  # the executor is gone
        finally:
            del self._threads[ident]
            on_done()

    def _end(self, outcome: Outcome) -> None:
        if self._output is not None:
            os.close(self._output)
        frames = (protocol.Ended(outcome), protocol.ThreadEnded())
        self._reports.send(*(protocol.FromThread(self._number, frame) for frame in frames))

    def send(self, frame: protocol.ThreadFrame, fd: int | None = None) -> None:
        """Send a frame to the executor, and a descriptor with it. Raises OSError if it is gone."""
        self._reports.send(protocol.FromThread(self._number, frame), fd=fd)

    def write(self, data: bytes) -> None:
        protocol.write_all(self.open_output(), data)

    def open_output(self) -> int:
        """Return the pipe for the output. Most attempts write none, so it is made when it is needed."""
        if self._output is None:
            read_end, self._output = os.pipe()
            try:
                self.send(protocol.ThreadOutput(), read_end)
            finally:
                os.close(read_end)
        return self._output

    def _outcome(self) -> Outcome:
        make_failure, is_cancelled = self._facts.failure_maker(self._order), self.token.event.is_set
        try:
            plan = self._facts.plan(self._order.spec)
            return call_task(self._order, plan, make_failure, self.send, is_cancelled, self._run_coroutine)
        except BaseException as error:
            return outcome_of_error(error, make_failure, is_cancelled=is_cancelled())

    def _run_coroutine(self, coroutine: Coroutine[object, object, object]) -> object:
        return run_coroutine(coroutine, self.token.bind)


class _Host:
    """The main thread: starts attempts and sets cancel tokens."""

    def __init__(self, control: socket.socket, facts: FlowFacts) -> None:
        self._control = control
        self._facts = facts
        self._reader = protocol.FrameReader(protocol.CONTROL_LIMIT)
        self._reports = _Reports(control)
        self._attempts: dict[int, _TaskThread] = {}
        self._threads: dict[int, _TaskThread] = {}  # by ident
        self._divert_output()
        forward_retries(self._retried)
        os.register_at_fork(before=self._open_output)  # the new process cannot ask for it
        os._exit = self._exit

    def run(self) -> None:
        """Serve until the executor closes the socket."""
        while data := self._control.recv(RECEIVE_BYTES):
            for payload in self._reader.feed(data):
                match protocol.decode_host_frame(payload):
                    case protocol.Start() as start:
                        self._start(start)
                    case protocol.CancelThread(number):
                        self._cancel(number)
                    case protocol.DumpThreads():
                        own_stack.write(self._facts.stack_fd, None)

    def _start(self, start: protocol.Start) -> None:
        attempt = _TaskThread(start, self._facts, self._reports, self._threads)
        self._attempts[start.number] = attempt
        attempt.start(on_done=lambda: self._attempts.pop(start.number, None))

    def _divert_output(self) -> None:
        """Let what a task's thread writes go to the pipe of its attempt, also by a stream that the import has kept."""
        for stream in (sys.__stdout__, sys.__stderr__):
            if isinstance(stream, OutputStream):
                stream.divert = self._divert

    def _divert(self, text: str) -> bool:
        attempt = self._threads.get(threading.get_ident())
        if attempt is not None:
            attempt.write(text.encode("utf-8", "backslashreplace"))
        return attempt is not None

    def _open_output(self) -> None:
        attempt = self._threads.get(threading.get_ident())
        if attempt is not None:
            attempt.open_output()

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
        reseed("numpy.random")
        for number in _HANDLED_SIGNALS:
            signal.signal(number, lambda number, frame: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if isinstance(facts.plans, FreshImport):
            facts.plans.preload()  # in the main thread, as many imports require
        os.chdir(facts.folder)
        _Host(socket.socket(fileno=channels.results), facts).run()
    except BaseException:  # no exception may reach the zygote's loop
        traceback.print_exc()
    finally:
        _exit(0)
