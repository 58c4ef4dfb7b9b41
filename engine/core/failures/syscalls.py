"""Map system calls and kernel functions to what a sleeping thread does.

Calls with the same meaning for a hang share one activity: ``read`` and ``readv`` both read. Only calls that may block
for long are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Activity(StrEnum):
    """What a system call does."""

    READ = "read"
    RECEIVE = "recv"
    WRITE = "write"
    SEND = "send"
    CONNECT = "connect"
    ACCEPT = "accept"
    POLL = "poll"
    SELECT = "select"
    EPOLL = "epoll"
    LOCK_FILE = "flock"
    FUTEX = "futex"
    WAIT_CHILD = "wait"
    SLEEP = "sleep"
    SYNC = "fsync"
    OPEN = "open"
    SIGNAL = "sigwait"


_X86_64 = {
    Activity.READ: (0, 17, 19, 295),  # read pread64 readv preadv
    Activity.RECEIVE: (45, 47, 299),  # recvfrom recvmsg recvmmsg
    Activity.WRITE: (1, 18, 20, 296),  # write pwrite64 writev pwritev
    Activity.SEND: (44, 46, 307, 40),  # sendto sendmsg sendmmsg sendfile
    Activity.CONNECT: (42,),
    Activity.ACCEPT: (43, 288),
    Activity.POLL: (7, 271),  # poll ppoll
    Activity.SELECT: (23, 270),  # select pselect6
    Activity.EPOLL: (232, 281, 441),
    Activity.LOCK_FILE: (73, 72),  # flock fcntl
    Activity.FUTEX: (202, 449),
    Activity.WAIT_CHILD: (61, 247),  # wait4 waitid
    Activity.SLEEP: (35, 230),  # nanosleep clock_nanosleep
    Activity.SYNC: (74, 75, 162, 306),  # fsync fdatasync sync syncfs
    Activity.OPEN: (2, 257),  # open openat: a FIFO, or a file system that does not answer
    Activity.SIGNAL: (34, 130, 128),  # pause rt_sigsuspend rt_sigtimedwait
}
_AARCH64 = {
    Activity.READ: (63, 67, 65, 69),
    Activity.RECEIVE: (207, 212, 243),
    Activity.WRITE: (64, 68, 66, 70),
    Activity.SEND: (206, 211, 269, 71),
    Activity.CONNECT: (203,),
    Activity.ACCEPT: (202, 242),
    Activity.POLL: (73,),
    Activity.SELECT: (72,),
    Activity.EPOLL: (22, 441),
    Activity.LOCK_FILE: (32, 25),
    Activity.FUTEX: (98, 449),
    Activity.WAIT_CHILD: (260, 95),
    Activity.SLEEP: (101, 115),
    Activity.SYNC: (82, 83, 81, 267),
    Activity.OPEN: (56,),
    Activity.SIGNAL: (133, 137),
}


def _by_number(table: Mapping[Activity, tuple[int, ...]]) -> dict[int, Activity]:
    return {number: activity for activity, numbers in table.items() for number in numbers}


#: By ``os.uname().machine``. On other machines the kernel function is used.
SYSTEM_CALLS: Mapping[str, Mapping[int, Activity]] = {"x86_64": _by_number(_X86_64), "aarch64": _by_number(_AARCH64)}

#: By the start of the kernel function in /proc/PID/wchan, if the system call itself cannot be read.
_CHANNELS = (
    ("pipe_read", Activity.READ),
    ("anon_pipe_read", Activity.READ),
    ("pipe_write", Activity.WRITE),
    ("anon_pipe_write", Activity.WRITE),
    ("pipe_wait", Activity.READ),
    ("unix_stream_read", Activity.RECEIVE),
    ("unix_stream_data_wait", Activity.RECEIVE),
    ("skb_wait_for_more_packets", Activity.RECEIVE),
    ("__skb_wait_for_more_packets", Activity.RECEIVE),
    ("sk_wait_data", Activity.RECEIVE),
    ("wait_woken", Activity.RECEIVE),
    ("sk_stream_wait_memory", Activity.SEND),
    ("sock_alloc_send_pskb", Activity.SEND),
    ("inet_stream_connect", Activity.CONNECT),
    ("__inet_stream_connect", Activity.CONNECT),
    ("inet_csk_accept", Activity.ACCEPT),
    ("do_epoll_wait", Activity.EPOLL),
    ("ep_poll", Activity.EPOLL),
    ("poll_schedule_timeout", Activity.POLL),
    ("do_select", Activity.SELECT),
    ("locks_lock_inode_wait", Activity.LOCK_FILE),
    ("flock_lock_inode_wait", Activity.LOCK_FILE),
    ("fcntl_setlk", Activity.LOCK_FILE),
    ("futex_", Activity.FUTEX),
    ("do_wait", Activity.WAIT_CHILD),
    ("kernel_waitid", Activity.WAIT_CHILD),
    ("hrtimer_nanosleep", Activity.SLEEP),
    ("do_nanosleep", Activity.SLEEP),
    ("sigsuspend", Activity.SIGNAL),
    ("do_sigtimedwait", Activity.SIGNAL),
)


def activity_of_channel(channel: str) -> Activity | None:
    """Return what a thread does that sleeps in a kernel function; None if the function is not listed."""
    return next((activity for beginning, activity in _CHANNELS if channel.startswith(beginning)), None)
