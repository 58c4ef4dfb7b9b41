"""The door to a run that this console started: a local file, and an executor that comes back when there is work again.

The executor leaves when the run has ended. An act that opens the run again is applied under its lock; then somebody
has to go on with it, and whoever started the run wants that to be here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ...engine.domain.acts import STARTS_WORK
from ...engine.domain.command import Answer, Command
from ...engine.errors import ExecutorBusyError, RedriveError
from ...engine.executor import host
from .local import FileSession


async def resume(path: str, run_id: str, options: Mapping[str, object]) -> None:
    """Start an executor for a run, in a process of its own; another one that has come first is as good.

    ``options`` are fields of RunOptions. Raises what kept it from starting.
    """
    settings = {**options, "resume": True, "stay": True}
    try:
        await asyncio.to_thread(host.spawn, flow=None, state=path, run_id=run_id, params={}, options=settings)
    except ExecutorBusyError:
        return


class EmbeddedSession(FileSession):
    """Made by ``open``; ``run_options`` are what later executors get, fields of RunOptions."""

    run_options: Mapping[str, object] = {}

    async def send(self, command: Command) -> Answer:
        """Ask for an act; with no executor alive, start one for what the act has opened."""
        answer = await super().send(command)
        if not answer.ok or command.act not in STARTS_WORK or command.run_id is None or self.is_alive():
            return answer
        try:
            await resume(self.address, command.run_id, self.run_options)
        except RedriveError as error:
            return answer._replace(message=f"{answer.message}; but no executor could be started: {error}")
        self.is_alive()
        return answer

    def is_alive(self) -> bool:
        """Whether somebody has the lock at this moment."""
        self._looked_at = 0.0
        return self.status.executor_alive
