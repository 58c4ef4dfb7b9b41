"""Why an attempt did not end, in one sentence made from what was seen of its processes just before it was ended.

A read that is never answered, an endless loop, a child that hangs and a lock that somebody holds need four different
people. ``sentence`` tells which it was, ``report`` lays out all that was seen. Both only say what was read: where a
container hides something, less is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..durations import format_duration
from .syscalls import Activity

SPINNING_SHARE = 0.5  # of one processor: from here on it computes, and does not wait
RUNNING_SHARE = 0.05  # the same for one that wants to run, where others want to as well
NAMED_MAX = 2
ENDS_SHOWN = 40
HEADING = "Processes:"


@dataclass(frozen=True, slots=True)
class Process:
    """One process, or the thread that was looked at. ``cpu``: share of one processor over the window, if known.

    ``waits_on``: the descriptors that its call is about; for a wait for a child, its pid. ``is_exact``: the call
    itself was read, not guessed from the kernel function that it sleeps in.
    """

    pid: int
    parent: int = 0
    state: str = ""  # as /proc has it: R S D T Z
    name: str = ""
    command_line: str = ""  # the command line
    wait_channel: str = ""  # kernel function
    activity: Activity | None = None
    waits_on: tuple[int, ...] = ()
    is_exact: bool = False
    cpu: float | None = None
    owner: int = 0  # of a thread: the process whose descriptors it uses


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One open end. ``name``: the peer of a socket, the path of a file; ``inode`` is what two ends of a pipe share."""

    pid: int
    number: int
    kind: str  # tcp udp unix pipe file other
    name: str = ""
    state: str = ""  # of a TCP connection
    unread: int | None = None  # bytes that wait to be read
    unsent: int | None = None  # bytes that the other side has not taken
    inode: int = 0
    is_write_end: bool = False  # the end of a pipe that is written to

    @property
    def is_connection(self) -> bool:
        """Whether it leads to somebody who could answer; the loop's own pair of sockets leads nowhere."""
        return self.kind in ("tcp", "udp", "unix") and bool(self.name)


@dataclass(frozen=True, slots=True)
class FileLock:
    """A lock on a file that the process ``pid`` waits for. ``holder`` 0: not one of ours to see."""

    pid: int
    path: str
    holder: int = 0
    holder_name: str = ""


@dataclass(frozen=True, slots=True)
class Autopsy:
    """What was seen. The process of the attempt comes first; its other ``threads`` are told like processes.

    ``cpu``: of all processes together, those that have ended included, over ``window_seconds``.
    """

    processes: tuple[Process, ...] = ()
    threads: tuple[Process, ...] = ()
    descriptors: tuple[Descriptor, ...] = ()
    locks: tuple[FileLock, ...] = ()
    cpu: float | None = None
    window_seconds: float = 0.0
    last_output: str = ""  # the last line that it wrote, ``quiet_seconds`` before
    quiet_seconds: float = 0.0
    is_complete: bool = True  # False: there was more than could be looked at in time


@dataclass(frozen=True, slots=True)
class StackSummary:
    """What the dump of the stacks says: ``where`` in the user's code, and the library ``call`` made there.

    ``elsewhere``: the place of another thread that is in the user's code.
    """

    where: str | None = None  # "parser.py:87 in read_row"
    call: str = ""  # "re.match"
    elsewhere: str | None = None


@dataclass(frozen=True, slots=True)
class _Finding:
    """What one process is at. ``behind``: the process that it waits for."""

    words: str
    behind: int | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    autopsy: Autopsy
    frames: StackSummary
    processes: dict[int, Process] = field(default_factory=dict)

    @property
    def root(self) -> Process:
        return self.autopsy.processes[0]

    def ends(self, process: Process) -> list[Descriptor]:
        return [one for one in self.autopsy.descriptors if one.pid == (process.owner or process.pid)]

    def waited_on(self, process: Process) -> list[Descriptor]:
        return [one for one in self.ends(process) if one.number in process.waits_on]


# --- The sentence ---------------------------------------------------------------------------------------------------


