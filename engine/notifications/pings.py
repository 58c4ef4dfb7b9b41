"""Pings: requests of a URL at the start and the end of each run, for a dead man's switch.

They follow healthchecks.io (https://healthchecks.io/docs/http_api/): ``/start`` and ``/fail`` after the path, and the
URL itself for success. Errors are emitted without the URL, which is a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from urllib.parse import urlsplit, urlunsplit

from ..core.policy import RetryPolicy, draw_delay
from ..domain.event_payloads import RunChange, RunChanged
from ..domain.events import Event
from ..domain.states import RunState
from .senders import SendError, get

TRIES = 3
RETRY_POLICY = RetryPolicy(base=1.0, cap=4.0, jitter="equal")
_PLACEHOLDER = "{event}"


class PingEvent(StrEnum):
    """What a ping tells; the word in place of ``{event}``."""

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


def ping_event_of(event: Event) -> PingEvent | None:
    """Return what an event means for the switch: the end of the run, or that it waits for a human."""
    payload = event.payload
    if not isinstance(payload, RunChanged):
        return None
    if payload.what == RunChange.ENDED:
        return PingEvent.SUCCESS if event.new == RunState.SUCCESS else PingEvent.FAIL
    return PingEvent.FAIL if payload.what == RunChange.BLOCKED else None


class Pinger:
    """Sends pings in the background, to each URL in order. ``on_failed(sentence)`` reports a ping that was given up."""

    def __init__(
        self, urls: Sequence[str], uniform: Callable[[float, float], float], on_failed: Callable[[str], None]
    ) -> None:
        self._urls = urls
        self._uniform = uniform
        self._on_failed = on_failed
        self._latest: dict[str, asyncio.Task[None]] = {}  # by URL

    def handle_events(self, events: Iterable[Event], run_id: str) -> None:
        """Send what the events of the run mean."""
        for event in events:
            ping = ping_event_of(event) if event.run_id == run_id else None
            if ping is not None:
                self.send(ping)

    def send(self, event: PingEvent) -> None:
        """Request each URL; a start that is not accepted yet delays the end, so that they arrive in order."""
        for url in self._urls:
            self._latest[url] = asyncio.get_running_loop().create_task(self._send(url, event, self._latest.get(url)))

    async def close(self, timeout_seconds: float) -> None:
        """Wait for the pings, at most for ``timeout_seconds``."""
        if self._latest:
            _, pending = await asyncio.wait(self._latest.values(), timeout=timeout_seconds)
            for task in pending:
                task.cancel()

    async def _send(self, url: str, event: PingEvent, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        why = ""
        for number in range(TRIES):
            if number:
                await asyncio.sleep(draw_delay(RETRY_POLICY, number - 1, None, self._uniform)[0])
            try:
                await get(url_for(url, event))
                return
            except SendError as error:
                why = str(error)
            except Exception as error:  # its text may hold the URL
                why = type(error).__name__
        host = urlsplit(url).hostname
        self._on_failed(f"ping {event!s} to {host} not accepted after {TRIES} tries: {why}")
