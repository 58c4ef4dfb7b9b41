"""Calls the body of a task in this process, and returns what its process would have done as a script.

The arguments, the final frame and the failure come from the functions that a forked attempt uses (``runner/child.py``,
``runner/call.py``). While a body runs, ``time.sleep``, ``time.time`` and ``time.monotonic`` are those of the night,
and so is the event loop of a coroutine: a wait takes no time. At the timeout of its task a wait raises TaskTerminated,
as SIGTERM does; after the grace it raises an error that nothing should catch, as SIGKILL ends a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import count, dropwhile, takewhile
from types import FunctionType
from typing import Any, cast
from unittest.mock import patch

from ..core.failures.failure import failure_of_error
from ..core.outcome import Outcome, OutcomeKind
from ..core.result_codec import dump_result, load_result
from ..core.spec import LOGICAL_TIME, TaskSpec
from ..errors import RedriveError, TaskTerminated
from ..runner import protocol
from ..runner.call import CallPlan, call_task, make_failure_safely, outcome_of_error
from ..runner.child import FlowFacts, forward_retries
from ..runner.command import encoded_variables
from ..runner.context import PROGRESS_SECONDS, Context
from ..runner.protocol import AttemptOrder
from .played_machine import Exit, Script, VirtualLoop

INSTANT_SECONDS = 0.01  # what an attempt takes at least: a fork and the end of a process
WAITED_SECONDS_MAX = 1.0  # of real time, which a body may spend without computing


class StageError(RedriveError):
    """A flow, a fault or an act that cannot be played; the text says what to do."""


class _Killed(BaseException):
    """SIGKILL: the body is over."""


@dataclass(slots=True)
class BodyTime:
    """The time of one body: ``seconds`` since its start. ``timeout`` None: it may take as long as it likes."""

    started_seconds: float  # on the clock of the night
    started_us: int  # UTC
    timeout: float | None
    grace_seconds: float
    pace: float = 1.0  # how many times as long each wait takes
    seconds: float = 0.0
    is_terminated: bool = False
    stack: str = ""  # where it was when it was ended

    def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        until = self.seconds + self.pace * max(0.0, seconds)
        if self.timeout is None:
            self.seconds = until
        elif not self.is_terminated and until >= self.timeout:
            self.seconds, self.is_terminated = max(self.seconds, self.timeout), True
            self.stack = _stack_of_caller()
            raise TaskTerminated("SIGTERM")
        elif self.is_terminated and until >= self.timeout + self.grace_seconds:
            raise _Killed
        else:
            self.seconds = until

    def monotonic(self) -> float:
        """Seconds of the clock of the night."""
        return self.started_seconds + self.seconds

    def time(self) -> float:
        """Seconds since 1970 UTC."""
        return self.started_us / 1e6 + self.seconds


@dataclass(frozen=True, slots=True)
class Body:
    """A stand-in for the body of one attempt.

    Attributes:
        plan: the function that is called.
        error: raised where the function begins, instead of calling it.
        seconds: what the attempt takes; None: as long as the body waits.
        pace: without ``seconds``: how many times as long each wait takes.
        delay_seconds: without ``seconds``: before the body begins.
    """

    plan: CallPlan
    error: BaseException | None = None
    seconds: float | None = None
    pace: float = 1.0
    delay_seconds: float = 0.0


@dataclass(slots=True)
class _Recording:
    """The reports of a body, each with its second."""

    time: BodyTime
    paces_reports: bool  # the attempt takes a given time: each report takes its share of it
    reports: list[tuple[float, protocol.AttemptFrame | bytes]] = field(default_factory=list)

    def send(self, frame: protocol.AttemptFrame) -> None:
        if self.paces_reports:
            self.time.seconds += PROGRESS_SECONDS
        self.reports.append((self.time.seconds, frame))

    def monotonic(self) -> float:
        """The clock by which reports are limited: with a given time, each of them is sent."""
        if self.paces_reports:
            self.time.seconds += PROGRESS_SECONDS
        return self.time.monotonic()

    def write(self, text: str) -> int:
        self.reports.append((self.time.seconds, text.encode("utf-8", "backslashreplace")))
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


def play_body(body: Body, order: AttemptOrder, facts: FlowFacts, started_seconds: float, started_us: int) -> Script:
    """Call a body, and return the script of its attempt."""
    spec = order.spec
    has_given_time = body.seconds is not None
    timeout = None if has_given_time else spec.timeout
    clock = BodyTime(started_seconds, started_us, timeout, spec.grace_seconds, body.pace, body.delay_seconds)
    recording = _Recording(clock, has_given_time)
    called = _call(body, order, facts, recording)
    end = called if isinstance(called, Exit) else protocol.Ended(called)
    if isinstance(called, Outcome) and called.kind is OutcomeKind.CANCELLED:
        end = Exit(1)
    stack = clock.stack or stack_of(body.plan.function)
    if clock.is_terminated:
        assert spec.timeout is not None
        ends_after = None if isinstance(end, Exit) and end.signal else clock.seconds - spec.timeout
        return Script(None, end, recording.reports, ends_after, stack)
    if body.seconds is None:
        return Script(max(clock.seconds, INSTANT_SECONDS), end, recording.reports, stack=stack)
    share = body.seconds / clock.seconds if clock.seconds else 0.0
    return Script(body.seconds, end, [(at * share, report) for at, report in recording.reports], stack=stack)


def _call(body: Body, order: AttemptOrder, facts: FlowFacts, recording: _Recording) -> Outcome | Exit:
    make_failure, clock = facts.failure_maker(order), recording.time
    plan = body.plan if body.error is None else CallPlan(raising_at(body.plan.function, body.error), (), False)
    unblocked, began = _unblocked_seconds(), time.perf_counter()
    try:
        with _played(order, facts.project_root, recording):
            end = call_task(
                order,
                plan,
                make_failure,
                recording.send,
                lambda: clock.is_terminated,
                partial(_run_coroutine, clock),
                recording.monotonic,
            )
    except (KeyboardInterrupt, StageError):
        raise
    except _Killed:
        return Exit(None, signal=9)
    except BaseException as error:
        if not isinstance(error, Exception | SystemExit | asyncio.CancelledError | TaskTerminated):
            raise  # of the test framework
        end = outcome_of_error(error, make_failure, is_cancelled=clock.is_terminated)
    waited = (time.perf_counter() - began) - (_unblocked_seconds() - unblocked)
    if waited > WAITED_SECONDS_MAX:
        raise StageError(
            f"task {order.task!r} waited for {waited:.0f} s of real time, which cannot be skipped: let it call"
            f" time.sleep by the name of its module, or say results={{{order.task!r}: ...}}"
        )
    return end


def _unblocked_seconds() -> float:
    """Return how long this process has computed, and this thread has waited for a processor that others had."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            queued = int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        queued = 0.0  # this kernel does not count it
    return time.process_time() + queued


