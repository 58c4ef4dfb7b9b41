"""The deadline of a run: the rule and its words.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

At ``run.deadline_at`` the run is over, unless the flow says ``deadline_action="page"``: in one transaction each task
that has not started becomes CANCELLED, each running attempt gets SIGTERM, its grace and SIGKILL, and
``run.deadline_passed_at`` is set. When no process is left, the run is FAILED. Dead letters wait for a human as before;
so does an effect that the deadline has interrupted, because nobody knows whether it has happened.

An operator who lets tasks run after that wants them to run: the act lifts the deadline of the run, and tasks below that
the deadline had cancelled run, too. ``postpone`` gives the run a later deadline, before or after the old one.
"""

import json
from typing import Optional

from .durations import format_clock

END, PAGE = "end", "page"


def ends_run(options: str) -> bool:
    """Whether the deadline ends the run. ``options``: of the run, JSON."""
    action: str = json.loads(options).get("deadline_action", END)
    return action == END


def is_due(deadline_at: Optional[int], passed_at: Optional[int], options: str, now: int) -> bool:
    """Whether the deadline of an unfinished run is to end it now. Instants in microseconds UTC."""
    return deadline_at is not None and passed_at is None and now >= deadline_at and ends_run(options)


def describe_passed(deadline_at: int) -> str:
    """The reason of everything that a deadline ends."""
    return "the deadline of the run, {}, has passed".format(format_clock(deadline_at))


def deadline_cause(run_id: str) -> str:
    """The cause of the page about the deadline of a run."""
    return "deadline:{}".format(run_id)
