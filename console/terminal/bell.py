"""The terminal's bell: once for each new page, on every console that is attached."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable

from ...engine.domain.event_changes import PageChange
from ...engine.domain.event_payloads import PageChanged
from ...engine.domain.events import Event

VARIABLE = "REDRIVE_BELL"
_SILENT = frozenset({"0", "off", "no", "false", "silent"})
_NEWS_US = 600_000_000  # events older than this, received after a reconnect, do not ring
_REMEMBERED_PAGES_MAX = 1000

#: After these changes the same page may ring again: a new episode, or the end of a snooze.
_RESETTING_CHANGES = frozenset({PageChange.OPENED, PageChange.WOKEN})


class TerminalBell:
    """Rings for new pages among live events. ``ring`` makes the sound."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.is_on = os.environ.get(VARIABLE, "").strip().lower() not in _SILENT
        self._ring = ring
        self._rung: OrderedDict[object, None] = OrderedDict()  # ids of pages

    def ring_for(self, events: Iterable[Event], now_us: int) -> None:
        """Ring once if a page among the events has not rung yet: a sender may repeat its event."""
        is_new = False
        for event in events:
            payload = event.payload
            if not isinstance(payload, PageChanged):
                continue
            page, what = payload.id, payload.what
            if what in _RESETTING_CHANGES:
                self._rung.pop(page, None)
            elif what == PageChange.BELL and page not in self._rung and now_us - event.at < _NEWS_US:
                self._remember(page)
                is_new = True
        if is_new and self.is_on:
            self._ring()

    def _remember(self, page: object) -> None:
        self._rung[page] = None
        while len(self._rung) > _REMEMBERED_PAGES_MAX:
            self._rung.popitem(last=False)
