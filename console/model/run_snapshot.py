"""A run as of one event, with what stands beside it: circuit breakers, and what is said of pages.

The board shows one moment. The present is a moment that each event brings forward; the moments of the past come from a
reel (``replay.py``), which shares with one another, and never changes, the rows that are alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...engine.core.explain import BreakerView
from ...engine.core.projection import RunFold, TaskRow
from ...engine.domain.event_payloads import BreakerChanged, PageChange, PageChanged
from ...engine.domain.events import Event
from ...engine.statefile.queries import BreakerRow, PageHead, PageRow


@dataclass(slots=True)
class Moment:
    """``breakers`` by downstream; ``page_notes`` by cause: what of a page belongs into a sentence.

    ``is_past``: what can be read beside it (logs, tracebacks, lists) tells of later than this.
    """

    fold: RunFold
    breakers: dict[str, BreakerView] = field(default_factory=dict)
    page_notes: dict[str, str] = field(default_factory=dict)
    is_past: bool = False

    def beside(self, fold: RunFold) -> Moment:
        """Another picture with what stands beside this one."""
        return Moment(fold, dict(self.breakers), dict(self.page_notes))

    def apply(self, event: Event) -> TaskRow | None:
        """Take the next event. Answers with the task that it touched; one that is in it already changes nothing."""
        if event.seq <= self.fold.seq:
            return None
        self._note(event)
        return self.fold.apply(event)

    def learn(self, breakers: Iterable[BreakerRow] = (), pages: Iterable[PageRow | PageHead] = ()) -> None:
        """Take what stands beside the run as rows of the tables: events told it before the snapshot was made."""
        for breaker in breakers:
            self.breakers[breaker.downstream] = BreakerView(breaker.state, breaker.reopens_at)
        notes: dict[str, str] = {}
        for page in pages:  # the latest first: what an earlier episode of a cause became says nothing any more
            notes.setdefault(page.cause, _page_note(page.state, page.acked_by))
        self.page_notes.update(notes)

    def _note(self, event: Event) -> None:
        payload = event.payload
        if isinstance(payload, BreakerChanged) and payload.downstream and payload.state:
            self.breakers[payload.downstream] = BreakerView(payload.state, payload.reopens_at)
        elif isinstance(payload, PageChanged) and payload.cause:
            self.page_notes[payload.cause] = _page_note(payload.what, event.actor)


def _page_note(state: str, who: str | None) -> str:
    """``state`` as in the table, or what an event says happened to it."""
    if state in ("open", PageChange.OPENED, PageChange.FOLDED):
        return "page open"
    by = f" by {who}" if who else ""
    return f"page {state}{by}" if state in (PageChange.ACKED, PageChange.SNOOZED) else ""
