"""Kills processes by the executor's token in their environment, and waits until they are gone. Linux only.

The targets need not be children of this process. A pid that was read from /proc may belong to another process by the
time of the signal: so a pidfd is opened first, and the process is matched again while the pidfd holds it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ..statefile.changes.executor_token import has_token
from ..statefile.processes import ancestors, pids

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
