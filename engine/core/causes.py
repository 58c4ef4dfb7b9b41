"""Causes of failures: which of them are paged now, and what became of them before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from ..domain.rows import PageRow
from ..domain.states import DeadLetterKind, cause_fingerprint, deadline_cause
from ..domain.text import counted, format_duration, sha256_hex
from .breaker import HOLDING
from .outcome import OUTAGE_CLASSES, Failure, FailureClass, FailureMode

# --- Decide about pages: their cause, their severity, and which of them are sent now ---------------------------------
#
# A page is about a cause, not about a task: a thousand tasks that fail for one reason are one page with a counter. A
# page that was not acknowledged is not sent again. A cause pages again if it fails after a repair, or after a long
# silence (SPEC 4.13).


STORM_PAGES = 10  # single messages within one window; further pages wait for the digest
STORM_WINDOW_US = 600_000_000
LONG_OUTAGE_SECONDS = 600.0  # an outage of this length is not transient any more
#: How long an executor whose run has ended goes on trying: an outage that fails the tasks often hits the pager, too.
#: Meanwhile it holds the state file and the command that started it, as one of cron; the next executor sends the rest.
LAST_TRIES_SECONDS = 30.0
REMINDER_US = 24 * 3600 * 1_000_000
EARLY_REMINDER_US = 3600 * 1_000_000  # at the end of an executor
EPISODE_SILENCE_US = 6 * 3600 * 1_000_000  # so that each nightly run pages again

#: The most urgent first.
SEVERITIES = ("critical", "high", "normal")

#: These do not heal without a human, and waiting makes them worse.
_BY_KIND = {DeadLetterKind.AUTH: "critical", DeadLetterKind.DEADLINE: "critical"}
_BY_CLASS = {
    FailureClass.AUTH: "critical",
    FailureClass.PERMANENT: "high",
    FailureClass.VALIDATION: "high",
    FailureClass.OUT_OF_MEMORY: "high",
}


class PageRequest(msgspec.Struct, frozen=True):
    """The reason for a page. ``kind`` None: the task is FAILED with its budget spent.

    If a run has not started, ``run_id`` and ``task`` are None and ``cause`` is given.
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
    act: tuple[str, ...] = ()  # the command that ends the wait, and its words behind the place; empty: requeue the task
    options: tuple[str, ...] = ()  # of that requeue


def may_wait(request: PageRequest, dead_letter_ttl: float | None) -> bool:
    """Whether a page may wait for another bad run (``Flow(page_after=...)``): it holds up nothing, and nothing is in
    doubt. ``dead_letter_ttl`` 0: a dead letter counts as failed at once."""
    if request.kind is None:
        return request.cause is None and request.failure is not None
    if request.kind is DeadLetterKind.DEADLINE:
        return True
    return dead_letter_ttl == 0 and request.kind is not DeadLetterKind.INDETERMINATE


def severity_of(kind: DeadLetterKind | None, failure: Failure | None) -> str:
    """Return the severity of a failed task. ``kind`` None: its budget is spent; a dead letter is at least high."""
    by_class = _BY_CLASS.get(failure.failure_class, "normal") if failure is not None else "normal"
    by_kind = "normal" if kind is None else _BY_KIND.get(kind, "high")
    return min(by_class, by_kind, key=SEVERITIES.index)


def page_cause(request: PageRequest, breaker_state: str) -> str:
    """Return the cause that a page is about: the given one, the deadline, a task with an unknown end, the credential or
    the outage of the downstream, the loose fingerprint, or else the run."""
    kind, downstream = request.kind, request.downstream
    if request.cause is not None:
        return request.cause
    if kind is DeadLetterKind.DEADLINE:
        return deadline_cause(request.run_id or "")
    if kind is DeadLetterKind.INDETERMINATE:  # an operator must examine each such task by itself
        return f"unknown:{request.run_id}/{request.task}"
    if downstream is not None and kind is DeadLetterKind.AUTH:  # not one page with an outage, which is less severe
        return f"credential:{downstream}"
    if downstream is not None and _is_of_the_downstream(request, breaker_state):
        return f"downstream:{downstream}"
    return fingerprint_of(request) or f"run:{request.run_id}"


