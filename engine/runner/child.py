"""The code of a forked attempt, from the fork to ``os._exit``.

No exception may return into the zygote's loop. The task reaches the executor only by frames on the result pipe, bytes
on the output pipe and its exit status.

What is not imported here costs no attempt anything: ``threading`` alone does 0.3 ms of work after each fork.
"""

from __future__ import annotations

import _thread
import atexit
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import msgspec

from ..core.failures.failure import failure_of_error
from ..core.outcome import Failure, Outcome, OutcomeKind
from ..core.spec import TaskSpec
from ..errors import PermanentError, TaskTerminated
from . import call, process, protocol
from .protocol import AttemptOrder

if TYPE_CHECKING:
    from threading import Thread


class Channels(msgspec.Struct, frozen=True):
    """The attempt's ends of its three pipes."""

    results: int
    output: int
    stack: int


class Termination:
    """SIGTERM as an exception in the main thread, once, so that the task's ``finally`` blocks run.

    One case does not work: a loop that is the first statement of its ``try`` and calls nothing. The interpreter handles
    a signal there at the jump back, outside of the ``try``.
    """

    def __init__(self) -> None:
        self.requested = False
        self._interrupt: Callable[[], bool] | None = None  # cancels a running event loop; True: no exception is needed
        self._deferrals = 0
        self._pending = False
        self.is_over = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGTERM. A second one is ignored: the ``finally`` blocks still run."""
        if self.requested or self.is_over:
            return
        self.requested = True
        if self._deferrals:
            self._pending = True
        else:
            self._raise()

    def bind(self, interrupt: Callable[[], bool] | None) -> None:
        """Cancel a running event loop by ``interrupt``; None: no loop runs."""
        self._interrupt = interrupt

    def _raise(self) -> None:
        if self._interrupt is None or not self._interrupt():
            raise TaskTerminated("SIGTERM")

    def close(self) -> None:
        """Ignore SIGTERM from now on: the task is over."""
        self.is_over = True

    def reset(self) -> None:
        """Handle SIGTERM again: the next task of a worker begins."""
        self.requested = self._pending = self.is_over = False

    def defer(self) -> None:
        """Defer the exception while a frame is written, else the executor would read half of it."""
        self._deferrals += 1

    def resume(self) -> None:
        """Raise a deferred exception."""
        self._deferrals -= 1
        if self._pending and not self._deferrals:
            self._pending = False
            self._raise()


class FlowFacts(msgspec.Struct, frozen=True):
    """The values of the flow that the zygote hands to each attempt."""

    plans: Mapping[str, call.CallPlan] | FreshImport
    project_root: str  # the folder of the flow file
    code_hash: str | None
    stack_fd: int  # where stacks are written; each attempt replaces it by its own pipe
    termination: Termination
    has_commands: bool = False
    other_folder: str | None = None  # in which attempts run, on a Dask worker without that of the flow

    @property
    def folder(self) -> str:
        """The folder in which every attempt runs."""
        return self.other_folder or self.project_root

    def plan(self, spec: TaskSpec) -> call.CallPlan:
        """Return how to call a task. Raises PermanentError if the imported flow has no such function."""
        task = spec.name if spec.item is None else spec.item.task
        plans = self.plans.plans() if isinstance(self.plans, FreshImport) else self.plans
        if spec.map is not None:
            return call.collecting_plan(spec, spec.map, plans.get(task))
        try:
            return plans[task]
        except KeyError:
            raise PermanentError(f"the flow, as it is now, has no task {task!r} with a function") from None

    def failure_maker(self, order: AttemptOrder) -> call.MakeFailure:
        """Return a function that turns an exception of the task into a Failure; it never raises."""

        def make_failure(error: BaseException) -> Failure:
            root, code_hash, policy = self.project_root, self.code_hash, order.spec.retry
            return failure_of_error(error, project_root=root, rules=order.rules, code_hash=code_hash, policy=policy)

        return lambda error: call.make_failure_safely(make_failure, error)


class ResultPipe:
    """Sends frames to the executor. In a process that the task forked it does nothing."""

    def __init__(self, fd: int, termination: Termination) -> None:
        self.fd = fd
        self._termination = termination
        self._lock = _thread.allocate_lock()
        self._main = _thread.get_ident()
        self._pid = os.getpid()

    def send(self, *frames: protocol.Frame) -> None:
        """Write frames at once. Raises OSError if the task has closed the descriptor."""
        if os.getpid() != self._pid:
            return  # also, the lock may have been held at the fork
        data = b"".join(map(protocol.encode, frames))
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
            protocol.write_all(self.fd, data)


def detach(channels: Channels, stack_fd: int, zygote_pid: int) -> None:
    """Start a session that dies with the zygote and adopts its orphans, and redirect output to the pipe."""
    os.setsid()
    process.set_parent_death_signal(signal.SIGKILL)
    process.become_subreaper()
    if os.getppid() != zygote_pid:  # the zygote died before the lines above
        os._exit(1)
    os.dup2(channels.output, 1)
    os.dup2(channels.output, 2)
    os.close(channels.output)
    os.dup2(channels.stack, stack_fd, inheritable=False)
    os.close(channels.stack)


def reseed(*modules: str) -> None:
    """Give the next task random numbers of its own."""
    for name in modules:
        module = sys.modules.get(name)
        if module is not None:
            module.seed()


def reset_exit_functions() -> None:
    """Remove the exit functions of the import: in the zygote, whose attempts then have those of their task alone."""
    _call_internal("atexit", "_clear")
    multiprocessing_util = sys.modules.get("multiprocessing.util")
    if multiprocessing_util is not None:
        atexit.register(_call_internal, multiprocessing_util.__name__, "_exit_function")


def forward_retries(observer: Callable[[Mapping[str, object]], None]) -> None:
    """Observe the retries inside the task, if its flow has imported the decorator."""
    retry_module = sys.modules.get("redrive.engine.toolkit.retry")
    if retry_module is not None:
        retry_module.set_observer(observer)


def set_variables(variables: Mapping[bytes, bytes]) -> None:
    """Set variables for the task and its programs."""
    environment = os.environb
    for name, value in variables.items():  # ``update`` costs a fresh process a third more
        environment[name] = value


def run_attempt(start: protocol.Start, facts: FlowFacts, channels: Channels, zygote_pid: int) -> NoReturn:
    """Run the forked process to its end; SIGTERM is blocked at first. Never returns."""
    run_to_end(lambda: _run(start, facts, channels), facts, channels, zygote_pid)


def run_to_end(work: Callable[[], int], facts: FlowFacts, channels: Channels, zygote_pid: int) -> NoReturn:
    """Detach the forked process, do its work, which returns the exit code, and end as the interpreter would."""
    code = 1
    try:
        detach(channels, facts.stack_fd, zygote_pid)
        reseed("numpy.random")  # Python resets its own
        code = work()
        _run_exit_functions(facts)
    except BaseException:  # no exception may reach the zygote's loop
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def _run(start: protocol.Start, facts: FlowFacts, channels: Channels) -> int:
    """Call the task and send its final frame. Returns the exit code, 0 for a success."""
    order = protocol.decode_order(start.order)
    if order.cgroup:
        process.enter_cgroup(order.cgroup)
    pipe = ResultPipe(channels.results, facts.termination)
    pid = os.getpid()
    outcome = run_task(order, facts, pipe, lambda: set_variables(start.variables))
    if os.getpid() != pid:  # a process that the task forked has returned from the function
        flush()
        os._exit(0)
    pipe.send(protocol.Ended(outcome))
    return 0 if outcome.kind is OutcomeKind.SUCCESS else 1


def run_task(
    order: AttemptOrder,
    facts: FlowFacts,
    pipe: ResultPipe,
    prepare: Callable[[], object],
    before_call: Callable[[], None] | None = None,
) -> Outcome:
    """Return how the task ended; it never raises.

    ``prepare`` sets the environment; ``before_call`` is called when all is ready for the function.
    """
    termination = facts.termination

    def run_here(coroutine: Coroutine[object, object, object]) -> object:
        return run_coroutine(coroutine, termination.bind)

    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        prepare()
        plan = facts.plan(order.spec)
        os.chdir(facts.folder)  # after the import, which may name its files by the folder of the executor
        if isinstance(facts.plans, FreshImport):
            pipe.send(protocol.TaskBegan(time.monotonic(), _thread.get_ident()))
        if before_call is not None:
            before_call()
        forward_retries(lambda data: pipe.send(protocol.Retried(dict(data))))
        make_failure = facts.failure_maker(order)
        outcome = call.call_task(order, plan, make_failure, pipe.send, lambda: termination.requested, run_here)
        termination.close()
        return outcome
    except BaseException as error:
        termination.close()
        return call.outcome_of_error(error, facts.failure_maker(order), is_cancelled=termination.requested)


def run_coroutine(
    coroutine: Coroutine[object, object, object], bind: Callable[[Callable[[], bool] | None], object]
) -> object:
    """Run a coroutine. ``bind``: gets a function that cancels it, and at its end None.

    The function returns True unless user code blocks the loop.
    """
    import asyncio  # here: attempts without an event loop do not pay for it

    async def main() -> object:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt() -> bool:
            loop.call_soon_threadsafe(task.cancel)
            return asyncio.current_task(loop) is None

        bind(interrupt)
        try:
            return await coroutine
        finally:
            bind(None)

    return asyncio.run(main())


def _run_exit_functions(facts: FlowFacts) -> None:
    """Do what the interpreter does at exit: join non-daemon threads, then run registered exit functions."""
    if isinstance(facts.plans, FreshImport):
        facts.plans.join_threads()
    else:
        _call_internal("threading", "_shutdown")
    _call_internal("atexit", "_run_exitfuncs")


def _call_internal(module: str, name: str) -> bool:
    """Call a function that the interpreter calls at its exit, if its module is loaded. False: it has none any more."""
    loaded = sys.modules.get(module)
    function = getattr(loaded, name, None)
    if function is not None:
        function()
    elif loaded is not None:
        print(f"redrive: this Python has no {module}.{name}, so what that does at an exit is left out", file=sys.stderr)
    return loaded is None or function is not None


class OutputStream(io.TextIOWrapper):
    """stdout or stderr of a zygote and of its attempts.

    ``divert``: gets each text first, and says whether it has written it.
    """

    divert: Callable[[str], bool] | None = None

    def write(self, text: str, /) -> int:
        if self.divert is not None and self.divert(text):
            return len(text)
        return super().write(text)


def flush() -> None:
    """Flush stdout and stderr."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed or replaced by the task


