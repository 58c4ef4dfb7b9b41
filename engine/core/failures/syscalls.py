"""What a thread that sleeps is doing, by the number of its system call or by the kernel function it sleeps in.

Calls that mean the same to whoever looks at a hang have one word here: ``read``, ``readv`` and ``recvmsg`` all take
something in. Only what may block for long is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Doing(StrEnum):
    """What a call is about."""

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
    Doing.READ: (0, 17, 19, 295),  # read pread64 readv preadv
    Doing.RECEIVE: (45, 47, 299),  # recvfrom recvmsg recvmmsg
    Doing.WRITE: (1, 18, 20, 296),  # write pwrite64 writev pwritev
    Doing.SEND: (44, 46, 307, 40),  # sendto sendmsg sendmmsg sendfile
    Doing.CONNECT: (42,),
    Doing.ACCEPT: (43, 288),
    Doing.POLL: (7, 271),  # poll ppoll
    Doing.SELECT: (23, 270),  # select pselect6
    Doing.EPOLL: (232, 281, 441),
    Doing.LOCK_FILE: (73, 72),  # flock fcntl
    Doing.FUTEX: (202, 449),
    Doing.WAIT_CHILD: (61, 247),  # wait4 waitid
    Doing.SLEEP: (35, 230),  # nanosleep clock_nanosleep
    Doing.SYNC: (74, 75, 162, 306),  # fsync fdatasync sync syncfs
    Doing.OPEN: (2, 257),  # open openat: a FIFO, or a file system that does not answer
    Doing.SIGNAL: (34, 130, 128),  # pause rt_sigsuspend rt_sigtimedwait
}
_AARCH64 = {
    Doing.READ: (63, 67, 65, 69),
    Doing.RECEIVE: (207, 212, 243),
    Doing.WRITE: (64, 68, 66, 70),
    Doing.SEND: (206, 211, 269, 71),
    Doing.CONNECT: (203,),
    Doing.ACCEPT: (202, 242),
    Doing.POLL: (73,),
    Doing.SELECT: (72,),
    Doing.EPOLL: (22, 441),
    Doing.LOCK_FILE: (32, 25),
    Doing.FUTEX: (98, 449),
    Doing.WAIT_CHILD: (260, 95),
    Doing.SLEEP: (101, 115),
    Doing.SYNC: (82, 83, 81, 267),
    Doing.OPEN: (56,),
    Doing.SIGNAL: (133, 137),
}


def _by_number(table: Mapping[Doing, tuple[int, ...]]) -> dict[int, Doing]:
    return {number: doing for doing, numbers in table.items() for number in numbers}


#: By ``os.uname().machine``. Elsewhere the kernel function must tell.
SYSTEM_CALLS: Mapping[str, Mapping[int, Doing]] = {"x86_64": _by_number(_X86_64), "aarch64": _by_number(_AARCH64)}

#: By the beginning of the kernel function that /proc/PID/wchan names, where the call itself may not be read.
_CHANNELS = (
    ("pipe_read", Doing.READ),
    ("anon_pipe_read", Doing.READ),
    ("pipe_write", Doing.WRITE),
    ("anon_pipe_write", Doing.WRITE),
    ("pipe_wait", Doing.READ),
    ("unix_stream_read", Doing.RECEIVE),
    ("unix_stream_data_wait", Doing.RECEIVE),
    ("skb_wait_for_more_packets", Doing.RECEIVE),
    ("__skb_wait_for_more_packets", Doing.RECEIVE),
    ("sk_wait_data", Doing.RECEIVE),
    ("wait_woken", Doing.RECEIVE),
    ("sk_stream_wait_memory", Doing.SEND),
    ("sock_alloc_send_pskb", Doing.SEND),
    ("inet_stream_connect", Doing.CONNECT),
    ("__inet_stream_connect", Doing.CONNECT),
    ("inet_csk_accept", Doing.ACCEPT),
    ("do_epoll_wait", Doing.EPOLL),
    ("ep_poll", Doing.EPOLL),
    ("poll_schedule_timeout", Doing.POLL),
    ("do_select", Doing.SELECT),
    ("locks_lock_inode_wait", Doing.LOCK_FILE),
    ("flock_lock_inode_wait", Doing.LOCK_FILE),
    ("fcntl_setlk", Doing.LOCK_FILE),
    ("futex_", Doing.FUTEX),
    ("do_wait", Doing.WAIT_CHILD),
    ("kernel_waitid", Doing.WAIT_CHILD),
    ("hrtimer_nanosleep", Doing.SLEEP),
    ("do_nanosleep", Doing.SLEEP),
    ("sigsuspend", Doing.SIGNAL),
    ("do_sigtimedwait", Doing.SIGNAL),
)


def doing_in(channel: str) -> Doing | None:
    """What a thread is doing that sleeps in this kernel function; None where that does not tell."""
    return next((doing for beginning, doing in _CHANNELS if channel.startswith(beginning)), None)
