"""Reads /proc: the identity of a process and its ancestors.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
from typing import Dict, Iterator, List, Optional, Set, Tuple

EXECUTOR_VARIABLE = "REDRIVE_EXECUTOR"  # in the environment of every process below an executor: the executor's id

READ_BYTES = 32 * 1024


def read_file(path: str) -> bytes:
    """Read a file with few system calls, because the zygote reads two for each attempt."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, READ_BYTES), b""))
    finally:
        os.close(descriptor)


def stat_fields(pid: int) -> List[bytes]:
    """The fields of /proc/PID/stat from the third on (state, parent, group, session, ...). Raises OSError."""
    return read_file(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def start_ticks(pid: int) -> int:
    """The start of a process, in clock ticks since boot; together with the boot id it detects a reused pid.

    Raises OSError.
    """
    return int(stat_fields(pid)[19])


def identity(pid: int) -> Tuple[Optional[int], Optional[str]]:
    """The identity of a process: its start in ticks, and the boot id of the ticks; (None, boot) if dead."""
    try:
        fields = stat_fields(pid)
        ticks = None if fields[0] == b"Z" else int(fields[19])
    except (OSError, IndexError, ValueError):
        ticks = None
    return ticks, boot_id()


def boot_id() -> Optional[str]:
    try:
        return read_file("/proc/sys/kernel/random/boot_id").decode("ascii").strip()
    except OSError:
        return None


def is_alive(pid: Optional[int], start_ticks: Optional[int], boot: Optional[str]) -> bool:
    """True if a process of this boot certainly lives; False if its identity is unknown."""
    return pid is not None and start_ticks is not None and identity(pid) == (start_ticks, boot)


def describe_hang(pid: int) -> str:
    """Say why a living process gives no sign of life, and how to end that."""
    words = "is stopped: kill -CONT {0}" if is_stopped(pid) else "hangs: kill -9 {0}, and start it again"
    return f"(pid {pid}) " + words.format(pid)


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process; no for one that cannot be seen."""
    try:
        return stat_fields(pid)[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def pids() -> Iterator[int]:
    """The pids of all processes visible to this user."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def open_files() -> Dict[int, str]:
    """The descriptors of this process, each with the path of its file, or what the kernel calls it."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the descriptor of the listing itself
    return found


def ancestors(pid: Optional[int] = None) -> Set[int]:
    """The pids of a process (default: this one) and its ancestors."""
    found = set()  # type: Set[int]
    pid = pid or os.getpid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            pid = int(stat_fields(pid)[1])
        except (OSError, IndexError, ValueError):
            break
    return found
