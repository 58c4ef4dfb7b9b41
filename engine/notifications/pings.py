"""Pings: requests of a URL at the start and the end of each run, for a dead man's switch.

They follow healthchecks.io (https://healthchecks.io/docs/http_api/): ``/start`` and ``/fail`` after the path, and the
URL itself for success. Errors are emitted without the URL, which is a secret.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from functools import partial
from urllib.parse import urlsplit, urlunsplit

from ..domain.event_changes import RunChange
from ..domain.event_payloads import RunChanged
from ..domain.events import Event
from ..domain.states import RunState
from .background import BackgroundSends
from .senders import get

_PLACEHOLDER = "{event}"


class PingEvent(StrEnum):
    """What a ping reports; the word in place of ``{event}``."""

    START = "start"
    SUCCESS = "success"
    FAIL = "fail"


def url_for(url: str, event: PingEvent) -> str:
    """Return the URL to request for an event."""
    if _PLACEHOLDER in url:
        return url.replace(_PLACEHOLDER, event)
    if event is PingEvent.SUCCESS:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{event}"))


def ping_event_of(event: Event, run_id: str) -> PingEvent | None:
    """Return what an event means for the switch: the end of the run, or that it waits for a human."""
    payload = event.payload
    if event.run_id != run_id or not isinstance(payload, RunChanged):
        return None
    if payload.what == RunChange.ENDED:
        return PingEvent.SUCCESS if event.new == RunState.SUCCESS else PingEvent.FAIL
    return PingEvent.FAIL if payload.what == RunChange.BLOCKED else None


class Pinger:
    """Sends pings in the background, to each URL in order."""

    def __init__(self, urls: Sequence[str], sends: BackgroundSends) -> None:
        self._urls = urls
        self._sends = sends

    def handle_events(self, events: Iterable[Event], run_id: str) -> None:
        """Send the pings that the events of the run call for."""
        for event in events if self._urls else ():
            ping = ping_event_of(event, run_id)
            if ping is not None:
                self.send(ping)

    def send(self, event: PingEvent) -> None:
        """Request each URL; a start that is not accepted yet delays the end, so that they arrive in order."""
        for url in self._urls:
            self._sends.start(url, f"ping {event!s} to {urlsplit(url).hostname}", partial(get, url_for(url, event)))
