"""The code of a warm worker: runs one attempt after another, until one of them is not a clean success.

The program of a command is started here: the worker is its parent and its subreaper, dies with the zygote as every
attempt, and the program with the worker. What hangs before the program runs, in a pipe without a writer or on a lost
mount, holds this worker alone, under the deadline of its attempt.

After each success of a function it checks what the attempt left behind, by a table of checks. It ends after any other
outcome, after a finding, and when the executor closes the socket: then it ends like a process with a single attempt.

What functions of one worker share on purpose is not in the table: imported modules, their globals and caches, and
functions registered with ``atexit``, which run when the worker ends.
"""

from __future__ import annotations

import contextvars
import fcntl
import gc
import locale
import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from ..core.outcome import OutcomeKind
from ..statefile.processes import read_file, start_ticks
from . import child, command, process, protocol
from .call import outcome_of_error
from .child import FreshImport

RECEIVE_BYTES = 64 * 1024

ATTEMPTS_MAX = 1000  # of one worker: bounds what no check sees
CANNOT_EXECUTE = 126  # the exit code of a shell for a program that it cannot execute
GROWTH_KB_MAX = 128 * 1024  # resident memory beyond that before the first attempt
#: The kernel counts a joined thread until it has run last, on a busy machine 10 ms; asyncio joins no thread that waited
#: for a child process.
THREAD_EXIT_SECONDS = 0.25

_RIGHTS = (b"Uid", b"Gid", b"Groups", b"CapEff", b"NoNewPrivs", b"Seccomp")
_STATUS_FIELDS = (b"Umask", b"VmHWM", b"VmRSS", b"Threads", b"SigBlk", b"SigIgn", b"SigCgt", b"Cpus_allowed", *_RIGHTS)
_STATUS = re.compile(rb"^(%s):\s*(.*)$" % b"|".join(_STATUS_FIELDS), re.M)
_SIGNALS = tuple(signal.valid_signals())
_VALID_MASK = sum(1 << (number - 1) for number in _SIGNALS)  # without those of the C library for itself
_LIMITS = tuple(range(16))  # every RLIMIT_... of Linux
_ENVIRONMENT = os.environ
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_RESET_PEAK = b"5"  # written to clear_refs: the peak of resident memory (VmHWM) is counted from now on


