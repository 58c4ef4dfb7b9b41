"""The service of one flow in virtual time: runs begin and end in its event loop, one after another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

from ..clock import ClockWatch
from ..domain.states import RunState
from ..errors import FlowError, RedriveError
from ..executor.executor import Executor
from ..executor.machine import Machine
from ..executor.run_options import RunOptions
from ..schedule.flow_service import FlowService, Launched, Supervision
from ..statefile.supervisor_file import SupervisorFile
from ..store.schedules import served_flow


class PlayedService:
    """Serves a flow until ``stop``, as the supervisor does."""

    def __init__(self, target: str, state_path: str, options: RunOptions, machine: Machine) -> None:
        self._target = target
        self._state_path = state_path
        self._options = options
        self._machine = machine
        self._stopping = asyncio.Event()
        self._executor: Executor | None = None

    async def serve(self) -> None:
        """Serve. Raises FlowError for a flow without a schedule."""
        served = served_flow(await self._machine.read_flow(self._target, self._options.params))
        if served is None:
            raise FlowError(f"{self._target} has no schedule: write Flow('name', schedule='0 2 * * *')")
        path = os.path.join(os.path.dirname(self._state_path), "schedules.supervisor")
        with closing(SupervisorFile(path, "played")) as file:
            shared = Supervision(
                "played", self._launch, file, self._machine, self._options, lambda flow, line: None, lambda: None
            )
            service = FlowService(self._target, served, self._state_path, shared)
            service.acquire()
            try:
                await self._step_until_stopped(service)
            finally:
                service.release()

    async def _step_until_stopped(self, service: FlowService) -> None:
        clock_watch = ClockWatch(self._machine.clock)
        while not self._stopping.is_set():
            if clock_watch.jump_us():
                service.wake_at = 0
            left_seconds = ((service.wake_at or 0) - self._machine.clock.now_us()) / 1e6
            if left_seconds <= 0 and service.wake_at is not None:
                await self._step(service)
                continue
            rest_seconds = self._machine.heartbeat_seconds
            try:
                async with asyncio.timeout(
                    rest_seconds if service.wake_at is None else min(left_seconds, rest_seconds)
                ):
                    await self._stopping.wait()
            except TimeoutError:
                service.check_state_file()

    async def _step(self, service: FlowService) -> None:
        try:
            await service.step()
        except RedriveError as error:
            service.record_failure(str(error))

    async def _launch(self, flow: str | None, state_path: str, run_id: str, options: RunOptions) -> Launched:
        """Run to the end: a played executor is no process."""
        self._executor = Executor(
            run_id=run_id,
            flow=flow or self._target,
            state=state_path,
            options=replace(options, trust=True),
            machine=self._machine,
        )
        try:
            result = await self._executor.run_here()
        finally:
            self._executor = None
        is_stopped = result.interrupted and result.run_state is RunState.RUNNING
        return Launched(None, is_stopped=is_stopped and not self._stopping.is_set())

    async def respond(self, line: bytes) -> Mapping[str, object]:
        """Answer an act of an operator on the active run. Raises ConnectionError if there is none."""
        if self._executor is None:
            raise ConnectionResetError("no run is active")
        return await self._executor.respond(line)

    def stop(self) -> None:
        """Stop, and stop the active run, which stays resumable."""
        self._stopping.set()
        if self._executor is not None:
            self._executor.stop()
