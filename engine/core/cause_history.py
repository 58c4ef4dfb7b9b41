"""What came of a cause before, in words: the same sentence in the inbox, on the command line and in a page.

``statefile/on_demand/cause_history.py`` finds it in the state file; the values here are what it answers with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from .durations import format_duration

#: The reason of an act for which nobody was asked for one: it says nothing that the act does not.
DEFAULT_REASON = "by key, without a note"

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
REASON_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class PastIncident:
    """Tasks of one run that failed alike, and the one decision about them. Instants in microseconds UTC.

    ``decision``: requeue, skip, cancel, expired, undecided; ``decided``: the past tense of that act, as "requeued". Of
    those requeued, so many ``healed``, failed ``again`` in the same way, ended ``otherwise``, or have not ended
    (``open``).
    """

    run_id: str
    at: int | None  # when the first of them failed
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
    healed_at: int | None = None  # when the last of them was well


@dataclass(frozen=True, slots=True)
class Note:
    """What an operator wrote on a cause."""

    at: int
    actor: str | None
    run_id: str
    text: str


@dataclass(frozen=True, slots=True)
class CauseHistory:
    """One cause in all runs of its flow. ``runs``: others in which it was seen, the first of them at ``first_at``."""

    fingerprint: str
    downstream: str | None = None
    runs: int = 0
    first_at: int | None = None
    episodes: tuple[PastIncident, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def is_new(self) -> bool:
        """Nothing is known of it but what the inbox shows."""
        return not (self.runs or self.episodes or self.notes)


def parse_cause_history(row: Mapping[str, Any]) -> CauseHistory:
    """Read what ``statefile/on_demand/cause_history.py`` told."""
    return CauseHistory(
        fingerprint=row["fingerprint"],
        downstream=row["downstream"],
        runs=row["runs"],
        first_at=row["first_at"],
        episodes=tuple(PastIncident(**episode) for episode in row["episodes"]),
        notes=tuple(Note(**note) for note in row["notes"]),
    )


def describe_last_incident(
    memory: CauseHistory, now_us: int, zone: tzinfo | None = None, reason_characters: int = REASON_CHARACTERS
) -> str | None:
    """``last time 12 March: 41 tasks, requeued by ana 'schema reloaded', healed after 6 min``; None: there was none.

    ``zone`` None is that of this machine. Where there is little room it is the reason that is told in fewer characters.
    """
    return (
        f"last time {describe_incident(memory.episodes[0], now_us, zone, reason_characters)}"
        if memory.episodes
        else None
    )


def describe_incident(
    episode: PastIncident, now_us: int, zone: tzinfo | None = None, reason_characters: int = REASON_CHARACTERS
) -> str:
    """``12 March: 41 tasks, requeued by ana 'schema reloaded', healed after 6 min``."""
    at = episode.at if episode.at is not None else episode.decided_at
    when = f"{format_day(at, now_us, zone)}: " if at is not None else ""
    count = f"{episode.tasks:,} task{'' if episode.tasks == 1 else 's'}"
    return f"{when}{', '.join([count, *_what_came(episode, reason_characters)])}"


def describe_note(note: Note, now_us: int, zone: tzinfo | None = None) -> str:
    """``note by ana, 12 March: schema v7 was not loaded``."""
    return f"note by {actor_name(note.actor)}, {format_day(note.at, now_us, zone)}: {note.text}"


def describe_history(memory: CauseHistory, now_us: int, zone: tzinfo | None = None) -> Sequence[str]:
    """Notes first, they are meant for the reader; then the episodes, the latest first."""
    notes = [describe_note(note, now_us, zone) for note in memory.notes]
    return [*notes, *(describe_incident(episode, now_us, zone) for episode in memory.episodes)]


def _what_came(episode: PastIncident, reason_characters: int) -> Iterator[str]:
    if episode.decision == "undecided":
        yield "nobody decided"
        return
    if episode.decision == "expired":
        yield "nobody decided, and they expired" if episode.tasks > 1 else "nobody decided, and it expired"
        return
    yield f"{episode.decided} by {actor_name(episode.actor)}{_why(episode.reason, reason_characters)}"
    if episode.decision == "requeue":
        yield from _results(episode)


def _results(episode: PastIncident) -> Iterator[str]:
    """With numbers only where not all came to the same."""
    after = ""
    if episode.healed_at is not None and episode.decided_at is not None:
        after = f" after {format_duration(episode.healed_at - episode.decided_at)}"
    for count, words in (
        (episode.healed, f"healed{after}"),
        (episode.again, "failed again"),
        (episode.otherwise, "ended otherwise"),
        (episode.open, "not done yet"),
    ):
        if count:
            yield words if count == episode.tasks else f"{count:,} {words}"


def _why(reason: str | None, characters: int) -> str:
    said = " ".join((reason or "").split())
    if not said or said == DEFAULT_REASON or not characters:
        return ""
    return f" '{said if len(said) <= characters else said[: characters - 1].rstrip() + '…'}'"


def actor_name(actor: str | None) -> str:
    """``ana`` of ``ana@ops-7``: of two with one name the details tell more."""
    return (actor or "").partition("@")[0] or "somebody"


def format_day(at: int, now_us: int, zone: tzinfo | None = None) -> str:
    """``at 03:14`` on the same day, ``12 March`` in the same year or less than half a year ago, ``12 March 2025``."""
    then, now = (datetime.fromtimestamp(instant / 1e6, UTC).astimezone(zone) for instant in (at, now_us))
    if then.date() == now.date():
        return f"at {then:%H:%M}"
    date = f"{then.day} {_MONTHS[then.month - 1]}"
    return date if then.year == now.year or (now - then).days < 180 else f"{date} {then.year}"
