"""What /proc says of processes: which one a pid is, who it descends from, and who bears the token of an executor.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
from typing import Collection, Iterator, Optional, Set, Tuple

TOKEN_VARIABLE = "REDRIVE_EXECUTOR"  # in the environment of every process below an executor


def identity(pid: int) -> Tuple[Optional[int], Optional[str]]:
    """What makes a pid unmistakable: the ticks at which it started, and the boot that the ticks count from."""
    try:
        with open("/proc/{}/stat".format(pid), "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()  # the name before it may hold spaces and brackets
        if fields[0] == b"Z":
            return None, boot_id()
        return int(fields[19]), boot_id()
    except (OSError, IndexError, ValueError):
        return None, boot_id()


def boot_id() -> Optional[str]:
    """Which boot this is."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as found:
            return found.read().strip()
    except OSError:
        return None


def is_gone(pid: Optional[int], start_ticks: Optional[int], boot: Optional[str]) -> bool:
    """True for a process of this host that certainly is no more; of another boot, or with nothing known, False."""
    if pid is None or start_ticks is None or boot is None:
        return False
    found, now = identity(pid)
    return boot == now and found != start_ticks


def is_there(pid: Optional[int], start_ticks: Optional[int], boot: Optional[str]) -> bool:
    """True for a process of this boot that certainly lives; with nothing known, False."""
    return pid is not None and start_ticks is not None and identity(pid) == (start_ticks, boot)


def pids() -> Iterator[int]:
    """Every process that this user may know of."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def ancestors() -> Set[int]:
    """This process and all that it descends from."""
    found, pid = {os.getpid()}, os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        try:
            with open("/proc/{}/stat".format(pid), "rb") as stat:
                pid = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            break
    return found


def bears_token(pid: int, executor_ids: Collection[str]) -> bool:
    """True if a process was started below one of these executors, as its environment says."""
    tokens = {"{}={}".format(TOKEN_VARIABLE, executor_id).encode() for executor_id in executor_ids}
    try:
        with open("/proc/{}/environ".format(pid), "rb") as environ:
            return not tokens.isdisjoint(environ.read().split(b"\0"))
    except OSError:
        return False
