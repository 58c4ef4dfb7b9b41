"""Restarts the zygote after its death, which ends its attempts as lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..core.spec import FlowSpec
from ..errors import RedriveError
from ..runner.zygote.client import Runner


class ZygoteRestart:
    """Opens the flow in a new zygote. ``on_done()``: attempts can start again; ``on_failed(error)``: they never can."""

    def __init__(
        self, runner: Runner, flow: FlowSpec, on_done: Callable[[], None], on_failed: Callable[[BaseException], None]
    ) -> None:
        self._runner = runner
        self._flow = flow
        self._on_done = on_done
        self._on_failed = on_failed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a new zygote; the attempts of the old one have ended as lost."""
        self._task = asyncio.get_running_loop().create_task(self._open())
        self._task.add_done_callback(self._on_opened)

    async def _open(self) -> None:
        if self._flow.path is None:
            raise RedriveError("the process that holds the functions of this flow died; start the program again")
        await self._runner.open(self._flow.path, dict(self._flow.params))

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failed(error)
        else:
            self._on_done()
