"""The outbox of pages: one row per cause and episode, written in the transaction of the change that causes it.

A second failure of the same cause while its page is open only counts up: one cause, one page (SPEC 4.13). Sending is
``notify.py``'s and happens apart, so that no sender can hold up a run.
"""

from __future__ import annotations

import json
from typing import Any

from ..core.events import EventKind
from ..core.outcome import Failure, FailureClass
from .journal import Journal

_SEVERITY = {
    FailureClass.AUTH: "critical",
    FailureClass.OUT_OF_MEMORY: "high",
}


def page(journal: Journal, run_id: str, task: str, title: str, why: str, failure: Failure | None) -> None:
    """Open a page for the failure's cause, or count it up where one is open."""
    cause = failure.fingerprint.loose if failure is not None else f"run:{run_id}"
    severity = _SEVERITY.get(failure.failure_class, "normal") if failure is not None else "normal"
    fingerprint = failure.fingerprint.strict if failure is not None else None
    body = {
        "why": why,
        "error": failure.message if failure is not None else None,
        "diagnostic": failure.diagnostic if failure is not None else None,
        "explain": failure.fingerprint.explain if failure is not None else None,
        "command": f"redrive requeue --run {run_id} {task} --reason ...",
    }
    told: dict[str, Any] = {"cause": cause, "title": title, "fingerprint": fingerprint, "severity": severity}
    row = journal.connection.execute(
        "SELECT id, episode, count, state FROM page WHERE cause = ? ORDER BY episode DESC LIMIT 1", (cause,)
    ).fetchone()
    if row is not None and row[3] != "resolved":
        journal.connection.execute(
            "UPDATE page SET count = count + 1, updated_at = ? WHERE id = ?", (journal.at, row[0])
        )
        told.update(what="folded", id=row[0], episode=row[1], count=row[2] + 1)
    else:
        episode = 1 if row is None else row[1] + 1
        cursor = journal.connection.execute(
            "INSERT INTO page (cause, episode, run_id, task, severity, title, body, created_at, updated_at)"
            " VALUES (?,?,?,?,?,?,?,?,?)",
            (
                cause,
                episode,
                run_id,
                task,
                severity,
                f"{title} on {task}",
                json.dumps(body, ensure_ascii=False),
                journal.at,
                journal.at,
            ),
        )
        told.update(what="opened", id=cursor.lastrowid, episode=episode, count=1)
    journal.tell(EventKind.PAGE, run_id, task, data=told)
