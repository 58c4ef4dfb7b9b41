"""An attempt that calls a function without ``ctx``, from the fork to ``os._exit``: ``child.py`` in a straight line.

Python writes into each function, method and type that it uses, so each costs a forked process two or three copied
pages, 2 us each. This way an attempt copies 165 pages, of which 70 are those of any fork; through ``child.py`` 310.
"""

from __future__ import annotations

import atexit
import signal
import traceback
from _signal import pthread_sigmask  # type: ignore[import-not-found]  # as in child.py
from collections.abc import Mapping
from functools import partial
from os import _exit, chdir, close, dup2, getpid, getppid, setsid, write
from sys import modules
from typing import NoReturn

from ..core.result_codec import UnknownClassError, load_result
from ..errors import PermanentError
from .call import CallPlan, known_values, match_parameters, result_json, run_suspended
from .child import FlowFacts, ending_of_exception, flush, run_coroutine, threads_are_left
from .per_attempt_import import FreshImport
from .process import die_with_parent_and_adopt
from .protocol import Start, Succeeded, decode_arguments, decode_order, encode

_SIG_SETMASK = int(signal.SIG_SETMASK)
_NO_RESULT = encode(Succeeded(None))
_PLAIN_TYPES = frozenset([bool, int, float, str, list, dict])

_run_exit_functions = atexit._run_exitfuncs


def direct_plans(facts: FlowFacts) -> Mapping[str, CallPlan]:
    """Return the functions that may be called here unless they need the order, by task.

    None of a flow that imports itself in each attempt, or whose tasks report their retries.
    """
    is_plain = not isinstance(facts.plans, FreshImport) and "redrive.engine.toolkit.retry" not in modules
    plans = facts.plans if is_plain else {}
    assert isinstance(plans, Mapping)
    return plans


def run_directly(
    plan: CallPlan, start: Start, facts: FlowFacts, pipes: tuple[int, int, int], zygote_pid: int
) -> NoReturn:
    """Run the forked process to its end; SIGTERM is blocked at first. Never returns.

    ``pipes``: its ends, for results, output and stack.
    """
    code, termination = 1, facts.termination
    try:
        results, output, stack = pipes
        setsid()
        die_with_parent_and_adopt()
        if getppid() != zygote_pid:  # the zygote died before the line above
            _exit(1)
        dup2(output, 1)
        dup2(output, 2)
        close(output)
        dup2(stack, facts.stack_fd, inheritable=False)
        close(stack)
        if "numpy.random" in modules:
            modules["numpy.random"].seed()
        pid = getpid()
        try:
            pthread_sigmask(_SIG_SETMASK, ())
            chdir(facts.project_root)
            value = plan.function(**direct_arguments(plan, start)) if plan.parameters else plan.function()
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
        if threads_are_left():
            modules["threading"]._shutdown()
        _run_exit_functions()
    except BaseException:  # no exception may reach the zygote's loop
        traceback.print_exc()
    finally:
        flush()
        _exit(code)


def direct_arguments(plan: CallPlan, start: Start) -> dict[str, object]:
    """Return the arguments of a function that has parameters, and none of them is ``ctx``."""
    assert start.arguments is not None
    params, inputs = decode_arguments(start.arguments)
    try:
        results = load_result(inputs)
    except UnknownClassError as error:
        raise PermanentError(f"task {start.function!r} cannot read the result of a parent: {error}") from None
    return match_parameters(plan, start.function or "", known_values(params, results))


def frame_of_value(value: object, start: Start, facts: FlowFacts) -> bytes:
    """Return the final frame for a value that is not None."""
    task = start.function or ""
    if type(value) not in _PLAIN_TYPES:
        run = partial(run_coroutine, termination=facts.termination, stack_fd=facts.stack_fd)
        value = run_suspended(value, task, run)
    return encode(Succeeded(result_json(task, value)))
