"""Tests of flows in virtual time: the real executor, with a clock, processes and a disk that are played.

>>> from redrive.engine import Flow
>>> from redrive.engine.testing import down, play
>>> flow = Flow("revenue")
>>> @flow.task(downstream="bank", max_attempts=8)
... def fetch():
...     return 42
>>> night = play(flow, faults=[down("bank", lasts="2m")])
>>> night.state, night.result("fetch"), night.healed_within("1m", after="bank")
('SUCCESS', 42, True)

To play:
    play, play_schedule     one or several runs of a flow; ``redrive serve`` of a flow with a schedule
    Night                   what came of it
    in_turn                 values for the first, second, ... start of a task
    StageError              what cannot be played

What goes wrong (``faults=``):
    down, limited           a downstream fails; it refuses calls beyond a rate
    error, exits, killed    attempts raise, exit with a code, are ended by a signal
    hang, slow, not_started they never end, take longer, get no process
    crash                   the executor, or the process that forks attempts, is killed
    disk_full, clock_step   the disk takes no write; the wall clock is set

To test one body alone:
    context                 the ``ctx`` of one attempt
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bodies import StageError, context
    from .director import in_turn
    from .faults import clock_step, crash, disk_full, down, error, exits, hang, killed, limited, not_started, slow
    from .night import Night
    from .playing import play, play_schedule

__all__ = [
    "Night",
    "StageError",
    "clock_step",
    "context",
    "crash",
    "disk_full",
    "down",
    "error",
    "exits",
    "hang",
    "in_turn",
    "killed",
    "limited",
    "not_started",
    "play",
    "play_schedule",
    "slow",
]

_LAZY_MODULES = {  # else each run of pytest, which loads ``plugin.py``, would import the engine
    "Night": "night",
    "StageError": "bodies",
    "context": "bodies",
    "in_turn": "director",
    "play": "playing",
    "play_schedule": "playing",
}

if not TYPE_CHECKING:  # else mypy would accept misspelled names

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f".{_LAZY_MODULES.get(name, 'faults')}", __name__), name)


def __dir__() -> list[str]:
    """Return the public names, also those that are not imported yet."""
    return sorted(__all__)