# --- Imports the flow inside each process that runs attempts, for flows whose import leaves threads running ----------
#
# A process that is forked beside threads has copies of their locks, but not the threads that would release them. So
# the zygote of such a flow does not import it (``zygote/zygote.py``), and a process takes one attempt after another,
# as with ``isolation="worker"``: an import in each attempt would cost more than most attempts. All processes import
# the code that the zygote had imported (``flow/loading.py``).


class FreshImport:
    """Imports the flow in this process, once."""

    def __init__(self, load: Callable[[], Mapping[str, call.CallPlan]]) -> None:
        self._load = load
        self._plans: Mapping[str, call.CallPlan] | None = None
        self._error: BaseException | None = None
        self._threads: frozenset[Thread] = frozenset()

    def plans(self) -> Mapping[str, call.CallPlan]:
        """Return how to call the tasks. Raises the exception of the import, on every call."""
        if self._error is not None:
            raise self._error
        if self._plans is None:
            self._plans = self._load()
            threading = sys.modules.get("threading")
            self._threads = frozenset(threading.enumerate()) if threading is not None else frozenset()
        return self._plans

    def preload(self) -> None:
        """Import now; ``plans`` raises the error, if any."""
        try:
            self.plans()
        except BaseException as error:
            self._error = error

    def join_threads(self) -> None:
        """Join the threads that the task started, as the interpreter does at exit; not those of the import."""
        if not _call_internal("concurrent.futures.thread", "_python_exit"):
            return  # a thread of a pool that nobody has told to end would be waited for without end
        threading = sys.modules.get("threading")
        for thread in threading.enumerate() if threading is not None else ():
            if not thread.daemon and thread not in self._threads:
                thread.join()