class _Worker:
    """The main thread, in which every attempt runs."""

    def __init__(self, control: int, facts: child.FlowFacts) -> None:
        self._control = control
        self._socket = socket.socket(fileno=control)
        self._facts = facts
        self._pipe = child.ResultPipe(control, facts.termination)
        self._reader = protocol.FrameReader(protocol.CONTROL_LIMIT)
        self._variables: Mapping[bytes, bytes] = {}  # those that the latest attempt was given, and has not changed
        self._state: ProcessState | None = None
        self._lifeline = _open_lifeline()
        self._folder = os.open(os.curdir, os.O_PATH | os.O_CLOEXEC)
        self._files = ""  # the folder of the latest command, whose result the executor has read when it sends more

    def run(self) -> int:
        """Run attempts. Returns the exit code: 0 unless the last one failed."""
        while data := os.read(self._control, RECEIVE_BYTES):
            for payload in self._reader.feed(data):
                start = protocol.decode_executor_frame(payload)
                assert isinstance(start, protocol.Start)
                code = self._run_attempt(start)
                if code is not None:
                    return code
        self._remove_files()
        return 0

    def _remove_files(self) -> None:
        """Remove the files of the latest command: here, because the executor must not wait for a disk."""
        if self._files:
            import shutil  # by the zygote of a flow with commands, before the fork

            shutil.rmtree(self._files, ignore_errors=True)
            self._files = ""

    def _run_attempt(self, start: protocol.Start) -> int | None:
        """Run one attempt. Returns the exit code of the process, or None: it takes the next attempt."""
        pid = os.getpid()
        os.set_blocking(1, True)  # of the pipe, which a program of the attempt before had as its own
        context = contextvars.copy_context()  # what the attempt sets in it ends with it, as the context of decimal
        order = protocol.decode_order(start.order)
        if order.spec.kind == "command":
            return self._run_program(order, start.variables)
        prepare = partial(self._prepare, start.variables)
        outcome = context.run(child.run_task, order, self._facts, self._pipe, prepare, self._before_call)
        child.flush()
        process.flush_c_streams()
        if os.getpid() != pid:  # a process that the task forked has returned from the function
            os._exit(0)
        is_success = outcome.kind is OutcomeKind.SUCCESS
        if self._state is None or not is_success:
            self._pipe.send(protocol.Ended(outcome))
            return 0 if is_success else 1
        report = _report(self._state)
        self._pipe.send(protocol.Ended(outcome), report)
        return 0 if report.findings else None

    def _run_program(self, order: protocol.AttemptOrder, variables: Mapping[bytes, bytes]) -> int | None:
        """Run the program of a command to its end. Returns as ``_run_attempt``."""
        self._remove_files()
        self._files = order.folder
        try:
            pid = self._start_program(order, variables)
        except BaseException as error:
            self._facts.termination.close()
            error.__traceback__ = None  # its place is here, for all commands; its message names what is missing
            self._pipe.send(protocol.Ended(outcome_of_error(error, self._facts.failure_maker(order))))
            return CANNOT_EXECUTE
        exited = _end_of_program(pid)
        findings = ["left processes that cannot be killed"] if exited.survivors else []
        self._pipe.send(protocol.WorkerChecked(findings, *_cpu_us(), exited))
        return 0 if findings else None

    def _start_program(self, order: protocol.AttemptOrder, variables: Mapping[bytes, bytes]) -> int:
        """Start the program and report it. SIGTERM ends the attempt until all is ready, then it is ignored."""
        self._facts.termination.reset()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        program = command.prepare(order, variables, self._facts.folder)
        stdout = os.pipe() if command.has_stdout(order) else ()
        self._facts.termination.close()
        if order.cgroup:
            process.enter_cgroup(order.cgroup)
        try:
            pid = program.spawn(stdout[1] if stdout else None)
            fcntl.fcntl(self._lifeline, fcntl.F_SETOWN, -pid)
            self._send_started(pid, stdout[:1])
        finally:
            os.fchdir(self._folder)  # its own one may be a mount that a later command has to leave
            if order.cgroup:
                process.leave_cgroup(order.cgroup)
            for descriptor in stdout:
                os.close(descriptor)
        return pid

    def _send_started(self, pid: int, stdout: Sequence[int]) -> None:
        pidfd = os.pidfd_open(pid)
        started = protocol.Started(0, pid, start_ticks(pid), time.monotonic())
        socket.send_fds(self._socket, [protocol.encode(started)], [pidfd, *stdout])
        os.close(pidfd)

    def _prepare(self, variables: Mapping[bytes, bytes]) -> None:
        """Set what a new process has from its fork: the variables of this attempt alone, random numbers of its own."""
        self._facts.termination.reset()
        if self._state is not None:
            child.reseed("random", "numpy.random")
            _reset_peak_memory()
        before, self._variables = self._variables, variables
        child.set_variables({name: value for name, value in variables.items() if before.get(name) != value})
        for name in before.keys() - variables.keys():
            os.environb.pop(name, None)
        if isinstance(self._facts.plans, FreshImport):
            self._facts.plans.preload()

    def _before_call(self) -> None:
        if self._state is None:
            self._state = ProcessState()
        self._state.begin_attempt()


def _report(state: ProcessState) -> protocol.WorkerChecked:
    (findings, status), cpu_us = state.end_attempt(), _cpu_us()
    ended = protocol.Exited(0, 0, None, kilobytes(status, b"VmHWM"), *cpu_us, time.monotonic(), [], [])
    return protocol.WorkerChecked(findings, *cpu_us, ended)


def _cpu_us() -> tuple[int, int]:
    """Return the CPU time of this process and the children that it waited for: user and system, in microseconds."""
    own, waited = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((own.ru_utime + waited.ru_utime) * 1e6), round((own.ru_stime + waited.ru_stime) * 1e6)


def _open_lifeline() -> int:
    """Open what has the kernel kill the group of a program when this process ends, however that is.

    Programs inherit the reading end of a pipe, and this process alone has the other one. What happens to a pipe can be
    signalled to the group that owns it, and its end is all that happens to this one (F_SETSIG, F_SETOWN of fcntl(2)).
    """
    reading, _ = os.pipe()
    os.set_inheritable(reading, True)
    fcntl.fcntl(reading, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC)
    return reading


def _end_of_program(pid: int) -> protocol.Exited:
    """Wait for the end of a program, and kill what it leaves: all that becomes a child of this process."""
    while (orphan := process.wait_for_exited()) != pid:
        os.waitpid(orphan, 0)
    process.kill_group(pid)  # while its zombie still pins the pid
    exited = protocol.Exited.of(0, *os.wait4(pid, 0)[1:])
    killed, alive = process.kill_descendants(protocol.SWEEP_SECONDS)
    exited.swept.extend(killed)
    exited.survivors.extend(alive)
    return exited


def _reset_peak_memory() -> None:
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(_RESET_PEAK)
    except OSError:
        return  # a kernel without it: the peak is that of the worker so far


def run_worker(facts: child.FlowFacts, channels: child.Channels, zygote_pid: int) -> NoReturn:
    """Run the forked worker to its end. Never returns."""
    child.run_to_end(lambda: _Worker(channels.results, facts).run(), facts, channels, zygote_pid)


# --- What an attempt must not leave behind ----------------------------------------------------------------------------

Status = Mapping[bytes, bytes]


