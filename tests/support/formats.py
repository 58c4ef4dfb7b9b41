"""State files of earlier formats: a run that waits for a human, as the redrive of that time wrote it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from redrive.engine.statefile.opening import APPLICATION_ID

_DUMPS = Path(__file__).parents[1] / "engine/statefile/formats"
#: A file of each format that is closed, by its number. Of format 1 there are two kinds, which both say 1.
CLOSED = {"1-fewer-columns": 1, "1": 1}


def older_file(name: str, path: Path) -> Path:
    """Make the state file of an entry of ``CLOSED``."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.executescript((_DUMPS / f"{name}.sql").read_text())
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={CLOSED[name]}")
        connection.execute("PRAGMA journal_mode=WAL")
    path.chmod(0o600)
    return path
