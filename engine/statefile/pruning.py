"""Deletes ended runs that a retention no longer keeps, in bounded steps, and gives their space back.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

A step is one transaction. It deletes the row of a run and notes the run in ``pruned_run``; the other rows of the run
follow, at most ROWS_MAX in a step. After a kill the next prune goes on with them.

What stays:

- unfinished runs, and the latest run of each flow;
- runs with quarantined rows or dead letters that wait for a decision;
- the latest ended run with a cause that waits for a human now: the inbox shows how the cause ended last time;
- notes on causes, logical times with the end of their run, and the latest episode of each page.
"""

import sqlite3
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set

from ..domain.acts import DONE, Answer, TargetResult
from ..domain.states import NEEDS_HUMAN
from ..domain.text import counted
from ..errors import RefusedError
from . import large_results
from .action import ActionContext
from .sql import in_list, run_columns
from .transitions import Transaction, resolve

ROWS_MAX = 2000  # deleted in one step
LOG_ROWS_MAX = 200  # of these; a row of the log has up to 32 KiB
RUNS_MAX = 200  # in one step
PAGES_MAX = 1000  # of the file, given back in one step
CAUSES_MAX = 1000
INCREMENTAL = 2  # value of ``PRAGMA auto_vacuum``


class RetentionRule(NamedTuple):
    """The ended runs to keep: the latest ``runs`` of each flow, or those that ended in the last ``seconds``."""

    runs: Optional[int] = None
    seconds: Optional[float] = None


class PruneStep(NamedTuple):
    """The result of one step."""

    runs: List[str]
    rows: int
    freed_bytes: int

    @property
    def is_last(self) -> bool:
        """True if there was nothing to do."""
        return not (self.runs or self.rows or self.freed_bytes)


class PrunePreview(NamedTuple):
    """The runs that a retention does not keep, and those of them that stay."""

    runs: Sequence[str] = ()  # to delete, the oldest first
    with_rows: Sequence[str] = ()  # kept, because quarantined rows or dead letters wait for a decision
    with_causes: Sequence[str] = ()  # kept, because the inbox shows them
    is_work_left: bool = False  # runs to delete, or space to give back
    file_bytes: int = 0  # now


# --- Which runs ----------------------------------------------------------------------------------------------------

_RUNS = "SELECT run_id, dag_name, ended_at FROM run ORDER BY rowid DESC"
_HELD_ROWS = "SELECT DISTINCT run_id FROM quarantine WHERE state = 'held'"
#: A run has dead letters at its end if its deadline has ended it. The first condition matches a partial index.
_DEAD_LETTERS = (
    "SELECT run_id FROM run WHERE (ended_at IS NULL OR ended_at > deadline_at) AND ended_at IS NOT NULL"
    " AND EXISTS (SELECT 1 FROM task WHERE task.run_id = run.run_id AND task.state = 'DEAD_LETTER')"
)
_OPEN_CAUSES = (
    "SELECT DISTINCT run.dag_name, attempt.fingerprint_loose FROM run"
    " CROSS JOIN task ON task.run_id = run.run_id AND task.state IN "
    + in_list(NEEDS_HUMAN)
    + " CROSS JOIN attempt ON attempt.run_id = task.run_id AND attempt.name = task.name"
    " AND attempt.attempt = task.attempt AND attempt.fingerprint_loose IS NOT NULL"
    " WHERE run.ended_at IS NULL LIMIT ?"
)
_LAST_INCIDENT = (
    "SELECT run.run_id FROM (SELECT DISTINCT run_id FROM attempt INDEXED BY idx_attempt_cause"
    " WHERE fingerprint_loose = ?) AS failed CROSS JOIN run ON run.run_id = failed.run_id"
    " WHERE run.dag_name = ? AND run.ended_at IS NOT NULL ORDER BY run.rowid DESC LIMIT 1"
)


