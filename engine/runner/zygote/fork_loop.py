"""The event loop of the zygote: forks an attempt for each Start, reaps it, and kills the processes that it left behind.

The executor gets the descriptors of an attempt that runs longer than ``ANNOUNCE_SECONDS``, else what it wrote, with its
exit.

The zygote and every attempt are subreapers: orphans of a living attempt become its children. So a child of the zygote
that the loop did not fork belonged to a dead attempt, and is killed at once.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import time
from array import array
from collections.abc import Callable, Iterable
from typing import NoReturn

import msgspec

from ...statefile.processes import start_ticks
from .. import process, protocol
from ..child import AttemptVariables, Channels, FlowFacts, run_attempt
from ..direct_call import direct_plans, direct_runner

SWEEP_SECONDS = 1.0  # how long the report of an exit waits for the death of strays
RECEIVE_BYTES = 64 * 1024
PIPE_BYTES_MAX = 1024 * 1024  # of an attempt that ends before it is announced
SIGNAL_BYTES = 128  # one signalfd_siginfo: SIGCHLD does not queue

_DEAD_UNREAPED = os.WEXITED | os.WNOHANG | os.WNOWAIT
_CHILDREN_BYTES = 4096  # the kernel lists no more of them at once

_ChildMain = Callable[[Channels], NoReturn]


class ExecutorGone(Exception):
    """The other end of the socket is closed."""


class _Unannounced(msgspec.Struct, gc=False):
    """An attempt that the executor does not see yet."""

    number: int
    pid: int
    forked_at: float
    pipes: tuple[int, int, int]  # our ends: results, output, stack
    due_at: float  # on the monotonic clock: when it is announced


class _Exit(msgspec.Struct):
    """A reaped attempt, whose stray processes may still be dying."""

    pid: int
    exited: protocol.Exited  # its lists of strays are filled while it waits
    unannounced: _Unannounced | None


class ForkLoop:
    """The event loop. It blocks only in ``poll``; a stalled executor delays only its own responses.

    After each fork the kernel copies every page that this process or a living attempt writes, and Python writes into
    each function and object that it uses. So the way from a Start to its Ran is made of few, long functions.
    """

    def __init__(self, control: socket.socket, facts: FlowFacts, reader: protocol.FrameReader) -> None:
        self._control = control
        self._facts = facts
        self._direct_plans = direct_plans(facts)
        self._run_directly = direct_runner(facts, os.getpid())
        self._reader = reader
        self._pid = os.getpid()
        self._numbers: dict[int, int] = {}  # pid -> number, of living attempts
        self._unannounced: dict[int, _Unannounced] = {}  # by pid, of living attempts
        self._due_at = math.inf  # the earliest of them, or an attempt that has ended since
        self._dying: set[int] = set()  # strays that were killed and are not reaped yet
        self._import_children = set(process.own_children())  # processes that the import of the flow started
        self._variables = AttemptVariables()
        self._exits: list[_Exit] = []
        self._exits_due = 0.0
        self._child_deaths = process.open_signal_descriptor(signal.SIGCHLD)
        self._children = process.open_children()
        fds = (control.fileno(), self._child_deaths, self._children)
        self._private = {fd for fd in fds if fd is not None}  # descriptors that no child may hold

    def run(self) -> None:
        """Serve until the executor is gone."""
        poller, deaths = select.poll(), self._child_deaths
        poller.register(deaths, select.POLLIN)  # reported first
        poller.register(self._control, select.POLLIN)
        try:
            while True:
                is_waiting = self._unannounced or self._exits
                for fd, _ in poller.poll(max(0.0, self._due_at - time.monotonic()) * 1000 if is_waiting else None):
                    if fd == deaths:
                        os.read(deaths, SIGNAL_BYTES)
                        self._reap()
                    else:
                        self._receive()
                if self._exits:
                    self._report_exits()
                if self._due_at <= time.monotonic():
                    self._announce_due()
        except (ExecutorGone, BrokenPipeError, ConnectionResetError):
            return

    # --- Starting -----------------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        data = self._control.recv(RECEIVE_BYTES)
        if not data:
            raise ExecutorGone
        for payload in self._reader.feed(data):
            frame = protocol.decode_executor_frame(payload)
            if isinstance(frame, protocol.Start):
                self._start_attempt(frame)
            elif isinstance(frame, protocol.StartHost):
                self._start(frame.number, self._become_host)
            elif isinstance(frame, protocol.StartWorker):
                self._start(frame.number, self._become_worker)

    def _start_attempt(self, start: protocol.Start) -> None:
        """Fork an attempt, and keep its pipes for a moment: most attempts have ended by then."""
        has_variables = start.variables is not None and self._variables.set(start.variables)
        plan = self._direct_plans.get(start.function) if has_variables else None
        run_directly, private = self._run_directly, self._private  # read here: it costs the child six pages
        fds: list[int] = []
        try:
            for _ in range(3):
                fds += os.pipe()
            forked_at = time.monotonic()
            pid = os.fork()
        except OSError as error:
            _close(fds)
            self._refuse(start.number, error)
            return
        ours, theirs = (fds[0], fds[2], fds[4]), (fds[1], fds[3], fds[5])
        if pid == 0:
            try:
                for fd in ours:
                    os.close(fd)
                for fd in private:
                    os.close(fd)
                if plan is not None:
                    run_directly(plan, start, theirs)
                run_attempt(start, self._facts, Channels(*theirs), self._pid, has_variables=has_variables)
            finally:
                os._exit(1)  # only if it failed at once: never return into this loop
        for fd in theirs:
            os.close(fd)
        private.update(ours)
        wait, timeout = protocol.ANNOUNCE_SECONDS, start.timeout
        due_at = forked_at + (wait if timeout is None or timeout > 4 * wait else timeout / 4)
        self._numbers[pid] = start.number
        self._unannounced[pid] = _Unannounced(start.number, pid, forked_at, ours, due_at)
        if due_at < self._due_at:
            self._due_at = due_at

    def _become_host(self, channels: Channels) -> NoReturn:
        from ..thread.host import run_host  # here, because it imports threading: see child.py

        run_host(self._facts, channels, self._pid)

    def _become_worker(self, channels: Channels) -> NoReturn:
        from ..worker.loop import run_worker

        run_worker(self._facts, channels, self._pid)

    def _start(self, number: int, become: _ChildMain) -> None:
        """Fork a process with a socket in place of the result pipe, which the executor gets at once."""
        self._variables.restore()
        pairs: list[tuple[int, int]] = []
        try:
            for make in (_socket_pair, os.pipe, os.pipe):
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
                os._exit(1)
        _close(theirs)
        self._numbers[pid] = number
        try:
            self._announce(_Unannounced(number, pid, forked_at, ours, forked_at))
        except OSError as error:
            del self._numbers[pid]
            self._dying.add(pid)  # kill it as a stray
            os.kill(pid, signal.SIGKILL)
            _close(ours)
            self._refuse(number, error)

    def _refuse(self, number: int, error: OSError) -> None:
        self._send(protocol.Refused(number, f"cannot start a process: {error}"))

    def _announce(self, forked: _Unannounced) -> None:
        """Report a process to the executor, which gets our ends of its channels."""
        pidfd = os.pidfd_open(forked.pid)
        try:
            started = protocol.Started(forked.number, forked.pid, start_ticks(forked.pid), forked.forked_at)
            self._send(started, [pidfd, *forked.pipes])
        finally:
            os.close(pidfd)
        _close(forked.pipes)
        self._private.difference_update(forked.pipes)

    def _announce_due(self) -> None:
        now = time.monotonic()
        for forked in [forked for forked in self._unannounced.values() if forked.due_at <= now]:
            try:
                self._announce(forked)
            except (BrokenPipeError, ConnectionResetError):
                raise
            except OSError:  # too few descriptors: it runs, so it is announced later or ends unannounced
                forked.due_at = now + protocol.ANNOUNCE_SECONDS
            else:
                del self._unannounced[forked.pid]
        due = [forked.due_at for forked in self._unannounced.values()]
        self._due_at = min([*due, self._exits_due] if self._exits else due, default=math.inf)

    # --- Ending -------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Reap dead attempts and strays, and kill the children that dead attempts left."""
        while self._numbers or self._dying or self._import_children:
            death = os.waitid(os.P_ALL, 0, _DEAD_UNREAPED)
            if death is None:
                break
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
        self._exits.append(_Exit(pid, exited, self._unannounced.pop(pid, None)))
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
                self._due_at = min(self._due_at, self._exits_due)
                return
            for exit, alive in zip(self._exits, survivors, strict=True):
                exit.exited.survivors.extend(alive)
        data = b""
        for exit in self._exits:
            forked = exit.unannounced
            if forked is None:
                data += protocol.encode(exit.exited)
                continue
            results, output, stack = map(_read_and_close, forked.pipes)
            self._private.difference_update(forked.pipes)
            ran = protocol.Ran(forked.pid, forked.forked_at, results, output, stack, exit.exited)
            data += protocol.encode(ran)
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


def _read_and_close(pipe: int) -> bytes:
    """Return what is in the pipe of a dead process, at most what fits into one. A survivor may hold its other end."""
    os.set_blocking(pipe, False)
    data = b""
    try:
        more = data = os.read(pipe, RECEIVE_BYTES)
        while len(more) == RECEIVE_BYTES and len(data) < PIPE_BYTES_MAX:
            more = os.read(pipe, RECEIVE_BYTES)
            data += more
    except BlockingIOError:
        pass
    finally:
        os.close(pipe)
    return data


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
