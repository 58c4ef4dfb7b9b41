"""Does in the zygote, before the first fork, what every attempt will do.

The interpreter keeps its caches inside code objects and types. An attempt that finds them empty fills them in pages
that it must first copy; forked from a zygote that has rehearsed, it touches a tenth fewer pages.
"""

from __future__ import annotations

import os

from ...core.spec import TaskSpec
from .. import child, protocol
from ..call import plan_of

ROUNDS = 10  # the interpreter specialises a function after eight calls

_START = protocol.Start(0, protocol.AttemptOrder("", "rehearsal", 1, 0, "", TaskSpec("rehearsal")))


def _nothing() -> None:
    """A task."""


def _nothing_of_its_context(ctx: object) -> None:
    """A task that wants to know who it is."""


_PLANS = (plan_of(_nothing), plan_of(_nothing_of_its_context))


def warm_up(facts: child.FlowFacts) -> None:
    """Run an attempt that does nothing, in this process and without a trace."""
    order, termination = _START.order, child.Termination()
    environment, nowhere = dict(os.environ), os.open(os.devnull, os.O_WRONLY)
    try:
        for plan in _PLANS * ROUNDS:
            pipe = child.ResultPipe(nowhere, termination)
            child.set_environment(order)
            pipe.send(child.call_task(_START, plan, pipe, termination, facts.describer(order)))
    finally:
        os.close(nowhere)
        os.environ.clear()
        os.environ.update(environment)
