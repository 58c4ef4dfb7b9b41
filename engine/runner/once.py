"""Document 000's ``_run_with_timeout``: one function, one child process, one deadline, and its three errors.

For programs that want nothing but this. A flow's attempts share one zygote (``zygote_client.py``).
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.outcome import Outcome, OutcomeKind
from ..core.results import unkept_kind
from ..core.spec import FlowSpec, TaskSpec
from ..store.processes import EXECUTOR_VARIABLE
from . import protocol
from .attempt import AttemptOrder
from .listener import SilentListener
from .zygote_client import Runner


@dataclass(frozen=True, slots=True)
class _OneTask:
    """The least that a zygote can load."""

    functions: Mapping[str, Callable[[], Any]]
    task: TaskSpec

    def spec(self) -> FlowSpec:
        return FlowSpec(self.task.name, (self.task,))


class _Waiter(SilentListener):
    """Passes output on and waits for the end."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def output(self, data: bytes) -> None:
        protocol.write_all(1, data)

    def ended(self, outcome: Outcome) -> None:
        self.outcome.set_result(outcome)


def run_with_timeout(fn: Callable[[], Any], timeout_s: float | None, *, grace_seconds: float = 5.0) -> Any:
    """Call ``fn`` in a child process and return its result (what of it is JSON).

    At the deadline (seconds) the child and everything that it started is ended: SIGTERM, ``grace_seconds``, SIGKILL.
    Raises TimeoutError "task exceeded {n}s", RuntimeError with what the child raised, or RuntimeError "child died
    without sending result". Not to be called from a coroutine.
    """
    name = getattr(fn, "__name__", "task")
    task = TaskSpec(name, timeout=timeout_s, grace_seconds=grace_seconds)
    environment = {EXECUTOR_VARIABLE: uuid.uuid4().hex}
    outcome = asyncio.run(_run(Runner.fork(_OneTask({name: fn}, task), environment=environment), task))
    if outcome.kind is OutcomeKind.SUCCESS:
        is_kept = outcome.result is not None and unkept_kind(outcome.result) is None
        return json.loads(outcome.result) if is_kept and outcome.result is not None else None
    failure = outcome.failure
    if outcome.kind is OutcomeKind.TIMED_OUT and failure is not None:
        raise TimeoutError(f"task exceeded {timeout_s:g}s")
    raise RuntimeError(str(outcome.kind) if failure is None else f"{failure.error_type}: {failure.message}")


async def _run(runner: Runner, task: TaskSpec) -> Outcome:
    await runner.open()
    try:
        waiter = _Waiter()
        await runner.start(AttemptOrder("once", task.name, 1, 0, "once", task), waiter)
        return await waiter.outcome
    finally:
        await runner.close()