@contextlib.contextmanager
def _played(order: AttemptOrder, folder: str, recording: _Recording) -> Iterator[None]:
    """Give the body its clock, in the ``time`` module, its folder and its environment, and record its output."""
    clock, output = recording.time, cast("Any", recording)
    forward_retries(lambda data: recording.send(protocol.Retried(dict(data))))
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
            contextlib.chdir(folder),
            patch.dict(os.environb, encoded_variables(order)),
            patch.multiple(time, sleep=clock.sleep, time=clock.time, monotonic=clock.monotonic),
        ):
            yield
    finally:
        forward_retries(protocol.ignore)


# --- Coroutines ------------------------------------------------------------------------------------------------------


class _PacedTime:
    """The time of a loop whose waits take ``pace`` times as long in the night."""

    def __init__(self, clock: BodyTime) -> None:
        self._clock = clock

    @property
    def seconds(self) -> float:
        return self._clock.seconds / self._clock.pace

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._clock.seconds = value * self._clock.pace


def _run_coroutine(clock: BodyTime, coroutine: Coroutine[object, object, object]) -> object:
    """Run a coroutine on a loop of its own, in a thread, because a loop runs in this one."""

    async def main() -> object:
        task = asyncio.current_task()
        assert task is not None
        if clock.timeout is not None:
            asyncio.get_running_loop().call_at(clock.timeout / clock.pace, terminate, task)
        return await coroutine

    def terminate(task: asyncio.Task[object]) -> None:
        clock.is_terminated = True
        task.cancel()

    def run() -> object:
        loop = VirtualLoop(_PacedTime(clock), lambda context: None)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(main())

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


# --- Where a body is -------------------------------------------------------------------------------------------------


def raising_at(function: Callable[..., object], error: BaseException) -> Callable[[], object]:
    """Return a function that raises ``error`` where ``function`` begins, so that its traceback names that place."""
    file, line, name = _place_of(function)
    code = compile("\n" * (line - 1) + "raise error", file, "exec").replace(co_name=name, co_qualname=name)

    def raise_there() -> None:
        exec(code, {"error": error})

    return raise_there


