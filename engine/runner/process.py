"""Facts about processes from /proc, signals to attempts, and system calls that Python lacks. Linux only.

A pid alone is never trusted: it is pinned by a pidfd, as an unreaped child of this process, or by its start time
(``statefile/processes.py``). Processes that are not children of this one are killed in ``runner/reaper.py``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator

from ..statefile.processes import pids, read_file, stat_fields
from .reaper import OUT_OF_REACH, signal_process

#: Realtime signals, because user code often has handlers for SIGUSR1 and SIGUSR2: see ``own_stack.py``.
STACK_SIGNAL, C_STACK_SIGNAL = signal.SIGRTMIN + 3, signal.SIGRTMIN + 4

CGROUP = "redrive"  # of the executor, its zygotes and what has started them; attempts: "redrive-PID-NUMBER"

DESCRIPTORS_GOAL = 65_536

HUGE_PAGE_BYTES = 2 * 1024 * 1024
LARGE_HEAP_BYTES = 32 * 1024 * 1024  # a smaller one is copied as fast page by page

_MADV_COLLAPSE = 25  # since Linux 6.1
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
    """Have the kernel send this signal when the thread that forked this process ends; 0: none (PR_SET_PDEATHSIG)."""
    _check(_prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0))


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent dies, daemons included (PR_SET_CHILD_SUBREAPER)."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def collapse_heap() -> None:
    """Move a large heap to huge pages, where Linux (6.1) can: a fork copies an entry of each page, its child drops it.

    Of 146 MB, a flow of 100,000 tasks, a fork and the end of its child take 6.2 ms, and with huge pages 1.4.
    """
    try:
        ranges = [(start, end - start) for start, end in _heap_ranges() if start < end]
    except OSError:  # no descriptor is free
        return
    if sum(size for _, size in ranges) < LARGE_HEAP_BYTES:
        return
    for start, size in ranges:
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_COLLAPSE)  # a refusal changes nothing


def _heap_ranges() -> Iterator[tuple[int, int]]:
    """Yield the private memory of this process that is not part of a file, as far as huge pages cover it."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, mode, _, _, inode, *name = line.split()
            if mode == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                start, end = (int(address, 16) for address in addresses.split("-"))
                yield -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES


# --- Facts ------------------------------------------------------------------------------------------------------------


def session_of(pid: int) -> int | None:
    """Return the session id of a process; None if it is gone."""
    try:
        return int(stat_fields(pid)[3])
    except OSError:
        return None


