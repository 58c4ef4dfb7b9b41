"""What a running task uses now.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import NamedTuple, Optional


class TaskUsage(NamedTuple):
    """What the processes of a running attempt use. ``cpu_percent``: of one CPU, since the reading before;
    ``memory_bytes``: resident; both None if they cannot be told apart from those of other tasks."""

    task: str
    cpu_percent: Optional[int]
    memory_bytes: Optional[int]
    children: int
    last_line: str
