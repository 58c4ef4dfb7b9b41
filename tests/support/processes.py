"""Processes that a test has started, or that its processes have."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redrive.engine.runner import attempt
from redrive.engine.runner.channels import StackPipe
from redrive.engine.runner.process import children, command_line

from support.waiting import LIMIT_SECONDS, wait_until


def find_processes_in(folder: Path) -> dict[int, tuple[str, str]]:
    """Other processes whose words, environment or open files name something in the folder: what, and their words."""
    of_a_test = re.compile(re.escape(os.fsencode(folder)) + rb"/([^/\0]+)")
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            files = [os.readlink(os.fsencode(file)) for file in (process / "fd").iterdir()]
            named = of_a_test.search(b"\0".join([words, (process / "environ").read_bytes(), *files]))
        except OSError:
            continue  # it has ended, or is somebody else's
        if named is not None and process.name != str(os.getpid()):
            found[int(process.name)] = os.fsdecode(named[1]), os.fsdecode(words.replace(b"\0", b" "))
    return found


def is_gone(pid: int) -> bool:
    """Whether it has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def zygotes_of(executor: int) -> list[int]:
    """The children of an executor that fork attempts."""
    return [pid for pid in children(executor) if "zygote.zygote" in command_line(pid)]


def wait_until_dead(pids: Iterable[int], seconds: float = LIMIT_SECONDS) -> list[int]:
    """Wait for the end of processes that are not ours. Answers with those that still live."""
    poller = select.poll()
    waiting = {}
    for pid in pids:
        try:
            waiting[os.pidfd_open(pid)] = pid
        except ProcessLookupError:
            continue
    for pidfd in waiting:
        poller.register(pidfd, select.POLLIN)
    limit = time.monotonic() + seconds
    while waiting:
        ended = poller.poll(max(0.0, limit - time.monotonic()) * 1000)
        if not ended:
            break
        for pidfd, _ in ended:
            poller.unregister(pidfd)
            os.close(pidfd)
            del waiting[pidfd]
    for pidfd in waiting:
        os.close(pidfd)
    return list(waiting.values())


def wait_for_end(pid: int) -> None:
    """``os.waitpid`` for an executor, which may be no child of this process."""
    assert wait_until_dead([pid]) == []


def wait_until_stopped(pid: int) -> None:
    """Wait for what SIGSTOP does."""
    wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether it has set a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


def read_stalled_seconds() -> float:
    """Seconds for which a process of this machine has waited for a processor; 0 if the kernel does not count them."""
    try:
        some = Path("/proc/pressure/cpu").read_text().split("\n")[0]
    except OSError:
        return 0.0
    return int(some.rpartition("=")[2]) / 1e6


@contextmanager
def socket_address(path: str | os.PathLike[str]) -> Iterator[str]:
    """An address of a UNIX socket, whose own path may be longer than the kernel takes: through its open folder."""
    folder, name = os.path.split(os.path.abspath(path))
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def inspect_at_leisure(patch: pytest.MonkeyPatch) -> None:
    """Inspect an attempt early in its time, not in the last fraction of a second before its deadline."""
    patch.setattr(attempt, "INSPECTION_SECONDS", 60.0)
    patch.setattr(attempt, "INSPECTION_SHARE", 0.7)
    patch.setattr(StackPipe, "WAIT_SECONDS", 1.0)
