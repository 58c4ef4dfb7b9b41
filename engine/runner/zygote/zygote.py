"""The process that forks: a clean, single-threaded interpreter that imported the flow once.

``python -P -m redrive.engine.runner.zygote.zygote SOCKET_FD`` is how the executor starts it; ``serve`` is the same in
a process that was forked from a program which built its flow itself.

``ForkLoop`` forks the attempts. When the executor's end of the socket closes, the zygote kills all
descendants and ends.

If the import leaves threads running, forking is unsafe. Then the zygote re-executes itself, which ends the threads,
and each process of attempts imports the flow itself (``child.py``).
"""

from __future__ import annotations

import faulthandler
import gc
import io
import math
import os
import select
import signal
import socket
import sys
import time
import traceback
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

import msgspec

from ...core.spec import decode_flow_spec
from ...domain.liveness import LEASE_SECONDS
from ...statefile.processes import EXECUTOR_VARIABLE, start_ticks
from .. import own_stack, process, protocol
from ..child import Channels, FlowFacts, OutputStream, flush, reset_exit_functions, run_attempt
from ..command import attempts_folder, inherited
from .flow_import import Loader, facts_after_restart, open_flow

END_SECONDS = 5.0

#: Blocked in the zygote, and unblocked in an attempt once it can handle them. None of them may end the zygote, which
#: lives as long as the executor's socket. A fork does not copy pending signals. They are blocked before the import,
#: because a thread that the import starts would otherwise receive them.
_BLOCKED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ProcessOrigin(msgspec.Struct, frozen=True):
    """The environment and folder of the zygote before the import."""

    environment: Mapping[str, str]
    folder: str | None  # None: it was removed

    @classmethod
    def current(cls) -> ProcessOrigin:
        """Read the environment and the folder of this process."""
        try:
            return cls(dict(os.environ), os.getcwd())
        except OSError:
            return cls(dict(os.environ), None)

    def reexecute(self, control: socket.socket, state: protocol.RestartState) -> NoReturn:
        """Execute the zygote again. Pid, children and blocked signals stay. Raises OSError."""
        memory = os.memfd_create("redrive", 0)  # inherited
        protocol.write_all(memory, protocol.encode(state))
        control.set_inheritable(True)
        if self.folder is not None:
            os.chdir(self.folder)
        words = [sys.executable, "-P", "-m", f"{__package__}.zygote", str(control.fileno()), str(memory)]
        os.execve(sys.executable, words, dict(self.environment))


def serve(
    control: socket.socket, load: Loader, *, origin: ProcessOrigin | None = None, warnings: Sequence[str] = ()
) -> NoReturn:
    """Open the flow that the first frame names, fork attempts until the executor is gone, and end.

    ``origin``: for a re-execution if the import leaves threads; ``warnings``: known before the import.
    """

    def work() -> bool:
        reader = protocol.FrameReader(protocol.CONTROL_LIMIT)
        loop = _open(control, reader, load, origin, warnings)
        return loop is not None and _fork_attempts(loop)

    _run_to_end(work)


def _open(
    control: socket.socket,
    reader: protocol.FrameReader,
    load: Loader,
    origin: ProcessOrigin | None,
    warnings: Sequence[str],
) -> ForkLoop | None:
    """Import the flow and answer. None: that failed.

    A function of its own, because the answer has the specs of all tasks, and must be gone before the first fork.
    """
    request = receive_open(control, reader)
    imported = open_flow(request, load)
    if isinstance(imported, protocol.OpenFailed):
        control.sendall(protocol.encode(imported))
        return None
    response = msgspec.structs.replace(imported.response, warnings=[*warnings, *imported.response.warnings])
    if imported.left_threads and origin is not None:
        response = msgspec.structs.replace(response, imports_per_process=True)
        from ...flow.loading import read_sources  # here, because each fork would copy what it imports

        sources = request.sources or read_sources(decode_flow_spec(response.spec).sources)
        origin.reexecute(control, protocol.RestartState(request, response, sources))
    loop = _answer(control, reader, imported.facts, request, response)
    if imported.uses_collector:
        gc.enable()
    return loop


