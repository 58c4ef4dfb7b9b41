"""An import that ends its process is over, whatever it has left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redrive.engine.check.isolated import check_in_subprocess
from redrive.engine.errors import FlowImportError
from redrive.engine.runner.protocol import Open
from redrive.engine.runner.runner import Runner
from redrive.engine.statefile.processes import EXECUTOR_VARIABLE

LEFT = """
import os, time
print("printed")
if os.fork() == 0:
    time.sleep(60)
os._exit(3)
"""


async def open_in_executor(flow: Path) -> None:
    runner = Runner.spawn(environment={EXECUTOR_VARIABLE: "left"})
    try:
        await runner.open(Open(str(flow)))
    finally:
        await runner.close()


@pytest.mark.parametrize(
    "read", [lambda flow: check_in_subprocess(str(flow), {}), lambda flow: asyncio.run(open_in_executor(flow))]
)
def test_an_import_that_ends_its_process_is_over_although_another_process_is_left(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    """The process that is left holds what the ended one had open, also its connection."""
    (tmp_path / "flow.py").write_text(LEFT)
    began = time.monotonic()
    with pytest.raises(FlowImportError, match=r"ended \(exit code 3\)"):
        read(tmp_path / "flow.py")
    assert time.monotonic() - began < 30
