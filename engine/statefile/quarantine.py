"""The acts on quarantined rows: requeue them through their task, or discard them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from itertools import groupby
from typing import Dict, Iterable, Iterator, List, Optional

from ..domain.acts import DONE, REFUSED, Answer
from ..domain.event_payloads import RowLists, RowsChange, RowsChanged
from ..domain.text import counted
from .action import ActionContext
from .sql import chunks, marks
from .transitions import Transaction

_OF_GROUP = (
    "SELECT id FROM quarantine WHERE run_id = ? AND name = ? AND state = ? AND fingerprint IS ? AND id <= ? ORDER BY id"
)


def select_rows(context: ActionContext) -> Dict[str, List[int]]:
    """The held rows of this run that the options select: task -> ids.

    ``rows``: ids. ``groups``: [[task, loose fingerprint, last id], ...], all rows of a failure up to the last one that
    the operator saw.
    """
    found: Dict[str, List[int]] = {}
    for chunk in chunks(sorted({int(row) for row in context.options.get("rows") or ()})):
        held = context.connection.execute(
            f"SELECT name, id FROM quarantine WHERE id IN ({marks(chunk)}) AND run_id = ? AND state = ? ORDER BY id",
            chunk + [context.run_id, RowsChange.HELD],
        )
        for name, row in held:
            found.setdefault(name, []).append(row)
    for task, fingerprint, last in context.options.get("groups") or ():
        values = (context.run_id, str(task), RowsChange.HELD, fingerprint, int(last))
        ids = [row for (row,) in context.connection.execute(_OF_GROUP, values)]
        if ids:
            found[str(task)] = sorted(set(found.get(str(task), [])).union(ids))
    return found


def release_requeued(transaction: Transaction, run_id: str, names: Iterable[str]) -> None:
    """Hold the requeued rows of tasks that run again over all of their rows."""
    for name in names:
        released = hold_requeued_rows(transaction, run_id, name)
        if released:
            emit_and_count(transaction, run_id, name, RowsChanged(RowsChange.HELD, released))


def hold_requeued_rows(transaction: Transaction, run_id: str, name: str) -> int:
    """Hold the requeued rows of a task that have not succeeded. Returns their number."""
    sql = "UPDATE quarantine SET state = ? WHERE run_id = ? AND name = ? AND state = ?"
    return transaction.connection.execute(sql, (RowsChange.HELD, run_id, name, RowsChange.REQUEUED)).rowcount


def drop_provisional(transaction: Transaction, run_id: str, name: str, attempt: int) -> int:
    """Drop the rows that an unsuccessful attempt quarantined. Returns their number."""
    sql = "UPDATE quarantine SET state = ? WHERE run_id = ? AND name = ? AND attempt = ? AND state = ?"
    values = (RowsChange.DROPPED, run_id, name, attempt, RowsChange.PROVISIONAL)
    return transaction.connection.execute(sql, values).rowcount


def discard_rows(context: ActionContext) -> Answer:
    """Discard held rows. Options ``rows`` or ``groups``, as for ``select_rows``."""
    found = select_rows(context)
    for name, ids in found.items():
        mark_rows(context, name, ids, RowsChange.DISCARDED)
        context.set_result(name, DONE, "{} discarded".format(counted(len(ids), "row")))
    count = sum(map(len, found.values()))
    left_out = len(set(context.options.get("rows") or ())) - count
    message = "{} discarded".format(counted(count, "row"))
    if left_out > 0:
        message += ", {} no longer held".format(counted(left_out, "row"))
    return Answer(bool(found), message, tuple(context.results.values()))


def refuse_unheld(context: ActionContext, found: Dict[str, List[int]]) -> None:
    """Refuse every target that has no held row in ``found``."""
    for target in context.targets:
        if target[0] not in found:
            context.set_result(target[0], REFUSED, "none of these rows is held in it any more")


def restore_rows(transaction: Transaction, run_id: str, was: RowLists) -> None:
    """Undo: restore the state and generation of rows. ``was``: the entries that ``mark_rows`` recorded."""
    for _, state, generation, spans in was:
        for first, last in spans:
            transaction.connection.execute(
                "UPDATE quarantine SET state = ?, generation = ? WHERE id BETWEEN ? AND ?",
                (state, generation, first, last),
            )
    for name in sorted({before[0] for before in was}):
        transaction.emit(RowsChanged(RowsChange.PUT_BACK), run_id, name)


def mark_rows(context: ActionContext, name: str, ids: List[int], state: str, generation: Optional[int] = None) -> None:
    """Set the state of held rows, and the generation if given; record the values before."""
    connection = context.connection
    for chunk in chunks(ids):
        were = connection.execute(
            f"SELECT generation, id FROM quarantine WHERE id IN ({marks(chunk)}) ORDER BY generation, id", chunk
        ).fetchall()
        for before, rows in groupby(were, key=lambda row: row[0]):
            context.transaction.rows.append([name, RowsChange.HELD, before, list(_spans(row for _, row in rows))])
        sql = "UPDATE quarantine SET state = ?, generation = coalesce(?, generation) WHERE id IN ({})"
        connection.execute(sql.format(marks(chunk)), [state, generation, *chunk])
    emit_and_count(context.transaction, context.run_id, name, RowsChanged(state, len(ids)))


def _spans(ids: Iterable[int]) -> Iterator[List[int]]:
    """Sorted ids as [first, last] of each range without a gap, so that 100,000 rows make a short event."""
    span: List[int] = []
    for row in ids:
        if span and row == span[1] + 1:
            span[1] = row
        else:
            if span:
                yield span
            span = [row, row]
    if span:
        yield span


def emit_and_count(
    transaction: Transaction, run_id: str, name: str, payload: RowsChanged, attempt: Optional[int] = None
) -> None:
    """Emit a change of rows, and update ``task.bad_rows``."""
    transaction.emit(payload, run_id, name, attempt=attempt)
    held, known = transaction.connection.execute(
        "SELECT (SELECT count(*) FROM quarantine WHERE run_id = task.run_id AND name = task.name AND state = ?),"
        " bad_rows FROM task WHERE run_id = ? AND name = ?",
        (RowsChange.HELD, run_id, name),
    ).fetchone()
    if held != known:
        transaction.change(run_id, name, {"bad_rows": held})