def describe_hang(autopsy: Autopsy, frames: StackSummary = StackSummary()) -> str:
    """What it was at, without a full stop; empty when nothing was seen."""
    if not autopsy.processes:
        return ""
    case = _Case(autopsy, frames, {process.pid: process for process in autopsy.processes})
    words = _computing(case) or _waiting(case)
    return words if autopsy.cpu is None else f"{words}, {_cpu_words(autopsy.cpu, autopsy.window_seconds)}"


def _cpu_words(share: float, seconds: float) -> str:
    span = f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1f} s"
    return f"{share:.0%} CPU for the last {span}".replace("%", " %", 1)


def _computing(case: _Case) -> str:
    busiest = max(case.autopsy.processes, key=lambda process: process.cpu or 0.0)
    threads = (busiest, *case.autopsy.threads) if busiest is case.root else (busiest,)
    wants_to_run = any(thread.state == "R" for thread in threads)
    if (busiest.cpu or 0.0) < (RUNNING_SHARE if wants_to_run else SPINNING_SHARE):
        return "busy, in processes that come and go" if (case.autopsy.cpu or 0.0) >= SPINNING_SHARE else ""
    if busiest is not case.root:
        return f"its {_kinship(case, busiest)} {_named(busiest)} is spinning"
    frames = case.frames
    if frames.elsewhere is not None and case.root.activity in (Activity.FUTEX, Activity.SLEEP):
        return f"a thread is spinning at {frames.elsewhere}"
    if frames.where is None:
        return f"`{busiest.name}` is spinning"
    return f"spinning in {frames.call} at {frames.where}" if frames.call else f"spinning at {frames.where}"


def _waiting(case: _Case) -> str:
    """Of the process itself, and of the last one in the chain of those that wait for one another."""
    place = f" at {case.frames.where}" if case.frames.where else ""
    finding = _finding(case, case.root)
    last, seen = case.root, {case.root.pid}
    while finding.behind is not None and finding.behind in case.processes and finding.behind not in seen:
        last = case.processes[finding.behind]
        seen.add(last.pid)
        finding = _finding(case, last)
    if last is case.root:
        return f"{finding.words}{place}"
    return f"waits{place} for its {_kinship(case, last)} {_named(last)}: {finding.words}"


def _kinship(case: _Case, process: Process) -> str:
    return "child" if process.parent == case.root.pid else "descendant"


def _named(process: Process) -> str:
    standing = f"{process.state} in {process.wait_channel}" if process.wait_channel else process.state
    return f"`{process.name}` (pid {process.pid}{f', {standing}' if standing else ''})"


# --- What one process is at -----------------------------------------------------------------------------------------


def _finding(case: _Case, process: Process) -> _Finding:
    if process.state in ("T", "t"):
        return _Finding("stopped by a signal")
    if process.state == "Z":
        return _Finding("has ended, and nobody has asked how")
    found = _FINDERS[process.activity](case, process) if process.activity in _FINDERS else _unknown(case, process)
    if process.state != "D":
        return found
    channel = f" ({process.wait_channel})" if process.wait_channel else ""
    return _Finding(f"stuck in the kernel, where no signal reaches it{channel}: {found.words}")


def _unknown(case: _Case, process: Process) -> _Finding:
    if process.state == "R":
        return _Finding("running")
    return _Finding(f"blocked in {process.wait_channel}" if process.wait_channel else "blocked")


def _taking(case: _Case, process: Process) -> _Finding:
    return _transfer(case, process, "recv from", "reading", writes=False)


def _giving(case: _Case, process: Process) -> _Finding:
    return _transfer(case, process, "send to", "writing to", writes=True)


def _transfer(case: _Case, process: Process, of_socket: str, of_file: str, *, writes: bool) -> _Finding:
    ends = case.waited_on(process)
    if not ends:
        return _guessed(case, process, of_socket)
    end = ends[0]
    if end.kind == "pipe":
        return _of_pipe(case, process, end, writes=writes)
    if end.kind in ("tcp", "udp", "unix"):
        return _Finding(f"blocked in {of_socket} {_peer(end)}")
    return _Finding(f"{of_file} {end.name or 'a descriptor'}")


