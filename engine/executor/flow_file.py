"""Reads a flow file before a run: its text where that is enough, else a clean interpreter imports it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.spec import FlowSpec
from ..errors import RedriveError
from ..flow.flow_name import declared_name
from ..runner.zygote.client import Runner
from ..statefile.processes import EXECUTOR_VARIABLE

if TYPE_CHECKING:  # each start of an executor imports this module
    from ..store.runs import RunSource


async def read_flow(
    target: str, params: Mapping[str, object] | None = None, source: RunSource | None = None
) -> FlowSpec:
    """Import a flow file in a clean interpreter and return its flow, as for the run of ``source``. Raises FlowError."""
    runner = Runner.spawn(environment={EXECUTOR_VARIABLE: uuid.uuid4().hex})
    try:
        if source is None:
            return await runner.open(target, params)
        return await runner.open(target, params, remembered=source.params, python_path=source.python_path)
    finally:
        await runner.close()


def flow_name_of(target: str, params: Mapping[str, object] | None = None) -> str:
    """Return the name of the flow in a flow file, which is imported only if the name is not a literal in its text.

    Raises FlowError; RedriveError if an import is needed while an event loop runs, which it would block.
    """
    name = declared_name(target)
    if name is not None:
        return name
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(read_flow(target, params)).name
    raise RedriveError(f"the name of the flow in {target!r} is computed: name its state file, state=...")
