"""Warms the interpreter's caches in the zygote, before the first fork, by running the code of an attempt.

The caches are inside code objects and types. An attempt that finds them empty fills them, and so copies their pages; a
warm zygote saves a tenth of the copied pages.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ...core.spec import TaskSpec
from .. import child, direct_call, protocol
from ..call import plan_of

ROUNDS = 10  # the interpreter specialises a function after eight calls

_ORDER = protocol.AttemptOrder("", "rehearsal", 1, 0, "", TaskSpec("rehearsal"))


def _empty() -> None:
    """A task."""


def _empty_with_context(ctx: object) -> None:
    """A task with a context."""


_PLANS = (plan_of(_empty), plan_of(_empty_with_context))


def warm_up(facts: child.FlowFacts) -> None:
    """Run empty attempts in this process, and restore its environment."""
    order, termination = _ORDER, child.Termination()
    start = protocol.Start(0, protocol.encode_order(order))
    environment, null = dict(os.environ), os.open(os.devnull, os.O_WRONLY)
    try:
        for plan in _PLANS * ROUNDS:
            pipe = child.ResultPipe(null, termination)
            child.set_environment(order)
            pipe.send(child.call_task(order, plan, pipe, termination, facts.describer(order)))
            direct_call.frame_of_value(os.getpid(), start, facts)
        _link_calls(null)
    finally:
        os.close(null)
        os.environ.clear()
        os.environ.update(environment)


def _link_calls(descriptor: int) -> None:
    """Make the system calls of an attempt once: the linker finds a function at its first call, in 10 copied pages."""
    os.getppid()
    os.close(os.dup2(descriptor, os.dup(descriptor), inheritable=False))
    with suppress(OSError):  # the folder is gone
        os.chdir(".")
    with suppress(OSError):  # this process leads a session already
        os.setsid()
