"""What an operator does with quarantined rows: send them through their task again, or drop them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from itertools import groupby
from typing import Any, Dict, Iterable, Iterator, List

from ...domain.command import DONE, REFUSED, Answer
from ...domain.event_payloads import RowsChange, RowsChanged
from .action import Work
from .transitions import Journal

PROVISIONAL = RowsChange.PROVISIONAL  # until the attempt that has set them aside succeeds
HELD = RowsChange.HELD  # states of a row, and what became of it
REQUEUED = RowsChange.REQUEUED
DISCARDED = RowsChange.DISCARDED


#: Rows of one statement: SQLite of old servers takes 999 values.
_CHUNK = 500

_OF_GROUP = (
    "SELECT id FROM quarantine WHERE run_id = ? AND name = ? AND state = ? AND fingerprint IS ? AND id <= ? ORDER BY id"
)


def chosen(work: Work) -> Dict[str, List[int]]:
    """The rows that the options name, as far as they are held in this run: task -> ids.

    ``rows``: their ids. ``groups`` [[task, loose fingerprint, id], ...]: all that failed alike up to that row, which is
    the last one that the operator saw.
    """
    found: Dict[str, List[int]] = {}
    for chunk in _chunks(sorted({int(row) for row in work.options.get("rows") or ()})):
        held = work.journal.connection.execute(
            "SELECT name, id FROM quarantine WHERE id IN ({}) AND run_id = ? AND state = ? ORDER BY id".format(
                _marks(chunk)
            ),
            chunk + [work.run_id, HELD],
        )
        for name, row in held:
            found.setdefault(name, []).append(row)
    for task, fingerprint, last in work.options.get("groups") or ():
        values = (work.run_id, str(task), HELD, fingerprint, int(last))
        ids = [row for (row,) in work.journal.connection.execute(_OF_GROUP, values)]
        if ids:
            found[str(task)] = sorted(set(found.get(str(task), [])).union(ids))
    return found


def send_back(work: Work, name: str, ids: List[int], generation: int) -> None:
    """Have ``generation`` of a task run over these rows only."""
    _mark(work, name, ids, REQUEUED, generation)


def release(journal: Journal, run_id: str, names: Iterable[str]) -> None:
    """These run again over all of their rows: what was sent back and did not come through yet is held like before."""
    for name in names:
        released = hold_again(journal, run_id, name)
        if released:
            _emit(journal, run_id, name, RowsChanged(RowsChange.HELD, released))


def hold_again(journal: Journal, run_id: str, name: str) -> int:
    """Of one task: hold the rows that were sent back and have not come through. Answers with their number."""
    sql = "UPDATE quarantine SET state = ? WHERE run_id = ? AND name = ? AND state = ?"
    return journal.connection.execute(sql, (HELD, run_id, name, REQUEUED)).rowcount


def drop_provisional(journal: Journal, run_id: str, name: str, attempt: int) -> int:
    """The attempt did not succeed: what it has set aside never counts. Answers with the number of rows."""
    sql = "UPDATE quarantine SET state = ? WHERE run_id = ? AND name = ? AND attempt = ? AND state = ?"
    return journal.connection.execute(sql, (DISCARDED, run_id, name, attempt, PROVISIONAL)).rowcount


def discard_rows(work: Work) -> Answer:
    """Drop held rows: nobody wants them any more. ``rows`` or ``groups``, as for ``chosen``."""
    found = chosen(work)
    for name, ids in found.items():
        _mark(work, name, ids, DISCARDED)
        work.say(name, DONE, "{} discarded".format(_rows(len(ids))))
    count = sum(map(len, found.values()))
    left_out = len(set(work.options.get("rows") or ())) - count
    message = "{} discarded".format(_rows(count))
    if left_out > 0:
        message += ", {} no longer held".format(_rows(left_out))
    return Answer(bool(found), message, tuple(work.results.values()))


def refuse_unheld(work: Work, found: Dict[str, List[int]]) -> None:
    """Say so for every target none of whose rows is held any more."""
    for target in work.targets:
        if target[0] not in found:
            work.say(target[0], REFUSED, "none of these rows is held in it any more")


def put_back(journal: Journal, run_id: str, was: Any) -> None:
    """Undo: give rows the state and generation that they had; ``was`` is what ``_mark`` remembered."""
    for _, state, generation, spans in was:
        for first, last in spans:
            journal.connection.execute(
                "UPDATE quarantine SET state = ?, generation = ? WHERE id BETWEEN ? AND ?",
                (state, generation, first, last),
            )
    for name in sorted({before[0] for before in was}):
        journal.emit(RowsChanged(RowsChange.PUT_BACK), run_id, name)


def _mark(work: Work, name: str, ids: List[int], state: str, generation: Any = None) -> None:
    """Give held rows a state, and a generation where one is named; remember what they were."""
    connection = work.journal.connection
    for chunk in _chunks(ids):
        marks = _marks(chunk)
        were = connection.execute(
            "SELECT generation, id FROM quarantine WHERE id IN ({}) ORDER BY generation, id".format(marks), chunk
        ).fetchall()
        for before, rows in groupby(were, key=lambda row: row[0]):
            work.journal.rows.append([name, HELD, before, list(_spans(row for _, row in rows))])
        sql = "UPDATE quarantine SET state = ?, generation = coalesce(?, generation) WHERE id IN ({})".format(marks)
        connection.execute(sql, [state, generation] + chunk)
    _emit(work.journal, work.run_id, name, RowsChanged(state, len(ids)))


def _spans(ids: Iterable[int]) -> Iterator[List[int]]:
    """Ids in order as [first, last] of each stretch without a gap: a hundred thousand rows make a short event."""
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


def _chunks(ids: List[int]) -> Iterator[List[int]]:
    return (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))


def _marks(values: List[int]) -> str:
    return ",".join("?" * len(values))


def _emit(journal: Journal, run_id: str, name: str, payload: RowsChanged) -> None:
    """Emit what became of rows, and keep ``task.bad_rows`` true."""
    journal.emit(payload, run_id, name)
    held, known = journal.connection.execute(
        "SELECT (SELECT count(*) FROM quarantine WHERE run_id = task.run_id AND name = task.name AND state = ?),"
        " bad_rows FROM task WHERE run_id = ? AND name = ?",
        (HELD, run_id, name),
    ).fetchone()
    if held != known:
        journal.change(run_id, name, {"bad_rows": held})


def _rows(count: int) -> str:
    return "{} row{}".format(count, "" if count == 1 else "s")
