"""Detects side effects of an import: threads and descriptors, which forked processes cannot share safely."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...domain.counting import counted
from ...statefile.processes import open_files

NAMES_SHOWN = 5
ENDING_SECONDS = 0.2

#: BLAS and OpenMP start a pool of threads when they are loaded, and a process with threads cannot be forked safely.
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class ImportSideEffects:
    """Side effects of an import. ``threads``: names; ``descriptors``: number and target."""

    threads: tuple[str, ...] = ()
    descriptors: tuple[tuple[int, str], ...] = ()

    def warnings(self, seconds: float) -> list[str]:
        """Return a warning for each side effect; ``seconds``: how long the import took."""
        found = []
        if self.threads:
            found.append(
                f"importing the flow left {named_threads(self.threads)} running, beside which no process can be forked "
                f"safely: each process imports the flow itself ({seconds:.1f} s) and is reused, as with "
                'isolation="worker"; start threads inside tasks'
            )
        for fd, target in self.descriptors:
            found.append(
                f"importing the flow left descriptor {fd} open ({target}): all attempts share it; open it inside the "
                "task"
            )
        return found


class ImportSurvey:
    """Records threads and descriptors of this process on creation; ``since`` returns the new ones."""

    def __init__(self) -> None:
        self._threads = threads()
        self._files = open_files()

    def since(self) -> ImportSideEffects:
        """Return what is new. Waits up to ``ENDING_SECONDS`` for threads that are about to end."""
        limit = time.monotonic() + ENDING_SECONDS
        while (new := self._new_threads()) and time.monotonic() < limit:
            time.sleep(0.005)  # the kernel still lists a joined thread for a moment; there is no event for its end
        return ImportSideEffects(tuple(new), tuple(sorted(open_files().items() - self._files.items())))

    def _new_threads(self) -> list[str]:
        return [name for thread, name in threads().items() if thread not in self._threads]


def threads() -> dict[int, str]:
    """Return the threads of this process, kernel id to name: Python's name if there is one, else the kernel's."""
    found = {int(thread): _kernel_name(thread) for thread in os.listdir("/proc/self/task")}
    threading = sys.modules.get("threading")
    for thread in threading.enumerate() if threading is not None else ():
        if thread.native_id in found:
            found[thread.native_id] = thread.name
    return found


def named_threads(names: Sequence[str]) -> str:
    """Return "2 threads (heartbeat, grpc)"."""
    shown = ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")
    return f"{counted(len(names), 'thread')} ({shown})"


def _kernel_name(thread: str) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "gone"


@contextlib.contextmanager
def single_threaded_libraries() -> Iterator[None]:
    """Limit numerical libraries to one thread while they load; the environment of tasks is unchanged."""
    ours = [name for name in THREAD_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(ours, "1"))
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
