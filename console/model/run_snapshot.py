"""A run as of one event, with its circuit breakers and the notes on its pages.

The board shows one snapshot. Each event updates the present one; snapshots of the past come from ``replay.py``, where
they share unchanged rows, which are never modified.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...engine.core.projection import RunProjection, TaskRow
from ...engine.core.waiting import BreakerView
from ...engine.domain.event_changes import PageChange
from ...engine.domain.event_payloads import BreakerChanged, PageChanged
from ...engine.domain.events import Event
from ...engine.json_types import Json
from ...engine.statefile.list_rows import BreakerRow, PageHead, PageRow

#: The notes of a page that is not acknowledged.
PAGE_OPEN, PAGE_UNSENT = "page open", "page not sent"
OPEN_NOTES = (PAGE_OPEN, PAGE_UNSENT)


@dataclass(slots=True)
class RunSnapshot:
    """``breakers`` by downstream; ``page_notes`` by cause: the state of a page in a few words.

    ``is_past``: logs, tracebacks and lists that are read for it are newer than the snapshot.
    """

    projection: RunProjection
    breakers: dict[str, BreakerView] = field(default_factory=dict)
    page_notes: dict[str, str] = field(default_factory=dict)
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

    def update_lists(self, breakers: Iterable[BreakerRow] = (), pages: Iterable[PageRow | PageHead] = ()) -> None:
        """Update breakers and page notes from rows of their tables."""
        for breaker in breakers:
            self.breakers[breaker.downstream] = _breaker_view(breaker)
        notes: dict[str, str] = {}
        for page in pages:  # the latest first: earlier episodes of a cause no longer count
            notes.setdefault(page.cause, _page_note(page.state, page.acked_by, page.sent_at is not None))
        self.page_notes.update(notes)

    def _apply_notice(self, event: Event) -> None:
        payload = event.payload
        if isinstance(payload, BreakerChanged) and payload.downstream and payload.state:
            self.breakers[payload.downstream] = BreakerView(payload.state, payload.reopens_at, why=payload.why or "")
        elif isinstance(payload, PageChanged) and payload.cause:
            self.page_notes[payload.cause] = _page_note(payload.what, event.actor, not payload.why)


def _breaker_view(row: BreakerRow) -> BreakerView:
    detail = row.detail if isinstance(row.detail, dict) else {}
    is_spent = row.tokens is not None and row.tokens < 1
    rate = detail.get("release_rate")
    return BreakerView(
        row.state,
        row.reopens_at,
        _instant(detail.get("reserve_at")) if is_spent else None,
        str(detail.get("why") or ""),
        _instant(detail.get("release_at")),
        float(rate) if isinstance(rate, int | float) else 0.0,
    )


def _instant(value: Json) -> int | None:
    return value if isinstance(value, int) else None


def _page_note(state: str, actor: str | None, is_sent: bool) -> str:
    """``state``: of the table, or the ``what`` of an event."""
    if state in ("open", PageChange.OPENED, PageChange.FOLDED):
        return PAGE_OPEN if is_sent else PAGE_UNSENT
    by = f" by {actor}" if actor else ""
    return f"page {state}{by}" if state in (PageChange.ACKED, PageChange.SNOOZED) else ""
