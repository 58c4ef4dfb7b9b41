"""Sequences to the terminal beside its cells: the bell, and the clipboard of the local machine."""

from __future__ import annotations

import os
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from ...engine.domain.event_payloads import PageChange, PageChanged
from ...engine.domain.events import Event
from ..text.text import sanitize_lines

# --- The bell --------------------------------------------------------------------------------------------------------
#
# The terminal's bell: once for each new page, on every console that is attached.


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


# --- The clipboard ---------------------------------------------------------------------------------------------------
#
# Copy to the clipboard of the local machine through the terminal (OSC 52); works over ssh.


#: The limit of xterm, before base64; other terminals accept at least as much.
COPIED_BYTES_MAX = 74_994
_SCREEN_CHUNK = 240  # GNU screen cuts longer strings off


def truncated_to_clipboard(text: str) -> str:
    """The start of ``text`` that fits the clipboard limit, without control characters, which would act when pasted."""
    return sanitize_lines(text).encode("utf-8", "replace")[:COPIED_BYTES_MAX].decode("utf-8", "ignore")


def copy_sequence(text: str, environ: Mapping[str, str]) -> str:
    """The escape sequence that makes the terminal copy ``truncated_to_clipboard(text)``, also inside tmux or screen.

    tmux forwards one of two forms, depending on its configuration: send both.
    """
    data = b64encode(truncated_to_clipboard(text).encode("utf-8")).decode("ascii")
    plain = f"\x1b]52;c;{data}\x07"
    if environ.get("TMUX"):
        return f"{plain}\x1bPtmux;\x1b{plain}\x1b\\"
    if environ.get("STY"):
        chunks = (plain[start : start + _SCREEN_CHUNK] for start in range(0, len(plain), _SCREEN_CHUNK))
        return "".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)
    return plain
