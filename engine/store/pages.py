"""The outbox of pages: one row per cause and episode, written in the transaction of the change that triggers it.

Another failure of the same cause within an episode only increments a counter: one cause, one page (SPEC 4.13).
``notifications/notifier.py`` sends the pages separately, so that no sender can block a run.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from ..core.breaker import HOLDING
from ..core.causes import (
    STORM_WINDOW_US,
    CauseHistory,
    PageBody,
    PageRequest,
    Reminder,
    fingerprint_of,
    is_episode_over,
    may_wait,
    page_cause,
    plan_reminder,
    severity_of,
)
from ..core.outcome import ENVIRONMENT_FIELDS
from ..domain.event_payloads import PageChange, PageChanged
from ..domain.rows import PageRow
from ..domain.states import FAILED_OUTCOMES, NEEDS_HUMAN, NOT_STARTED
from ..domain.text import advised, place_words, shell_command
from ..statefile import causes
from ..statefile.breakers import read_breaker
from ..statefile.lists import IS_NO_BACKFILL, PAGES, Listing, query
from ..statefile.reader import read_or
from ..statefile.sql import in_list, run_columns, task_columns
from ..statefile.transitions import Transaction
from .database import path_of


def is_paged(connection: sqlite3.Connection, cause: str) -> bool:
    """Whether there was a page about this cause, open or not."""
    return connection.execute("SELECT 1 FROM page WHERE cause = ?", (cause,)).fetchone() is not None


def is_open_in(state_path: str, cause: str) -> bool:
    """Whether the episode of a cause goes on in a state file; no, if the file cannot be read."""
    sql = "SELECT 1 FROM page WHERE cause = ? AND state <> 'resolved'"
    return read_or(state_path, lambda connection: connection.execute(sql, (cause,)).fetchone() is not None, False)


def trigger_held_page(transaction: Transaction, request: PageRequest) -> None:
    """Open a page for tasks that are held, unless a page of this run is open for the same cause."""
    cause = _cause_of(transaction.connection, request)
    latest = transaction.connection.execute(
        "SELECT 1 FROM page JOIN page_task ON page_task.page_id = page.id"
        " WHERE page.cause = ? AND page.state <> 'resolved' AND page_task.run_id = ? AND page_task.done = 0",
        (cause, request.run_id),
    ).fetchone()
    if latest is None:
        trigger_page(transaction, request)


def trigger_page(transaction: Transaction, request: PageRequest) -> None:
    """Open a page for the cause of a request, or count it up where one is open.

    None of it if the flow pages later, and this is not yet the run that it waits for.
    """
    if _waits_for_another_run(transaction.connection, request):
        return
    cause = _cause_of(transaction.connection, request)
    latest = _latest(transaction.connection, cause)
    if latest is None or is_episode_over(latest, transaction.at):
        page_id, event = _open(transaction, request, cause, latest)
    else:
        page_id, event = _count_up(transaction, latest)
    if request.task is not None:
        transaction.connection.execute(
            "INSERT OR REPLACE INTO page_task (run_id, task, page_id) VALUES (?,?,?)",
            (request.run_id, request.task, page_id),
        )
    event = event._replace(
        id=page_id,
        cause=cause,
        title=request.title,
        severity=severity_of(request.kind, request.failure),
        fingerprint=fingerprint_of(request),
        why=_unpaged_reason(transaction.connection, request.run_id, page_id)
        if event.what == PageChange.OPENED
        else None,
    )
    transaction.emit(event, request.run_id, request.task)


#: The latest earlier runs of the flow, without backfills, and whether each was bad; of one that goes on: so far.
_EARLIER_RUNS = (
    "SELECT earlier.state = 'FAILED' OR earlier.deadline_passed_at IS NOT NULL OR EXISTS (SELECT 1 FROM task"
    " WHERE task.run_id = earlier.run_id AND task.state IN "
    + in_list(NEEDS_HUMAN)
    + ") FROM run JOIN run AS earlier ON earlier.dag_name = run.dag_name AND earlier.rowid < run.rowid"
    " AND " + IS_NO_BACKFILL.format("earlier") + " WHERE run.run_id = ? ORDER BY earlier.rowid DESC LIMIT ?"
)


def _waits_for_another_run(connection: sqlite3.Connection, request: PageRequest) -> bool:
    row = run_columns(connection, request.run_id, "options")
    if row is None or '"page_after"' not in row[0]:
        return False
    options = json.loads(row[0])
    wanted = options.get("page_after", 1) - 1
    if not may_wait(request, options.get("dead_letter_ttl")):
        return False
    earlier = connection.execute(_EARLIER_RUNS, (request.run_id, wanted)).fetchall()
    return len(earlier) < wanted or not all(is_bad for (is_bad,) in earlier)


NOBODY = "no page is configured: the flow names no sender (flow.page)"


def _unpaged_reason(connection: sqlite3.Connection, run_id: str | None, page_id: int) -> str | None:
    """Why the first page of a run reaches no one; None: a sender exists, or an earlier page said so."""
    row = run_columns(connection, run_id, "options")
    earlier = connection.execute("SELECT 1 FROM page WHERE run_id = ? AND id < ?", (run_id, page_id)).fetchone()
    return NOBODY if row is not None and earlier is None and not json.loads(row[0]).get("pages") else None


def _cause_of(connection: sqlite3.Connection, request: PageRequest) -> str:
    return page_cause(request, read_breaker(connection, request.downstream or "").state)


_LATEST = Listing(
    "latest_page",
    PageRow,
    "SELECT {columns} FROM page WHERE cause = :cause ORDER BY episode DESC LIMIT 1",
    {"cause": ""},
)


def _latest(connection: sqlite3.Connection, cause: str) -> PageRow | None:
    return next(iter(query(connection, _LATEST, {"cause": cause})), None)


def _count_up(transaction: Transaction, latest: PageRow) -> tuple[int, PageChanged]:
    sql = "UPDATE page SET count = count + 1, updated_at = ? WHERE id = ?"
    transaction.connection.execute(sql, (transaction.at, latest.id))
    return latest.id, PageChanged(PageChange.FOLDED, episode=latest.episode, occurrences=latest.counted + 1)


def _open(
    transaction: Transaction, request: PageRequest, cause: str, latest: PageRow | None
) -> tuple[int, PageChanged]:
    episode = 1 if latest is None else latest.episode + 1
    row = {
        "cause": cause,
        "episode": episode,
        "run_id": request.run_id,
        "task": request.task,
        "severity": severity_of(request.kind, request.failure),
        "title": request.title if request.task is None else f"{request.title} on {request.task}",
        "body": json.dumps(msgspec.to_builtins(_body(transaction.connection, request)), ensure_ascii=False),
        "created_at": transaction.at,
        "updated_at": transaction.at,
    }
    page_id = transaction.insert("page", row)
    if latest is not None and latest.state != "resolved":
        _supersede(transaction, latest, page_id)
    return page_id, PageChanged(PageChange.OPENED, episode=episode, occurrences=1)


def _supersede(transaction: Transaction, latest: PageRow, page_id: int) -> None:
    """Resolve the previous episode and move its undecided tasks to the new one."""
    connection = transaction.connection
    connection.execute(
        "UPDATE OR REPLACE page_task SET page_id = ? WHERE page_id = ? AND done = 0", (page_id, latest.id)
    )
    connection.execute("UPDATE page SET state = 'resolved' WHERE id = ?", (latest.id,))


def record_past(transaction: Transaction, message: Mapping[str, object]) -> None:
    """List a page that was sent without a commit, now that its trouble is over."""
    cause = str(message["cause"])
    latest = _latest(transaction.connection, cause)
    episode = 1 if latest is None else latest.episode + 1
    row = {name: message[name] for name in ("cause", "run_id", "severity", "title", "created_at", "updated_at")}
    row |= {"episode": episode, "body": json.dumps(message["body"], ensure_ascii=False)}
    page_id = transaction.insert("page", {**row, "state": "resolved", "sent_at": row["updated_at"], "sent_count": 1})
    for what, how in ((PageChange.OPENED, None), (PageChange.SENT, "past"), (PageChange.RESOLVED, None)):
        _emit_sending(transaction, page_id, PageChanged(what, cause=cause, episode=episode, how=how))


# --- Body of a page ------------------------------------------------------------------------------------------------


def _body(connection: sqlite3.Connection, request: PageRequest) -> PageBody:
    failure = request.failure
    return PageBody(
        why=request.why,
        mode=str(request.mode),
        kind=None if request.kind is None else str(request.kind),
        failure_class=None if failure is None else str(failure.failure_class),
        error=None if failure is None else failure.message,
        diagnostic=None if failure is None else failure.diagnostic,
        explain=None if failure is None else failure.fingerprint.explain,
        fingerprint=fingerprint_of(request),
        changed=_changed_fields(connection, request),
        held=_count_blocked(connection, request),
        deadline_at=_deadline_at(connection, request.run_id),
        downstream=request.downstream,
        breaker=_breaker_reason(connection, request.downstream),
        owner=request.owner,
        memory=_cause_history(connection, request),
        command=_command(connection, request),
        attach=shell_command(["redrive", "attach", *place_words(path_of(connection), request.run_id)]),
    )


def _breaker_reason(connection: sqlite3.Connection, downstream: str | None) -> str | None:
    """Return why the breaker of the downstream lets no call through; None if it does."""
    breaker = read_breaker(connection, downstream or "")
    return None if breaker.state not in HOLDING else str(breaker.detail.get("why") or "") or None


_NOTES_SHOWN = 2


def _cause_history(connection: sqlite3.Connection, request: PageRequest) -> CauseHistory | None:
    """Return the previous episode of this cause and its latest notes; None for a new cause."""
    if request.failure is None or request.run_id is None:
        return None
    cause = (request.failure.fingerprint.loose, request.downstream)
    (found,) = causes.read_cause_histories(connection, request.run_id, [cause])
    history = msgspec.convert(found, CauseHistory)
    shown = {"episodes": history.episodes[:1], "notes": history.notes[:_NOTES_SHOWN]}
    return None if history.is_new else replace(history, **shown)


def _changed_fields(connection: sqlite3.Connection, request: PageRequest) -> list[str] | None:
    """Return the environment fields that differ between the last two failed attempts; None: fewer than two."""
    rows = connection.execute(
        f"SELECT {', '.join('attempt.' + column for column in ENVIRONMENT_FIELDS)} FROM attempt"
        " JOIN task ON task.run_id = attempt.run_id AND task.name = attempt.name"
        " AND task.generation = attempt.generation"
        f" WHERE attempt.run_id = ? AND attempt.name = ? AND attempt.outcome IN {in_list(FAILED_OUTCOMES)}"
        " ORDER BY attempt.attempt DESC LIMIT 2",
        (request.run_id, request.task),
    ).fetchall()
    if len(rows) < 2:
        return None
    return [word for word, later, earlier in zip(ENVIRONMENT_FIELDS.values(), *rows, strict=True) if later != earlier]


_HELD = (
    "WITH RECURSIVE below(name) AS ("
    " SELECT child FROM edge WHERE run_id = :run AND parent = :task"
    " UNION SELECT edge.child FROM below CROSS JOIN edge ON edge.run_id = :run AND edge.parent = below.name)"
    " SELECT count(*) FROM below CROSS JOIN task ON task.run_id = :run AND task.name = below.name"
    " WHERE task.state IN " + in_list(NOT_STARTED)
)


def _count_blocked(connection: sqlite3.Connection, request: PageRequest) -> int:
    """Count the descendants that wait for the task or were skipped with it."""
    (count,) = connection.execute(_HELD, {"run": request.run_id, "task": request.task}).fetchone()
    return int(count)


def _deadline_at(connection: sqlite3.Connection, run_id: str | None) -> int | None:
    row = run_columns(connection, run_id, "deadline_at")
    return None if row is None else row[0]


def _command(connection: sqlite3.Connection, request: PageRequest) -> str:
    """Return the command line to act."""
    if request.run_id is not None and request.act:
        command, *words_behind = request.act
        return advised(command, path_of(connection), request.run_id, [*words_behind, "--reason", "..."])
    place = place_words(path_of(connection), request.run_id)
    words = ["redrive", "runs", *place]
    if request.run_id is not None and request.task is not None and not _needs_human(connection, request):
        words = ["redrive", "attach", *place]  # a late task that runs or waits
    elif request.run_id is not None and request.task is not None:
        words = ["redrive", "requeue", *place, "--resume", "--reason", "..."]  # the executor may have left by then
        words += [*request.options, "--", request.task]
    elif request.run_id is not None:
        words = ["redrive", "resume", *place]
    return shell_command(words)


def _needs_human(connection: sqlite3.Connection, request: PageRequest) -> bool:
    row = task_columns(connection, request.run_id or "", request.task or "", "state")
    return row is None or row[0] in NEEDS_HUMAN


# --- Outbox --------------------------------------------------------------------------------------------------------

_OUTBOX = Listing(
    "outbox",
    PageRow,
    "SELECT {columns} FROM page WHERE state IN ('open', 'snoozed') AND (told_by IS NULL OR state = 'snoozed')"
    " AND (run_id = :run OR updated_at > :since) ORDER BY id",
    {"run": None, "since": 0},
)
STALE_AFTER_US = 24 * 3600 * 1_000_000  # older unsent pages of other runs are not sent any more


def read_outbox(transaction: Transaction, run_id: str) -> list[PageRow]:
    """Return the open and snoozed pages of this run, and recent ones of earlier executors.

    A page whose snooze has ended is reopened first, so that it is sent again.
    """
    _reopen_snoozed(transaction)
    since = transaction.at - STALE_AFTER_US
    return query(transaction.connection, _OUTBOX, {"run": run_id, "since": since})


def _reopen_snoozed(transaction: Transaction) -> None:
    rows = transaction.connection.execute(
        "SELECT id, run_id, task, cause FROM page WHERE state = 'snoozed' AND snoozed_until <= ?", (transaction.at,)
    ).fetchall()
    for page_id, run_id, task, cause in rows:
        transaction.connection.execute(
            "UPDATE page SET state = 'open', snoozed_until = NULL, sent_at = NULL, told_by = NULL, updated_at = ?"
            " WHERE id = ?",
            (transaction.at, page_id),
        )
        transaction.emit(PageChanged(PageChange.WOKEN, page_id, cause), run_id, task)


#: Pages that were sent, and about which nobody has decided: not the flow whose page told of one, as it reminds itself.
_UNDECIDED = (
    "SELECT id, sent_at FROM page WHERE state = 'open' AND rearmed = 0 AND sent_at IS NOT NULL AND told_by IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM run WHERE run.run_id = page.run_id AND acknowledged_at IS NOT NULL) ORDER BY id"
)


def next_reminder(connection: sqlite3.Connection, now: int) -> Reminder | None:
    """Return the next reminder of this file; None without an undecided page."""
    return plan_reminder(connection.execute(_UNDECIDED).fetchall(), last_sent_at(connection, "reminder", now))


def recently_sent(connection: sqlite3.Connection, now: int) -> list[int]:
    """Return when pages were sent within the storm window, so that a restart does not reset the storm limit."""
    rows = connection.execute("SELECT sent_at FROM page WHERE sent_at > ? ORDER BY sent_at", (now - STORM_WINDOW_US,))
    return [at for (at,) in rows]


def last_sent_at(connection: sqlite3.Connection, how: str, now: int) -> int | None:
    """Return when the last "digest" or "reminder" of this file was sent; ``now`` if the clock is behind that."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (f"{how}_at",)).fetchone()
    return None if row is None else min(int(row[0]), now)


