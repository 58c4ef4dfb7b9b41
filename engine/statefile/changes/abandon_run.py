"""The act ``abandon``: ends an unfinished run that nobody will resume.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from ...domain.command import REFUSED, Answer, Target
from ...domain.event_changes import RunChange
from ...domain.event_payloads import RunChanged
from ...domain.liveness import cut_off_cause
from ...domain.states import OPEN, RunState, TaskState
from ..state_lists import in_list
from .abandoned import resolve_target
from .action import ActionContext, read_task
from .page_lifecycle import resolve, resolve_cause
from .requeue import end_generation

_OPEN_TASKS = "SELECT name, state, generation FROM task WHERE run_id = ? AND state IN " + in_list(OPEN)


def abandon_run(context: ActionContext) -> Answer:
    """Cancel every task that has not ended, and end the run. Refused, without a change, while a task runs."""
    connection, run_id = context.connection, context.run_id
    run = connection.execute("SELECT state FROM run WHERE run_id = ?", (run_id,)).fetchone()
    if run is None:
        return Answer(False, "there is no such run")
    if run[0] != RunState.RUNNING:
        return Answer(False, "the run has ended: {}".format(run[0]))
    targets = [Target(*row) for row in connection.execute(_OPEN_TASKS + " ORDER BY position", (run_id,)).fetchall()]
    for target in targets:
        row = resolve_target(context, target)
        if row is not None and row.state == TaskState.RUNNING:
            context.set_result(row.name, REFUSED, "it runs: stop the executor of the run, or cancel the task")
    if context.results:
        names = ", ".join(sorted(context.results))
        return Answer(False, "the run goes on: {}".format(names), tuple(context.results.values()))
    for target in targets:
        row = read_task(connection, run_id, target.task)
        if row is not None and row.state in OPEN:
            end_generation(context, row, TaskState.CANCELLED)
            resolve(context.transaction, run_id, row.name)
    ended = RunChanged(
        RunChange.ENDED, {"state": str(RunState.ABANDONED), "ended_at": context.transaction.at, "blocked_since": None}
    )
    context.transaction.change_run(run_id, ended, old=str(RunState.RUNNING), new=str(RunState.ABANDONED))
    resolve_cause(context.transaction, cut_off_cause(run_id))
    count = len(targets)
    return Answer(True, "run {} is abandoned: {} task{} cancelled".format(run_id, count, "" if count == 1 else "s"))
