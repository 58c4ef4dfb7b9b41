"""What runs inside a forked attempt, from the fork to ``os._exit``.

Nothing that happens here may climb back into the zygote's loop, and nothing that the task does to its own process may
reach the executor except as frames on the result pipe, bytes on the output pipe and an exit status.

A fork costs what the new process touches: each page of memory is copied when it is. So ``threading``, whose own work
after a fork costs a third of a millisecond, is not imported here; a flow that needs it pays for it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what ``signal`` calls, without its enums: twenty pages less
import _thread
import atexit
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from ..core.failures.failure import describe_error
from ..core.outcome import Failure
from ..errors import PermanentError, TaskTerminated
from . import process, protocol, shell_command
from .call import CallPlan, DescribeError, call, context_for, described, ending_of_error, ending_of_value
from .context import Context
from .per_attempt_import import FreshImport
from .protocol import AttemptOrder


@dataclass(frozen=True, slots=True)
class Channels:
    """The attempt's ends of its three pipes."""

    results: int
    output: int
    stack: int


class Termination:
    """SIGTERM as an exception in the main thread, once, so that the task's ``finally`` blocks run.

    One thing escapes: a loop that is the first statement of its ``try`` and calls nothing. The interpreter sees a
    signal there at the jump back and takes the exception to be raised before the ``try``.
    """

    def __init__(self) -> None:
        self.requested = False
        self.interrupt: Callable[[], bool] | None = None  # asks a running event loop to end; True: that is enough
        self._deferrals = 0
        self._pending = False
        self._is_over = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. A second SIGTERM is ignored: the blocks of the first are still running."""
        if self.requested or self._is_over:
            return
        self.requested = True
        if self._deferrals:
            self._pending = True
        else:
            self._raise()

    def _raise(self) -> None:
        if self.interrupt is None or not self.interrupt():
            raise TaskTerminated("SIGTERM")

    def close(self) -> None:
        """The task is over: from here on SIGTERM changes nothing."""
        self._is_over = True

    def defer(self) -> None:
        """Put the exception off while a frame is written, or the executor would read half of one."""
        self._deferrals += 1

    def resume(self) -> None:
        """Raise what was put off."""
        self._deferrals -= 1
        if self._pending and not self._deferrals:
            self._pending = False
            self._raise()


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """What the zygote knows of the flow and each attempt needs."""

    plans: Mapping[str, CallPlan] | FreshImport
    project_root: str | None  # the folder of the flow file
    code_hash: str | None
    stack_fd: int  # where faulthandler writes: an attempt puts its own pipe there
    termination: Termination

    def plan(self, task: str) -> CallPlan:
        """How to call the task. Raises PermanentError when the flow as imported has no such function."""
        plans = self.plans.plans() if isinstance(self.plans, FreshImport) else self.plans
        try:
            return plans[task]
        except KeyError:
            raise PermanentError(f"the flow, as it is now, has no task {task!r} with a function") from None

    def describer(self, order: AttemptOrder) -> DescribeError:
        """Turns an exception of this order's task into a Failure; never raises."""
        return partial(described, partial(self._describe, order))

    def _describe(self, order: AttemptOrder, error: BaseException) -> Failure:
        root, code_hash, policy = self.project_root, self.code_hash, order.spec.retry
        return describe_error(error, project_root=root, rules=order.rules, code_hash=code_hash, policy=policy)


class ResultPipe:
    """Sends frames to the executor. A process that the task forked cannot speak in its name."""

    def __init__(self, fd: int, termination: Termination) -> None:
        self._fd = fd
        self._termination = termination
        self._lock = _thread.allocate_lock()
        self._main = _thread.get_ident()
        self._pid = os.getpid()

    def send(self, frame: protocol.Frame) -> None:
        """Write one frame. Raises OSError when the task closed the descriptor."""
        if os.getpid() != self._pid:
            return  # and the lock may have been taken when it was forked
        data = protocol.encode(frame)
        if _thread.get_ident() != self._main:
            self._write(data)
            return
        self._termination.defer()  # the handler runs in the main thread only
        try:
            self._write(data)
        finally:
            self._termination.resume()

    def _write(self, data: bytes) -> None:
        with self._lock:
            protocol.write_all(self._fd, data)


def detach(channels: Channels, stack_fd: int, zygote_pid: int) -> None:
    """Become a session of our own that dies with the zygote and keeps its orphans; output goes to the pipe."""
    os.setsid()
    process.set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != zygote_pid:  # it died before the line above
        os._exit(1)
    process.become_subreaper()
    os.dup2(channels.output, 1)
    os.dup2(channels.output, 2)
    os.close(channels.output)
    os.dup2(channels.stack, stack_fd, inheritable=False)
    os.close(channels.stack)


