"""Brings a state file of an earlier format up to date, step by step.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

``schema.sql`` makes a new file in the latest format. A change of the format after the first release adds 1 to
``SCHEMA_VERSION``, changes ``schema.sql``, and adds the step that turns a file of the format before into the same.
A file that is only read is not upgraded: a step that readers must know of changes the readers as well.
"""

import sqlite3
from typing import Callable, Dict

from ..header import SCHEMA_VERSION, newer

Step = Callable[[sqlite3.Connection], None]

#: Format -> the step that makes it of the format before. Format 1 is the first that was released: no step makes it.
STEPS: Dict[int, Step] = {}


def upgrade(connection: sqlite3.Connection, path: str) -> None:
    """Run the steps that the file lacks, in the transaction of the caller, who holds the lock of the file.

    Raises NewerFileError for a file of a later format than this one knows.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise newer(path, version)
    if version == SCHEMA_VERSION:
        return
    for number in range(version + 1, SCHEMA_VERSION + 1):
        STEPS[number](connection)
    set_version(connection)


def set_version(connection: sqlite3.Connection) -> None:
    """Write down that the file has the latest format."""
    connection.execute("PRAGMA user_version = {}".format(SCHEMA_VERSION))
    connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(SCHEMA_VERSION),))
