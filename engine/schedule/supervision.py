"""The parts that the services of a supervisor share, and the start of executors."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial

import msgspec

from ..executor import host
from ..executor.opening import Machine
from ..executor.run_options import RunOptions
from ..store.supervisor_writer import SupervisorFile

WRITES_MAX = 16  # state files open at a time: each has the cache of a database
GAPS_MAX = 20  # times without decisions that are remembered


class Launched(msgspec.Struct, frozen=True):
    """A started run. ``pid``: of its executor; None: it has ended already; ``is_stopped``: by an operator."""

    pid: int | None
    is_stopped: bool = False


#: Starts the run of a flow, or resumes one (flow None): flow, state file, run, options. Raises RedriveError.
Launcher = Callable[[str | None, str, str, RunOptions], Awaitable[Launched]]


class Supervision(msgspec.Struct, frozen=True):
    """The parts that the services of a supervisor share. ``wake()``: a service has something to do.

    ``gaps``: when nothing could be decided, from and until, and why.
    """

    id: str
    launch: Launcher
    file: SupervisorFile
    machine: Machine
    options: RunOptions
    report: Callable[[str, str], None]
    wake: Callable[[], None]
    gaps: deque[tuple[int, int, str]] = msgspec.field(default_factory=partial(deque, maxlen=GAPS_MAX))
    writes: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(WRITES_MAX))


async def launch_executor(
    start: host.StartProcess, flow: str | None, state_path: str, run_id: str, options: RunOptions
) -> Launched:
    """Start an executor in a session of its own, which outlives this process."""
    return Launched(
        await asyncio.to_thread(
            host.spawn, flow=flow, state=state_path, run_id=run_id, options=asdict(options), start=start
        )
    )
