"""The process that forks: a clean, single-threaded interpreter that imported the flow once.

``python -P -m redrive.engine.runner.zygote.zygote SOCKET_FD`` is how the executor starts it; ``serve`` is the same in a
process that was forked from a program which built its flow itself.

It forks an attempt for each Start, hands its descriptors to the executor, reaps it, and kills what it left behind.
The zygote and every attempt are subreapers: whatever escapes from a living attempt comes back to that attempt, so a
child of the zygote that the zygote did not fork belonged to an attempt that is dead, and is killed at once. When the
executor's end of the socket closes, everything below is killed and the zygote ends.

An import may leave threads running, and beside threads no process can be forked safely. Such a zygote executes itself
anew, which ends them, does not import the flow this time, and leaves that to each attempt (``per_attempt_import.py``).
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import msgspec

from ...statefile.processes import start_ticks
from .. import process, protocol
from ..child import Channels, FlowFacts, flush, run_attempt
from .flow_import import Loader, fresh_flow, open_flow
from .reexec import ProcessOrigin, read_restart_state
from .warm_up import warm_up

SWEEP_SECONDS = 1.0  # how long an exit waits for the confirmed death of what was left behind
END_SECONDS = 5.0
RECEIVE_BYTES = 64 * 1024
SIGNAL_BYTES = 128  # one signalfd_siginfo: SIGCHLD does not queue

#: Blocked in the zygote for good, and unblocked in an attempt once it can answer. None of them may end the zygote: its
#: life is the executor's socket. One that was sent to the zygote stays there, because a fork does not copy it. Blocked
#: before the import, because a thread that it leaves behind would otherwise take them.
_BLOCKED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_ChildMain = Callable[[Channels], NoReturn]


class _ExecutorGone(Exception):
    """The other end of the socket is closed."""


@dataclass(slots=True)
class _Exit:
    """An attempt that is dead and reaped, while what it left behind may still be dying."""

    number: int
    pid: int
    status: int
    usage: tuple[int, int, int]  # max_rss_kb, cpu_user_us, cpu_system_us
    at: float
    swept: list[int] = field(default_factory=list)

    def frame(self, survivors: list[int]) -> protocol.Exited:
        code = os.waitstatus_to_exitcode(self.status)
        return protocol.Exited(
            self.number,
            code if code >= 0 else None,
            -code if code < 0 else None,
            *self.usage,
            self.at,
            self.swept,
            survivors,
        )


class _Zygote:
    """The loop. Every blocking call in it is a ``poll``; a stalled executor stalls only its own answers."""

    def __init__(self, control: socket.socket, facts: FlowFacts, reader: protocol.FrameReader) -> None:
        self._control = control
        self._facts = facts
        self._reader = reader
        self._pid = os.getpid()
        self._numbers: dict[int, int] = {}  # pid -> number, of the living
        self._dying: set[int] = set()  # strangers that were killed and are not reaped yet
        self._spared = set(process.own_children())  # what the import of the flow started
        self._exits: list[_Exit] = []
        self._exits_due = 0.0
        self._deaths = process.open_signal_descriptor(signal.SIGCHLD)

    def run(self) -> None:
        """Serve until the executor is gone."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._deaths, select.POLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poller.poll(self._poll_timeout_ms())}
                if self._deaths in ready:
                    os.read(self._deaths, SIGNAL_BYTES)
                    self._reap()
                if self._control.fileno() in ready:
                    self._receive()
                self._report_exits()
        except (_ExecutorGone, BrokenPipeError, ConnectionResetError):
            return

    def _poll_timeout_ms(self) -> float | None:
        if not self._exits:
            return None
        return max(0.0, self._exits_due - time.monotonic()) * 1000

    # --- Starting -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        data = self._control.recv(RECEIVE_BYTES)
        if not data:
            raise _ExecutorGone
        for payload in self._reader.feed(data):
            match protocol.decode_executor_frame(payload):
                case protocol.Start() as start:
                    self._start(start.number, os.pipe, partial(self._become_attempt, start))
                case protocol.StartHost(number):
                    self._start(number, _socket_pair, self._become_host)

    def _become_attempt(self, start: protocol.Start, channels: Channels) -> NoReturn:
        run_attempt(start, self._facts, channels, self._pid)

    def _become_host(self, channels: Channels) -> NoReturn:
        from ..thread.host import run_host  # here, because it imports threading: see child.py

        run_host(self._facts, channels, self._pid)

    def _start(self, number: int, channel: Callable[[], tuple[int, int]], become: _ChildMain) -> None:
        """Fork a process with its channels; ``become`` takes over in it. The executor gets the other ends."""
        pairs: list[tuple[int, int]] = []
        try:
            for make in (channel, os.pipe, os.pipe):
                pairs.append(make())
            pid, forked_at = self._fork([ours for ours, _ in pairs], Channels(*(theirs for _, theirs in pairs)), become)
            self._announce(number, pid, forked_at, [ours for ours, _ in pairs])
        except OSError as error:
            self._send(protocol.Refused(number, f"cannot start a process: {error}"))
        finally:
            for pair in pairs:
                os.close(pair[0])
                os.close(pair[1])

    def _fork(self, ours: list[int], channels: Channels, become: _ChildMain) -> tuple[int, float]:
        forked_at = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                for fd in (*ours, self._control.fileno(), self._deaths):
                    os.close(fd)
                become(channels)
            finally:
                os._exit(1)  # only if it could not even begin: never back into this loop
        return pid, forked_at

    def _announce(self, number: int, pid: int, forked_at: float, ours: list[int]) -> None:
        """Hand the process over. One that cannot be handed over is killed; then it dies as a stranger."""
        try:
            pidfd = os.pidfd_open(pid)
            try:
                started = protocol.Started(number, pid, start_ticks(pid), forked_at)
                self._send(started, [pidfd, *ours])
            finally:
                os.close(pidfd)
        except OSError:
            self._dying.add(pid)
            os.kill(pid, signal.SIGKILL)
            raise
        self._numbers[pid] = number

    # --- Ending -------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap all that are dead, attempts and strangers, and kill_by_rule the children that attempts left to us."""
        now = time.monotonic()
        while (death := _next_dead()) is not None:
            dead = death.si_pid
            number = self._numbers.pop(dead, None)
            if number is not None:
                _kill_group(dead)  # while its zombie still pins the number
            elif _was_killed(death) and dead not in self._dying | self._spared:
                self._attribute_stray(dead)  # it died with its group, before we have seen it among our children
            _, status, usage = os.wait4(dead, 0)
            self._dying.discard(dead)
            self._spared.discard(dead)
            if number is not None:
                self._exits.append(_Exit(number, dead, status, _usage(usage), now))
                self._exits_due = now + SWEEP_SECONDS
        self._sweep()

    def _sweep(self) -> None:
        for pid in process.own_children():
            if pid in self._numbers or pid in self._dying or pid in self._spared:
                continue
            self._dying.add(pid)
            self._attribute_stray(pid)
            process.kill_all([pid])  # our own unreaped child: the number cannot have been reused

    def _attribute_stray(self, stranger: int) -> None:
        """Tell which attempt left it: the one whose session it is in, else the first of those that just ended."""
        if not self._exits:
            return
        session = process.session_of(stranger)
        owner = next((exit for exit in self._exits if exit.pid == session), self._exits[0])
        owner.swept.append(stranger)

    def _report_exits(self) -> None:
        """Report once nothing is left of what was swept, or the patience with it has ended."""
        is_left = any(pid in self._dying for exit in self._exits for pid in exit.swept)
        if not self._exits or (is_left and time.monotonic() < self._exits_due):
            return
        exits, self._exits = self._exits, []
        for exit in exits:
            self._send(exit.frame([pid for pid in exit.swept if pid in self._dying]))

    def _send(self, frame: protocol.Frame, fds: list[int] | None = None) -> None:
        data = protocol.encode(frame)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        sent = self._control.sendmsg([data], rights)
        if sent < len(data):
            self._control.sendall(data[sent:])


