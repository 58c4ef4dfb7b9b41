"""The event loop of the zygote: forks what it is asked for, reaps it, and kills the processes that it left behind.

The zygote and every attempt are subreapers: orphans of a living attempt become its children. So a child of the zygote
that the loop did not fork belonged to a dead attempt, and is killed at once.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NoReturn

from ...statefile.processes import start_ticks
from .. import process, protocol
from ..child import Channels, FlowFacts, run_attempt

SWEEP_SECONDS = 1.0  # how long the report of an exit waits for the death of strays
RECEIVE_BYTES = 64 * 1024
SIGNAL_BYTES = 128  # one signalfd_siginfo: SIGCHLD does not queue

_CHILDREN_BYTES = 4096  # the kernel lists no more of them at once

_ChildMain = Callable[[Channels], NoReturn]


class ExecutorGone(Exception):
    """The other end of the socket is closed."""


@dataclass(frozen=True, slots=True)
class _Exit:
    """A reaped process, whose stray processes may still be dying."""

    pid: int
    exited: protocol.Exited  # its lists of strays are filled while it waits


class ForkLoop:
    """The event loop. It blocks only in ``poll``; a stalled executor delays only its own responses."""

    def __init__(self, control: socket.socket, facts: FlowFacts, reader: protocol.FrameReader) -> None:
        self._control = control
        self._facts = facts
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
        except (ExecutorGone, BrokenPipeError, ConnectionResetError):
            return

    def _wait_milliseconds(self) -> float | None:
        return max(0.0, self._exits_due - time.monotonic()) * 1000 if self._exits else None

    # --- Starting -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        data = self._control.recv(RECEIVE_BYTES)
        if not data:
            raise ExecutorGone
        for payload in self._reader.feed(data):
            match protocol.decode_executor_frame(payload):
                case protocol.Start() as start:
                    self._start(start.number, os.pipe, lambda ends: run_attempt(start, self._facts, ends, self._pid))
                case protocol.StartHost(number):
                    self._start(number, _socket_pair, self._become_host)
                case protocol.StartWorker(number):
                    self._start(number, _socket_pair, self._become_worker)
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
            for make in (make_results, os.pipe, os.pipe):
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
            self._announce(number, pid, forked_at, ours)
        except OSError as error:
            del self._numbers[pid]
            self._dying.add(pid)  # kill it as a stray
            os.kill(pid, signal.SIGKILL)
            self._refuse(number, error)
        finally:
            _close(ours)

    def _refuse(self, number: int, error: OSError) -> None:
        self._send(protocol.Refused(number, f"cannot start a process: {error}"))

    def _announce(self, number: int, pid: int, forked_at: float, ours: Iterable[int]) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            self._send(protocol.Started(number, pid, start_ticks(pid), forked_at), [pidfd, *ours])
        finally:
            os.close(pidfd)

    # --- Ending -------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap dead attempts and strays, and kill the children that dead attempts left."""
        while (death := _next_exited()) is not None:
            self._reap_one(death)
        children = self._own_children()
        if children and (unknown := self._unknown_of(children)):
            self._sweep(unknown)

    def _reap_one(self, death: os.waitid_result) -> None:
        pid = death.si_pid
        number = self._numbers.pop(pid, None)
        if number is not None:
            _kill_group(pid)  # while its zombie still pins the pid
        elif _was_killed(death) and pid not in self._dying | self._import_children:
            self._attribute_stray(pid)  # it was killed with its group, before ``_sweep`` saw it
        _, status, usage = os.wait4(pid, 0)
        if number is None:
            self._dying.discard(pid)
            self._import_children.discard(pid)
            return
        now, code = time.monotonic(), os.waitstatus_to_exitcode(status)
        exited = protocol.Exited(
            number,
            code if code >= 0 else None,
            -code if code < 0 else None,
            usage.ru_maxrss,
            round(usage.ru_utime * 1e6),
            round(usage.ru_stime * 1e6),
            now,
            [],
            [],
        )
        self._exits.append(_Exit(pid, exited))
        self._exits_due = now + SWEEP_SECONDS

    def _own_children(self) -> list[int]:
        data = b"" if self._children is None else os.pread(self._children, _CHILDREN_BYTES, 0)
        if self._children is None or len(data) > _CHILDREN_BYTES / 2:
            return process.own_children()
        return [int(child) for child in data.split()] if data else []

    def _unknown_of(self, children: list[int]) -> set[int]:
        return {*children} - self._numbers.keys() - self._dying - self._import_children

    def _sweep(self, unknown: set[int]) -> None:
        """Kill strays; those that have ended already are reaped."""
        while (death := _next_exited()) is not None:
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


def _socket_pair() -> tuple[int, int]:
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def _next_exited() -> os.waitid_result | None:
    """Return a dead child without reaping it; None if there is none."""
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
