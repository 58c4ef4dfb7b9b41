"""Flow files are read in a process of their own, whatever becomes of it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from redrive.engine.schedule.flow_files import read_flow_files
from support.commands import quoted
from support.waiting import wait_until_async


def held_pipes() -> set[str]:
    """The pipes of this process, in the words of the kernel."""
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(file))
    return {name for name in found if name.startswith("pipe:")}


async def test_a_reading_can_be_cancelled_whose_process_has_ended(tmp_path: Path) -> None:
    """What the process has started still holds its output open."""
    python, pids = tmp_path / "python", tmp_path / "pids"
    python.write_text(f"#!/bin/sh\nsetsid sleep 600 &\necho $! $$ > {quoted(pids)}\n")
    python.chmod(0o755)

    async def read() -> None:
        async for _ in read_flow_files(str(python), ["flow.py"]):
            pass

    before = held_pipes()
    reading = asyncio.create_task(read())
    await wait_until_async(lambda: pids.exists() and pids.read_text().endswith("\n"))
    sleeping, ended = map(int, pids.read_text().split())
    try:
        await wait_until_async(lambda: not os.path.exists(f"/proc/{ended}") and os.getsid(sleeping) == sleeping)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    finally:
        os.kill(sleeping, signal.SIGKILL)
        # asyncio closes the pipe of the output only now, and could not after the end of this loop.
        await wait_until_async(lambda: held_pipes() <= before)
