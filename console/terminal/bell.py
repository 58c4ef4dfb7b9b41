"""The terminal's bell: once for each new page, on every console that is attached."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable

from ...engine.domain.event_payloads import PageChange, PageChanged
from ...engine.domain.events import Event

VARIABLE = "REDRIVE_BELL"
_SILENT = frozenset({"0", "off", "no", "false", "silent"})
_NEWS_US = 600_000_000  # what was rung longer ago, before the line was back, is no news any more
_REMEMBERED = 1000

#: After these the same page may ring again: it is a new episode, or somebody asked for it.
_ANEW = frozenset({PageChange.OPENED, PageChange.WOKEN})


class Bell:
    """Listens to events as they happen; what is read of the past does not come this way. ``ring`` makes the sound."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self.is_on = os.environ.get(VARIABLE, "").strip().lower() not in _SILENT
        self._ring = ring
        self._rung: OrderedDict[object, None] = OrderedDict()  # ids of pages

    def hear(self, events: Iterable[Event], now_us: int) -> None:
        """Ring once if there is a page among them that has not rung yet: a sender may say it twice."""
        is_new = False
        for event in events:
            payload = event.payload
            if not isinstance(payload, PageChanged):
                continue
            page, what = payload.id, payload.what
            if what in _ANEW:
                self._rung.pop(page, None)
            elif what == PageChange.BELL and page not in self._rung and now_us - event.at < _NEWS_US:
                self._remember(page)
                is_new = True
        if is_new and self.is_on:
            self._ring()

    def _remember(self, page: object) -> None:
        self._rung[page] = None
        while len(self._rung) > _REMEMBERED:
            self._rung.popitem(last=False)
