"""Table ``executor``: the executors of the state file, with start, heartbeat and end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property

import msgspec

from ... import __version__
from ..domain import event_payloads as payloads
from ..statefile import map_tasks, processes
from ..statefile.transitions import Transaction
from .database import path_of


def random_hex(size: int) -> str:
    """Return the hex digits of random bytes."""
    return os.urandom(size).hex()


class ExecutorIdentity(msgspec.Struct, frozen=True, dict=True):
    """The executor that claims: columns shared by all of its attempts."""

    executor_id: str
    host: str
    code_hash: str | None
    params: Mapping[str, object] = {}  # of the run
    image_hash: str | None = None  # interpreter and packages
    random_hex: Callable[[int], str] = random_hex

    @cached_property
    def params_hash(self) -> str:
        """The hash of the parameters of an attempt whose task has none of its own."""
        return map_tasks.hash_of(self.params, {})


def insert_executor(transaction: Transaction, identity: ExecutorIdentity, run_id: str) -> None:
    """Insert this process as the executor; emits no event."""
    start_ticks, boot_id = processes.identity(os.getpid())
    row = {
        "executor_id": identity.executor_id,
        "pid": os.getpid(),
        "start_ticks": start_ticks,
        "boot_id": boot_id,
        "host": identity.host,
        "version": __version__,
        "started_at": transaction.at,
        "heartbeat_at": transaction.at,
        "run_id": run_id,
        "state_path": _storable(path_of(transaction.connection)),
    }
    transaction.insert("executor", row)


def _storable(path: str) -> str | None:
    """Return a path as SQLite can keep it; None for a database in memory, or a name that is no Unicode."""
    return path if path and path.isprintable() else None


def write_heartbeat(transaction: Transaction, executor_id: str) -> None:
    """Update the heartbeat; emits no event."""
    transaction.connection.execute(
        "UPDATE executor SET heartbeat_at = ? WHERE executor_id = ?", (transaction.at, executor_id)
    )


def mark_executor_stopped(transaction: Transaction, executor_id: str) -> None:
    """Record the regular end of an executor, with its event."""
    transaction.connection.execute(
        "UPDATE executor SET stopped_at = ?, heartbeat_at = ? WHERE executor_id = ?",
        (transaction.at, transaction.at, executor_id),
    )
    transaction.emit(payloads.ExecutorChanged(payloads.ExecutorChange.STOPPED, executor_id))
