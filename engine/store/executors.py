"""Table ``executor``: the executors of the state file, with start, heartbeat and end."""

from __future__ import annotations

import os

from ..domain.event_changes import ExecutorChange
from ..domain.event_payloads import ExecutorChanged
from ..statefile import processes
from ..statefile.changes.transitions import Transaction
from ..version import VERSION
from .claims import ExecutorIdentity


def insert(transaction: Transaction, identity: ExecutorIdentity, run_id: str) -> None:
    """Insert this process as the executor; emits no event."""
    start_ticks, boot_id = processes.identity(os.getpid())
    row = {
        "executor_id": identity.executor_id,
        "pid": os.getpid(),
        "start_ticks": start_ticks,
        "boot_id": boot_id,
        "host": identity.host,
        "version": VERSION,
        "started_at": transaction.at,
        "heartbeat_at": transaction.at,
        "run_id": run_id,
    }
    transaction.insert("executor", row)


def write_heartbeat(transaction: Transaction, executor_id: str) -> None:
    """Update the heartbeat; emits no event."""
    transaction.connection.execute(
        "UPDATE executor SET heartbeat_at = ? WHERE executor_id = ?", (transaction.at, executor_id)
    )


def mark_stopped(transaction: Transaction, executor_id: str) -> None:
    """Record the regular end of an executor, with its event."""
    transaction.connection.execute(
        "UPDATE executor SET stopped_at = ?, heartbeat_at = ? WHERE executor_id = ?",
        (transaction.at, transaction.at, executor_id),
    )
    transaction.emit(ExecutorChanged(ExecutorChange.STOPPED, executor_id))