def refresh() -> None:
    """Undo what a fork shares though it should not: numpy's dice (Python's own are renewed by it), exit functions."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    atexit._clear()
    multiprocessing_util = sys.modules.get("multiprocessing.util")
    if multiprocessing_util is not None:
        atexit.register(multiprocessing_util._exit_function)


def forward_retries(observer: Callable[[Mapping[str, object]], None]) -> None:
    """Hear of retries inside the task, if its flow uses the decorator at all."""
    retrying = sys.modules.get("redrive.engine.toolkit.retry")
    if retrying is not None:
        retrying.set_observer(observer)


def set_environment(order: AttemptOrder) -> None:
    """Tell the task and the programs that it starts who they are. UTF-8 in every locale: cron often has none."""
    said = {
        b"REDRIVE_RUN_ID": order.run_id,
        b"REDRIVE_TASK": order.task,
        b"REDRIVE_ATTEMPT": str(order.attempt),
        b"REDRIVE_IDEMPOTENCY_KEY": order.idempotency_key,
    }
    for params in (order.params, order.spec.params):
        for name, value in params.items():
            said[b"REDRIVE_PARAM_" + re.sub(r"[^A-Z0-9]", "_", name.upper()).encode()] = str(value)
    environment = os.environb
    for key, text in said.items():
        environment[key] = text.encode("utf-8", "surrogateescape")


def run_attempt(start: protocol.Start, facts: FlowFacts, channels: Channels, zygote_pid: int) -> NoReturn:
    """The whole life of the forked process, SIGTERM blocked at first; never returns."""
    code = 1
    try:
        detach(channels, facts.stack_fd, zygote_pid)
        refresh()
        code = _run(start, facts, channels)
        _run_exit_functions(facts)
    except BaseException:  # whatever it is, it must not climb into the zygote's loop
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def _run(start: protocol.Start, facts: FlowFacts, channels: Channels) -> int:
    """Call the task and report its ending. The exit code: 0 for a success."""
    pipe = ResultPipe(channels.results, facts.termination)
    pid = os.getpid()
    ending = _ending(start, facts, pipe, facts.termination)
    if os.getpid() != pid:  # a process that the task forked came back out of the function
        flush()
        os._exit(0)
    pipe.send(ending)
    return 0 if isinstance(ending, protocol.Succeeded) else 1


def _ending(start: protocol.Start, facts: FlowFacts, pipe: ResultPipe, termination: Termination) -> protocol.Ending:
    order = start.order
    describe_error = facts.describer(order)
    try:
        _signal.pthread_sigmask(signal.SIG_SETMASK, ())
        set_environment(order)
        if order.spec.kind == "command":
            shell_command.become(order.spec.command or "", facts.project_root)
        plan = facts.plan(order.task)
        if isinstance(facts.plans, FreshImport):
            pipe.send(protocol.TaskBegan(time.monotonic(), _thread.get_ident()))
        ending = call_task(start, plan, pipe, termination, describe_error, facts.stack_fd)
        termination.close()
        return ending
    except BaseException as error:
        termination.close()
        if termination.requested and type(error).__name__ == "CancelledError":
            return protocol.Terminated()
        return ending_of_error(error, describe_error)


def call_task(
    start: protocol.Start,
    plan: CallPlan,
    pipe: ResultPipe,
    termination: Termination,
    describe_error: DescribeError,
    stack_fd: int | None = None,
) -> protocol.Ending:
    """Call the function. Raises whatever it raises. ``stack_fd``: where its coroutines tell where they stand."""

    def new_context() -> Context:
        return context_for(
            start.order,
            send=pipe.send,
            is_cancelled=lambda: termination.requested,
            describe=describe_error,
        )

    forward_retries(lambda data: pipe.send(protocol.Retried(dict(data))))
    value = call(
        plan, start.order.task, new_context, lambda coroutine: _run_coroutine(coroutine, termination, stack_fd)
    )
    return ending_of_value(start.order, value)


def _run_coroutine(coroutine: Coroutine[Any, Any, Any], termination: Termination, stack_fd: int | None = None) -> Any:
    """Run it so that SIGTERM cancels the main task, and raises only where a step of the user's code is stuck."""
    import asyncio  # only here: attempts that need no loop do not pay for it

    from .hang.coroutines import dump_coroutines_on_signal

    if stack_fd is not None:
        dump_coroutines_on_signal(stack_fd)

    async def main() -> object:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> bool:
            loop.call_soon_threadsafe(task.cancel)
            return asyncio.current_task(loop) is None

        termination.interrupt = interrupt
        try:
            return await coroutine
        finally:
            termination.interrupt = None

    return asyncio.run(main())


def _run_exit_functions(facts: FlowFacts) -> None:
    """As the interpreter would at its end: join threads that are no daemons, then what the task registered."""
    threading = sys.modules.get("threading")
    if isinstance(facts.plans, FreshImport):
        facts.plans.join_threads()
    elif threading is not None:
        threading._shutdown()
    atexit._run_exitfuncs()


def flush() -> None:
    """Have written what was printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed or replaced by the task: there is nothing to save
