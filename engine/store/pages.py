"""The outbox of pages: one row per cause and episode, written in the transaction of the change that causes it.

A second failure of the same cause while its episode lasts only counts up: one cause, one page (SPEC 4.13). Sending is
``notifier.py``'s and happens apart, so that no sender can hold up a run.
"""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.cause_history import memory_of
from ..core.environment_fields import CIRCUMSTANCES
from ..core.outcome import Failure, FailureMode
from ..core.paging import EPISODE_SILENCE_US, STORM_WINDOW_US, Outgoing, cause_of, severity_of
from ..domain.event_payloads import PageChange, PageChanged
from ..domain.states import NOT_STARTED, DeadLetterKind
from ..statefile.changes.transitions import Journal
from ..statefile.on_demand import cause_history
from ..statefile.state_lists import in_list


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why somebody is called. ``kind`` None: the task is FAILED, its budget spent; ``task`` is the one responsible.

    Of a run that has not even started there is neither run nor task, and ``cause`` says what it is about.
    """

    run_id: str | None
    task: str | None
    title: str
    why: str
    kind: DeadLetterKind | None = None
    mode: FailureMode = FailureMode.OTHER
    failure: Failure | None = None
    downstream: str | None = None
    owner: str | None = None
    cause: str | None = None


def page(journal: Journal, trouble: Trouble) -> None:
    """Open a page for the cause of a trouble, or count it up where one is open."""
    breaker_state = _breaker_state(journal.connection, trouble.downstream)
    cause = trouble.cause or cause_of(
        trouble.run_id or "", trouble.kind, trouble.failure, trouble.downstream, breaker_state, trouble.task or ""
    )
    latest = _latest(journal.connection, cause)
    if latest is None or latest.is_over(journal.at):
        page_id, told = _open(journal, trouble, cause, latest)
    else:
        page_id, told = _fold(journal, latest)
    if trouble.task is not None:
        journal.connection.execute(
            "INSERT OR REPLACE INTO page_task (run_id, task, page_id) VALUES (?,?,?)",
            (trouble.run_id, trouble.task, page_id),
        )
    told = told._replace(
        id=page_id,
        cause=cause,
        title=trouble.title,
        severity=severity_of(trouble.kind, trouble.failure),
        fingerprint=trouble.failure.fingerprint.strict if trouble.failure is not None else None,
    )
    journal.emit(told, trouble.run_id, trouble.task)


@dataclass(frozen=True, slots=True)
class _Latest:
    id: int
    episode: int
    count: int
    state: str
    rearmed: int
    updated_at: int

    def is_over(self, now: int) -> bool:
        """Whether what comes now is another episode."""
        return self.state == "resolved" or bool(self.rearmed) or now - self.updated_at > EPISODE_SILENCE_US


def _latest(connection: sqlite3.Connection, cause: str) -> _Latest | None:
    row = connection.execute(
        "SELECT id, episode, count, state, rearmed, updated_at FROM page WHERE cause = ? ORDER BY episode DESC LIMIT 1",
        (cause,),
    ).fetchone()
    return None if row is None else _Latest(*row)


def _breaker_state(connection: sqlite3.Connection, downstream: str | None) -> str | None:
    if downstream is None:
        return None
    row = connection.execute("SELECT state FROM breaker WHERE downstream = ?", (downstream,)).fetchone()
    return None if row is None else str(row[0])


def _fold(journal: Journal, latest: _Latest) -> tuple[int, PageChanged]:
    sql = "UPDATE page SET count = count + 1, updated_at = ? WHERE id = ?"
    journal.connection.execute(sql, (journal.at, latest.id))
    return latest.id, PageChanged(PageChange.FOLDED, episode=latest.episode, occurrences=latest.count + 1)


def _open(journal: Journal, trouble: Trouble, cause: str, latest: _Latest | None) -> tuple[int, PageChanged]:
    episode = 1 if latest is None else latest.episode + 1
    columns = {
        "cause": cause,
        "episode": episode,
        "run_id": trouble.run_id,
        "task": trouble.task,
        "severity": severity_of(trouble.kind, trouble.failure),
        "title": trouble.title if trouble.task is None else f"{trouble.title} on {trouble.task}",
        "body": json.dumps(_body(journal.connection, trouble), ensure_ascii=False),
        "created_at": journal.at,
        "updated_at": journal.at,
    }
    cursor = journal.connection.execute(
        f"INSERT INTO page ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})", tuple(columns.values())
    )
    page_id = int(cursor.lastrowid or 0)
    if latest is not None and latest.state != "resolved":
        _supersede(journal, latest, page_id)
    return page_id, PageChanged(PageChange.OPENED, episode=episode, occurrences=1)


def _supersede(journal: Journal, latest: _Latest, page_id: int) -> None:
    """Tasks that still wait for somebody go over to the new episode; nobody looks after the old one any more."""
    connection = journal.connection
    connection.execute(
        "UPDATE OR REPLACE page_task SET page_id = ? WHERE page_id = ? AND done = 0", (page_id, latest.id)
    )
    connection.execute("UPDATE page SET state = 'resolved' WHERE id = ?", (latest.id,))


# --- What a page says ----------------------------------------------------------------------------------------------


def _body(connection: sqlite3.Connection, trouble: Trouble) -> dict[str, Any]:
    failure = trouble.failure
    return {
        "why": trouble.why,
        "mode": str(trouble.mode),
        "kind": None if trouble.kind is None else str(trouble.kind),
        "class": None if failure is None else str(failure.failure_class),
        "error": None if failure is None else failure.message,
        "diagnostic": None if failure is None else failure.diagnostic,
        "explain": None if failure is None else failure.fingerprint.explain,
        "fingerprint": None if failure is None else failure.fingerprint.strict,
        "changed": _changed_between(connection, trouble),
        "held": _held(connection, trouble),
        "deadline_at": _deadline_at(connection, trouble.run_id),
        "downstream": trouble.downstream,
        "owner": trouble.owner,
        "memory": _remembered(connection, trouble),
        "command": _command(connection, trouble),
    }


_NOTES_TOLD = 2


def _remembered(connection: sqlite3.Connection, trouble: Trouble) -> dict[str, Any] | None:
    """What came of this cause the last time, and the latest notes on it; None where nobody has seen it before."""
    if trouble.failure is None or trouble.run_id is None:
        return None
    cause = (trouble.failure.fingerprint.loose, trouble.downstream)
    (found,) = cause_history.of_causes(connection, trouble.run_id, [cause])
    if memory_of(found).is_new:
        return None
    return {**found, "episodes": found["episodes"][:1], "notes": found["notes"][:_NOTES_TOLD]}


def _changed_between(connection: sqlite3.Connection, trouble: Trouble) -> list[str] | None:
    """What was not the same in the last two failed attempts; None where there are not two to compare."""
    rows = connection.execute(
        f"SELECT {', '.join('attempt.' + column for column in CIRCUMSTANCES)} FROM attempt"
        " JOIN task ON task.run_id = attempt.run_id AND task.name = attempt.name"
        " AND task.generation = attempt.generation"
        " WHERE attempt.run_id = ? AND attempt.name = ? AND attempt.outcome IN ('error', 'timed_out')"
        " ORDER BY attempt.attempt DESC LIMIT 2",
        (trouble.run_id, trouble.task),
    ).fetchall()
    if len(rows) < 2:
        return None
    return [word for word, later, earlier in zip(CIRCUMSTANCES.values(), *rows, strict=True) if later != earlier]


_HELD = (
    "WITH RECURSIVE below(name) AS ("
    " SELECT child FROM edge WHERE run_id = :run AND parent = :task"
    " UNION SELECT edge.child FROM below CROSS JOIN edge ON edge.run_id = :run AND edge.parent = below.name)"
    " SELECT count(*) FROM below CROSS JOIN task ON task.run_id = :run AND task.name = below.name"
    " WHERE task.state IN " + in_list(NOT_STARTED)
)


def _held(connection: sqlite3.Connection, trouble: Trouble) -> int:
    """The blast radius: how many tasks below wait for it, or were stopped with it."""
    (count,) = connection.execute(_HELD, {"run": trouble.run_id, "task": trouble.task}).fetchone()
    return int(count)


def _deadline_at(connection: sqlite3.Connection, run_id: str | None) -> int | None:
    row = connection.execute("SELECT deadline_at FROM run WHERE run_id = ?", (run_id,)).fetchone()
    return None if row is None else row[0]


def _command(connection: sqlite3.Connection, trouble: Trouble) -> str:
    """The exact line to act. Names come from flows: quoted, and nothing in them can break the line."""
    path = str(connection.execute("PRAGMA database_list").fetchone()[2])
    words = ["redrive", "runs", path]
    if trouble.run_id is not None and trouble.task is not None:
        words = ["redrive", "requeue", "--state", path, "--run", trouble.run_id, "--reason", "...", "--", trouble.task]
    return shlex.join("".join(letter if letter.isprintable() else " " for letter in word) for word in words)


# --- For the sender ------------------------------------------------------------------------------------------------

_OUTBOX = (
    "SELECT id, severity, count, state, sent_at, told_count, snoozed_until FROM page"
    " WHERE state IN ('open', 'snoozed') AND (run_id = :run OR updated_at > :since) ORDER BY id"
)
STALE_AFTER_US = 24 * 3600 * 1_000_000  # what other runs left unsent for so long is history


def read_outbox(journal: Journal, run_id: str) -> list[Outgoing]:
    """Read what may have to go out: pages of this run, and recent ones that executors before it left behind.

    A snooze that is over is undone here, so that the page goes out once more.
    """
    _wake_snoozed(journal)
    since = journal.at - STALE_AFTER_US
    return [Outgoing(*row) for row in journal.connection.execute(_OUTBOX, {"run": run_id, "since": since})]


def _wake_snoozed(journal: Journal) -> None:
    rows = journal.connection.execute(
        "SELECT id, run_id, task, cause FROM page WHERE state = 'snoozed' AND snoozed_until <= ?", (journal.at,)
    ).fetchall()
    for page_id, run_id, task, cause in rows:
        journal.connection.execute(
            "UPDATE page SET state = 'open', snoozed_until = NULL, sent_at = NULL, updated_at = ? WHERE id = ?",
            (journal.at, page_id),
        )
        journal.emit(PageChanged(PageChange.WOKEN, page_id, cause), run_id, task)


def recently_sent(connection: sqlite3.Connection, now: int) -> list[int]:
    """When pages went out within the window of the storm cap: an executor that starts again gets no new allowance."""
    rows = connection.execute("SELECT sent_at FROM page WHERE sent_at > ? ORDER BY sent_at", (now - STORM_WINDOW_US,))
    return [at for (at,) in rows]


_MESSAGE_COLUMNS = (
    "id",
    "cause",
    "episode",
    "severity",
    "title",
    "run_id",
    "task",
    "count",
    "created_at",
    "updated_at",
    "body",
)


def read_messages(connection: sqlite3.Connection, ids: Iterable[int]) -> list[dict[str, Any]]:
    """Return pages as senders tell them, in the order of ``ids``; ``key`` is what a receiver knows repetitions by."""
    messages = []
    for page_id in ids:
        row = connection.execute(f"SELECT {', '.join(_MESSAGE_COLUMNS)} FROM page WHERE id = ?", (page_id,)).fetchone()
        message = dict(zip(_MESSAGE_COLUMNS, row, strict=True))
        message["body"] = json.loads(message["body"])
        message["key"] = f"{message['cause']}/{message['episode']}"
        messages.append(message)
    return messages


def write_sent(journal: Journal, told: Mapping[int, int], how: str) -> None:
    """Every sender took these pages: id -> the count that was told. ``how``: "page" or "digest"."""
    for page_id, count in told.items():
        journal.connection.execute(
            "UPDATE page SET sent_at = coalesce(sent_at, ?), told_count = ?, send_error = NULL WHERE id = ?",
            (journal.at, count, page_id),
        )
        _emit_sending(journal, page_id, PageChanged(PageChange.SENT, how=how))


def write_send_error(journal: Journal, ids: Iterable[int], sender: str, error: str, tries: int) -> None:
    """A sender failed; the pages stay in the outbox."""
    for page_id in ids:
        journal.connection.execute("UPDATE page SET send_error = ? WHERE id = ?", (f"{sender}: {error}", page_id))
        _emit_sending(journal, page_id, PageChanged(PageChange.SEND_FAILED, sender=sender, error=error, tries=tries))


def ring(journal: Journal, ids: Iterable[int]) -> None:
    """The sender ``bell``: the event is the message; whoever shows the run rings. What a page that was heard has
    counted since then, as a digest says it, is no reason to ring again."""
    for page_id in ids:
        (sent_at,) = journal.connection.execute("SELECT sent_at FROM page WHERE id = ?", (page_id,)).fetchone()
        if sent_at is None:
            _emit_sending(journal, page_id, PageChanged(PageChange.BELL))


def _emit_sending(journal: Journal, page_id: int, payload: PageChanged) -> None:
    run_id, task, title, severity = journal.connection.execute(
        "SELECT run_id, task, title, severity FROM page WHERE id = ?", (page_id,)
    ).fetchone()
    journal.emit(payload._replace(id=page_id, title=title, severity=severity), run_id, task)
