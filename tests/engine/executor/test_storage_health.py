"""What listeners hear of the storage, and what is written about it."""

from __future__ import annotations

from redrive.engine.clock import SystemClock
from redrive.engine.domain.event_payloads import StorageChange
from redrive.engine.errors import StorageError
from redrive.engine.executor.state_file_watch import StorageHealth


def test_a_storage_that_recovers_at_the_last_write_of_a_closing_executor_is_no_fault() -> None:
    def refuse(item: object) -> None:
        raise StorageError("the state file is being closed")

    health = StorageHealth(SystemClock(), refuse, lambda events: None)
    health.on_writer_change(StorageChange.DEGRADED, "the disk is full")
    assert health.problem == "the disk is full" and health.since is not None
    before = health.since
    health.shift_clock(-3_600_000_000)
    assert health.since == before - 3_600_000_000  # the clock was set back meanwhile
    health.on_writer_change(StorageChange.RECOVERED, "the state file is written again")
    assert health.problem is None
