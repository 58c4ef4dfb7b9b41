"""Reports unfinished runs whose executor has died, when the next executor opens the state file for another run."""

from __future__ import annotations

from collections.abc import Iterable

from ..domain.event_changes import RunChange
from ..domain.event_payloads import RunChanged
from ..domain.liveness import cut_off_cause
from ..statefile.changes.transitions import Transaction
from .pages import PageRequest, trigger_page

_UNFINISHED = (
    "SELECT run.run_id, executor.pid, executor.host FROM executor JOIN run ON run.run_id = executor.run_id"
    " WHERE executor_id = ? AND run.run_id <> ? AND run.ended_at IS NULL AND run.blocked_since IS NULL"
)


def report_cut_off(transaction: Transaction, dead_executors: Iterable[str], run_id: str) -> None:
    """Emit an event and a page for each unfinished run of ``dead_executors``, except ``run_id``.

    An executor is reported dead once. A blocked run was paged for its dead letters and loses nothing.
    """
    for dead in dead_executors:
        for unfinished, pid, host in transaction.connection.execute(_UNFINISHED, (dead, run_id)).fetchall():
            why = f"its executor (pid {pid} on {host}) died, and no executor has resumed it"
            transaction.emit(RunChanged(RunChange.CUT_OFF, why=why), unfinished)
            title = f"run {unfinished} was cut off"
            trigger_page(transaction, PageRequest(unfinished, None, title, why=why, cause=cut_off_cause(unfinished)))
