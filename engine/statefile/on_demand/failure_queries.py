"""Tasks that failed against one downstream in all runs of a flow, with their attempts, to try a rule on them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

import json
import sqlite3
from typing import Iterable, List, Optional

from ..queries import dag_name_of
from .failure_rows import FailedAttempt, FailedTask

TASKS_MAX = 2000  # the latest; each with all of its attempts
DIAGNOSTIC_CHARACTERS = 1000

#: This index holds failures only, so that runs with a million successes are not read.
_FAILED = (
    "SELECT failed.run_id, failed.name FROM (SELECT DISTINCT run_id, name FROM attempt INDEXED BY idx_attempt_cause"
    " WHERE fingerprint_loose IS NOT NULL) AS failed CROSS JOIN run ON run.run_id = failed.run_id"
    " WHERE run.dag_name = ? ORDER BY run.started_at DESC, failed.run_id, failed.name"
)
_TASK = "SELECT state, generation, skip_cause, spec FROM task WHERE run_id = ? AND name = ?"
_ATTEMPTS = (
    "SELECT attempt, generation, outcome, started_at, ended_at, error_type, error, substr(diagnostic, 1, {}),"
    " failure_class, fingerprint, fingerprint_loose, explain, fingerprint_detail, delay_us, params_hash, input_hash"
    " FROM attempt WHERE run_id = ? AND name = ? AND late = 0 ORDER BY attempt"
).format(DIAGNOSTIC_CHARACTERS)


def failures_against(
    connection: sqlite3.Connection, run_id: str, downstream: Optional[str], names: Iterable[str] = ()
) -> List[FailedTask]:
    """Tasks that failed and call ``downstream``, or are among ``names``, in all runs of the flow of a run.

    The latest runs first. Raises NotFoundError for a run that the file does not have.
    """
    dag_name = dag_name_of(connection, run_id)
    wanted = frozenset(names)
    found: List[FailedTask] = []
    for run, name in connection.execute(_FAILED, (dag_name,)).fetchall():
        task = _task(connection, run, name)
        if task is not None and (name in wanted or (downstream is not None and _calls(task, downstream))):
            attempts = [_attempt(FailedAttempt(*row)) for row in connection.execute(_ATTEMPTS, (run, name))]
            found.append(task._replace(attempts=attempts))
            if len(found) == TASKS_MAX:
                break
    return found


def _task(connection: sqlite3.Connection, run_id: str, name: str) -> Optional[FailedTask]:
    row = connection.execute(_TASK, (run_id, name)).fetchone()
    if row is None:
        return None
    state, generation, skip_cause, spec = row
    return FailedTask(run_id, name, state, generation, skip_cause, json.loads(spec), [])


def _calls(task: FailedTask, downstream: str) -> bool:
    return task.spec.get("downstream") == downstream


def _attempt(row: FailedAttempt) -> FailedAttempt:
    """Replace the JSON text ``fingerprint_detail`` by its ``facts`` and its ``fields``."""
    detail = json.loads(str(row.facts)) if row.facts else {}
    return row._replace(facts=detail.get("facts") or {}, fields=detail.get("fields") or [])