def read_pages(connection: sqlite3.Connection, ids: Iterable[int]) -> list[PageRow]:
    """Return pages in the order of ``ids``."""
    return [page for page_id in ids for page in query(connection, PAGES, {"id": page_id})]


def reported_since(connection: sqlite3.Connection, page: PageRow) -> int | None:
    """The instant from which another flow's page reports this cause too, in microseconds UTC; None: from the start.

    The end of the episode before (a success, a requeue), or of the time for which this page was snoozed.
    """
    is_woken = "episode = ? AND sent_at IS NULL AND sent_count > 0"
    sql = f"SELECT max(updated_at) FROM page WHERE cause = ? AND (episode = ? OR {is_woken})"
    row = connection.execute(sql, (page.cause, page.episode - 1, page.episode)).fetchone()
    return None if row[0] is None else int(row[0])


def write_sent(transaction: Transaction, counts: Mapping[int, int], how: str, told_by: str | None = None) -> None:
    """Mark pages as accepted by every sender. ``counts``: by id, the count sent. ``how``: page, digest or reminder.

    ``told_by``: the flow whose page has told the receivers.
    """
    if how != "page":
        transaction.connection.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (f"{how}_at", str(transaction.at)))
    for page_id, count in counts.items():
        transaction.connection.execute(
            "UPDATE page SET sent_at = coalesce(sent_at, ?), sent_count = ?, send_error = NULL, told_by = ?"
            " WHERE id = ?",
            (transaction.at, count, told_by, page_id),
        )
        joined = PageChanged(PageChange.SENT, how="joined", sender=told_by)
        _emit_sending(transaction, page_id, PageChanged(PageChange.SENT, how=how) if told_by is None else joined)


