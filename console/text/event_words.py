"""The forms in which the words of an event are written: a sentence for the journal, and the lines of ``--plain``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from string import Formatter
from typing import Any, NamedTuple, TypeVar

from ...engine.domain.event_payloads import Payload
from ...engine.domain.events import Event
from .figures import FINGERPRINT_DIGITS, wall

P = TypeVar("P", bound=Payload)


@dataclass(frozen=True)
class StateLine:
    """A line about a task or a run that came into a state: its name, the word of the state, and the rest."""

    name: str | None
    word: str
    rest: str = ""


#: A template of the event and its payload, or what makes the text; some make several lines.
EventText = str | Callable[[Event, P], str | StateLine | Iterable[str | StateLine]]


class Lines(Enum):
    """A text in place of lines."""

    SENTENCE = "the subject of the event and its sentence"


class EventWords(NamedTuple):
    """The sentence of an event, and its lines. "": the default sentence; no line."""

    sentence: EventText[Any] = ""
    lines: EventText[Any] | Lines = ""


class _Templates(Formatter):
    """Shows "?" for None."""

    def format_field(self, value: object, format_spec: str) -> str:
        return "?" if value is None else str(value)


_TEMPLATES = _Templates()
WordsRow = tuple[tuple[type, str | None], EventWords]


def words(payload_type: type[P], sentence: EventText[P], lines: EventText[P] | Lines = "") -> Iterator[WordsRow]:
    """A row of a table of words; the type checker compares the functions with the payload type."""
    yield (payload_type, None), EventWords(sentence, lines)


def words_by(
    payload_type: type[P], rows: Mapping[str, EventText[P] | tuple[EventText[P], EventText[P] | Lines]]
) -> Iterator[WordsRow]:
    """Rows by the state that a task came into, or by what changed; a sentence alone has no lines."""
    for key, found in rows.items():
        yield (payload_type, key), EventWords(*found) if isinstance(found, tuple) else EventWords(found)


def texts(text: EventText[Any], event: Event) -> Iterable[str | StateLine]:
    """The texts of an event, as they are written in its row."""
    if isinstance(text, str):
        return [_TEMPLATES.format(text, event=event, payload=event.payload)] if text else []
    found = text(event, event.payload)
    if isinstance(found, str | StateLine):
        return [found] if found else []
    return found


# --- Parts of texts --------------------------------------------------------------------------------------------------


def by(event: Event) -> str:
    """The actor of an act, and the reason."""
    if not event.actor:
        return ""
    return f" by {event.actor}" + (f": {event.reason}" if event.reason else "")


def digits(fingerprint: str | None) -> str:
    """The first digits of a fingerprint."""
    return fingerprint[:FINGERPRINT_DIGITS] if fingerprint else "-"


def precise_instant(at: int | None) -> str:
    """An instant with hundredths of a second: ``03:11:01.34``."""
    return "-" if at is None else f"{wall(at)}.{at % 1_000_000 // 10_000:02}"
