"""Notices of success: what ``flow.page(..., on="success")`` sends when a run has ended well.

Unlike a page, a notice asks for nothing: it is not kept in an outbox, and it is lost after a few tries.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ..domain.events import Event
from .background import BackgroundSends
from .notifier import MessageOrigin
from .pings import PingEvent, ping_event_of
from .senders import Message, make_senders, printable


class SuccessNotices:
    """Tells the senders of ``on="success"`` that the run has succeeded. ``describe()``: tasks and duration in words."""

    def __init__(
        self,
        declared: Sequence[Mapping[str, object]],
        origin: MessageOrigin,
        sends: BackgroundSends,
        describe: Callable[[], str],
    ) -> None:
        self._senders = make_senders(declared, _ring)
        self._origin = origin
        self._sends = sends
        self._describe = describe

    def handle_events(self, events: Iterable[Event]) -> None:
        """Send a notice at the end of the run, if it is SUCCESS."""
        run_id = self._origin.run_id
        if self._senders and any(ping_event_of(event, run_id) is PingEvent.SUCCESS for event in events):
            message = success_message(self._origin, self._describe())
            for number, sender in enumerate(self._senders):
                what = f"notice of success by {sender.name}"
                self._sends.start(f"sender {number}", what, partial(sender.send, message))


def success_message(origin: MessageOrigin, described: str) -> Message:
    """Return the notice as senders get it: with the fields of a page that make sense for it."""
    title = f"{origin.flow}: run {origin.run_id} succeeded"
    command = shlex.join(["redrive", "summary", origin.state, "--run", origin.run_id])
    return {
        "kind": "success",
        "key": f"success/{origin.run_id}",
        "severity": "info",
        "title": title,
        "flow": origin.flow,
        "run_id": origin.run_id,
        "state": origin.state,
        "text": printable(f"{title}\n{described}\n{command}"),
    }


async def _ring(ids: Sequence[int]) -> None:
    """Ring no bell: ``Flow.page`` refuses it for successes."""