def fingerprint_of(request: PageRequest) -> str | None:
    """Return the fingerprint by which commands name the cause; None for an attempt that was lost or has no failure."""
    return None if request.failure is None else cause_fingerprint(request.failure.fingerprint.loose)


def schedule_cause(flow: str) -> str:
    """Return the cause of scheduled runs that did not start."""
    return f"schedule:{flow}"


def _is_of_the_downstream(request: PageRequest, breaker_state: str) -> bool:
    if request.kind is DeadLetterKind.BREAKER or request.failure is None:
        return True
    return breaker_state in HOLDING and request.failure.failure_class in OUTAGE_CLASSES


def is_episode_over(page: PageRow, now: int) -> bool:
    """Whether a failure at ``now`` (microseconds UTC) starts a new episode."""
    return page.is_idle or bool(page.rearmed) or now - page.updated_at > EPISODE_SILENCE_US


# --- What is sent now ----------------------------------------------------------------------------------------------


class SendPlan(msgspec.Struct, frozen=True):
    """Ids of the pages that are sent now: as single messages, and in one digest."""

    single: tuple[int, ...] = ()
    digest: tuple[int, ...] = ()
    next_check_at: int | None = None  # microseconds UTC; None: not before the next change of a page


def plan_sending(
    pages: Iterable[PageRow], sent: Sequence[int], last_digest_at: int | None, now: int, *, is_last: bool = False
) -> SendPlan:
    """Decide which pages are sent at ``now``. ``sent``: when single messages were sent, oldest first.

    Acknowledged pages are not sent. Pages beyond the storm cap, and pages whose count grew since their last message,
    share one digest a window. ``is_last``: no executor sends later, so unsent pages beyond the cap are due at once.
    """
    pages = tuple(pages)
    recent = [at for at in sent if at > now - STORM_WINDOW_US]
    fresh = sorted(
        (page for page in pages if page.state == "open" and page.sent_at is None),
        key=lambda page: (SEVERITIES.index(page.severity), page.id),
    )
    room = max(0, STORM_PAGES - len(recent))
    digest = [page.id for page in fresh[room:]] + ([] if is_last else [page.id for page in pages if _has_grown(page)])
    waits = [page.snoozed_until for page in pages if page.state == "snoozed" and page.snoozed_until is not None]
    digest_at = _next_digest_at(recent, last_digest_at)
    if digest and not is_last and digest_at > now:
        waits.append(digest_at)
        digest = []
    return SendPlan(tuple(page.id for page in fresh[:room]), tuple(digest), min(waits, default=None))


class Reminder(NamedTuple):
    """Ids of the pages of which one message reminds, and when it is due, in microseconds UTC."""

    ids: tuple[int, ...]
    due_at: int


def plan_reminder(undecided: Sequence[tuple[int, int]], last_at: int | None) -> Reminder | None:
    """Return the next reminder, once a day; None without a page.

    ``undecided``: the id of each page about which nobody has decided, and when it was sent; ``last_at``: when the
    reminder before was.
    """
    if not undecided:
        return None
    latest = max(last_at or 0, min(sent_at for _, sent_at in undecided))
    return Reminder(tuple(page_id for page_id, _ in undecided), latest + REMINDER_US)


def is_reminder_due(reminder: Reminder, now: int, *, is_last: bool) -> bool:
    """Whether a reminder is sent at ``now``. ``is_last``: of a nightly run, whose next one may be a little later."""
    return reminder.due_at - (EARLY_REMINDER_US if is_last else 0) <= now


def _has_grown(page: PageRow) -> bool:
    return page.state == "open" and page.sent_at is not None and page.counted > page.sent_count


def _next_digest_at(recent: Sequence[int], last_digest_at: int | None) -> int:
    """Return when the next digest may be sent: a window after the first recent message and after the last digest."""
    earlier = [*recent[:1], *([] if last_digest_at is None else [last_digest_at])]
    return max(earlier) + STORM_WINDOW_US if earlier else 0


# --- Senders -------------------------------------------------------------------------------------------------------

#: By sender: options of which exactly one is required, and optional ones.
SENDER_OPTIONS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "command": (frozenset(["line", "argv"]), frozenset(["timeout"])),
    "webhook": (frozenset(["url"]), frozenset(["headers", "timeout"])),
    "apprise": (frozenset(["url"]), frozenset(["timeout"])),
    "bell": (frozenset(), frozenset()),
}


