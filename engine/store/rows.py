"""What an operator does with quarantined rows: send them through their task again, or drop them.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Any, Dict, Iterable, List

from ..core.events import EventKind
from .act import DONE, REFUSED, Work, answer
from .journal import Journal

HELD = "held"
REQUEUED = "requeued"
DISCARDED = "discarded"


def chosen(work: Work) -> Dict[str, List[int]]:
    """The rows that ``options["rows"]`` (ids) names, as far as they are held in this run: task -> ids."""
    found: Dict[str, List[int]] = {}
    for row in sorted(set(work.options.get("rows") or ())):
        held = work.journal.connection.execute(
            "SELECT name FROM quarantine WHERE id = ? AND run_id = ? AND state = ?", (int(row), work.run_id, HELD)
        ).fetchone()
        if held is not None:
            found.setdefault(held[0], []).append(int(row))
    return found


def send_back(work: Work, name: str, ids: List[int], generation: int) -> None:
    """Have ``generation`` of a task run over these rows only."""
    _mark(work, name, ids, REQUEUED, generation)


def release(journal: Journal, run_id: str, names: Iterable[str]) -> None:
    """These run again over all of their rows: what was sent back and did not come through yet is held like before."""
    for name in names:
        released = journal.connection.execute(
            "UPDATE quarantine SET state = ? WHERE run_id = ? AND name = ? AND state = ?",
            (HELD, run_id, name, REQUEUED),
        ).rowcount
        if released:
            _tell(journal, run_id, name, {"what": HELD, "count": released})


def discard_rows(work: Work) -> Dict[str, Any]:
    """Drop held rows: nobody wants them any more. ``rows``: ids in the quarantine."""
    found = chosen(work)
    for name, ids in found.items():
        _mark(work, name, ids, DISCARDED)
        work.say(name, DONE, "{} discarded".format(_rows(len(ids))))
    left_out = len(set(work.options.get("rows") or ())) - sum(map(len, found.values()))
    message = "{} discarded".format(_rows(sum(map(len, found.values()))))
    if left_out:
        message += ", {} no longer held".format(_rows(left_out))
    return answer(bool(found), message, list(work.results.values()))


def refuse_unheld(work: Work, found: Dict[str, List[int]]) -> None:
    """Say so for every target none of whose rows is held any more."""
    for target in work.targets:
        if target[0] not in found:
            work.say(target[0], REFUSED, "none of these rows is held in it any more")


def put_back(journal: Journal, run_id: str, rows: Dict[str, List[Any]]) -> None:
    """Undo: give rows the state and generation that they had. ``rows``: id -> [task, state, generation]."""
    for row, (_, state, generation) in rows.items():
        journal.connection.execute(
            "UPDATE quarantine SET state = ?, generation = ? WHERE id = ?", (state, generation, int(row))
        )
    for name in sorted({before[0] for before in rows.values()}):
        journal.tell(EventKind.QUARANTINE, run_id, name, data={"what": "put back"})


def _mark(work: Work, name: str, ids: List[int], state: str, generation: Any = None) -> None:
    connection = work.journal.connection
    for row in ids:
        before = connection.execute("SELECT state, generation FROM quarantine WHERE id = ?", (row,)).fetchone()
        work.journal.rows[str(row)] = [name, before[0], before[1]]
        connection.execute(
            "UPDATE quarantine SET state = ?, generation = ? WHERE id = ?",
            (state, before[1] if generation is None else generation, row),
        )
    _tell(work.journal, work.run_id, name, {"what": state, "count": len(ids)})


def _tell(journal: Journal, run_id: str, name: str, data: Dict[str, Any]) -> None:
    """Tell what became of rows, and keep ``task.bad_rows`` true."""
    journal.tell(EventKind.QUARANTINE, run_id, name, data=data)
    held, known = journal.connection.execute(
        "SELECT (SELECT count(*) FROM quarantine WHERE run_id = task.run_id AND name = task.name AND state = ?),"
        " bad_rows FROM task WHERE run_id = ? AND name = ?",
        (HELD, run_id, name),
    ).fetchone()
    if held != known:
        journal.change(run_id, name, {"bad_rows": held})


def _rows(count: int) -> str:
    return "{} row{}".format(count, "" if count == 1 else "s")
