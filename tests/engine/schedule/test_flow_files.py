"""Flow files are read in a process of their own, whatever becomes of it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from redrive.engine.schedule.flow_files import FlowFinder, read_flow_files
from support.commands import quoted, run_redrive
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


FACTORY = """from redrive.engine import Flow
def nightly(name):
    flow = Flow(name, schedule='0 2 * * *')
    flow.command('a', 'true', timeout=10)
    return flow
"""


def test_a_file_whose_flow_comes_from_another_module_is_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "house.py").write_text(FACTORY)
    (tmp_path / "load.py").write_text("from house import nightly\nflow = nightly('load')\n")
    (tmp_path / "helper.py").write_text("import os.path\n")
    finder = FlowFinder([str(tmp_path)])
    assert [os.path.basename(source.file) for source in finder.find()] == ["house.py"]
    assert [os.path.basename(file) for file in finder.left_out] == ["load.py"]
    listed = run_redrive("serve", "--list", tmp_path)
    assert listed.returncode == 1 and "imports house, which makes flows" in listed.stdout
    assert "left out: " in run_redrive("check", tmp_path).stderr
    listed = run_redrive("serve", "--list", tmp_path, tmp_path / "load.py")
    assert listed.returncode == 0 and "0 2 * * * UTC" in listed.stdout


def test_a_named_file_below_a_named_folder_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(FACTORY + "flow = nightly('load')\n")
    words = [str(tmp_path), str(tmp_path / "load.py")]
    for given in (words, words[::-1]):
        (found,) = FlowFinder(given).find()
        assert found.is_named