def read_status() -> Status:
    """Return the fields of /proc/self/status that the checks read: one file for many of them."""
    return dict(_STATUS.findall(read_file("/proc/self/status")))


def kilobytes(status: Status, name: bytes) -> int:
    """Return a size in KiB; 0 if the kernel does not report it."""
    return int(status.get(name, b"0").split()[0])


class Check(NamedTuple):
    """Something that an attempt can change; ``finding`` completes the sentence "the attempt ..."."""

    finding: str
    read: Callable[[Status], object]


def _descriptors(_: Status) -> object:
    """Return the open descriptors, each with the file behind it: a number may be used for another file."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            file = os.fstat(int(name))
        except OSError:
            continue  # the one that listed the folder
        found.append((name, file.st_dev, file.st_ino))
    return sorted(found)


def _has_children(_: Status) -> bool:
    """Return whether a child lives or was not waited for, orphans included: this process is their subreaper."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _handlers(status: Status) -> object:
    caught, ignored = (int(status.get(name, b"0"), 16) & _VALID_MASK for name in (b"SigCgt", b"SigIgn"))
    return [caught, ignored, *(signal.getsignal(number) for number in _SIGNALS if caught >> (number - 1) & 1)]


def _streams(_: Status) -> object:
    return [(stream, getattr(stream, "closed", None)) for stream in (sys.stdin, sys.stdout, sys.stderr)]


CHECKS = (
    Check("changed the working directory", lambda status: os.getcwd()),
    Check("changed the umask", lambda status: status.get(b"Umask")),
    Check("changed its user, groups or rights", lambda status: [status.get(name) for name in _RIGHTS]),
    Check("changed a signal handler", _handlers),
    Check("changed the signal mask", lambda status: status.get(b"SigBlk")),
    Check("left a timer running", lambda status: [signal.getitimer(timer)[0] > 0 for timer in _TIMERS]),
    Check("left a descriptor open, or closed one", _descriptors),
    Check("left a thread running", lambda status: status.get(b"Threads")),
    Check("left a child process", _has_children),
    Check("replaced sys.stdin, sys.stdout or sys.stderr", _streams),
    Check("replaced os.environ", lambda status: os.environ is _ENVIRONMENT),
    Check("changed a resource limit", lambda status: [resource.getrlimit(limit) for limit in _LIMITS]),
    Check(
        "changed its priority or its CPUs",
        lambda status: (os.getpriority(os.PRIO_PROCESS, 0), status.get(b"Cpus_allowed")),
    ),
    Check("left a trace or profile function", lambda status: (sys.gettrace(), sys.getprofile())),
    Check("changed the locale", lambda status: locale.setlocale(locale.LC_ALL)),
    Check(
        "changed a setting of the interpreter",
        lambda status: (gc.isenabled(), sys.getrecursionlimit(), sys.getswitchinterval(), socket.getdefaulttimeout()),
    ),
)


class ProcessState:
    """The state of this process before its first attempt, which is that before each of them while nothing is found."""

    def __init__(self) -> None:
        self._status = read_status()
        self._before = [_read(check, self._status) for check in CHECKS]
        self._environment: dict[bytes, bytes] = {}
        self._attempts = 0

    def begin_attempt(self) -> None:
        """Keep the environment, which is another one for each attempt."""
        self._attempts += 1
        self._environment = dict(os.environb)

    def end_attempt(self) -> tuple[list[str], Status]:
        """Return what the attempt changed, and the status that was read for it."""
        status: Status = {}
        try:
            status = self._settled_status()
            return self._findings(status), status
        except Exception as error:  # as of a replaced function of ``os``, or of used up descriptors
            return [f"left the process so that it cannot be checked ({type(error).__name__}: {error})"], status

    def _findings(self, status: Status) -> list[str]:
        pairs = zip(CHECKS, self._before, strict=True)
        found = [check.finding for check, before in pairs if _read(check, status) != before]
        if dict(os.environb) != self._environment:
            found.append("changed the environment")
        growth_kb = kilobytes(status, b"VmRSS") - kilobytes(self._status, b"VmRSS")
        if growth_kb > GROWTH_KB_MAX:
            found.append(f"left the process {growth_kb // 1024} MiB larger than before its first attempt")
        if self._attempts >= ATTEMPTS_MAX:
            found.append(f"was number {self._attempts} of its process")
        return found

    def _settled_status(self) -> Status:
        """Return the status; first wait for the end of threads that are about to end."""
        status, limit = read_status(), time.monotonic() + THREAD_EXIT_SECONDS
        while status.get(b"Threads") != self._status.get(b"Threads") and time.monotonic() < limit:
            time.sleep(0)  # yield the processor: the kernel announces the end of a thread only to its joiner
            status = read_status()
        return status


def _read(check: Check, status: Status) -> object:
    try:
        return check.read(status)
    except OSError as error:  # as of a working directory that was removed
        return str(error)
