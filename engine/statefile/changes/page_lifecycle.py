"""Changes of pages that follow from their tasks: a requeue re-arms a page, and its last resolved task resolves it.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.
"""

from typing import Iterable, List, NamedTuple, Optional

from ...domain.event_changes import PageChange
from ...domain.event_columns import PageColumns
from ...domain.event_payloads import PageChanged
from .transitions import Transaction

_WAITING = (
    "SELECT page.id, page.cause, page.episode, page.rearmed FROM page_task"
    " JOIN page ON page.id = page_task.page_id AND page.state <> 'resolved'"
    " WHERE page_task.run_id = ? AND page_task.task = ? AND page_task.done = 0"
)


class _Page(NamedTuple):
    id: int
    cause: str
    episode: int
    rearmed: int


def rearm(transaction: Transaction, run_id: str, names: Iterable[str]) -> None:
    """Re-arm the pages of requeued tasks: if the cause returns, it is a new episode and pages again."""
    for name in names:
        for page in _pages_of(transaction, run_id, name):
            if not page.rearmed:
                _change(transaction, run_id, name, page, PageChange.REARMED, {"rearmed": 1})


def resolve(transaction: Transaction, run_id: str, name: str) -> None:
    """Mark a task as resolved in its pages: it succeeded, or an operator decided. The last task resolves the page."""
    for page in _pages_of(transaction, run_id, name):
        transaction.connection.execute(
            "UPDATE page_task SET done = 1 WHERE run_id = ? AND task = ? AND page_id = ?", (run_id, name, page.id)
        )
        left = transaction.connection.execute(
            "SELECT 1 FROM page_task WHERE page_id = ? AND done = 0 LIMIT 1", (page.id,)
        ).fetchone()
        if left is None:
            _change(transaction, run_id, name, page, PageChange.RESOLVED, {"state": "resolved"})


def resolve_cause(transaction: Transaction, cause: str) -> None:
    """Resolve the pages of a cause without tasks."""
    sql = "SELECT id, cause, episode, rearmed, run_id FROM page WHERE cause = ? AND state <> 'resolved'"
    for *columns, run_id in transaction.connection.execute(sql, (cause,)).fetchall():
        _change(transaction, run_id, None, _Page(*columns), PageChange.RESOLVED, {"state": "resolved"})


def _pages_of(transaction: Transaction, run_id: str, name: str) -> List[_Page]:
    return [_Page(*row) for row in transaction.connection.execute(_WAITING, (run_id, name)).fetchall()]


def _change(
    transaction: Transaction, run_id: Optional[str], name: Optional[str], page: _Page, what: str, columns: PageColumns
) -> None:
    update_page(transaction, page.id, columns)
    transaction.emit(PageChanged(what, page.id, page.cause, page.episode, page=columns), run_id, name)


def update_page(transaction: Transaction, page_id: int, columns: PageColumns) -> None:
    """Change columns of a page; the caller emits the event."""
    sql = "UPDATE page SET {}, updated_at = ? WHERE id = ?".format(", ".join("{} = ?".format(key) for key in columns))
    transaction.connection.execute(sql, list(columns.values()) + [transaction.at, page_id])