def _guessed(case: _Case, process: Process, of_socket: str) -> _Finding:
    """The call was not read: if there is one connection only, it is likely that one."""
    known = [end for end in case.ends(process) if end.is_connection]
    verb = of_socket.split()[0]
    if process.is_exact or len(known) != 1:
        return _Finding(f"blocked in {verb}")
    return _Finding(f"blocked in {verb}, perhaps {of_socket.split()[1]} {_peer(known[0])}")


def _peer(end: Descriptor) -> str:
    what = end.name or ("a unix socket" if end.kind == "unix" else "a socket without a peer")
    notes = [end.state] if end.state not in ("", "ESTABLISHED") else []
    notes += [f"{end.unsent:,} bytes unsent"] if end.unsent else []
    return f"{what} ({', '.join(notes)})" if notes else what


def _of_pipe(case: _Case, process: Process, end: Descriptor, *, writes: bool) -> _Finding:
    """Whoever holds the other end is who it waits for."""
    others = [
        one
        for one in case.autopsy.descriptors
        if one.inode == end.inode and one.is_write_end is not writes and one.kind == "pipe"
    ]
    strangers = [one.pid for one in others if one.pid != process.pid]
    if strangers:
        return _Finding("blocked on a pipe", behind=strangers[0])
    if others:
        return _Finding("blocked on a pipe of which it holds both ends itself")
    return _Finding(f"{'writing to' if writes else 'reading'} a pipe")


def _polling(case: _Case, process: Process) -> _Finding:
    ends = case.waited_on(process)
    known = [end for end in ends if end.is_connection]
    if known:
        named = ", ".join(_peer(end) for end in known[:NAMED_MAX])
        more = f" and {len(known) - NAMED_MAX} more" if len(known) > NAMED_MAX else ""
        return _Finding(f"waits for {named}{more}")
    for end in ends:
        if end.kind == "pipe":
            found = _of_pipe(case, process, end, writes=end.is_write_end)
            if found.behind is not None or len(ends) == 1:
                return found
    if process.activity is Activity.EPOLL:
        call = case.frames.call if process is case.root else ""
        return _Finding(f"awaits {call}" if call else "idle in its event loop")
    return _Finding("waits for a descriptor" if ends else "blocked in poll")


def _of_connect(case: _Case, process: Process) -> _Finding:
    ends = [end for end in case.waited_on(process) if end.name]
    return _Finding(f"connecting to {_peer(ends[0])}" if ends else "blocked in connect")


def _of_accept(case: _Case, process: Process) -> _Finding:
    return _Finding("waits for somebody to connect to it")


def _of_lock(case: _Case, process: Process) -> _Finding:
    lock = next((lock for lock in case.autopsy.locks if lock.pid == process.pid), None)
    if lock is None:
        ends = case.waited_on(process)
        return _Finding(
            f"waits for a lock on {ends[0].name}" if ends and ends[0].name else "waits for a lock on a file"
        )
    if not lock.holder:
        return _Finding(f"waits for a lock on {lock.path}")
    name = f" (`{lock.holder_name}`)" if lock.holder_name else ""
    return _Finding(f"waits for a lock on {lock.path} held by pid {lock.holder}{name}")


def _of_child(case: _Case, process: Process) -> _Finding:
    children = [one for one in case.autopsy.processes if one.parent == process.pid and one is not process]
    asked = [one for one in children if one.pid in process.waits_on]
    living = [one for one in asked or children if one.state != "Z"]
    if not living:
        return _Finding("waits for a child process")
    free = [one for one in living if _finding(case, one).behind not in {other.pid for other in living}]
    return _Finding("waits for a child process", behind=(free or living)[0].pid)


#: What a thread of its own may be at that explains why the others wait for it.
_TELLING = frozenset([Activity.RECEIVE, Activity.SEND, Activity.CONNECT, Activity.LOCK_FILE])