def check_sender(sender: str, options: Mapping[str, object]) -> None:
    """Validate a sender and its options. Raises ValueError with one sentence that holds no secrets."""
    if sender not in SENDER_OPTIONS:
        raise ValueError(f"there is no sender of pages {sender!r}; there are {', '.join(SENDER_OPTIONS)}")
    needed, optional = SENDER_OPTIONS[sender]
    unknown = sorted(set(options) - needed - optional)
    if unknown:
        known = ", ".join(sorted(needed | optional)) or "nothing"
        raise ValueError(f"the sender {sender!r} has no option {unknown[0]!r}; it has: {known}")
    if needed and len(needed & set(options)) != 1:
        raise ValueError(f"the sender {sender!r} needs {' or '.join(sorted(needed))}")
    for name in needed & set(options):
        _check_required_option(sender, name, options[name])


def declared_sender(options: Mapping[str, object]) -> dict[str, str | None]:
    """Return a sender as the state file has it, without its options: URLs, headers and command lines hold secrets.

    ``host``: of a webhook; ``hash``: another one with any other option.
    """
    sender, url = str(options["sender"]), options.get("url")
    host = urlsplit(url).hostname if sender == "webhook" and isinstance(url, str) else None
    text = json.dumps(options, sort_keys=True, default=str)
    return {"sender": sender, "host": host, "hash": sha256_hex(text.encode())[:12]}


def _check_required_option(sender: str, name: str, value: object) -> None:
    if name == "argv":
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(word, str) for word in value):
            raise ValueError(f"the sender {sender!r} needs argv as a list of texts, the program first")
    elif not isinstance(value, str) or not value.strip():
        raise ValueError(f"the sender {sender!r} needs {name} as a text that is not empty")
    elif sender == "webhook" and not value.startswith(("https://", "http://")):
        raise ValueError("the sender 'webhook' needs a url that begins with https:// or http://")


# --- The past incidents of a cause, in words: the same sentence in the inbox, on the command line and in a page ------
#
# ``statefile/causes.py`` reads them from the state file.


#: The stored reason of a key that does not ask for one. Sentences leave it out.
DEFAULT_REASON = "by key, without a note"

REASON_CHARACTERS = 60


class PastIncident(msgspec.Struct, frozen=True):
    """Tasks of one run that failed alike, and the one decision about them; or all that are still undecided in several
    ``runs``. Instants are microseconds UTC.

    ``decision``: requeue, skip, cancel, expired, undecided; ``decided``: its past tense, as "requeued". Counts of the
    requeued tasks: ``healed``, failed ``again`` in the same way, ended ``otherwise``, not ended (``open``).
    """

    run_id: str
    at: int | None  # when the first task failed
    tasks: int
    decision: str
    runs: int = 1
    decided: str = ""
    decided_at: int | None = None
    actor: str | None = None
    reason: str | None = None
    healed: int = 0
    again: int = 0
    otherwise: int = 0
    open: int = 0
    healed_at: int | None = None  # when the last task succeeded


class Note(msgspec.Struct, frozen=True):
    """A note by an operator on a cause."""

    at: int
    actor: str | None
    run_id: str
    text: str


