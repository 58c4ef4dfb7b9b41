"""Explain why an attempt did not end, in one sentence, from its processes just before they were killed.

A read without a reply, an endless loop, a child that hangs and a lock of another process need different people.
``describe_hang`` names the case, ``hang_report`` lists all observations. In a container both may lack facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from ...domain.text import first_names, format_seconds
from .tables import by_code

# --- Map system calls and kernel functions to what a sleeping thread does --------------------------------------------
#
# Calls with the same meaning for a hang share one activity: ``read`` and ``readv`` both read. Only calls that may
# block for long are listed.


class Activity(StrEnum):
    """The effect of a system call."""

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


#: By ``os.uname().machine``. On other machines the kernel function is used.
SYSTEM_CALLS: Mapping[str, Mapping[int, Activity]] = {"x86_64": by_code(_X86_64), "aarch64": by_code(_AARCH64)}

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


# --- The explanation -------------------------------------------------------------------------------------------------


SPINNING_SHARE = 0.5  # of one processor: with this share a process computes and does not wait
RUNNING_SHARE = 0.05  # the same for a runnable process on a busy machine
NAMED_MAX = 2
ENDS_SHOWN = 40
REPORT_HEADING = "Processes:"


class Process(msgspec.Struct, frozen=True):
    """A process, or a thread. ``cpu``: share of one processor over the window, if known.

    ``waits_on``: the descriptors of its system call; for a wait for a child, the pid. ``is_exact``: the system call was
    read, not guessed from the kernel function.
    """

    pid: int
    parent: int = 0
    state: str = ""  # the letter in /proc: R S D T Z
    name: str = ""
    command_line: str = ""  # the command line
    wait_channel: str = ""  # kernel function
    activity: Activity | None = None
    waits_on: tuple[int, ...] = ()
    is_exact: bool = False
    cpu: float | None = None
    owner: int = 0  # of a thread: the process whose descriptors it uses


class Descriptor(msgspec.Struct, frozen=True):
    """A file descriptor. ``name``: the peer of a socket, the path of a file; ends of a pipe share ``inode``."""

    pid: int
    number: int
    kind: str  # tcp udp unix pipe file other
    name: str = ""
    state: str = ""  # of a TCP connection
    unread: int | None = None  # bytes in the receive queue
    unsent: int | None = None  # bytes in the send queue
    inode: int = 0
    is_write_end: bool = False  # the write end of a pipe

    @property
    def is_connection(self) -> bool:
        """True for a socket with a peer; the socket pair of an event loop has none."""
        return self.kind in ("tcp", "udp", "unix") and bool(self.name)


class FileLock(msgspec.Struct, frozen=True):
    """A file lock that process ``pid`` waits for. ``holder`` 0: unknown."""

    pid: int
    path: str
    holder: int = 0
    holder_name: str = ""


class Autopsy(msgspec.Struct, frozen=True):
    """All observations. The process of the attempt comes first; its other ``threads`` have the form of processes.

    ``cpu``: of all processes together, those that have ended included, over ``window_seconds``.
    """

    processes: tuple[Process, ...] = ()
    threads: tuple[Process, ...] = ()
    descriptors: tuple[Descriptor, ...] = ()
    locks: tuple[FileLock, ...] = ()
    cpu: float | None = None
    window_seconds: float = 0.0
    last_output: str = ""  # the last line of output, ``quiet_seconds`` before
    quiet_seconds: float = 0.0
    is_complete: bool = True  # False: the time limit cut the inspection
    cpu_by_second: tuple[float, ...] = ()  # of all processes together, the latest last


class StackSummary(msgspec.Struct, frozen=True):
    """The dump of the stacks in short: ``where`` in the user's code, and the library ``call`` made there.

    ``elsewhere``: the place of another thread that is in the user's code.
    """

    where: str | None = None  # "parser.py:87 in read_row"
    call: str = ""  # "re.match"
    elsewhere: str | None = None


class _Observation(msgspec.Struct, frozen=True):
    """The observation of one process, in words. ``behind``: the process that it waits for."""

    words: str
    behind: int | None = None


class _HangCase(msgspec.Struct, frozen=True):
    autopsy: Autopsy
    frames: StackSummary
    processes: dict[int, Process] = {}

    @property
    def root(self) -> Process:
        return self.autopsy.processes[0]

    def descriptors_of(self, process: Process) -> list[Descriptor]:
        return [one for one in self.autopsy.descriptors if one.pid == (process.owner or process.pid)]

    def waited_on(self, process: Process) -> list[Descriptor]:
        return [one for one in self.descriptors_of(process) if one.number in process.waits_on]


# --- The sentence ---------------------------------------------------------------------------------------------------


_NO_FRAMES = StackSummary()


def describe_hang(autopsy: Autopsy, frames: StackSummary = _NO_FRAMES) -> str:
    """Describe a hang in one sentence without a full stop; empty without observations."""
    if not autopsy.processes:
        return ""
    case = _HangCase(autopsy, frames, {process.pid: process for process in autopsy.processes})
    words = _computing(case) or _waiting(case)
    return words if autopsy.cpu is None else f"{words}, {_cpu_text(autopsy.cpu, autopsy.window_seconds)}"


def _cpu_text(share: float, seconds: float) -> str:
    span = format_seconds(round(seconds, 0 if seconds >= 1 else 1))
    return f"{100 * share:.0f} % CPU for the last {span}"


def _computing(case: _HangCase) -> str:
    busiest = max(case.autopsy.processes, key=lambda process: process.cpu or 0.0)
    threads = (busiest, *case.autopsy.threads) if busiest is case.root else (busiest,)
    wants_to_run = any(thread.state == "R" for thread in threads)
    if (busiest.cpu or 0.0) < (RUNNING_SHARE if wants_to_run else SPINNING_SHARE):
        return "busy, in processes that come and go" if (case.autopsy.cpu or 0.0) >= SPINNING_SHARE else ""
    if busiest is not case.root:
        return f"its {_relation(case, busiest)} {_process_text(busiest)} is spinning"
    frames = case.frames
    if frames.elsewhere is not None and case.root.activity in (Activity.FUTEX, Activity.SLEEP):
        return f"a thread is spinning at {frames.elsewhere}"
    if frames.where is None:
        return f"`{busiest.name}` is spinning"
    return f"spinning in {frames.call} at {frames.where}" if frames.call else f"spinning at {frames.where}"


def _waiting(case: _HangCase) -> str:
    """Describe the last process in the chain of processes that wait for one another."""
    place = f" at {case.frames.where}" if case.frames.where else ""
    observation = _observe(case, case.root)
    last, seen = case.root, {case.root.pid}
    while observation.behind is not None and observation.behind in case.processes and observation.behind not in seen:
        last = case.processes[observation.behind]
        seen.add(last.pid)
        observation = _observe(case, last)
    if last is case.root:
        return f"{observation.words}{place}"
    return f"waits{place} for its {_relation(case, last)} {_process_text(last)}: {observation.words}"


def _relation(case: _HangCase, process: Process) -> str:
    return "child" if process.parent == case.root.pid else "descendant"


def _process_text(process: Process) -> str:
    standing = f"{process.state} in {process.wait_channel}" if process.wait_channel else process.state
    return f"`{process.name}` (pid {process.pid}{f', {standing}' if standing else ''})"


# --- One process ----------------------------------------------------------------------------------------------------


def _observe(case: _HangCase, process: Process) -> _Observation:
    if process.state in ("T", "t"):
        return _Observation("stopped by a signal")
    if process.state == "Z":
        return _Observation("has ended, and its parent has not reaped it")
    found = _DESCRIBERS[process.activity](case, process) if process.activity in _DESCRIBERS else _unknown(case, process)
    if process.state != "D":
        return found
    channel = f" ({process.wait_channel})" if process.wait_channel else ""
    return _Observation(f"stuck in the kernel, where no signal reaches it{channel}: {found.words}")


def _unknown(case: _HangCase, process: Process) -> _Observation:
    if process.state == "R":
        return _Observation("running")
    return _Observation(f"blocked in {process.wait_channel}" if process.wait_channel else "blocked")


def _of_transfer(case: _HangCase, process: Process) -> _Observation:
    writes = process.activity in (Activity.WRITE, Activity.SEND)
    call, towards, doing = ("send", "to", "writing to") if writes else ("recv", "from", "reading")
    ends = case.waited_on(process)
    if not ends:
        return _infer_peer(case, process, call, towards)
    end = ends[0]
    if end.kind == "pipe":
        return _of_pipe(case, process, end, writes=writes)
    if end.kind in ("tcp", "udp", "unix"):
        return _Observation(f"blocked in {call} {towards} {_peer(end)}")
    return _Observation(f"{doing} {end.name or 'a descriptor'}")


def _infer_peer(case: _HangCase, process: Process, call: str, towards: str) -> _Observation:
    """Without the system call: a single connection is likely the one in use."""
    known = [end for end in case.descriptors_of(process) if end.is_connection]
    if process.is_exact or len(known) != 1:
        return _Observation(f"blocked in {call}")
    return _Observation(f"blocked in {call}, perhaps {towards} {_peer(known[0])}")


def _peer(end: Descriptor) -> str:
    what = end.name or ("a unix socket" if end.kind == "unix" else "a socket without a peer")
    notes = [end.state] if end.state not in ("", "ESTABLISHED") else []
    notes += [f"{end.unsent:,} bytes unsent"] if end.unsent else []
    return f"{what} ({', '.join(notes)})" if notes else what


def _of_pipe(case: _HangCase, process: Process, end: Descriptor, *, writes: bool) -> _Observation:
    """A process at a pipe waits for the holder of the other end."""
    others = [
        one
        for one in case.autopsy.descriptors
        if one.inode == end.inode and one.is_write_end is not writes and one.kind == "pipe"
    ]
    strangers = [one.pid for one in others if one.pid != process.pid]
    if strangers:
        return _Observation("blocked on a pipe", behind=strangers[0])
    if others:
        return _Observation("blocked on a pipe of which it holds both ends itself")
    return _Observation(f"{'writing to' if writes else 'reading'} a pipe")


def _of_poll(case: _HangCase, process: Process) -> _Observation:
    ends = case.waited_on(process)
    known = [end for end in ends if end.is_connection]
    if known:
        return _Observation(f"waits for {first_names(known, NAMED_MAX, _peer)}")
    for end in ends:
        if end.kind == "pipe":
            found = _of_pipe(case, process, end, writes=end.is_write_end)
            if found.behind is not None or len(ends) == 1:
                return found
    if process.activity is Activity.EPOLL:
        call = case.frames.call if process is case.root else ""
        return _Observation(f"awaits {call}" if call else "idle in its event loop")
    return _Observation("waits for a descriptor" if ends else "blocked in poll")


def _of_connect(case: _HangCase, process: Process) -> _Observation:
    ends = [end for end in case.waited_on(process) if end.name]
    return _Observation(f"connecting to {_peer(ends[0])}" if ends else "blocked in connect")


def _of_lock(case: _HangCase, process: Process) -> _Observation:
    lock = next((lock for lock in case.autopsy.locks if lock.pid == process.pid), None)
    if lock is None:
        path = next((end.name for end in case.waited_on(process)), "")
        return _Observation(f"waits for a lock on {path or 'a file'}")
    if not lock.holder:
        return _Observation(f"waits for a lock on {lock.path}")
    name = f" (`{lock.holder_name}`)" if lock.holder_name else ""
    return _Observation(f"waits for a lock on {lock.path} held by pid {lock.holder}{name}")


def _of_child(case: _HangCase, process: Process) -> _Observation:
    children = [one for one in case.autopsy.processes if one.parent == process.pid and one is not process]
    asked = [one for one in children if one.pid in process.waits_on]
    living = [one for one in asked or children if one.state != "Z"]
    if not living:
        return _Observation("waits for a child process")
    free = [one for one in living if _observe(case, one).behind not in {other.pid for other in living}]
    return _Observation("waits for a child process", behind=(free or living)[0].pid)


#: Activities of another thread that explain why the main thread waits for it.
_EXPLAINING = frozenset([Activity.RECEIVE, Activity.SEND, Activity.CONNECT, Activity.LOCK_FILE])


def _of_futex(case: _HangCase, process: Process) -> _Observation:
    if process is not case.root:
        return _Observation("waits for a lock or a thread of its own")
    busy = next((thread for thread in case.autopsy.threads if thread.activity in _EXPLAINING), None)
    if busy is not None:
        return _Observation(f"waits for a thread of its own, {_observe(case, busy).words}")
    return _Observation(
        f"waits in {case.frames.call}" if case.frames.call else "waits for a lock or a thread of its own"
    )


def _constant(words: str) -> Callable[[_HangCase, Process], _Observation]:
    return lambda case, process: _Observation(words)


_DESCRIBERS: dict[Activity | None, Callable[[_HangCase, Process], _Observation]] = {
    Activity.READ: _of_transfer,
    Activity.RECEIVE: _of_transfer,
    Activity.WRITE: _of_transfer,
    Activity.SEND: _of_transfer,
    Activity.CONNECT: _of_connect,
    Activity.ACCEPT: _constant("waits for a connection to accept"),
    Activity.POLL: _of_poll,
    Activity.SELECT: _of_poll,
    Activity.EPOLL: _of_poll,
    Activity.LOCK_FILE: _of_lock,
    Activity.FUTEX: _of_futex,
    Activity.WAIT_CHILD: _of_child,
    Activity.SLEEP: _constant("asleep"),
    Activity.SYNC: _constant("waits for the disk"),
    Activity.OPEN: _constant("blocked in opening a file"),
    Activity.SIGNAL: _constant("waits for a signal"),
}


# --- The report -----------------------------------------------------------------------------------------------------


def hang_report(autopsy: Autopsy) -> str:
    """List all observations, one a line; empty without observations."""
    if not autopsy.processes:
        return ""
    lines = [REPORT_HEADING, *map(_process_line, autopsy.processes)]
    lines += ["Other threads:", *map(_process_line, autopsy.threads)] if autopsy.threads else []
    waited_on = {(one.pid, number) for one in autopsy.processes for number in one.waits_on}
    shown = [end for end in autopsy.descriptors if end.name or (end.pid, end.number) in waited_on]
    lines += ["Open:", *map(_descriptor_line, shown[:ENDS_SHOWN])] if shown else []
    lines += [f"  and {len(shown) - ENDS_SHOWN} more"] if len(shown) > ENDS_SHOWN else []
    lines += ["Locks:", *map(_lock_line, autopsy.locks)] if autopsy.locks else []
    if autopsy.last_output:
        lines += ["Output:", f"  {format_seconds(autopsy.quiet_seconds)} before: {autopsy.last_output}"]
    lines += _cpu_lines(autopsy.cpu_by_second)
    lines += [] if autopsy.is_complete else ["The list is incomplete: the inspection reached its time limit."]
    return "\n".join(lines) + "\n"


def _cpu_lines(shares: tuple[float, ...]) -> list[str]:
    """A digit for each second, the latest last."""
    digits = "".join("+" if share >= 1.5 else str(min(round(share * 9), 9)) for share in shares)
    return [_CPU_HEADING, f"  {digits}"] if len(digits) > 2 else []


_CPU_HEADING = "CPU by the second, 0 idle, 9 one CPU, + more:"


def cpu_by_second(text: str) -> list[int]:
    """The CPU of each second before a timeout in ``attempt.stack``, from 0 to 9; nothing if it was not sampled."""
    _, _, after = text.rpartition(f"{_CPU_HEADING}\n")
    return [9 if digit == "+" else int(digit) for digit in after.partition("\n")[0].strip() if digit in "0123456789+"]


def split_stack_and_report(text: str) -> tuple[str, str]:
    """Split ``attempt.stack`` into the dump of the stacks and the report on the processes."""
    start = f"\n{text}".find(f"\n{REPORT_HEADING}\n")
    return (text, "") if start < 0 else (text[:start], text[start:])


def _process_line(process: Process) -> str:
    doing = f", {process.activity}" if process.activity is not None else ""
    on = f" {', '.join(map(str, process.waits_on))}" if process.waits_on else ""
    channel = f" in {process.wait_channel}" if process.wait_channel else ""
    cpu = f", {100 * process.cpu:.0f} % CPU" if process.cpu is not None else ""
    return f"  pid {process.pid} {process.state}{channel}{doing}{on}{cpu}: {process.command_line or process.name}"


def _descriptor_line(end: Descriptor) -> str:
    queues = (("unread", end.unread), ("unsent", end.unsent))
    notes_known = [end.state, *(f"{count:,} bytes {word}" for word, count in queues if count is not None)]
    notes = ", ".join(note for note in notes_known if note)
    return f"  pid {end.pid} fd {end.number} {end.kind} {end.name}".rstrip() + (f" ({notes})" if notes else "")


def _lock_line(lock: FileLock) -> str:
    holder = f" held by pid {lock.holder} {lock.holder_name}".rstrip() if lock.holder else ""
    return f"  pid {lock.pid} waits for {lock.path}{holder}"
