"""Finds the processes of an executor by the token in their environment.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import os
import time
from typing import Collection

from ..processes import EXECUTOR_VARIABLE, read_file, stat_fields

EXEC_SECONDS_MAX = 1.0  # a call of exec takes less than a millisecond, unless the machine is busy


def has_token(pid: int, executor_ids: Collection[str]) -> bool:
    """True if the environment of a process names one of these executors."""
    tokens = {"{}={}".format(EXECUTOR_VARIABLE, executor_id).encode() for executor_id in executor_ids}
    try:
        return not tokens.isdisjoint(_environment(pid).split(b"\0"))
    except OSError:
        return False


def _environment(pid: int) -> bytes:
    """The environment of a process. Waits while a call of exec replaces it, when there is nothing to read."""
    path = "/proc/{}/environ".format(pid)
    found, limit = read_file(path), time.monotonic() + EXEC_SECONDS_MAX
    while not found and time.monotonic() < limit:
        os.readlink("/proc/{}/exe".format(pid))  # OSError: a kernel thread, or a process that has ended
        if stat_fields(pid)[48] != b"0":  # env_end
            return read_file(path)
        time.sleep(0.001)  # no event reports the end of an exec to a process that is not the parent
        found = read_file(path)
    return found
