"""What becomes of a page when something becomes of its tasks: a requeue re-arms it, the last one that is well ends it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Any, Iterable, List, Optional, Tuple

from ...domain.event_payloads import PageChange, PageChanged, PageColumns
from .transitions import Journal

_WAITING = (
    "SELECT page.id, page.cause, page.episode, page.rearmed FROM page_task"
    " JOIN page ON page.id = page_task.page_id AND page.state <> 'resolved'"
    " WHERE page_task.run_id = ? AND page_task.task = ? AND page_task.done = 0"
)


def rearm(journal: Journal, run_id: str, names: Iterable[str]) -> None:
    """Somebody tried to repair these: if their cause comes back, it is a new episode and pages again."""
    for name in names:
        for page in _pages_of(journal, run_id, name):
            if not page[3]:
                _change(journal, run_id, name, page, PageChange.REARMED, {"rearmed": 1})


def resolve(journal: Journal, run_id: str, name: str) -> None:
    """A task is well, or somebody decided about it; a page is over with the last of its tasks."""
    for page in _pages_of(journal, run_id, name):
        journal.connection.execute(
            "UPDATE page_task SET done = 1 WHERE run_id = ? AND task = ? AND page_id = ?", (run_id, name, page[0])
        )
        left = journal.connection.execute(
            "SELECT 1 FROM page_task WHERE page_id = ? AND done = 0 LIMIT 1", (page[0],)
        ).fetchone()
        if left is None:
            _change(journal, run_id, name, page, PageChange.RESOLVED, {"state": "resolved"})


def resolve_cause(journal: Journal, cause: str) -> None:
    """What a page of no task was about is well again."""
    sql = "SELECT id, cause, episode, rearmed, run_id FROM page WHERE cause = ? AND state <> 'resolved'"
    for page in journal.connection.execute(sql, (cause,)).fetchall():
        _change(journal, page[4], None, page, PageChange.RESOLVED, {"state": "resolved"})


def _pages_of(journal: Journal, run_id: str, name: str) -> List[Tuple[Any, ...]]:
    return journal.connection.execute(_WAITING, (run_id, name)).fetchall()


def _change(
    journal: Journal,
    run_id: Optional[str],
    name: Optional[str],
    page: Tuple[Any, ...],
    what: str,
    columns: PageColumns,
) -> None:
    sql = "UPDATE page SET {}, updated_at = ? WHERE id = ?".format(", ".join("{} = ?".format(key) for key in columns))
    journal.connection.execute(sql, list(columns.values()) + [journal.at, page[0]])
    journal.emit(PageChanged(what, page[0], page[1], page[2], page=columns), run_id, name)