def _of_futex(case: _Case, process: Process) -> _Finding:
    if process is not case.root:
        return _Finding("waits for a lock or a thread of its own")
    busy = next((thread for thread in case.autopsy.threads if thread.activity in _TELLING), None)
    if busy is not None:
        return _Finding(f"waits for a thread of its own, {_finding(case, busy).words}")
    return _Finding(f"waits in {case.frames.call}" if case.frames.call else "waits for a lock or a thread of its own")


def _constant(words: str) -> Callable[[_Case, Process], _Finding]:
    return lambda case, process: _Finding(words)


_FINDERS: dict[Activity | None, Callable[[_Case, Process], _Finding]] = {
    Activity.READ: _taking,
    Activity.RECEIVE: _taking,
    Activity.WRITE: _giving,
    Activity.SEND: _giving,
    Activity.CONNECT: _of_connect,
    Activity.ACCEPT: _of_accept,
    Activity.POLL: _polling,
    Activity.SELECT: _polling,
    Activity.EPOLL: _polling,
    Activity.LOCK_FILE: _of_lock,
    Activity.FUTEX: _of_futex,
    Activity.WAIT_CHILD: _of_child,
    Activity.SLEEP: _constant("asleep"),
    Activity.SYNC: _constant("waits for the disk"),
    Activity.OPEN: _constant("blocked in opening a file"),
    Activity.SIGNAL: _constant("waits for a signal"),
}


# --- All of it ------------------------------------------------------------------------------------------------------


def hang_report(autopsy: Autopsy) -> str:
    """Line by line, for whoever wants to see it all; empty when nothing was seen."""
    if not autopsy.processes:
        return ""
    lines = [HEADING, *map(_process_line, autopsy.processes)]
    lines += ["Other threads:", *map(_process_line, autopsy.threads)] if autopsy.threads else []
    waited_on = {(one.pid, number) for one in autopsy.processes for number in one.waits_on}
    shown = [end for end in autopsy.descriptors if end.name or (end.pid, end.number) in waited_on]
    lines += ["Open:", *map(_end_line, shown[:ENDS_SHOWN])] if shown else []
    lines += [f"  and {len(shown) - ENDS_SHOWN} more"] if len(shown) > ENDS_SHOWN else []
    lines += ["Locks:", *map(_lock_line, autopsy.locks)] if autopsy.locks else []
    if autopsy.last_output:
        lines += ["Output:", f"  {format_duration(round(autopsy.quiet_seconds * 1e6))} before: {autopsy.last_output}"]
    lines += [] if autopsy.is_complete else ["There was more than could be looked at in time."]
    return "\n".join(lines) + "\n"


def split_stack_and_report(text: str) -> tuple[str, str]:
    """What stands in ``attempt.stack`` as the dump of the stacks and the report on the processes."""
    start = f"\n{text}".find(f"\n{HEADING}\n")
    return (text, "") if start < 0 else (text[:start], text[start:])


def _process_line(process: Process) -> str:
    doing = f", {process.activity}" if process.activity is not None else ""
    on = f" {', '.join(map(str, process.waits_on))}" if process.waits_on else ""
    channel = f" in {process.wait_channel}" if process.wait_channel else ""
    cpu = f", {process.cpu:.0%} CPU".replace("%", " %") if process.cpu is not None else ""
    return f"  pid {process.pid} {process.state}{channel}{doing}{on}{cpu}: {process.command_line or process.name}"


def _end_line(end: Descriptor) -> str:
    queues = (("unread", end.unread), ("unsent", end.unsent))
    said = [end.state, *(f"{count:,} bytes {word}" for word, count in queues if count is not None)]
    notes = ", ".join(note for note in said if note)
    return f"  pid {end.pid} fd {end.number} {end.kind} {end.name}".rstrip() + (f" ({notes})" if notes else "")


def _lock_line(lock: FileLock) -> str:
    holder = f" held by pid {lock.holder} {lock.holder_name}".rstrip() if lock.holder else ""
    return f"  pid {lock.pid} waits for {lock.path}{holder}"
