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
_CHANNELS = {
    Activity.READ: ("pipe_read", "anon_pipe_read", "pipe_wait"),
    Activity.WRITE: ("pipe_write", "anon_pipe_write"),
    Activity.RECEIVE: (
        *("unix_stream_read", "unix_stream_data_wait", "sk_wait_data", "wait_woken"),
        *("skb_wait_for_more_packets", "__skb_wait_for_more_packets"),
    ),
    Activity.SEND: ("sk_stream_wait_memory", "sock_alloc_send_pskb"),
    Activity.CONNECT: ("inet_stream_connect", "__inet_stream_connect"),
    Activity.ACCEPT: ("inet_csk_accept",),
    Activity.EPOLL: ("do_epoll_wait", "ep_poll"),
    Activity.POLL: ("poll_schedule_timeout",),
    Activity.SELECT: ("do_select",),
    Activity.LOCK_FILE: ("locks_lock_inode_wait", "flock_lock_inode_wait", "fcntl_setlk"),
    Activity.FUTEX: ("futex_",),
    Activity.WAIT_CHILD: ("do_wait", "kernel_waitid"),
    Activity.SLEEP: ("hrtimer_nanosleep", "do_nanosleep"),
    Activity.SIGNAL: ("sigsuspend", "do_sigtimedwait"),
}


def activity_of_channel(channel: str) -> Activity | None:
    """Return what a thread does that sleeps in a kernel function; None if the function is not listed."""
    return next((activity for activity, beginnings in _CHANNELS.items() if channel.startswith(beginnings)), None)
