"""Tests of flows in virtual time: the real executor, with a clock, processes and a disk that are played.

>>> from redrive.engine import Flow
>>> from redrive.engine.testing import down, play
>>> flow = Flow("revenue")
>>> @flow.task(downstream="bank")
... def fetch():
...     return 42
>>> night = play(flow, faults=[down("bank", lasts="2m")])
>>> night.state, night.result("fetch")
('SUCCESS', 42)
"""

from .bodies import StageError
from .director import in_turn
from .faults import clock_step, crash, disk_full, down, error, exits, hang, killed, limited, not_started, slow
from .night import Night
from .play import play

__all__ = [
    "Night",
    "StageError",
    "clock_step",
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
    "slow",
]