def _socket_pair() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def _next_dead() -> os.waitid_result | None:
    """A dead child, left unreaped; None when all children live or there are none."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None


def _was_killed(death: os.waitid_result) -> bool:
    return death.si_code == os.CLD_KILLED and death.si_status == signal.SIGKILL


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _usage(usage: resource.struct_rusage) -> tuple[int, int, int]:
    return usage.ru_maxrss, round(usage.ru_utime * 1e6), round(usage.ru_stime * 1e6)


def _kill_descendants(seconds: float) -> None:
    """Kill and reap all descendants. They all come to us in the end: we are their nearest living subreaper."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        process.kill_all(process.descendants(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)  # only in this last act, where there is nothing else to do


# --- Entry ------------------------------------------------------------------------------------------------------------


def serve(
    control: socket.socket, load: Loader, *, origin: ProcessOrigin | None = None, doubts: Sequence[str] = ()
) -> NoReturn:
    """Open the flow that the first frame names, fork attempts until the executor is gone, and end.

    ``origin``: from where to start over when the import leaves threads; ``doubts``: what is doubtful already.
    """

    def work() -> None:
        reader = protocol.FrameReader(protocol.CONTROL_LIMIT)
        request = _receive_open(control, reader)
        imported = open_flow(request, load)
        if isinstance(imported, protocol.OpenFailed):
            control.sendall(protocol.encode(imported))
            return
        answer = msgspec.structs.replace(imported.answer, warnings=[*doubts, *imported.answer.warnings])
        if imported.left_threads and origin is not None:
            answer = msgspec.structs.replace(answer, imports_per_attempt=True)
            origin.reexecute(control, protocol.RestartState(request, answer))
        _fork_attempts(control, reader, imported.facts, answer)

    _run_to_end(work)


