"""An attempt that calls a plain function, from the fork to ``os._exit``: ``child.py`` in a straight line.

Python writes into each function, method and type that it uses, so each costs a forked process two or three copied
pages, 2 us each. This way an attempt copies 99 pages until its function is called, with ``ctx`` 235, and 280 through
``child.py``.
"""

from __future__ import annotations

import atexit
import signal
import traceback
from _thread import _count as thread_count
from collections.abc import Callable, Mapping
from functools import partial
from os import _exit, chdir, close, dup2, getpid, getppid, setsid, write
from sys import modules
from typing import NoReturn

from ..core.result_codec import UnknownClassError, load_result
from ..errors import PermanentError
from .call import CallPlan, call, context_for, known_values, match_parameters, result_json, run_suspended
from .child import FlowFacts, ResultPipe, ending_of_exception, flush, run_coroutine, threads_are_left
from .context import Context
from .per_attempt_import import FreshImport
from .process import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, PRCTL_REFUSED, SIGKILL
from .process import prctl_of_attempts as prctl
from .protocol import Start, Succeeded, decode_arguments, decode_order, encode
from .raw_signal import set_mask

_SIG_SETMASK = int(signal.SIG_SETMASK)
_NO_RESULT = encode(Succeeded(None))
#: By the length of a whole number as text, what comes before it in its frame: it needs no encoder (20 copied pages).
_BEFORE_NUMBER = [encode(Succeeded("0" * length))[: -length or None] for length in range(20)]
_SHORT = 10**18
_PLAIN_TYPES = frozenset([bool, int, float, str, list, dict])

_run_exit_functions = atexit._run_exitfuncs

DirectPlan = tuple[Callable[..., object], CallPlan | None]  # the function, and how to call it if it has parameters
DirectRunner = Callable[[DirectPlan, Start, tuple[int, int, int]], NoReturn]


def direct_plans(facts: FlowFacts) -> Mapping[str | None, DirectPlan]:
    """Return the functions that may be called here, by task: those that are not asynchronous.

    None of a flow that imports itself in each attempt, or whose tasks report their retries.
    """
    if isinstance(facts.plans, FreshImport) or "redrive.engine.toolkit.retry" in modules:
        return {}
    plans = facts.plans.items()
    return {task: (plan.function, plan if plan.parameters else None) for task, plan in plans if not plan.is_async}


def direct_runner(facts: FlowFacts, zygote_pid: int) -> DirectRunner:
    """Return the function that runs a forked process to its end.

    What it needs is in its closure: reading an attribute for the first time costs a process three to five pages.
    """
    stack_fd, root, termination = facts.stack_fd, facts.project_root, facts.termination
    has_numpy = "numpy.random" in modules
    threading = modules.get("threading")
    at_thread_exit = () if threading is None else threading._threading_atexits

    def run_directly(plan: DirectPlan, start: Start, pipes: tuple[int, int, int]) -> NoReturn:
        """SIGTERM is blocked at first. Never returns. ``pipes``: the ends for results, output and stack."""
        code = 1
        try:
            results, output, stack = pipes
            setsid()
            if prctl(PR_SET_PDEATHSIG, SIGKILL) or prctl(PR_SET_CHILD_SUBREAPER, 1):
                raise OSError(PRCTL_REFUSED)
            if getppid() != zygote_pid:  # the zygote died before the line above
                _exit(1)
            dup2(output, 1)
            dup2(output, 2)
            close(output)
            dup2(stack, stack_fd, False)
            close(stack)
            if has_numpy:
                modules["numpy.random"].seed()
            pid = getpid()
            try:
                set_mask(_SIG_SETMASK, ())
                chdir(root)
                function, with_parameters = plan
                if with_parameters is None:
                    value = function()
                elif start.arguments is None or with_parameters.needs_order:
                    value = call_with_order(with_parameters, start, facts, results)
                else:
                    value = function(**direct_arguments(with_parameters, start))
                frame = _NO_RESULT if value is None else frame_of_value(value, start, facts)
                termination.is_over = True
                code = 0
            except BaseException as error:
                termination.is_over = True
                describe_error = facts.describer(decode_order(start.order))
                ending = ending_of_exception(error, termination, describe_error)
                frame, code = encode(ending), 0 if isinstance(ending, Succeeded) else 1
            if getpid() != pid:  # a process that the task forked has returned from the function
                flush()
                _exit(0)
            while frame:
                frame = frame[write(results, frame) :]
            if (thread_count() or at_thread_exit or threading is None) and threads_are_left():
                modules["threading"]._shutdown()
            _run_exit_functions()
        except BaseException:  # no exception may reach the zygote's loop
            traceback.print_exc()
        finally:
            flush()
            _exit(code)

    return run_directly


def direct_arguments(plan: CallPlan, start: Start) -> dict[str, object]:
    """Return the arguments of a function that has parameters, and none of them is ``ctx``."""
    assert start.arguments is not None
    params, inputs = decode_arguments(start.arguments)
    try:
        results = load_result(inputs)
    except UnknownClassError as error:
        raise PermanentError(f"task {start.function!r} cannot read the result of a parent: {error}") from None
    return match_parameters(plan, start.function or "", known_values(params, results))


def call_with_order(plan: CallPlan, start: Start, facts: FlowFacts, results: int) -> object:
    """Call a function that has the parameter ``ctx``, or arguments that are not plain."""
    order, termination = decode_order(start.order), facts.termination
    send, describe_error = ResultPipe(results, termination).send, facts.describer(order)

    def new_context() -> Context:
        return context_for(order, send=send, is_cancelled=lambda: termination.requested, describe=describe_error)

    run = partial(run_coroutine, termination=termination, stack_fd=facts.stack_fd)
    return call(plan, order.task, new_context, run)


def frame_of_value(value: object, start: Start, facts: FlowFacts) -> bytes:
    """Return the final frame for a value that is not None."""
    if type(value) is int and -_SHORT < value < _SHORT:
        text = b"%d" % value
        return _BEFORE_NUMBER[len(text)] + text
    task = start.function or ""
    if type(value) not in _PLAIN_TYPES:
        run = partial(run_coroutine, termination=facts.termination, stack_fd=facts.stack_fd)
        value = run_suspended(value, task, run)
    return encode(Succeeded(result_json(task, value)))
