"""Fix and verify: of many tasks with one cause the first runs alone, and the others follow when it has succeeded.

Carried over ssh to old interpreters: Python 3.6 syntax, standard library only.

Until then the others stay what they are, dead letters that hold their children, and name the task that they wait for:
nothing has to be put back where the fix turns out to be none. ``rollout.py`` says what follows from its end.
"""

from typing import List, Optional

from ...domain.command import HELD, REFUSED
from ...domain.overrides import read
from ...domain.states import NEEDS_HUMAN
from .action import Seen, Work
from .transitions import Journal


def why_no_canary(row: Seen) -> Optional[str]:
    """One sentence for a task that cannot take part."""
    return None if row.state in NEEDS_HUMAN else "a canary is for what has failed: it is {}".format(row.state)


def loose_fingerprint(work: Work, row: Seen) -> Optional[str]:
    """The cause of the failure that a fix is meant to have ended."""
    found = work.journal.connection.execute(
        "SELECT fingerprint_loose FROM attempt WHERE run_id = ? AND name = ? AND attempt = ?",
        (work.run_id, row.name, row.attempt),
    ).fetchone()
    return None if found is None else found[0]


def follow(work: Work, row: Seen, first: str) -> None:
    """Let a task wait for ``first``."""
    trouble = why_no_canary(row)
    if trouble:
        work.say(row.name, REFUSED, trouble)
        return
    work.journal.change(work.run_id, row.name, {"canary": first})
    work.say(row.name, HELD, "follow when {} has succeeded".format(first))


def let_go(journal: Journal, run_id: str, first: str) -> List[str]:
    """Nobody waits for ``first`` any more: they are for a human again. Answers with their names, in order."""
    sql = "SELECT name FROM task WHERE run_id = ? AND canary = ? ORDER BY position, name"
    names = [name for (name,) in journal.connection.execute(sql, (run_id, first)).fetchall()]
    for name in names:
        journal.change(run_id, name, {"canary": None})
    return names


def abandon(journal: Journal, run_id: str, name: str, overrides: Optional[str]) -> None:
    """A task is decided about without having been tried; if others waited for it, they wait no longer."""
    if "rollout" in read(overrides):
        let_go(journal, run_id, name)