def _answer(
    control: socket.socket,
    reader: protocol.FrameReader,
    facts: FlowFacts,
    request: protocol.Open,
    response: protocol.FlowOpened,
) -> ForkLoop:
    _install_signal_handlers(facts)
    reset_exit_functions()  # before the answer: with it the executor reads what was printed
    loop = ForkLoop(control, facts, reader, is_remote=bool(request.sources))
    control.sendall(protocol.encode(response))
    return loop


def serve_restarted(control: socket.socket, load: Loader, state: protocol.RestartState) -> NoReturn:
    """Serve after a re-execution: each process of attempts imports the flow, this process never does."""
    reader = protocol.FrameReader(protocol.CONTROL_LIMIT)

    def work() -> bool:
        facts = facts_after_restart(state, load)
        return _fork_attempts(_answer(control, reader, facts, state.request, state.opened))

    _run_to_end(work)


def _read_restart_state(memory: int) -> protocol.RestartState:
    """Read the state that ``reexecute`` wrote."""
    with os.fdopen(memory, "rb") as file:
        file.seek(0)
        (payload,) = protocol.FrameReader(protocol.CONTROL_LIMIT).feed(file.read())
    return protocol.decode_restart_state(payload)


def _run_to_end(work: Callable[[], bool]) -> NoReturn:
    """Run ``work``, then end this process by ``os._exit``: the interpreter would join threads.

    ``work`` returns whether commands may have left files.
    """
    executor_id, has_files = os.environ.get(EXECUTOR_VARIABLE, ""), False
    try:
        process.become_subreaper()
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        has_files = work()
    except (ExecutorGone, BrokenPipeError, ConnectionResetError):
        pass  # the executor is gone: no report
    except BaseException:
        traceback.print_exc()
    finally:
        process.kill_descendants(END_SECONDS)
        if has_files:
            import shutil  # here: a flow with commands has imported it, and no other needs it

            shutil.rmtree(attempts_folder(executor_id, os.getpid()), ignore_errors=True)
        flush()
        os._exit(0)


def _fork_attempts(loop: ForkLoop) -> bool:
    """Fork attempts until the executor is gone, and return whether commands may have left files."""
    if loop.has_commands:
        inherited.cache_clear()  # of the zygote that has forked the attempt whose task runs this executor
        inherited()
    gc.collect()
    gc.freeze()  # a collection in an attempt would write to every object, and so copy all memory
    process.collapse_heap()
    loop.run()
    return loop.has_commands


