"""Canaries: of many tasks with one cause the first is requeued, and the others follow after it has succeeded.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Until then the followers stay dead letters with the canary's name in column ``canary``, so that nothing has to be
reverted if the fix does not work. ``rollout.py`` handles the end of the canary.
"""

from typing import List, Optional

from ...domain.command import HELD, REFUSED
from ...domain.overrides import load_overrides
from ...domain.states import NEEDS_HUMAN
from .action import ActionContext, TaskSnapshot
from .transitions import Transaction


def canary_refusal(row: TaskSnapshot) -> Optional[str]:
    """Why a task cannot be a canary or a follower, in one sentence; None if it can."""
    return None if row.state in NEEDS_HUMAN else "a canary is for what has failed: it is {}".format(row.state)


def loose_fingerprint(context: ActionContext, row: TaskSnapshot) -> Optional[str]:
    """The loose fingerprint of the failure that the fix should have ended."""
    found = context.connection.execute(
        "SELECT fingerprint_loose FROM attempt WHERE run_id = ? AND name = ? AND attempt = ?",
        (context.run_id, row.name, row.attempt),
    ).fetchone()
    return None if found is None else found[0]


def hold_for_canary(context: ActionContext, row: TaskSnapshot, first: str) -> None:
    """Make a task a follower of the canary ``first``."""
    refused = canary_refusal(row)
    if refused:
        context.set_result(row.name, REFUSED, refused)
        return
    context.transaction.change(context.run_id, row.name, {"canary": first})
    context.set_result(row.name, HELD, "follow when {} has succeeded".format(first))


def release_followers(transaction: Transaction, run_id: str, first: str) -> List[str]:
    """Release the followers of ``first``: they wait for a human again. Returns their names, in order."""
    sql = "SELECT name FROM task WHERE run_id = ? AND canary = ? ORDER BY position, name"
    names = [name for (name,) in transaction.connection.execute(sql, (run_id, first)).fetchall()]
    for name in names:
        transaction.change(run_id, name, {"canary": None})
    return names


def abandon_canary(transaction: Transaction, run_id: str, name: str, overrides: Optional[str]) -> None:
    """Release the followers of a canary that is decided before it ran. No effect on other tasks."""
    if "rollout" in load_overrides(overrides):
        release_followers(transaction, run_id, name)