def serve_restarted(control: socket.socket, load: Loader, left: protocol.RestartState) -> NoReturn:
    """The same after starting over: the attempts import the flow, and this process never does."""
    reader = protocol.FrameReader(protocol.CONTROL_LIMIT)
    _run_to_end(lambda: _fork_attempts(control, reader, fresh_flow(left, load), left.opened))


def _run_to_end(work: Callable[[], None]) -> NoReturn:
    """Work until the executor is gone. The process ends here and not in the interpreter, which would join threads."""
    try:
        process.become_subreaper()
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        work()
    except (_ExecutorGone, BrokenPipeError, ConnectionResetError):
        pass  # nobody to tell
    except BaseException:
        traceback.print_exc()
    finally:
        _kill_descendants(END_SECONDS)
        flush()
        os._exit(0)


def _fork_attempts(
    control: socket.socket, reader: protocol.FrameReader, facts: FlowFacts, answer: protocol.FlowOpened
) -> None:
    warm_up(facts)
    gc.collect()
    gc.freeze()  # a collection in an attempt would touch, and so copy, every page with an object
    _install_signal_handlers(facts)
    zygote = _Zygote(control, facts, reader)
    control.sendall(protocol.encode(answer))
    zygote.run()


def _install_signal_handlers(facts: FlowFacts) -> None:
    """Leave to the attempts as little as possible: they inherit the handlers, and unblock what is blocked here."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, facts.termination.handle)
    faulthandler.enable(file=facts.stack_fd, all_threads=True)
    faulthandler.register(process.STACK_SIGNAL, file=facts.stack_fd, all_threads=True, chain=False)


def _receive_open(control: socket.socket, reader: protocol.FrameReader) -> protocol.Open:
    while True:
        data = control.recv(RECEIVE_BYTES)
        if not data:
            raise _ExecutorGone
        for payload in reader.feed(data):
            frame = protocol.decode_executor_frame(payload)
            if not isinstance(frame, protocol.Open):
                raise protocol.ProtocolError(f"the first frame is {type(frame).__name__}, not Open")
            return frame


def reset_streams() -> None:
    """Line-buffered text on 1 and 2 that no character can break: a hung task must have shown what it printed."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(fd, "w", closefd=False)
        stream = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def main(arguments: list[str]) -> None:
    """The entry of the process that the executor starts."""
    from ...flow.loading import load_flow

    origin = ProcessOrigin.here()
    reset_streams()
    faulthandler.register(process.STACK_SIGNAL, all_threads=True, chain=False)  # where an import hangs
    descriptor, *memory = (int(argument) for argument in arguments[1:])
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    if memory:
        serve_restarted(control, load_flow, read_restart_state(memory[0]))
    serve(control, load_flow, origin=origin)


if __name__ == "__main__":
    main(sys.argv)
