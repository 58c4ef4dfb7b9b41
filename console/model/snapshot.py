"""A run as of one event, with its circuit breakers and the notes on its pages.

The board shows one snapshot. Each event updates the present one; snapshots of the past come from ``replay.py``,
where they share unchanged rows, which are never modified.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ...engine.core.breaker import BreakerStatus, after_event, decode, new_status
from ...engine.core.projection import RunProjection, TaskRow
from ...engine.core.ready_queue import declared_downstreams, downstreams_of, spec_of
from ...engine.core.spec import DownstreamSpec
from ...engine.domain.event_payloads import BreakerChanged, PageChange, PageChanged
from ...engine.domain.events import Event
from ...engine.domain.rows import BreakerRow, PageRow

#: The notes of a page that is not acknowledged.
PAGE_OPEN, PAGE_UNSENT, PAGE_REFUSED = "page open", "page not sent", "page refused by its sender"
OPEN_NOTES = (PAGE_OPEN, PAGE_UNSENT, PAGE_REFUSED)


class RunSnapshot(msgspec.Struct):
    """``breakers`` by downstream; ``page_notes`` by cause: the state of a page in a few words.

    ``is_past``: logs, tracebacks and lists that are read for it are newer than the snapshot.
    """

    projection: RunProjection
    breakers: dict[str, BreakerStatus] = {}
    page_notes: dict[str, str] = {}
    is_past: bool = False

    def with_projection(self, projection: RunProjection) -> RunSnapshot:
        """Return a snapshot of another projection with the same breakers and page notes."""
        return RunSnapshot(projection, dict(self.breakers), dict(self.page_notes))

    def apply(self, event: Event) -> TaskRow | None:
        """Apply the next event; skip one that the projection contains. Returns the row of the task that it changed."""
        if event.seq <= self.projection.seq:
            return None
        self._apply_notice(event)
        return self.projection.apply(event)

    def update_lists(self, breakers: Iterable[BreakerRow] = (), pages: Iterable[PageRow] = ()) -> None:
        """Update breakers and page notes from rows of their tables."""
        specs = self.downstreams if breakers else {}
        for row in breakers:
            spec = specs.get(row.downstream) or DownstreamSpec(row.downstream)
            self.breakers[row.downstream] = decode(row, spec)
        notes: dict[str, str] = {}
        for page in pages:  # the latest first: earlier episodes of a cause no longer count
            note = _page_note(page.state, page.acked_by, page.sent_at is not None)
            notes.setdefault(page.cause, PAGE_REFUSED if page.is_unsent else note)
        self.page_notes.update(notes)

    def _apply_notice(self, event: Event) -> None:
        payload = event.payload
        if isinstance(payload, BreakerChanged) and payload.downstream and payload.state:
            self.breakers[payload.downstream] = after_event(self._breaker(payload.downstream), payload)
        elif isinstance(payload, PageChanged) and payload.cause:
            known_note = self.page_notes.get(payload.cause) if payload.what in _UNCHANGED_PAGE else None
            note = _page_note(payload.what, event.actor, not payload.why) if known_note is None else known_note
            if payload.what == PageChange.REOPENED:
                page = payload.page
                note = _page_note(page.get("state", "open"), page.get("acked_by"), page.get("sent_at") is not None)
            self.page_notes[payload.cause] = note

    def _breaker(self, downstream: str) -> BreakerStatus:
        known = self.breakers.get(downstream)
        return new_status(self.downstreams.get(downstream) or DownstreamSpec(downstream)) if known is None else known

    @property
    def downstreams(self) -> dict[str, DownstreamSpec]:
        """The downstreams of the run, as its flow declares them or its tasks name them."""
        specs = map(spec_of, self.projection.tasks.values())
        return downstreams_of(declared_downstreams(self.projection.run.options), specs)

    def breakers_of_run(self) -> dict[str, BreakerStatus]:
        """The breakers of the run's downstreams, in the order of the flow."""
        return {name: self.breakers.get(name) or new_status(spec) for name, spec in self.downstreams.items()}


#: Changes that leave the state of a page as it is: its task was requeued, or it was counted up.
_UNCHANGED_PAGE = frozenset([PageChange.REARMED, PageChange.FOLDED])


def _page_note(state: str, actor: str | None, is_sent: bool) -> str:
    """``state``: of the table, or the ``what`` of an event."""
    if state in ("open", PageChange.OPENED, *_UNCHANGED_PAGE):
        return PAGE_OPEN if is_sent else PAGE_UNSENT
    if state == PageChange.WOKEN:  # its snooze has ended, and it is sent again
        return PAGE_UNSENT
    by = f" by {actor}" if actor else ""
    return f"page {state}{by}" if state in (PageChange.ACKED, PageChange.SNOOZED) else ""
