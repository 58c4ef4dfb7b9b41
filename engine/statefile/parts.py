"""The tasks of a run that a command needs, where it does not need them all: by one rule here and over ssh.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Any, Dict, List, Optional, Sequence

from ..domain.breakers import SHUT_BREAKERS
from ..domain.rows import RunRow
from ..domain.states import DEADLINE_MODE, NEEDS_HUMAN
from .snapshot import pack_run, read_run, read_snapshot
from .sql import IS_APPROVAL, in_list

#: SQL: the tasks that need a human, also what the deadline has ended, and those below them.
_OF_INBOX = (
    "WITH RECURSIVE found(name) AS (SELECT name FROM task WHERE run_id = :run"
    " AND (state IN " + in_list(NEEDS_HUMAN) + " OR (state = 'CANCELLED' AND failure_mode = '" + DEADLINE_MODE + "')"
    " OR (state = 'READY' AND attempt = 0 AND " + IS_APPROVAL + "))"
    " UNION SELECT edge.child FROM found CROSS JOIN edge ON edge.run_id = :run AND edge.parent = found.name)"
    " SELECT name FROM found"
)

#: SQL: tasks, what is above them up to what succeeded, and what runs, which holds slots.
_WITH_BLOCKERS = (
    "WITH RECURSIVE found(name) AS (SELECT value FROM json_each(:names)"
    " UNION SELECT name FROM task WHERE run_id = :run AND state = 'RUNNING'"
    " UNION SELECT edge.parent FROM found CROSS JOIN task ON task.run_id = :run AND task.name = found.name"
    " AND task.state <> 'SUCCESS' CROSS JOIN edge ON edge.run_id = :run AND edge.child = found.name)"
    " SELECT name FROM found"
)


def part(
    connection: sqlite3.Connection, run_id: Optional[str], names: Optional[Sequence[str]], has_blockers: bool
) -> Dict[str, Any]:
    """The tasks of ``names_of_part`` of a run (default: the latest), packed. Raises NotFoundError."""
    with read_snapshot(connection):
        run = read_run(connection, run_id)
        return pack_run(connection, run, names_of_part(connection, run, names, has_blockers), is_whole=True)


def names_of_part(
    connection: sqlite3.Connection, run: RunRow, names: Optional[Sequence[str]], has_blockers: bool
) -> Optional[List[str]]:
    """The tasks that are needed of a run; None: all.

    ``has_blockers``: with all that explains why ``names`` wait as well: the tasks above them up to those that
    succeeded, and what runs. ``names`` None: what the inbox shows: the tasks that need a human, and those below them;
    or all tasks, if one of them could start once a human ends its wait.
    """
    if names is None and _may_be_held(connection, run):
        return None
    if names is not None and not has_blockers:
        return list(names)
    sql = _OF_INBOX if names is None else _WITH_BLOCKERS
    return [name for (name,) in connection.execute(sql, {"run": run.run_id, "names": json.dumps(names)})]


def _may_be_held(connection: sqlite3.Connection, run: RunRow) -> bool:
    """Whether tasks may wait for a human although none has failed: for the end of a pause, or for a breaker."""
    if run.ended_at is not None:
        return False
    sql = "SELECT 1 FROM task WHERE run_id = ? AND state = 'DEAD_LETTER' LIMIT 1"
    dead = connection.execute(sql, (run.run_id,)).fetchone()
    sql = "SELECT 1 FROM breaker WHERE state IN " + in_list(SHUT_BREAKERS) + " AND reopens_at IS NULL LIMIT 1"
    shut = connection.execute(sql).fetchone()
    return run.paused_since is not None or (run.blocked_since is not None and dead is None) or shut is not None
