"""Table ``executor``: who has had the state file open, from when to when."""

from __future__ import annotations

import os

from ..domain.event_payloads import ExecutorChange, ExecutorChanged
from ..statefile import processes
from ..statefile.changes.transitions import Journal
from ..version import VERSION
from .claims import Claimant


def insert(journal: Journal, claimant: Claimant, run_id: str) -> None:
    """Enter this process as the executor; emits no event."""
    start_ticks, boot_id = processes.identity(os.getpid())
    columns = {
        "executor_id": claimant.executor_id,
        "pid": os.getpid(),
        "start_ticks": start_ticks,
        "boot_id": boot_id,
        "host": claimant.host,
        "version": VERSION,
        "started_at": journal.at,
        "heartbeat_at": journal.at,
        "run_id": run_id,
    }
    journal.connection.execute(
        f"INSERT INTO executor ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})", (*columns.values(),)
    )


def beat(journal: Journal, executor_id: str) -> None:
    """Write the heartbeat; emits no event."""
    journal.connection.execute("UPDATE executor SET heartbeat_at = ? WHERE executor_id = ?", (journal.at, executor_id))


def mark_stopped(journal: Journal, executor_id: str) -> None:
    """Write the orderly end of an executor, with its event."""
    journal.connection.execute(
        "UPDATE executor SET stopped_at = ?, heartbeat_at = ? WHERE executor_id = ?",
        (journal.at, journal.at, executor_id),
    )
    journal.emit(ExecutorChanged(ExecutorChange.STOPPED, executor_id))
