"""The past incidents of a cause, in words: the same sentence in the inbox, on the command line and in a page.

``statefile/on_demand/cause_history.py`` reads them from the state file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from ..domain.counting import counted
from ..domain.durations import format_duration

#: The stored reason of a key that does not ask for one. Sentences leave it out.
DEFAULT_REASON = "by key, without a note"

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
REASON_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class PastIncident:
    """Tasks of one run that failed alike, and the one decision about them. Instants are microseconds UTC.

    ``decision``: requeue, skip, cancel, expired, undecided; ``decided``: its past tense, as "requeued". Counts of the
    requeued tasks: ``healed``, failed ``again`` in the same way, ended ``otherwise``, not ended (``open``).
    """

    run_id: str
    at: int | None  # when the first task failed
    tasks: int
    decision: str
    decided: str = ""
    decided_at: int | None = None
    actor: str | None = None
    reason: str | None = None
    healed: int = 0
    again: int = 0
    otherwise: int = 0
    open: int = 0
    healed_at: int | None = None  # when the last task succeeded


@dataclass(frozen=True, slots=True)
class Note:
    """A note by an operator on a cause."""

    at: int
    actor: str | None
    run_id: str
    text: str


@dataclass(frozen=True, slots=True)
class CauseHistory:
    """One cause in all runs of its flow. ``runs``: other runs with this cause, the first at ``first_at``."""

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


def parse_cause_history(row: Mapping[str, Any]) -> CauseHistory:
    """Build the history from a row of ``statefile/on_demand/cause_history.py``."""
    return CauseHistory(
        fingerprint=row["fingerprint"],
        downstream=row["downstream"],
        runs=row["runs"],
        first_at=row["first_at"],
        episodes=tuple(PastIncident(**incident) for incident in row["episodes"]),
        notes=tuple(Note(**note) for note in row["notes"]),
    )


def describe_last_incident(
    history: CauseHistory, now_us: int, zone: tzinfo | None = None, reason_characters: int = REASON_CHARACTERS
) -> str | None:
    """``last time 12 March: 41 tasks, requeued by ana 'schema reloaded', healed after 6 min``; None without one.

    ``zone`` None: that of this machine. The reason is cut to ``reason_characters``.
    """
    return (
        f"last time {describe_incident(history.episodes[0], now_us, zone, reason_characters)}"
        if history.episodes
        else None
    )


def describe_incident(
    incident: PastIncident, now_us: int, zone: tzinfo | None = None, reason_characters: int = REASON_CHARACTERS
) -> str:
    """``12 March: 41 tasks, requeued by ana 'schema reloaded', healed after 6 min``."""
    at = incident.at if incident.at is not None else incident.decided_at
    when = f"{format_day(at, now_us, zone)}: " if at is not None else ""
    count = counted(incident.tasks, "task")
    return f"{when}{', '.join([count, *_result_texts(incident, reason_characters)])}"


def describe_note(note: Note, now_us: int, zone: tzinfo | None = None) -> str:
    """``note by ana, 12 March: schema v7 was not loaded``."""
    return f"note by {actor_name(note.actor)}, {format_day(note.at, now_us, zone)}: {note.text}"


def describe_history(history: CauseHistory, now_us: int) -> Sequence[str]:
    """Return the notes, which address the reader, then the incidents, the latest first."""
    notes = [describe_note(note, now_us) for note in history.notes]
    return [*notes, *(describe_incident(incident, now_us) for incident in history.episodes)]


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


def format_day(at: int, now_us: int, zone: tzinfo | None = None) -> str:
    """``at 03:14`` on the same day, ``12 March`` in the same year or less than half a year ago, ``12 March 2025``."""
    then, now = (datetime.fromtimestamp(instant / 1e6, UTC).astimezone(zone) for instant in (at, now_us))
    if then.date() == now.date():
        return f"at {then:%H:%M}"
    date = f"{then.day} {_MONTHS[then.month - 1]}"
    return date if then.year == now.year or (now - then).days < 180 else f"{date} {then.year}"
