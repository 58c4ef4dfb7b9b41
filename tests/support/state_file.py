"""A state file with a run in it, written by the process of the test."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redrive.engine.core.spec import FlowSpec, TaskSpec
from redrive.engine.domain.acts import Author
from redrive.engine.domain.event_payloads import AttemptColumns, AttemptSwept, TaskMoved
from redrive.engine.statefile import logs
from redrive.engine.statefile.transitions import Transaction
from redrive.engine.store import claims, database, runs


class StateFileBuilder:
    """A state file with one run in it, written by this process as an executor would."""

    def __init__(self, path: Path, tasks: int = 6, run_id: str = "night-1") -> None:
        self.path = path
        self.run_id = run_id
        self.connection = database.open_for_writing(str(path))
        self.connection.execute("PRAGMA synchronous=OFF")  # no power fails here
        self._lock = threading.Lock()
        names = [f"task_{number:05}" for number in range(tasks)]
        specs = tuple(
            TaskSpec(name, parents=(names[(number - 1) // 2],) if number else (), timeout=30.0)
            for number, name in enumerate(names)
        )
        self.write(
            lambda transaction: runs.create_run(
                transaction,
                run_id=run_id,
                flow=FlowSpec("nightly", specs),
                max_parallel=4,
                params={},
                at=transaction.at,
                deadline_at=None,
            )
        )

    def write(self, item: Callable[[Transaction], Any], **signed: Any) -> Any:
        """One transaction."""
        with self._lock:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                result = item(Transaction(self.connection, time.time_ns() // 1000, Author(**signed)))
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")
            return result

    def emit_idle_events(self, count: int = 1) -> None:
        """Events without consequence, each in a transaction of its own."""
        for _ in range(count):
            self.write(lambda transaction: transaction.emit(AttemptSwept(), self.run_id))

    def start(self, name: str) -> int:
        """Claim a task; answers with the number of the attempt."""

        def item(transaction: Transaction) -> int:
            claims.promote(transaction, self.run_id, {name: 0})
            return claims.claim(transaction, self.run_id, name, 0, f"token-{name}", {"pid": 4711, "host": "far"})

        attempt: int = self.write(item)
        assert attempt
        return attempt

    def finish(self, name: str, state: str = "SUCCESS", text: str = "one line\n", **columns: Any) -> None:
        """Start a task and end it in ``state``."""
        attempt = self.start(name)

        def item(transaction: Transaction) -> None:
            logs.append(transaction, self.run_id, name, attempt, text)
            outcome = "success" if state == "SUCCESS" else "error"
            ended: AttemptColumns = {
                "ended_at": transaction.at,
                "duration_us": 1234,
                "outcome": outcome,
                "error": columns.get("error"),
                "output_bytes": len(text),
            }
            transaction.change_attempt(self.run_id, name, attempt, {**ended, "traceback": "Traceback: of " + name})
            transaction.move(
                self.run_id,
                name,
                "RUNNING",
                state,
                0,
                set={"ended_at": transaction.at, **columns},
                attempt=attempt,
                payload=TaskMoved(attempt_set=ended),
            )

        self.write(item)

    def head(self) -> int:
        """The number of the latest event."""
        return int(self.connection.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()[0])

    def close(self) -> None:
        """Leave the file at rest."""
        self.connection.close()


def copy_state_file(source: Path, folder: Path) -> Path:
    """A copy of a state file at rest, for a test that changes it."""
    for path in (source, source.with_name(f"{source.name}-wal")):
        if path.exists():
            shutil.copy(path, folder)
    return folder / source.name
