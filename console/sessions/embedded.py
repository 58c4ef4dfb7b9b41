"""The session for a run that this console started: a local state file, and an executor that is restarted on demand.

The executor exits when the run has ended. A command that reopens the run is applied under the lock of the state file;
this session then starts a new executor for the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ...engine.domain.acts import STARTS_WORK, Answer, Command
from ...engine.errors import ExecutorBusyError, RedriveError
from ...engine.executor import host
from .local import LocalSession


async def resume(path: str, run_id: str, options: Mapping[str, object]) -> None:
    """Start an executor for a run in a separate process; do nothing if another executor owns the state file.

    ``options`` are fields of RunOptions. Raises the error that kept the executor from starting.
    """
    settings = {**options, "resume": True, "stay": True}
    try:
        await asyncio.to_thread(host.spawn, flow=None, state=path, run_id=run_id, params={}, options=settings)
    except ExecutorBusyError:
        return


class EmbeddedSession(LocalSession):
    """Created by ``open``. ``run_options``: the fields of RunOptions for each executor that the session starts."""

    run_options: Mapping[str, object] = {}

    async def send(self, command: Command) -> Answer:
        """Send a command. If it creates work and no executor lives, start one."""
        answer = await super().send(command)
        if not answer.ok or command.act not in STARTS_WORK or command.run_id is None or self.has_executor():
            return answer
        try:
            await resume(self.address, command.run_id, self.run_options)
        except RedriveError as error:
            return answer._replace(message=f"{answer.message}; but no executor could be started: {error}")
        self.has_executor()
        return answer

    def has_executor(self) -> bool:
        """Whether an executor lives, without waiting for the next poll of the lock."""
        self._refreshed_at = 0.0
        return self.status.executor_alive