def write_send_error(transaction: Transaction, ids: Iterable[int], sender: str, error: str, tries: int) -> None:
    """Record the error of a sender; the pages stay in the outbox."""
    for page_id in ids:
        transaction.connection.execute("UPDATE page SET send_error = ? WHERE id = ?", (f"{sender}: {error}", page_id))
        _emit_sending(
            transaction, page_id, PageChanged(PageChange.SEND_FAILED, sender=sender, error=error, tries=tries)
        )


_UNSENT = "SELECT id, send_error FROM page WHERE state = 'open' AND sent_at IS NULL AND run_id = ? ORDER BY id"


def emit_unsent(transaction: Transaction, run_id: str) -> None:
    """Emit an event for each page of the run that the ending executor could not send."""
    for page_id, error in transaction.connection.execute(_UNSENT, (run_id,)).fetchall():
        _emit_sending(transaction, page_id, PageChanged(PageChange.UNSENT, error=error))


def emit_bell(transaction: Transaction, ids: Iterable[int]) -> None:
    """Emit BELL events, on which consoles ring their terminal; pages that were sent before ring no second time."""
    for page_id in ids:
        (sent_at,) = transaction.connection.execute("SELECT sent_at FROM page WHERE id = ?", (page_id,)).fetchone()
        if sent_at is None:
            _emit_sending(transaction, page_id, PageChanged(PageChange.BELL))


def _emit_sending(transaction: Transaction, page_id: int, payload: PageChanged) -> None:
    run_id, task, title, severity, body = transaction.connection.execute(
        "SELECT run_id, task, title, severity, body FROM page WHERE id = ?", (page_id,)
    ).fetchone()
    fingerprint = json.loads(body).get("fingerprint")
    transaction.emit(
        payload._replace(id=page_id, title=title, severity=severity, fingerprint=fingerprint), run_id, task
    )
