"""Runs one function in a child process with a deadline, without a flow (SPEC 000.21).

The attempts of a flow share a zygote instead (``runner/runner.py``).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.failures.attempt_end import DIED_WITHOUT_RESULT
from ..core.outcome import Failure, Outcome, OutcomeKind, reason_of_unstored
from ..core.result_codec import load_result
from ..core.spec import FlowSpec, TaskSpec
from ..runner import protocol
from ..runner.protocol import AttemptListener, AttemptOrder
from ..runner.runner import Runner
from ..statefile.processes import EXECUTOR_VARIABLE


@dataclass(frozen=True, slots=True)
class _OneTask:
    """A flow of one task, as the zygote loads it."""

    functions: Mapping[str, Callable[[], Any]]
    task: TaskSpec
    key_functions: Mapping[str, Callable[..., object]] = field(default_factory=dict)

    def spec(self) -> FlowSpec:
        return FlowSpec(self.task.name, (self.task,))


class _Listener(AttemptListener):
    """Forwards output to stdout and waits for the outcome."""

    def __init__(self) -> None:
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def output(self, data: bytes) -> None:
        protocol.write_all(1, data)

    def ended(self, outcome: Outcome) -> None:
        self.outcome.set_result(outcome)


def run_with_timeout(fn: Callable[[], Any], timeout_s: float | None, *, grace_seconds: float = 5.0) -> Any:
    """Call a function in a child process and return its result, or None where that cannot be stored.

    At the deadline the child and every process that it has started are ended: SIGTERM, then SIGKILL. Not to be called
    from a coroutine: it runs an event loop of its own.

    Parameters:
        fn: takes no arguments; closures are fine, because the child is forked.
        timeout_s: seconds above 0; None: no bound.
        grace_seconds: seconds of 0 or more between the two signals.

    Raises:
        TimeoutError: "task exceeded {timeout_s}s".
        RuntimeError: with the type and the message of what ``fn`` raised, or "child died without sending result", with
            its exit code or signal.

    Example:
        >>> run_with_timeout(lambda: {"sum": 1 + 2}, 30)
        {'sum': 3}
        >>> run_with_timeout(lambda: 1 / 0, 30)
        Traceback (most recent call last):
        ...
        RuntimeError: ZeroDivisionError: division by zero
    """
    name = getattr(fn, "__name__", "task")
    task = TaskSpec(name, timeout=timeout_s, grace_seconds=grace_seconds)
    environment = {EXECUTOR_VARIABLE: uuid.uuid4().hex}
    outcome = asyncio.run(_run(Runner.fork(_OneTask({name: fn}, task), environment=environment), task))
    if outcome.kind is OutcomeKind.SUCCESS:
        result = outcome.result
        return None if result is None or reason_of_unstored(result) is not None else load_result(result)
    failure = outcome.failure
    if outcome.kind is OutcomeKind.TIMED_OUT and failure is not None:
        raise TimeoutError(f"task exceeded {timeout_s:g}s")
    raise RuntimeError(str(outcome.kind) if failure is None else _words_of(failure))


def _words_of(failure: Failure) -> str:
    """What the function raised; of a child that died, how it died."""
    if failure.traceback:
        return ": ".join(filter(None, (failure.error_type, failure.message)))
    is_said = failure.message.startswith(DIED_WITHOUT_RESULT)
    return failure.message if is_said else f"{DIED_WITHOUT_RESULT} ({failure.message})"


async def _run(runner: Runner, task: TaskSpec) -> Outcome:
    await runner.open(protocol.Open())
    try:
        listener = _Listener()
        await runner.start(AttemptOrder("once", task.name, 1, 0, task), listener)
        return await listener.outcome
    finally:
        await runner.close()
