"""What a flow file says, for somebody who is about to run it: by its text where that is enough, else by an import."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from ..core.spec import FlowSpec
from ..errors import RedriveError
from ..flow.flow_name import declared_name
from ..runner.zygote.client import Runner
from ..statefile.processes import EXECUTOR_VARIABLE


async def read_flow(target: str, params: Mapping[str, Any] | None = None) -> FlowSpec:
    """What a flow file says, by a clean interpreter that imports it. Raises FlowError."""
    runner = Runner.spawn(environment={EXECUTOR_VARIABLE: uuid.uuid4().hex})
    try:
        return await runner.open(target, params)
    finally:
        await runner.close()


def name_of(target: str, params: Mapping[str, Any] | None = None) -> str:
    """The name of the flow in a flow file, which is imported only where its text does not say the name.

    Raises FlowError; RedriveError where an event loop runs already that an import would hold up.
    """
    name = declared_name(target)
    if name is not None:
        return name
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(read_flow(target, params)).name
    raise RedriveError(f"the name of the flow in {target!r} is computed: say which state file it writes, state=...")
