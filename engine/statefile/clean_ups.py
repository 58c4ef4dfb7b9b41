"""Clean-ups: tasks that run although the run is over, because its deadline has passed or an operator has abandoned it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A clean-up is a task that starts although a task above has failed (rule "all_done"), except an approval: nobody is asked
at that hour. When the run is over, all other tasks end; a clean-up stays:

    clean-up             then
    -----------------    ------------------------------------------------------------------------------
    has not started      starts when all tasks above it have ended; a dead letter counts as ended
    waits or runs        goes on
    either               is ended when its bound has passed since the run was over, or since it could start

The bound is its ``timeout``, of a sensor ``max_elapsed`` of its policy, else ``BOUND_SECONDS``. ``task.expires_at`` has
its end; an executor that resumes the run gives the whole bound again. When no clean-up is left, the run ends in the
state that it would have without them.
"""

from typing import Any, Iterable, Mapping

from ..domain.states import APPROVAL, TaskState
from ..domain.task_options import GRACE_SECONDS, load_overrides
from ..domain.text import format_seconds
from ..domain.trigger_rules import ALL_DONE
from .action import TaskSnapshot, read_known_task
from .map_tasks import edge_rules
from .requeue import BOUNDED_CLEAN_UPS
from .transitions import Transaction

BOUND_SECONDS = 600.0
#: After its timeout and grace, so that the end of a hanging attempt is told by its timeout.
_MARGIN_SECONDS = 1.0


def is_clean_up(spec: Mapping[str, Any]) -> bool:
    """Whether a task runs after the end of its run. ``spec``: its JSON."""
    return spec.get("kind") != APPROVAL and ALL_DONE in edge_rules(spec, spec.get("parents", ())).values()


def bound_seconds(task: TaskSnapshot) -> float:
    """The seconds that a clean-up may take in all, once it can start and the run is over."""
    spec, overrides = task.read_spec(), load_overrides(task.overrides)
    if spec.get("kind") == "sensor":
        return float((spec.get("retry") or {}).get("max_elapsed") or BOUND_SECONDS)
    timeout = overrides.get("timeout", spec.get("timeout"))
    grace = float(spec.get("grace_seconds", GRACE_SECONDS))
    return BOUND_SECONDS if timeout is None else float(timeout) + grace + _MARGIN_SECONDS


def describe_bound(task: TaskSnapshot) -> str:
    """Why a clean-up is ended that has taken too long."""
    return f"a clean-up of a run that is over: it has not ended within {format_seconds(bound_seconds(task))}"


def bound_clean_ups(transaction: Transaction, run_id: str, clean_ups: Iterable[TaskSnapshot]) -> None:
    """Bound the clean-ups that can start, or run, now that the run is over."""
    for task in clean_ups:
        if task.state != TaskState.PENDING:
            bound_clean_up(transaction, run_id, task.name)


def bound_clean_up(transaction: Transaction, run_id: str, name: str) -> None:
    """Bound a clean-up from now on."""
    task = read_known_task(transaction.connection, run_id, name)
    until = transaction.at + round(bound_seconds(task) * 1e6)
    transaction.change(run_id, name, {"expires_at": until})


def set_bounds(transaction: Transaction, run_id: str) -> None:
    """Give the clean-ups of a run their whole bound again: nobody ran it meanwhile."""
    for (name,) in transaction.connection.execute(BOUNDED_CLEAN_UPS, (run_id,)).fetchall():
        bound_clean_up(transaction, run_id, name)
