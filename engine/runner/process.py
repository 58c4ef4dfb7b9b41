"""What the runner asks of the processes below it, and the few system calls that Python does not offer. Linux only.

A bare pid is never trusted: it is held by a pidfd, by being our own unreaped child, or by its start time
(``statefile/processes.py``). Who is no child of ours is ended by ``runner/kill.py``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import signal
import sys
from collections.abc import Iterable

from ..statefile.processes import pids, read_file, stat_fields
from .kill import OUT_OF_REACH, signal_process

STACK_SIGNAL = signal.SIGRTMIN + 3  # a realtime signal: user code that takes SIGUSR1 or SIGUSR2 does not break it

DESCRIPTORS_GOAL = 65_536

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGSET_BYTES = 128
_PIDFD_SIGNAL_PROCESS_GROUP = 4  # since Linux 6.9

_libc = ctypes.CDLL(None, use_errno=True)


_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def set_parent_death_signal(signal_number: int) -> None:
    """Receive this signal when the thread that forked us ends; 0 takes it back."""
    _check(_prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0))


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent dies, however it daemonised."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


# --- Facts ------------------------------------------------------------------------------------------------------------


def session_of(pid: int) -> int | None:
    """The session of a process; None when it is gone."""
    try:
        return int(stat_fields(pid)[3])
    except OSError:
        return None


def kernel_view(pid: int) -> str:
    """State letter and wait channel where readable: "S in pipe_read"."""
    try:
        state = stat_fields(pid)[0].decode("ascii")
        channel = read_file(f"/proc/{pid}/wchan").decode("ascii", "replace")
    except OSError:
        return ""
    return state if channel in ("", "0") else f"{state} in {channel}"


def command_line(pid: int) -> str:
    """The command line with spaces between its words; empty when the process is gone."""
    try:
        return read_file(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, which it loses when it executes another program."""
    try:
        status = read_file(f"/proc/{pid}/status")
    except OSError:
        return False
    caught = status.partition(b"SigCgt:")[2].split(maxsplit=1)
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def own_children() -> list[int]:
    """The children of this process, which has one thread."""
    pid = os.getpid()
    try:
        return [int(child) for child in read_file(f"/proc/{pid}/task/{pid}/children").split()]
    except OSError:
        return _children_by_scan(pid)


def children_of_thread(pid: int, thread: int) -> list[int] | None:
    """The children of one thread of a process; None where the kernel does not say."""
    try:
        return [int(child) for child in read_file(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        return None


def children(pid: int) -> list[int]:
    """The children of all threads of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return [int(child) for thread in threads for child in read_file(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        return _children_by_scan(pid)


def _children_by_scan(parent: int) -> list[int]:
    """For kernels without CONFIG_PROC_CHILDREN, and for a process that ended while it was read."""
    found = []
    for pid in pids():
        try:
            if int(stat_fields(pid)[1]) == parent:
                found.append(pid)
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on; nearest first."""
    found: list[int] = []
    seen = {pid}
    queue = [pid]
    for parent in queue:
        for child in children(parent):
            if child not in seen:
                seen.add(child)
                found.append(child)
                queue.append(child)
    return found


def descriptor_limits() -> tuple[int, int]:
    """How many descriptors we may have: the soft limit and the hard one."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def set_descriptor_limits(pid: int, limits: tuple[int, int]) -> None:
    """Let a child of ours, and what it will start, have so many. One that has ended needs none."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    except ProcessLookupError:
        return


def raise_descriptor_limit() -> int:
    """Raise our own soft limit to the hard one, within reason. Answers with how many there may be then."""
    soft, hard = descriptor_limits()
    wanted = DESCRIPTORS_GOAL if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_GOAL)
    if soft == resource.RLIM_INFINITY:
        return DESCRIPTORS_GOAL
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def open_signal_descriptor(number: int) -> int:
    """A descriptor that is readable while this signal, which must be blocked, is pending."""
    mask = (1 << (number - 1)).to_bytes(_SIGSET_BYTES, sys.byteorder)
    return _check(_libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))


# --- Signals ----------------------------------------------------------------------------------------------------------


def has_ended(pidfd: int) -> bool:
    """True once the process is a zombie or gone."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def signal_group(pidfd: int, pid: int, number: int) -> bool:
    """Signal the process group that this process leads, or the process alone before it has made its group.

    False if nobody of them could be reached.
    """
    try:
        signal.pidfd_send_signal(pidfd, number, None, _PIDFD_SIGNAL_PROCESS_GROUP)
        return True
    except OUT_OF_REACH:
        return signal_process(pidfd, number)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    if has_ended(pidfd):
        return False
    try:
        os.killpg(pid, number)  # its number is pinned: it has not ended, or its zombie is not reaped yet
    except OUT_OF_REACH:
        return signal_process(pidfd, number)
    return True


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL each that can be reached. Only for pids that were just read from /proc."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OUT_OF_REACH:
            continue
