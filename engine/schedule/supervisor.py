"""Supervises the services of several flows: one process per flow, so that no flow can stop another one.

A service that dies is started again after a delay with full jitter. SIGTERM and SIGINT are passed on to every service,
and the supervisor ends when all of them have ended. If the supervisor itself is killed, the kernel sends SIGTERM to
the services, which then stop in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from ..core.policy import RetryPolicy, Uniform, draw_delay
from ..executor.shutdown import handle_signals
from ..runner.process import set_parent_death_signal

RESTARTS = RetryPolicy(base=1, cap=60)
STABLE_SECONDS = 60.0  # a service that lived so long starts again with the shortest delay
LINE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SupervisedService:
    """The service of one flow: the name before its lines, and its command."""

    name: str
    command: Sequence[str]


class Supervisor:
    """Runs services until each of them has ended in order.

    ``ended_codes``: the exit codes of a service that was stopped; with any other one it has died. ``report(name,
    line)`` prints a line of a service, or about it.
    """

    def __init__(
        self,
        services: Sequence[SupervisedService],
        *,
        ended_codes: Collection[int],
        report: Callable[[str, str], None],
        uniform: Uniform,
    ) -> None:
        self._services = services
        self._ended_codes = ended_codes
        self._report = report
        self._uniform = uniform
        self._processes: set[subprocess.Popen[bytes]] = set()

    def run(self) -> Sequence[int]:
        """Supervise. Return the last exit code of each service; a negative one is the signal that ended it."""
        return asyncio.run(self._supervise())

    async def _supervise(self) -> Sequence[int]:
        self._stopping = asyncio.Event()
        handle_signals(asyncio.get_running_loop(), self._stop)
        return await asyncio.gather(*map(self._restart_until_ended, self._services))

    def _stop(self) -> None:
        self._stopping.set()
        for process in self._processes:
            process.send_signal(signal.SIGTERM)

    async def _restart_until_ended(self, service: SupervisedService) -> int:
        """Run a service, and start it again when it has died. Return its last exit code."""
        deaths = 0
        while True:
            started_at = time.monotonic()
            code = await self._run(service)
            if self._stopping.is_set() or code in self._ended_codes:
                return code
            if time.monotonic() - started_at >= STABLE_SECONDS:
                deaths = 0
            delay_seconds, _ = draw_delay(RESTARTS, deaths, None, self._uniform)
            deaths += 1
            self._report(service.name, f"has died ({_describe(code)}), starts again in {delay_seconds:.1f} s")
            try:
                async with asyncio.timeout(delay_seconds):
                    await self._stopping.wait()
            except TimeoutError:
                continue
            return code

    async def _run(self, service: SupervisedService) -> int:
        """Run the process of a service once, and return its exit code."""
        process = _start(service.command)
        self._processes.add(process)
        try:
            await self._copy_lines(service.name, process)
            code = await asyncio.to_thread(process.wait)
        finally:
            self._processes.discard(process)
        is_stopped_at_start = self._stopping.is_set() and code == -signal.SIGTERM  # before it could handle the signal
        return 0 if is_stopped_at_start else code

    async def _copy_lines(self, name: str, process: subprocess.Popen[bytes]) -> None:
        lines = asyncio.StreamReader(LINE_BYTES_MAX)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), process.stdout)
        while True:
            try:
                line = await lines.readline()
            except ValueError:
                line = b"(a line that is too long)\n"
            if not line:
                return
            self._report(name, line.decode("utf-8", "replace").rstrip("\n"))


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,  # Ctrl-C reaches the services through the supervisor alone
        preexec_fn=partial(_end_with_parent, os.getpid()),
    )


def _end_with_parent(parent: int) -> None:
    """Have SIGTERM sent to this process when its parent dies. Runs in the forked process, before its program."""
    set_parent_death_signal(signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def _describe(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