def kernel_view(pid: int) -> str:
    """Return the state letter and, where readable, the wait channel: "S in pipe_read"."""
    try:
        state = stat_fields(pid)[0].decode("ascii")
        channel = read_file(f"/proc/{pid}/wchan").decode("ascii", "replace")
    except OSError:
        return ""
    return state if channel in ("", "0") else f"{state} in {channel}"


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal or a debugger, and so handles nothing."""
    return kernel_view(pid)[:1] in ("T", "t")


def command_line(pid: int) -> str:
    """Return the command line, its words joined by spaces; empty if the process is gone."""
    try:
        return read_file(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def writes_stack(pid: int, number: int = STACK_SIGNAL) -> bool:
    """Return whether a process handles the signal, which ends one that has not begun to, or executes another."""
    try:
        status = read_file(f"/proc/{pid}/status")
    except OSError:
        return False
    caught = status.partition(b"SigCgt:")[2].split(maxsplit=1)
    return bool(caught) and bool(int(caught[0], 16) >> (number - 1) & 1)


def thread_use(pid: int, thread: int) -> tuple[bytes, int]:
    """Return the state letter of a thread and the clock ticks of CPU that it has used; nothing if it is gone."""
    try:
        state, *fields = read_file(f"/proc/{pid}/task/{thread}/stat").rpartition(b")")[2].split()
    except OSError:
        return b"", 0
    return state, int(fields[10]) + int(fields[11])


def own_children() -> list[int]:
    """Return the children of this process, which must have one thread."""
    pid = os.getpid()
    found = children_of_thread(pid, pid)
    return _children_by_scan(pid) if found is None else found


def open_children() -> int | None:
    """Open the list of the children of this thread, which is read again from its start; None: the kernel has none."""
    try:
        return os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def children_of_thread(pid: int, thread: int) -> list[int] | None:
    """Return the children of one thread of a process; None if the kernel does not list them."""
    try:
        return [int(child) for child in read_file(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        return None


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return [int(child) for thread in threads for child in read_file(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError:
        return _children_by_scan(pid)


def _children_by_scan(parent: int) -> list[int]:
    """Find children by their parent pid: for kernels without CONFIG_PROC_CHILDREN, or if the process just ended."""
    found = []
    for pid in pids():
        try:
            if int(stat_fields(pid)[1]) == parent:
                found.append(pid)
        except OSError:
            continue
    return found


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, nearest first."""
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
    """Return the soft and the hard limit of open descriptors of this process."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def set_descriptor_limits(pid: int, limits: tuple[int, int]) -> None:
    """Set the descriptor limits of a child, which its children inherit. Does nothing if it has ended."""
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    except ProcessLookupError:
        return


def raise_descriptor_limit() -> int:
    """Raise the soft descriptor limit to the hard one, at most ``DESCRIPTORS_GOAL``; return the limit in force."""
    soft, hard = descriptor_limits()
    wanted = DESCRIPTORS_GOAL if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_GOAL)
    if soft == resource.RLIM_INFINITY:
        return DESCRIPTORS_GOAL
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def open_signal_descriptor(number: int) -> int:
    """Return a descriptor that is readable while this signal is pending (signalfd). The signal must be blocked."""
    mask = (1 << (number - 1)).to_bytes(_SIGSET_BYTES, sys.byteorder)
    return _check(_libc.signalfd(-1, mask, os.O_CLOEXEC | os.O_NONBLOCK))


def enter_cgroup(folder: str) -> None:
    """Move this process into a cgroup. Raises OSError."""
    descriptor = os.open(f"{folder}/cgroup.procs", os.O_WRONLY)
    os.write(descriptor, b"0")
    os.close(descriptor)


def leave_cgroup(folder: str) -> None:
    """Move this process from the cgroup of an attempt to that of the executor. Raises OSError."""
    enter_cgroup(os.path.join(os.path.dirname(folder), CGROUP))


def flush_c_streams() -> None:
    """Write what C code has printed and the C library still holds."""
    _libc.fflush(None)


# --- Children of this process -----------------------------------------------------------------------------------------


def next_exited() -> os.waitid_result | None:
    """Return a dead child without reaping it; None if there is none."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None


def wait_for_exited() -> int:
    """Wait until a child is dead, and return its pid without reaping it."""
    death = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    assert death is not None
    return death.si_pid


def was_killed(death: os.waitid_result) -> bool:
    """Return whether a SIGKILL ended a process."""
    return death.si_code == os.CLD_KILLED and death.si_status == signal.SIGKILL


def kill_group(leader: int) -> None:
    """SIGKILL the group of an own unreaped child."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except OUT_OF_REACH:
        return


def kill_descendants(seconds: float) -> tuple[list[int], list[int]]:
    """Kill and reap all descendants: each becomes a child of this process, their living subreaper.

    Returns the pids of those that a SIGKILL ended, and of those that live after ``seconds``.
    """
    killed: dict[int, None] = {}
    limit = time.monotonic() + seconds
    try:
        while time.monotonic() < limit:
            death = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if death is None:
                kill_all(descendants(os.getpid()))
                time.sleep(0.002)  # no event reports a process that was forked while the others were killed
                continue
            if was_killed(death):
                killed[death.si_pid] = None
            os.waitpid(death.si_pid, 0)
    except ChildProcessError:
        return list(killed), []
    alive = descendants(os.getpid())
    return [*killed, *alive], alive


# --- Signals ----------------------------------------------------------------------------------------------------------


def has_ended(pidfd: int) -> bool:
    """Return whether the process is a zombie or gone."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def signal_group(pidfd: int, pid: int, number: int) -> bool:
    """Signal the process group that a process leads, or the process alone before it has created its group.

    Returns False if none of them could be reached.
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
        os.killpg(pid, number)  # the pid is pinned: the process lives, or its zombie is not reaped
    except OUT_OF_REACH:
        return signal_process(pidfd, number)
    return True


def signal_thread(pid: int, thread: int, number: int) -> bool:
    """Signal one thread of a process that lives. Returns False if it is out of reach, or the C library cannot."""
    try:
        return bool(_libc.tgkill(pid, thread, number) == 0)
    except AttributeError:
        return False


def kill_all(pids: Iterable[int]) -> None:
    """SIGKILL each process that can be reached. Only for pids that were just read from /proc."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OUT_OF_REACH:
            continue