class CauseHistory(msgspec.Struct, frozen=True):
    """The history of a cause in all runs of its flow, as ``statefile/causes.py`` reads it.

    ``runs``: other runs with this cause, the first at ``first_at``.
    """

    fingerprint: str
    downstream: str | None = None
    runs: int = 0
    first_at: int | None = None
    episodes: tuple[PastIncident, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def is_new(self) -> bool:
        """True if no other run, incident or note is known."""
        return not (self.runs or self.episodes or self.notes)


def describe_last_incident(
    history: CauseHistory, now_us: int, reason_characters: int = REASON_CHARACTERS
) -> str | None:
    """``last time 12 March: 41 tasks, requeued by ana 'schema reloaded', healed after 6 min``; None without one.

    The reason is cut to ``reason_characters``.
    """
    latest = next(iter(history.episodes), None)
    return None if latest is None else f"last time {describe_incident(latest, now_us, reason_characters)}"


def describe_incident(incident: PastIncident, now_us: int, reason_characters: int = REASON_CHARACTERS) -> str:
    """``12 March: 41 tasks, requeued by ana 'schema reloaded', healed after 6 min``."""
    at = incident.at if incident.at is not None else incident.decided_at
    when = f"{format_day(at, now_us)}: " if at is not None else ""
    count = f"{counted(incident.tasks, 'task')}{f' in {incident.runs} runs' if incident.runs > 1 else ''}"
    return f"{when}{', '.join([count, *_result_texts(incident, reason_characters)])}"


def describe_note(note: Note, now_us: int) -> str:
    """``note by ana, 12 March: schema v7 was not loaded``."""
    return f"note by {actor_name(note.actor)}, {format_day(note.at, now_us)}: {note.text}"


def describe_history(history: CauseHistory, now_us: int) -> Iterator[tuple[str, str]]:
    """Yield the notes, which address the reader, then the incidents, the latest first: each behind when it was."""
    for note in history.notes:
        yield "", describe_note(note, now_us)
    for place, incident in enumerate(history.episodes):
        yield "before that " if place else "last time ", describe_incident(incident, now_us)


def _result_texts(incident: PastIncident, reason_characters: int) -> Iterator[str]:
    if incident.decision == "undecided":
        yield "undecided"
        return
    if incident.decision == "expired":
        yield "undecided until they expired" if incident.tasks > 1 else "undecided until it expired"
        return
    yield f"{incident.decided} by {actor_name(incident.actor)}{_quoted_reason(incident.reason, reason_characters)}"
    if incident.decision == "requeue":
        yield from _requeue_results(incident)


def _requeue_results(incident: PastIncident) -> Iterator[str]:
    """Yield each result, with a count unless all tasks have the same result."""
    after = ""
    if incident.healed_at is not None and incident.decided_at is not None:
        after = f" after {format_duration(incident.healed_at - incident.decided_at)}"
    for count, words in (
        (incident.healed, f"healed{after}"),
        (incident.again, "failed again"),
        (incident.otherwise, "ended otherwise"),
        (incident.open, "not done yet"),
    ):
        if count:
            yield words if count == incident.tasks else f"{count:,} {words}"


def _quoted_reason(reason: str | None, characters: int) -> str:
    words = " ".join((reason or "").split())
    if not words or words == DEFAULT_REASON or not characters:
        return ""
    return f" '{words if len(words) <= characters else words[: characters - 1].rstrip() + '…'}'"


def actor_name(actor: str | None) -> str:
    """Return ``ana`` for ``ana@ops-7``; the details show the host."""
    return (actor or "").partition("@")[0] or "somebody"


def format_day(at: int, now_us: int) -> str:
    """``at 03:14`` on the same day, ``12 March`` in the same year or less than half a year ago, ``12 March 2025``."""
    then, now = (datetime.fromtimestamp(instant / 1e6, UTC).astimezone() for instant in (at, now_us))
    if then.date() == now.date():
        return f"at {then:%H:%M}"
    date = f"{then.day} {then:%B}"
    return date if then.year == now.year or (now - then).days < 180 else f"{date} {then.year}"


# --- What a page says ------------------------------------------------------------------------------------------------


class PageBody(msgspec.Struct, frozen=True, rename={"failure_class": "class"}):
    """The column ``body`` of a page, as JSON. ``deadline_at``: microseconds UTC."""

    why: str | None = None
    mode: str | None = None
    kind: str | None = None
    failure_class: str | None = None
    error: str | None = None
    diagnostic: str | None = None
    explain: str | None = None
    fingerprint: str | None = None
    changed: Sequence[str] | None = None  # between the last two attempts
    held: int | None = None  # tasks below
    deadline_at: int | None = None
    downstream: str | None = None
    breaker: str | None = None  # why it lets no call through
    owner: str | None = None
    memory: CauseHistory | None = None
    command: str | None = None  # to act
    attach: str | None = None  # opens the run


msgspec.json.Decoder(PageBody)  # prepares its structs before threads convert them at once: core/spec.py


def parse_body(body: object) -> PageBody:
    """Parse the body of a page; a damaged one counts as empty."""
    try:
        return msgspec.convert(body, PageBody)
    except msgspec.ValidationError:
        return PageBody()