def _install_signal_handlers(facts: FlowFacts) -> None:
    """Install the handlers of attempts, which inherit them and only unblock the signals."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, facts.termination.handle)
    faulthandler.enable(file=facts.stack_fd, all_threads=True)
    own_stack.write_on_signal(facts.stack_fd)


def receive_open(control: socket.socket, reader: protocol.FrameReader) -> protocol.Open:
    """Wait for the first frame, which names the flow. Raises ExecutorGone."""
    while True:
        data = control.recv(RECEIVE_BYTES)
        if not data:
            raise ExecutorGone
        for payload in reader.feed(data):
            frame = protocol.decode_executor_frame(payload)
            if not isinstance(frame, protocol.Open):
                raise protocol.ProtocolError(f"the first frame is {type(frame).__name__}, not Open")
            return frame


def reset_streams() -> None:
    """Make stdout and stderr line-buffered UTF-8 with backslash escapes, so that output of a hung task is complete."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(fd, "w", closefd=False)
        stream = OutputStream(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def main(arguments: list[str]) -> None:
    """Run the zygote: the entry point of the process that the executor starts."""
    from ...flow import loading, source  # noqa: F401

    source.ignore_imported_modules()
    reset_streams()
    descriptor, *memory = (int(argument) for argument in arguments[1:])
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    serve_file(control, memory)


def serve_file(control: socket.socket, memory: Sequence[int] = ()) -> NoReturn:
    """Serve a flow in a file. ``memory``: the descriptor with the state, after a re-execution."""
    from ...flow.loading import load_flow

    own_stack.write_on_signal(2)  # shows where an import hangs
    if memory:
        serve_restarted(control, load_flow, _read_restart_state(memory[0]))
    serve(control, load_flow, origin=ProcessOrigin.current())


# --- The event loop of the zygote ------------------------------------------------------------------------------------
#
# Forks what it is asked for, reaps it, and kills the processes that it left behind.
#
# The zygote and every attempt are subreapers: orphans of a living attempt become its children. So a child of the
# zygote that the loop did not fork belonged to a dead attempt, and is killed at once.


RECEIVE_BYTES = 64 * 1024
SIGNAL_BYTES = 128  # one signalfd_siginfo: SIGCHLD does not queue

_CHILDREN_BYTES = 4096  # the kernel lists no more of them at once

_ChildMain = Callable[[Channels], NoReturn]


class ExecutorGone(Exception):
    """The other end of the socket is closed."""


class _Exit(msgspec.Struct, frozen=True):
    """A reaped process, whose stray processes may still be dying."""

    pid: int
    exited: protocol.Exited  # its lists of strays are filled while it waits


class ForkLoop:
    """The event loop. It blocks only in ``poll``; a stalled executor delays only its own responses.

    ``is_remote``: it serves a Dask worker, and ends after ``LEASE_SECONDS`` of silence.
    """

    def __init__(
        self, control: socket.socket, facts: FlowFacts, reader: protocol.FrameReader, *, is_remote: bool = False
    ) -> None:
        self._silence_limit = LEASE_SECONDS if is_remote else math.inf
        self._received_at = time.monotonic()
        self._control = control
        self._facts = facts
        self.has_commands = facts.has_commands
        self._reader = reader
        self._pid = os.getpid()
        self._numbers: dict[int, int] = {}  # pid -> number, of living processes that the executor asked for
        self._dying: set[int] = set()  # strays that were killed and are not reaped yet
        self._import_children = set(process.own_children())  # processes that the import of the flow started
        self._exits: list[_Exit] = []
        self._exits_due = 0.0
        self._child_deaths = process.open_signal_descriptor(signal.SIGCHLD)
        self._children = process.open_children()
        fds = (control.fileno(), self._child_deaths, self._children)
        self._private = [fd for fd in fds if fd is not None]  # descriptors that no child may hold

    def run(self) -> None:
        """Serve until the executor is gone."""
        poller = select.poll()
        poller.register(self._child_deaths, select.POLLIN)  # reported first
        poller.register(self._control, select.POLLIN)
        try:
            while True:
                for fd, _ in poller.poll(self._wait_milliseconds()):
                    if fd == self._child_deaths:
                        os.read(self._child_deaths, SIGNAL_BYTES)
                        self._reap()
                    else:
                        self._receive()
                if self._exits:
                    self._report_exits()
                if time.monotonic() - self._received_at > self._silence_limit:
                    raise ExecutorGone
        except (ExecutorGone, BrokenPipeError, ConnectionResetError):
            return

    def _wait_milliseconds(self) -> float | None:
        due_at = min(self._exits_due if self._exits else math.inf, self._received_at + self._silence_limit)
        return None if due_at == math.inf else max(0.0, due_at - time.monotonic()) * 1000

    # --- Starting -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        data = self._control.recv(RECEIVE_BYTES)
        if not data:
            raise ExecutorGone
        self._received_at = time.monotonic()
        for payload in self._reader.feed(data):
            match protocol.decode_executor_frame(payload):
                case protocol.Start() as start:
                    self._start(start.number, os.pipe, lambda ends: run_attempt(start, self._facts, ends, self._pid))
                case protocol.StartShared(number, is_thread_host):
                    self._start(number, _socket_pair, self._become_host if is_thread_host else self._become_worker)
                case protocol.Ping():
                    self._send(protocol.Pong())

    def _become_host(self, channels: Channels) -> NoReturn:
        from ..thread_host import run_host  # here, because it imports threading: see child.py

        run_host(self._facts, channels, self._pid)

    def _become_worker(self, channels: Channels) -> NoReturn:
        from ..worker_loop import run_worker

        run_worker(self._facts, channels, self._pid)

    def _start(self, number: int, make_results: Callable[[], tuple[int, int]], become: _ChildMain) -> None:
        """Fork a process, and hand our ends of its channels to the executor."""
        pairs: list[tuple[int, int]] = []
        try:
            for make in (make_results, os.pipe, _stack_pipe):
                pairs.append(make())
            forked_at = time.monotonic()
            pid = os.fork()
        except OSError as error:
            for pair in pairs:
                _close(pair)
            self._refuse(number, error)
            return
        (ours, theirs) = zip(*pairs, strict=True)
        if pid == 0:
            try:
                _close(ours)
                _close(self._private)
                become(Channels(*theirs))
            finally:
                os._exit(1)  # only if it failed at once: never return into this loop
        _close(theirs)
        self._numbers[pid] = number
        try:
            self._send_started(number, pid, forked_at, ours)
        except OSError as error:
            del self._numbers[pid]
            self._dying.add(pid)  # kill it as a stray
            os.kill(pid, signal.SIGKILL)
            self._refuse(number, error)
        finally:
            _close(ours)

    def _refuse(self, number: int, error: OSError) -> None:
        self._send(protocol.Refused(number, f"cannot start a process: {error}"))

    def _send_started(self, number: int, pid: int, forked_at: float, ours: Iterable[int]) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            self._send(protocol.Started(number, pid, start_ticks(pid), forked_at), [pidfd, *ours])
        finally:
            os.close(pidfd)

    # --- Ending -------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap dead attempts and strays, and kill the children that dead attempts left."""
        while (death := process.next_exited()) is not None:
            self._reap_one(death)
        children = self._own_children()
        if children and (unknown := self._unknown_of(children)):
            self._sweep(unknown)

    def _reap_one(self, death: os.waitid_result) -> None:
        pid = death.si_pid
        number = self._numbers.pop(pid, None)
        if number is not None:
            process.kill_group(pid)  # while its zombie still pins the pid
        elif process.was_killed(death) and pid not in self._dying | self._import_children:
            self._attribute_stray(pid)  # it was killed with its group, before ``_sweep`` saw it
        _, status, usage = os.wait4(pid, 0)
        if number is None:
            self._dying.discard(pid)
            self._import_children.discard(pid)
            return
        exited = protocol.Exited.of(number, status, usage)
        self._exits.append(_Exit(pid, exited))
        self._exits_due = exited.exited_at + protocol.SWEEP_SECONDS

    def _own_children(self) -> list[int]:
        data = b"" if self._children is None else os.pread(self._children, _CHILDREN_BYTES, 0)
        if self._children is None or len(data) > _CHILDREN_BYTES / 2:
            return process.own_children()
        return [int(child) for child in data.split()] if data else []

    def _unknown_of(self, children: list[int]) -> set[int]:
        return {*children} - self._numbers.keys() - self._dying - self._import_children

    def _sweep(self, unknown: set[int]) -> None:
        """Kill strays; those that have ended already are reaped."""
        while (death := process.next_exited()) is not None:
            self._reap_one(death)
        for pid in unknown & self._unknown_of(self._own_children()):
            self._dying.add(pid)
            self._attribute_stray(pid)
            process.kill_all([pid])  # an own unreaped child: the pid cannot have been reused

    def _attribute_stray(self, stray: int) -> None:
        """Add the stray to the attempt that left it: by its session, else the first one that just ended."""
        if not self._exits:
            return
        session = process.session_of(stray)
        owner = next((exit for exit in self._exits if exit.pid == session), self._exits[0])
        owner.exited.swept.append(stray)

    def _report_exits(self) -> None:
        """Report exits once all strays are dead, or ``SWEEP_SECONDS`` have passed."""
        if self._dying:
            survivors = [[pid for pid in exit.exited.swept if pid in self._dying] for exit in self._exits]
            if any(survivors) and time.monotonic() < self._exits_due:
                return
            for exit, alive in zip(self._exits, survivors, strict=True):
                exit.exited.survivors.extend(alive)
        data = b"".join(protocol.encode(exit.exited) for exit in self._exits)
        self._exits.clear()
        self._control.sendall(data)

    def _send(self, frame: protocol.Frame, fds: list[int] | None = None) -> None:
        data = protocol.encode(frame)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        sent = self._control.sendmsg([data], rights)
        if sent < len(data):
            self._control.sendall(data[sent:])


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _stack_pipe() -> tuple[int, int]:
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # a task must not wait until its stack is read


def _socket_pair() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


if __name__ == "__main__":
    main(sys.argv)
