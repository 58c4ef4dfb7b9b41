"""Kills what an executor leaves, found by the executor's token in their environment. Linux only.

Normally the zygote ends the attempts of a dead executor: it is the subreaper of all of them, so that it also finds
processes without the token of their executor in their environment. If the zygote is killed as well, those of its
descendants that left their session would live on. The reaper descends from neither. It reads a pipe that only the
executor has open: the executor writes the pids of its zygotes into it, and the pipe ends with the executor. Then the
reaper kills every process with the token, the zygotes last. Only a zygote finds a process that has removed the token
and left its parents.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, NoReturn

from ..statefile.ownership import has_token
from ..statefile.processes import ancestors, pids

# --- Kills processes by the executor's token in their environment, and waits until they are gone ---------------------
#
# Linux only.
#
# The targets need not be children of this process. A pid that was read from /proc may belong to another process by the
# time of the signal: so a pidfd is opened first, and the process is matched again while the pidfd holds it.


#: The process is gone, or belongs to another user (sudo, su): only that user or root may signal it.
OUT_OF_REACH = (ProcessLookupError, PermissionError)

Matches = Callable[[int], bool]


class Sweep(NamedTuple):
    """The pids that a sweep killed, and those that match and still live: out of reach, or out of time."""

    killed: list[int]
    alive: list[int]


def sweep(matches: Matches, excluded: Collection[int], seconds: float) -> Sweep:
    """SIGKILL every process that matches, also new ones, until none is left or ``seconds`` have passed."""
    killed: dict[int, None] = {}
    limit = time.monotonic() + seconds
    while True:
        found = [pid for pid in pids() if pid not in excluded and matches(pid)]
        if not found or time.monotonic() >= limit:
            return Sweep(list(killed), found)
        latest = _kill_and_wait(found, matches, limit - time.monotonic())
        killed.update(dict.fromkeys(latest))
        if not latest and (alive := [pid for pid in found if matches(pid)]):
            return Sweep(list(killed), alive)


def kill_by_token(executor_id: str, seconds: float = 5.0, spared: Collection[int] = ()) -> list[int]:
    """SIGKILL every process with the token of an executor except this one; return the pids killed.

    ``spared``: pids that are not killed, and whose descendants are not killed either.
    """
    token = {executor_id}

    def matches(pid: int) -> bool:
        return has_token(pid, token) and not (spared and ancestors(pid) & set(spared))

    return sweep(matches, {os.getpid()}, seconds).killed


def signal_process(pidfd: int, number: int) -> bool:
    """Signal the process of a pidfd. Returns False if it is out of reach."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OUT_OF_REACH:
        return False
    return True


def wait_until_ended(pidfds: Iterable[int], seconds: float) -> None:
    """Wait until all processes have ended, at most ``seconds``."""
    poller = select.poll()
    waiting = set(pidfds)
    for pidfd in waiting:
        poller.register(pidfd, select.POLLIN)
    limit = time.monotonic() + seconds
    while waiting and (remaining := limit - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(remaining * 1000):
            poller.unregister(pidfd)
            waiting.discard(pidfd)


def _kill_and_wait(found: Iterable[int], matches: Matches, seconds: float) -> list[int]:
    opened = {}
    for pid in found:
        try:
            opened[pid] = os.pidfd_open(pid)
        except OSError:
            continue
    try:
        killed = [pid for pid, pidfd in opened.items() if matches(pid) and signal_process(pidfd, signal.SIGKILL)]
        wait_until_ended([opened[pid] for pid in killed], seconds)
    finally:
        for pidfd in opened.values():
            os.close(pidfd)
    return killed


# --- Reaper ----------------------------------------------------------------------------------------------------------


ZYGOTE_SECONDS = 1.0  # for a zygote to kill its descendants itself
SWEEP_SECONDS = 10.0
QUIET_SECONDS = 0.2  # sweeps go on until no process has been found for this long: one may just be forking

_DONE = 0  # written instead of a pid when the executor has ended in order
_PID_BYTES = 4


class Reaper:
    """The executor's end of the pipe."""

    def __init__(self, pid: int, pipe: int) -> None:
        self._pid = pid
        self._pipe = pipe

    @classmethod
    def start(cls, executor_id: str) -> Reaper:
        """Fork the process. Call it before an event loop exists: the child closes all descriptors."""
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become_reaper(executor_id, read_end)
        os.close(read_end)
        return cls(pid, write_end)

    def add_zygote(self, pid: int) -> None:
        """Have this process killed last."""
        self._write(pid)

    def end(self) -> None:
        """End the reaper without killing any process."""
        self._write(_DONE)
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):  # this program ignores SIGCHLD
            os.waitpid(self._pid, 0)

    def _write(self, pid: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the reaper was killed: the next executor sweeps
            os.write(self._pipe, pid.to_bytes(_PID_BYTES, "little"))


def _become_reaper(executor_id: str, pipe: int) -> NoReturn:
    """Never returns into the forked program, of which nothing but these functions is used."""
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setsid()
        _close_all_but(pipe)
        zygotes = _wait_for_end(0)
        if zygotes is not None:
            _kill_all(executor_id, zygotes)
    finally:
        os._exit(0)


def _close_all_but(pipe: int) -> None:
    """Make the pipe the only open descriptor: the locks and pipes of the executor must end with it."""
    os.dup2(pipe, 0)
    os.closerange(1, os.sysconf("SC_OPEN_MAX"))


def _wait_for_end(pipe: int) -> list[int] | None:
    """Return pidfds of the zygotes when the executor is dead, None if it has ended in order."""
    zygotes = []
    while data := os.read(pipe, _PID_BYTES):
        pid = int.from_bytes(data, "little")
        if pid == _DONE:
            return None
        with contextlib.suppress(OSError):
            zygotes.append(os.pidfd_open(pid))
    return zygotes


def _kill_all(executor_id: str, zygotes: list[int]) -> None:
    wait_until_ended(zygotes, ZYGOTE_SECONDS)
    token, limit = {executor_id}, time.monotonic() + SWEEP_SECONDS
    quiet_at = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < min(quiet_at, limit):
        found = sweep(lambda pid: has_token(pid, token), {os.getpid()}, limit - time.monotonic())
        if found.killed:
            quiet_at = time.monotonic() + QUIET_SECONDS
        time.sleep(0.02)  # no event reports a process that is being forked
    for zygote in zygotes:  # one that is stopped, and as a fork of its executor has no token; its attempts end with it
        signal_process(zygote, signal.SIGKILL)
