"""Ends processes that are not children of this one, each held by a pidfd, and waits until they are gone. Linux only.

A pid that was read from /proc may be another process by the time of the signal: the pidfd is opened first, and the
process is matched once more through it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ..statefile.processes import bears_token, pids

#: It is gone; or it has become another user's (sudo, su), and nobody but that user or root may end it.
OUT_OF_REACH = (ProcessLookupError, PermissionError)

Matches = Callable[[int], bool]


class Sweep(NamedTuple):
    """The pids that a sweep killed, and those that match and live on: out of reach, or the time was over."""

    killed: list[int]
    alive: list[int]


def sweep(matches: Matches, spared: Collection[int], seconds: float) -> Sweep:
    """SIGKILL every process that matches, and those that it starts meanwhile, until none is left or ``seconds`` end."""
    killed: dict[int, None] = {}
    limit = time.monotonic() + seconds
    while True:
        found = [pid for pid in pids() if pid not in spared and matches(pid)]
        if not found or time.monotonic() >= limit:
            return Sweep(list(killed), found)
        latest = _kill_and_wait(found, matches, limit - time.monotonic())
        killed.update(dict.fromkeys(latest))
        if not latest and (alive := [pid for pid in found if matches(pid)]):
            return Sweep(list(killed), alive)


def kill_bearers(executor_id: str, seconds: float = 5.0) -> list[int]:
    """SIGKILL everything below an executor but this process; returns the pids killed."""
    token = {executor_id}
    return sweep(lambda pid: bears_token(pid, token), {os.getpid()}, seconds).killed


def signal_process(pidfd: int, number: int) -> bool:
    """Signal exactly the process of the pidfd. False if it is out of reach."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except OUT_OF_REACH:
        return False
    return True


def wait_until_ended(pidfds: Iterable[int], seconds: float) -> None:
    """Wait until all of them have ended, at most ``seconds``."""
    poller = select.poll()
    waiting = set(pidfds)
    for pidfd in waiting:
        poller.register(pidfd, select.POLLIN)
    limit = time.monotonic() + seconds
    while waiting and (left := limit - time.monotonic()) > 0:
        for pidfd, _ in poller.poll(left * 1000):
            poller.unregister(pidfd)
            waiting.discard(pidfd)


def _kill_and_wait(found: Iterable[int], matches: Matches, seconds: float) -> list[int]:
    held = {}
    for pid in found:
        try:
            held[pid] = os.pidfd_open(pid)
        except OSError:
            continue
    try:
        killed = [pid for pid, pidfd in held.items() if matches(pid) and signal_process(pidfd, signal.SIGKILL)]
        wait_until_ended([held[pid] for pid in killed], seconds)
    finally:
        for pidfd in held.values():
            os.close(pidfd)
    return killed
