"""Upgrades a state file of an earlier format, step by step.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``schema.sql`` creates a new file in the latest format. A change of the format after the first release increments
``SCHEMA_VERSION``, changes ``schema.sql``, and adds the step that upgrades a file of the previous format. A file that
is only read is not upgraded: readers must handle the earlier formats as well.
"""

import sqlite3
from typing import Callable, Dict

from ..header import SCHEMA_VERSION, check_version

Step = Callable[[sqlite3.Connection], None]

#: Format -> the step that upgrades the previous format to it. Format 1 is the first, so it has no step.
STEPS: Dict[int, Step] = {}


def upgrade(connection: sqlite3.Connection, path: str) -> None:
    """Run the missing steps in the transaction of the caller, who holds the lock of the file.

    Raises NewerFileError for a file of a later format.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    check_version(path, version)
    if version == SCHEMA_VERSION:
        return
    for number in range(version + 1, SCHEMA_VERSION + 1):
        STEPS[number](connection)
    set_version(connection)


def set_version(connection: sqlite3.Connection) -> None:
    """Mark the file as being in the latest format."""
    connection.execute("PRAGMA user_version = {}".format(SCHEMA_VERSION))
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION),))
