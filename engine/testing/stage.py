"""The stage of a night: executors and services one after another on one state file, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn, TypeVar, cast

from ..core.spec import Durability, FlowSpec
from ..executor.machine import HEARTBEAT_SECONDS, Machine
from ..executor.run_options import RunRequest
from ..executor.state_file_lease import StateFileLease
from ..runner.reaper import Reaper
from ..runner.zygote.client import Runner
from ..store import database, lock
from .played_runner import PlayedRunner
from .virtual_time import Crash, PlayedWriter, VirtualClock, VirtualLoop

T = TypeVar("T")


class Stage:
    """Gives each executor a machine of its own making: a clock, a runner and a writer that are played.

    Parameters:
        new_runner: makes the runner of an executor, by its id.
        read_flow: imports the flow with parameters, for a service.
    """

    def __init__(
        self,
        clock: VirtualClock,
        writer: PlayedWriter,
        new_runner: Callable[[str], PlayedRunner],
        read_flow: Callable[[Mapping[str, object]], FlowSpec],
        *,
        seed: object,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.clock = clock
        self.runner: PlayedRunner | None = None  # of the latest executor
        self.failures: list[BaseException] = []  # errors that nobody has handled
        self._writer = writer
        self._new_runner = new_runner
        self._read_flow = read_flow
        self._locks: list[lock.StateLock] = []
        self._connections: list[Any] = []
        dice = random.Random(f"{seed}:tokens")
        self.machine = Machine(
            clock=clock,
            acquire=self._acquire,
            read_flow=self._read,
            open_database=self._open_database,
            writer_thread=writer,
            environment_hash=lambda: "played",
            heartbeat_seconds=heartbeat_seconds,
            breakers_folder=lambda: None,
            random_hex=lambda size: dice.randbytes(size).hex(),
        )

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Run a coroutine to its end, which may run executors. None: what it ran has died.

        Raises what the coroutine raises, else the first error in a callback.
        """
        loop = VirtualLoop(self.clock, self._on_error)
        self._writer.use(loop)
        try:
            return loop.run_until_complete(main())
        except Crash:
            return None
        finally:
            self._writer.use(None)
            for held in self._locks:
                held.drop()
            for connection in self._connections:
                connection.close()  # an open transaction is lost
            self._locks.clear()
            self._connections.clear()
            loop.abandon()
            loop.close()
            if self.failures:
                raise self.failures[0]

    def fail(self, error: BaseException) -> NoReturn:
        """End the night with an error that the engine must not catch."""
        self.failures.append(error)
        raise Crash(str(error))

    def _on_error(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Crash):  # else the executor died in a task that nobody waits for any more
            self.failures.append(error if isinstance(error, Exception) else RuntimeError(str(context["message"])))

    def _acquire(self, request: RunRequest) -> StateFileLease:
        held = lock.acquire(request.state_path, request.executor_id, request.run_id)
        self._locks.append(held)
        self.runner = self._new_runner(request.executor_id)
        return StateFileLease(request, held, cast(Runner, self.runner), cast(Reaper, _NoReaper()))

    def _open_database(self, path: str, durability: Durability) -> Any:
        connection = database.open_for_writing(path, durability)
        self._connections.append(connection)
        return connection

    async def _read(self, target: str, params: Mapping[str, object]) -> FlowSpec:
        return self._read_flow(params)


class _NoReaper:
    def end(self) -> None:
        """There are no processes."""