def find_candidates(connection: sqlite3.Connection, retention: RetentionRule, at: int, spare: str = "") -> PrunePreview:
    """The ended runs beyond the ``retention``. ``spare``: a run that stays. ``at``: microseconds UTC."""
    old = [run_id for run_id in _runs_beyond(connection, retention, at) if run_id != spare]
    if not old:
        return PrunePreview()
    with_rows = {str(run_id) for sql in (_HELD_ROWS, _DEAD_LETTERS) for (run_id,) in connection.execute(sql)}
    with_causes = _last_incidents(connection) - with_rows
    return PrunePreview(
        [run_id for run_id in old if run_id not in with_rows | with_causes],
        [run_id for run_id in old if run_id in with_rows],
        [run_id for run_id in old if run_id in with_causes],
    )


def _runs_beyond(connection: sqlite3.Connection, retention: RetentionRule, at: int) -> List[str]:
    """The ended runs beyond the retention, the oldest first, without the latest run of each flow."""
    ended: Dict[str, int] = {}  # flow -> ended runs so far, the latest first
    flows: Set[str] = set()
    found = []
    for run_id, flow, ended_at in connection.execute(_RUNS):
        is_latest = flow not in flows
        flows.add(flow)
        if ended_at is None:
            continue
        ended[flow] = ended.get(flow, 0) + 1
        is_retained = retention.runs is not None and ended[flow] <= retention.runs
        is_retained = is_retained or (retention.seconds is not None and ended_at > at - retention.seconds * 1e6)
        if not is_latest and not is_retained:
            found.append(str(run_id))
    return found[::-1]


def _last_incidents(connection: sqlite3.Connection) -> Set[str]:
    """The latest ended run of each cause that waits for a human in an unfinished run."""
    found = set()
    for flow, loose in connection.execute(_OPEN_CAUSES, (CAUSES_MAX,)).fetchall():
        row = connection.execute(_LAST_INCIDENT, (loose, flow)).fetchone()
        if row is not None:
            found.add(str(row[0]))
    return found


# --- One step ------------------------------------------------------------------------------------------------------

#: Statements that delete the rows of a run, the largest tables first. ``:room``: how many rows.
_DELETIONS = (
    f"DELETE FROM log WHERE id IN (SELECT id FROM log WHERE run_id = :run LIMIT min(:room, {LOG_ROWS_MAX}))",
    "DELETE FROM event WHERE seq IN (SELECT seq FROM event WHERE run_id = :run AND kind <> 'note' LIMIT :room)",
) + tuple(
    f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE run_id = :run LIMIT :room)"
    for table, key in (
        ("attempt", "run_id, name, attempt"),
        ("edge", "run_id, child, parent"),
        ("quarantine", "id"),
        ("page_task", "run_id, task, page_id"),
        ("task", "run_id, name"),
    )
)
#: Rows without a run that no column leads to: read once in a step, when the runs are gone.
_LEFTOVERS = (
    "DELETE FROM executor WHERE rowid IN (SELECT rowid FROM executor WHERE stopped_at IS NOT NULL"
    " AND run_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM run WHERE run.run_id = executor.run_id) LIMIT :room)",
    "DELETE FROM page WHERE id IN (SELECT id FROM page WHERE state = 'resolved' AND run_id IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM run WHERE run.run_id = page.run_id)"
    " AND EXISTS (SELECT 1 FROM page AS later WHERE later.cause = page.cause AND later.episode > page.episode)"
    " LIMIT :room)",
)
_NEXT = "SELECT run_id FROM pruned_run LIMIT 1"


def prune_step(transaction: Transaction, retention: RetentionRule, spare: str = "") -> PruneStep:
    """Delete at most ROWS_MAX rows, and give free pages of the file back to the file system."""
    connection = transaction.connection
    removed: List[str] = []
    candidates = list(find_candidates(connection, retention, transaction.at, spare).runs[:RUNS_MAX])
    room = ROWS_MAX
    while room > 0:
        pending = connection.execute(_NEXT).fetchone()
        if pending is not None:
            room -= _delete_rows(connection, pending[0], room)
        elif candidates:
            removed.append(candidates.pop(0))
            room -= 1
            _remove_run(transaction, removed[-1])
        else:
            room -= sum(connection.execute(sql, {"room": room}).rowcount for sql in _LEFTOVERS)
            break
    return PruneStep(removed, ROWS_MAX - room, _release_pages(connection))


def finish_pruning(connection: sqlite3.Connection, run_id: str) -> None:
    """Delete what is left of a deleted run, so that a new run may have its name."""
    while connection.execute("SELECT 1 FROM pruned_run WHERE run_id = ?", (run_id,)).fetchone() is not None:
        _delete_rows(connection, run_id, ROWS_MAX)


