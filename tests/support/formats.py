"""State files of earlier formats: a run that waits for a human, as the redrive of that time wrote it.

To close the latest format: ``python -m tests.support.formats``, and name its file in ``CLOSED``. From then on a change
of ``schema.sql`` needs the next number.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from redrive.engine.statefile.formats import SCHEMA_VERSION
from redrive.engine.statefile.opening import APPLICATION_ID
from redrive.engine.store import database

_DUMPS = Path(__file__).parents[1] / "engine/statefile/formats"
#: A file of each format that is closed, by its number. Of format 1 there are two kinds, which both say 1.
CLOSED = {"1-fewer-columns": 1, "1": 1, "2": 2}


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


def close_latest() -> Path:
    """Write the dump of a file of the latest format: the last closed one, upgraded."""
    target = _DUMPS / f"{SCHEMA_VERSION}.sql"
    with tempfile.TemporaryDirectory() as folder:
        path = older_file(list(CLOSED)[-1], Path(folder) / "shop.db")
        with closing(database.open_for_writing(path)) as connection:
            target.write_text("\n".join(connection.iterdump()) + "\n")
    return target


if __name__ == "__main__":
    print(close_latest())
