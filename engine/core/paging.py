"""Pages as decisions: what counts as one cause, how urgent it is, and what may go out now.

The unit of the on-call is the cause, not the task: a thousand tasks that fail for one reason are one page with a
counter. A cause has episodes; a new one begins when somebody tried to repair it and it failed again, or after a long
silence. So a page that goes unheard is not repeated, and a repair that did not help is (SPEC 4.13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..domain.states import DeadLetterKind
from .breaker import PASSING
from .outcome import Failure, FailureClass

STORM_PAGES = 10  # messages of their own within one window; what comes beyond waits for the digest
STORM_WINDOW_US = 600_000_000
LONG_OUTAGE_SECONDS = 600.0  # by then the failure is no longer transient, and somebody should know (document 004)
EPISODE_SILENCE_US = 6 * 3600 * 1_000_000  # nightly runs: each night is an episode of its own

#: The most urgent first.
SEVERITIES = ("critical", "high", "normal")

#: Nothing heals these by itself, and waiting makes them worse.
_BY_KIND = {
    DeadLetterKind.AUTH: "critical",
    DeadLetterKind.DEADLINE: "critical",
}
_BY_CLASS = {
    FailureClass.AUTH: "critical",
    FailureClass.PERMANENT: "high",
    FailureClass.VALIDATION: "high",
    FailureClass.OUT_OF_MEMORY: "high",
}

#: While the breaker of their downstream is not closed, these are its outage and no cause of their own.
_OUTAGE = frozenset([FailureClass.TRANSIENT, FailureClass.TIMEOUT, FailureClass.AMBIGUOUS])
_NO_CAUSE = frozenset(["", "lost"])  # loose fingerprints of attempts that left no failure behind


def severity_of(kind: DeadLetterKind | None, failure: Failure | None) -> str:
    """How urgent a task's end is. ``kind`` None: its budget is spent; a dead letter is never less than high."""
    by_class = _BY_CLASS.get(failure.failure_class, "normal") if failure is not None else "normal"
    by_kind = "normal" if kind is None else _BY_KIND.get(kind, "high")
    return min(by_class, by_kind, key=SEVERITIES.index)


def page_cause(
    run_id: str,
    kind: DeadLetterKind | None,
    failure: Failure | None,
    downstream: str | None = None,
    breaker_state: str | None = None,
    task: str = "",
) -> str:
    """What one page is about: the deadline, the task that nobody knows the end of, the downstream, the loose
    fingerprint, or else the run."""
    if kind is DeadLetterKind.DEADLINE:
        return deadline_cause(run_id)
    if kind is DeadLetterKind.INDETERMINATE:  # each has to be found out about by itself, also on one downstream
        return f"unknown:{run_id}/{task}"
    if downstream is not None and _is_of_the_downstream(kind, failure, breaker_state):
        return f"downstream:{downstream}"
    if failure is not None and failure.fingerprint.loose not in _NO_CAUSE:
        return failure.fingerprint.loose
    return f"run:{run_id}"


def deadline_cause(run_id: str) -> str:
    """The cause of everything that comes too late in a run."""
    return f"deadline:{run_id}"


def schedule_cause(flow: str) -> str:
    """The cause of runs that a schedule owes and nobody has started."""
    return f"schedule:{flow}"


def _is_of_the_downstream(kind: DeadLetterKind | None, failure: Failure | None, breaker_state: str | None) -> bool:
    if kind in (DeadLetterKind.BREAKER, DeadLetterKind.AUTH) or failure is None:
        return True
    is_open = breaker_state is not None and breaker_state not in PASSING
    return is_open and failure.failure_class in _OUTAGE


# --- What may go out now -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageState:
    """A page as the sender sees it. Instants in microseconds UTC."""

    id: int
    severity: str
    count: int
    state: str  # open acked snoozed resolved
    sent_at: int | None = None
    told_count: int = 0  # the count that the latest message told
    snoozed_until: int | None = None


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Ids of the pages that get a message of their own now, and of those that share one digest now."""

    single: tuple[int, ...] = ()
    digest: tuple[int, ...] = ()
    next_check_at: int | None = None  # microseconds UTC; None: not before something happens


def plan_sending(pages: Iterable[PageState], sent: Sequence[int], last_digest_at: int | None, now: int) -> SendPlan:
    """Decide what goes out at ``now``. ``sent``: when single messages went out, oldest first.

    Acknowledged pages are silent. What exceeds the storm cap, and what has grown since it was told, shares one digest a
    window.
    """
    pages = tuple(pages)
    recent = [at for at in sent if at > now - STORM_WINDOW_US]
    fresh = sorted(
        (page for page in pages if page.state == "open" and page.sent_at is None),
        key=lambda page: (SEVERITIES.index(page.severity), page.id),
    )
    room = max(0, STORM_PAGES - len(recent))
    rest = [page.id for page in fresh[room:]]
    rest += [page.id for page in pages if page.state == "open" and page.sent_at is not None and _has_grown(page)]
    waits = [page.snoozed_until for page in pages if page.state == "snoozed" and page.snoozed_until is not None]
    digest: tuple[int, ...] = ()
    if rest:
        due_at = max([*recent[:1], last_digest_at or 0]) + STORM_WINDOW_US
        if (not recent and last_digest_at is None) or due_at <= now:
            digest = tuple(rest)
        else:
            waits.append(due_at)
    return SendPlan(tuple(page.id for page in fresh[:room]), digest, min(waits, default=None))


def _has_grown(page: PageState) -> bool:
    return page.count > page.told_count


# --- Where they go -------------------------------------------------------------------------------------------------

#: What each sender needs to be told, and what it may be told; one of the first must be there.
SENDER_OPTIONS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "command": (frozenset(["line", "argv"]), frozenset(["timeout"])),
    "webhook": (frozenset(["url"]), frozenset(["headers", "timeout"])),
    "apprise": (frozenset(["url"]), frozenset(["timeout"])),
    "bell": (frozenset(), frozenset()),
}


def check_sender(sender: str, options: Mapping[str, object]) -> None:
    """Refuse a sender that could never send. Raises ValueError with one sentence that holds none of the secrets."""
    if sender not in SENDER_OPTIONS:
        raise ValueError(f"there is no sender of pages {sender!r}; there are {', '.join(SENDER_OPTIONS)}")
    needed, optional = SENDER_OPTIONS[sender]
    unknown = sorted(set(options) - needed - optional)
    if unknown:
        known = ", ".join(sorted(needed | optional)) or "nothing"
        raise ValueError(f"the sender {sender!r} is not told {unknown[0]!r}, but {known}")
    if needed and len(needed & set(options)) != 1:
        raise ValueError(f"the sender {sender!r} needs {' or '.join(sorted(needed))}")
    for name in needed & set(options):
        _check_way(sender, name, options[name])


def _check_way(sender: str, name: str, value: object) -> None:
    if name == "argv":
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(word, str) for word in value):
            raise ValueError(f"the sender {sender!r} wants argv as a list of texts, the program first")
    elif not isinstance(value, str) or not value.strip():
        raise ValueError(f"the sender {sender!r} wants {name} as a text that is not empty")
    elif sender == "webhook" and not value.startswith(("https://", "http://")):
        raise ValueError("the sender 'webhook' wants a url that begins with https:// or http://")