def stack_of(function: Callable[..., object]) -> str:
    """Return the stack of a process that is where ``function`` begins, as faulthandler writes it."""
    file, line, name = _place_of(function)
    return f'Current thread 0x0001 (most recent call first):\n  File "{file}", line {line} in {name}\n'


def _place_of(function: Callable[..., object]) -> tuple[str, int, str]:
    while not isinstance(function, FunctionType) and hasattr(function, "func"):
        function = function.func
    if not isinstance(function, FunctionType):
        return "<played>", 1, getattr(function, "__name__", "body")
    code = function.__code__
    return code.co_filename, code.co_firstlineno + 1, code.co_name


def _stack_of_caller() -> str:
    frames = dropwhile(_is_of_engine, reversed(traceback.extract_stack()))
    own = takewhile(lambda frame: not _is_of_engine(frame), frames)  # further out are the stage and the test
    lines = (f'  File "{frame.filename}", line {frame.lineno} in {frame.name}' for frame in own)
    return "\n".join(["Current thread 0x0001 (most recent call first):", *lines, ""])


def _is_of_engine(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_ENGINE)


_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


# --- One body of a task in a plain unit test: the context that the engine would give it ------------------------------


class PlayedContext(Context):
    """The ``ctx`` of a unit test: the real one, which keeps what the body reports.

    Attributes:
        progress_reports: (done, total) of each ``progress``, in order.
        checkpoints: the values given to ``checkpoint``, in order.
        bad_rows: the rows set aside, as (key, error).
    """

    def __init__(self, order: AttemptOrder, params: Mapping[str, Any], inputs: Mapping[str, object], item: Any) -> None:
        self.progress_reports: list[tuple[int, int | None]] = []
        self.checkpoints: list[Any] = []
        self.bad_rows: list[tuple[str, str]] = []
        self.is_cancelled = False
        super().__init__(
            order,
            params,
            inputs,
            send=self._record,
            is_cancelled=lambda: self.is_cancelled,
            make_failure=partial(make_failure_safely, failure_of_error),
            monotonic=count(0.0, 10.0).__next__,  # no report comes too soon after the one before
        )
        self.item = item

    def cancel(self) -> None:
        """Cancel the attempt: ``cancelled`` is true, and ``check`` raises."""
        self.is_cancelled = True

    def _record(self, frame: protocol.AttemptFrame) -> None:
        if isinstance(frame, protocol.Progressed):
            self.progress_reports.append((frame.done, frame.total))
        elif isinstance(frame, protocol.Checkpointed):
            self.checkpoints.append(load_result(frame.value))
        elif isinstance(frame, protocol.Quarantined):
            self.bad_rows.append((frame.row["row_key"], frame.row["error"]))


def context(
    *,
    task: str = "task",
    run_id: str = "test",
    attempt: int = 1,
    generation: int = 0,
    params: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    item: Any = None,
    checkpointed: Any = None,
    only_rows: Mapping[str, Any] | None = None,
    earlier_result: Any = None,
    logical_time: datetime | None = None,
    max_bad_rows: int | None = None,
    max_bad_ratio: float | None = None,
) -> PlayedContext:
    """Return the ``ctx`` of one attempt, for a call of the body of a task in a unit test.

    Parameters:
        inputs: the results of the parents, by name.
        item: in a function of ``Flow.map``, the element of the list.
        checkpointed: what the attempt before has left.
        only_rows: the payloads of requeued rows, by their key; ``earlier_result``: what the task returned before.
        logical_time: the instant of the schedule, with its time zone.
        The others are attributes of ``Context`` and options of the task.

    Example:
        >>> def settle(ctx):
        ...     for number in range(ctx.checkpointed or 0, 3):
        ...         ctx.checkpoint(number + 1)
        ...     return ctx.params["day"]
        >>> ctx = context(attempt=2, params={"day": "monday"}, checkpointed=1)
        >>> settle(ctx), ctx.checkpoints
        ('monday', [2, 3])
    """
    given = dict(params or {})
    if logical_time is not None:
        given[LOGICAL_TIME] = logical_time.isoformat()
    order = AttemptOrder(
        run_id=run_id,
        task=task,
        attempt=attempt,
        generation=generation,
        spec=TaskSpec(task, max_bad_rows=max_bad_rows, max_bad_ratio=max_bad_ratio),
        idempotency_key=f"{run_id}/{task}/{generation}",
        only_rows=tuple((key, json.dumps(row)) for key, row in (only_rows or {}).items()),
        checkpoint=None if checkpointed is None else dump_result(checkpointed),
        earlier_result=None if earlier_result is None else dump_result(earlier_result),
    )
    return PlayedContext(order, given, dict(inputs or {}), item)