def _remove_run(transaction: Transaction, run_id: str) -> None:
    """Delete the row of a run, so that no list shows it; its other rows follow."""
    connection, name = transaction.connection, (run_id,)
    open_pages = "SELECT DISTINCT task FROM page_task WHERE run_id = ? AND done = 0"
    for (task,) in connection.execute(open_pages, name).fetchall():
        resolve(transaction, run_id, task)
    flow, logical, state = run_columns(connection, run_id, "dag_name, logical_time, state")
    connection.execute(
        "UPDATE slot SET run_state = ? WHERE dag_name = ? AND logical_time = ? AND run_id = ?",
        (state, flow, logical, run_id),
    )
    connection.execute("INSERT OR IGNORE INTO pruned_run (run_id) VALUES (?)", name)
    connection.execute("DELETE FROM run WHERE run_id = ?", name)
    large_results.delete(connection, *name)


def _delete_rows(connection: sqlite3.Connection, run_id: str, room: int) -> int:
    """Delete rows of a run whose own row is gone, at the end its mark. Returns how many were deleted, at least 1."""
    deleted = 0
    for sql in _DELETIONS:
        count = connection.execute(sql, {"run": run_id, "room": room - deleted}).rowcount
        deleted += count
        if count and ("FROM log" in sql or deleted >= room):
            return deleted
    connection.execute("DELETE FROM log_size WHERE run_id = ?", (run_id,))
    connection.execute("DELETE FROM pruned_run WHERE run_id = ?", (run_id,))
    return deleted + 1


def _release_pages(connection: sqlite3.Connection) -> int:
    """Give back up to PAGES_MAX free pages, and return how many bytes. https://sqlite.org/pragma.html#pragma_auto_vacuum

    The file itself shrinks with the next checkpoint.
    """
    free, before = _releasable_pages(connection), _pragma(connection, "page_count")
    for _ in range(min(free, PAGES_MAX)):  # sqlite3 makes one step of a statement without columns, which is one page
        connection.execute("PRAGMA incremental_vacuum(1)")
    return (before - _pragma(connection, "page_count")) * _pragma(connection, "page_size")


def _releasable_pages(connection: sqlite3.Connection) -> int:
    return _pragma(connection, "freelist_count") if _pragma(connection, "auto_vacuum") == INCREMENTAL else 0


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute("PRAGMA " + name).fetchone()[0])


# --- The act -------------------------------------------------------------------------------------------------------


def retention_from_options(options: Mapping[str, Any]) -> RetentionRule:
    """The options ``runs`` and ``seconds`` of the act. Raises ValueError unless one of them is given."""
    retention = RetentionRule(options.get("runs"), options.get("seconds"))
    if retention == RetentionRule() or (retention.runs is not None and retention.runs < 0):
        raise ValueError("say what to keep: a number of runs of 0 or more, or seconds")
    return retention


def prune(context: ActionContext) -> Answer:
    """Run one step; the sender repeats the act while there is work.

    Options: ``runs`` or ``seconds``, see ``RetentionRule``.
    """
    try:
        retention = retention_from_options(context.options)
    except ValueError as error:
        return Answer(False, str(error))
    step = prune_step(context.transaction, retention, context.run_id)
    if step.is_last:
        return Answer(False, "there is nothing to delete")
    message = "{} deleted".format(counted(len(step.runs), "run"))
    return Answer(True, message, tuple(TargetResult(run_id, DONE, "deleted") for run_id in step.runs))


def preview_prune(connection: sqlite3.Connection, options: Mapping[str, Any]) -> PrunePreview:
    """Preview the act with these options. Raises RefusedError."""
    try:
        found = find_candidates(connection, retention_from_options(options), int(time.time() * 1000000))
    except ValueError as error:
        raise RefusedError(str(error)) from None
    is_unfinished = connection.execute(_NEXT).fetchone() is not None
    is_work_left = bool(found.runs or is_unfinished or _releasable_pages(connection))
    file_bytes = _pragma(connection, "page_count") * _pragma(connection, "page_size")
    return found._replace(is_work_left=is_work_left, file_bytes=file_bytes)
